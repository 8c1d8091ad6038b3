"""The schedule of a run: every send and every arrival, in the sequence in which the simulator processes them.

Under the orders of the array kernel, a process sends all copies of a message immediately, and sends no other packets.
So the times of the events depend only on the random draws and not on the order, and the schedule can be computed before
the run. This module uses the workloads and the random draws of the simulator. So a schedule has the same events as
``antecede simulate`` with the same settings.

If two events have the same time, the event that was scheduled first comes first. The simulator numbers the events when
it schedules them. At the start it schedules one wake-up per process. When a process wakes up, it sends a message. The
simulator then schedules the arrivals of the copies, and after that the next wake-up of this process.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.messages import Message
from antecede.pipeline.kernels import compiled
from antecede.simulator.draws import parse_draw, stream
from antecede.simulator.kernel import World
from antecede.simulator.run import Setup
from antecede.simulator.workloads import SHAPES, Spontaneous

PROCESSES_MAX = 64
"""The largest number of processes in a run, because a set of destinations is stored as one number of 64 bits."""


class Schedule(NamedTuple):
    """Sends and copies as arrays. Copies are numbered in the sequence in which they leave."""

    send_time: NDArray[np.float64]
    source: NDArray[np.int32]
    to: NDArray[np.uint64]
    first_copy: NDArray[np.int64]
    """For each send, the number of its first copy. One more element at the end is the number of all copies."""
    copy_message: NDArray[np.int32]
    copy_target: NDArray[np.int32]
    arrival: NDArray[np.float64]
    events: NDArray[np.int64]
    """The events in their sequence. If a value e is less than the number of sends, the event is send e. Otherwise it is
    the arrival of copy e − (number of sends)."""


class _Sends(World):
    """A simulated world that runs a workload and records its sends, but delivers no message."""

    def __init__(self, processes: int) -> None:
        super().__init__(processes)
        self.times: list[float] = []
        self.sources: list[int] = []
        self.masks: list[int] = []

    def send(self, process: int, to: int, payload: bytes = b"") -> Message:
        self.times.append(self.now)
        self.sources.append(process)
        self.masks.append(to)
        return _unread


_unread = Message("", 0, 0, b"")


def make(setup: Setup) -> Schedule:
    """Return the schedule of a run. The run must have a single group of at most 64 processes, without domains. The
    links between processes may reorder messages, but lose no messages."""
    gap = parse_draw(setup.gap, stream(setup.seed, "gap"))
    destinations = SHAPES[setup.workload](setup.processes, stream(setup.seed, "destinations"))
    world = _Sends(setup.processes)
    world.run(Spontaneous(setup.messages, gap, destinations))
    return _arranged(setup, world)


def _arranged(setup: Setup, world: _Sends) -> Schedule:
    sends = len(world.times)
    send_time, source = np.array(world.times, np.float64), np.array(world.sources, np.int32)
    to = np.array(world.masks, np.uint64)
    first_copy = np.concatenate(([0], np.cumsum(np.bitwise_count(to), dtype=np.int64)))
    copies = int(first_copy[-1])
    copy_message, copy_target = np.zeros(copies, np.int32), np.zeros(copies, np.int32)
    _spread(to, copy_message, copy_target)
    delay = parse_draw(setup.delay, stream(setup.seed, "delay"))
    arrival = send_time[copy_message] + np.fromiter((delay() for _ in range(copies)), np.float64, copies)
    copy_tie = setup.processes + np.arange(copies, dtype=np.int64) + copy_message
    ties = np.concatenate((_wake_ties(setup.processes, source, first_copy), copy_tie))
    events = np.lexsort((ties, np.concatenate((send_time, arrival)))) if sends else np.zeros(0, np.int64)
    return Schedule(send_time, source, to, first_copy, copy_message, copy_target, arrival, events)


def _wake_ties(processes: int, source: NDArray[np.int32], first_copy: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each send, return the number of the wake-up that caused the send. (A process sends a message when it wakes
    up.) The simulator gives a number to each event when it schedules the event. It schedules the first wake-up of a
    process at the start, and each later wake-up after the process has sent its previous message."""
    sends = len(source)
    ties = source.astype(np.int64)
    by_process = np.argsort(source, kind="stable")
    later = by_process[1:][source[by_process[1:]] == source[by_process[:-1]]] if sends else by_process
    before = by_process[:-1][source[by_process[1:]] == source[by_process[:-1]]] if sends else by_process
    ties[later] = processes + first_copy[before + 1] + before
    return ties


@compiled
def _spread(to: NDArray[np.uint64], copy_message: NDArray[np.int32], copy_target: NDArray[np.int32]) -> None:
    """Store the message and the target of each copy in ``copy_message`` and ``copy_target``. The copies of a message
    are sorted by target."""
    copy = 0
    for message in range(len(to)):
        for target in range(PROCESSES_MAX):
            if (to[message] >> np.uint64(target)) & np.uint64(1):
                copy_message[copy] = message
                copy_target[copy] = target
                copy += 1
