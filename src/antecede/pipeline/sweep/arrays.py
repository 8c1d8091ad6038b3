"""One run in the array kernel: what :func:`antecede.simulator.run.simulate` returns, from the same settings.

:func:`serves` says which settings the kernel knows. :func:`simulate` raises :class:`KernelError` where a run cannot be
carried to its end, so that no figure is ever made up; its caller then asks the simulator.
"""

from typing import Any

import numpy as np

from antecede.pipeline.sweep import kernel
from antecede.pipeline.sweep.kernel import Figures, Messages, Rows
from antecede.pipeline.sweep.pruned_log import DONE, ENTRIES, SLOTS, WINDOW, Ints, Logs
from antecede.pipeline.sweep.schedule import PROCESSES_MAX, Schedule, make
from antecede.simulator.figures import INSTANT
from antecede.simulator.figures import Figures as Report
from antecede.simulator.run import Setup
from antecede.simulator.workloads import SHAPES

_kinds = {"matrix": kernel.MATRIX, "pruned": kernel.PRUNED}
_slots, _entries_per_member, _window = 1_024, 8, 1_024
"""Sizes of arrays to begin with; each is doubled as often as it is too small."""

_doublings_max = 40


class KernelError(Exception):
    """The kernel could not carry a run to its end."""


def serves(setup: Setup) -> bool:
    """Return whether the kernel knows this order and these settings."""
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
    """Run it to the end and return its figures."""
    setup.check()
    figures, _ = walk(setup, make(setup))
    return {"order": str(setup.order), "processes": setup.processes, **figures.report()}


def walk(setup: Setup, plan: Schedule, record: bool = False) -> tuple[Report, list[tuple[int, int]]]:
    """Walk a schedule; the figures, and with ``record`` the deliveries as pairs of process and message."""
    sizes = {SLOTS: _slots, ENTRIES: _entries_per_member, WINDOW: _window}
    for _ in range(_doublings_max):
        found = _figures(len(plan.arrival) if record else 0)
        n, slots, entries = setup.processes, sizes[SLOTS], sizes[ENTRIES]
        kind = _kinds[setup.order.name]
        rows = _rows(n, slots, sizes[WINDOW] if kind == kernel.MATRIX else 1)
        logs = _logs(n, slots if kind == kernel.PRUNED else 1, entries)
        delivered = np.zeros((n, n), np.int64)
        kept = _messages(n, len(plan.source), len(plan.arrival), slots)
        ended = kernel.run(kernel.Run(kind, setup.warmup, plan, found, kept, rows, logs, delivered))
        if ended == DONE:
            pairs = zip(found.delivered_at.tolist(), found.delivered_message.tolist(), strict=True)
            return _Counted(setup.warmup, found, kept), list(pairs)
        if ended not in sizes:
            break
        sizes[ended] *= 2
    raise KernelError(f"the array kernel ended with status {ended} for {setup.order}")


class _Counted(Report):
    """The simulator's own figures, as the kernel has counted them."""

    def __init__(self, warmup: int, found: Figures, kept: Messages) -> None:
        super().__init__(warmup)
        counts, sums = found.counts.tolist(), found.sums.tolist()
        self.sends, self.deliveries = counts[kernel.SENDS], counts[kernel.DELIVERIES]
        self.arrivals, self.held = counts[kernel.ARRIVALS], counts[kernel.HELD]
        self.copies, self.bytes_total = counts[kernel.COPIES], counts[kernel.BYTES_TOTAL]
        self.bytes_max, self._weighed = counts[kernel.BYTES_MAX], counts[kernel.WEIGHED]
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
        np.zeros(sends, np.int32),
        np.arange(slots)[::-1].copy(),
        np.zeros(slots, np.int64),
        np.zeros(slots, np.int64),
        np.zeros((slots, 3), np.int64),
        np.zeros(copies, np.int32),
        np.arange(several)[::-1].copy(),
        np.array([slots, several]),
        np.zeros(several, np.int64),
        np.zeros(several, np.int64),
        np.full((n, n), -1, np.int64),
        np.full((n, n), -1, np.int64),
        np.zeros(several, np.int32),
    )


def _rows(n: int, slots: int, window: int) -> Rows:
    return Rows(
        np.zeros(n, np.int64),
        np.zeros((n, window, n), np.int32),
        np.full((n, window), n, np.int64),
        np.zeros((n, n), np.int64),
        np.zeros((slots, n), np.int64),
    )


def _logs(n: int, slots: int, entries: int) -> Logs:
    room = max(4, entries * n // 8)
    several = slots * n

    def masks(*shape: int) -> Any:
        return np.zeros(shape, np.uint64)

    def ints(*shape: int) -> Ints:
        return np.zeros(shape, np.int64)

    return Logs(
        ints(n),
        ints(n, n),
        ints(n, n, room),
        masks(n, n, room),
        ints(slots, n + 1),
        ints(slots, entries * n),
        masks(slots, entries * n),
        ints(several),
        ints(several, 2 * room),
        ints(several, 2 * room),
        ints(2 * room + 2),
        masks(2 * room + 2),
    )
