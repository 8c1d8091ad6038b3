"""Simulate one run with the array kernel. Settings and result are those of :func:`antecede.simulator.run.simulate`.

:func:`serves` returns whether the kernel can simulate given settings. :func:`simulate` raises :class:`KernelError` if
the kernel cannot complete a run; the caller then uses the simulator. Figures of an incomplete run are never returned.
"""

from typing import Any

import numpy as np

from antecede.pipeline.sweep import kernel
from antecede.pipeline.sweep.basics import DONE, ENTRIES, SLOTS, WINDOW, Ints, Masks, Shorts
from antecede.pipeline.sweep.direct_sets import Sets
from antecede.pipeline.sweep.kernel import Figures, Messages
from antecede.pipeline.sweep.matrix_rows import Rows
from antecede.pipeline.sweep.pruned_log import Logs
from antecede.pipeline.sweep.schedule import PROCESSES_MAX, Schedule, make
from antecede.pipeline.sweep.updates_entries import Entries
from antecede.simulator.figures import INSTANT
from antecede.simulator.figures import Figures as Report
from antecede.simulator.run import Setup
from antecede.simulator.workloads import SHAPES

_kinds = {"matrix": kernel.MATRIX, "pruned": kernel.PRUNED, "direct": kernel.DIRECT, "updates": kernel.UPDATES}
_slots, _entries_per_member, _window = 1_024, 8, 1_024
"""The initial sizes of arrays. If a size is too small for a run, it is doubled and the run is repeated."""

_doublings_max = 40


class KernelError(Exception):
    """The kernel could not complete a run."""


def serves(setup: Setup) -> bool:
    """Return whether the kernel can simulate this order with these settings."""
    return (
        setup.order.name in _kinds
        and not setup.order.options
        and setup.organisation is None
        and not setup.faulty()
        and not setup.fifo_links
        and setup.workload in SHAPES
        and setup.processes <= PROCESSES_MAX
    )


def simulate(setup: Setup) -> dict[str, Any]:
    """Run the simulation and return its figures."""
    setup.check()
    figures, _ = walk(setup, make(setup))
    return {"order": str(setup.order), "processes": setup.processes, **figures.report()}


def walk(setup: Setup, plan: Schedule, record: bool = False) -> tuple[Report, list[tuple[int, int]]]:
    """Run the kernel over the events of a schedule. Return the figures, and a list of deliveries as pairs (process,
    message). The list is empty without ``record``."""
    sizes = {SLOTS: _slots, ENTRIES: _entries_per_member, WINDOW: _window}
    for _ in range(_doublings_max):
        found = _figures(len(plan.arrival) if record else 0)
        kept = _messages(setup.processes, len(plan.source), len(plan.arrival), sizes[SLOTS])
        delivered = np.zeros((setup.processes, setup.processes), np.int64)
        state = _state(setup, sizes, len(kept.copy_free))
        kind = _kinds[setup.order.name]
        ended = kernel.run(kernel.Run(kind, setup.warmup, plan, found, kept, delivered, *state))
        if ended == DONE:
            pairs = zip(found.delivered_at.tolist(), found.delivered_message.tolist(), strict=True)
            return _Counted(setup.warmup, found, kept), list(pairs)
        if ended not in sizes:
            break
        sizes[ended] *= 2
    raise KernelError(f"the array kernel ended with status {ended} for {setup.order}")


class _Counted(Report):
    """The same report as that of the simulator, filled with the counts of the array kernel."""

    def __init__(self, warmup: int, found: Figures, kept: Messages) -> None:
        super().__init__(warmup)
        counts, sums = found.counts.tolist(), found.sums.tolist()
        self.sends, self.deliveries = counts[kernel.SENDS], counts[kernel.DELIVERIES]
        self.arrivals, self.held = counts[kernel.ARRIVALS], counts[kernel.HELD]
        self.copies, self.bytes_total = counts[kernel.COPIES], counts[kernel.BYTES_TOTAL]
        self.bytes_max, self._counted_messages = counts[kernel.BYTES_MAX], counts[kernel.WEIGHED]
        self._dependents, self._bytes = sums[kernel.DEPENDENTS], sums[kernel.BYTES]
        self._paper_bytes, self._latency_sum = sums[kernel.PAPER_BYTES], sums[kernel.LATENCY]
        self._latencies = {
            kernel.LOWEST_BUCKET + bucket: count
            for bucket, count in enumerate(found.latencies[: kernel.BUCKETS].tolist())
            if count
        }
        if found.latencies[kernel.BUCKETS]:
            self._latencies[INSTANT] = int(found.latencies[kernel.BUCKETS])
        if len(kept.free) != kept.left[0]:
            raise KernelError("messages were left undelivered in the array kernel")


def _figures(recorded: int) -> Figures:
    return Figures(
        np.zeros(kernel.COUNTS, np.int64),
        np.zeros(kernel.SUMS, np.float64),
        np.zeros(kernel.BUCKETS + 1, np.int64),
        np.zeros(recorded, np.int64),
        np.zeros(recorded, np.int64),
    )


def _messages(n: int, sends: int, copies: int, slots: int) -> Messages:
    several = slots * max(1, min(n, -(-copies // max(1, sends))))
    return Messages(
        slot_of=np.zeros(sends, np.int32),
        free=np.arange(slots)[::-1].copy(),
        remaining=_ints(slots),
        weight=_ints(slots, 3),
        copy_slot_of=np.zeros(copies, np.int32),
        copy_free=np.arange(several)[::-1].copy(),
        number=_ints(several),
        left=np.array([slots, several]),
        next_parked=_ints(several),
        awaited=_ints(several),
        first_parked=np.full((n, n), -1, np.int64),
        last_parked=np.full((n, n), -1, np.int64),
        parked=np.zeros(several, np.int32),
    )


def _state(setup: Setup, sizes: dict[int, int], copies: int) -> tuple[Rows, Logs, Sets, Entries]:
    """Return empty arrays for all four orders. Only the arrays of the simulated order have the given sizes; the unused
    arrays of the other orders are as small as possible."""
    n, kind, slots = setup.processes, _kinds[setup.order.name], sizes[SLOTS]
    return (
        _rows(n, slots, sizes[WINDOW]) if kind == kernel.MATRIX else _rows(1, 1, 1),
        _logs(n, slots, copies, sizes[ENTRIES]) if kind == kernel.PRUNED else _logs(1, 1, 1, 1),
        _sets(n, slots) if kind == kernel.DIRECT else _sets(1, 1),
        _entries(n, copies) if kind == kernel.UPDATES else _entries(1, 1),
    )


def _rows(n: int, slots: int, window: int) -> Rows:
    return Rows(
        newest=_ints(n),
        counts=_shorts(n, window, n),
        size=np.full((n, window), n, np.int64),
        known=_ints(n, n),
        stamp=_ints(slots, n),
    )


def _logs(n: int, slots: int, copies: int, entries: int) -> Logs:
    room = max(4, entries * n // 8)
    return Logs(
        clock=_ints(n),
        length=_ints(n, n),
        time=_ints(n, n, room),
        mask=_masks(n, n, room),
        stamp_first=_ints(slots, n + 1),
        stamp_time=_ints(slots, entries * n),
        stamp_mask=_masks(slots, entries * n),
        constraints=_ints(copies),
        constraint_sender=_ints(copies, 2 * room),
        constraint_time=_ints(copies, 2 * room),
        scratch_time=_ints(2 * room + 2),
        scratch_mask=_masks(2 * room + 2),
    )


def _sets(n: int, slots: int) -> Sets:
    return Sets(
        clock=_ints(n),
        recent=_shorts(n, n),
        before=_shorts(n, n, n),
        known=_shorts(n, n, n),
        stamp_recent=_shorts(slots, n),
        stamp_before=_shorts(slots, n, n),
    )


def _entries(n: int, copies: int) -> Entries:
    return Entries(
        state=np.ones(n, np.int64),
        stamped=_ints(n, n),
        value=_shorts(n, n * n),
        when=_shorts(n, n * n),
        node=_shorts(n, n * n),
        changes=_ints(copies),
        change_key=_shorts(copies, n * n),
        change_value=_shorts(copies, n * n),
    )


def _ints(*shape: int) -> Ints:
    return np.zeros(shape, np.int64)


def _shorts(*shape: int) -> Shorts:
    return np.zeros(shape, np.int32)


def _masks(*shape: int) -> Masks:
    return np.zeros(shape, np.uint64)
