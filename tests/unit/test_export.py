"""``antecede export``: each format as its viewer reads it, and read back by our own importers with the same verdict."""

import base64
import json
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from antecede import cli, limits
from antecede.errors import TraceError, UsageError
from antecede.trace import Event, export, read_events, verify, view_of, write_trace
from antecede.trace.exporting import FORMATS, PATTERN
from antecede.trace.foreign import Mapping, convert, convert_mapped
from helpers.snapshots import Snapshots

_root = Path(__file__).resolve().parents[2]


def _rows(*rows: str) -> list[Event]:
    """Events written as ``ann send x -> cy,bob``."""
    counts: Counter[str] = Counter()
    events = []
    for row in rows:
        process, kind, message, *to = row.split()
        where = tuple(to[1].split(",")) if to else None
        events.append(Event(process, counts[process], kind, message, where))
        counts[process] += 1
    return events


_overtaken = _rows(
    "ann send x -> cy",
    "ann send y -> bob",
    "bob deliver y",
    "bob send z -> cy,dan",
    "cy deliver z",
    "cy arrive x",
    "cy deliver x",
)
_kept = _rows("ann send x -> cy,bob", "bob deliver x", "bob send y -> cy", "cy deliver x", "cy deliver y")


def _written(tmp_path: Path, events: list[Event]) -> Path:
    write_trace(tmp_path / "trace.jsonl", events)
    return tmp_path / "trace.jsonl"


def _timed(events: list[Event]) -> list[Event]:
    import msgspec

    at = {id(event): number for number, event in enumerate(events)}
    return [msgspec.structs.replace(event, time=1_700_000_000_000_000_000 + 1_000 * at[id(event)]) for event in events]


def _verdict(path: Path) -> tuple[Any, ...]:
    report = verify([path], ("fifo", "causal", "total"))
    late = report["orders"]["causal"]["late"]
    return report["messages"], report["deliveries"], report["undelivered"], late, report["orders"]["total"]["holds"]


@pytest.mark.parametrize("events", [_overtaken, _kept], ids=["overtaken", "kept"])
def test_shiviz_is_read_back_with_the_same_verdict(tmp_path: Path, events: list[Event]) -> None:
    trace = _written(tmp_path, events)
    (tmp_path / "trace.log").write_text(export([trace], "shiviz"))
    by_text = Mapping(pattern=[PATTERN], send="send", deliver="deliver")
    convert_mapped([tmp_path / "trace.log"], by_text, tmp_path / "text.jsonl")
    rows = len(events) - (events is _overtaken)
    assert verify([tmp_path / "text.jsonl"])["events"] == rows, "arrivals are left out"
    assert _verdict(tmp_path / "text.jsonl") == _verdict(trace)
    convert([tmp_path / "trace.log"], tmp_path / "clocks.jsonl")
    read = verify([tmp_path / "clocks.jsonl"])
    assert (read["clocks"]["checked"], read["clocks"]["disagree"]) == (rows, 0)
    assert read["orders"]["causal"]["late"] == 0, "clocks cannot show a late delivery"


@pytest.mark.parametrize("events", [_overtaken, _kept, _timed(_overtaken)], ids=["overtaken", "kept", "timed"])
@pytest.mark.parametrize("form", ["perfetto", "otlp"])
def test_spans_and_flows_are_read_back_with_the_same_late_deliveries(
    tmp_path: Path, events: list[Event], form: str
) -> None:
    trace = _written(tmp_path, events)
    (tmp_path / "out.json").write_text(export([trace], form))
    convert([tmp_path / "out.json"], tmp_path / "back.jsonl")
    assert verify([tmp_path / "back.jsonl"])["orders"]["causal"]["late"] == verify([trace])["orders"]["causal"]["late"]


def test_perfetto_has_a_slice_for_each_event_and_an_arrow_for_each_copy(tmp_path: Path) -> None:
    document = json.loads(export([_written(tmp_path, _timed(_overtaken))], "perfetto"))
    by_phase: dict[str, list[dict[str, Any]]] = {}
    for event in document["traceEvents"]:
        by_phase.setdefault(event["ph"], []).append(event)
    assert Counter({phase: len(events) for phase, events in by_phase.items()}) == Counter(M=6, X=6, s=3, f=3, b=1, e=1)
    for flow in by_phase["s"] + by_phase["f"]:
        around = [s for s in by_phase["X"] if (s["pid"], s["tid"]) == (flow["pid"], flow["tid"])]
        assert sum(s["ts"] <= flow["ts"] <= s["ts"] + s["dur"] for s in around) == 1, "an arrow needs one slice"
    assert {flow["id"] for flow in by_phase["s"]} == {flow["id"] for flow in by_phase["f"]}
    (late,) = [slice_ for slice_ in by_phase["X"] if slice_["args"].get("late")]
    assert (late["name"], late["args"]["overtaken_by"]) == ("deliver x (late, after z)", "z")
    assert min(event["ts"] for event in by_phase["X"]) == 0
    assert document["otherData"]["begin_ns"] == "1700000000000000000"


def test_otlp_has_the_fields_of_the_protocol(tmp_path: Path) -> None:
    document = json.loads(export([_written(tmp_path, _overtaken)], "otlp"))
    spans = {}
    for resource in document["resourceSpans"]:
        assert resource["resource"]["attributes"][0]["key"] == "service.name"
        for span in resource["scopeSpans"][0]["spans"]:
            assert re.fullmatch("[0-9a-f]{32}", span["traceId"])
            assert re.fullmatch("[0-9a-f]{16}", span["spanId"])
            assert int(span["startTimeUnixNano"]) < int(span["endTimeUnixNano"])
            spans[span["spanId"]] = span
    by_name = {span["name"]: span for span in spans.values()}
    chain = ["send y to bob", "deliver y", "send z to cy, dan", "deliver z"]
    for parent, child in pairwise(chain):
        assert by_name[child]["parentSpanId"] == by_name[parent]["spanId"], "a send is caused by the last delivery"
        assert by_name[child]["traceId"] == by_name[parent]["traceId"]
    late = by_name["deliver x (late, after z)"]
    assert (late["kind"], late["status"]["code"]) == (5, 2)
    assert by_name["deliver z"]["status"] == {}
    pb = pytest.importorskip("opentelemetry.proto.trace.v1.trace_pb2", reason="checked with the real classes by hand")
    from google.protobuf import json_format

    for span in spans.values():
        for key in ("traceId", "spanId", "parentSpanId"):
            if key in span:
                span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    json_format.ParseDict(document, pb.TracesData())


def test_mermaid_and_dot_mark_the_late_delivery(tmp_path: Path) -> None:
    trace = _written(tmp_path, _overtaken)
    assert export([trace], "mermaid").splitlines() == [
        "sequenceDiagram",
        "  participant p0 as ann",
        "  participant p1 as bob",
        "  participant p2 as cy",
        "  Note over p0: sends x",
        "  p0-)p1: y",
        "  p1-)p2: z",
        "  p0-)p2: x (late)",
        "  Note over p2: late, after z",
    ]
    graph = export([trace], "dot")
    assert graph.count(" -> ") == len(_overtaken) + 3
    assert graph.count("color=red, fontcolor=red") == 1
    assert len(set(re.findall(r'pos="([^"]*)"', graph))) == len(_overtaken) + 3, "one place for each point"


_nasty = ['a"b\\', "semi;colon #1 %", "new\nline\t<b>", "", "größe 茶", "x{y},z", "\u202eevil", "a" * 500]


@pytest.mark.parametrize("form", list(FORMATS))
def test_names_of_any_characters_break_no_format(tmp_path: Path, form: str) -> None:
    events = []
    for number, name in enumerate(_nasty):
        events.append(Event(f"p{name}", 0, "send", name, (f"q{name}",), extra={"label": name * 2, "n": number}))
        events.append(Event(f"q{name}", 0, "deliver", name))
    trace = _written(tmp_path, events)
    text = export([trace], form)
    if form in ("perfetto", "otlp"):
        json.loads(text)
        return
    lines = text.splitlines()
    assert all(line.isprintable() for line in lines)
    if form == "shiviz":
        (tmp_path / "trace.log").write_text(text)
        convert_mapped(
            [tmp_path / "trace.log"], Mapping(pattern=[PATTERN], send="send", deliver="deliver"), tmp_path / "b.jsonl"
        )
        assert _verdict(tmp_path / "b.jsonl") == _verdict(trace)
        assert len({event.process for event in read_events([tmp_path / "b.jsonl"])[0]}) == 2 * len(_nasty)
    elif form == "mermaid":
        assert len(lines) == 1 + 3 * len(_nasty), "two participants and one arrow each"
        assert not any(";" in re.sub(r"#\w+;", "", line) for line in lines)
    else:
        assert all(re.fullmatch(r'(?:[^"]|"(?:[^"\\]|\\.)*")*', line) for line in lines), "a quote is left open"


@pytest.mark.parametrize("form", list(FORMATS))
def test_a_trace_of_more_events_than_a_viewer_takes_is_refused(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch, reads: Snapshots
) -> None:
    trace = _written(tmp_path, _overtaken)
    monkeypatch.setitem(limits.export_events_max, form, len(_overtaken))
    assert export([trace], form)
    monkeypatch.setitem(limits.export_events_max, form, len(_overtaken) - 1)
    with pytest.raises(TraceError) as caught:
        export([trace], form)
    reads(str(caught.value))
    assert view_of([trace], form, lambda event: event.process != "cy").events == 4


def test_a_clock_that_was_set_back_keeps_the_order_of_its_process(tmp_path: Path) -> None:
    events = [
        Event("a", 0, "send", "x", time=100),
        Event("a", 1, "send", "y", time=50),
        Event("b", 0, "deliver", "y", time=1),
    ]
    view = view_of([_written(tmp_path, events)], "perfetto")
    assert [(one.event.message, one.time) for one in view.sequence] == [("x", 100), ("y", 101), ("y", 1)]
    assert view.backwards() == 1


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, reads: Snapshots
) -> None:
    trace = str(_written(tmp_path, _overtaken))
    monkeypatch.chdir(tmp_path)
    assert cli.run(["export", trace, "--to", "dot", "-o", "t.dot"]) == 0
    reads(capsys.readouterr().out)
    assert cli.run(["export", trace, "--to", "dot"]) == 0
    assert capsys.readouterr().out == (tmp_path / "t.dot").read_text()
    assert cli.run(["export", trace, "--to", "mermaid", "-o", "t.mmd", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    documented = (_root / "docs" / "json.md").read_text(encoding="utf-8").partition("`antecede export … --json`")[2]
    assert [key for key in report if f"`{key}`" not in documented.partition("\n## ")[0]] == []
    for wrong in (["--to", "png"], ["--to", "dot", "--json"], ["--to", "dot", "-o", "missing/x.dot"], []):
        assert cli.run(["export", trace, *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.dot", "t.mmd", "trace.jsonl"]


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    trace = _written(tmp_path, [Event("a", n, "send", f"m{n}", ("b",)) for n in range(20_000)])
    command = [sys.executable, "-m", "antecede", "export", str(trace), "--to", "otlp"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.read(10)
        child.stdout.close()
        assert b"Traceback" not in child.stderr.read()


def test_an_unknown_format(tmp_path: Path, reads: Snapshots) -> None:
    with pytest.raises(UsageError) as caught:
        export([_written(tmp_path, _overtaken)], "svg")
    reads(str(caught.value))
