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

import hashlib
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from antecede import limits
from antecede.channel import Channel, Pausing, Waiting
from antecede.engine import Belongings
from antecede.errors import OrderError, TopologyError
from antecede.orders import parse
from antecede.server.inputs import OPERATOR, Plan
from antecede.server.items import Abandoned, Committed, Epoch, Learned, Organised, Organising, Paused, Received, Staged
from antecede.server.items import Epoch as Known
from antecede.topology import TopologyFile, parse_topology, plan_change
from antecede.trace.epochs import Area, Guarantee
from antecede.trace.epochs import Epoch as TraceEpoch

if TYPE_CHECKING:
    from antecede.server import AgentServer

# The epochs of a server, for the metadata of a trace (:mod:`antecede.trace.epochs`).
#
# An *epoch* is the time during which one topology is in force. The entry of an epoch lists processes of one server,
# each
# with the index of its first event in the epoch. A process is not listed if it had no events since the last epoch that
# lists it, because its index is still the same. So processes without events need no space.


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
    epochs: list[TraceEpoch], file: TopologyFile, change: int, history: list[Known], indices: dict[str, int]
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


OUTSIDE = "the server is not part of the system yet: try again when antecede topology apply has added it"
LEAVING = "the server is being removed from the topology: try again later"


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


class Organisation(SavedOrganisation):
    """The topology in force at one server, and the change that is staged."""

    outside: bool = False
    """Whether this server still waits to be added: the change that adds it was not made yet, so the other servers do
    not know it."""
    learned: int = -1
    """The number of the last change that this server has learned from another server since this server's start, or −1
    if it has learned none."""
    applied: int = 0
    """The number of items that were applied since this server was started. A driver compares this number with an
    earlier value to notice new items."""

    # Items.

    def apply(self, item: Organising, machine: "AgentServer") -> None:
        """Apply a log item about the topology. The item may change ``machine``, too."""
        self.applied += 1
        if isinstance(item, Organised):
            self._note(item, machine)
        elif isinstance(item, Paused):
            self._end_pause(machine)
            self.paused, self.attempt = item.change, item.attempt
            machine.channel.pause(item.domains, item.agents)
            self._freeze(machine, item.agents, item.whole)
            for client in item.clients:
                machine.clients.setdefault(client, 0)
        elif isinstance(item, Staged):
            self._stage(item, machine)
        elif isinstance(item, Learned):
            self._learn(item, machine)
        elif isinstance(item, Abandoned):
            self._abandon(item, machine)
        elif self.staged is None or self.staged.change != item.change:
            # The same decision came twice.
            return
        elif isinstance(item, Received):
            known = {one.address for one in item.belongings}
            self.came = [one for one in self.came if one.address not in known] + item.belongings
        elif item.attempt in ("", self.staged.attempt):
            self._commit(item, self.staged, machine)

    def _note(self, item: Organised, machine: "AgentServer") -> None:
        self.topology = item.topology
        self.use(machine)
        file = topology_in(self.topology)
        self.history = [Epoch(self.change, machine.epoch, 0, guarantee=weakest_guarantee(file))]

    def use(self, machine: "AgentServer") -> None:
        """Let ``machine`` use the topology in force. ``machine`` is a new server object, which has processed nothing
        yet."""
        file = topology_in(self.topology)
        if machine.plan.file is None or machine.plan.file.epoch != file.epoch:
            plan = plan_for(file, machine.plan)
            orders = machine.plan.orders
            machine.organise(plan, [name for name, order in plan.orders.items() if order is orders.get(name)])
        machine.epoch = file.epoch

    def _stage(self, item: Staged, machine: "AgentServer") -> None:
        if self.staged is not None:
            self._put_back(machine)
        self.staged, self.attempt = item, item.attempt
        self.left = [_taken_out(machine, address) for address in item.leaving]
        file = topology_in(item.topology)
        homes = {agent.name: agent.server for agent in file.agents}
        begun = [name for name, since in item.since.items() if since == item.change]
        machine.channel.learn(file.organisation, homes, file.moved, begun)

    def _commit(self, item: Committed, staged: Staged, machine: "AgentServer") -> None:
        file = topology_in(staged.topology)
        begun = {name for name, since in staged.since.items() if since == staged.change}
        self.removed = machine.name not in file.servers
        if not self.removed:
            before, plan = machine.plan.homes, plan_for(file, machine.plan)
            machine.organise(plan, [name for name in machine.channel.consumers if name not in begun])
            for agent, home in plan.homes.items():
                if home == machine.name and before.get(agent) != home:
                    # Letters that came early were handed out to a client of that name, which does not exist.
                    machine.engine.abandon(agent)
            machine.stopped = {place: why for place, why in machine.stopped.items() if place[0] not in begun}
            machine.engine.following.keep(set(machine.channel.consumers) - begun)
        machine.epoch, self.outside = file.epoch, False
        for one in self.came:
            _put_in(machine, one)
            if one.client:
                self.adopted[one.client] = one.address
        self.system, self.change, self.since = staged.system, staged.change, dict(staged.since)
        self.topology = staged.topology
        made = Epoch(self.change, machine.epoch, item.clock_ms, staged.attempt, weakest_guarantee(file))
        self.history = [*(staged.history or self.history), made][-limits.changes_kept_max :]
        self.staged, self.left, self.came = None, [], []
        self._end_pause(machine)

    def _learn(self, item: Learned, machine: "AgentServer") -> None:
        if item.change <= self.change:
            return
        file = topology_in(item.topology)
        machine.organise(plan_for(file, machine.plan), list(machine.channel.consumers))
        machine.epoch, self.outside = file.epoch, False
        self.system, self.change, self.topology, self.since = item.system, item.change, item.topology, dict(item.since)
        self.history, self.learned = list(item.history)[-limits.changes_kept_max :], self.change

    def _abandon(self, item: Abandoned, machine: "AgentServer") -> None:
        if item.attempt not in ("", self.attempt):
            return
        if self.staged is not None and self.staged.change == item.change:
            self._put_back(machine)
        if self.paused == item.change:
            self._end_pause(machine)

    def _put_back(self, machine: "AgentServer") -> None:
        for one in self.left:
            _put_in(machine, one)
        self.staged, self.left, self.came = None, [], []
        # Forget what was learned about the new topology.
        machine.organise(machine.plan, list(machine.channel.consumers))
        if not self.paused:
            self._end_pause(machine)

    def _freeze(self, machine: "AgentServer", agents: list[str], whole: bool) -> None:
        self.whole = whole
        if agents or whole:
            machine.engine.freeze([] if whole else agents)

    def _end_pause(self, machine: "AgentServer") -> None:
        self.paused, self.whole, self.attempt = 0, False, ""
        machine.engine.freeze(None)
        if not self.removed:
            machine.channel.resume()

    # Questions.

    @property
    def closed(self) -> str:
        """The reason why clients must not publish now, or an empty string if they may publish."""
        return OUTSIDE if self.outside else LEAVING if self.whole or self.removed else ""

    def is_new(self, channel: Channel) -> bool:
        """Return whether this server has never been part of a system: it knows of no change, and has never met a
        peer."""
        return not (self.change or self.system) and not any(link.peer for _, _, link in channel.links.ends)

    def is_apart(self, server: str) -> bool:
        """Return whether ``server`` does not take part in the change that is staged here. Letters must not be forwarded
        to such a server. The letters may come from servers that have already made the change, and ``server`` may not
        know the senders."""
        return self.staged is not None and server in self.staged.absent

    def made_by(self, change: int) -> str | None:
        """Return the name of the attempt that made a change. Return an empty string if the name is not known, and None
        if the change has not come into force here."""
        if change > self.change:
            return None
        return next((one.attempt for one in self.history if one.change == change), "")

    def digest(self, domain: str, plan: Plan) -> str:
        """Return a digest of the name, the members and the order of a domain, and of the last change that gave the
        domain a new state. Two servers that share the domain may connect only if they have the same digest."""
        members, order = plan.topology.domains[domain].servers, str(plan.orders[domain])
        content = json.dumps([domain, list(members), order, self.since.get(domain, 0)], separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def state(self, waiting: int = 0) -> dict[str, Any]:
        """Return the topology in force and the change in progress, for operators. ``waiting``: the number of letters
        that wait for the end of the change."""
        staged = self.staged
        progress: dict[str, Any] | None = None
        if staged is not None:
            epoch = topology_in(staged.topology).epoch
            progress = {"change": staged.change, "epoch": epoch, "coordinator": staged.coordinator, "state": "staged"}
            progress["waiting"] = waiting
        elif self.paused:
            progress = {"change": self.paused, "epoch": None, "coordinator": None, "state": "paused"}
            progress["waiting"] = waiting
        return {"system": self.system, "change": self.change, "in_progress": progress}

    # State.

    def dump(self, channel: Channel) -> SavedOrganisation:
        """Return the durable state. It includes the letters that wait for the end of a change."""
        pausing = channel.pausing or Pausing()
        saved = SavedOrganisation(*(getattr(self, name) for name in SavedOrganisation.__struct_fields__))
        saved.domains, saved.agents = sorted(pausing.domains), sorted(pausing.agents)
        saved.waiting = list(pausing.waiting)
        return saved

    def load(self, saved: SavedOrganisation, machine: "AgentServer") -> None:
        """Load the durable state, and let ``machine`` use the topology in force. ``machine`` is a new server object."""
        for name in saved.__struct_fields__:
            setattr(self, name, getattr(saved, name))
        self.domains, self.agents, self.waiting = [], [], []
        if not self.topology or self.removed:
            return
        self.use(machine)
        if self.staged is not None:
            file = topology_in(self.staged.topology)
            homes = {agent.name: agent.server for agent in file.agents}
            machine.channel.learn(file.organisation, homes, file.moved, ())
        if self.paused or saved.waiting or saved.domains:
            machine.channel.pausing = Pausing(saved.domains, saved.agents, saved.waiting)
        if self.paused:
            self._freeze(machine, saved.agents, saved.whole)


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


def leaving_from(machine: "AgentServer", file: TopologyFile) -> list[str]:
    """Return the agents and clients that leave a server if this topology comes into force."""
    homes = {agent.name: agent.server for agent in file.agents}
    found: list[str] = []
    known = [agent for agent, home in machine.plan.homes.items() if home == machine.name]
    for address in dict.fromkeys([*known, *addresses_of(machine)]):
        home = homes.get(address) or (file.home_of(address.rpartition("@")[2]) if "@" in address else "")
        if address == machine.name:
            # Letters that this server could not forward.
            home = file.home_of(machine.name)
        if home != machine.name or machine.name not in file.servers:
            found.append(address)
    return found


def addresses_of(machine: "AgentServer") -> list[str]:
    """Return the addresses of all agents and clients for which a server stores anything."""
    found = machine.engine.addresses()
    found += [agent for _, agent, _ in machine.timers.waiting.values()]
    # The operator's own client sends from every server, and receives nothing.
    found += [client_address(machine, client) for client in machine.clients if client != OPERATOR]
    return list(dict.fromkeys(found))


def client_address(machine: "AgentServer", client: str) -> str:
    """Return the address of a client of a server. A client that came from a removed server keeps its address."""
    return machine.organisation.adopted.get(client) or f"{client}@{machine.name}"


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


def _taken_out(machine: "AgentServer", address: str) -> Belongings:
    belongings = machine.engine.take_out(address)
    # Between servers the wall clock counts: the server time of another one may be different.
    ahead = machine.clock.times.ahead_ms
    timers = [(when + ahead, letter) for when, letter in machine.timers.take_out(address)]
    client = address.rpartition("@")[0]
    published = machine.clients.pop(client, None) if client_address(machine, client) == address else None
    return msgspec.structs.replace(belongings, timers=timers, published=published)


def _put_in(machine: "AgentServer", belongings: Belongings) -> None:
    machine.engine.put_in(belongings)
    ahead = machine.clock.times.ahead_ms
    machine.timers.put_in(belongings.address, [(when - ahead, letter) for when, letter in belongings.timers])
    if belongings.published is not None:
        machine.clients[belongings.address.rpartition("@")[0]] = belongings.published


_shown_max = 4
