"""Rows and metadata: strict types, what absence means, and the words for what is wrong."""

from typing import Any

import pytest

from antecede.errors import TraceError
from antecede.trace import NEEDED, Event, Fault, Mended, Metadata, Nulled, event_of, metadata_bytes, metadata_of
from helpers.snapshots import Snapshots

_good: dict[str, Any] = {"process": "a", "index": 0, "kind": "send", "message": "m", "to": ["b"]}


def _reason(**changes: Any) -> str:
    said = event_of(_good | changes)
    return said.reason if isinstance(said, Fault) else "fine"


def test_a_row_becomes_an_event() -> None:
    everything = {
        "time": -1,
        "lamport": 2,
        "clock": {"a": 1},
        "stamp_bytes": 3,
        "domain": "D",
        "hop": 4,
        "instance": "i",
        "operation": "o",
        "parent": "p",
        "type": "request",
        "dead": True,
        "replays": "r",
    }
    said = event_of(_good | everything | {"colour": [1]})
    assert said == Event("a", 0, "send", "m", ("b",), **everything, extra={"colour": [1]})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["process", "index", "kind", "message"])
def test_null_is_absent(name: str) -> None:
    assert _reason(**{name: None}) == "missing_field"
    row = {key: value for key, value in _good.items() if key != name}
    assert isinstance(said := event_of(row), Fault)
    assert (said.reason, said.detail) == ("missing_field", f"no {name}")


@pytest.mark.parametrize("kind", ["send", "arrive", "deliver", "hop"])
def test_kinds_with_a_message(kind: str) -> None:
    assert _reason(kind=kind) == "fine"
    assert _reason(kind=kind, message=None) == "missing_field"


def test_a_local_event_has_no_message() -> None:
    assert _reason(kind="local", message=None) == "fine"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("process", [1, True, ["a"], {}]),
        ("index", [1.0, True, "0", -1, 2**63]),
        ("kind", [1, ["send"], {}]),
        ("message", [1, 1.5, False, ["m"]]),
        ("to", ["b", [1], ["b", None], {"b": 1}, 0]),
        ("time", ["0", 1.0, True, 2**63, -(2**63) - 1]),
        ("lamport", [1.0, "1"]),
        ("clock", [[["a", 1]], {"a": 1.0}, {"a": True}, {"a": None}, {"a": 2**63}, 5]),
        ("stamp_bytes", [1.5, False]),
        ("hop", ["1", 0.0]),
        ("dead", [1, "true"]),
        ("domain", [1]),
        ("instance", [1]),
        ("operation", [1]),
        ("parent", [1]),
        ("type", [1]),
        ("replays", [1]),
    ],
)
def test_types_are_strict(name: str, values: list[Any]) -> None:
    """A wrong type costs the row where every verdict needs the column, else the value alone."""
    for value in values:
        said = event_of(_good | {name: value})
        if name in NEEDED:
            assert isinstance(said, Fault)
            assert said.reason == "wrong_type"
        else:
            assert isinstance(said, Mended)
            assert getattr(said, name) is None
            ((column, detail),) = said.nulled
            assert (column, detail.split(",")[0].partition(" must be ")[0]) == (name, name)
            counted = Nulled()
            assert type(counted.take(7, said)) is Event
            assert (counted.counts[name], counted.first[name]) == (1, (7, detail))
            strict = Nulled([name]).take(7, said)
            assert isinstance(strict, Fault)
            assert (strict.reason, strict.detail, strict.process, strict.index) == ("wrong_type", detail, "a", 0)


def test_names_in_other_case() -> None:
    plain = {key: value for key, value in _good.items() if key not in ("process", "index")}
    said = event_of(plain | {"Process": "a", "INDEX": 0})
    assert isinstance(said, Event)
    assert (said.process, said.index, said.extra) == ("a", 0, None)
    # The exact name counts, and of two others none.
    kept = event_of(_good | {"Process": "b"})
    assert isinstance(kept, Event)
    assert (kept.process, kept.extra) == ("a", {"Process": "b"})
    both = event_of({key: value for key, value in _good.items() if key != "process"} | {"Process": "b", "PROCESS": "c"})
    assert isinstance(both, Fault)
    assert both.detail == "no process"


@pytest.mark.parametrize("index", [0, 2**63 - 1])
def test_index_at_its_bounds(index: int) -> None:
    assert _reason(index=index) == "fine"


def test_reasons_come_in_their_order() -> None:
    assert _reason(kind="jump", message=None) == "unknown_kind"
    assert _reason(kind="jump", to="x") == "wrong_type"
    assert _reason(kind="jump", to="x", index=None) == "missing_field"


def test_a_fault_keeps_its_place_if_it_can_be_read() -> None:
    assert event_of(_good | {"to": "x"}) == Fault(
        "wrong_type", "to must be a list of strings, not 'x'", process="a", index=0, hop=False
    )
    assert isinstance(said := event_of(_good | {"index": 1.0}), Fault)
    assert (said.process, said.index) == (None, None)


def test_destinations_are_a_set() -> None:
    said = event_of(_good | {"to": ["c", "b", "c"]})
    assert isinstance(said, Event)
    assert said.to == ("b", "c")
    assert isinstance(said := event_of(_good | {"to": []}), Event)
    assert said.to == ()
    assert isinstance(said := event_of(_good | {"to": None}), Event)
    assert said.to is None


def test_metadata_round_trip() -> None:
    metadata = Metadata(order="pruned", conflicts={"a": ["b"]}, recorded_by="a test")
    assert metadata_of(metadata_bytes(metadata), "here") == metadata
    assert metadata_of(b"{}", "here") == Metadata()


@pytest.mark.parametrize(
    "text",
    [
        b'{"schema": 2}',
        b'{"schema": "1"}',
        b'{"schema": true}',
        b'{"schema": 0}',
        b"[]",
        b"{",
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_metadata_that_cannot_be_used(text: bytes, reads: Snapshots) -> None:
    with pytest.raises(TraceError) as caught:
        metadata_of(text, "here")
    reads(str(caught.value))
