"""The epochs of a server, for the metadata of a trace (:mod:`antecede.trace.epochs`).

An *epoch* is the time during which one topology is in force. The entry of an epoch lists processes of one server, each
with the index of its first event in the epoch. A process is not listed if it had no events since the last epoch that
lists it, because its index is still the same. So processes without events need no space.
"""

from msgspec.structs import replace

from antecede import limits
from antecede.errors import OrderError
from antecede.orders import parse
from antecede.server.change_items import Epoch as Known
from antecede.topology import TopologyFile
from antecede.trace.epochs import Area, Epoch, Guarantee


def first_epoch(file: TopologyFile) -> list[Epoch]:
    """Return a list with the only epoch of a system whose topology has not changed."""
    return [_epoch(file, 0, {}, None)]


def next_epoch(
    epochs: list[Epoch], file: TopologyFile, change: int, indices: dict[str, int], clock_ms: int
) -> list[Epoch]:
    """Return the list of epochs after a change of the topology. The new epoch is the last in the list. If the change
    added this server, the list contains only the new epoch. If the list is too long, the oldest epoch is merged into
    the next one. ``indices``: the index of the next event of each process of this server."""
    if not indices or (epochs and epochs[-1].epoch == file.epoch):
        # The change has added this server, which was started with the new topology: it was not part of the system.
        epochs = []
    since = _fresh(epochs, indices)
    epochs = [*epochs, _epoch(file, change, since, clock_ms * 1_000_000 if clock_ms else None)]
    while len(epochs) > limits.changes_kept_max:
        first, second, *rest = epochs
        epochs = [replace(second, since={**first.since, **second.since}), *rest]
    return epochs


def _fresh(epochs: list[Epoch], indices: dict[str, int]) -> dict[str, int]:
    """Return ``indices`` without the processes that have no new events. The index of such a process is the same as in
    the last epoch that lists it. If no epoch lists it, the index is 0."""
    listed: dict[str, int] = {}
    for one in epochs:
        listed.update(one.since)
    return {process: index for process, index in indices.items() if index != listed.get(process, 0)}


def learned_epochs(
    epochs: list[Epoch], file: TopologyFile, change: int, history: list[Known], indices: dict[str, int]
) -> list[Epoch]:
    """Return ``epochs`` with new epochs at the end: one for each change of the topology that this server has missed.
    The server has now learned these changes from ``history``. For the processes of this server, all new epochs begin
    now. The server knows only the domains and agents of the newest topology. So only the last new epoch contains
    domains and agents. Each other new epoch contains only the guarantee of its topology. The traces of other servers
    contain the rest."""
    before = epochs[-1].change if epochs else 0
    clock_ms = next((one.clock_ms for one in history if one.change == change), 0)
    for one in history:
        if before < one.change < change and epochs and indices:
            since, time = _fresh(epochs, indices), one.clock_ms * 1_000_000 or None
            epochs = [*epochs, Epoch(one.change, one.guarantee or "none", since, one.epoch, time)]
    return next_epoch(epochs, file, change, indices, clock_ms)


def weakest_guarantee(file: TopologyFile) -> Guarantee:
    """Return the weakest guarantee of all domains."""
    kept = {_guarantee(domain.order) for domain in file.domains}
    return "none" if "none" in kept else "fifo" if "fifo" in kept else "causal"


def _epoch(file: TopologyFile, change: int, since: dict[str, int], time: int | None) -> Epoch:
    areas = {domain.name: Area(tuple(domain.servers), _guarantee(domain.order)) for domain in file.domains}
    agents = {agent.name: agent.server for agent in file.agents}
    return Epoch(change, weakest_guarantee(file), since, file.epoch, time, areas, agents, dict(file.moved))


def _guarantee(order: str) -> Guarantee:
    try:
        kept = parse(order).guarantees()
    except OrderError:
        # An order of another package, which is not installed here.
        return "none"
    return "causal" if "causal" in kept else "fifo" if "fifo" in kept else "none"
