"""More of what people have: OTLP as Tempo and Jaeger hand it out, spans as tables, flow events, histories."""

import json
from pathlib import Path
from typing import Any

import pytest

from antecede import cli
from antecede.errors import TraceError
from antecede.trace import read_events, verify
from antecede.trace.foreign import FORMATS, convert
from helpers.snapshots import Snapshots


def _import(folder: Path, document: Any, name: str = "given.json") -> tuple[dict[str, Any], list[Any]]:
    (folder / name).write_text(document if isinstance(document, str) else json.dumps(document))
    report = convert([folder / name], folder / "out.jsonl")
    return report, [(e.process, e.kind, e.message) for e in read_events([folder / "out.jsonl"])[0]]


def _group(service: str, span: str, parent: str | None, start: int) -> dict[str, Any]:
    said = {"traceId": "dA==", "spanId": span, "startTimeUnixNano": str(start), "kind": "SPAN_KIND_SERVER"}
    return {
        "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]},
        "scopeSpans": [{"spans": [said | ({"parentSpanId": parent} if parent else {})]}],
    }


_groups = [_group("shop", "YQ==", None, 10), _group("stock", "Yg==", "YQ==", 20)]


@pytest.mark.parametrize(
    "document",
    [
        {"resourceSpans": _groups},
        {"batches": _groups},
        {"trace": {"resourceSpans": _groups}},
        {"result": {"resourceSpans": _groups}},
        "\n".join(json.dumps({"result": {"resourceSpans": [group]}}) for group in _groups),
    ],
    ids=["collector", "tempo", "tempo v2", "jaeger v3", "jaeger v3 stream"],
)
def test_otlp_as_it_is_handed_out(tmp_path: Path, document: Any) -> None:
    report, events = _import(tmp_path, document)
    assert (report["files"][0]["format"], report["messages"], report["unreadable"]) == ("otlp", 1, 0)
    kinds = [(process, kind) for process, kind, _ in events]
    assert kinds == [("shop", "local"), ("shop", "send"), ("stock", "deliver")]


def test_otlp_that_is_none(tmp_path: Path, reads: Snapshots) -> None:
    with pytest.raises(TraceError) as caught:
        _import(tmp_path, {"result": {"result": {"result": {"resourceSpans": _groups}}}})
    reads(str(caught.value))


_iso = "trace_id,span_id,parent_id,service,start,end\nt,a,,shop,{0},{1}\nt,b,a,stock,{1},\nt,c,a,stock,noon,\n"


def test_a_table_of_spans_with_dates(tmp_path: Path) -> None:
    report, events = _import(tmp_path, _iso.format("1970-01-01T00:00:01.5Z", "1970-01-01 00:00:02.000000001"), "s.csv")
    assert (report["files"][0]["format"], report["messages"], report["unreadable"]) == ("spans", 1, 1)
    rows = read_events([tmp_path / "out.jsonl"])[0]
    assert [row.time for row in rows] == [1_500_000_000, None, 2_000_000_001]
    assert (rows[0].extra or {})["duration_ns"] == 500_000_001
    assert [kind for _, kind, _ in events] == ["local", "send", "deliver"]


def test_spans_in_parquet(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    start = pa.array([1_700_000_000_000_000, 1_700_000_000_000_007], pa.timestamp("us"))
    columns = {"traceID": ["t", "t"], "spanID": ["a", "b"], "parentSpanID": [None, "a"], "serviceName": ["x", "y"]}
    pq.write_table(pa.table(columns | {"startTime": start}), tmp_path / "s.parquet")
    report = convert([tmp_path / "s.parquet"], tmp_path / "out.jsonl")
    assert (report["files"][0]["format"], report["messages"]) == ("spans", 1)
    assert read_events([tmp_path / "out.jsonl"])[0][-1].time == 1_700_000_000_000_007_000


def test_parquet_that_is_no_trace_is_not_called_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reads: Snapshots
) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = str(tmp_path / "sales.parquet")
    pq.write_table(pa.table({"shop": ["a"], "sum": [1]}), path)
    assert cli.run(["import", path]) == 2
    reads(capsys.readouterr().err)
    assert cli.run(["verify", path]) == 2
    reads(capsys.readouterr().err)
    pq.write_table(pa.table({"process": ["a"], "index": [0], "kind": ["local"]}), path)
    assert cli.run(["import", path]) == 2
    reads(capsys.readouterr().err)


def test_flow_events(tmp_path: Path) -> None:
    def flow(phase: str, tid: int, at: float, number: int = 1) -> dict[str, Any]:
        return {"ph": phase, "pid": 1, "tid": tid, "ts": at, "name": "post", "cat": "ipc", "id": number}

    events = [
        {"ph": "M", "pid": 1, "tid": 1, "name": "process_name", "args": {"name": "browser"}},
        {"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": "io"}},
        {"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 9, "name": "work"},
        flow("s", 1, 2.5),
        flow("t", 2, 4),
        flow("f", 3, 6),
        # The same id again is another flow; an end without a beginning is a local event.
        flow("s", 3, 7),
        flow("f", 1, 8),
        flow("f", 2, 9, 5),
        {"ph": "s", "pid": 1, "tid": 1, "ts": 3},
    ]
    report, rows = _import(tmp_path, {"traceEvents": events})
    assert (report["files"][0]["format"], report["events"], report["unreadable"]) == ("chrome", 6, 1)
    assert rows == [
        ("browser/1", "send", "ipc:post:1/0"),
        ("browser/1", "deliver", "ipc:post:1/3"),
        ("browser/3", "deliver", "ipc:post:1/1"),
        ("browser/3", "send", "ipc:post:1/3"),
        ("browser/io", "deliver", "ipc:post:1/0"),
        ("browser/io", "send", "ipc:post:1/1"),
        ("browser/io", "local", None),
    ]
    assert _import(tmp_path, events)[1] == rows


def test_threads_of_one_name_are_not_one_process(tmp_path: Path) -> None:
    named = [
        {"ph": "M", "pid": pid, "tid": 1, "name": kind, "args": {"name": "renderer"}}
        for pid in (1, 2)
        for kind in ("process_name", "thread_name")
    ]
    flow = {"name": "post", "cat": "ipc", "id": 1, "tid": 1}
    rows = _import(tmp_path, [*named, flow | {"ph": "s", "pid": 1, "ts": 1}, flow | {"ph": "f", "pid": 2, "ts": 2}])[1]
    assert [row[:2] for row in rows] == [
        ("renderer/renderer (1/1)", "send"),
        ("renderer/renderer (2/1)", "deliver"),
    ]


@pytest.mark.parametrize(("at", "wanted"), [(5, (0, 1)), (6, (1, 0))])
def test_flow_events_at_one_time_prove_nothing(tmp_path: Path, at: int, wanted: tuple[int, int]) -> None:
    flow = {"name": "post", "cat": "ipc", "pid": 1}
    sends = [flow | {"ph": "s", "tid": 1, "ts": at, "id": at} for at in (1, 2)]
    ends = [flow | {"ph": "f", "tid": 2, "ts": 5, "id": 2}, flow | {"ph": "f", "tid": 2, "ts": at, "id": 1}]
    _import(tmp_path, sends + ends)
    fifo = verify([tmp_path / "out.jsonl"])["orders"]["fifo"]
    assert (fifo["late"], fifo["undecided"]) == wanted


def _activities(*given: tuple[str, int, int, int]) -> dict[str, Any]:
    """A history of activities, each with its worker, start, end and attempt, in the order in which they are scheduled.
    The server writes both events when an activity ends."""
    events: list[tuple[int, str, dict[str, Any]]] = [(0, "WorkflowExecutionStarted", {"workflowId": "w"})]
    events += [(0, "ActivityTaskScheduled", {"activityId": f"a{n}"}) for n in range(len(given))]
    for n, (worker, start, end, attempt) in sorted(enumerate(given), key=lambda found: found[1][2]):
        about = {"scheduledEventId": str(n + 2), "identity": worker, "attempt": attempt}
        events += [(start, "ActivityTaskStarted", about), (end, "ActivityTaskCompleted", about)]
    return {
        "events": [
            {
                "eventId": str(number),
                "eventType": kind,
                "eventTime": f"2026-03-01T10:00:0{at}Z",
                kind[0].lower() + kind[1:] + "EventAttributes": about,
            }
            for number, (at, kind, about) in enumerate(events, 1)
        ]
    }


@pytest.mark.parametrize(
    ("activities", "wanted"),
    [
        # The first began first and ended last, so the history has its start after that of the second.
        ([("w1", 1, 9, 1), ("w1", 2, 3, 1)], (0, 0)),
        ([("w1", 2, 9, 1), ("w1", 1, 3, 1)], (1, 0)),
        ([("w1", 1, 9, 1), ("w1", 1, 3, 1)], (0, 1)),
        # It began earlier and failed; only its second start is recorded.
        ([("w1", 4, 9, 2), ("w1", 2, 3, 1)], (0, 1)),
        ([("w1", 4, 9, 1), ("w2", 2, 3, 1)], (0, 0)),
    ],
)
def test_activities_are_in_the_order_in_which_they_began(
    tmp_path: Path, activities: list[tuple[str, int, int, int]], wanted: tuple[int, int]
) -> None:
    _import(tmp_path, _activities(*activities))
    report = verify([tmp_path / "out.jsonl"])
    assert (report["orders"]["fifo"]["late"], report["orders"]["fifo"]["undecided"]) == wanted
    assert report["complete"]


def test_ends_of_activities_that_overlap_are_assumed(tmp_path: Path) -> None:
    _import(tmp_path, _activities(("w1", 1, 2, 1), ("w1", 3, 6, 1), ("w1", 4, 5, 1)))
    sends = [row for row in read_events([tmp_path / "out.jsonl"])[0] if row.process == "w1" and row.kind == "send"]
    assert [(row.message, row.assumed) for row in sends] == [
        ("w:2:Completed", None),
        ("w:4:Completed", None),
        ("w:3:Completed", True),
    ]


def test_a_timeout_is_no_message_and_runs_of_one_workflow_are_told_apart(tmp_path: Path) -> None:
    history = _activities(("w1", 1, 2, 1))
    late = history["events"][-1]
    late["eventType"] = "ActivityTaskTimedOut"
    late["activityTaskTimedOutEventAttributes"] = late.pop("activityTaskCompletedEventAttributes")
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(history))
    convert([tmp_path / "a.json", tmp_path / "b.json"], tmp_path / "out.jsonl")
    report = verify([tmp_path / "out.jsonl"])
    assert (report["messages"], report["deliveries"], report["quarantined"]) == (2, 2, {})


def test_a_history_of_temporal(tmp_path: Path) -> None:
    def event(number: int, kind: str, **about: Any) -> dict[str, Any]:
        camel = "".join(part.capitalize() for part in kind.split("_"))
        key = camel[0].lower() + camel[1:] + "EventAttributes"
        said = {"eventId": str(number), "eventType": f"EVENT_TYPE_{kind}", key: about}
        return said | {"eventTime": f"2026-03-01T10:00:0{number}Z"}

    history = {
        "events": [
            event(1, "WORKFLOW_EXECUTION_STARTED", workflowId="order-17"),
            event(2, "ACTIVITY_TASK_SCHEDULED", activityId="a"),
            event(3, "ACTIVITY_TASK_STARTED", scheduledEventId="2", identity="w1"),
            event(4, "ACTIVITY_TASK_COMPLETED", scheduledEventId="2", startedEventId="3", identity="w1"),
            event(5, "WORKFLOW_EXECUTION_COMPLETED"),
        ]
    }
    report, rows = _import(tmp_path, history)
    assert (report["files"][0]["format"], report["events"], report["messages"]) == ("temporal", 5, 2)
    assert rows == [
        ("order-17", "local", None),
        ("order-17", "send", "order-17:2"),
        ("order-17", "deliver", "order-17:2:Completed"),
        ("order-17", "local", None),
        ("w1", "deliver", "order-17:2"),
        ("w1", "send", "order-17:2:Completed"),
    ]
    older = [said | {"eventType": "ActivityTaskScheduled"} for said in history["events"][1:2]]
    assert _import(tmp_path, {"events": older})[0]["events"] == 1


def test_known_formats_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "junk.txt").write_text("nothing that anybody knows\n")
    assert cli.run(["import", str(tmp_path / "junk.txt")]) == 2
    said = capsys.readouterr().err
    assert [name for name in FORMATS if name not in said] == []
    assert cli.run(["import", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert [name for name in FORMATS if name not in shown] == []


def test_unknown_files_of_a_folder_can_be_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reads: Snapshots
) -> None:
    (tmp_path / "junk.txt").write_text("nothing that anybody knows\n")
    (tmp_path / "spans.json").write_text(json.dumps({"resourceSpans": _groups}))
    assert cli.run(["import", str(tmp_path)]) == 2
    reads(capsys.readouterr().err)
    assert cli.run(["import", str(tmp_path), "--skip-unknown"]) == 0
    out = capsys.readouterr().out
    reads(out)
    assert "1 row" not in out.splitlines()[-1]
    (tmp_path / "spans.json").unlink()
    assert cli.run(["import", str(tmp_path), "--skip-unknown"]) == 2
    reads(capsys.readouterr().err)


@pytest.mark.parametrize("form", ["chrome", "temporal"])
@pytest.mark.parametrize(
    "text", ["", "[", "{}", "[1]", '{"events":{}}', '{"traceEvents":[{"ph":"s","id":{}}]}', "null"]
)
def test_odd_documents_are_one_clear_line(tmp_path: Path, form: str, text: str) -> None:
    (tmp_path / "odd.json").write_text(text)
    with pytest.raises(TraceError):
        convert([tmp_path / "odd.json"], form=form)
