"""Which of some messages were sent in the past of which, and which precede which significantly, in one walk."""

from typing import Any

import numpy as np

from antecede.pipeline.deeds import Deeds
from antecede.pipeline.kernels.orderings import precedences
from antecede.pipeline.lines import Walk, lend_slots


def precedences_among(deeds: Deeds, picked: Any) -> tuple[list[int], list[int]]:
    """For each compared message those sent in its past, and those significantly before it, as masks."""
    lines = deeds.lines
    lend_slots(lines)
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
