"""One row of a trace, its strict types, and the metadata of a trace.

A trace is a set of events. Each event belongs to one sequential ``process``, and has one of five kinds. The events of a
process are numbered from 0; the number of an event is its ``index``. A message is sent once and delivered at most once
at each destination. Each event happened before the later events of its process, and each ``send`` happened before the
``deliver`` rows of its message. No order is assumed between a ``send`` and the ``arrive`` rows of its message. Rows of
kind ``hop`` are a router's own notes. Their ``process`` is a server, which numbers them separately. No verdict uses
them.

Types are strict in every file format: ``true`` is not an integer, ``1.0`` is not an index, a number is not a message,
and an integer beyond 64 bits is not valid. These rules decide the cases that the format leaves open:

* Every verdict needs the columns in :data:`NEEDED`. If a value in one of them has a wrong type, the row is set aside
  (not judged). In any other column of the schema, a value of a wrong type is treated as null, and such values are
  counted. Significant order needs some more columns (:data:`NEEDED_BY_INSTANCES`).
* A column name may be written in another case (``Process`` for ``process``), unless two names in one row would then
  mean the same column.
* ``null`` means absent, in every column (in Parquet there is no other way to leave out a value). A required column that
  is null is a ``missing_field``.
* Every column named here is checked on every row, even if the row's kind does not use it.
* A negative ``index`` is a ``wrong_type``: indices count from 0.
* A row of unknown kind needs no ``message``.
* Columns not named here are kept in ``extra`` and ignored. Two rows that differ only in these columns, or in the texts
  for people (``notification``, ``label``), are treated as the same row.

This module must not read or write files.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from sys import intern
from typing import Any, Final, TypeGuard

import msgspec

from antecede.errors import TraceError

SCHEMA: Final = 1
"""The number of the schema that this version writes. This is also the newest schema that it can read."""

SEND: Final = "send"
ARRIVE: Final = "arrive"
DELIVER: Final = "deliver"
LOCAL: Final = "local"
HOP: Final = "hop"
KINDS: Final = frozenset((SEND, ARRIVE, DELIVER, LOCAL, HOP))

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


class Event(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One row. The fields, in this order, are the keys of a written line. Absent fields are left out.

    A row never refers to another row. So ``gc=False`` is safe: Python's garbage collector does not search millions of
    rows for cycles.
    """

    process: str
    index: int
    kind: str
    message: str | None = None
    to: tuple[str, ...] | None = None
    """The destinations, without repeats. ``()``: the message has no destinations. ``None``: its destinations are
    unknown."""
    time: int | None = None
    lamport: int | None = None
    clock: dict[str, int] | None = None
    stamp_bytes: int | None = None
    domain: str | None = None
    hop: int | None = None
    instance: str | None = None
    operation: str | None = None
    parent: str | None = None
    type: str | None = None
    dead: bool | None = None
    replays: str | None = None
    assumed: bool | None = None
    """Whether an import had to assume this row's position in its process (see :mod:`antecede.trace.oracle`)."""
    notification: str | None = None
    """The name of the class of the message's content. It is for human readers; no verdict uses it."""
    label: str | None = None
    """A short text about the message. It is for human readers; no verdict uses it."""
    held: bool | None = None
    """On a ``deliver`` or ``hop`` row of a server: true if the server *held* the packet with this message. (The server
    did not process the packet at once, because it had to keep the order.)"""
    extra: dict[str, Any] | None = None
    """Columns that the schema does not name."""


class Fault(msgspec.Struct, frozen=True):
    """A row that cannot be read as an event: the reason, and its process and index if both could be read."""

    reason: str
    detail: str
    process: str | None = None
    index: int | None = None
    hop: bool = False


def _is_string(value: Any) -> bool:
    return type(value) is str


def _is_int64(value: Any) -> bool:
    return type(value) is int and INT64_MIN <= value <= INT64_MAX


def is_count(value: Any) -> TypeGuard[int]:
    """Return whether a value is an integer from 0 to 2**63 - 1. Indices and numbers of bytes must be in this range."""
    return type(value) is int and 0 <= value <= INT64_MAX


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_strings(value: Any) -> bool:
    return type(value) in (list, tuple) and all(type(item) is str for item in value)


def _is_clock(value: Any) -> bool:
    return type(value) is dict and all(type(key) is str and _is_int64(entry) for key, entry in value.items())


COLUMNS: Final = Event.__struct_fields__[:-1]
"""The columns that the schema names, in the order in which they are written."""

NUMBERS: Final = ("index", "time", "lamport", "stamp_bytes", "hop")
FLAGS: Final = ("dead", "assumed", "held")
"""The columns with true or false. (``NUMBERS`` are the columns with numbers. All other columns are texts, except ``to``
and ``clock``.)"""

_columns: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(COLUMNS, (_is_string, "a string")),
    **dict.fromkeys(NUMBERS, (_is_int64, "an int64")),
    **dict.fromkeys(FLAGS, (_is_bool, "true or false")),
    "index": (is_count, "an int64 from 0"),
    "to": (_is_strings, "a list of strings"),
    "clock": (_is_clock, "a map from string to int64"),
}

NEEDED: Final = ("process", "index", "kind", "message", "to")
"""Columns in which a value of a wrong type sets the row aside."""

NEEDED_BY_INSTANCES: Final = ("instance", "operation", "parent", "type")
"""The columns that only significant order needs. When this order is judged, a value of a wrong type in one of them sets
the row aside."""


class Mended(Event, frozen=True, omit_defaults=True, gc=False):
    """An event from a row in which values of a wrong type were dropped. Only the reader uses this class, to count the
    dropped values."""

    nulled: tuple[tuple[str, str], ...] = ()
    """One pair for each dropped value: the name of its column, and the error."""


class Nulled:
    """Counts, by column, the values of a wrong type that are treated as null. The argument ``used`` lists the columns
    that are needed. A value of a wrong type in a needed column is not counted; it sets the whole row aside."""

    def __init__(self, used: Collection[str] = ()) -> None:
        self._used = used
        self.counts: Counter[str] = Counter()
        self.first: dict[str, tuple[int, str]] = {}
        """For each column, the number of the first row with a value of a wrong type, and the text of this error."""

    def take(self, number: int, event: "Event | Fault") -> "Event | Fault":
        """Count the dropped values of a row and return its event. If one of the dropped values is in a needed column
        (``used`` in the constructor), count nothing and return a fault."""
        if type(event) is not Mended:
            return event
        for column, detail in event.nulled:
            if column in self._used:
                return Fault("wrong_type", detail, event.process, event.index, event.kind == HOP)
        for column, detail in event.nulled:
            self.counts[column] += 1
            self.first.setdefault(column, (number, detail))
        return Event(**{name: getattr(event, name) for name in Event.__struct_fields__})


def case_matched(names: Collection[str]) -> dict[str, str]:
    """Return the column names that are written in another case (``Process`` for ``process``), each with the correct
    name of the column. Leave out a name if another given name means the same column."""
    found: dict[str, list[str]] = {}
    for name in names:
        plain = name.lower()
        if name not in _columns and plain in _columns and plain not in names:
            found.setdefault(plain, []).append(name)
    return {variants[0]: plain for plain, variants in found.items() if len(variants) == 1}


def event_of(row: Mapping[str, Any]) -> Event | Fault:
    """Return the event in a row of a file, or a fault with the first error in the row."""
    if any(name not in _columns for name in row) and (other := case_matched(row.keys())):
        row = {other.get(name, name): value for name, value in row.items()}
    kind = row.get("kind")
    needed = ("process", "index", "kind", "message") if kind in _with_message else ("process", "index", "kind")
    for name in needed:
        if row.get(name) is None:
            return _fault("missing_field", f"no {name}", row)
    fields: dict[str, Any] = {}
    extra: dict[str, Any] | None = None
    nulled: list[tuple[str, str]] = []
    for name, value in row.items():
        column = _columns.get(name)
        if column is None:
            extra = {} if extra is None else extra
            extra[name] = value
        elif value is not None:
            if column[0](value):
                fields[name] = value
                continue
            detail = f"{name} must be {column[1]}, not {brief(value)}"
            if name in NEEDED:
                return _fault("wrong_type", detail, row)
            nulled.append((name, detail))
    if kind not in KINDS:
        return _fault("unknown_kind", f"kind {brief(kind)} is not one of {', '.join(sorted(KINDS))}", row)
    # Names repeat on every row; one shared copy of each keeps a large trace small.
    fields["process"] = intern(fields["process"])
    fields["kind"] = intern(fields["kind"])
    to = fields.get("to")
    if to is not None:
        fields["to"] = destinations(to)
    if nulled:
        return Mended(**fields, extra=extra, nulled=tuple(nulled))
    return Event(**fields, extra=extra)


def destinations(names: Collection[str]) -> tuple[str, ...]:
    """Return names in the form that ``Event.to`` has: sorted and without repeats."""
    return tuple(map(intern, names if len(names) < 2 else sorted(set(names))))


_with_message = (SEND, ARRIVE, DELIVER, HOP)


def _fault(reason: str, detail: str, row: Mapping[str, Any]) -> Fault:
    process, index = row.get("process"), row.get("index")
    placed = _is_string(process) and is_count(index)
    return Fault(reason, detail, process if placed else None, index if placed else None, row.get("kind") == HOP)


def brief(value: Any) -> str:
    """Return a value as error messages show it, in at most 40 characters."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


class Metadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """The metadata of a trace. Every entry is optional, and only the schema's number is checked here."""

    schema: int = SCHEMA
    order: Any = None
    topology: Any = None
    conflicts: Any = None
    recorded_by: Any = None
    assumed: Any = None
    """For an imported trace, the number of rows with an assumed position, by the reason for the assumption."""
    epochs: Any = None
    """A list of epochs. An epoch is a period with one topology (:mod:`antecede.trace.epochs`)."""


def metadata_of(text: bytes, where: str) -> Metadata:
    """Read a metadata document. ``where``: the text that names the document in an error message."""
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{where}: metadata is not JSON: {error}") from None
    if type(document) is not dict:
        raise TraceError(f"{where}: metadata must be a JSON object")
    schema = document.get("schema", SCHEMA)
    if not _is_int64(schema) or schema < 1:
        raise TraceError(f"{where}: metadata: schema must be a whole number, 1 or more, not {brief(schema)}")
    if schema > SCHEMA:
        raise TraceError(f"{where}: trace schema {schema} is newer than {SCHEMA}, the newest that this version reads")
    return Metadata(schema, **{name: document.get(name) for name in Metadata.__struct_fields__[1:]})


def metadata_bytes(metadata: Metadata) -> bytes:
    """Return the metadata as a JSON document. Equal metadata give equal bytes."""
    document = {name: value for name, value in msgspec.structs.asdict(metadata).items() if value is not None}
    return msgspec.json.encode(document, order="deterministic")
