"""Reading and writing: both formats, every way to name a trace, and files that are damaged."""

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from antecede import limits
from antecede.errors import TraceError, UsageError
from antecede.trace import Event, Fault, Metadata, TraceWriter, files, load, read_events, write_trace
from helpers.snapshots import Snapshots

_events = [
    Event("a", 0, "send", "m", ("b", "c"), time=5, clock={"z": 1, "a": 1}, extra={"z": 1, "b": [{"y": 1, "x": None}]}),
    Event("b", 0, "arrive", "m", stamp_bytes=3),
    Event("b", 1, "deliver", "m", dead=True, lamport=2),
    Event("a", 1, "send", "n", ()),
    Event("a", 2, "local", type="begin", instance="i"),
    Event("s", 0, "hop", "m", domain="D", hop=1),
]
_line = b'{"process":"a","index":%d,"kind":"local"}\n'


def _read(data: bytes) -> list[Any]:
    return [said for _, _, said in files.read_jsonl(io.BufferedReader(io.BytesIO(data)))]  # type: ignore[arg-type]


def _reasons(data: bytes) -> list[str]:
    return [f"{said.reason}: {said.detail}" if isinstance(said, Fault) else "fine" for said in _read(data)]


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.parquet"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    metadata = Metadata(order="matrix", recorded_by="a test")
    assert write_trace(tmp_path / name, _events, metadata) == len(_events)
    assert read_events([tmp_path / name]) == (_events, [metadata])
    assert read_events([str(tmp_path)])[0] == _events
    first = (tmp_path / name).read_bytes()
    write_trace(tmp_path / name, _events, metadata)
    assert (tmp_path / name).read_bytes() == first


def test_lines_are_compact_and_in_the_order_of_the_schema() -> None:
    assert files.encode(_events[0]) == (
        b'{"process":"a","index":0,"kind":"send","message":"m","to":["b","c"],"time":5,"clock":{"a":1,"z":1},'
        b'"b":[{"x":null,"y":1}],"z":1}'
    )
    assert files.encode(_events[3]) == b'{"process":"a","index":1,"kind":"send","message":"n","to":[]}'


def test_a_trace_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def fail() -> None:
        with TraceWriter(tmp_path / "t.jsonl.gz") as trace:
            trace.write(_events[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_the_ending_decides(tmp_path: Path, reads: Snapshots) -> None:
    with pytest.raises(UsageError) as caught:
        TraceWriter(tmp_path / "t.txt")
    reads(str(caught.value))
    with pytest.raises(TraceError) as caught:
        TraceWriter(tmp_path / "no" / "t.jsonl")
    reads(str(caught.value))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "unreadable_line: not JSON"),
        (b"[1]", "unreadable_line: not a JSON object"),
        (b'"x"', "unreadable_line: not a JSON object"),
        (b'{"process":"a","index":NaN,"kind":"local"}', "unreadable_line: not JSON"),
        (b'{"process":"a","index":1e999,"kind":"local"}', "unreadable_line: not JSON"),
        (b'{"process":"a","process":"b","index":0,"kind":"local"}', "unreadable_line: key 'process' is given twice"),
        (b'{"process":"a","index":0,"kind":"local","x":{"y":1,"y":1}}', "unreadable_line: key 'y' is given twice"),
        (b'{"process":"\xff","index":0,"kind":"local"}', "unreadable_line: not JSON"),
        (b'{"process":"\\ud800","index":0,"kind":"local"}', "unreadable_line: not JSON"),
        (b'{"process":"a\x00","index":0,"kind":"local"}', "unreadable_line: not JSON"),
        (b'{"x":' + b"[" * 100_000, "unreadable_line: not JSON"),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "unreadable_line: not JSON"),
        (b'{"process":"a","index":' + b"9" * 5_000 + b',"kind":"local"}', "unreadable_line"),
        (b'{"process":"a","index":12345678901234567890,"kind":"local"}', "wrong_type: index must be an int64"),
        (b'{"process":"a:b","index":0,"kind":"local"}', "fine"),
        (b'{"process":"a\\u0000","index":0,"kind":"local"}', "fine"),
    ],
)
def test_lines_that_are_no_rows(line: bytes, said: str) -> None:
    """Each alone costs nothing but itself: the lines around it are read."""
    reasons = _reasons(_line % 1 + line + b"\n" + _line % 2)
    assert reasons[::2] == ["fine", "fine"]
    assert reasons[1].startswith(said)


def test_blank_lines_carriage_returns_and_a_byte_order_mark() -> None:
    data = b"\xef\xbb\xbf" + _line % 0 + b"\n  \r\n" + (_line % 1).replace(b"\n", b"\r\n") + (_line % 2).rstrip()
    numbered = [(number, said.index) for number, _, said in files.read_jsonl(io.BufferedReader(io.BytesIO(data)))]  # type: ignore[arg-type, union-attr]
    assert numbered == [(1, 0), (4, 1), (5, 2)]


def test_a_line_at_the_bound_and_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "trace_line_bytes_max", len(_line % 0))
    monkeypatch.setattr(limits, "raw_text_bytes_max", 9)
    data = _line % 0 + b"x" * 3_000_000 + b"\n" + _line % 10 + _line % 1
    items = list(files.read_jsonl(io.BufferedReader(io.BytesIO(data))))  # type: ignore[arg-type]
    assert [number for number, _, _ in items] == [1, 2, 3, 4]
    assert [isinstance(said, Fault) for _, _, said in items] == [False, True, True, False]
    assert {len(raw) for _, raw, _ in items} == {9}


@pytest.mark.parametrize("cut", [5, 40, -9, -4])
def test_a_torn_gzip_stream(cut: int) -> None:
    lines = b"".join(_line % i for i in range(1_000))
    said = _read(gzip.compress(lines)[:cut])
    assert isinstance(said[-1], Fault)
    assert "torn gzip" in said[-1].detail
    assert all(isinstance(event, Event) for event in said[:-1])
    broken = bytearray(gzip.compress(lines))
    broken[len(broken) // 2] ^= 255
    assert any(isinstance(event, Fault) for event in _read(bytes(broken)))


def _write(path: Path, *events: Event) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_trace(path, events)


def test_directories_patterns_and_files_named_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: Snapshots
) -> None:
    for i, name in enumerate(["x/b.jsonl", "x/a.jsonl.gz", "x/deep/c.jsonl", "x/.hidden.jsonl", "x/_tmp/d.jsonl"]):
        _write(tmp_path / name, Event("p", i, "local"))
    (tmp_path / "x" / "notes.txt").write_text("no trace")
    (tmp_path / "x" / "antecede.json").write_text('{"schema": 1, "order": "fifo"}')
    monkeypatch.chdir(tmp_path)

    def indices(*paths: str) -> list[int]:
        return [event.index for event in read_events(paths)[0]]

    assert indices("x") == [1, 0, 2]
    assert indices("x/*.jsonl") == [0]
    assert indices("x/b.jsonl", str(tmp_path / "x"), "x/b.jsonl") == [0, 1, 2]
    assert read_events(["x"])[1] == [Metadata(order="fifo")]
    for wrong in ("no", "no*", "a\0b"):
        with pytest.raises(TraceError) as caught:
            read_events([wrong])
        reads(str(caught.value))
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError) as caught:
        read_events(["empty"])
    reads(str(caught.value))


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(gzip.compress(_line % 0)))))  # type: ignore[arg-type]
    loaded = load(["-"], keep_raw=True)
    assert loaded.events == [Event("a", 0, "local")]
    assert loaded.describe(0, "why").file == "<stdin>"


def test_parquet_is_as_strict(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "process": pa.array(["a", None, "a"]),
            "index": pa.array([0.0, 1.0, 2.0]),
            "kind": pa.array(["local"] * 3),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    assert load([tmp_path / "t.parquet"]).reasons == {"wrong_type": 2, "missing_field": 1}
    struct = pa.array([{"a": 1, "b": None}], pa.struct([("a", pa.int64()), ("b", pa.int64())]))
    table = pa.table({"process": ["a"], "index": [0], "kind": ["local"], "clock": struct, "when": [1.5]})
    pq.write_table(table, tmp_path / "t.parquet")
    assert load([tmp_path / "t.parquet"]).events == [Event("a", 0, "local", clock={"a": 1}, extra={"when": 1.5})]
    name = pa.array([b"ok", b"\xff"]).view(pa.binary()).cast(pa.binary())
    text = pa.Array.from_buffers(pa.string(), 2, name.buffers())
    pq.write_table(pa.table({"process": text, "index": [0, 1], "kind": ["local"] * 2}), tmp_path / "t.parquet")
    assert load([tmp_path / "t.parquet"]).reasons == {"unreadable_line": 1}


def test_columns_that_nobody_looks_at_cost_no_row(tmp_path: Path, reads: Snapshots) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    far = pa.array([2**62], pa.timestamp("us"))
    pq.write_table(pa.table({"process": ["a"], "index": [0], "kind": ["local"], "when": far}), tmp_path / "t.parquet")
    assert load([tmp_path / "t.parquet"]).events == [Event("a", 0, "local")]
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array([0]), pa.array([1])], ["process", "index", "index"])
    pq.write_table(twice, tmp_path / "t.parquet")
    with pytest.raises(TraceError) as caught:
        load([tmp_path / "t.parquet"])
    reads(str(caught.value))


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" * 10, b"no parquet at all"])
def test_files_that_are_no_parquet(tmp_path: Path, data: bytes, reads: Snapshots) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "t.parquet").write_bytes(data)
    with pytest.raises(TraceError) as caught:
        load([tmp_path / "t.parquet"])
    reads(str(caught.value))


def test_folded_columns_are_read_alike_column_by_column_and_row_by_row(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    others: list[dict[str, Any] | None] = [{"source": "a.log:7"}, None, {"x": [1, {"y": None}]}]
    for more in ({"source": ""}, {"Process": "b"}, {"TIME": 3}):
        events = [Event("a", at, "send", f"m{at}", ("b",), at, extra=extra) for at, extra in enumerate([*others, more])]
        write_trace(tmp_path / "t.parquet", events)
        assert load([tmp_path / "t.parquet"]).events == load([tmp_path / "t.parquet"], keep_raw=True).events


def test_parquet_without_pyarrow_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: Snapshots
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    for act in (lambda: load([tmp_path / "t.parquet"]), lambda: TraceWriter(tmp_path / "u.parquet")):
        with pytest.raises(TraceError) as caught:
            act()
        reads(str(caught.value))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.parquet"]


@pytest.mark.parametrize("beside", [True, False])
def test_a_newer_schema_is_refused(tmp_path: Path, beside: bool, reads: Snapshots) -> None:
    _write(tmp_path / "t.jsonl", Event("a", 0, "local"))
    name = "t.jsonl.meta.json" if beside else "antecede.json"
    (tmp_path / name).write_text(json.dumps({"schema": 2}))
    with pytest.raises(TraceError) as caught:
        load([tmp_path])
    reads(str(caught.value))


_values = (
    '"p"',
    '""',
    '"a:b"',
    '"\\ud83d\\ude00"',
    "0",
    "7",
    "-1",
    "1.0",
    "true",
    "null",
    "[]",
    '["q","p","q"]',
    "9" * 19,
    "9" * 30,
)


@pytest.mark.parametrize("name", ["process", "index", "kind", "message", "to", "time", "note", "Process", "extra"])
def test_the_short_way_of_reading_a_line_says_the_same(name: str) -> None:
    """Lines with the usual columns are decoded at once; whatever else is in a line is found all the same."""
    base = {"process": '"p"', "index": "3", "message": '"m"'}
    for kind in ('"send"', '"deliver"', '"local"', '"hop"', '"sent"'):
        for value in _values:
            for line in (base | {"kind": kind, name: value}, base | {"kind": kind, "time": "5", name: value}):
                pairs = [f'"{key}":{text}' for key, text in line.items()]
                for text in (pairs, [*pairs, f'"{name}":{value}'], [pair for pair in pairs if "message" not in pair]):
                    raw = ("{" + ",".join(text) + "}").encode()
                    assert files.decode(raw) == files._decode_any(raw), raw


_odd_columns: dict[str, list[Any]] = {
    "process": ["p", None, "q"],
    "index": [0, -1, 2],
    "kind": ["send", "sent", "hop"],
    "message": ["m", None, "n"],
    "to": [["q", "p", "q"], None, []],
    "time": [None, -5, 7],
    "lamport": [1, None, 3],
    "note": ["x", None, None],
}


@pytest.mark.parametrize("odd", [None, *_odd_columns])
@pytest.mark.parametrize("rows", [slice(0, 3), slice(1, 3), slice(2, 3), slice(0, 0)])
def test_reading_parquet_by_columns_says_the_same(
    odd: str | None, rows: slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch with nothing odd in it is read column by column, any other one row by row: both say the same."""
    pa = pytest.importorskip("pyarrow")
    plain: dict[str, list[Any]] = {
        "process": ["p", "q", "p"],
        "index": [0, 4, 2],
        "kind": ["send", "local", "deliver"],
        "message": ["m", None, "n"],
        "to": [["q", "p", "q"], None, None],
        "time": [None, 3, None],
    }
    table = plain | ({odd: _odd_columns[odd]} if odd else {})
    # A slice has offsets into its columns, which nothing may forget.
    batch = pa.RecordBatch.from_pydict(table)[rows]
    found = list(files.items_in(batch, (), 1, False))
    if odd in (None, "to", "time") and batch.num_rows:
        assert files._plain_events(pa, batch, ()) is not None
    monkeypatch.setattr(files, "_plain_events", lambda pa, batch, folded: None)
    assert found == list(files.items_in(batch, (), 1, False))
    assert len(found) == batch.num_rows
