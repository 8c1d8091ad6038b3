"""The structs of arrays that stages pass to each other. If one reader may receive several types, their tags differ.

A *bucket* has all rows of some messages, and a *line* has all events of one process. A *piece* contains the valid rows
of a bucket; lines are assembled from pieces. For a large trace, the lines are divided into *regions*. The sends and
deliveries of a bucket are then sorted by region (one :class:`Region` each), and only its clocks and other rows are in a
piece. The counts of a bucket are a separate struct.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.packing import decoder

Ints = NDArray[np.int32]
Longs = NDArray[Any]
"""Indices: of 64 bits, or of 32 bits where each index is a position in a line."""
Bytes = NDArray[np.uint8]


REGION_EVENTS = 1 << 23
"""The number of events in a region. The lines (the events of each process, in sequence) are processed one region at a
time. ``source`` and ``argument`` of these events take 64 MiB."""


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
        """Return the deliveries at some rows."""
        return Deliveries(self.process[rows], self.index[rows], self.source[rows], self.sent[rows])

    def narrowed(self) -> "Deliveries":
        """Return the same deliveries with indices of 32 bits."""
        return Deliveries(self.process, self.index.astype(np.int32), self.source, self.sent.astype(np.int32))


class Lamports(Places):
    """Rows with Lamport clocks (or with times)."""

    value: Longs


class Clocks(Places):
    """Rows with vector clocks: the number of entries of each, and the entries of all rows, one row after the other."""

    size: Longs
    name: Ints
    entry: Longs


class Instances(Places):
    """The operation instances in rows, as indices into the text lists of this bucket; -1 means none."""

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
    """Sends without a delivery; the deliveries name the other sends."""
    lamport: Lamports | None = None
    clocks: Clocks | None = None
    assumed: Places | None = None
    """Rows whose position an import had to assume."""
    instances: Instances | None = None

    def places(self) -> Iterator[Places]:
        """Yield all places in this piece."""
        for one in (self.sends, self.deliveries, self.lamport, self.clocks, self.instances):
            if one is not None:
                yield one
        yield Places(self.deliveries.source, self.deliveries.sent)


class Region(msgspec.Struct, tag="region"):
    """The part of a bucket's piece that lies in one region of the lines: all sends and deliveries there."""

    number: int
    first: int
    """The flat position at which the region begins. In this struct, the place of an event is its flat position minus
    ``first``."""
    mark: int
    """A number that identifies the bucket: the hash of one of its message ids."""
    sent: Ints
    """The place of each send, with the number of its deliveries (``copies``)."""
    copies: NDArray[Any]
    delivered: Ints
    """The place of each delivery, with the sender of its message (``source``) and the position of its send in the
    sender's line (``argument``)."""
    source: NDArray[Any]
    argument: Ints


class Counted(msgspec.Struct, tag="counted"):
    """The counts of one bucket, or of several."""

    reasons: dict[str, int]
    messages: int
    deliveries: int
    undelivered: int
    named: Bytes
    """One bit per name: whether it is a destination."""


class LatePlaces(msgspec.Struct):
    """Late deliveries: the place of each, of its send, and of the send of the first message that overtook it."""

    process: Longs
    index: Longs
    source: Longs
    send_index: Longs
    over_process: Longs
    over_index: Longs
    order: str = ""
    """The order that these deliveries break. It is set if a part may have late deliveries for several orders."""

    def at(self, row: int) -> "LatePlaces":
        """Return one of the late deliveries."""
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
    """The deliveries that were set aside because they lie on a cycle with their send."""
    counted: Counted | None = None
    """The sum of the counts of all buckets; ``None`` in a chunk."""
    fifo_late: int = 0
    fifo_undecided: int = 0
    causal_late: int = 0
    causal_undecided: int = 0
    first: LatePlaces | None = None
    """The delivery that is late by causal order and has the smallest index; if there are several, the one with the
    smallest process number."""
    pairwise: bool = True
    cycle: Places | None = None
    """The sends of messages that form a circle, so that there is no total order; ``None`` without such a circle."""
    crown: Places | None = None
    """The sends of messages that form a circle, so that there is no synchronous order; ``None`` without such a
    circle."""
    clocks: Clocked = msgspec.field(default_factory=Clocked)
    lamport: Lamported = msgspec.field(default_factory=Lamported)
    late_blobs: int = 0
    """The last output part to read: late deliveries are in the parts from 1 to this number. If it is larger than the
    number of parts, they may be in every part. It is 0 if no delivery is late, or if late deliveries were not
    listed."""


class Waits(msgspec.Struct, tag="waits"):
    """A piece, and the arrivals of its messages that may be *direct*, each with its delivery. An arrival is direct if
    the process only delivers messages between the arrival and this delivery."""

    piece: Piece
    process: Ints
    arrived: Longs
    delivered: Longs


class Timed(msgspec.Struct, tag="timed"):
    """The deliveries of a bucket that is judged by chunks of time, with the clocks that are used to propose cuts."""

    processes: int
    rows: int
    deliveries: Deliveries
    lamport: Lamports | None = None
    time: Lamports | None = None

    def clock(self, name: str) -> Lamports | None:
        """Return the column ``lamport`` or ``time``."""
        return self.lamport if name == "lamport" else self.time


class Dealt(msgspec.Struct, tag="dealt"):
    """The deliveries that one task of a chunk reads. Their indices are relative to the start of the task's part of each
    line."""

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
    """Return several pieces as one; ``None`` if there are none."""
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
