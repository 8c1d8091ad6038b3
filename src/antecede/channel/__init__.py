"""The Channel: it moves letters between the agents and the domains of this server (Laumay et al. §5, Fig. 7).

The Channel has one MessageConsumer per domain. It handles one letter after the other: letters that agents and clients
of this server send, and letters that a domain delivers. A destination on this server usually gets a letter immediately.
For other destinations, the Channel finds the next domain of each route, and adds the letter to a *train* (a batch of
letters, :mod:`antecede.channel.letters`) in that domain. The Channel receives a letter from one domain and stamps it
for the next domain in **one step, in delivery order**, as Theorem 1 of the paper requires ("no crossover"). Forwarding
in a later step would break causal order, even in a tree of domains.

A letter with several destinations crosses each domain as one message. There is only one route to each server. So a
letter never goes back into the domain from which it came. Destinations in that direction get it from other members.

A letter from here may go to agents here, and also to other servers through a domain with a total order. Then this
server sends a copy to itself through that domain, and delivers it only when it comes back. Otherwise, servers could
see multicasts in different sequences. Later messages must not overtake the letter (:mod:`antecede.channel`).
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Any

import msgspec

from antecede.channel.consumer import MessageConsumer, Outgoing, SavedConsumer, Taken, decode_packet, encode_packet
from antecede.channel.letters import (
    Destinations,
    Footprint,
    Letter,
    Past,
    decode_train,
    encode_train,
    envelope_fault,
    to_of,
)
from antecede.channel.routes import FORGED, Addresses, Hops, Senders, Way, first_hops, way_of
from antecede.errors import UnknownAgentError, UsageError, WireError
from antecede.limits import link_resend_first_seconds, shared_addresses_max
from antecede.link import Arrival
from antecede.orders import OrderSpec
from antecede.topology import Topology

# The links of this server in all its domains, with the acknowledgements that wait and the frames to send again.
#
# Most steps need not examine the links. A step examines them in three cases. (1) The step sends acknowledgements. (2) A
# link may have to send a frame again now. (3) The last examination left no acknowledgement waiting. Then the step
# looks for new acknowledgements, so that the server can plan when to send them.


class Links:
    """All links of one server. This class finds the acknowledgements and the resends that must be sent."""

    def __init__(self, consumers: dict[str, MessageConsumer], resend_after: float) -> None:
        """``resend_after``: the time from the first sending of a frame to its first resend, if the frame was not
        acknowledged."""
        self.ends = [
            (name, peer, link) for name, consumer in consumers.items() for peer, link in consumer.links.items()
        ]
        """All links, each as (domain, peer, link)."""
        self._resend_after = resend_after
        self.acks_wait = False
        """True if the last call of ``look`` found acknowledgements but did not send them."""
        self.resend_at = 0.0
        """The earliest time at which a link may have something to send again."""

    def begin_life(self, life: int, kept: Collection[str] = ()) -> None:
        """Begin a new *life* (the time from one start of the server to the next) on all links, except on the links in
        the domains ``kept``. ``life``: the number of the new life."""
        for domain, _, link in self.ends:
            if domain not in kept:
                link.begin_life(life)

    def look(self, now: float, acknowledge: bool, outgoing: list[Outgoing]) -> None:
        """Add to ``outgoing`` the frames that must be sent now: frames that were not acknowledged in time, and frames
        that waited until the peer could accept more. If ``acknowledge`` is set, also add the acknowledgements."""
        waits, resend_at = False, now + self._resend_after
        for domain, peer, link in self.ends:
            if link.ack_due:
                if not acknowledge:
                    waits = True
                elif (ack := link.ack()) is not None:
                    outgoing.append(Outgoing(domain, peer, ack))
            if link.timers:
                if link.timers[0][0] <= now:
                    outgoing += [Outgoing(domain, peer, frame) for frame in link.tick(now)]
                if link.timers and link.timers[0][0] < resend_at:
                    resend_at = link.timers[0][0]
        self.acks_wait, self.resend_at = waits, resend_at

    def changed(self) -> None:
        """Make the next step examine the links. This is necessary when a peer may accept more frames than before, for
        example after an acknowledgement."""
        self.resend_at = 0.0

    def deadline(self) -> float | None:
        """Return the earliest time at which a link must send a frame again. Return None if no link has to send a frame
        again."""
        first: float | None = None
        for _, _, link in self.ends:
            due = link.deadline() if link.timers else None
            if due is not None and (first is None or due < first):
                first = due
        return first


# Letters that wait at this server while the topology changes.
#
# The *region* of a change is the set of domains that pause. During a change, letters that were already stamped in the
# region continue until they are in their mailboxes. Letters that would *enter* the region wait: at the server of their
# sender, or at the router through which they come from outside. They wait without a stamp, in the sequence in which
# they came, and are stamped in this sequence after the change. This keeps causal order for the following reason. If two
# waiting letters go to the same server and one of them depends on the other, then both letters wait at one server,
# because the domains form a forest (a graph without cycles). This server stamps them in the right sequence.
# ``docs/design/change.md`` has the proof.
#
# If only some destinations of a letter are reached through the region, the other destinations get the letter
# immediately. If an agent of this server will move to another server, letters from this server to the agent wait, too.


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """A letter that waits until a change of the topology ends."""

    letter: Letter
    to: tuple[str, ...]
    """The destinations to which the letter must still be sent."""
    returns: bool = False
    """True if the letter must go through a domain with a total order, and then comes back to this server. Later letters
    on this server wait for the return of such a letter."""


class Pausing:
    """The letters that wait at this server during a change of the topology, and the reasons to wait: domains that
    pause, and agents that move."""

    def __init__(
        self, domains: Iterable[str] = (), agents: Iterable[str] = (), waiting: Iterable[Waiting] = ()
    ) -> None:
        self.domains = set(domains)
        """The domains that pause. Letters from outside must not enter them."""
        self.agents = set(agents)
        """Agents of this server that will move to another server."""
        self.waiting = list(waiting)

    def part(
        self,
        letter: Letter,
        local: tuple[str, ...],
        onward: tuple[tuple[str, tuple[str, ...]], ...],
        from_domain: str,
        domain_of: Callable[[str], str],
    ) -> tuple[tuple[str, ...], tuple[tuple[str, tuple[str, ...]], ...]]:
        """Split the destinations of a letter. Return the agents in ``local`` and the domains in ``onward`` that get the
        letter immediately. If some destinations must wait until the change ends, add the letter to ``waiting`` with
        these destinations. ``from_domain``: the domain that brought the letter, or an empty string if the letter was
        sent on this server. ``domain_of``: a function that returns the next domain on the way to an address."""
        if from_domain in self.domains:
            return local, onward
        closed = {domain for domain, _ in onward if domain in self.domains}
        stays = [agent for agent in local if agent in self.agents] if not from_domain else []
        if not closed and not stays:
            return local, onward
        here = set(local)
        behind = [one for one in dict.fromkeys(letter.to) if one not in here and domain_of(one) in closed]
        self.waiting.append(Waiting(letter, (*stays, *behind)))
        return (
            tuple(agent for agent in local if agent not in stays),
            tuple(hop for hop in onward if hop[0] not in closed),
        )


# Letters of this server that come back to it through a total order, and the letters that must wait for them.
#
# A letter from this server may have destinations on this server, and also destinations that it reaches through a domain
# with a total order. Such a letter is called an *own letter*. This server also sends the own letter to itself through
# the total order. When the own letter comes back, this server delivers it here and sends it into other domains. Until
# then, the own letter is *away*, and nothing outside of the domain may depend on it. Otherwise a later letter that
# stays on this server, or an answer through another domain, could arrive before the own letter. There are three kinds
# of later letters:
#
# 1. A letter that this server sends **only into that domain** leaves immediately, because the domain's order keeps the
#    sequence. There is one exception: if a letter of kind 3 waits, the letter of kind 1 waits behind it.
# 2. A letter that stays on this server waits until all own letters that left earlier are back.
# 3. Any other letter waits in the same way. While it waits, every later letter waits behind it.
#
# Letters that this server only forwards do not wait. If they come from another domain, they do not depend on own
# letters that are away. If they come from the same domain and depend on own letters, the domain's order delivers these
# own letters first.
#
# A letter that would come back through a second domain is of kind 3, and waits. So own letters are away in only one
# domain at a time, and no two letters wait for each other.
#
# When a letter waits, the reaction or the publish that sent it is already committed. So waiting letters are part of the
# durable state.


class SavedReturns(msgspec.Struct, frozen=True, array_like=True):
    """The durable state of :class:`Returns`. Each field has the meaning of the attribute with the same name in that
    class."""

    left: int
    domain: str
    away: dict[str, tuple[int, Letter]]
    waiting: list[tuple[int, bool, Letter]]


class Returns:
    """Letters of this server that are on their way back to it through a total order (*own letters*), and the letters
    that wait for them."""

    def __init__(self) -> None:
        self.left = 0
        """The number of own letters that were sent through the total order so far. Letters that are already back are
        included."""
        self.domain = ""
        """The domain with the total order through which the letters in ``away`` come back."""
        self.away: dict[str, tuple[int, Letter]] = {}
        """The own letters that are not back yet, oldest first. The key is the id of the letter. The value is a pair:
        the number of the letter (the first own letter that left has number 1), and the letter."""
        self.waiting: deque[tuple[int, bool, Letter]] = deque()
        """For each waiting letter: the number of the last own letter for which it waits, whether the waiting letter
        stays on this server, and the waiting letter."""
        self._blocked = False
        """True if at least one letter in ``waiting`` goes to other servers. Every later letter must wait behind such a
        letter."""

    def admits(self, domains: list[str]) -> bool:
        """Return whether a letter may be sent now, without waiting. ``domains``: the domains into which the letter is
        sent. The list is empty if the letter stays on this server."""
        return not self.away or (not self._blocked and domains == [self.domain])

    def leave(self, domain: str, letter: Letter) -> None:
        """Record that one of the own letters leaves, and will come back through ``domain``."""
        assert not self.away or domain == self.domain, "own letters are away in one domain at a time"
        self.left += 1
        self.domain = domain
        self.away[letter.id] = (self.left, letter)

    def wait(self, stays: bool, letter: Letter) -> None:
        """Let a letter wait until all own letters that have left so far are back. ``stays``: whether the letter stays
        on this server."""
        self.waiting.append((self.left, stays, letter))
        self._blocked = self._blocked or not stays

    def back(self, letter: str) -> None:
        """Record that the own letter with the id ``letter`` is back."""
        self.away.pop(letter, None)

    def next(self) -> Letter | None:
        """Remove and return the first waiting letter, if all own letters for which it waits are back. Return None if
        one of these own letters is not back yet, or if no letter waits. The caller must send the letter before the next
        call."""
        if not self.waiting:
            return None
        if self.away and next(iter(self.away.values()))[0] <= self.waiting[0][0]:
            return None
        letter = self.waiting.popleft()[2]
        self._blocked = any(not stays for _, stays, _ in self.waiting) if self._blocked else False
        return letter

    def wait_again(self) -> None:
        """Let all waiting letters also wait for the own letter that has just left."""
        self.waiting = deque((self.left, stays, letter) for _, stays, letter in self.waiting)

    def dump(self) -> SavedReturns:
        """Return the durable state, for a snapshot."""
        return SavedReturns(self.left, self.domain, dict(self.away), list(self.waiting))

    def load(self, saved: SavedReturns) -> None:
        """Replace the state by one that ``dump`` returned."""
        self.left, self.domain = saved.left, saved.domain
        self.away = dict(saved.away)
        self.waiting = deque(saved.waiting)
        self._blocked = any(not stays for _, stays, _ in saved.waiting)


__all__ = [
    "FORGED",
    "Addresses",
    "Channel",
    "Destinations",
    "Footprint",
    "Letter",
    "MessageConsumer",
    "Outgoing",
    "Past",
    "SavedChannel",
    "SavedConsumer",
    "SavedReturns",
    "Senders",
    "Taken",
    "decode_packet",
    "decode_train",
    "encode_packet",
    "encode_train",
    "envelope_fault",
    "first_hops",
]


class SavedChannel(msgspec.Struct, frozen=True, array_like=True):
    """The durable state of a :class:`Channel`."""

    consumers: dict[str, SavedConsumer]
    returns: SavedReturns


class Channel:
    """The part of a server that sends, receives and forwards letters, between its agents and other servers."""

    consumer: type[MessageConsumer] = MessageConsumer
    checks_senders = True
    """Whether letters from a peer are refused if the route from their sender does not lead through this peer."""

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
        """Pairs (local agent or client, its letters), in delivery order. ``AgentServer.collect`` empties this list."""
        self.lost: list[tuple[Letter, str]] = []
        """Pairs (letter, reason) of the letters that could not be delivered or forwarded."""
        self.faults: list[tuple[str, str, str]] = []
        """Entries (domain, peer, reason) for dropped input: trains that could not be read, and letters from a peer that
        is not on the route from the letter's sender. ``peer`` is empty if the peer is not known."""
        self._plans: dict[tuple[str, tuple[str, ...]], Way] = {}
        self._planned = 0
        """The size of ``_plans`` (cached routes): the addresses in all plans, plus ``_plan_addresses`` per plan."""
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
        """The letters that must wait until a change of the topology ends. If it is None, no letter has to wait."""
        self.hidden: frozenset[str] = frozenset()
        """Agents that a change will add. Letters to them are forwarded, but cannot be sent on this server yet."""
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
        """Use this topology from now on. ``moved``: for each removed server, the server that has its addresses now.
        ``kept``: the domains that keep their state. All other domains start with a new state."""
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

    def shared_domains(self) -> dict[str, list[str]]:
        """Return, for each peer, the domains that this server shares with it."""
        shared: dict[str, list[str]] = {}
        for domain, peer, _ in self.links.ends:
            shared.setdefault(peer, []).append(domain)
        return shared

    def learn(self, topology: Topology, homes: dict[str, str], moved: dict[str, str], begun: Collection[str]) -> None:
        """Learn the servers and agents of the next topology before this server uses it. Other servers may already use
        it, and this server must forward their letters. ``begun``: the domains whose state is new in the next topology.
        A letter must wait if its route enters one of these domains, or a domain that this server will join."""
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
        """From now on, let two kinds of letters wait: letters that would enter one of these domains from outside, and
        letters that are sent on this server to one of these agents."""
        self.pausing = Pausing(domains, agents)

    @property
    def letters_waiting(self) -> int:
        """The number of letters that wait for the end of a change of the topology."""
        return 0 if self.pausing is None else len(self.pausing.waiting)

    def is_total(self, domain: str) -> bool:
        """Return whether a domain of this server has a total order and more than one member."""
        return self._total.get(domain, False)

    def resume(self) -> None:
        """Send the letters that waited for the end of a change, on the routes of the topology that is now in force."""
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
                self.returns.wait_again()
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
        """Return the addresses in the form that letters contain. For an agent of the topology, this form is the name
        without a server. Raise an error if an address cannot be reached."""
        if to in self._sound:
            return to if len(to) == 1 else self.destinations.shared(to)
        if len(to) == 1 and to[0].endswith("()"):
            if to[0].removesuffix("()") not in self.objects:
                raise UnknownAgentError(self._addresses.no_object(to[0].removesuffix("()")))
            return to
        if any("@" in address for address in to):
            to = tuple(dict.fromkeys(map(self._addresses.plain, to)))
        if self.hidden and not self.hidden.isdisjoint(to):
            raise UnknownAgentError(f"unknown agent {min(self.hidden.intersection(to))!r}: not added yet; try later")
        to = self.destinations.shared(to)
        self._plan("", to)
        self._sound.add(to)
        return to

    def local(self, to: tuple[str, ...]) -> tuple[str, ...]:
        """Return the addresses in ``to`` that belong to this server. A letter to them may arrive immediately, or it may
        first have to come back to this server through a domain with a total order."""
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
        """For each letter that a domain delivers to one of these agents from now on, store in ``pasts`` the letter's
        :class:`Past` (the messages on which the letter depends), if it is known. The key is ``{letter id} {agent}``."""
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
        """Process a delivered train (a batch of letters). The sender of the train may be this server itself."""
        try:
            letters = decode_train(train)
        except WireError as error:
            self.faults.append((domain, "", str(error)))
            return
        consumer = self.consumers[domain]
        own = source == consumer.me
        if not own and self.checks_senders:
            letters = self._senders.permitted(consumer, source, letters, self.faults)
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
        """Deliver a whole train in one operation if its route is cached, all its letters go to the same agent of this
        server, and no letter has to be forwarded. Most trains are like this. Return whether the train was delivered."""
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
        self, letter: Letter, local: tuple[str, ...], onward: Hops, returns_by: str, from_domain: str = ""
    ) -> None:
        if self.pausing is not None:
            if returns_by in self.pausing.domains:
                self.returns.leave(returns_by, letter)
                self.pausing.waiting.append(Waiting(letter, letter.to, returns=True))
                return
            local, onward = self.pausing.part(letter, local, onward, from_domain, self._domain_of)
        for agent in local:
            self.arrived.append((agent, [letter]))
        if returns_by:
            self.returns.leave(returns_by, letter)
        for domain, members in onward:
            self.consumers[domain].enqueue(members, letter)

    def _returned(self, letter: Letter) -> None:
        """Record that a letter came back through a total order, and send the letters that need not wait any more."""
        self.returns.back(letter.id)
        self._free()

    def _free(self) -> None:
        while (freed := self.returns.next()) is not None:
            local, onward, returns_by = self._plan("", freed.to)
            self._dispatch(freed, local, onward, returns_by)
            if returns_by:
                self.returns.wait_again()

    def begin_again(self, domain: str, generation: int, again: tuple[tuple[tuple[str, ...], bytes], ...]) -> None:
        """Reset a domain, and then send the trains in ``again`` into the domain. Each entry of ``again`` is a pair
        (members to send to, train). Some letters that this server sent to itself through the domain may not be back
        yet. Handle such a letter as if it had come back now, unless it is sent now (``again``) or after a change."""
        consumer = self.consumers[domain]
        self.links.changed()
        consumer.begin_again(generation)
        coming = {one.letter.id for one in (self.pausing.waiting if self.pausing else ()) if one.returns}
        for targets, train in again:
            letters = decode_train(train)
            for letter in letters:
                consumer.enqueue(targets, letter)
            if self.me in targets:
                coming.update(letter.id for letter in letters)
        if self.returns.domain == domain:
            for _, letter in list(self.returns.away.values()):
                if letter.id not in coming:
                    self._dispatch(letter, *self._plan(domain, letter.to))
                    self._returned(letter)

    def _plan(self, from_domain: str, to: tuple[str, ...]) -> Way:
        plan = self._plans.get((from_domain, to))
        if plan is None:
            plan = self._make_plan(from_domain, to)
            self._planned += len(to) + _plan_addresses
            if self._planned > shared_addresses_max:
                self._plans.clear()
                self._sound.clear()
                self._planned = len(to) + _plan_addresses
            self._plans[(from_domain, to)] = plan
        return plan

    def _make_plan(self, from_domain: str, to: tuple[str, ...]) -> Way:
        return way_of(self.me, from_domain, to, self._addresses.home, self._first, self._total)

    # Frames.

    def record_into(self, items: list[Any]) -> None:
        """From now on, append to ``items`` every packet that this server accepts, in all its domains."""
        self._taken = items
        for consumer in self._consumers:
            consumer.taken = items

    def flush(self, now: float) -> None:
        """Stamp and send the trains of this step, until there are no trains left. New trains can appear meanwhile: a
        domain's order may send packets to this server itself, and these packets may cause new letters."""
        busy = True
        while busy:
            busy = False
            for consumer in self._consumers:
                if consumer.trains:
                    busy = consumer.flush(now) or busy

    def take(self, taken: Taken, now: float) -> None:
        """Process a packet that a replay reads from the log."""
        arrival = self.consumers[taken.domain].receive_again(taken, now)
        assert arrival is Arrival.FRESH, f"the log takes frame {taken.number} of {taken.peer} twice"

    def begin_life(self, life: int) -> None:
        """Tell all links the number of this server's new *life* (the time from one start of the server to the next)."""
        self._life = life
        self.links.begin_life(life)

    def leaving(self, now: float, acknowledge: bool) -> list[Outgoing]:
        """Return the output to send when the step is durable: frames, resends and, if requested, acknowledgements."""
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
        """Drop the frames that the replay of a record has made. The server may have sent these frames before its
        restart. If they are not acknowledged, the links send them again."""
        for consumer in self._consumers:
            consumer.outgoing = []

    def deadline(self) -> float | None:
        """Return the earliest time at which a link must send a frame again, or None if no link has to."""
        return self.links.deadline()

    def in_transit(self, domains: Collection[str]) -> str:
        """Describe what this server has in transit through these domains. Return an empty string if it has nothing."""
        for name in domains:
            consumer = self.consumers.get(name)
            if consumer is not None and (found := consumer.in_transit()):
                return f"domain {name}: {found}"
        if self.returns.away and self.returns.domain in domains:
            return f"domain {self.returns.domain}: letters of this server that have not come back"
        return ""

    # State.

    def dump(self) -> SavedChannel:
        """Return the durable state of the channel."""
        return SavedChannel({name: one.dump() for name, one in self.consumers.items()}, self.returns.dump())

    def load(self, saved: SavedChannel, now: float) -> None:
        """Load the result of ``dump`` into a new channel."""
        self.returns.load(saved.returns)
        self.links.changed()
        for name, consumer in saved.consumers.items():
            self.consumers[name].load(consumer, now)


_plan_addresses = 4
"""The memory that a plan (a cached route) needs besides its addresses, expressed as a number of addresses."""
