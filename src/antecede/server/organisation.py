"""The topology in force at one server, and its changes.

**The topology in force is part of the log, and a topology file is only a proposal.** A log begins with the text of its
topology (:class:`Organised`). A change is made in steps. Each step is an item of the log:

    Paused      the pause begins: letters that would enter the region of the change (the domains that pause) wait here
    Staged      this server is ready: it knows the new topology, and stores the belongings (all data) of leaving agents
                separately
    Received    another server has sent the belongings of agents that will live here
    Committed   the new topology is in force: the arrived agents live here now, and the departed agents are forgotten
    Abandoned   instead of Committed: the leaving agents stay here, and the belongings that have come are forgotten
    Learned     changes that were made without this server are in force (:mod:`antecede.server.learning`)

One server, the coordinator, decides: when its log contains ``Committed``, all other servers must make the change, too.
The other steps can be repeated or taken back. At the moment of the first commit on any server, no letter is in transit
in the region of the change (:mod:`antecede.topology.change`); see :mod:`antecede.server.change`.

A change lets some domains start with a new state. For each domain, ``since`` contains the number of the last change
that gave the domain a new state. Before two servers connect, they compare every domain that they share. Its members,
its order and its number in ``since`` must be the same on both servers (:meth:`Organisation.digest`). So when a domain
has started with a new state, servers never accept a frame that is older than this state. This is true even if a later
change restores an earlier topology.
"""

from functools import lru_cache

import msgspec
from msgspec.structs import replace

from antecede import limits
from antecede.channel import Waiting
from antecede.engine import Belongings
from antecede.errors import OrderError, TopologyError
from antecede.orders import parse
from antecede.server.inputs import Plan
from antecede.server.items import Epoch, Staged
from antecede.topology import TopologyFile, parse_topology, plan_change
from antecede.trace.epochs import Area, Guarantee
from antecede.trace.epochs import Epoch as TraceEpoch

# The epochs of a server, for the metadata of a trace (:mod:`antecede.trace.epochs`).
#
# An *epoch* is the time during which one topology is in force. The entry of an epoch lists processes of one server,
# each with the index of its first event in the epoch. A process is not listed if it had no events since the last epoch
# that lists it, because its index is still the same. So processes without events need no space.


def first_epoch(file: TopologyFile) -> list[TraceEpoch]:
    """Return a list with the only epoch of a system whose topology has not changed."""
    return [_epoch(file, 0, {}, None)]


def next_epoch(
    epochs: list[TraceEpoch], file: TopologyFile, change: int, indices: dict[str, int], clock_ms: int
) -> list[TraceEpoch]:
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


def _fresh(epochs: list[TraceEpoch], indices: dict[str, int]) -> dict[str, int]:
    """Return ``indices`` without the processes that have no new events. The index of such a process is the same as in
    the last epoch that lists it. If no epoch lists it, the index is 0."""
    listed: dict[str, int] = {}
    for one in epochs:
        listed.update(one.since)
    return {process: index for process, index in indices.items() if index != listed.get(process, 0)}


def learned_epochs(
    epochs: list[TraceEpoch], file: TopologyFile, change: int, history: list[Epoch], indices: dict[str, int]
) -> list[TraceEpoch]:
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
            epochs = [*epochs, TraceEpoch(one.change, one.guarantee or "none", since, one.epoch, time)]
    return next_epoch(epochs, file, change, indices, clock_ms)


def weakest_guarantee(file: TopologyFile) -> Guarantee:
    """Return the weakest guarantee of all domains."""
    kept = {_guarantee(domain.order) for domain in file.domains}
    return "none" if "none" in kept else "fifo" if "fifo" in kept else "causal"


def _epoch(file: TopologyFile, change: int, since: dict[str, int], time: int | None) -> TraceEpoch:
    areas = {domain.name: Area(tuple(domain.servers), _guarantee(domain.order)) for domain in file.domains}
    agents = {agent.name: agent.server for agent in file.agents}
    return TraceEpoch(change, weakest_guarantee(file), since, file.epoch, time, areas, agents, dict(file.moved))


def _guarantee(order: str) -> Guarantee:
    try:
        kept = parse(order).guarantees()
    except OrderError:
        # An order of another package, which is not installed here.
        return "none"
    return "causal" if "causal" in kept else "fifo" if "fifo" in kept else "none"


class SavedOrganisation(msgspec.Struct):
    """The durable part of an :class:`Organisation`. Snapshots contain it."""

    system: str = ""
    """The random name of the whole system, chosen at its first change of the topology; empty before that change."""
    change: int = 0
    """The number of the change that put the present topology in force, or 0 if it is the first topology."""
    topology: str = ""
    """The text of the topology in force, or an empty string if it is not known."""
    since: dict[str, int] = {}
    """Domain → the number of the last change that gave the domain a new state. A domain without an entry still has its
    state from the first topology."""
    staged: Staged | None = None
    left: list[Belongings] = []
    """The belongings of agents and clients that leave this server when the staged change is made."""
    came: list[Belongings] = []
    """The belongings of agents and clients that come to this server when the staged change is made."""
    history: list[Epoch] = []
    """An entry for each topology that was in force so far, and for the present one, oldest first. Only the last
    ``changes_kept_max`` entries are kept."""
    adopted: dict[str, str] = {}
    """Clients that moved here from removed servers: the client's name → its address. Clients keep their old
    addresses."""
    removed: bool = False
    """Whether a change has removed this server."""
    paused: int = 0
    """The number of the change for which letters wait here, or 0 if there is no such change."""
    domains: list[str] = []
    """The domains that pause. The fields ``domains``, ``agents`` and ``waiting`` are used only in snapshots. While a
    server runs, ``Channel.pausing`` has these values."""
    agents: list[str] = []
    waiting: list[Waiting] = []
    whole: bool = False
    """Whether all agents of this server are paused, because the change removes this server."""
    attempt: str = ""
    """The name of the *attempt* (one try to make a change of the topology) in which this server takes part. While it
    takes part, the change is staged here, or letters wait here for the change. At other times, the name is empty."""


@lru_cache(maxsize=16)
def topology_in(text: str) -> TopologyFile:
    """Parse the text of a topology that comes from a log."""
    return parse_topology(text, "the topology in the log")


def plan_for(file: TopologyFile, basis: Plan) -> Plan:
    """Return the plan of the topology in ``file``. A domain keeps its order from ``basis`` if two conditions hold. (1)
    ``basis`` and ``file`` give the domain the same members. (2) The order in ``basis`` has replicated objects, or
    ``file`` names the same order. All other domains get the order that ``file`` names. Raise TopologyError if this
    order is not valid."""
    orders = {}
    for domain in file.domains:
        known = basis.orders.get(domain.name)
        same = known is not None and basis.topology.domains[domain.name].servers == domain.servers
        if same and known is not None and (known.object_names() or str(known) == domain.order):
            orders[domain.name] = known
            continue
        try:
            orders[domain.name] = parse(domain.order)
        except OrderError as error:
            raise TopologyError(f"{file.name}: domain {domain.name}: {error}") from None
    homes = {agent.name: agent.server for agent in file.agents}
    return Plan(file.organisation, orders, homes, basis.resend_after, file.mailboxes, file)


def explain(old: TopologyFile, new: TopologyFile) -> str:
    """Return one line of text. It shows the first differences between two topologies, and the number of the other
    differences."""
    found = [
        (one.kind if one.kind == one.name else f"{one.kind.replace('-', ' ')} {one.name}")
        + (f" ({one.before} → {one.after})" if one.before and one.after else "")
        for one in plan_change(old, new).differences
    ]
    rest = len(found) - _shown_max
    return "; ".join(found[:_shown_max]) + (f"; and {rest} more" if rest > 0 else "")


_shown_max = 4
