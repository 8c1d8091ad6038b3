"""The table "The path of a publish" in docs/architecture.md, compared with simulated servers and with the source."""

import ast
import re
from pathlib import Path

import pytest

from antecede import Agent, Context, Notification
from antecede.link import Frame
from antecede.server import AgentServer
from antecede.server.inputs import Step
from antecede.server.items import decode_record
from antecede.testing import World

_root = Path(__file__).resolve().parents[2]

_topology = """
[servers]
s1 = "tcp://127.0.0.1:7101"
s2 = "tcp://127.0.0.1:7102"
s3 = "tcp://127.0.0.1:7103"
[domains]
A = { servers = ["s1", "s2"] }
B = { servers = ["s2", "s3"] }
[agents]
shop = { server = "s3", class = "shop:Shop" }
"""

Row = tuple[str, tuple[str, ...], tuple[str, ...]]
"""A step with a record: server, items of the record, what waits for its sync: ``Accepted``, and servers that get a
frame."""


class Order(Notification):
    """What a client buys."""

    what: str


class Sold(Notification):
    """The reply."""

    what: str


class Shop(Agent):
    """Replies to every order."""

    sold: int = 0

    def on_order(self, order: Order, ctx: Context) -> None:
        self.sold += 1
        ctx.reply(Sold(what=order.what))


def _table() -> list[list[str]]:
    text = (_root / "docs" / "architecture.md").read_text()
    lines = text.split("### The path of a publish")[1].split("\n\n")[1].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def _documented() -> list[Row]:
    found: list[Row] = []
    for step, _, items, waits, *_ in _table():
        names = tuple(re.findall(r"`(\w+)`", items))
        frames = re.findall(r"the frame to (s\d)", waits)
        if names:
            found.append((step.split(", ")[1], names, (*re.findall(r"`(Accepted)`", waits), *frames)))
    return found


def test_servers_write_the_records_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Row] = []
    seal = AgentServer.seal

    def watched(machine: AgentServer, *arguments: float) -> Step:
        step: Step = seal(machine, *arguments)  # type: ignore[arg-type]
        if step.record is not None:
            items = tuple(type(item).__name__ for item in decode_record(step.record))
            frames = [one.peer for one in step.outgoing if isinstance(one.content, Frame)]
            seen.append((machine.name, items, (*(type(one).__name__ for one in step.replies), *frames)))
        return step

    monkeypatch.setattr(AgentServer, "seal", watched)
    documented = _documented()
    at = documented.index(("s3", ("Taken", "Reacted"), ("s2",)))
    apart: list[Row] = [("s3", ("Taken",), ()), ("s3", ("Reacted",), ("s2",))]
    in_two = documented[:at] + apart + documented[at + 1 :]
    kinds = set()
    for seed in range(1, 21):
        world = World(_topology, agents={"shop": Shop}, seed=seed)
        world.run()
        seen.clear()
        world.send("alice@s1", "shop", Order(what="tea"))
        world.run()
        assert seen in (documented, in_two), seed
        assert world.inbox("alice@s1", Sold) == [Sold(what="tea")]
        kinds.add(len(seen))
    assert kinds == {len(documented), len(in_two)}, "the handler returns immediately in some worlds, and not in others"


def test_the_functions_of_the_table_exist() -> None:
    methods = set()
    for package in ("channel", "engine", "live", "server"):
        for path in (_root / "src" / "antecede" / package).rglob("*.py"):
            for one in ast.parse(path.read_text()).body:
                if isinstance(one, ast.ClassDef):
                    parts = (part for part in one.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef))
                    methods |= {f"{one.name}.{part.name}" for part in parts}
    named = {name for row in _table() for cell in row for name in re.findall(r"`([A-Z]\w+\.\w+)`", cell)}
    assert len(named) > 20
    assert named <= methods
