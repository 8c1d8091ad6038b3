"""A snapshot built from the previous one and the log, beside the running server.

To encode a large state takes long, and the server cannot take steps meanwhile. So another process builds the snapshot:
it replays the log as a start does, up to one record. This needs no handlers, because the log contains the outcome of
every reaction; only the operations of replicated objects are carried out again. Two things are not in the log, and the
server passes them in a :class:`Task`: which frames peers have acknowledged, and which links have stopped.
"""

from collections.abc import Iterable

import msgspec

from antecede.server import AgentServer
from antecede.server.recovery import replay


class Task(msgspec.Struct, frozen=True):
    """A snapshot to build: the state of a server after one record."""

    upto: int
    acknowledged: list[tuple[str, str, int, bytes]]
    """For each link its domain, its peer, and the acknowledged frames: all up to a number, and a bit map of others."""
    stopped: list[tuple[str, str, str]]
    """The links that have stopped: domain, peer, reason."""


def task_of(machine: AgentServer, upto: int) -> Task:
    """Return the task to build the machine's present state, all of which is in the log up to this record."""
    acknowledged = [(domain, peer, *link.acknowledged) for domain, peer, link in machine.channel.links.ends]
    return Task(upto, acknowledged, [(*place, reason) for place, reason in machine.stopped.items()])


def build(machine: AgentServer, snapshot: bytes | None, stored: Iterable[bytes], epoch: str, task: Task) -> bytes:
    """Return the bytes of the new snapshot. ``machine``: a new one; ``snapshot``: the previous state; ``stored``: what
    the log has after it, up to the task's record."""
    replay(machine, snapshot, stored, epoch, 0.0)
    for domain, peer, upto, beyond in task.acknowledged:
        machine.channel.consumers[domain].links[peer].settle(upto, beyond)
    machine.stopped = {(domain, peer): reason for domain, peer, reason in task.stopped}
    return machine.snapshot()
