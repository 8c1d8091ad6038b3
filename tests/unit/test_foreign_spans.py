"""Spans of every system: which messages they imply, in which order, and what the wall clocks have to say."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from antecede import limits
from antecede.errors import TraceError, UsageError
from antecede.trace import Event, read_events, verify
from antecede.trace.foreign import convert
from helpers.snapshots import Snapshots

Row = tuple[str, str, str | None]


def _zipkin(
    span: str, service: str, start: int, parent: str | None = None, kind: str | None = None, **more: Any
) -> dict[str, Any]:
    said = {"traceId": "t", "id": span, "timestamp": start, "localEndpoint": {"serviceName": service}, **more}
    if parent:
        said["parentId"] = parent
    if kind:
        said["kind"] = kind
    return said


def _import(folder: Path, document: Any, name: str = "spans.json", **more: Any) -> tuple[dict[str, Any], list[Event]]:
    text = document if isinstance(document, str) else json.dumps(document)
    (folder / name).write_text(text)
    report = convert([folder / name], folder / "t.jsonl", **more)
    return report, read_events([folder / "t.jsonl"])[0]


def _rows(events: list[Event]) -> list[Row]:
    return [(e.process, e.kind, e.message) for e in events]


def test_both_halves_of_a_call(tmp_path: Path) -> None:
    spans = [
        _zipkin("1", "front", 10, kind="SERVER"),
        _zipkin("2", "front", 20, "1", "CLIENT", duration=9),
        _zipkin("2", "back", 5, "1", "SERVER", shared=True),
        _zipkin("3", "back", 6, "2"),
    ]
    report, events = _import(tmp_path, spans)
    assert _rows(events) == [
        ("back", "deliver", "t:2"),
        ("back", "local", None),
        ("front", "local", None),
        ("front", "send", "t:2"),
    ]
    assert [e.time for e in events] == [5_000, 6_000, 10_000, 20_000]
    assert not any(e.assumed for e in events), "nothing else was sent or received during the call"
    assert events[0].extra == {"trace": "t", "span": "2", "span_kind": "server"}
    # The message, by the halves; and both the server's half and its child begin before what they name as parent.
    assert (report["early_messages"], report["early_children"]) == (1, 2)
    assert report["files"][0]["format"] == "zipkin"


def test_a_parent_in_another_service(tmp_path: Path) -> None:
    report, events = _import(tmp_path, [[_zipkin("1", "a", 1), _zipkin("2", "b", 2, "1")], [_zipkin("9", "a", 3, "8")]])
    assert _rows(events) == [
        ("a", "local", None),
        ("a", "send", "t:1->2"),
        ("a", "local", None),
        ("b", "deliver", "t:1->2"),
    ]
    assert (events[1].to, events[1].assumed, events[1].time) == (("b",), True, None)
    assert (report["messages"], report["without_parent"], report["assumed"]) == (1, 1, {"send_position": 1})


def test_producers_reach_consumers_in_their_own_service_too(tmp_path: Path) -> None:
    spans = [
        _zipkin("1", "a", 5, kind="PRODUCER"),
        _zipkin("2", "a", 9, "1", "CONSUMER"),
        _zipkin("3", "b", 8, "1", "CONSUMER"),
        _zipkin("4", "a", 10, "2"),
    ]
    _, events = _import(tmp_path, spans)
    assert _rows(events) == [
        ("a", "local", None),
        ("a", "send", "t:1->3"),
        ("a", "send", "t:1->2"),
        ("a", "deliver", "t:1->2"),
        ("a", "local", None),
        ("b", "deliver", "t:1->3"),
    ]


def test_a_service_is_ordered_by_its_clock_and_ties_by_ancestry(tmp_path: Path) -> None:
    spans = [_zipkin("a", "s", 7, "b"), _zipkin("b", "s", 7, "c"), _zipkin("c", "s", 7), _zipkin("z", "s", 3, "a")]
    report, events = _import(tmp_path, spans)
    assert [(e.extra or {})["span"] for e in events] == ["z", "c", "b", "a"]
    assert report["early_children"] == 1


def test_the_half_in_the_own_service_is_the_parent_else_the_servers(tmp_path: Path) -> None:
    spans = [
        _zipkin("2", "front", 1, None, "CLIENT"),
        _zipkin("2", "back", 2, None, "SERVER"),
        _zipkin("3", "front", 3, "2"),
        _zipkin("4", "back", 4, "2"),
        _zipkin("5", "third", 5, "2"),
    ]
    _, events = _import(tmp_path, spans)
    assert [row for row in _rows(events) if row[1] == "send"] == [
        ("back", "send", "t:2->5"),
        ("front", "send", "t:2"),
    ]


def test_duplicates_and_ids_used_by_two_servers(tmp_path: Path) -> None:
    spans = [_zipkin("1", "a", 1, None, "CLIENT")] + [_zipkin("1", s, 2, None, "SERVER") for s in "bbc"]
    report, events = _import(tmp_path, spans)
    assert (report["duplicates"], report["events"]) == (1, 3)
    assert [e.message for e in events if e.kind == "send"] == ["t:1", "t:1@c/server"]
    assert verify([tmp_path / "t.jsonl"])["complete"]


def test_several_receivers_of_one_message_are_not_one_span_recorded_again(tmp_path: Path) -> None:
    spans = [_zipkin("1", "a", 1, None, "PRODUCER", duration=1)]
    spans += [_zipkin("1", "b", start, None, "CONSUMER") for start in (5, 7, 7)]
    spans += [_zipkin("2", "b", 6, "1"), _zipkin("3", "b", 9, "1")]
    report, events = _import(tmp_path, spans)
    assert (report["duplicates"], report["events"], report["messages"]) == (1, 5, 2)
    assert [e.message for e in events if e.kind == "deliver"] == ["t:1", "t:1@b/consumer"]
    assert verify([tmp_path / "t.jsonl"])["complete"]


def test_a_call_of_a_service_to_itself_is_a_message_if_both_halves_are_recorded(tmp_path: Path) -> None:
    for client, server, parent in (("2", "2", "1"), ("2", "3", "2")):
        spans = [
            _zipkin("1", "a", 1),
            _zipkin(client, "a", 2, "1", "CLIENT", duration=9),
            _zipkin(server, "a", 5, parent, "SERVER"),
            _zipkin("9", "a", 6, server),
        ]
        report, events = _import(tmp_path, spans)
        assert report["messages"] == 1
        assert [e.kind for e in events] == ["local", "send", "deliver", "local"]
        assert events[1].to == ("a",)
        assert verify([tmp_path / "t.jsonl"])["complete"]
        (tmp_path / "t.jsonl").unlink()


def test_a_span_with_an_address_and_no_service_name_is_read(tmp_path: Path) -> None:
    spans = [_zipkin("1", "a", 1), _zipkin("2", "", 2, "1"), _zipkin("3", "", 3, "1")]
    spans[1]["localEndpoint"] = {"ipv4": "10.0.0.2"}
    spans[2]["localEndpoint"] = {"ipv6": "::1"}
    report, events = _import(tmp_path, spans)
    assert (report["unreadable"], report["messages"]) == (0, 2)
    assert {e.process for e in events} == {"a", "10.0.0.2", "::1"}


def test_ancestors_in_a_circle(tmp_path: Path) -> None:
    report, _ = _import(tmp_path, [_zipkin("1", "a", 1, "2"), _zipkin("2", "b", 2, "1"), _zipkin("3", "c", 2, "3")])
    assert (report["messages"], report["cycle"], report["without_parent"]) == (2, 2, 1)
    assert verify([tmp_path / "t.jsonl"])["quarantined"] == {"cycle": 2}


def test_impossible_deliveries_are_those_that_verify_sets_aside(tmp_path: Path) -> None:
    seen = {"before_send": 0, "cycle": 0}
    for seed in range(150):
        dice = random.Random(seed)
        spans = []
        for number in range(dice.randint(2, 14)):
            parent = str(dice.randrange(number)) if number and dice.random() < 0.8 else None
            kind = dice.choice(["PRODUCER", "CONSUMER", None])
            spans.append(_zipkin(str(number), dice.choice("ab"), dice.randint(1, 9), parent, kind))
        report, _ = _import(tmp_path, spans)
        try:
            said = verify([tmp_path / "t.jsonl"])["quarantined"]
        finally:
            (tmp_path / "t.jsonl").unlink()
        for reason in seen:
            assert report[reason] == said.get(reason, 0), seed
            seen[reason] += report[reason]
        assert set(said) <= set(seen)
    assert all(seen.values())


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"id": "9"}, "traceId"),
        ({"traceId": "t", "id": 9, "timestamp": 1}, "str"),
        ({"traceId": "t", "id": "9"}, "no timestamp"),
        ({"traceId": "t", "id": "9", "timestamp": 1}, "no service"),
        (_zipkin("9", "a", -5), "not an int64"),
        (_zipkin("9", "a", 2**62), "not an int64"),
        (_zipkin("", "a", 1), "no id"),
        (7, "object"),
        (None, "object"),
    ],
)
def test_a_broken_span_costs_itself(broken: Any, said: str, tmp_path: Path) -> None:
    report, _ = _import(tmp_path, [_zipkin("1", "a", 1), broken, _zipkin("2", "b", 2, "1")], form="zipkin")
    assert (report["events"], report["messages"], report["unreadable"]) == (2, 1, 1)
    assert report["unreadable_first"][0].startswith(f"{tmp_path / 'spans.json'}:1: span 2: ")
    assert said in report["unreadable_first"][0]


def test_a_document_a_line(tmp_path: Path) -> None:
    lines = [json.dumps([_zipkin("1", "a", 1)]), "", "{torn", json.dumps(_zipkin("2", "b", 2, "1"))]
    report, _ = _import(tmp_path, "\n".join(lines))
    assert (report["events"], report["messages"], report["unreadable"]) == (2, 1, 1)
    assert report["unreadable_first"][0].startswith(f"{tmp_path / 'spans.json'}:3: ")


def test_a_document_a_line_whose_first_is_longer_than_what_is_guessed_from(tmp_path: Path) -> None:
    first = json.dumps([_zipkin("1", "a", 1), _zipkin("x", "a", 1, name="n" * 300_000)])
    report, events = _import(tmp_path, first + "\n" + json.dumps(_zipkin("2", "b", 2, "1")))
    assert (report["events"], report["messages"], report["unreadable"]) == (3, 1, 0)
    assert max(len((e.extra or {}).get("name", "")) for e in events) == limits.raw_text_bytes_max


def _attributes(**named: str) -> list[dict[str, Any]]:
    return [{"key": key.replace("_", "."), "value": {"stringValue": value}} for key, value in named.items()]


def _otlp(*resources: tuple[str, str, list[dict[str, Any]]]) -> dict[str, Any]:
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(service_name=service, service_instance_id=instance)},
                "scopeSpans": [{"scope": {"name": "x"}, "spans": spans}],
            }
            for service, instance, spans in resources
        ]
    }


_otlp_sample = _otlp(
    (
        "shop",
        "i1",
        [
            {
                "traceId": "t",
                "spanId": "1",
                "kind": 3,
                "startTimeUnixNano": "100",
                "endTimeUnixNano": "150",
                "name": "get",
            },
            {"traceId": "t", "spanId": "4", "kind": "SPAN_KIND_PRODUCER", "startTimeUnixNano": 120},
        ],
    ),
    ("shop", "i2", [{"traceId": "t", "spanId": "9", "parentSpanId": "", "startTimeUnixNano": "110"}]),
    (
        "stock",
        "i1",
        [
            {"traceId": "t", "spanId": "2", "parentSpanId": "1", "kind": 2, "startTimeUnixNano": "90"},
            {
                "traceId": "u",
                "spanId": "5",
                "kind": 5,
                "startTimeUnixNano": "130",
                "links": [
                    {"traceId": "t", "spanId": "4"},
                    {"traceId": "t", "spanId": "4"},
                    {"traceId": "?", "spanId": "?"},
                ],
            },
        ],
    ),
)


def test_opentelemetry(tmp_path: Path) -> None:
    report, events = _import(tmp_path, _otlp_sample)
    assert report["files"][0]["format"] == "otlp"
    assert _rows(events) == [
        ("shop", "local", None),
        ("shop", "send", "t:1->2"),
        ("shop", "local", None),
        ("shop", "local", None),
        ("shop", "send", "t:4->u:5"),
        ("stock", "deliver", "t:1->2"),
        ("stock", "deliver", "t:4->u:5"),
    ]
    assert events[0].extra == {"trace": "t", "span": "1", "name": "get", "span_kind": "client", "duration_ns": 50}
    assert (report["early_messages"], report["without_parent"]) == (1, 1)
    lined, _ = _import(tmp_path, json.dumps(_otlp_sample) + "\n" + json.dumps(_otlp(("more", "i", []))))
    assert (lined["events"], lined["messages"]) == (5, 2)


def test_instances_are_processes_if_asked(tmp_path: Path) -> None:
    _, events = _import(tmp_path, _otlp_sample, instances=True)
    assert {e.process for e in events} == {"shop@i1", "shop@i2", "stock@i1"}
    spans = [_zipkin("1", "a", 1)]
    spans[0]["localEndpoint"]["ipv4"] = "10.0.0.1"
    assert _import(tmp_path, spans, instances=True)[1][0].process == "a@10.0.0.1"
    assert _import(tmp_path, spans)[1][0].process == "a"


def test_opentelemetry_that_is_broken_in_parts(tmp_path: Path) -> None:
    document = _otlp(("a", "i", [{"traceId": "t", "spanId": "1", "startTimeUnixNano": "1"}]))
    document["resourceSpans"] += [
        {"scopeSpans": [{"spans": [{"traceId": "t", "spanId": "2", "startTimeUnixNano": "1"}]}]},
        {"scopeSpans": "none"},
        {"resource": {"attributes": _attributes(service_name="b")}, "instrumentationLibrarySpans": [{"spans": [
            {"traceId": "t", "spanId": "3", "parentSpanId": "1", "startTimeUnixNano": "2"},
            {"traceId": "t", "spanId": "4", "startTimeUnixNano": "soon"},
            {"traceId": "t", "spanId": "5", "startTimeUnixNano": "9" * 5_000},
        ]}]},
    ]  # fmt: skip
    report, _ = _import(tmp_path, document)
    assert (report["events"], report["messages"], report["unreadable"]) == (2, 1, 4)


def _jaeger(span: str, process: str, start: int, *references: tuple[str, str, str], kind: str = "") -> dict[str, Any]:
    return {
        "traceID": "t",
        "spanID": span,
        "operationName": f"op{span}",
        "references": [{"refType": kind, "traceID": trace, "spanID": other} for kind, trace, other in references],
        "startTime": start,
        "duration": 3,
        "tags": [{"key": "span.kind", "type": "string", "value": kind}, {"key": "n", "value": 7}] if kind else [],
        "processID": process,
    }


def test_jaeger(tmp_path: Path) -> None:
    spans = [
        _jaeger("1", "p1", 10, kind="client"),
        _jaeger("2", "p2", 12, ("CHILD_OF", "t", "1"), kind="server"),
        _jaeger("3", "p1", 14, ("CHILD_OF", "t", "2"), ("FOLLOWS_FROM", "t", "2"), ("FOLLOWS_FROM", "t", "1")),
        _jaeger("4", "p9", 15),
        {"spanID": "5"},
    ]
    processes = {
        "p1": {"serviceName": "front", "tags": [{"key": "hostname", "value": "h1"}]},
        "p2": {"serviceName": "back"},
    }
    trace = {"traceID": "t", "spans": spans, "processes": processes}
    for document in ({"data": [trace]}, trace):
        report, events = _import(tmp_path, document)
        assert report["files"][0]["format"] == "jaeger"
        assert _rows(events) == [
            ("back", "deliver", "t:1->2"),
            ("back", "send", "t:2->3"),
            ("front", "local", None),
            ("front", "send", "t:1->2"),
            ("front", "deliver", "t:2->3"),
        ]
        assert report["unreadable"] == 2
    assert {e.process for e in _import(tmp_path, {"data": [trace]}, instances=True)[1]} == {"front@h1", "back"}


_csv = """TraceID,SpanID,ParentID,PodName,OperationName,StartTimeUnixNano,EndTimeUnixNano
t,1,root,a,"get, please",100,200
t,2,1,b,put,90,95
t,3,,b,none,91,
"""


def test_a_table_of_spans(tmp_path: Path) -> None:
    report, events = _import(tmp_path, _csv, "spans.csv")
    assert report["files"][0]["format"] == "spans"
    assert _rows(events) == [
        ("a", "local", None),
        ("a", "send", "t:1->2"),
        ("b", "deliver", "t:1->2"),
        ("b", "local", None),
    ]
    assert events[0].extra == {"trace": "t", "span": "1", "name": "get, please", "duration_ns": 100}
    assert (report["early_messages"], report["without_parent"]) == (1, 0)


def test_a_table_that_is_gzipped_and_torn(tmp_path: Path) -> None:
    rows = "".join(f"t,{number},1,b,{random.Random(number).random()},90,95\n" for number in range(4, 2_000))
    whole = gzip.compress((_csv + rows).encode())
    (tmp_path / "spans.csv.gz").write_bytes(whole[: len(whole) // 2])
    report = convert([tmp_path / "spans.csv.gz"])
    assert 100 < report["events"] < 1_900
    assert ["torn gzip stream" in where for where in report["unreadable_first"]] in ([True], [True, False])


@pytest.mark.parametrize(
    ("header", "start", "nanoseconds"),
    [
        ("trace_id,span_id,parent_span_id,service,start_us", 7, 7_000),
        ("traceId,spanId,parentSpanId,serviceName,start_ms", 7, 7_000_000),
        ("trace id,span id,parent,host,startTime", 1_700_000_000, 1_700_000_000 * 10**9),
        ("trace id,span id,parent,host,startTime", 1_700_000_000_000, 1_700_000_000 * 10**9),
        ("trace id,span id,parent,host,startTime", 1_700_000_000_000_000, 1_700_000_000 * 10**9),
        ("trace id,span id,parent,host,startTime", 1_700_000_000 * 10**9, 1_700_000_000 * 10**9),
    ],
)
def test_names_and_units_of_columns(header: str, start: int, nanoseconds: int, tmp_path: Path) -> None:
    report, events = _import(tmp_path, f"{header}\nt,1,0000,a,{start}\n", "spans.csv")
    assert report["without_parent"] == 0
    assert [(e.process, e.kind, e.time) for e in events] == [("a", "local", nanoseconds)]


@pytest.mark.parametrize(
    "row",
    ["t,9,1,b", "t,9,1,b,x,soon,9", 't,9,1,b,"x,1,2', "t,9,1,b,x,9,1", ",9,1,b,x,1,2", f"t,9,1,b,x,{2**63},{2**64}"],
)
def test_a_broken_row_costs_itself(row: str, tmp_path: Path) -> None:
    report, _ = _import(tmp_path, _csv + row + "\nt,4,1,b,x,300,400\n", "spans.csv")
    assert (report["events"], report["messages"], report["unreadable"]) == (4, 2, 1)
    assert report["unreadable_first"][0].startswith(f"{tmp_path / 'spans.csv'}:5: ")


def test_span_formats_mix_and_families_do_not(tmp_path: Path, reads: Snapshots) -> None:
    (tmp_path / "a.csv").write_text(_csv)
    (tmp_path / "b.json").write_text(json.dumps([_zipkin("8", "z", 1, "1")]))
    report = convert([tmp_path / "a.csv", tmp_path / "b.json", tmp_path / "a.csv"])
    assert [file["format"] for file in report["files"]] == ["spans", "zipkin"]
    assert report["messages"] == 2
    (tmp_path / "c.log").write_text('a {"a":1}\nx\n')
    with pytest.raises(UsageError) as caught:
        convert([tmp_path])
    reads(str(caught.value))


def test_bounds_of_documents_and_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: Snapshots) -> None:
    text = json.dumps([_zipkin("1", "a", 1), _zipkin("2", "b", 2, "1")], indent=1)
    monkeypatch.setattr(limits, "foreign_events_max", 2)
    monkeypatch.setattr(limits, "foreign_document_bytes_max", len(text))
    assert _import(tmp_path, text)[0]["events"] == 2
    monkeypatch.setattr(limits, "foreign_events_max", 1)
    with pytest.raises(TraceError) as caught:
        _import(tmp_path, text)
    reads(str(caught.value))
    monkeypatch.setattr(limits, "foreign_document_bytes_max", len(text) - 1)
    with pytest.raises(TraceError) as caught:
        _import(tmp_path, text)
    reads(str(caught.value))


def test_records_of_one_span_at_the_bound(tmp_path: Path, reads: Snapshots) -> None:
    bound = limits.foreign_halves_max
    assert _import(tmp_path, [_zipkin("1", f"s{n}", 1) for n in range(bound)])[0]["events"] == bound
    with pytest.raises(TraceError) as caught:
        _import(tmp_path, [_zipkin("1", f"s{n}", 1) for n in range(bound + 1)])
    reads(str(caught.value))
