"""Workloads. A workload decides which process sends to which other processes, and when.

``uniform`` and ``multicast`` are the set-up of Jang et al. §6.2: every process sends at its own intervals. A multicast
goes to k different processes. All values of k from 1 to n − 1 have the same probability, where n is the number of
processes. So the mean of k is n / 2. ``broadcast`` sends each message to all other processes. The other workloads
imitate real systems: requests and replies, a ping-pong, groups that communicate mostly among themselves.
"""

from collections.abc import Callable
from random import Random

from antecede.errors import UsageError
from antecede.messages import Message
from antecede.simulator.draws import Draw, below, subset
from antecede.simulator.kernel import World

Destinations = Callable[[int], int]
"""A function that gets the number of a process, and returns the destinations of its next message as a bit mask."""


def uniform(processes: int, rng: Random) -> Destinations:
    """Return a function that chooses one of the other processes. Each of them has the same probability."""

    def choose(process: int) -> int:
        other = below(rng, processes - 1)
        return 1 << (other + (other >= process))

    return choose


def multicast(processes: int, rng: Random) -> Destinations:
    """Return a function that chooses some of the other processes. Every number of destinations from 1 to ``processes``
    − 1 has the same probability."""
    others = [[other for other in range(processes) if other != process] for process in range(processes)]

    def choose(process: int) -> int:
        return subset(rng, others[process], 1 + below(rng, processes - 1))

    return choose


def broadcast(processes: int, rng: Random) -> Destinations:
    """Return a function that chooses all other processes."""
    everyone = (1 << processes) - 1
    return lambda process: everyone & ~(1 << process)


def clusters(processes: int, rng: Random, size: int = 4, locality: float = 0.9) -> Destinations:
    """Return a function that chooses one other process. With the probability ``locality``, it chooses from the sender's
    group of ``size`` consecutive processes. Otherwise it chooses from all other processes."""
    anywhere = uniform(processes, rng)

    def choose(process: int) -> int:
        first = process - process % size
        near = [other for other in range(first, min(first + size, processes)) if other != process]
        if near and rng.random() < locality:
            return 1 << near[below(rng, len(near))]
        return anywhere(process)

    return choose


SHAPES: dict[str, Callable[[int, Random], Destinations]] = {
    "unicast": uniform,
    "multicast": multicast,
    "broadcast": broadcast,
    "clusters": clusters,
}


class Spontaneous:
    """A workload: every process sends at its own intervals, until ``messages`` messages have been sent in total."""

    payload = b""

    def __init__(self, messages: int, gap: Draw, destinations: Destinations) -> None:
        self._left = messages
        self._gap = gap
        self._destinations = destinations

    def start(self, world: World) -> None:
        for process in range(world.processes):
            world.wake_after(self._gap(), process)

    def wake(self, world: World, process: int) -> None:
        if self._left:
            self._left -= 1
            world.send(process, self._destinations(process), self.payload)
            world.wake_after(self._gap(), process)

    def delivered(self, world: World, process: int, message: Message) -> None:
        pass


class RequestReply(Spontaneous):
    """A workload: every process sends requests at its own intervals, and every receiver of a request sends a reply. The
    workload ends when ``messages`` requests and replies have been sent in total."""

    payload = b"request"

    def delivered(self, world: World, process: int, message: Message) -> None:
        if message.payload == self.payload and self._left:
            self._left -= 1
            world.send(process, 1 << message.source, b"reply")


class PingPong:
    """A workload: process 0 sends one message to every other process. From then on, every receiver of a message answers
    immediately (Laumay et al. §6.1), until ``messages`` messages have been sent in total."""

    def __init__(self, messages: int) -> None:
        self._left = messages

    def start(self, world: World) -> None:
        if world.processes < 2:
            raise UsageError("the workload ping-pong needs at least two processes")
        for other in range(1, world.processes):
            self._send(world, 0, other)

    def wake(self, world: World, process: int) -> None:
        pass

    def delivered(self, world: World, process: int, message: Message) -> None:
        self._send(world, process, message.source)

    def _send(self, world: World, process: int, to: int) -> None:
        if self._left:
            self._left -= 1
            world.send(process, 1 << to)
