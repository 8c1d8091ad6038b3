"""``antecede.record``: rows without gaps from threads, tasks, forks and killed programs, judged by ``verify``."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from antecede import limits
from antecede.errors import TraceError, UsageError
from antecede.record import Recorder, Recording
from antecede.trace import read_events, verify
from helpers.snapshots import Snapshots


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_late_message_of_a_recorded_program_is_found(tmp_path: Path) -> None:
    with Recording(tmp_path / "chat") as recording:
        ann, bob, cy = map(recording.process, ("ann", "bob", "cy"))
        ann.sent("x", to="cy")
        ann.sent("y", to=["bob"])
        bob.delivered("y")
        bob.sent("z", to="cy")
        cy.delivered("z")
        cy.delivered("x")
    report = verify([recording])
    assert report["complete"]
    assert report["events"] == recording.events == 6
    assert report["orders"]["fifo"]["holds"]
    assert report["orders"]["causal"]["first"]["message"] == "x"
    assert sorted(path.name for path in (tmp_path / "chat").iterdir()) == ["ann.jsonl", "bob.jsonl", "cy.jsonl"]


def test_a_row_has_its_place_its_time_and_its_columns(tmp_path: Path) -> None:
    me = Recorder(tmp_path / "orders.jsonl")
    assert me.sent(to=()) == "orders:0"
    assert me.sent(UUID(int=7), to=("a", "b"), label="tea", bytes=3) == "00000000-0000-0000-0000-000000000007"
    me.arrived(7)
    me.delivered(7)
    me.local(label="stock is low")
    rows = _rows(tmp_path / "orders.jsonl")
    assert [row.pop("time") > 1.7e18 for row in rows] == [True] * 5
    assert [row.pop("process") for row in rows] == ["orders"] * 5
    assert [row.pop("index") for row in rows] == [0, 1, 2, 3, 4]
    assert rows == [
        {"kind": "send", "message": "orders:0", "to": []},
        {"kind": "send", "message": str(UUID(int=7)), "to": ["a", "b"], "label": "tea", "bytes": 3},
        {"kind": "arrive", "message": "7"},
        {"kind": "deliver", "message": "7"},
        {"kind": "local", "label": "stock is low"},
    ]


def test_threads_and_tasks_share_an_index_without_gaps(tmp_path: Path) -> None:
    me = Recorder(tmp_path / "busy.jsonl")

    async def several(name: str) -> None:
        for number in range(50):
            me.sent(f"{name}.{number}")
            await asyncio.sleep(0)

    async def tasks(name: str) -> None:
        await asyncio.gather(*(several(f"{name}.{task}") for task in range(4)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: asyncio.run(tasks(str(number))), range(4)))
    rows = _rows(tmp_path / "busy.jsonl")
    assert [row["index"] for row in rows] == list(range(800))
    assert len({row["message"] for row in rows}) == 800


_endless = """
import sys
from antecede.record import Recorder
me = Recorder(sys.argv[1])
while True:
    print(me.sent(to="b"), flush=True)
"""


def test_a_killed_program_leaves_every_recorded_row(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for _ in range(2):
        child = subprocess.Popen([sys.executable, "-c", _endless, str(path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        reported = [next(child.stdout).strip() for _ in range(100)]
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        with open(path, "ab") as torn:
            torn.write(b'{"process":"a","ind')
        recorded = {event.message for event in read_events([path])[0]}
        assert recorded.issuperset(reported)
    me = Recorder(path)
    assert me.events == len(recorded)
    me.sent(to="b")
    assert [row["index"] for row in _rows(path)] == list(range(me.events))
    assert verify([path])["complete"]


def test_a_forked_child_cannot_use_the_recorder_of_its_parent(tmp_path: Path) -> None:
    me = Recorder(tmp_path / "a.jsonl")
    me.sent("x")
    child = os.fork()
    if not child:
        try:
            me.sent("y")
        except UsageError as error:
            os._exit(0 if "after the fork" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    me.sent("z")
    assert [row["message"] for row in _rows(tmp_path / "a.jsonl")] == ["x", "z"]


def test_two_recorders_of_one_file_are_refused(tmp_path: Path, reads: Snapshots) -> None:
    first = Recorder(tmp_path / "a.jsonl")
    with pytest.raises(TraceError) as caught:
        Recorder(tmp_path / "a.jsonl")
    reads(str(caught.value))
    first.close()
    first.close()
    Recorder(tmp_path / "a.jsonl").close()
    with pytest.raises(UsageError) as caught:
        first.sent("x")
    reads(str(caught.value))


def test_modes_are_those_of_open(tmp_path: Path, reads: Snapshots) -> None:
    path = tmp_path / "a.jsonl"
    for mode, indices in (("x", [0]), ("a", [0, 1]), ("w", [0])):
        with Recorder(path, mode=mode) as me:
            me.sent()
        assert [row["index"] for row in _rows(path)] == indices
    with pytest.raises(TraceError) as caught:
        Recorder(path, mode="x")
    reads(str(caught.value))


@pytest.mark.parametrize("mode", ["a", "w"])
def test_parquet_is_lines_until_it_is_closed(tmp_path: Path, mode: str) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    for _ in range(2):
        with Recorder(path, mode=mode) as me:
            me.sent(to="b", label="one")
            # A kill here would leave these lines, which a reader of the folder finds.
            assert verify([tmp_path])["events"] == me.events
        assert [entry.name for entry in tmp_path.iterdir()] == ["a.parquet"]
    events = sorted(read_events([path])[0], key=lambda event: event.index)
    assert [event.index for event in events] == ([0, 1] if mode == "a" else [0])
    assert [event.message for event in events][:1] == ["a:0"]


def test_a_kill_between_the_parquet_file_and_the_end_of_its_lines_repeats_nothing(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    me = Recorder(path)
    me.sent(to="b")
    lines = (tmp_path / "a.jsonl").read_bytes()
    me.close()
    (tmp_path / "a.jsonl").write_bytes(lines)
    with Recorder(path) as me:
        me.sent(to="b")
    assert sorted(event.index for event in read_events([tmp_path])[0]) == [0, 1]


def test_a_full_disk_is_an_error_and_leaves_no_gap(tmp_path: Path, reads: Snapshots) -> None:
    (tmp_path / "a.jsonl").symlink_to("/dev/full")
    me = Recorder(tmp_path / "a.jsonl")
    for _ in range(2):
        with pytest.raises(TraceError) as caught:
            me.sent("x")
        reads(str(caught.value))
        assert me.events == 0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda me: me.sent(1.5),
        lambda me: me.delivered(None),
        lambda me: me.sent("x", to=[1]),
        lambda me: me.sent("x", to=3),
        lambda me: me.sent("x", index=3),
        lambda me: me.sent("x", clock=[1]),
        lambda me: me.sent("x", stamp_bytes="x"),
        lambda me: me.sent("x", bytes="x"),
        lambda me: me.sent("x", bytes=-1),
        lambda me: me.delivered("x", bytes=True),
        lambda me: me.sent("x", what=object()),
        lambda me: me.sent("\ud800"),
    ],
)
def test_a_row_that_no_reader_takes_is_refused_and_leaves_no_gap(tmp_path: Path, wrong: Any, reads: Snapshots) -> None:
    me = Recorder(tmp_path / "a.jsonl")
    with pytest.raises(UsageError) as caught:
        wrong(me)
    reads(str(caught.value))
    me.sent("good")
    assert [(row["index"], row["message"]) for row in _rows(tmp_path / "a.jsonl")] == [(0, "good")]


def test_a_row_as_long_as_a_reader_takes_is_the_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: Snapshots
) -> None:
    me = Recorder(tmp_path / "a.jsonl")
    me.sent("x", what="")
    monkeypatch.setattr(limits, "trace_line_bytes_max", os.path.getsize(tmp_path / "a.jsonl") + 10)
    me.sent("x", what="." * 10)
    with pytest.raises(UsageError) as caught:
        me.sent("x", what="." * 11)
    reads(str(caught.value))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", ""),
        ("a.jsonl", '{"process":"b","index":0,"kind":"local"}\n'),
        ("a.jsonl", "no row\n"),
        ("a.jsonl", "no line"),
        ("a.jsonl", '{"process":"a","index":0,"kind":"local"}\nno line'),
    ],
)
def test_a_file_of_something_else_is_not_continued(tmp_path: Path, name: str, content: str, reads: Snapshots) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises((TraceError, UsageError)) as caught:
        Recorder(tmp_path / name)
    reads(str(caught.value))
    assert (tmp_path / name).read_text() == content


@pytest.mark.parametrize("torn", [b'{"pro', b'{"process":"a","ind', b'{"process":"a\0\0\0', bytes(100)])
def test_what_a_crash_leaves_of_the_last_row_is_removed(tmp_path: Path, torn: bytes) -> None:
    whole = b'{"process":"a","index":0,"kind":"local"}\n'
    (tmp_path / "a.jsonl").write_bytes(whole + torn)
    Recorder(tmp_path / "a.jsonl").close()
    assert (tmp_path / "a.jsonl").read_bytes() == whole


def test_a_process_may_have_any_name(tmp_path: Path, reads: Snapshots) -> None:
    names = ["../up", ".hidden", "_low", "a b", "x" * 500, "x" * 501, "größe", "a/b"]
    with Recording(tmp_path) as recording:
        for name in names:
            recording.process(name).sent()
    assert {event.process for event in read_events([tmp_path])[0]} == set(names)
    with pytest.raises(UsageError) as caught:
        recording.process("")
    reads(str(caught.value))
