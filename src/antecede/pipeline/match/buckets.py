"""Match the sends and deliveries of one bucket of messages at a time. This is the larger part of the pipeline's second
stage.

A bucket contains every row of its messages. So the bucket alone shows which send belongs to which delivery, and which
rows are invalid (:mod:`antecede.pipeline.kernels.match`). Valid rows are passed to the task that assembles the lines
(the events of each process, in sequence). For this task, a row is given by its process and its index, as numbers of
fixed width. Invalid rows are only counted, separately for each reason, and the counts are passed on. The row numbers of
invalid rows are returned only if a caller asks for them (:func:`set_aside`).
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from antecede.pipeline.kernels.match import (
    DELIVER,
    LEFT_OUT,
    REASON_NAMES,
    SEND,
    VALID,
    Destinations,
    Links,
    Rows,
    leave_out,
    match,
)
from antecede.pipeline.match.lines import Regions
from antecede.pipeline.packing import pack, pack_struct
from antecede.pipeline.pieces import (
    Clocks,
    Counted,
    Deliveries,
    Lamports,
    Piece,
    Places,
    Region,
    read_matched,
)
from antecede.pipeline.read.columns import joined
from antecede.pipeline.read.ids import as_texts, hashed_ids, numbered_ids
from antecede.pipeline.read.rows import together, unpacked

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


Runs = tuple[Ints, Longs, Longs, NDArray[np.uint8]]
"""Ranges of contested places (places that several rows claim). The four arrays have one entry per range: the process,
the first index, the last index, and whether all rows at the same place are copies of one row."""


class Numbering(msgspec.Struct, frozen=True):
    """The combined result of the first stage: the number that each name has in the whole trace, and the contested
    places (places that several rows claim)."""

    names: int
    splits: dict[int, bytes]
    """For each split, a table (int32) from the number of a name in the split to its number in the whole trace."""
    run_process: bytes = b""
    run_first: bytes = b""
    run_last: bytes = b""
    run_once: bytes = b""
    narrow: int = 2**64 - 1

    def together(self) -> tuple[Longs, Ints]:
        """Join the tables of all splits (``splits``) into one array. Return the positions at which the tables begin in
        this array, and the array."""
        first = np.zeros(max(self.splits, default=-1) + 1, np.int64)
        tables = []
        total = 0
        for split, table in self.splits.items():
            first[split] = total
            tables.append(np.frombuffer(table, np.int32))
            total += len(tables[-1])
        return first, np.concatenate(tables) if tables else np.zeros(0, np.int32)

    def runs(self) -> Runs:
        return (
            np.frombuffer(self.run_process, np.int32),
            np.frombuffer(self.run_first, np.int64),
            np.frombuffer(self.run_last, np.int64),
            np.frombuffer(self.run_once, np.uint8),
        )


def bucket_of(packed: Iterable[bytes], numbering: Numbering) -> "Bucket":
    """Decode the rows of one bucket, match them, and return the bucket."""
    pieces = sorted(map(unpacked, packed), key=lambda piece: (piece.split, piece.number))
    split = np.repeat(np.array([piece.split for piece in pieces], np.int32), [len(piece) for piece in pieces])
    table = together(pieces, *numbering.together())
    if table is None:
        table = _renumbered(joined(_alike([piece.batch() for piece in pieces])), split, numbering)
    return Bucket(table, split, numbering.names, numbering.narrow, numbering.runs())


def _alike(batches: list[Any]) -> list[Any]:
    """Return the batches unchanged if all message ids are texts, or if all are UUIDs as bytes. Otherwise return the
    batches with all ids as texts."""
    if len({batch.column("message").type for batch in batches}) < 2:
        return batches
    return [
        batch.set_column(at, "message", as_texts(batch.column(at)))
        for batch in batches
        for at in (batch.schema.get_field_index("message"),)
    ]


class Bucket:
    """The matched rows of one bucket. A name is given by its number in the whole trace."""

    extras = frozenset({"lamport", "clock_name", "assumed"})
    """Optional columns of the table. If the table has one of these columns, its values are added to the piece of the
    bucket (the valid rows, as arrays)."""

    def __init__(self, table: Any, split: Ints, names: int, narrow: int, runs: Runs | None = None) -> None:
        self.split = split
        self.table = table.combine_chunks()
        self.process = self._numbers("process", np.int32)
        self.index = self._numbers("index", np.int64)
        self.kind = self._numbers("kind", np.uint8)
        rows = len(self.process)
        self.reason = np.zeros(rows, np.uint8)
        if runs is not None and len(runs[0]):
            self._leave_out(runs)
        self._message = _one_chunk(self.table.column("message"))
        hashed = hashed_ids(self._message, narrow)
        self.mark = int(hashed[0]) if rows else 0
        """The hash of one message id of the bucket. The bucket's number is ``mark`` modulo the number of buckets."""
        self.code, messages = numbered_ids(self._message, hashed)
        self.to = self._destinations(rows)
        self.send_row = np.full(rows, -1, np.int64)
        self.awaited = np.zeros(rows, np.int32)
        self.named = np.zeros(names, np.uint8)
        self.rows = Rows(self.code, self.kind, self.process, self.index)
        self.links = Links(self.reason, self.send_row, self.awaited, self.named)
        self.undelivered = match(messages, self.rows, self.to, self.links)

    @property
    def message(self) -> Any:
        """The message ids of all rows, as texts."""
        return as_texts(self._message)

    def column(self, name: str) -> Any:
        """Return a column of the rows as one array."""
        return _one_chunk(self.table.column(name))

    def _numbers(self, name: str, kind: Any) -> Any:
        return _one_chunk(self.table.column(name)).to_numpy(zero_copy_only=False).astype(kind, copy=False)

    def _destinations(self, rows: int) -> Destinations:
        if "to" not in self.table.schema.names:
            nothing = np.zeros(rows, np.int64)
            return Destinations(np.zeros(rows, np.uint8), nothing, nothing.copy(), np.zeros(0, np.int32))
        to = _one_chunk(self.table.column("to"))
        known = to.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
        ends = to.offsets.to_numpy().astype(np.int64)
        values = to.values.to_numpy(zero_copy_only=False).astype(np.int32)
        return Destinations(known, ends[:-1].copy(), ends[1:].copy(), values.copy())

    def _leave_out(self, runs: Runs) -> None:
        once = np.zeros(len(self.process), np.uint8)
        leave_out(self.process, self.index, self.kind, *runs, self.reason, once)
        rows = np.flatnonzero(once)
        # Copies of a row are equal in every column, so they are all in this bucket; the first one stays.
        order = rows[np.lexsort((rows, self.index[rows], self.process[rows]))]
        again = (self.process[order][1:] == self.process[order][:-1]) & (
            self.index[order][1:] == self.index[order][:-1]
        )
        self.reason[order[1:][again]] = LEFT_OUT

    def valid(self, kind: int) -> Longs:
        """Return the valid rows of a kind."""
        return np.flatnonzero((self.kind == kind) & (self.reason == VALID))

    def ids(self, rows: Longs) -> list[str]:
        """Return the message ids of these rows."""
        return as_texts(self._message.take(pa.array(rows))).to_pylist()  # type: ignore[no-any-return]

    def deliveries(self) -> Deliveries:
        """Return the valid deliveries, with the places of their sends."""
        rows = self.valid(DELIVER)
        sent = self.send_row[rows]
        return Deliveries(self.process[rows], self.index[rows], self.process[sent], self.index[sent])

    def undelivered_sends(self) -> Places:
        """Return the valid sends without a delivery."""
        rows = self.valid(SEND)
        return self._places(rows[self.awaited[rows] == 0])

    def piece(self) -> Piece:
        """Return the piece of this bucket: its valid rows, as arrays. The lines (the events of each process) are
        assembled from the pieces of all buckets."""
        return Piece(self.deliveries(), self.undelivered_sends(), self._lamport(), self._clocks(), self._assumed())

    def _places(self, rows: Longs) -> Places:
        return Places(self.process[rows], self.index[rows])

    def _lamport(self) -> Lamports | None:
        rows = np.flatnonzero(self.reason == VALID)
        return self.numbers_at("lamport", rows)

    def numbers_at(self, name: str, rows: Longs) -> Lamports | None:
        """Return the numbers that the column ``name`` has in these rows, each with the place (process and index) of its
        row. Rows without a number are left out. Return ``None`` if the table lacks the column."""
        if name not in self.table.schema.names:
            return None
        column = self.column(name)
        rows = rows[column.is_valid().to_numpy(zero_copy_only=False)[rows]]
        return Lamports(self.process[rows], self.index[rows], column.fill_null(0).to_numpy()[rows].astype(np.int64))

    def _assumed(self) -> Places | None:
        if "assumed" not in self.table.schema.names:
            return None
        assumed = self.column("assumed").fill_null(False).to_numpy(zero_copy_only=False)
        return self._places(np.flatnonzero((self.reason == VALID) & assumed & (self.kind <= DELIVER)))

    def _clocks(self) -> Clocks | None:
        if "clock_name" not in self.table.schema.names:
            return None
        clock = self.column("clock_name")
        rows = np.flatnonzero((self.reason == VALID) & clock.is_valid().to_numpy(zero_copy_only=False))
        keep = pa.array(rows)
        clock, entries = clock.take(keep), self.column("clock_entry").take(keep)
        return Clocks(
            self.process[rows],
            self.index[rows],
            np.diff(clock.offsets.to_numpy()).astype(np.int64),
            clock.flatten().to_numpy(zero_copy_only=False),
            entries.flatten().to_numpy(zero_copy_only=False),
        )

    def counted(self) -> Counted:
        """Return the counts for the report."""
        counts = np.bincount(self.reason, minlength=len(REASON_NAMES))
        reasons = {name: int(count) for name, count in zip(REASON_NAMES, counts, strict=True) if name and count}
        deliveries = len(self.valid(DELIVER))
        return Counted(reasons, len(self.valid(SEND)), deliveries, int(self.undelivered), np.packbits(self.named))


def _renumbered(table: Any, split: Ints, numbering: Numbering) -> Any:
    """Return the table with new numbers for names. A name's number in its split (a part of the input) is replaced by
    the name's number in the whole trace."""
    if not table.num_rows:
        return table
    first, numbers = numbering.together()
    base = first[split]
    columns = {name: _one_chunk(table.column(name)) for name in table.schema.names}
    columns["process"] = pa.array(numbers[base + columns["process"].to_numpy()])
    columns["index"] = columns["index"].cast(pa.int64())
    for name in ("to", "clock_name"):
        if name in columns:
            lists = columns[name]
            ends = lists.offsets.to_numpy()
            values = lists.values.to_numpy(zero_copy_only=False)[ends[0] : ends[-1]]
            renamed = numbers[np.repeat(base, np.diff(ends)) + values] if len(values) else np.zeros(0, np.int32)
            columns[name] = pa.ListArray.from_arrays(
                pa.array(ends - ends[0]), pa.array(renamed), mask=lists.is_null() if lists.null_count else None
            )
    return pa.table(columns)


def _one_chunk(column: Any) -> Any:
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks) if chunks else pa.array([], column.type)


def matched(
    packed: Iterable[bytes], numbering: Numbering, narrow_index: bool, regions: Regions | None = None
) -> Iterator[tuple[int, bytes]]:
    """Match one bucket. Yield each result with the number of the output part that gets it.

    The counts of the bucket go to part 0. Without ``regions``, the piece of the bucket (its valid rows, as arrays) goes
    to part 0 too. With ``regions``, the sends and deliveries are yielded by region, and the number of a region is the
    number of its part. Then the piece contains only the clocks, and the places of rows whose position was guessed when
    the trace was imported. If the table has columns for such values, the piece goes to part 0. Otherwise it is not
    yielded.
    """
    bucket = bucket_of(packed, numbering)
    yield 0, pack_struct(bucket.counted())
    if regions is None:
        piece = bucket.piece()
        if narrow_index:
            piece.deliveries = piece.deliveries.narrowed()
            piece.sends = piece.sends.narrowed() if piece.sends is not None else None
        yield 0, pack_struct(piece)
        return
    for region in regions.parted(bucket.rows, bucket.links, numbering.names, bucket.mark):
        yield region.number, pack_struct(region)
    if not bucket.extras.isdisjoint(bucket.table.schema.names):
        piece = bucket.piece()
        # The sends and deliveries were yielded with their regions.
        piece.sends, piece.deliveries = None, piece.deliveries.some(slice(0))
        yield 0, pack_struct(piece)


class Sought(msgspec.Struct, frozen=True):
    """A search for the rows of one kind at given places. The places are sorted by process and then by index."""

    kind: int
    process: bytes
    index: bytes


def look_up(packed: Iterable[bytes], numbering: Numbering, sought: Sought) -> bytes:
    """Match one bucket. Return its valid rows at the places in ``sought``, as packed columns. The column ``found`` has,
    for each row, the number of its place; the places in ``sought`` are numbered from 0. The other columns are: the
    message id (``ids``), whether the destinations of the message are known (``known``), the split of the row
    (``split``), and the number of the row (``at``; -1 if the rows have no numbers)."""
    key = place_keys(np.frombuffer(sought.process, np.int32), np.frombuffer(sought.index, np.int64))
    bucket = bucket_of(packed, numbering)
    rows = bucket.valid(sought.kind)
    mine = place_keys(bucket.process[rows], bucket.index[rows])
    found = np.searchsorted(key, mine)
    hit = key[np.minimum(found, len(key) - 1)] == mine if len(key) else np.zeros(len(rows), bool)
    rows = rows[hit]
    sends = bucket.send_row[rows] if sought.kind == DELIVER else rows
    numbered = "at" in bucket.table.schema.names
    return pack({
        "found": found[hit].astype(np.int64),
        "ids": bucket.ids(rows),
        "known": bucket.to.known[sends],
        "split": bucket.split[rows],
        "at": _one_chunk(bucket.table.column("at")).to_numpy()[rows] if numbered else np.full(len(rows), -1, np.int64),
    })  # fmt: skip


def ids_at(packed: Iterable[bytes], numbering: Numbering, sought: Sought) -> bytes:
    """Return the ids of the messages that were sent at the places in ``sought`` (``ids``). For each id, also return the
    number of its place (``found``); the places in ``sought`` are numbered from 0. The rows are not matched, because the
    sends at these places are known to be valid."""
    process, index = np.frombuffer(sought.process, np.int32), np.frombuffer(sought.index, np.int64)
    key = place_keys(process, index)
    asked = np.zeros(numbering.names, bool)
    asked[process] = True
    found: list[int] = []
    ids: list[str] = []
    for blob in packed:
        piece = unpacked(blob)
        batch, numbers = piece.batch(), np.frombuffer(numbering.splits[piece.split], np.int32)
        local = batch.column("process").to_numpy()
        rows = np.flatnonzero(asked[numbers][local] & (batch.column("kind").to_numpy() == SEND))
        mine = place_keys(numbers[local[rows]], batch.column("index").to_numpy()[rows])
        at = np.searchsorted(key, mine)
        hit = key[np.minimum(at, len(key) - 1)] == mine
        if hit.any():
            found += at[hit].tolist()
            ids += as_texts(batch.column("message").take(pa.array(rows[hit]))).to_pylist()
    return pack({"found": np.array(found, np.int64), "ids": ids})


def marks_of(packed: Iterable[bytes], sought: Sought, regions: Regions) -> bytes:
    """Return the marks of all buckets that have a send at one of the places in ``sought``. A mark
    (:attr:`Bucket.mark`) is a number that identifies a bucket. ``packed`` has the rows of one region, so only places in
    this region are found."""
    places = map(regions.place, np.frombuffer(sought.process, np.int32), np.frombuffer(sought.index, np.int64))
    wanted: dict[int, list[int]] = {}
    for number, place in places:
        wanted.setdefault(number, []).append(place)
    marks = set()
    for part in map(read_matched, packed):
        if isinstance(part, Region) and any((part.sent == place).any() for place in wanted.get(part.number, ())):
            marks.add(part.mark)
    return pack({"marks": sorted(marks)})


def place_keys(process: Any, index: Any) -> Any:
    """Return places as values that sort by process and then index."""
    keys = np.zeros(len(process), [("process", np.int64), ("index", np.int64)])
    keys["process"], keys["index"] = process, index
    return keys


def set_aside(packed: Iterable[bytes], numbering: Numbering) -> Iterator[tuple[int, bytes]]:
    """Match one bucket. For each split with invalid rows, yield the number of the split, and two packed columns: the
    number (``at``) and the reason (``reason``) of each invalid row. The number of the split is also the number of the
    output part. Rows that were set aside before matching (``LEFT_OUT``) are not included."""
    bucket = bucket_of(packed, numbering)
    rows = np.flatnonzero((bucket.reason != VALID) & (bucket.reason != LEFT_OUT))
    at = bucket.table.column("at").combine_chunks().to_numpy() if len(rows) else np.zeros(0, np.int64)
    for split in np.unique(bucket.split[rows]):
        mine = rows[bucket.split[rows] == split]
        yield int(split), pack({"at": at[mine], "reason": bucket.reason[mine]})
