"""The Channel: one MessageConsumer per domain of this server, and the hop between them (Laumay et al. §5, Fig. 7).

Letters that are sent here, or that a domain delivers here, are examined one after the other, as they come. A letter's
destinations on this server get it at once; for the other destinations it is put on the train
(:mod:`antecede.channel.letters`) of each next domain. Receiving in one domain and stamping for the next are **one step,
in delivery order**: Theorem 1 needs this ("no crossover"), and a router that forwards later breaks causal order even on
a tree.

A multicast crosses a domain as one multicast. In a forest the route to a server is unique. So a router is responsible
for the destinations that it does not reach through the domain from which the letter came.

If a domain's order is total, a letter for agents on this server and on others goes through the order to this server
too: delivering the local copy at once would let two servers see two multicasts in different orders. Messages sent
meanwhile must not overtake this letter (:mod:`antecede.channel.returns`).
"""

from collections.abc import Collection
from itertools import islice
from typing import Any

import msgspec

from antecede.channel.addresses import Addresses
from antecede.channel.consumer import MessageConsumer, Outgoing, SavedConsumer, Taken
from antecede.channel.ends import Links
from antecede.channel.letters import Destinations, Letter, Past, couple, to_of, uncouple
from antecede.channel.pausing import Pausing, Waiting
from antecede.channel.returns import Returns, SavedReturns
from antecede.channel.routes import Hops, Way, first_hops, way_of
from antecede.channel.senders import Senders
from antecede.errors import UnknownAgentError, UsageError, WireError
from antecede.limits import link_resend_first_seconds, shared_addresses_max, train_bytes_max
from antecede.link import Arrival
from antecede.orders import OrderSpec
from antecede.topology import Topology

__all__ = [
    "Channel",
    "Letter",
    "MessageConsumer",
    "Outgoing",
    "Past",
    "SavedChannel",
    "SavedConsumer",
    "SavedReturns",
    "Taken",
    "couple",
    "first_hops",
    "uncouple",
]


class SavedChannel(msgspec.Struct, frozen=True, array_like=True):
    """The durable state of a :class:`Channel`."""

    consumers: dict[str, SavedConsumer]
    returns: SavedReturns


class Channel:
    """Everything between this server's agents and its peers."""

    consumer: type[MessageConsumer] = MessageConsumer

    def __init__(
        self,
        me: str,
        topology: Topology,
        orders: dict[str, OrderSpec],
        homes: dict[str, str],
        incarnation: int,
        resend_after: float = link_resend_first_seconds,
        moved: dict[str, str] | None = None,
    ) -> None:
        self.me = me
        self.arrived: list[tuple[str, list[Letter]]] = []
        """(agent, letters) for agents of this server, in delivery order; ``AgentServer.collect`` empties it."""
        self.lost: list[tuple[Letter, str]] = []
        """Letters in transit that cannot be forwarded, and why."""
        self.faults: list[tuple[str, str, str]] = []
        """(domain, peer, reason) of trains that could not be read, and of letters that came from a peer although the
        route from their sender does not lead through that peer; both are dropped. If it is not known which peer is at
        fault, ``peer`` is empty."""
        self._checks_senders = False
        self._plans: dict[tuple[str, tuple[str, ...]], Way] = {}
        self._planned = 0
        """The size of ``_plans``: for each plan, the number of its addresses, plus ``_plan_addresses``."""
        self._sound: set[tuple[str, ...]] = set()
        """Lists of addresses that were checked and are valid."""
        self._holding: set[str] = set()
        self._pasts: dict[str, Past] = {}
        self.destinations = Destinations()
        self.returns = Returns()
        self._taken: list[Any] = []
        self._incarnation, self._resend_after = incarnation, resend_after
        self._life = 0
        self.pausing: Pausing | None = None
        """Letters that wait for the end of a change of the topology; None: nothing must wait."""
        self.hidden: frozenset[str] = frozenset()
        """Agents that exist only after the change that is staged; letters for them may be forwarded already."""
        self.consumers: dict[str, MessageConsumer] = {}
        self.organise(topology, orders, homes, moved or {}, ())

    def organise(
        self,
        topology: Topology,
        orders: dict[str, OrderSpec],
        homes: dict[str, str],
        moved: dict[str, str],
        kept: Collection[str],
    ) -> None:
        """Use a topology from now on. ``moved``: for each removed server the server that has its addresses now.
        ``kept``: domains that continue as they are; all others begin again."""
        me = self.me
        self.objects = {one for name in topology.domains_of(me) for one in orders[name].object_names()}
        self._addresses = Addresses(homes, moved, topology.servers, self.objects)
        self._first = first_hops(topology, me)
        self.hidden = frozenset()
        self._forget_plans()
        self.consumers = {
            name: self.consumers[name]
            if name in kept and name in self.consumers
            else self._begun(name, topology.domains[name].servers, orders[name])
            for name in topology.domains_of(me)
        }
        self._consumers = tuple(self.consumers.values())
        self.links = Links(self.consumers, self._resend_after)
        self._total = {
            name: "total" in consumer.order.guarantees and len(consumer.members) > 1
            for name, consumer in self.consumers.items()
        }
        if self._life:
            self.links.begin_life(self._life, kept)
        self.record_into(self._taken)
        self.hold_for(self._holding, self._pasts)
        if self._checks_senders:
            self.share_lists()

    def learn(self, topology: Topology, homes: dict[str, str], moved: dict[str, str], begun: Collection[str]) -> None:
        """Learn the servers and agents of a topology that will soon be in force. Other servers may use it earlier than
        this one; this server forwards their letters already. Letters that must enter a domain that begins with this
        topology have to wait."""
        known = self._addresses
        self.hidden = frozenset(homes.keys() - known.homes.keys())
        self._addresses = known.extended(homes, moved, topology.servers)
        if self.me not in topology.servers:
            return
        first = first_hops(topology, self.me)
        self._first |= {server: hop for server, hop in first.items() if server not in self._first}
        self.pausing = self.pausing or Pausing()
        self.pausing.domains |= (set(topology.domains_of(self.me)) - set(self.consumers)) | set(begun)
        self._forget_plans()

    def pause(self, domains: Collection[str], agents: Collection[str]) -> None:
        """From now on, let a letter wait if it would enter one of these domains from outside, or if it is sent here to
        one of these agents."""
        self.pausing = Pausing(domains, agents)

    @property
    def letters_waiting(self) -> int:
        """The number of letters that wait for the end of a change of the topology."""
        return 0 if self.pausing is None else len(self.pausing.waiting)

    def is_total(self, domain: str) -> bool:
        """Return whether the order of a domain of this server is total."""
        return self._total.get(domain, False)

    def resume(self) -> None:
        """Send the letters that waited, by the topology that is now in force."""
        pausing, self.pausing = self.pausing, None
        for one in () if pausing is None else pausing.waiting:
            if one.returns:
                self.returns.back(one.letter.id)
        for one in () if pausing is None else pausing.waiting:
            try:
                local, onward, returns_by = self._plan("", one.to)
            except UsageError as error:
                self.lost.append((one.letter, str(error)))
                continue
            self._dispatch(one.letter, local, onward, returns_by)
            if returns_by:
                self.returns.wait_anew()
        self._free()

    def _forget_plans(self) -> None:
        self._plans.clear()
        self._sound.clear()
        self._senders = Senders(self.me, self._addresses, self._first)
        self._planned = 0

    def _domain_of(self, address: str) -> str:
        return self._first.get(self._addresses.home(address), ("", ""))[0]

    def _begun(self, name: str, members: tuple[str, ...], spec: OrderSpec) -> MessageConsumer:
        return self.consumer(name, members, self.me, spec, self._incarnation, self._delivered, self._resend_after)

    # Letters.

    def check(self, to: tuple[str, ...]) -> tuple[str, ...]:
        """Return the addresses to send to; raise an error if one cannot be reached. In the result an agent of the
        topology has its name alone: ``name@server`` would mean the mailbox of a client."""
        if to in self._sound:
            return to if len(to) == 1 else self.destinations.shared(to)
        if len(to) == 1 and to[0].endswith("()"):
            if to[0].removesuffix("()") not in self.objects:
                raise UnknownAgentError(self._addresses.no_object(to[0].removesuffix("()")))
            return to
        if any("@" in address for address in to):
            to = tuple(dict.fromkeys(map(self._addresses.plain, to)))
        if self.hidden and not self.hidden.isdisjoint(to):
            raise UnknownAgentError(f"unknown agent {min(self.hidden.intersection(to))!r}: it is being added")
        to = self.destinations.shared(to)
        self._plan("", to)
        self._sound.add(to)
        return to

    def local(self, to: tuple[str, ...]) -> tuple[str, ...]:
        """Return the addresses on this server, which get the letter at once, or when it comes back through a total
        order."""
        home = self._addresses.home
        return tuple(address for address in to if home(address) == self.me)

    def send(self, letter: Letter) -> None:
        """Send a letter from an agent or a client of this server."""
        local, onward, returns_by = self._plan("", letter.to)
        if self.returns.away and not self.returns.admits([domain for domain, _ in onward]):
            self.returns.wait(not onward, letter)
        else:
            self._dispatch(letter, local, onward, returns_by)

    def send_many(self, to: tuple[str, ...], letters: list[Letter]) -> None:
        """Send several letters to the same agents, one after the other."""
        local, onward, returns_by = self._plan("", to)
        if returns_by or self.returns.away or self.pausing is not None:
            for letter in letters:
                self.send(letter)
            return
        for agent in local:
            self.arrived.append((agent, letters))
        for domain, members in onward:
            self.consumers[domain].enqueue_many(members, letters)

    def hold_for(self, agents: set[str], pasts: dict[str, Past]) -> None:
        """From now on, put the :class:`Past` of each letter for these agents into ``pasts``, by letter and agent."""
        self._holding, self._pasts = agents, pasts
        for consumer in self._consumers:
            consumer.tells_past = bool(agents)
            consumer.deliver = self._delivered_with_past if agents else self._delivered

    def _delivered_with_past(self, domain: str, train: bytes, source: int) -> None:
        before = len(self.arrived)
        self._delivered(domain, train, source)
        past = self.consumers[domain].past
        if past is not None:
            for agent, letters in islice(self.arrived, before, None):
                if agent in self._holding:
                    for letter in letters:
                        self._pasts[f"{letter.id} {agent}"] = past

    def _delivered(self, domain: str, train: bytes, source: int) -> None:
        """Take a train that a domain delivers; its sender may be this server itself."""
        try:
            letters = uncouple(train) if len(train) <= _train_bytes_usual else self.destinations.uncouple(train)
        except WireError as error:
            self.faults.append((domain, "", str(error)))
            return
        consumer = self.consumers[domain]
        own = source == consumer.me
        if not own and self._checks_senders:
            letters = self._senders.genuine(consumer, source, letters, self.faults)
        consumer.traffic.letters_delivered += len(letters)
        if not own and self._all_here(domain, letters):
            return
        self.destinations.share(letters)
        for letter in letters:
            try:
                self._dispatch(letter, *self._plan(domain, letter.to), domain)
            except UsageError as error:
                self.lost.append((letter, str(error)))
            if own:
                self._returned(letter)

    def _all_here(self, domain: str, letters: list[Letter]) -> bool:
        """Deliver a train at once if it is for one agent of this server, as most are; return whether it was
        delivered."""
        if not letters:
            return False
        to = letters[0].to
        plan = self._plans.get((domain, to))
        if plan is None:
            return False
        local, onward, returns_by = plan
        if onward or returns_by or len(local) != 1:
            return False
        if len(to) > 1:
            self.destinations.share(letters)
        if len(letters) > 1 and len(set(map(to_of, letters))) > 1:
            return False
        self.arrived.append((local[0], letters))
        return True

    def _dispatch(
        self, letter: Letter, local: tuple[str, ...], onward: Hops, returns_by: str, came_by: str = ""
    ) -> None:
        if self.pausing is not None:
            if returns_by in self.pausing.domains:
                self.returns.leave(returns_by, letter)
                self.pausing.waiting.append(Waiting(letter, letter.to, returns=True))
                return
            local, onward = self.pausing.part(letter, local, onward, came_by, self._domain_of)
        for agent in local:
            self.arrived.append((agent, [letter]))
        if returns_by:
            self.returns.leave(returns_by, letter)
        for domain, members in onward:
            self.consumers[domain].enqueue(members, letter)

    def _returned(self, letter: Letter) -> None:
        """Record that one of our own letters has come back through a total order; send the letters that waited only for
        it."""
        self.returns.back(letter.id)
        self._free()

    def _free(self) -> None:
        while (freed := self.returns.next()) is not None:
            local, onward, returns_by = self._plan("", freed.to)
            self._dispatch(freed, local, onward, returns_by)
            if returns_by:
                self.returns.wait_anew()

    def begin_anew(self, domain: str, generation: int, again: tuple[tuple[tuple[str, ...], bytes], ...]) -> None:
        """Reset a domain, and send the trains ``again`` into it. If one of our own letters was to come back through the
        domain and is in none of these trains, it continues as if it had come back."""
        consumer = self.consumers[domain]
        self.links.changed()
        consumer.begin_anew(generation)
        coming: set[str] = set()
        for targets, train in again:
            letters = uncouple(train)
            for letter in letters:
                consumer.enqueue(targets, letter)
            if self.me in targets:
                coming.update(letter.id for letter in letters)
        if self.returns.domain == domain:
            for _, letter in list(self.returns.away.values()):
                if letter.id not in coming:
                    self._dispatch(letter, *self._plan(domain, letter.to))
                    self._returned(letter)

    def _plan(self, came_by: str, to: tuple[str, ...]) -> Way:
        plan = self._plans.get((came_by, to))
        if plan is None:
            plan = self._make_plan(came_by, to)
            self._planned += len(to) + _plan_addresses
            if self._planned > shared_addresses_max:
                self._plans.clear()
                self._sound.clear()
                self._planned = len(to) + _plan_addresses
            self._plans[(came_by, to)] = plan
        return plan

    def _make_plan(self, came_by: str, to: tuple[str, ...]) -> Way:
        return way_of(self.me, came_by, to, self._addresses.home, self._first, self._total)

    # Frames.

    def record_into(self, items: list[Any]) -> None:
        """From now on, append the packets that are accepted here, over all domains, to this list."""
        self._taken = items
        for consumer in self._consumers:
            consumer.taken = items

    def share_lists(self) -> None:
        """From now on, write each list of destinations once per train, and check the senders of letters, as log format
        3 requires."""
        self._checks_senders = True
        for consumer in self._consumers:
            consumer.share_lists()

    def flush(self, now: float) -> None:
        """Stamp all trains of this step. Repeat this while there are new trains: an order may send packets to this
        server itself, and these can cause new letters."""
        busy = True
        while busy:
            busy = False
            for consumer in self._consumers:
                if consumer.trains:
                    busy = consumer.flush(now) or busy

    def take(self, taken: Taken, now: float) -> None:
        """Apply a packet from the log again."""
        arrival = self.consumers[taken.domain].receive_again(taken, now)
        assert arrival is Arrival.FRESH, f"the log takes frame {taken.number} of {taken.peer} twice"

    def begin_life(self, life: int) -> None:
        """Start a life of the server on all its links."""
        self._life = life
        self.links.begin_life(life)

    def leaving(self, now: float, acknowledge: bool) -> list[Outgoing]:
        """Return what leaves when the step is durable: new frames, acknowledgements, resends."""
        outgoing: list[Outgoing] = []
        for consumer in self._consumers:
            if consumer.outgoing:
                outgoing += consumer.outgoing
                consumer.outgoing = []
        links = self.links
        if acknowledge or not links.acks_wait or now >= links.resend_at:
            links.look(now, acknowledge, outgoing)
        return outgoing

    def forget_leaving(self) -> None:
        """Drop the frames that the replay of a record has made. The server may have sent them before it was restarted;
        links resend those that were not acknowledged."""
        for consumer in self._consumers:
            consumer.outgoing = []

    def deadline(self) -> float | None:
        """Return the time at which a link must resend something; None: no link has to."""
        return self.links.deadline()

    def in_transit(self, domains: Collection[str]) -> str:
        """Return what this server still has in transit through one of these domains, or an empty string."""
        for name in domains:
            consumer = self.consumers.get(name)
            if consumer is not None and (found := consumer.in_transit()):
                return f"domain {name}: {found}"
        if self.returns.away and self.returns.domain in domains:
            return f"domain {self.returns.domain}: own letters that have not come back"
        return ""

    # State.

    def dump(self) -> SavedChannel:
        """Return the durable state of all domains."""
        return SavedChannel({name: one.dump() for name, one in self.consumers.items()}, self.returns.dump())

    def load(self, saved: SavedChannel, now: float) -> None:
        """Load the state from ``dump`` into a new channel."""
        self.returns.load(saved.returns)
        self.links.changed()
        for name, consumer in saved.consumers.items():
            self.consumers[name].load(consumer, now)


_train_bytes_usual = 2 * train_bytes_max
"""A longer train has one large letter, or many long lists of destinations."""
_plan_addresses = 4
"""A plan without its addresses takes as much memory as this number of addresses."""
