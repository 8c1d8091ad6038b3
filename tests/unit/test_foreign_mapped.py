"""``antecede import --map``: any event log by a mapping, in four forms, with odd and hostile input."""

import gzip
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antecede import cli, limits
from antecede.errors import AntecedeError, TraceError, UsageError
from antecede.trace import read_events
from antecede.trace.foreign import (
    Guard,
    Mapping,
    Plan,
    Value,
    convert_mapped,
    nanoseconds,
    pairs_of,
    read_mapping,
    write_mapping,
)
from helpers.snapshots import Snapshots

_map = "process=nid,kind=event.name,message=event.msg.id,to=event.msg.to"
_options = ["--map", _map, "--send", "Send.*", "--deliver", "Receive.*"]
_mapping = Mapping(map=pairs_of([_map]), send="Send.*", deliver="Receive.*")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _record(nid: Any, name: str, **msg: Any) -> dict[str, Any]:
    return {"nid": nid, "event": {"name": name, "msg": msg}}


def _lines(*records: Any) -> str:
    return "".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records)


def _run(*records: Any, mapping: Mapping = _mapping, name: str = "log.jsonl") -> tuple[dict[str, Any], list[Any]]:
    Path(name).write_text(_lines(*records))
    report = convert_mapped([name], mapping, "out.jsonl")
    events = [(e.process, e.index, e.kind, e.message, e.to, e.time) for e in read_events(["out.jsonl"])[0]]
    return report, sorted(events)


_sent = _record(1, "SendAppend", id=7, to=[2, 3])
_got = _record(2, "ReceiveAppend", id=7)


def test_the_command_of_the_issue(capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    later = _record(1, "SendAppend", id=8, to="2")
    Path("log.jsonl").write_text(_lines(_sent, later, _record(2, "ReceiveAppend", id=8), _got))
    assert cli.run(["import", "log.jsonl", *_options, "--to", "out.jsonl"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "log.jsonl: read as json, 4 events",
        "4 records: 2 sends, 2 deliveries (2 of them with a recorded send), 0 local events; 2 processes",
        "4 rows written to out.jsonl",
    ]
    # The log has ids at both ends: it proves that the first message was late.
    assert cli.run(["verify", "out.jsonl"]) == 1
    reads(capsys.readouterr().out)


def test_numbers_are_ids_and_lists_are_destinations() -> None:
    report, events = _run(_sent, _got)
    assert events == [("1", 0, "send", "7", ("2", "3"), None), ("2", 0, "deliver", "7", None, None)]
    assert (report["sends"], report["deliveries"], report["matched"], report["skipped"]) == (1, 1, 1, {})


@pytest.mark.parametrize(
    ("to", "wanted"),
    [
        ("b, a,b", ("a", "b")),
        ('["a","b"]', ("a", "b")),
        ([], ()),
        ("", None),
        (None, None),
        (["a", {"b": 1}], None),
        ({"a": 1}, None),
        (4, ("4",)),
    ],
)
def test_destinations(to: Any, wanted: tuple[str, ...] | None) -> None:
    _, events = _run(_record("p", "Send", id="m", to=to), _record("a", "Receive", id="m"))
    assert next(event for event in events if event[2] == "send")[4] == wanted


def test_what_is_missing_is_counted_and_named(capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    rows = [
        _sent, _got,
        {"event": {"name": "SendVote"}},
        _record(3, "ReceiveVote"),
        _record(3, "BecomeLeader"),
        _record("", "SendVote", id=9),
        "not json",
        "[1]",
    ]  # fmt: skip
    report, events = _run(*rows)
    assert report["records"] == 6
    assert report["skipped"] == {"no_process": 2, "no_message": 1}
    assert report["skipped_first"]["no_process"] == [
        "log.jsonl:3: no process: the record has no nid",
        "log.jsonl:6: no process: nid is empty",
    ]
    assert report["skipped_first"]["no_message"] == ["log.jsonl:4: no message: the record has no event.msg.id"]
    assert (report["unreadable"], report["locals"]) == (2, 2)
    assert [event[2] for event in events if event[0] == "3"] == ["local", "local"]
    assert cli.run(["import", "log.jsonl", *_options]) == 0
    out = capsys.readouterr().out
    reads(out)


def test_others_can_be_skipped_and_are_counted() -> None:
    mapping = Mapping(map=_mapping.map, send="Send.*", deliver="Receive.*", others="skip")
    report, events = _run(_sent, _record(1, "Tick"), _record(1, "Tick"), _got, mapping=mapping)
    assert report["skipped"] == {"others": 2}
    assert report["kinds"]["local"] == {"Tick": 2}
    assert [event[2] for event in events] == ["send", "deliver"]


def test_send_and_deliver_may_name_things_differently() -> None:
    mapping = Mapping(
        map=pairs_of(["send.process=src,deliver.process=dst,kind=op,message={n}:{src}:{dst},to=dst"]),
        send="tx",
        deliver="rx",
    )
    rows = [{"op": op, "src": "a", "dst": "b", "n": 1} for op in ("tx", "rx", "drop")]
    report, events = _run(*rows, mapping=mapping)
    assert events == [("a", 0, "send", "1:a:b", ("b",), None), ("b", 0, "deliver", "1:a:b", None, None)]
    assert report["skipped"] == {"no_process": 1}


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("a.b", 1),
        ("k8s.pod", "p"),
        ("list.1.x", 5),
        ("list.9", None),
        ("list.x", None),
        ("a.b.c", None),
        ("{a.b}-{k8s.pod}", "1-p"),
        ("{a.b}-{gone}", None),
        ("node {a.b}", "node 1"),
    ],
)
def test_paths_and_templates(path: str, wanted: Any) -> None:
    assert Value("x", path).of({"a": {"b": 1}, "k8s.pod": "p", "list": [{}, {"x": 5}]}) == wanted


@pytest.mark.parametrize(
    ("order", "wanted"),
    [("file", ["m", None, "n"]), ("time", ["n", "m", None]), ("seq", [None, "n", "m"])],
)
def test_what_orders_the_events_of_a_process(order: str, wanted: list[Any]) -> None:
    mapping = Mapping(
        map={"process": "p", "kind": "k", "message": "m", "time": "t"}, send="s", deliver="d", index=order
    )
    rows = [
        {"p": "a", "k": "s", "m": "m", "t": "2026-03-01T10:00:02Z", "seq": 30},
        {"p": "a", "k": "x", "t": "2026-03-01T10:00:03Z", "seq": "10"},
        {"p": "a", "k": "s", "m": "n", "t": "2026-03-01T10:00:01Z", "seq": 20},
        {"p": "b", "k": "d", "m": "m", "t": "2026-03-01T10:00:09Z", "seq": 1},
    ]
    _, events = _run(*rows, mapping=mapping)
    assert [event[3] for event in events if event[0] == "a"] == wanted


def test_what_has_no_place_in_the_order_is_counted() -> None:
    mapping = Mapping(
        map={"process": "p", "kind": "k", "message": "m", "time": "t"}, send="s", deliver="d", index="time"
    )
    rows = [
        {"p": "a", "k": "s", "m": "m", "t": 1.5},
        {"p": "a", "k": "s", "m": "n", "t": "yesterday"},
        {"p": "b", "k": "d", "m": "m", "t": 2},
        {"p": "b", "k": "x", "t": 2},
    ]
    report, events = _run(*rows, mapping=mapping)
    assert report["skipped"] == {"bad_time": 1, "no_index": 1}
    assert report["tied"] == 1
    assert [event[5] for event in events] == [1_500_000_000, 2_000_000_000, 2_000_000_000]


def test_csv_and_its_relatives() -> None:
    mapping = Mapping(map={"process": "who", "kind": "what", "message": "id", "to": "to"}, send="s", deliver="d")
    for mark in ",;\t|":
        Path("log.csv").write_text('who;what;id;to\na;s;7;"b;c"\nb;d;7;\nb;x\n"torn;d;7;\n'.replace(";", mark))
        report = convert_mapped(["log.csv"], mapping, "out.jsonl")
        assert [(f["format"], f["events"]) for f in report["files"]] == [("csv", 3)]
        assert (report["sends"], report["deliveries"], report["locals"], report["unreadable"]) == (1, 1, 1, 1)


def test_parquet_with_timestamps() -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = {
        "node": pa.array(["a", "b"]),
        "event": pa.array([{"op": "s", "id": 7}, {"op": "d", "id": 7}]),
        "at": pa.array([1_000_001, 2_000_000], pa.timestamp("us")),
    }
    pq.write_table(pa.table(table), "log.parquet")
    mapping = Mapping(
        map={"process": "node", "kind": "event.op", "message": "event.id", "time": "at"},
        send="s",
        deliver="d",
        time="ns",
    )
    report = convert_mapped(["log.parquet"], mapping, "out.jsonl")
    assert report["files"][0]["format"] == "parquet"
    assert [event.time for event in read_events(["out.jsonl"])[0]] == [1_000_001_000, 2_000_000_000]


def test_text_with_json_inside_and_several_patterns() -> None:
    Path("log.txt").write_bytes(
        b'a | {"op":"s","id":1}\nb | {"op":"d","id":1}\nb : just words\nno match\n\nb | {torn}\n' + b"\xff | {}\n"
    )
    mapping = Mapping(
        map={"kind": "op", "message": "id"},
        pattern=[r"^(?<process>\S+) \| (?P<json>\{.*\})$", r"^(?P<process>\S+) : "],
        send="s",
        deliver="d",
    )
    report = convert_mapped(["log.txt"], mapping)
    assert (report["sends"], report["deliveries"], report["locals"]) == (1, 1, 2)
    assert report["skipped"] == {"no_match": 1}
    assert report["unreadable"] == 1


def test_a_line_without_a_kind_is_searched() -> None:
    Path("log.txt").write_text("a: now sending m1\nb: got m1, thanks\n")
    mapping = Mapping(pattern=r"^(?P<process>\w): .*(?P<message>m\d)", send="sending", deliver="got")
    report = convert_mapped(["log.txt"], mapping)
    assert (report["sends"], report["deliveries"], report["matched"]) == (1, 1, 1)


def test_one_document_and_gzip() -> None:
    Path("log.json").write_text(json.dumps({"about": "x", "events": [_sent, _got, 4]}, indent=1))
    report = convert_mapped(["log.json"], _mapping)
    assert (report["matched"], report["unreadable"]) == (1, 1)
    Path("log.gz").write_bytes(gzip.compress(_lines(_sent, _got).encode()))
    assert convert_mapped(["log.gz"], _mapping)["matched"] == 1


def test_preview_shows_and_writes_nothing(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    Path("log.jsonl").write_text(_lines(_sent, _got, _record(3, "Tick")))
    assert cli.run(["import", "log.jsonl", *_options, "--preview", "--to", "out.jsonl"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:] == [
        "first events:",
        "  log.jsonl:1  1  send     7  to 2,3",
        "  log.jsonl:2  2  deliver  7",
        "  log.jsonl:3  3  local",
        "kinds:",
        "  send    1 record: SendAppend",
        "  deliver 1 record: ReceiveAppend",
        "  neither 1 record: Tick",
        "a preview: nothing written",
    ]
    assert sorted(path.name for path in folder.iterdir()) == ["log.jsonl"]


def test_preview_ends_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "preview_records_max", 3)
    for name in ("a.jsonl", "b.jsonl"):
        Path(name).write_text(_lines(_sent, _got))
    assert convert_mapped(["a.jsonl", "b.jsonl"], _mapping, preview=True)["records"] == 3


def test_a_mapping_is_kept_and_overruled(capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    Path("log.jsonl").write_text(_lines(_sent, _got))
    assert cli.run(["import", "log.jsonl", *_options, "--save-mapping", "kept.toml"]) == 0
    first = capsys.readouterr().out
    assert cli.run(["import", "log.jsonl", "--mapping", "kept.toml"]) == 0
    assert capsys.readouterr().out == first
    assert cli.run(["import", "log.jsonl", "--mapping", "kept.toml", "--deliver", "Nothing"]) == 2
    reads(capsys.readouterr().err)


@given(st.builds(
    Mapping,
    pattern=st.lists(st.text(st.characters(exclude_categories=["Cs"]))),
    send=st.text(st.characters(exclude_categories=["Cs"])),
    map=st.dictionaries(st.sampled_from(["process", "send.process", "x"]), st.text("a.{}\"'\\\n\x7f€😀")),
))  # fmt: skip
def test_a_kept_mapping_is_the_same_mapping(tmp_path_factory: pytest.TempPathFactory, mapping: Mapping) -> None:
    path = str(tmp_path_factory.getbasetemp() / "kept.toml")
    write_mapping(mapping, path)
    assert read_mapping(path) == mapping


@pytest.mark.parametrize(
    "arguments",
    [
        ["--send", "x", "--deliver", "y"],
        ["--map", "process=nid,message=m", "--send", "x", "--deliver", "y"],
        ["--map", "process=nid,message=m,kind=k", "--send", "x"],
        ["--map", "process", "--send", "x"],
        ["--map", "index=n", *_options],
        ["--map", "process=a{b", "--send", "x"],
        ["--map", "process=a,process=b"],
        ["--send", "(", *_options[:2], "--deliver", "y"],
        [*_options, "--others", "drop"],
        [*_options, "--index", "time"],
        [*_options, "--time", "fortnights"],
        [*_options, "--format", "zipkin"],
        [*_options, "--format", "text"],
        [*_options, "--pattern", "(?P<x>.)", "--format", "csv"],
        [*_options, "--pattern", "(?P<x>nothing like it)"],
        [*_options, "--instances"],
        [*_options, "--mapping", "gone.toml"],
        [*_options, "--mapping", "log.jsonl"],
        [*_options, "--save-mapping", "no/such/place"],
        ["--preview"],
        ["--map", _map, "--send", "Snd.*", "--deliver", "Receive.*"],
        ["--map", _map.replace("nid", "node"), *_options[2:]],
        ["--map", _map.replace("msg.id", "id"), *_options[2:]],
    ],
)
def test_what_cannot_be_done_is_one_clear_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str], reads: Snapshots
) -> None:
    Path("log.jsonl").write_text(_lines(_sent, _got))
    assert cli.run(["import", "log.jsonl", *arguments]) == 2
    said = capsys.readouterr()
    reads(said.err)
    assert len(said.err.splitlines()) == 1


def test_ids_that_differ_at_both_ends_are_shown(capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    Path("log.jsonl").write_text(_lines(_sent, _record(2, "ReceiveAppend", id="n1-7")))
    assert cli.run(["import", "log.jsonl", *_options]) == 0
    reads(capsys.readouterr().out)


def test_ids_sent_again_are_counted(capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    Path("log.jsonl").write_text(_lines(_sent, _sent, _got))
    assert cli.run(["import", "log.jsonl", *_options]) == 0
    reads(capsys.readouterr().out)


def test_a_pattern_that_backtracks_without_end_is_stopped(reads: Snapshots) -> None:
    Path("log.txt").write_text("fine\n" + "a" * 60 + "!\n")
    mapping = Mapping(
        map={"message": "process", "kind": "process"}, pattern="(?P<process>(a+)+)$", send="s", deliver="d"
    )
    before = Guard.__init__.__defaults__
    Guard.__init__.__defaults__ = (0.2,)
    try:
        with pytest.raises(UsageError) as caught:
            convert_mapped(["log.txt"], mapping)
        reads(str(caught.value))
    finally:
        Guard.__init__.__defaults__ = before


def test_a_line_at_the_bound_is_searched_and_a_longer_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "pattern_line_chars_max", 20)
    Path("log.txt").write_text(f"a s 1{'.' * 15}\nb d 1{'.' * 16}\nb d 1\n")
    mapping = Mapping(pattern=r"^(?P<process>\w) (?P<kind>\w) (?P<message>\d)", send="s", deliver="d")
    report = convert_mapped(["log.txt"], mapping)
    assert (report["sends"], report["deliveries"], report["unreadable"]) == (1, 1, 1)
    assert report["unreadable_first"] == ["log.txt:2: longer than 20 characters"]


def test_the_bounds_of_an_import(monkeypatch: pytest.MonkeyPatch, reads: Snapshots) -> None:
    Path("log.jsonl").write_text(_lines(_sent, _got))
    monkeypatch.setattr(limits, "foreign_events_max", 2)
    assert convert_mapped(["log.jsonl"], _mapping)["events"] == 2
    monkeypatch.setattr(limits, "foreign_events_max", 1)
    with pytest.raises(TraceError) as caught:
        convert_mapped(["log.jsonl"], _mapping)
    reads(str(caught.value))
    write_mapping(_mapping, "kept.toml")
    size = Path("kept.toml").stat().st_size
    monkeypatch.setattr(limits, "mapping_bytes_max", size)
    assert read_mapping("kept.toml") == _mapping
    monkeypatch.setattr(limits, "mapping_bytes_max", size - 1)
    with pytest.raises(TraceError) as caught:
        read_mapping("kept.toml")
    reads(str(caught.value))


def test_many_different_kinds_are_not_all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "mapped_kinds_max", 2)
    report, _ = _run(_sent, _got, *(_record(1, f"tick {n}") for n in range(4)), _record(1, "tick 0"))
    assert report["kinds"]["local"] == {"tick 0": 2, "tick 1": 1}


@pytest.mark.parametrize(
    ("value", "form", "wanted"),
    [
        (1_700_000_000, "auto", 1_700_000_000 * 10**9),
        (1_700_000_000_123, "auto", 1_700_000_000_123 * 10**6),
        (1_700_000_000_123_456_789, "auto", 1_700_000_000_123_456_789),
        ("1700000000.123456789", "auto", 1_700_000_000_123_456_789),
        (12, "ms", 12_000_000),
        ("0.5", "s", 500_000_000),
        ("1970-01-01T00:00:01.123456789Z", "auto", 1_123_456_789),
        ("1970/01/01 00:00:01,5", "auto", 1_500_000_000),
        ("1970-01-01 01:00:01+01:00", "auto", 1_000_000_000),
        ("1970-01-01T00:00", "auto", 0),
        ("01.01.1970 00:00:02", "%d.%m.%Y %H:%M:%S", 2_000_000_000),
        ("1970-13-01T00:00:00", "auto", None),
        ("soon", "auto", None),
        (True, "auto", None),
        (float("nan"), "auto", None),
        (10**30, "auto", None),
        (None, "auto", None),
    ],
)
def test_times(value: Any, form: str, wanted: int | None) -> None:
    assert nanoseconds(value, form) == wanted


_any: Callable[..., Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@given(st.lists(st.dictionaries(st.sampled_from(["nid", "event", "x"]), _any | st.dictionaries(st.just("name"), _any))))
def test_no_record_is_more_than_one_clear_line(tmp_path_factory: pytest.TempPathFactory, records: list[Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_text(_lines(*records, _sent, _got))
    report = convert_mapped([path], _mapping)
    assert report["records"] + report["unreadable"] == len(records) + 2


@given(st.binary(max_size=200))
def test_no_bytes_are_more_than_one_clear_line(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.bin"
    path.write_bytes(data)
    pattern = Mapping(pattern=r"(?P<process>\w+) (?P<message>\w+)", send="s", deliver="d")
    for mapping in (_mapping, pattern):
        with suppress(AntecedeError):
            convert_mapped([path], mapping)


def test_a_plan_takes_groups_for_columns() -> None:
    plan = Plan(Mapping(pattern=r"(?P<process>.)(?P<kind>.)(?P<message>.)", send="s", deliver="d"))
    assert sorted(plan.values["send."]) == ["message", "process"]


def test_named_groups_of_a_kind_are_fields() -> None:
    pairs = pairs_of(["process=p,kind=k,message={what}-{id}"])
    mapping = Mapping(map=pairs, send="(?P<what>.*)Sent", deliver="(?<what>.*)Received")
    rows = [{"p": "a", "k": f"{what}Sent", "id": 1} for what in ("Block", "Vote")]
    report, events = _run(*rows, {"p": "b", "k": "VoteReceived", "id": 1}, mapping=mapping)
    assert (report["sent_again"], report["matched"]) == (0, 1)
    assert [event[3] for event in events] == ["Block-1", "Vote-1", "Vote-1"]
