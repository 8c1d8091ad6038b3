"""The smaller part of the second stage: does every index of a process occur, and only once?

A place is a process and an index. For the hops of a server, a place is the server and an index; it differs from the
place of a process with this name. Every split produces runs of indices. Sorted and combined, the runs show which
indices are missing and which are claimed more than once. For the contested indices the rows themselves are compared, in
a second reading of the trace. If they are copies of one row, the first copy stays, and the others are set aside as
``duplicate_row``. If they differ, none stays, and they are set aside as ``duplicate_index``. Most traces have no
contested indices.
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
from antecede.trace.jsonl import content
from antecede.trace.parquet import items_in
from antecede.trace.schema import HOP, NEEDED_BY_INSTANCES, Event, Nulled

Longs = NDArray[np.int64]


class Process(msgspec.Struct):
    """A summary of the places of one process, or of one server's hops."""

    name: str
    hop: bool
    rows: bool
    """Whether it has rows that are events."""
    distinct: int
    """Number of different indices."""
    largest: int
    contested: list[tuple[int, int]]
    """Runs of indices that more than one event claims, each with its start and end."""


def survey(packed: Iterable[bytes]) -> bytes:
    """Return a :class:`Process` for each process of one part, computed from all runs in the part, and the summaries of
    splits in the part, unchanged."""
    summaries: list[Summary] = []
    runs: dict[tuple[bool, str], list[tuple[bool, Longs, Longs]]] = {}
    for blob in packed:
        said = read_places(blob)
        if isinstance(said, Summary):
            summaries.append(said)
            continue
        order = np.argsort(said.lane, kind="stable")
        ends = np.searchsorted(said.lane[order], np.arange(len(said.names) + 1))
        for k, name in enumerate(said.names):
            mine = order[ends[k] : ends[k + 1]]
            runs.setdefault((said.hop, name), []).append((said.fault, said.start[mine], said.end[mine]))
    found = []
    for (hop, name), pieces in sorted(runs.items()):
        events = [piece[1:] for piece in pieces if not piece[0]]
        distinct, largest, _ = _overlaps([piece[1:] for piece in pieces])
        contested = _overlaps(events)[2] if events else []
        found.append(Process(name, hop, bool(events), distinct, largest, contested))
    return msgspec.msgpack.encode((found, summaries))


def surveyed(packed: bytes) -> tuple[list[Process], list[Summary]]:
    """Return the processes of a survey, and the summaries."""
    return msgspec.msgpack.decode(packed, type=tuple[list[Process], list[Summary]])


def _overlaps(pieces: list[tuple[Longs, Longs]]) -> tuple[int, int, list[tuple[int, int]]]:
    """Return the number of different indices in the runs, the largest index, and the runs that are covered more than
    once."""
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
    """The runs of contested places, whose rows are compared. The runs of each process, or of each server's hops, are
    sorted."""

    runs: dict[str, list[tuple[int, int]]]
    """The key is ``p`` and the name of a process, or ``h`` and the name of a server (for its hops)."""


def claims(split: Split, layout: Layout, contest: Contest) -> Iterator[tuple[int, bytes]]:
    """Yield the rows of a split that claim a contested place, each with a digest of its content. A row goes to the
    output part of its process."""
    table = {key: np.array([bound for run in runs for bound in run], np.uint64) for key, runs in contest.runs.items()}
    found: dict[int, list[Any]] = {}
    nulled = Nulled(NEEDED_BY_INSTANCES if layout.instances else ())
    for piece in read(split):
        items = piece if isinstance(piece, list) else items_in(piece.batch, piece.folded, piece.first + 1, False)
        for number, _, read_as in items:
            said = nulled.take(number, read_as)
            if not isinstance(said, Event) or not layout.cut.keeps(said):
                continue
            hop = said.kind == HOP
            bounds = table.get(("h" if hop else "p") + said.process)
            if bounds is None or not np.searchsorted(bounds, np.uint64(said.index), side="right") % 2:
                continue
            digest = blake2b(content(said), digest_size=16).digest()
            row = [hop, said.process, said.index, digest, split.number, number]
            found.setdefault(layout.place(said.process), []).append(row)
        for part, rows in found.items():
            yield part, msgspec.msgpack.encode(rows)
        found = {}


def settle(packed: Iterable[bytes], with_rows: bool) -> bytes:
    """Decide which rows at the contested places of one part are set aside. Return how many rows are set aside for each
    reason, and the runs of contested places, without those of hops. Each run has a flag: are all rows at each of its
    places copies of one row? With ``with_rows``, return also the split and number of each row that is set aside."""
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
            f"several rows have the same process and index at more than {limits.contested_runs_max:,} separate places"
        )
    return pack({"again": again, "different": different, "runs": runs, "rows": rows})
