"""Files and DataFrames on Spark against the plain oracle: random traces, many in one job; real ones; broken ones."""

import gzip
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from antecede import pipeline
from antecede.errors import TraceError, UsageError
from antecede.pipeline.flow import SparkFrames
from antecede.pipeline.judge.chunks import Grain
from antecede.pipeline.judge.files import flow_of
from antecede.pipeline.judge.trace import Trace, layout_for, verdict_on
from antecede.pipeline.read.splits import plan
from antecede.trace import Event, verify, write_trace

_traces_a_job = 150


def test_files_and_frames_say_what_the_oracle_says(
    running: Any, tmp_path: Path, random_trace: Callable[[int], list[Event]], seeds: int, spoken: Any
) -> None:
    """Some hundred traces in one job. Every late delivery is compared, so that each trace has its own answer."""
    for start in range(0, seeds, _traces_a_job):
        rows = spoken.several([random_trace(seed) for seed in range(start, start + _traces_a_job)])
        if (start // _traces_a_job) % 2:
            rows = spoken.with_uuids(spoken.bare([row for row in rows if row.index < 1 << 31]))
        half = len(rows) // 2
        paths = [str(tmp_path / f"{start}-{k}.parquet") for k in (0, 1)]
        write_trace(paths[0], rows[:half])
        write_trace(paths[1], rows[half:])
        wanted = spoken.judged(verify(paths, spoken.ALL, late=tmp_path))
        late = sorted((tmp_path / "late.jsonl").read_text().splitlines())
        for way in ("walk", "chunks"):
            found = pipeline.verify_in(running, paths, spoken.ALL, late=str(tmp_path), causal=way)
            assert spoken.judged(found) == wanted, f"seeds from {start}, {way}"
            assert _lines(tmp_path / "late.parquet", late[0]) == late, f"seeds from {start}, {way}"
        frame = running.spark.read.parquet(*paths)
        for local_max in (0, len(rows)):
            found = pipeline.verify(frame, spoken.ALL, local_max=local_max)
            assert spoken.judged(found) == wanted, (
                f"seeds from {start}, DataFrame, up to {local_max} rows in the driver"
            )


def _lines(path: Path, like: str) -> list[str]:
    """The rows of a Parquet file as lines of JSON with their keys in the order of another."""
    keys = list(json.loads(like))
    rows = pq.read_table(path).select(keys).to_pylist()
    return sorted(msgspec.json.encode(row).decode() for row in rows)


def test_frames_between_stages_give_what_the_files_give(
    running: Any, tmp_path: Path, random_trace: Callable[[int], list[Event]], spoken: Any
) -> None:
    path = tmp_path / "t.jsonl"
    write_trace(path, spoken.several([random_trace(seed) for seed in range(1000, 1030)]))
    given = plan([str(path)], bytes_max=5000)
    for flow in (SparkFrames(running.spark), flow_of(running)):
        outcome = verdict_on(Trace(flow, given, layout_for(given, region_events=500)), spoken.ALL, every_late=True)
        assert spoken.judged(outcome.report) == spoken.judged(verify([path], spoken.ALL))
        late = sum(outcome.report["orders"][order]["late"] for order in ("fifo", "causal"))
        assert len(list(outcome.late)) == late
        grain = Grain(chunk_events=300, chunk_units=2)
        trace = Trace(flow, given, layout_for(given, timed=True))
        assert verdict_on(trace, spoken.ALL, True, "chunks", grain=grain).report == outcome.report


@pytest.fixture(scope="module")
def good() -> list[Event]:
    """A trace of a causal multicast: nothing is wrong with it."""
    random = Random("good")
    names = [f"p{k}" for k in range(5)]
    rows: list[Event] = []
    counts = dict.fromkeys(names, 0)
    clocks = dict.fromkeys(names, 0)

    def add(process: str, kind: str, message: str, to: tuple[str, ...] | None = None, least: int = 0) -> None:
        clocks[process] = max(clocks[process], least) + 1
        rows.append(Event(process, counts[process], kind, message, to, lamport=clocks[process]))
        counts[process] += 1

    for number in range(60):
        sender = random.choice(names)
        to = tuple(sorted(set(names) - {sender}))
        add(sender, "send", f"m{number}", to)
        least = clocks[sender]
        for name in random.sample(to, len(to)):
            add(name, "deliver", f"m{number}", least=least)
    return rows


def _numbers(rows: list[Event], process: str, *kinds: str) -> list[int]:
    return [k for k, row in enumerate(rows) if row.process == process and row.kind in kinds]


def _swapped(rows: list[Event]) -> list[Event]:
    delivered = _numbers(rows, "p1", "deliver")
    # With no send of its own in between: that one would come before itself.
    a, b = next((a, b) for a, b in pairwise(delivered) if rows[b].index == rows[a].index + 1)
    rows = list(rows)
    rows[a], rows[b] = (
        msgspec.structs.replace(rows[b], index=rows[a].index, lamport=rows[a].lamport),
        msgspec.structs.replace(rows[a], index=rows[b].index, lamport=rows[b].lamport),
    )
    return rows


def _dropped(rows: list[Event]) -> list[Event]:
    gone = _numbers(rows, "p1", "send")[0]
    return [row for k, row in enumerate(rows) if k != gone]


def _doubled(rows: list[Event]) -> list[Event]:
    again = rows[_numbers(rows, "p1", "deliver")[-1]]
    return [
        *rows,
        msgspec.structs.replace(again, index=max(r.index for r in rows if r.process == "p1") + 1, lamport=10**6),
    ]


def _shifted(rows: list[Event]) -> list[Event]:
    at = _numbers(rows, "p2", "deliver")[5]
    return [msgspec.structs.replace(row, lamport=1) if k == at else row for k, row in enumerate(rows)]


def _renamed(rows: list[Event]) -> list[Event]:
    at = _numbers(rows, "p3", "deliver")[-1]
    return [msgspec.structs.replace(row, process="stranger", index=0) if k == at else row for k, row in enumerate(rows)]


def _twice(rows: list[Event]) -> list[Event]:
    return [*rows, rows[7]]


@pytest.mark.parametrize(
    ("mutation", "reasons", "broken"),
    [
        (list, {}, set()),
        (_swapped, {}, {"causal", "total"}),
        (_dropped, {"orphan_delivery": 4, "index_gap": 1}, set()),
        (_doubled, {"duplicate_delivery": 1}, set()),
        (_shifted, {}, {"lamport"}),
        (_renamed, {"not_addressed": 1, "index_gap": 1}, set()),
        (_twice, {"duplicate_row": 1}, set()),
    ],
    ids=lambda given: given.__name__ if callable(given) else None,
)
def test_planted_faults_are_reported_by_their_names(
    running: Any,
    tmp_path: Path,
    good: list[Event],
    mutation: Any,
    reasons: dict[str, int],
    broken: set[str],
    spoken: Any,
) -> None:
    path = tmp_path / "t.jsonl"
    write_trace(path, mutation(good))
    report = pipeline.verify_in(running, [str(path)], ("fifo", "causal", "total"))
    assert report["quarantined"] == reasons
    found = {order for order, entry in report["orders"].items() if entry["holds"] is False}
    found |= {"lamport"} if report["lamport"]["disagree"] else set()
    assert found >= broken
    assert bool(found) == bool(broken)
    frame = running.spark.createDataFrame(
        [(r.process, r.index, r.kind, r.message, list(r.to) if r.to else None, r.lamport) for r in mutation(good)],
        "process string, index bigint, kind string, message string, to array<string>, lamport bigint",
    )
    for local_max in (0, len(good) + 1):
        found_in_frame = pipeline.verify(frame, ("fifo", "causal", "total"), local_max=local_max)
        assert spoken.judged(found_in_frame) == spoken.judged(report)


def test_a_file_cut_in_the_middle_of_a_line(running: Any, tmp_path: Path, good: list[Event]) -> None:
    path = tmp_path / "t.jsonl"
    write_trace(path, good)
    path.write_bytes(path.read_bytes()[:-20])
    report = pipeline.verify_in(running, [str(path)], quarantine=str(tmp_path / "q"))
    assert report["quarantined"] == {"unreadable_line": 1}
    (row,) = map(json.loads, (tmp_path / "q" / "quarantine.jsonl").read_text().splitlines())
    assert (row["file"], row["line"], row["reason"]) == (str(path), len(good), "unreadable_line")


@pytest.mark.parametrize("kind", ["gzip", "parquet"])
def test_a_torn_file(running: Any, tmp_path: Path, good: list[Event], kind: str) -> None:
    path = tmp_path / ("t.jsonl.gz" if kind == "gzip" else "t.parquet")
    write_trace(path, good)
    path.write_bytes(path.read_bytes()[:-200])
    if kind == "gzip":
        report = pipeline.verify_in(running, [str(path)])
        assert report["quarantined"]["unreadable_line"] == 1
    else:
        with pytest.raises(TraceError, match=r"t\.parquet: not a readable Parquet file"):
            pipeline.verify_in(running, [str(path)])


def test_a_page_that_is_damaged_is_said_in_one_line(running: Any, tmp_path: Path, good: list[Event]) -> None:
    path = tmp_path / "t.parquet"
    write_trace(path, good)
    data = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(0).column(0).data_page_offset
    data[start : start + 40] = bytes(40)
    path.write_bytes(data)
    from antecede.pipeline.sessions import one_line

    with pytest.raises(TraceError, match=r"t\.parquet: damaged Parquet file") as caught, one_line():
        pipeline.verify_in(running, [str(path)])
    assert "\n" not in str(caught.value)


def test_a_part_of_a_trace(
    running: Any, tmp_path: Path, random_trace: Callable[[int], list[Event]], spoken: Any
) -> None:
    from antecede.trace import Cut

    rows = spoken.several([random_trace(seed) for seed in range(40)])
    path = tmp_path / "t.parquet"
    write_trace(path, rows)
    names = tuple(sorted({row.process for row in rows})[::2])
    for cut in (Cut(since=20, until=70), Cut(processes=names), Cut(50, None, names)):
        wanted = verify([path], spoken.ALL, keep=cut.keeps)
        assert spoken.judged(pipeline.verify_in(running, [str(path)], spoken.ALL, cut=cut)) == spoken.judged(wanted)


def test_columns_of_other_types(running: Any, spoken: Any, tmp_path: Path) -> None:
    frame = running.spark.sql(
        "select * from values ('p', 0, 'send', 'm', array('q'), 1.5D), ('q', 0, 'deliver', 'm', null, null), "
        "('q', 1, 'dance', 'm', null, null), (null, 2, 'local', 'm', null, null), "
        "('q', -1, 'local', null, null, null), ('q', 2, 'deliver', null, null, null), "
        "('r', 0, 'send', 'n', array('q', null), null) "
        "as t(process, index, kind, message, to, time)"
    )
    path = tmp_path / "t"
    frame.coalesce(1).write.parquet(str(path))
    wanted = spoken.judged(verify([path], spoken.ALL))
    assert wanted["quarantined"] == {"missing_field": 2, "wrong_type": 2, "unknown_kind": 1}
    assert spoken.judged(pipeline.verify_in(running, [str(path)], spoken.ALL)) == wanted
    assert spoken.judged(pipeline.verify(frame, spoken.ALL)) == wanted
    assert spoken.judged(pipeline.verify(frame, spoken.ALL, local_max=0)) == wanted


def test_a_frame_that_is_no_trace(running: Any) -> None:
    with pytest.raises(TraceError, match="none of the columns process, index and kind"):
        pipeline.verify(running.spark.range(3))
    with pytest.raises(TraceError, match=r"lacks the column kind .* rename"):
        pipeline.verify(running.spark.range(3).selectExpr("'p' process", "id index"))
    with pytest.raises(TraceError, match="column process of the DataFrame is given twice"):
        pipeline.verify(running.spark.range(3).selectExpr("'p' process", "id index", "'local' kind", "'q' process"))
    with pytest.raises(UsageError, match=r"not the path 't.parquet': read it first .*verify_files"):
        pipeline.verify("t.parquet")
    with pytest.raises(UsageError, match=r"pandas, Polars, pyarrow.* not list"):
        pipeline.verify([])


def test_a_frame_without_a_single_event(running: Any, tmp_path: Path, good: list[Event], spoken: Any) -> None:
    path = tmp_path / "t.parquet"
    write_trace(path, good)
    frame = running.spark.read.parquet(str(path))
    assert spoken.judged(pipeline.verify(frame.limit(0)))["events"] == 0
    nothing = frame.selectExpr("process", "index", "cast(null as string) kind", "message")
    for local_max in (0, len(good)):
        with pytest.warns(UserWarning, match="missing_field"):
            report = pipeline.verify(nothing, local_max=local_max)
        assert report["quarantined"] == {"missing_field": len(good)}
        assert report["orders"]["causal"]["holds"] is None


def test_a_misspelt_order_is_not_passed_over(running: Any) -> None:
    for orders in (("casual",), "causal", "casual"):
        with pytest.raises(UsageError, match=r"is not one of fifo|expected a tuple"):
            pipeline.verify(running.spark.range(3), orders)
        with pytest.raises(UsageError, match=r"is not one of fifo|expected a tuple"):
            verify([], orders)
        with pytest.raises(UsageError, match=r"is not one of fifo|expected a tuple"):
            pipeline.verify_in(running, [], orders)


def test_real_mail(running: Any, root: Path, spoken: Any) -> None:
    path = root.parent / "shared" / "data" / "mail" / "git-mail-100k.jsonl.gz"
    if not path.exists():
        pytest.skip("the shared data are not here")
    report = pipeline.verify_in(running, [str(path)], spoken.ALL)
    assert [report[key] for key in ("processes", "events", "messages", "deliveries", "undelivered")] == [
        *(2913, 269014, 100000, 169014, 0),
    ]
    assert report["orders"]["fifo"]["late"] == 4419
    assert report["orders"]["causal"]["late"] == 6377
    assert report["orders"]["total"]["holds"] is False
    with gzip.open(path) as lines:
        rows = [json.loads(line) for line in lines]
    from antecede.pipeline.flow import Here
    from antecede.pipeline.read.encode import Layout

    trace = Trace(Here(), plan([str(path)]), Layout(1, 3))
    late = [
        row for row in verdict_on(trace, ("causal",), every_late=True, lanes_max=1000).late if row["to"] == "archive"
    ]
    assert len(late) == 1944
    assert len(rows) == 269014


def test_a_file_that_workers_do_not_see_is_named_before_the_work(running: Any, tmp_path: Path) -> None:
    from antecede.errors import TraceError
    from antecede.pipeline.judge.files import check_seen
    from antecede.pipeline.read.splits import plan

    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("{}\n")
    given = plan([str(tmp_path)])
    check_seen(running.context, given, 2)
    (tmp_path / "b.jsonl").unlink()
    with pytest.raises(TraceError, match=r"b\.jsonl: the Spark worker on .+ cannot read this file: give a path"):
        check_seen(running.context, given, 2)


def test_splits_name_their_files_wherever_a_task_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from antecede.pipeline.read.splits import plan

    (tmp_path / "a.jsonl").write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    given = plan(["a.jsonl"])
    assert given.files == ["a.jsonl"]
    assert [split.path for split in given.splits] == [str(tmp_path / "a.jsonl")]
