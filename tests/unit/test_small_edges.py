"""Small mistakes and small surprises: names, plug-ins, shadowing files, private directories, numbers of publishes."""

import asyncio
import os
import stat
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import antecede
from antecede import Agent, Context, Notification, ServerRuntime, orders
from antecede.cli import run
from antecede.documents import read_text
from antecede.errors import AgentError, TopologyError, UsageError
from antecede.live.application import find_beside
from antecede.testing import World
from antecede.topology import parse_topology
from helpers.ports import free_ports

_two = """
[servers]
s1 = "tcp://127.0.0.1:7101"
[domains]
A = { servers = ["s1"], order = "matrix" }
[agents]
small = { server = "s1", class = "shop:Small" }
"""


class Note(Notification):
    text: str = ""


class Small(Agent):
    def on_note(self, note: Note, ctx: Context) -> None: ...


class Deaf(Agent):
    """Has no handlers."""


def test_the_public_names_are_listed() -> None:
    assert set(antecede.__all__) <= set(dir(antecede))
    assert antecede.Agent is Agent


@pytest.mark.parametrize("name", [".", ".."])
def test_a_server_is_not_named_like_a_folder(name: str) -> None:
    with pytest.raises(TopologyError, match=r"but not \. or \.\. alone"):
        parse_topology(_two.replace("s1", f'"{name}"').replace('""', '"'))


def test_an_agent_without_handlers_is_refused() -> None:
    with pytest.raises(AgentError, match="agent small: Deaf has no handlers"):
        World(parse_topology(_two), agents={"small": Deaf})


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "topology.toml"
    file.write_bytes(b"\xef\xbb\xbf" + _two.encode())
    assert run(["topology", "check", str(file)]) == 0, capsys.readouterr().err


def test_a_file_that_never_ends_is_not_read() -> None:
    with pytest.raises(UsageError, match="longer than 1000 bytes"):
        read_text("/dev/zero", 1000)
    assert run(["explore", "matrix", "--program", "/dev/zero"]) == 2


def test_text_that_is_none_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"one\ntwo \xff\n")
    with pytest.raises(TopologyError, match="text:2: expected UTF-8 text"):
        read_text(tmp_path / "text", 1000, TopologyError)


def test_one_bad_plug_in_does_not_hide_the_other_orders(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = EntryPoint("sunny", "no_such_module:Sunny", "antecede.orders")
    monkeypatch.setattr(orders, "_foreign", lambda: [bad])
    assert run(["orders"]) == 0
    said = capsys.readouterr()
    assert "matrix" in said.out
    assert said.err.startswith("antecede: order 'sunny' cannot be imported")


def test_a_file_of_the_application_does_not_replace_a_package(tmp_path: Path) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit('the wrong module')\n")
    (tmp_path / "typer.py").write_text("raise SystemExit('the wrong module')\n")
    done = subprocess.run(
        [sys.executable, "-m", "antecede", "--version"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, f"antecede {antecede.__version__}\n"), done.stderr


def test_folders_of_the_application_come_after_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = list(sys.path)
    find_beside(str(tmp_path / "topology.toml"))
    assert sys.path[: len(before)] == before
    assert str(tmp_path.resolve()) in sys.path


async def _publish(directory: Path, port: int, count: int) -> tuple[int, int, int]:
    topology = parse_topology(_two.replace("7101", str(port)))
    runtime = ServerRuntime(topology, "s1", str(directory), agents={"small": Small})
    await runtime.start()
    async with runtime.bus("alice") as bus:
        found = bus.last_accepted
        for _ in range(count):
            ticket = bus.send("small", Note())
        sent = bus.last_sent
        await ticket
        accepted = bus.last_accepted
    await runtime.stop()
    return found, sent, accepted


def test_a_restarted_client_knows_what_was_accepted(tmp_path: Path) -> None:
    [port] = free_ports(1)
    assert asyncio.run(_publish(tmp_path / "data", port, 3)) == (0, 3, 3)
    assert asyncio.run(_publish(tmp_path / "data", port, 2)) == (3, 5, 5)
    modes = {
        stat.S_IMODE(os.stat(path).st_mode) & 0o077 for path in (tmp_path / "data", *(tmp_path / "data").iterdir())
    }
    assert modes == {0}, "data directories are private"


def test_an_almost_right_address_gets_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "topology.toml"
    file.write_text(_two.replace("7101", "1"))
    for to, warned in (("smal@s1", True), ("small", False), ("bob@s1", False)):
        run(["send", str(file), to, "Note", "--timeout", "0.01"])
        assert ("Did you mean small?" in capsys.readouterr().err) == warned, to
