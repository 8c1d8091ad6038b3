"""From a log to the state of the machine: the newest snapshot, then every record after it.

The first record of a log names its server and its topology. A server that is started on another's directory, or under
another topology, is refused before anything happens, because the stamps would have another meaning.

A log of an older format is replayed by the rules of that format. Then a record says that the newest rules are in force
and that a new life begins. The driver takes no step before it is durable (:mod:`antecede.server.driver`).
"""

from collections.abc import Iterable

from antecede.channel.consumer import Traffic
from antecede.errors import StoreError
from antecede.server import AgentServer
from antecede.server.items import LOG_FORMAT, Began, Formatted, Resumed, Truncated, decode_record, joined
from antecede.server.progress import ENDED_WELL, Interrupted
from antecede.server.requests import settings_items
from antecede.server.snapshots import check_origin


def recover(
    machine: AgentServer,
    snapshot: bytes | None,
    stored: Iterable[bytes],
    epoch: str,
    now: float,
    newest: int = LOG_FORMAT,
    ended: Interrupted = ENDED_WELL,
    wall_ms: int = 0,
    cuts: list[Truncated] | None = None,
) -> bytes:
    """Bring a new machine to the end of its log: a snapshot, and all that was stored after it. ``newest``: the newest
    log format of this server. ``ended``: the handler calls that were in progress when the last life ended. ``wall_ms``:
    the wall clock. ``cuts``: torn writes that were removed from the log. Return the record that must be appended before
    any input."""
    found = replay(machine, snapshot, stored, epoch, now)
    if wall_ms:
        machine.clock.start(now, wall_ms)
    if not found:
        return machine.begin(epoch, newest, cuts or [])
    for consumer in machine.channel.consumers.values():
        # Operators see only counts from now on.
        consumer.traffic = Traffic()
    return resume(machine, newest, ended, cuts or [])


def replay(machine: AgentServer, snapshot: bytes | None, stored: Iterable[bytes], epoch: str, now: float) -> bool:
    """Bring a new machine to the end of what was stored; return False if that is nothing."""
    if snapshot is not None:
        machine.restore(snapshot, now, epoch)
    first = snapshot is None
    for record in joined(stored):
        if first:
            _check_first(machine, record, epoch)
            first = False
        machine.replay(record, now)
    return not first


def resume(machine: AgentServer, newest: int, ended: Interrupted, cuts: list[Truncated]) -> bytes:
    """Return the record to continue a log with, after the last one was replayed."""
    newest = max(newest, machine.log_format)
    settings = settings_items(machine, newest, ended, machine.truncations.unknown(cuts))
    return machine.note([Formatted(newest), Resumed(), *settings])


def _check_first(machine: AgentServer, record: bytes, epoch: str) -> None:
    items = decode_record(record)
    if not items or not isinstance(items[0], Began):
        raise StoreError("the data directory does not contain a server's log")
    check_origin(machine.name, items[0].server, items[0].epoch, epoch)
    if items[0].incarnation not in (0, machine.incarnation):
        raise StoreError("the snapshot of this restored server is missing or damaged: restore the backup again")
