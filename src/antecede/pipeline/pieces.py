"""The structs of arrays that the stages of the pipeline pass to each other. A tag in the encoded struct shows its type.

A *bucket* has all rows of some messages, and a *line* has all events of one process. A *piece* contains the valid rows
of a bucket. Lines are assembled from pieces. If the trace is large, its lines are divided into *regions*. In this case
the sends and deliveries of a bucket are not in its piece. They are in :class:`Region` structs, one for each region. The
piece then contains only the clocks and the other data of the bucket. The counts of a bucket are a separate struct.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import Bytes, Ints

# The format of the data that one stage of the pipeline passes to the next: bytes that contain arrays. Pickle is not
# used.


def pack(arrays: dict[str, Any]) -> bytes:
    """Encode a dictionary of arrays and plain values as bytes."""
    encoded: dict[str, Any] = {}
    for name, value in arrays.items():
        if isinstance(value, np.ndarray):
            encoded[name] = [value.dtype.str, np.ascontiguousarray(value).data.cast("B") if value.size else b""]
        else:
            encoded[name] = [None, value]
    return msgspec.msgpack.encode(encoded)


def unpack(packed: bytes) -> dict[str, Any]:
    """Return the values that :func:`pack` encoded."""
    decoded = msgspec.msgpack.decode(packed)
    return {name: value if kind is None else np.frombuffer(value, kind) for name, (kind, value) in decoded.items()}


def pack_struct(one: msgspec.Struct) -> bytes:
    """Return the bytes of a struct; its fields may contain arrays."""
    return msgspec.msgpack.encode(one, enc_hook=_plain)


def decoder(kinds: Any) -> Callable[[bytes], Any]:
    """Return a function that decodes structs encoded by :func:`pack_struct`. If ``kinds`` has several types, the
    function finds the type of a struct by its tag."""
    return msgspec.msgpack.Decoder(kinds, dec_hook=_array).decode


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [value.dtype.str, np.ascontiguousarray(value).data.cast("B") if value.size else b""]
    raise NotImplementedError(f"cannot pack {type(value).__name__}")


def _array(_: Any, value: Any) -> Any:
    kind, data = value
    return np.frombuffer(data, kind)


Longs = NDArray[Any]
"""An array of indices, with 32 or 64 bits for each index. The indices of sends and deliveries can have 32 bits, unless
the indices of a process have large gaps. All other indices have 64 bits."""


REGION_EVENTS = 1 << 23
"""The number of events in a region. The lines (the events of each process, in sequence) are processed one region at a
time. The lines have two arrays, ``source`` and ``argument``. For one region, the two arrays together need 64 MiB."""


class Places(msgspec.Struct):
    """Events, given by their places (process and index)."""

    process: Ints
    index: Longs

    def narrowed(self) -> "Places":
        """Return the same places with indices of 32 bits."""
        return Places(self.process, self.index.astype(np.int32))


class Deliveries(Places):
    """Deliveries, each with the place of its send."""

    source: Ints
    sent: Longs

    def some(self, rows: Any) -> "Deliveries":
        """Return the deliveries at the positions ``rows`` of the arrays."""
        return Deliveries(self.process[rows], self.index[rows], self.source[rows], self.sent[rows])

    def narrowed(self) -> "Deliveries":
        """Return the same deliveries with indices of 32 bits."""
        return Deliveries(self.process, self.index.astype(np.int32), self.source, self.sent.astype(np.int32))


class Lamports(Places):
    """Rows that have a number (``value``), which is the Lamport clock or the time of the row. Rows without this number
    are left out."""

    value: Longs


class Clocks(Places):
    """The vector clock of each row that has one. ``size`` has the number of entries of each clock. ``name`` and
    ``entry`` have the entries of all clocks, one clock after the other."""

    size: Longs
    name: Ints
    entry: Longs


class Instances(Places):
    """The operation instances that are recorded in the rows of a bucket. ``instance``, ``operation`` and ``parent`` are
    positions in the lists ``instances``, ``operations`` and ``parents``; -1 means that the row has no such value."""

    kind: Bytes
    type: Bytes
    instance: Ints
    operation: Ints
    parent: Ints
    instances: list[str]
    operations: list[str]
    parents: list[str]


class Piece(msgspec.Struct, tag="piece"):
    """The valid rows of a bucket."""

    deliveries: Deliveries
    sends: Places | None = None
    """The places of sends without a delivery. The places of all other sends are in ``deliveries``."""
    lamport: Lamports | None = None
    clocks: Clocks | None = None
    assumed: Places | None = None
    """Rows of an imported trace. The import had to assume the positions of these rows in their processes."""
    instances: Instances | None = None

    def places(self) -> Iterator[Places]:
        """Yield all places in this piece."""
        for one in (self.sends, self.deliveries, self.lamport, self.clocks, self.instances):
            if one is not None:
                yield one
        yield Places(self.deliveries.source, self.deliveries.sent)


class Region(msgspec.Struct, tag="region"):
    """The sends and deliveries of one bucket in one region (a part of the joined lines of all processes)."""

    number: int
    first: int
    """The position at which the region begins in the joined lines (the events of the first process, then the events of
    the second process, and so on). In this struct, the place of an event is its position in the joined lines minus
    ``first``."""
    mark: int
    """A number that identifies the bucket: the hash of one of its message ids."""
    sent: Ints
    """The place of each send. ``copies`` has the number of deliveries of each send."""
    copies: NDArray[Any]
    delivered: Ints
    """The place of each delivery. ``source`` has the sender of each delivered message. ``argument`` has the position of
    the send among the events of its sender."""
    source: NDArray[Any]
    argument: Ints


class Counted(msgspec.Struct, tag="counted"):
    """The counts of messages, deliveries and invalid rows, for one bucket or as the sum of several buckets."""

    reasons: dict[str, int]
    messages: int
    deliveries: int
    undelivered: int
    named: Bytes
    """One bit for each name: whether it is a destination of a valid send."""


class LatePlaces(msgspec.Struct):
    """Late deliveries. For each delivery there are three places (process and index): the place of the delivery, the
    place of its send, and the place of the send of the overtaking message. If several messages overtook the late
    message, the overtaking message is the one that was delivered first."""

    process: Longs
    index: Longs
    source: Longs
    send_index: Longs
    over_process: Longs
    over_index: Longs
    order: str = ""
    """The order that these deliveries break. It is set only if the same output part may also have deliveries that
    break another order."""

    def at(self, row: int) -> "LatePlaces":
        """Return the late delivery with this number, as a struct that contains only this delivery."""
        one = slice(row, row + 1)
        over = (self.over_process[one], self.over_index[one])
        return LatePlaces(self.process[one], self.index[one], self.source[one], self.send_index[one], *over, self.order)


class Clocked(msgspec.Struct):
    """The result of the check of recorded vector clocks, in the form of the report."""

    checked: int = 0
    disagree: int = 0
    rule: str | None = None


class Lamported(msgspec.Struct):
    """The result of the check of recorded Lamport clocks, in the form of the report."""

    checked: int = 0
    disagree: int = 0
    used: bool = False


class Judged(msgspec.Struct):
    """The verdicts on a trace, or on one chunk of it: counts, and events given by their places (process and index). For
    an order that was not requested, the number of late deliveries is 0."""

    circular: Places
    """The deliveries that were excluded because they are part of a cycle: according to the trace, such a delivery
    happened before its own send."""
    counted: Counted | None = None
    """The sum of the counts of all buckets; ``None`` in a chunk."""
    fifo_late: int = 0
    fifo_undecided: int = 0
    causal_late: int = 0
    causal_undecided: int = 0
    first: LatePlaces | None = None
    """The delivery that is late under causal order and has the smallest index; if there are several, the one with the
    smallest process number."""
    pairwise: bool = True
    cycle: Places | None = None
    """The sends of messages that form a cycle, so that there is no total order; ``None`` without such a cycle."""
    crown: Places | None = None
    """The sends of messages that form a cycle, so that there is no synchronous order; ``None`` without such a cycle."""
    clocks: Clocked = msgspec.field(default_factory=Clocked)
    lamport: Lamported = msgspec.field(default_factory=Lamported)
    late_blobs: int = 0
    """Late deliveries can be only in the output parts with the numbers 1 to ``late_blobs``. If ``late_blobs`` is larger
    than the number of parts, they can be in every part. ``late_blobs`` is 0 if no delivery is late, or if late
    deliveries were not listed."""


class Waits(msgspec.Struct, tag="waits"):
    """A piece, and those arrivals of the same bucket that may be *direct*. Each arrival is given with its delivery. An
    arrival is direct if all events of the process between the arrival and the delivery are deliveries."""

    piece: Piece
    process: Ints
    arrived: Longs
    delivered: Longs


class Timed(msgspec.Struct, tag="timed"):
    """The deliveries of one bucket, for a trace that is divided into chunks of time. The clocks (``lamport`` and
    ``time``) are used to propose the cuts between the chunks."""

    processes: int
    rows: int
    deliveries: Deliveries
    lamport: Lamports | None = None
    time: Lamports | None = None

    def clock(self, name: str) -> Lamports | None:
        """Return the column with this name (``lamport`` or ``time``), or None if the piece does not have it."""
        return self.lamport if name == "lamport" else self.time


class Dealt(msgspec.Struct, tag="dealt"):
    """Those deliveries of one bucket that one task needs. The task judges one chunk of time. It reads only a part of
    the events of each process, and the indices of the deliveries are counted from the start of this part."""

    task: int
    deliveries: Deliveries
    mine: NDArray[np.bool_]
    """For each delivery, whether the task judges it."""


read_matched = decoder(Piece | Region | Counted)
read_piece = decoder(Piece)
read_waits = decoder(Waits)
read_apart = decoder(Timed | Counted)
read_dealt = decoder(Dealt)
read_judged = decoder(Judged)
read_late = decoder(LatePlaces)


def joined(pieces: Iterable[Timed]) -> Timed | None:
    """Return the data of several pieces as one piece. If there are no pieces, return ``None``."""
    found = list(pieces)
    if len(found) < 2:
        return found[0] if found else None

    def of(name: str, kind: Any) -> Any:
        parts = [part for piece in found if (part := getattr(piece, name)) is not None]
        columns = ([getattr(part, field) for part in parts] for field in kind.__struct_fields__)
        return kind(*map(np.concatenate, columns)) if parts else None

    return Timed(
        found[0].processes,
        sum(piece.rows for piece in found),
        of("deliveries", Deliveries),
        of("lamport", Lamports),
        of("time", Lamports),
    )
