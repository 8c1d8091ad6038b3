"""The section "Four paths" in docs/architecture.md, compared with the files that real runs enter."""

import asyncio
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from live_objects import Account

import antecede
from antecede import Agent, Bus, Context, Notification, ServerRuntime, connect
from antecede.cli import run
from antecede.pipeline.judge.trace import Trace, verdict_on
from antecede.pipeline.read.encode import Layout
from antecede.pipeline.read.splits import plan
from antecede.pipeline.spark.flow import Here
from antecede.simulator.servers.schedules import play
from antecede.topology import parse_topology
from helpers.ports import free_ports

_column = len("client      ")
"""The column of the lists where the files begin."""

_times = 5
"""The number of runs on real servers. A file that is not entered in all runs does the regular work of servers, which is
not caused by the run."""

_with_pruned = 7
"""The seed of a schedule with crashes in which a domain has the order ``pruned``."""

_root = Path(__file__).resolve().parents[2]
_source = f"{Path(antecede.__file__).parent}/"


class _Path(NamedTuple):
    files: set[str]
    bytes: set[str]
    helpers: set[str]


def _documented() -> dict[str, _Path]:
    """Return the files of each path, the files that only handle bytes, and the helpers."""
    text = (_root / "docs" / "architecture.md").read_text().split("## Four paths")[1].split("\n## ")[0]
    found = {}
    for name, count, rest in re.findall(r"### (.+?): (\d+) files\n(.*?)(?=\n### |\Z)", text, re.S):
        rows, _, helpers = rest.split("```")[1].partition("\nhelpers ")
        path, _, others = rows.partition("\nbytes ")
        files = _names(path)
        assert len(files) == len(set(files)) == int(count), (name, len(files))
        given = files, _names(f"bytes  {others}"), _names(f"helpers {helpers}")
        found[name] = _Path(*(set(map(_file, names)) for names in given))
    return found


def _names(rows: str) -> list[str]:
    rows = re.sub(r"\([^)]*\)|; and .*", "", rows, flags=re.S)
    return [name for row in rows.splitlines() for name in row[_column:].strip(" ,").split(", ") if name]


def _file(name: str) -> str:
    """Return the path of a module, of which the documentation gives the name without its ending."""
    path = f"{name}.py" if (Path(_source) / f"{name}.py").exists() else f"{name}/__init__.py"
    assert (Path(_source) / path).exists(), name
    return path


@contextmanager
def _entered() -> Iterator[set[str]]:
    """Give the files of Antecede in which a function is called, by any thread."""
    entered: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_source):
            entered.add(frame.f_code.co_filename.removeprefix(_source))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


class Order(Notification):
    """What a client buys."""

    what: str


class Shop(Agent):
    """Ends the recording at the first order."""

    def on_order(self, order: Order, ctx: Context) -> None:
        sys.setprofile(None)
        _reacted.pop().set()


_reacted: list[asyncio.Event] = []
"""What the next order sets."""


async def _system(domains: str, rest: str, folder: Path, work: Callable[[Bus], Awaitable[None]]) -> None:
    ports = zip(("s1", "s2", "s3"), free_ports(3), strict=True)
    servers = "\n".join(f'{name} = "tcp://127.0.0.1:{port}"' for name, port in ports)
    file = parse_topology(f"[servers]\n{servers}\n[domains]\n{domains}\n{rest}\n")
    running = [
        ServerRuntime(file, name, str(folder / name), agents={"shop": Shop} if name == "s3" and "shop" in rest else {})
        for name in file.servers
    ]
    for one in running:
        await one.start()
    async with connect(str(file.servers["s1"]), name="alice") as bus:
        while not all(peer.ready for one in running for peer in one.core.peering.peers.values()):
            await asyncio.sleep(0.01)
        await work(bus)
    for one in running:
        await one.stop(0.0)


def _compare(entered: set[str], path: str) -> None:
    """Compare the files that were entered with those that the documentation lists for this path."""
    files, bytes_, helpers = _documented()[path]
    assert files | bytes_ <= entered
    assert entered - files - bytes_ <= helpers


def test_a_publish_until_its_reaction(tmp_path: Path) -> None:
    runs: list[set[str]] = []

    async def publish(bus: Bus) -> None:
        for _ in range(_times):
            _reacted.append(reacted := asyncio.Event())
            with _entered() as files:
                bus.send("shop", Order(what="tea"))
                await reacted.wait()
            runs.append(files)

    async def main() -> None:
        domains = 'A = { servers = ["s1", "s2"] }\nB = { servers = ["s2", "s3"] }'
        await _system(domains, '[agents]\nshop = { server = "s3", class = "x:Shop" }', tmp_path, publish)

    asyncio.run(main())
    _compare(set.intersection(*runs), "A publish until its reaction")


def test_a_call_until_its_answer(tmp_path: Path) -> None:
    runs: list[set[str]] = []

    async def call(bus: Bus) -> None:
        account = bus.object("anna", Account)
        for _ in range(_times):
            with _entered() as files:
                await account.deposit(10)
            runs.append(files)

    domains = 'A = { servers = ["s1", "s2", "s3"], order = "objects" }'
    objects = '[agents]\nanna = { servers = ["s1", "s2", "s3"], class = "live_objects:Account" }'
    asyncio.run(_system(domains, objects, tmp_path, call))
    _compare(set.intersection(*runs), "A call of a replicated object until its answer")


def test_a_trace_until_its_verdict(tmp_path: Path) -> None:
    trace = str(tmp_path / "run.jsonl")
    assert run(["simulate", "--messages", "50", "--multicast", "--trace", trace]) == 0
    with _entered() as entered:
        assert run(["verify", trace, "--engine", "plain"]) == 0
    _compare(entered, "A trace until its verdict")


def test_a_trace_until_its_verdict_on_spark(tmp_path: Path) -> None:
    """The stages run in this process. Kernels are compiled, and the session is not needed."""
    trace = str(tmp_path / "run.jsonl")
    assert run(["simulate", "--messages", "50", "--multicast", "--trace", trace]) == 0

    def verify() -> None:
        verdict_on(Trace(Here(), plan([trace]), Layout(places=2, buckets=2)), ("fifo", "causal"))

    verify()  # The first time, the kernels are compiled.
    with _entered() as entered:
        verify()
    listed = _documented()["A trace until its verdict on Spark"].files
    around = {"cli/verify.py", "pipeline/judge/files.py", "pipeline/sessions.py"}
    assert {one for one in listed if "/kernels/" not in one} - around <= entered


def test_a_schedule_of_simulated_servers_until_its_verdict() -> None:
    with _entered() as entered:
        assert not play(_with_pruned).found
    path = _documented()["A schedule of simulated servers until its verdict"]
    assert path.files - {"cli/trial.py", "trials/report.py"} <= entered
    assert path.bytes | path.helpers <= entered


def test_the_numbers_of_files_that_are_not_on_the_path_of_a_publish() -> None:
    text = (_root / "docs" / "architecture.md").read_text()
    listed = [int(number) for number in re.findall(r"[Oo]nly (\d+) of its\s+files are\s+not on the path", text)]
    publish, _, _, schedule, call = (path.files for path in _documented().values())
    assert listed == [len(schedule - publish), len(call - publish)]
