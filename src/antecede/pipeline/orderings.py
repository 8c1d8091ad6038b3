"""``measure`` on Spark: how many orderings significance did not need, as in :mod:`antecede.trace.orderings`."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from antecede.pipeline.deeds import Bench, Deeds, bench_for
from antecede.pipeline.instances import matched_instances
from antecede.pipeline.kernels.orderings import precedences
from antecede.pipeline.kernels.significant import REQUEST, RESPONSE
from antecede.pipeline.kernels.walk import SENT
from antecede.pipeline.lines import Walk
from antecede.pipeline.packing import pack, unpack
from antecede.pipeline.run import Trace
from antecede.trace.conflicts import Conflicts
from antecede.trace.costs import drawn
from antecede.trace.instances import ancestors_among
from antecede.trace.orderings import Received, counted_at, figures

_received_as = {0: None, REQUEST: "request", RESPONSE: "response"}


def orderings_on(trace: Trace, conflicts: Conflicts) -> dict[str, Any] | None:
    """The report's ``significance``; ``None`` if no delivery names its instance. Rows must carry their instances."""
    pieces = trace.from_buckets(partial(matched_instances, numbering=trace.numbering), 1)
    said = unpack(pieces.gather(partial(counted, bench=bench_for(trace, conflicts)), [0])[0])
    return figures(said["messages"], said["causal"], said["significant"]) if said["judged"] else None


def counted(packed: Iterable[bytes], bench: Bench) -> bytes:
    """Count the orderings of a whole trace, in one task."""
    deeds = Deeds(packed, bench)
    lines = deeds.lines
    sends = np.flatnonzero(lines.source == SENT)
    picked = sends[np.array(drawn(len(sends)), np.int64)]
    # Where each delivery's message was sent must be known before the walk puts slots in its place.
    delivered = np.flatnonzero(lines.source >= 0)
    number = np.searchsorted(picked, lines.send_of(delivered))
    some = picked[np.minimum(number, len(picked) - 1)] == lines.send_of(delivered) if len(picked) else number < 0
    delivered, number = delivered[some], number[some]
    causal, significant = _precedences(deeds, picked)
    conflicts = bench.conflicts().over(deeds.used)
    names = deeds.instance_names
    parents = {names[k]: names[p] for k, p in enumerate(deeds.parent.tolist()) if p >= 0}
    total = needed = 0
    process = lines.process_at(delivered)
    for p in np.unique(process).tolist():
        received = [
            _received(deeds, int(at), int(which)) for at, which in zip(*_of(p, process, delivered, number), strict=True)
        ]
        rivals = conflicts.at(bench.names[p])
        found = counted_at(received, causal, significant, rivals, partial(ancestors_among, parents=parents))
        total, needed = total + found[0], needed + found[1]
    return pack({"judged": deeds.judged, "messages": len(picked), "causal": total, "significant": needed})


def _of(process: int, owner: Any, delivered: Any, number: Any) -> tuple[Any, Any]:
    return delivered[owner == process], number[owner == process]


def _received(deeds: Deeds, at: int, number: int) -> Received:
    own = int(deeds.instance[at])
    if own < 0:
        return Received(number)
    cell = int(deeds.cell[own])
    operation = deeds.operations[deeds.operation[cell]] if cell >= 0 else None
    return Received(number, deeds.instance_names[deeds.name[own]], operation, _received_as[int(deeds.received_as[at])])


def _precedences(deeds: Deeds, picked: Any) -> tuple[list[int], list[int]]:
    """For each compared message those sent in its past, and those significantly before it, as masks."""
    lines = deeds.lines
    words = max(1, -(-len(picked) // 64))
    past = np.zeros((lines.processes, words), np.uint64)
    done = np.zeros((len(deeds.operation), words), np.uint64)
    instance = np.where(deeds.instance < deeds.count, deeds.instance, -1)
    run_of = np.full(deeds.count, -1, np.int32)
    rows = 64
    base, known, slots = (np.zeros((rows, width), np.uint64) for width in (words, words, 2 * words))
    free_run, free_slot, owed = (
        np.arange(rows, dtype=np.int32),
        np.arange(rows, dtype=np.int32),
        np.zeros(rows, np.int32),
    )
    counts = np.array([rows, rows], np.int64)
    causal, significant = (np.zeros((len(picked), words), np.uint64) for _ in range(2))
    walk = Walk(lines)
    for count in walk:
        begin = 0
        while begin < count:
            begin = precedences(
                lines.offsets, lines.source, lines.argument, walk.process, walk.begin, walk.end, begin, count, picked,
                instance, deeds.first, deeds.last, deeds.cell, deeds.aborted, deeds.rival_from, deeds.rivals, past,
                done, run_of, base, known, free_run, slots, owed, free_slot, counts, causal, significant,
            )  # fmt: skip
            if begin < count and counts[0] == 0:
                free_slot, counts[0] = _doubled(free_slot), len(free_slot)
                slots, owed = np.concatenate([slots, np.zeros_like(slots)]), np.concatenate([owed, np.zeros_like(owed)])
            if begin < count and counts[1] == 0:
                free_run, counts[1] = _doubled(free_run), len(free_run)
                base, known = (np.concatenate([one, np.zeros_like(one)]) for one in (base, known))
    return _masks(causal), _masks(significant)


def _doubled(free: Any) -> Any:
    return np.concatenate([np.arange(len(free), 2 * len(free), dtype=np.int32), np.zeros(len(free), np.int32)])


def _masks(sets: Any) -> list[int]:
    return [int.from_bytes(row.astype("<u8").tobytes(), "little") for row in sets]
