"""From a store to the state of the machine: the newest snapshot, then every record after it.

The first record of a log names its server and its topology. A server that is started on another's directory, or under
another topology, is refused before anything happens, because the stamps would have another meaning.
"""

from antecede.channel.consumer import Traffic
from antecede.errors import StoreError
from antecede.server import AgentServer
from antecede.server.items import Began, decode_record, joined
from antecede.store import Store


def recover(machine: AgentServer, store: Store, epoch: str, now: float) -> None:
    """Bring a new machine to the end of the log; begin the log if it is empty."""
    found = store.recovered
    if found.snapshot is not None:
        machine.restore(found.snapshot.data(), now, epoch)
    elif found.last == 0:
        store.append(machine.begin(epoch))
        return
    first = found.snapshot is None
    for record in joined(record for _, record in found.records()):
        if first:
            _check_first(machine, record, epoch)
            first = False
        machine.replay(record, now)
    for consumer in machine.channel.consumers.values():
        # Operators see only counts from now on.
        consumer.traffic = Traffic()


def _check_first(machine: AgentServer, record: bytes, epoch: str) -> None:
    items = decode_record(record)
    if not items or not isinstance(items[0], Began):
        raise StoreError("the data directory does not contain a server's log")
    machine.check_origin(items[0].server, items[0].epoch, epoch)
