"""Rebuilds the state of the machine from its log: loads the newest snapshot, then replays every record after it.

The first record of a log names its server, and the topology in force is in the log
(:mod:`antecede.server.organisation`). The machine replays each record under the topology that was in force when
the record was written. A topology file is only a proposal: if its topology differs from the topology in force, the
server does not change to it. But the server starts only if its topology file contains one of these:

* the topology in force, or one that was in force before;
* the topology of a change that is staged;
* a topology that this server can later learn from the other servers. They may already use this topology.

Then the server adds a record, which says that the server has started again. The driver takes no step before this record
is durable (:mod:`antecede.server.driver`).
"""

from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

from antecede.channel.consumer import Traffic
from antecede.errors import StoreError, TopologyError
from antecede.server.items import Began, Organised, Resumed, Truncated, decode_record, joined
from antecede.server.node import AgentServer
from antecede.server.organisation import explain, topology_in
from antecede.server.progress import ENDED_WELL, Interrupted
from antecede.server.snapshots import check_server, decode_state, unknown_topology
from antecede.topology import TopologyFile, plan_change


def recover(
    machine: AgentServer,
    snapshot: bytes | None,
    stored: Iterable[bytes],
    epoch: str,
    now: float,
    ended: Interrupted = ENDED_WELL,
    wall_ms: int = 0,
    cuts: list[Truncated] | None = None,
) -> bytes:
    """Bring a new machine to the state at the end of its log. Return a record. The caller must append it to the log
    before the machine processes any input. ``snapshot``: the newest snapshot, if there is one. ``stored``: everything
    that the log contains after this snapshot. ``epoch``: the epoch of the topology file. ``ended``: the handler calls
    that were in progress when the server's previous process ended. ``wall_ms``: the wall clock, in milliseconds.
    ``cuts``: the writes that a crash interrupted. They were removed from the log."""
    given = machine.plan.file
    known = replay(machine, snapshot, stored, epoch, now)
    if wall_ms:
        machine.clock.start(now, wall_ms)
    if not known:
        return machine.begin(epoch, cuts or [])
    _check_topology(machine, given, epoch)
    if given is not None and machine.epoch == epoch:
        # The settings of mailboxes are not part of the epoch: those of the file count.
        machine.limit(given.mailboxes)
    return resume(machine, ended, cuts or [])


def resume(
    machine: AgentServer,
    ended: Interrupted = ENDED_WELL,
    cuts: Iterable[Truncated] = (),
) -> bytes:
    """Apply and return the first record after a restart of the server. Call this when the whole log has been
    replayed."""
    settings = machine.settings(ended, machine.truncations.unknown(list(cuts)))
    return machine.note([Resumed(), *settings])


def replay(machine: AgentServer, snapshot: bytes | None, stored: Iterable[bytes], epoch: str, now: float) -> bool:
    """Bring a new machine to the state at the end of its log. Return whether there is a log. The topology in force at
    the end of the log is not compared with a topology file. ``epoch``: the epoch of the topology with which the machine
    was created. If the log does not contain the text of its topology, the epoch in the log must be the same."""
    records = joined(stored)
    if snapshot is not None:
        machine.restore(snapshot, now, epoch)
    else:
        first = next(records, None)
        if first is None:
            return False
        records = _begun(machine, first, records, epoch)
    for record in records:
        machine.replay(record, now)
    for consumer in machine.channel.consumers.values():
        # Operators see only counts from now on.
        consumer.traffic = Traffic()
    return True


def topology_of(snapshot: bytes | None, stored: Iterable[bytes]) -> tuple[str, str]:
    """Return the epoch and the text of the topology with which the replay of a log begins. The text is empty if the log
    does not contain it. Both are empty if there is no log."""
    if snapshot is not None:
        state = decode_state(snapshot)
        return state.epoch, state.organisation.topology
    epoch = ""
    for record in joined(stored):
        for item in decode_record(record):
            if isinstance(item, Began) and not epoch:
                epoch = item.epoch
            elif isinstance(item, Organised):
                return epoch, item.topology
    return epoch, ""


def _begun(machine: AgentServer, first: bytes, rest: Iterator[bytes], epoch: str) -> Iterator[bytes]:
    """Check the first record of a log; return all records."""
    items = decode_record(first)
    if not items or not isinstance(items[0], Began):
        raise StoreError("the data directory does not contain a server's log")
    if items[0].incarnation not in (0, machine.incarnation):
        raise StoreError("the snapshot of this restored server is missing or damaged: restore the backup again")
    check_server(machine.name, items[0].server)
    if items[0].epoch == epoch or any(isinstance(item, Organised) for item in items):
        return chain([first], rest)
    raise unknown_topology(machine.name, items[0].epoch, epoch)


def _check_topology(machine: AgentServer, given: TopologyFile | None, epoch: str) -> None:
    """Raise an error if this server was removed, or if its topology file contains none of the topologies that the
    docstring of this module allows."""
    organisation = machine.organisation
    if organisation.removed:
        raise TopologyError(
            f"server {machine.name} was removed by change {organisation.change}: its directory is not needed any more"
        )
    if machine.epoch == epoch or given is None:
        return
    if any(one.epoch == epoch for one in organisation.history):
        # The file was in force before. A server that restarts with it must not stay away.
        return
    staged = organisation.staged
    if staged is not None and topology_in(staged.topology).epoch == epoch:
        return
    force = topology_in(organisation.topology)
    if machine.name not in plan_change(force, given).concerned:
        # If the others have made this change, this server learns it from them (antecede.server.learning).
        return
    raise TopologyError(
        f"{given.name} differs from the topology in force at server {machine.name} (change {organisation.change}, "
        f"epoch {machine.epoch}): {explain(force, given)}; to make this change: antecede topology apply {given.name}"
    )


# Build a snapshot from the previous snapshot and the log, in a separate process while the server runs.
#
# Encoding a large state takes long, and the server could take no steps during this time. So another process builds the
# snapshot: it replays the log up to one record, as a server does at its start. The replay needs no handlers, because
# the log contains the outcome of every reaction. Only the operations of replicated objects are carried out again. Two
# things are not in the log, and the server passes them in a :class:`Task`: which frames peers have acknowledged, and
# which links have stopped.


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
