"""A server's data directory, half of it Parquet and half of it log: Spark and the plain engine say the same of it."""

from pathlib import Path
from typing import Any

from antecede.engine import Reaction
from antecede.live.application import plan_of
from antecede.pipeline.judge.files import verify_in
from antecede.recording.converting import convert
from antecede.recording.segments import begin, gathered
from antecede.server import AgentServer, PublishedMany, Reacted
from antecede.store import Sizes, closed_segments, open_log
from antecede.topology import parse_topology
from antecede.trace import verify

_topology = parse_topology("""
[servers]
s1 = "tcp://127.0.0.1:7101"
s2 = "tcp://127.0.0.1:7102"
[domains]
A = { servers = ["s1", "s2"] }
""")
_sizes = Sizes(segment_bytes=128 * 1024, group_bytes_max=32 * 1024, pending_bytes_max=32 * 1024, log_bytes_max=1 << 30)


def _written(directory: str, steps: int) -> None:
    """A client that sends to itself, and reacts to all but the last."""
    with open_log(directory, sizes=_sizes) as log:
        server = AgentServer("s1", plan_of(_topology), log.incarnation)
        log.append(server.begin(_topology.epoch))
        for step in range(steps):
            records = [server.step([PublishedMany("c", 10 * step + 1, ("c@s1",), "Word", [bytes(200)] * 10)], 0.0, 0)]
            if step + 1 < steps:
                letters = tuple(Reaction(letter.id, ()) for letter in server.engine.mailboxes["c@s1"])
                records.append(server.step([Reacted("c@s1", letters, None, step)], 0.0, 0))
            for done in records:
                assert done.record is not None
                log.wait(log.append(done.record))
    begin(directory)


def test_the_same_verdict_on_parquet_and_log(running: Any, tmp_path: Path) -> None:
    directory = str(tmp_path / "s1")
    _written(directory, 200)
    assert convert(directory) == len(closed_segments(directory)) > 1
    with gathered([str(tmp_path)]) as paths:
        assert {Path(path).suffix for path in paths} == {".parquet", ".jsonl"}
        plain, spark = verify(paths), verify_in(running, paths)
    for report in (plain, spark):
        for timing in ("engine", "session_seconds", "seconds", "events_per_second"):
            del report[timing]
    assert plain == spark
    assert plain["complete"]
    assert (plain["messages"], plain["deliveries"], plain["undelivered"]) == (2000, 1990, 10)
