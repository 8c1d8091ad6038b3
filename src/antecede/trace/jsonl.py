"""JSON Lines: one event per line, plain or gzipped.

**Reading** yields an :class:`Event` for each line that is not blank, or a :class:`Fault` for a line that is not an
event. Only errors of the file system itself are raised here. A line is *unreadable* in these cases:

* It is longer than ``trace_line_bytes_max``. Such a line is read in small pieces and skipped.
* It is not UTF-8, or not a standard JSON object. NaN and unescaped control characters are not standard.
* It is nested too deeply, or has a key twice. (Other readers would keep the first value of this key, or the last one.)

If a gzip stream is damaged or incomplete, everything before the damage is read. The rest counts as one unreadable line.
A byte order mark at the beginning of a file is skipped.

**Writing** gives the same bytes for the same events. The keys of the schema come first, in the order of the schema.
Then the extra keys follow, sorted by name. The entries of maps are sorted by name. Absent fields and white space are
left out.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from io import BufferedReader
from sys import intern
from typing import Annotated, Any, BinaryIO, Literal, cast

import msgspec

from antecede import limits
from antecede.trace.schema import INT64_MAX, INT64_MIN, Event, Fault, destinations, event_of

_gzip_magic = b"\x1f\x8b"
_byte_order_mark = b"\xef\xbb\xbf"
_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder()


class _Row(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A line that has only the most common columns, so that it can be decoded fast. Decoding checks the types of the
    values, but does not find repeated keys."""

    process: str
    index: Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
    kind: Literal["send", "deliver", "arrive"]
    message: str
    to: tuple[str, ...] | None = None
    time: Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)] | None = None
    stamp_bytes: Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)] | None = None
    notification: str | None = None
    label: str | None = None
    held: bool | None = None
    source: str | None = None
    """The file and line of the imported log from which the row was made."""


_row_decoder = msgspec.json.Decoder(_Row)

Item = tuple[int, bytes, Event | Fault]
"""One line of a trace as three values: its number (from 1), its bytes, and its event. If there are too many bytes, only
the first bytes are kept. If the line is not an event, the third value is a fault."""


def encode(event: Event) -> bytes:
    """Return an event as one line, without the line break."""
    if not event.extra:
        return _encoder.encode(event)
    # First the keys of the schema, in its order; then the extra keys, sorted by name.
    return _encoder.encode(msgspec.structs.replace(event, extra=None))[:-1] + b"," + _encoder.encode(event.extra)[1:]


def decode(line: bytes) -> Event | Fault:
    """Return the event in a line, or a fault if the line is not an event."""
    try:
        plain = _row_decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError):
        return _decode_any(line)
    # Every key has its colon, so as many colons as columns prove that no key was there twice.
    colons = 4 + (plain.to is not None) + (plain.time is not None)
    colons += (plain.stamp_bytes is not None) + (plain.held is not None)
    texts = [text for text in (plain.notification, plain.label, plain.source) if text is not None]
    if texts:
        if b"\\" in line:
            # A colon may be written as an escape.
            return _decode_any(line)
        colons += len(texts) + sum(text.count(":") for text in texts)
    if line.count(b":") != colons:
        return _decode_any(line)
    to = plain.to
    if to is not None:
        to = destinations(to)
    process = intern(plain.process)
    if plain.notification is None and plain.stamp_bytes is None and plain.held is None and not texts:
        return Event(process, plain.index, plain.kind, plain.message, to, plain.time)
    return Event(
        process,
        plain.index,
        plain.kind,
        plain.message,
        to,
        plain.time,
        stamp_bytes=plain.stamp_bytes,
        notification=None if plain.notification is None else intern(plain.notification),
        label=plain.label,
        held=plain.held,
        extra=None if plain.source is None else {"source": plain.source},
    )


def content(event: Event) -> bytes:
    """Return a row as bytes, without the texts for people (``notification``, ``label``) and without extra columns. If
    these bytes are equal for two rows, the second row is treated as a repeat of the first."""
    return encode(msgspec.structs.replace(event, extra=None, notification=None, label=None))


def _decode_any(line: bytes) -> Event | Fault:
    """Decode a line that may have any columns, not only those of :class:`_Row`. Return its event, or a fault if the
    line is not an event."""
    try:
        row = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError) as error:
        return Fault("unreadable_line", f"not JSON: {error}")
    if type(row) is not dict:
        return Fault("unreadable_line", "not a JSON object")
    clock = row.get("clock")
    keys = len(row) + (len(clock) if type(clock) is dict else 0)
    if line.count(b":") != keys and (twice := _key_given_twice(line)) is not None:
        return Fault("unreadable_line", f"key {twice!r} is given twice")
    return event_of(row)


class _GivenTwiceError(Exception):
    pass


def _distinct(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise _GivenTwiceError(key)
        seen.add(key)


def _key_given_twice(line: bytes) -> str | None:
    try:
        json.loads(line, object_pairs_hook=_distinct, parse_int=str, parse_float=str)
    except _GivenTwiceError as error:
        return cast(str, error.args[0])[:40]
    except (ValueError, RecursionError):
        return "?"
    return None


def read(stream: BinaryIO) -> Iterator[Item]:
    """Yield an item for each line of a buffered stream of bytes. The stream may be gzipped."""
    if cast(BufferedReader, stream).peek(2)[:2] == _gzip_magic:
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=stream, mode="rb"))
    number = 0
    bound = limits.trace_line_bytes_max
    while True:
        try:
            line = stream.readline(bound + 1)
            whole = len(line) <= bound
            ended = whole or line.endswith(b"\n")
            while not ended:
                rest = stream.readline(1 << 20)
                ended = not rest or rest.endswith(b"\n")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            yield number + 1, b"", Fault("unreadable_line", f"torn gzip stream: {error}")
            return
        if not line:
            return
        number += 1
        if number == 1:
            line = line.removeprefix(_byte_order_mark)
        if not whole:
            yield number, line[: limits.raw_text_bytes_max], Fault("unreadable_line", f"longer than {bound} bytes")
        elif text := line.strip(b" \t\r\n"):
            yield number, text[: limits.raw_text_bytes_max], decode(text)
