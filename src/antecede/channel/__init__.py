"""The Channel: one MessageConsumer per domain of this server, and the hop between them (Laumay et al. §5, Fig. 7).

A letter that is sent here, or that a domain delivers here, is examined once. Its agents on this server get it at once,
in that sequence; for the others it is put on the train of each next domain. Receiving in one domain and stamping for
the next are **one step, in delivery order**: Theorem 1 needs it ("no crossover"), and a router that forwards later
breaks causal order even on a tree.

A multicast crosses a domain as one multicast. In a forest the route to a server is unique. So a router is responsible
for the destinations that it does not reach through the domain from which the letter came.

If a domain's order is total, a letter for agents on this server and on others goes through the order to this server
too: delivering the local copy at once would let two servers see two multicasts in different orders. Messages sent
meanwhile must not overtake it (:mod:`antecede.channel.returns`).
"""

from difflib import get_close_matches
from itertools import islice
from typing import Any

import msgspec

from antecede.channel.consumer import MessageConsumer, Outgoing, SavedConsumer, Taken
from antecede.channel.letters import Destinations, Letter, Past, couple, uncouple
from antecede.channel.returns import Returns, SavedReturns
from antecede.errors import NoRouteError, UnknownAgentError, UsageError, WireError
from antecede.limits import link_resend_first_seconds, shared_addresses_max, train_bytes_max
from antecede.link import Arrival, Frame
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

_Hops = tuple[tuple[str, tuple[str, ...]], ...]
_Plan = tuple[tuple[str, ...], _Hops, str]
"""Agents on this server, the members to send to in each next domain, and the domain (if any) by which it returns."""


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
    ) -> None:
        self.me = me
        self.arrived: list[tuple[str, list[Letter]]] = []
        """(agent, letters) for agents of this server, in delivery order; the driver empties it."""
        self.lost: list[tuple[Letter, str]] = []
        """Letters in transit that cannot be forwarded, and why."""
        self.faults: list[tuple[str, str, str]] = []
        """(domain, peer, reason) of trains that could not be read, and of letters that a peer brought although their
        sender lives elsewhere; they are dropped. If it is not known which peer did it, the peer is empty."""
        self._checks_senders = False
        self._behind: dict[tuple[str, int], set[str]] = {}
        """Senders that are known to live behind a member of a domain."""
        self.acks_wait = False
        """Whether the last step left acknowledgements for a later one."""
        self._homes = homes
        self._servers = set(topology.servers)
        self.objects = {one for name in topology.domains_of(me) for one in orders[name].object_names()}
        self._first = first_hops(topology, me)
        self._plans: dict[tuple[str, tuple[str, ...]], _Plan] = {}
        self._planned = 0
        """The addresses of all plans together."""
        self._sound: set[tuple[str, ...]] = set()
        """Addresses that were checked and are valid."""
        self._holding: set[str] = set()
        self._pasts: dict[str, Past] = {}
        self.destinations = Destinations()
        self.consumers = {
            name: self.consumer(
                name, topology.domains[name].servers, me, orders[name], incarnation, self._delivered, resend_after
            )
            for name in topology.domains_of(me)
        }
        self._consumers = tuple(self.consumers.values())
        self.returns = Returns()
        self._links = [
            (name, peer, link) for name, consumer in self.consumers.items() for peer, link in consumer.links.items()
        ]
        self._total = {
            name: "total" in consumer.order.guarantees and len(consumer.members) > 1
            for name, consumer in self.consumers.items()
        }

    # Letters.

    def home(self, address: str) -> str:
        """Return the server of an agent."""
        server = self._homes.get(address)
        if server is None:
            if address.partition("@")[0].removesuffix("()") in self.objects:
                raise UsageError(
                    f"{address} is a replicated object: call one of its operations, in a message to it alone"
                )
            server = address.rpartition("@")[2]
            if "@" not in address or server not in self._servers:
                raise UnknownAgentError(self._unknown(address))
        return server

    def _unknown(self, address: str) -> str:
        """Return why a letter cannot be sent there, with a suggestion."""
        name = address[:_name_chars].partition("@")[0]
        near = get_close_matches(name, islice(self._homes, _likened_max), n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        return f"unknown agent {address!r}: neither in the topology nor name@server{meant}"

    def _no_object(self, name: str) -> str:
        """Return why an operation cannot be called there, with a suggestion."""
        if name in self._homes:
            return f"{name} is an agent, not a replicated object: send it a notification"
        near = get_close_matches(name[:_name_chars], islice(self.objects, _likened_max), n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        return f"unknown object {name!r}: not in the topology{meant}"

    def check(self, to: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse an address that cannot be reached, before anything is sent; return the addresses to send to. An agent
        of the topology must be written by its name alone: ``name@server`` would be a client's mailbox without a
        client."""
        if to in self._sound:
            return to if len(to) == 1 else self.destinations.shared(to)
        if len(to) == 1 and to[0].endswith("()"):
            if to[0].removesuffix("()") not in self.objects:
                raise UnknownAgentError(self._no_object(to[0].removesuffix("()")))
            return to
        if any("@" in address for address in to):
            to = tuple(dict.fromkeys(map(self._plain, to)))
        to = self.destinations.shared(to)
        self._plan("", to)
        self._sound.add(to)
        return to

    def _plain(self, address: str) -> str:
        name, at, server = address.rpartition("@")
        home = self._homes.get(name) if at else None
        if home is None:
            return address
        if home != server:
            raise UnknownAgentError(f"unknown agent {address!r}: {name} lives on {home}")
        return name

    def send(self, letter: Letter) -> None:
        """Send a letter from an agent of this server."""
        local, onward, returns_by = self._plan("", letter.to)
        if self.returns.away and not self.returns.admits([domain for domain, _ in onward]):
            self.returns.wait(not onward, letter)
        else:
            self._dispatch(letter, local, onward, returns_by)

    def send_many(self, to: tuple[str, ...], letters: list[Letter]) -> None:
        """Send several letters to the same agents, one after the other."""
        local, onward, returns_by = self._plan("", to)
        if returns_by or self.returns.away:
            for letter in letters:
                self.send(letter)
            return
        for agent in local:
            self.arrived.append((agent, letters))
        for domain, members in onward:
            self.consumers[domain].enqueue_many(members, letters)

    def hold_for(self, agents: set[str], pasts: dict[str, Past]) -> None:
        """From now on, put the past of each letter for these agents into a dictionary, by letter and agent."""
        self._holding, self._pasts = agents, pasts
        for consumer in self._consumers:
            consumer.tells_past = bool(agents)

    def _delivered(self, domain: str, train: bytes, source: int) -> None:
        before = len(self.arrived)
        self._take_train(domain, train, source)
        past = self.consumers[domain].past if self._holding else None
        if past is not None:
            for agent, letters in islice(self.arrived, before, None):
                if agent in self._holding:
                    for letter in letters:
                        self._pasts[f"{letter.id} {agent}"] = past

    def _take_train(self, domain: str, train: bytes, source: int) -> None:
        """Take a train of a member of a domain, perhaps our own."""
        try:
            letters = uncouple(train) if len(train) <= _train_bytes_usual else self.destinations.uncouple(train)
        except WireError as error:
            self.faults.append((domain, "", str(error)))
            return
        consumer = self.consumers[domain]
        own = source == consumer.me
        if not own and self._checks_senders:
            known = self._behind.get((domain, source), _nothing)
            sender = letters[0].source if letters else ""
            # Most trains have one sender.
            if sender not in known or (
                len(letters) > 1 and [1 for letter in letters if letter.source != sender and letter.source not in known]
            ):
                letters = self._from_behind(domain, source, letters)
        consumer.traffic.letters_delivered += len(letters)
        if not own and self._all_here(domain, letters):
            return
        self.destinations.share(letters)
        for letter in letters:
            try:
                self._dispatch(letter, *self._plan(domain, letter.to))
            except UsageError as error:
                self.lost.append((letter, str(error)))
            if own:
                self._returned(letter)

    def _from_behind(self, domain: str, source: int, letters: list[Letter]) -> list[Letter]:
        """Return the letters whose senders live behind this member of the domain: on its server, or on one whose
        letters come through it. In a forest there is one way, so a letter that comes by another one is forged. If the
        domain's order relays messages, its members relay for each other, also when the domain was reset."""
        consumer = self.consumers[domain]
        relays, member = consumer.order.relays, consumer.members[source]
        known = self._behind.setdefault((domain, source), set())
        if len(known) > _senders_max:
            known.clear()
        kept: list[Letter] = []
        for letter in letters:
            sender = letter.source
            home = self._homes.get(sender) or sender.rpartition("@")[2]
            first = self._first.get(home, ("", ""))
            behind = (first[0] == domain or home == self.me) if relays else first == (domain, member)
            if behind:
                known.add(sender)
                kept.append(letter)
            else:
                reason = f"letter of {sender[:_name_chars]} from {member}: it lives elsewhere"
                self.faults.append((domain, "" if relays else member, reason))
        return kept

    def _all_here(self, domain: str, letters: list[Letter]) -> bool:
        """Deliver a train at once if it is for one agent of this server, as most are; return whether it was."""
        if not letters:
            return False
        to = letters[0].to
        plan = self._plans.get((domain, to))
        if plan is None or len(plan[0]) != 1 or plan[1] or plan[2]:
            return False
        if len(to) > 1:
            self.destinations.share(letters)
        if len(letters) > 1 and [1 for letter in letters if letter.to != to]:
            return False
        self.arrived.append((plan[0][0], letters))
        return True

    def _dispatch(self, letter: Letter, local: tuple[str, ...], onward: _Hops, returns_by: str) -> None:
        for agent in local:
            self.arrived.append((agent, [letter]))
        if returns_by:
            self.returns.leave(returns_by, letter)
        for domain, members in onward:
            self.consumers[domain].enqueue(members, letter)

    def _returned(self, letter: Letter) -> None:
        """Process our own letter that came back through a total order: letters that waited for it continue."""
        self.returns.back(letter.id)
        while (freed := self.returns.next()) is not None:
            local, onward, returns_by = self._plan("", freed.to)
            self._dispatch(freed, local, onward, returns_by)
            if returns_by:
                self.returns.wait_anew()

    def begin_anew(self, domain: str, generation: int, again: tuple[tuple[tuple[str, ...], bytes], ...]) -> None:
        """Reset a domain; these trains are sent into it again. If one of our own letters was to come back through it
        and is not sent again, it continues as if it had come back."""
        consumer = self.consumers[domain]
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

    def _plan(self, came_by: str, to: tuple[str, ...]) -> _Plan:
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

    def _make_plan(self, came_by: str, to: tuple[str, ...]) -> _Plan:
        local: list[str] = []
        onward: dict[str, list[str]] = {}
        for agent in dict.fromkeys(to):
            server = self.home(agent)
            if server == self.me:
                local.append(agent)
                continue
            if server not in self._first:
                raise NoRouteError(f"no route from {self.me} to {agent} on {server}: no chain of domains connects them")
            domain, member = self._first[server]
            if domain != came_by:
                members = onward.setdefault(domain, [])
                if member not in members:
                    members.append(member)
        returns_by = ""
        if not came_by and local:
            returns_by = next((domain for domain in onward if self._total[domain]), "")
            if returns_by:
                # Further domains get it when it is back, as they do for any other member.
                onward = {returns_by: [*onward[returns_by], self.me]}
                local = []
        hops = tuple((domain, tuple(sorted(members))) for domain, members in onward.items())
        return tuple(local), hops, returns_by

    # Frames.

    def record_into(self, items: list[Any]) -> None:
        """From now on, append the packets that are accepted here, over all domains, to this list."""
        for consumer in self._consumers:
            consumer.taken = items

    def share_lists(self) -> None:
        """From now on a list of destinations is in a train once, and senders of letters are checked, as in log format
        3."""
        self._checks_senders = True
        for consumer in self._consumers:
            consumer.share_lists()

    def flush(self, now: float) -> None:
        """Stamp everything that this step sends, including what comes back at once (from an order to itself)."""
        busy = True
        while busy:
            busy = False
            for consumer in self._consumers:
                if consumer.trains:
                    busy = consumer.flush(now) or busy

    def take(self, taken: Taken, now: float) -> None:
        """Apply a packet from the log again."""
        link = self.consumers[taken.domain].links[taken.peer]
        frame = Frame(taken.incarnation, 0, taken.number, taken.packet)
        arrival = self.consumers[taken.domain].receive(taken.peer, frame, now)
        assert arrival is Arrival.FRESH, f"the log takes frame {taken.number} of {taken.peer} twice ({link.pending})"

    def begin_life(self, life: int) -> None:
        """Start a life of the server, with everything that it remembers."""
        for _, _, link in self._links:
            link.begin_life(life)

    def leaving(self, now: float, acknowledge: bool) -> list[Outgoing]:
        """Return what leaves when the step is durable: new frames, acknowledgements, resends."""
        outgoing: list[Outgoing] = []
        for consumer in self._consumers:
            if consumer.outgoing:
                outgoing += consumer.outgoing
                consumer.outgoing = []
        waits = False
        for domain, peer, link in self._links:
            if link.ack_due:
                if not acknowledge:
                    waits = True
                elif (ack := link.ack()) is not None:
                    outgoing.append(Outgoing(domain, peer, ack))
            if link.timers and link.timers[0][0] <= now:
                outgoing += [Outgoing(domain, peer, frame) for frame in link.tick(now)]
        self.acks_wait = waits
        return outgoing

    def forget_leaving(self) -> None:
        """Drop new frames that an earlier run of the server sent; links resend those that were not acknowledged."""
        for consumer in self._consumers:
            consumer.outgoing = []

    def deadline(self) -> float | None:
        """The time at which a link must resend something."""
        dues = [link.deadline() for _, _, link in self._links if link.timers]
        return min([due for due in dues if due is not None], default=None)

    # State.

    def dump(self) -> SavedChannel:
        """Return the durable state of all domains."""
        return SavedChannel({name: one.dump() for name, one in self.consumers.items()}, self.returns.dump())

    def load(self, saved: SavedChannel, now: float) -> None:
        """Load the state from ``dump`` into a new channel."""
        self.returns.load(saved.returns)
        for name, consumer in saved.consumers.items():
            self.consumers[name].load(consumer, now)


def first_hops(topology: Topology, me: str) -> dict[str, tuple[str, str]]:
    """Return, for every reachable server, the domain and the member of it to send to."""
    before = topology.tree(me)
    first: dict[str, tuple[str, str]] = {}
    for server in before:
        at = server
        while before[at][1] != me:
            at = before[at][1]
        first[server] = (before[at][0], at)
    return first


_train_bytes_usual = 2 * train_bytes_max
"""A longer train has one large letter, or many long lists of destinations."""
_name_chars = 64
_nothing: frozenset[str] = frozenset()
_senders_max = 65_536
"""Senders that are remembered for each peer; beyond it all are found again."""
_likened_max = 1_000
"""An unknown name is compared with at most this many others."""
_plan_addresses = 4
"""The memory of a plan besides its addresses, counted in addresses."""
