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
from antecede.server.items import LOG_FORMAT, Began, decode_record, joined
from antecede.server.progress import ENDED_WELL, Interrupted
from antecede.server.snapshots import check_origin


def recover(
    machine: AgentServer,
    snapshot: bytes | None,
    stored: Iterable[bytes],
    epoch: str,
    now: float,
    newest: int = LOG_FORMAT,
    ended: Interrupted = ENDED_WELL,
) -> bytes:
    """Bring a new machine to the end of its log: a snapshot, and all that was stored after it. ``newest``: the newest
    log format of this server. ``ended``: the handler calls that were in progress when the last life ended. Return the
    record that must be appended before any input."""
    if snapshot is not None:
        machine.restore(snapshot, now, epoch)
    first = snapshot is None
    for record in joined(stored):
        if first:
            _check_first(machine, record, epoch)
            first = False
        machine.replay(record, now)
    if first:
        return machine.begin(epoch, newest)
    for consumer in machine.channel.consumers.values():
        # Operators see only counts from now on.
        consumer.traffic = Traffic()
    return machine.resume(newest, ended)


def _check_first(machine: AgentServer, record: bytes, epoch: str) -> None:
    items = decode_record(record)
    if not items or not isinstance(items[0], Began):
        raise StoreError("the data directory does not contain a server's log")
    check_origin(machine.name, items[0].server, items[0].epoch, epoch)
