"""Check that every index of a process occurs exactly once. The pipeline does this before it matches sends and
deliveries.

A *place* is a process and an index. For a *hop* (a message that a router forwarded), a place is a server and an index.
A process and a server with the same name have different places. Every split produces *runs*: ranges of consecutive
indices. All runs together show which indices are missing and which are *contested*. An index is contested if more than
one event claims it. Most traces have no contested indices. If a trace has some, it is read again, to compare the rows
at the contested places. If rows are equal, the first of them stays, and the others are set aside as ``duplicate_row``.
If a place then still has several different rows, all of them are set aside as ``duplicate_index``.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from antecede import limits
from antecede.errors import TraceError
from antecede.pipeline.packing import pack
from antecede.pipeline.read.encode import Layout, Summary, read_places
from antecede.pipeline.read.splits import Split, read
from antecede.trace.files import content, items_in
from antecede.trace.schema import HOP, NEEDED_BY_INSTANCES, Event, Nulled

Longs = NDArray[np.int64]


class Process(msgspec.Struct):
    """A summary of the indices of one process, or of one server's *hops* (messages that the server forwarded)."""

    name: str
    hop: bool
    rows: bool
    """True if at least one of the rows could be read as an event."""
    distinct: int
    """Number of different indices."""
    largest: int
    contested: list[tuple[int, int]]
    """Runs (ranges) of contested indices, each as (first index, last index + 1). An index is contested if more than one
    event claims it. If there are more than ``limits.contested_runs_max`` runs, the list has a single run from the start
    of the first one to the end of the last one."""


def survey(packed: Iterable[bytes]) -> bytes:
    """Combine the runs (ranges of indices) in one part of the first stage's output. Return two packed lists. The first
    list has a :class:`Process` for each process, and for each server with hops. The second list has the summaries of
    splits. Only part 0 contains summaries."""
    summaries: list[Summary] = []
    runs: dict[tuple[bool, str], list[tuple[bool, Longs, Longs]]] = {}
    for blob in packed:
        part = read_places(blob)
        if isinstance(part, Summary):
            summaries.append(part)
            continue
        order = np.argsort(part.lane, kind="stable")
        ends = np.searchsorted(part.lane[order], np.arange(len(part.names) + 1))
        for k, name in enumerate(part.names):
            mine = order[ends[k] : ends[k + 1]]
            runs.setdefault((part.hop, name), []).append((part.fault, part.start[mine], part.end[mine]))
    found = []
    for (hop, name), pieces in sorted(runs.items()):
        events = [piece[1:] for piece in pieces if not piece[0]]
        distinct, largest, _ = _overlaps([piece[1:] for piece in pieces])
        contested = _overlaps(events)[2] if events else []
        found.append(Process(name, hop, bool(events), distinct, largest, contested))
    return msgspec.msgpack.encode((found, summaries))


def surveyed(packed: bytes) -> tuple[list[Process], list[Summary]]:
    """Unpack the result of :func:`survey`: the processes, and the summaries of splits."""
    return msgspec.msgpack.decode(packed, type=tuple[list[Process], list[Summary]])


def _overlaps(pieces: list[tuple[Longs, Longs]]) -> tuple[int, int, list[tuple[int, int]]]:
    """Combine ranges of indices. Return the number of different indices, the largest index, and the ranges of indices
    that occur more than once."""
    # Ends are unsigned numbers, since the end of the largest index is that index + 1.
    start = np.concatenate([piece[0] for piece in pieces]).astype(np.uint64)
    end = np.concatenate([piece[1] for piece in pieces]).astype(np.uint64)
    points = np.concatenate([start, end])
    change = np.concatenate([np.ones(len(start), np.int64), np.full(len(end), -1, np.int64)])
    order = np.argsort(points, kind="stable")
    points, depth = points[order], np.cumsum(change[order])
    width = np.diff(points)
    distinct = int(width[depth[:-1] > 0].sum())
    contested: list[tuple[int, int]] = []
    for k in np.flatnonzero((depth[:-1] > 1) & (width > 0)):
        low, high = int(points[k]), int(points[k + 1])
        if contested and contested[-1][1] == low:
            contested[-1] = contested[-1][0], high
        else:
            contested.append((low, high))
    if len(contested) > limits.contested_runs_max:
        # There are too many runs to list. Comparing all rows in between gives the same answer.
        contested = [(contested[0][0], contested[-1][1])]
    return distinct, int(points[-1]) - 1, contested


class Contest(msgspec.Struct, frozen=True):
    """The contested places: the places that several events claim. The rows at these places are compared."""

    runs: dict[str, list[tuple[int, int]]]
    """Sorted runs of contested indices. The key is ``p`` followed by the name of a process, or ``h`` followed by the
    name of a server (for its hops)."""


def claims(split: Split, layout: Layout, contest: Contest) -> Iterator[tuple[int, bytes]]:
    """Find the rows of a split that have a contested place. Yield pairs: the number of an output part, and packed rows
    for this part. All rows of one process belong to the same part. Each row has a digest of its content."""
    table = {key: np.array([bound for run in runs for bound in run], np.uint64) for key, runs in contest.runs.items()}
    found: dict[int, list[Any]] = {}
    nulled = Nulled(NEEDED_BY_INSTANCES if layout.instances else ())
    for piece in read(split):
        items = piece if isinstance(piece, list) else items_in(piece.batch, piece.folded, piece.first + 1, False)
        for number, _, read_as in items:
            event = nulled.take(number, read_as)
            if not isinstance(event, Event) or not layout.cut.keeps(event):
                continue
            hop = event.kind == HOP
            bounds = table.get(("h" if hop else "p") + event.process)
            if bounds is None or not np.searchsorted(bounds, np.uint64(event.index), side="right") % 2:
                continue
            digest = blake2b(content(event), digest_size=16).digest()
            row = [hop, event.process, event.index, digest, split.number, number]
            found.setdefault(layout.place(event.process), []).append(row)
        for part, rows in found.items():
            yield part, msgspec.msgpack.encode(rows)
        found = {}


def settle(packed: Iterable[bytes], with_rows: bool) -> bytes:
    """Compare the rows at the contested places of one part, and decide which rows are set aside. Return a packed
    dictionary:

    * ``again``: the number of rows that repeat another row at the same place.
    * ``different``: the number of rows that are set aside because their place has several different rows. Equal rows
      at a place are counted once.
    * ``runs``: the contested indices of processes (not of hops), each run as (process, first index, last index + 1,
      flag). The flag is true if each place of the run has only equal rows.
    * ``rows``: the rows that are set aside, each as (split, row number, flag). The flag is true if the row repeats
      another row. Without ``with_rows``, this list is empty.

    Raise TraceError if there are too many runs.
    """
    places: dict[tuple[bool, str, int], list[tuple[int, int, bytes]]] = {}
    for blob in packed:
        for hop, process, index, digest, split, number in msgspec.msgpack.decode(blob):
            places.setdefault((hop, process, index), []).append((split, number, digest))
    again = different = 0
    runs: list[list[Any]] = []
    rows: list[tuple[int, int, bool]] = []
    for (hop, process, index), claimed in sorted(places.items()):
        if len(claimed) < 2:
            continue
        firsts: dict[bytes, tuple[int, int]] = {}
        for split, number, digest in sorted(claimed):
            if firsts.setdefault(digest, (split, number)) != (split, number):
                again += 1
                rows.append((split, number, True))
        if len(firsts) > 1:
            different += len(firsts)
            rows += [(split, number, False) for split, number in firsts.values()]
        if not with_rows:
            rows.clear()
        if hop:
            continue
        once = len(firsts) == 1
        last = runs[-1] if runs else None
        if last and last[0] == process and last[2] == index and last[3] == once:
            last[2] = index + 1
        else:
            runs.append([process, index, index + 1, once])
    if len(runs) > limits.contested_runs_max:
        raise TraceError(
            "too many rows have the same process and index as another row: they form more than "
            f"{limits.contested_runs_max:,} separate runs of indices; remove the duplicate rows from the trace"
        )
    return pack({"again": again, "different": different, "runs": runs, "rows": rows})
