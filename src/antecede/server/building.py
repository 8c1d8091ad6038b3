"""Build a snapshot from the previous snapshot and the log, in a separate process while the server runs.

Encoding a large state takes long, and the server could take no steps during this time. So another process builds the
snapshot: it replays the log up to one record, as a server does at its start. The replay needs no handlers, because the
log contains the outcome of every reaction. Only the operations of replicated objects are carried out again. Two things
are not in the log, and the server passes them in a :class:`Task`: which frames peers have acknowledged, and which links
have stopped.
"""

from collections.abc import Iterable

import msgspec

from antecede.server import AgentServer
from antecede.server.recovery import replay


class Task(msgspec.Struct, frozen=True):
    """A snapshot to build: the state of a server after the record ``upto``."""

    upto: int
    acknowledged: list[tuple[str, str, int, bytes]]
    """For each link: its domain, its peer, the number up to which all frames are acknowledged, and a bit map of the
    acknowledged frames after that number."""
    stopped: list[tuple[str, str, str]]
    """The links that have stopped: domain, peer, reason."""


def task_of(machine: AgentServer, upto: int) -> Task:
    """Return the task to build a snapshot of the machine's present state. The log up to the record ``upto`` must
    contain all of this state."""
    acknowledged = [(domain, peer, *link.acknowledged) for domain, peer, link in machine.channel.links.ends]
    return Task(upto, acknowledged, [(*place, reason) for place, reason in machine.stopped.items()])


def build(machine: AgentServer, snapshot: bytes | None, stored: Iterable[bytes], epoch: str, task: Task) -> bytes:
    """Build the snapshot of a task, and return it as bytes. ``machine``: a new state machine, which has no state yet.
    ``snapshot``: the previous snapshot, or None if there is no previous snapshot. ``stored``: the log after the
    previous snapshot, up to the task's record."""
    replay(machine, snapshot, stored, epoch, 0.0)
    for domain, peer, upto, beyond in task.acknowledged:
        machine.channel.consumers[domain].links[peer].settle(upto, beyond)
    machine.stopped = {(domain, peer): reason for domain, peer, reason in task.stopped}
    return machine.snapshot()
