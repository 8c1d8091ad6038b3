"""Commands to servers of which some do not answer, or stop answering in the middle."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from antecede import limits
from antecede.cli import dead, run
from antecede.errors import ClosedError
from antecede.topology import Address
from helpers.snapshots import Snapshots


@pytest.fixture
def topology(tmp_path: Path) -> str:
    path = tmp_path / "topology.toml"
    path.write_text(
        '[servers]\ns1 = "tcp://127.0.0.1:1"\ns2 = "tcp://127.0.0.1:2"\n[domains]\nA = { servers = ["s1", "s2"] }\n'
        '[agents]\nnews = { server = "s2", class = "antecede:Topic" }\n'
    )
    return str(path)


@pytest.mark.parametrize("answers", [1, 2, 3])
@pytest.mark.parametrize("command", ["client remove", "client unsubscribe", "dead drop"])
def test_a_server_that_stops_answering_in_the_middle(
    command: str, answers: int, topology: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command has not done what it should have done, and says so."""
    left = [answers]

    def ask(address: Address, access: Any, name: str, *arguments: str) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise ClosedError("s1 is gone")
        return {"server": "s1", "dropped": 10, "left": 0 if name == "client-remove" else 10}

    monkeypatch.setattr(dead, "ask_server", ask)
    more = ["news", "more", "much", "most"] if command.endswith("unsubscribe") else []
    code = run([*command.split(), topology, "carol@s1", *more])
    output, error = capsys.readouterr()
    if (command, answers) == ("client remove", 3):
        assert (code, json.loads(output)["dropped"]) == (0, 20)
    else:
        assert (code, output, error) == (2, "", "antecede: s1 is gone\n")


def test_no_server_answers(
    topology: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reads: Snapshots
) -> None:
    def ask(address: Address, *_: Any) -> Any:
        raise ClosedError(f"no answer from {address}")

    monkeypatch.setattr(dead, "ask_server", ask)
    assert run(["dead", "list", topology]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "antecede: server s1: no answer from tcp://127.0.0.1:1",
        "antecede: server s2: no answer from tcp://127.0.0.1:2",
        "antecede: no server has answered",
    ]
    assert run(["client", "list", "tcp://127.0.0.1:9"]) == 2
    reads(capsys.readouterr().err)


@pytest.mark.parametrize("command", ["client remove", "client unsubscribe", "dead drop"])
def test_clients_of_a_removed_server_are_at_another_one(
    command: str, topology: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reads: Snapshots
) -> None:
    Path(topology).write_text(Path(topology).read_text() + '[moved]\ns3 = "s2"\n')
    asked: set[tuple[int, str]] = set()

    def ask(address: Address, access: Any, name: str, *arguments: str) -> Any:
        asked.add((address.port, arguments[0]))
        return {"server": "s2", "dropped": 1, "left": 0}

    monkeypatch.setattr(dead, "ask_server", ask)
    more = ["news"] if command.endswith("unsubscribe") else []
    assert run([*command.split(), topology, "keeper@s3", *more]) == 0
    assert asked == {(2, "keeper@s3")}
    capsys.readouterr()
    assert run([*command.split(), topology, "keeper@s4", *more]) == 2
    reads(capsys.readouterr().err)


def test_a_port_that_does_not_answer(capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    """The port of the metrics page waits for a request of its own kind."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        assert run(["send", address, "counter", "Word", "--timeout", "0.2"]) == 2
    reads(capsys.readouterr().err)


@pytest.mark.parametrize(
    "arguments",
    [
        ["http://127.0.0.1:7101"],
        ["tcp://127.0.0.1:9", "--timeout", "0"],
        ["tcp://127.0.0.1:9", "--timeout", "nan"],
    ],
)
def test_what_send_expects(arguments: list[str], capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    where, *options = arguments
    assert run(["send", where, "counter", "Word", *options]) == 2
    reads(capsys.readouterr().err)


def test_a_server_that_hangs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, reads: Snapshots
) -> None:
    monkeypatch.setattr(limits, "hello_seconds_max", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        assert run(["status", address]) == 1
    reads(capsys.readouterr().out)
