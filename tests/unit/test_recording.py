"""The trace of a data directory is the projection of its log."""

from pathlib import Path

import pytest

from antecede.errors import StoreError
from antecede.live.application import plan_of
from antecede.recording.segments import Recording
from antecede.server import AgentServer, Published
from antecede.store import open_log
from antecede.topology import parse_topology
from helpers.recordings import project_directory

_topology = parse_topology("""
[servers]
s1 = "tcp://127.0.0.1:7101"
s2 = "tcp://127.0.0.1:7102"
[domains]
A = { servers = ["s1", "s2"] }
[agents]
a = { server = "s2", class = "x:A" }
""")


def _written(directory: str, publishes: int) -> AgentServer:
    with open_log(directory) as log:
        server = AgentServer("s1", plan_of(_topology), log.incarnation)
        log.append(server.begin(_topology.epoch))
        for number in range(1, publishes + 1):
            record = server.step([Published("c", number, ("a", "c@s1"), "Word", b"")], 0.0, 0).record
            assert record is not None
            log.append(record)
    return server


def test_rows_of_a_directory(tmp_path: Path) -> None:
    directory = str(tmp_path / "s1")
    server = _written(directory, 3)
    rows = list(project_directory(directory))
    assert [(row.process, row.index, row.kind, row.to) for row in rows] == [
        ("c@s1", index, "send", ("a", "c@s1")) for index in range(3)
    ]
    assert [row.message for row in rows] == [letter.id for letter in server.engine.mailboxes["c@s1"]]


def test_a_recording_goes_on_where_it_was(tmp_path: Path) -> None:
    directory = str(tmp_path / "s1")
    _written(directory, 4)
    recording = Recording(directory)
    rows = list(recording.rows(3)) + list(recording.rows())
    assert rows == list(project_directory(directory))
    assert (recording.place().server, recording.place().upto) == ("s1", 5)


def test_what_is_no_servers_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no identity"):
        list(project_directory(str(tmp_path)))
    with open_log(str(tmp_path / "other")) as log:
        log.append(b"\x90")
    with pytest.raises(StoreError, match="not a server's log"):
        list(project_directory(str(tmp_path / "other")))
