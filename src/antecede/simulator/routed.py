"""A world of domains: every server keeps one order in each of its domains, and routers pass messages on.

A **station** is a server in one of its domains, with the order that it has there. A message travels along the tree of
shortest ways from its source (:mod:`antecede.topology.graph`), as one multicast in each domain that it enters. When a
station delivers it, its server

* stamps and sends it in every next domain, **in the same step and in the order of deliveries** (Laumay et al. §4.3: the
  proof has no "cross over" of a message by the one behind it; a router that forwards later breaks causal order even on
  a tree), and
* hands it to the application if the server is a destination.

A message is sent when the application sends it. (One domain alone may say otherwise: a rendezvous takes place when all
are ready. With several, two domains would date the events of one server differently, and what it was asked to send
before a delivery would seem to come after it.)

This world asks nobody whether the organisation is a forest: with one that is not, it shows why it must be.

What is noted of a run is end to end: :mod:`antecede.simulator.routed_record`.
"""

from collections import deque
from heapq import heappush
from typing import Protocol

import msgspec

from antecede.errors import TopologyError
from antecede.messages import COPY, Deliver, Effects, Message, Packet, Send, Sent, Verdict, members_of
from antecede.orders import OrderSpec
from antecede.orders.contract import Order
from antecede.simulator.draws import Draw
from antecede.simulator.routed_record import RoutedFigures
from antecede.simulator.world import World
from antecede.topology import Topology

Hops = dict[int, list[tuple[int, int]]]
"""For each server on the way of a message: the stations at which it sends, each with a mask of members."""

Part = tuple[int, Effects]
"""What one station is to do."""


class RoutedObserver(Protocol):
    """Whoever wants to see every event end to end, and every hop."""

    def sent(self, server: int, message: Message, sizes: list[int], now: float) -> None: ...

    def hopped(self, server: int, message: Message, domain: str, hop: int, sizes: list[int], now: float) -> None: ...

    def arrived(self, server: int, message: Message, size: int, now: float) -> None: ...

    def delivered(self, server: int, message: Message, now: float) -> None: ...


class Journey(msgspec.Struct, gc=False):
    """A message on its way through the domains."""

    message: Message
    """End to end: source and destinations are servers."""
    hops: Hops
    remaining: int
    """Destinations that have not delivered it."""


class RoutedWorld(World):
    """One order for each server and domain, on reliable links; processes are servers."""

    def __init__(
        self,
        topology: Topology,
        specs: dict[str, OrderSpec],
        delay: Draw,
        *,
        fifo_links: bool = False,
        figures: RoutedFigures | None = None,
        watcher: RoutedObserver | None = None,
    ) -> None:
        self.topology = topology
        self.specs = specs
        """The order of each domain."""
        self.names = topology.servers
        number = {name: place for place, name in enumerate(self.names)}
        self._station_of: dict[tuple[str, str], int] = {}
        self._server: list[int] = []
        """Each station's server."""
        self._domain: list[str] = []
        self._peers: list[list[int]] = []
        """The stations of each station's domain, by member number."""
        for name, domain in topology.domains.items():
            first = len(self._server)
            peers = list(range(first, first + len(domain.servers)))
            for server in domain.servers:
                self._station_of[server, name] = len(self._server)
                self._server.append(number[server])
                self._domain.append(name)
                self._peers.append(peers)
        self.watcher = watcher
        self._journeys: dict[str, Journey] = {}
        self._routes: dict[tuple[int, int], Hops] = {}
        self._branches: dict[int, list[tuple[int, list[tuple[int, int, int]]]]] = {}
        self._fresh: deque[tuple[int, Message]] = deque()
        """Deliveries to which the application has not reacted."""
        self._reacting = False
        self._several = len(topology.domains) > 1
        some = next(iter(specs.values()))
        super().__init__(some, len(self.names), delay, fifo_links=fifo_links, figures=figures or RoutedFigures())

    def _create_orders(self) -> list[Order]:
        members = self.topology.domains
        return [
            self.specs[name].create(members[name].servers.index(self.names[server]), len(members[name].servers))
            for server, name in zip(self._server, self._domain, strict=True)
        ]

    # What a workload may do.

    def send(self, process: int, to: int, payload: bytes = b"") -> Message:
        message = Message(f"m{self._sends}", process, to, payload)
        hops = self._route(process, to)
        self._sends += 1
        self._journeys[message.id] = Journey(message, hops, to.bit_count())
        self._post(process, hops[process], message.id)
        self._react()
        return message

    # Routes.

    def _route(self, source: int, to: int) -> Hops:
        """What each server on the way does. Ways to one server are few and asked for often: they are kept."""
        known = self._routes.get((source, to))
        if known is not None:
            return known
        own = self.topology.domains_of(self.names[source])
        if not own:
            raise TopologyError(f"server {self.names[source]} is in no domain")
        hops: Hops = {}
        unreached = to & ~(1 << source)
        for server, fans in self._fans(source):
            for station, bit, beyond in fans:
                if beyond & to:
                    hops.setdefault(server, []).append((station, bit))
                    unreached &= ~beyond
        if unreached:
            target = next(members_of(unreached))
            self.topology.route(self.names[source], self.names[target])
        hops = {server: _gathered(parts) for server, parts in hops.items()}
        if to >> source & 1 or not to:
            # Oneself is reached in the first domain that is used anyway; a message to nobody is sent all the same.
            station, bits = next(iter(hops.get(source, ())), (self._station_of[self.names[source], own[0]], 0))
            back = 1 << self._peers[station].index(station) if to else 0
            hops[source] = [(station, bits | back), *hops.get(source, [])[1:]]
        if to.bit_count() == 1:
            self._routes[source, to] = hops
        return hops

    def _fans(self, source: int) -> list[tuple[int, list[tuple[int, int, int]]]]:
        """The tree of ways from ``source``: for each server that leads on, (station, member's bit, all beyond it)."""
        known = self._branches.get(source)
        if known is not None:
            return known
        number = {name: place for place, name in enumerate(self.names)}
        before = self.topology.tree(self.names[source])
        beyond = {name: 1 << number[name] for name in before}
        fans: dict[int, list[tuple[int, int, int]]] = {}
        # Farthest first, so that what is beyond a server is known before it is added to the one before it.
        for name, (domain, previous) in reversed(before.items()):
            if previous in beyond:
                beyond[previous] |= beyond[name]
            bit = 1 << self.topology.domains[domain].servers.index(name)
            station = self._station_of[previous, domain]
            fans.setdefault(number[previous], []).append((station, bit, beyond[name]))
        self._branches[source] = list(fans.items())
        return self._branches[source]

    # What happens.

    def _happen(self, happening: object) -> None:
        assert isinstance(happening, tuple)
        self._arrive_at(*happening)

    def _arrive_at(self, station: int, packet: Packet) -> None:
        order = self.orders[station]
        verdict, effects = order.receive(packet)
        self.figures.arrived(packet, verdict is Verdict.HOLD)
        if self.watcher is not None and packet.kind == COPY:
            self._note_arrival(station, packet)
        if effects:
            self._carry_out_at(station, effects)
            self._react()

    def _react(self) -> None:
        """The step is over: now the application reacts to what it delivered."""
        if self._reacting or self._workload is None:
            return
        self._reacting = True
        while self._fresh:
            server, message = self._fresh.popleft()
            self._workload.delivered(self, server, message)
        self._reacting = False

    def _post(self, server: int, hops: list[tuple[int, int]], id_: str) -> None:
        """Send a message at a server's stations, all of them in this step."""
        journey = self._journeys[id_]
        payload = journey.message.payload
        parts: list[Part] = []
        for station, to in hops:
            order = self.orders[station]
            parts.append((station, order.send(Message(id_, order.me, to, payload))))
        if server == journey.message.source:
            if self._several:
                self._note_send(journey, parts)
        elif self.watcher is not None:
            self._note_hops(server, journey, parts)
        for station, effects in parts:
            self._carry_out_at(station, effects, parts)

    def _carry_out_at(self, station: int, effects: Effects, parts: list[Part] | None = None) -> None:
        """Carry effects out; ``parts`` are those of the same message at the server's other stations."""
        order, figures = self.orders[station], self.figures
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                packet = effect.packet  # type: ignore[union-attr]
                figures.posted(order, packet)
                self._transmit_from(station, packet)
            elif kind is Deliver:
                self._delivered_at(station, effect.message.id)  # type: ignore[union-attr]
            elif kind is Sent and not self._several:
                journey = self._journeys[effect.message.id]  # type: ignore[union-attr]
                self._note_send(journey, parts or [(station, effects)])

    def _note_send(self, journey: Journey, parts: list[Part]) -> None:
        """The send event takes place."""
        message = journey.message
        self.figures.sent(message, self.now)
        if self.watcher is not None:
            sizes = [size for at, effects in parts for size in self._sizes(at, effects, message.id)]
            self.watcher.sent(message.source, message, sizes, self.now)
        if not journey.remaining:
            del self._journeys[message.id]

    def _delivered_at(self, station: int, id_: str) -> None:
        """A station delivers: the server sends it on, and hands it to the application if it is meant for it."""
        journey = self._journeys[id_]
        server = self._server[station]
        message = journey.message
        onward = journey.hops.get(server)
        if onward is not None and server != message.source:
            self._forward(server, onward, id_)
        if message.to >> server & 1:
            journey.remaining -= 1
            if not journey.remaining:
                del self._journeys[id_]
            self.figures.delivered(message, self.now)
            if self.watcher is not None:
                self.watcher.delivered(server, message, self.now)
            self._fresh.append((server, message))

    def _forward(self, server: int, onward: list[tuple[int, int]], id_: str) -> None:
        self._post(server, onward, id_)

    def _transmit_from(self, station: int, packet: Packet) -> None:
        arrival = self.now + self._delay()
        target = self._peers[station][packet.target]
        if self._last_arrival is not None:
            link = (station, target)
            arrival = max(arrival, self._last_arrival.get(link, 0.0))
            self._last_arrival[link] = arrival
        heappush(self._happenings, (arrival, self._tie(), (target, packet)))

    # What a watcher is told.

    def _note_arrival(self, station: int, packet: Packet) -> None:
        assert self.watcher is not None
        journey = self._journeys.get(packet.subject)
        order, server = self.orders[station], self._server[station]
        if journey is None or packet.message is None:
            return
        # A copy on a detour, within its domain or on its way to others, reaches the protocol but no destination.
        if journey.message.to >> server & 1 and packet.message.to >> order.me & 1:
            self.watcher.arrived(server, journey.message, order.size(packet), self.now)

    def _note_hops(self, server: int, journey: Journey, parts: list[Part]) -> None:
        assert self.watcher is not None
        message = journey.message
        hop = len(self.topology.route(self.names[message.source], self.names[server])) - 1
        for station, effects in parts:
            sizes = self._sizes(station, effects, message.id)
            self.watcher.hopped(server, message, self._domain[station], hop, sizes, self.now)

    def _sizes(self, station: int, effects: Effects, id_: str) -> list[int]:
        """What the stamps weigh of a message's copies that leave among these effects."""
        order = self.orders[station]
        packets = [effect.packet for effect in effects if type(effect) is Send]
        return [order.size(packet) for packet in packets if packet.kind == COPY and packet.subject == id_]


def _gathered(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """One multicast for each station, in the sequence in which the domains were named."""
    masks: dict[int, int] = {}
    for station, bit in parts:
        masks[station] = masks.get(station, 0) | bit
    return sorted(masks.items())
