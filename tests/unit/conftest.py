"""A small adversarial world for any order: whatever is in flight may arrive next.

``order_run`` plays one seeded schedule on any :class:`Order` class and reports which properties broke, judged from the
sends and deliveries alone. On the way it holds the order to its contract: stamps survive encoding, ``size`` tells the
truth, a second arrival is a duplicate that changes nothing, what leaves is persisted first, a crash loses held packets
only, a clone is the same and independent. A breach of the contract is an ``AssertionError`` at once; a broken ordering
is reported, because planted bugs are expected to show one.

``order_campaign`` plays many seeds and fails with the first that breaks what the order guarantees. The variable
``ANTECEDE_SEEDS`` sets how many.

``two_servers`` plays a scene on two live servers in this process; ``logged`` is each real log with what is known of it.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from random import Random
from typing import Any

import msgspec
import pytest

from antecede.engine import Agent
from antecede.errors import AntecedeError
from antecede.live import ServerRuntime
from antecede.messages import (
    COPY,
    Accept,
    Deliver,
    Effects,
    Message,
    Packet,
    Persist,
    Send,
    Sent,
    Verdict,
    mask_of,
    members_of,
)
from antecede.orders import Order
from antecede.topology import parse_topology
from helpers.ports import free_ports

PROPERTIES = ("undelivered", "fifo", "causal", "total", "synchronous")


class Record:
    """What happened, as the applications see it, and which orderings it breaks."""

    def __init__(self, members: int) -> None:
        self.events: list[list[tuple[str, Message]]] = [[] for _ in range(members)]
        self.sent: dict[str, Message] = {}
        self.delivered: set[tuple[str, int]] = set()
        self.late: set[str] = set()
        self._bit: dict[str, int] = {}
        self._before: dict[str, int] = {}
        """The messages sent in the causal past of each message's send, as a mask."""
        self._past = [0] * members
        self._covered = [0] * members
        """The messages that were sent before one that this member has delivered."""
        self._newest: dict[tuple[int, int], int] = {}

    def send(self, message: Message) -> None:
        assert message.id not in self.sent, f"{message.id} sent twice"
        bit = self._bit[message.id] = len(self.sent)
        self.sent[message.id] = message
        self._before[message.id] = self._past[message.source]
        self._past[message.source] |= 1 << bit
        self.events[message.source].append(("send", message))

    def deliver(self, message: Message, member: int) -> None:
        assert message.id in self.sent, f"{message.id} delivered before it was sent"
        assert message.to >> member & 1, f"{message.id} delivered at {member}, who is not addressed"
        assert (message.id, member) not in self.delivered, f"{message.id} delivered twice at {member}"
        self.delivered.add((message.id, member))
        bit = self._bit[message.id]
        if self._covered[member] >> bit & 1:
            self.late.add("causal")
        if bit < self._newest.get((message.source, member), -1):
            self.late.add("fifo")
        self._newest[message.source, member] = max(bit, self._newest.get((message.source, member), -1))
        self._covered[member] |= self._before[message.id]
        self._past[member] |= self._before[message.id] | 1 << bit
        self.events[member].append(("deliver", message))

    def broken(self, accepted: list[Message]) -> set[str]:
        """Which properties do not hold, when ``accepted`` is all that the applications ever sent."""
        broken = set(self.late)
        wanted = {(message.id, target) for message in accepted for target in members_of(message.to)}
        if self.delivered != wanted or set(self.sent) != {message.id for message in accepted}:
            broken.add("undelivered")
        if not _acyclic([[m.id for kind, m in events if kind == "deliver"] for events in self.events]):
            broken.add("total")
        if not _acyclic([[m.id for _, m in events] for events in self.events]):
            broken.add("synchronous")
        return broken


def _acyclic(sequences: list[list[str]]) -> bool:
    graph: dict[str, set[str]] = {}
    for sequence in sequences:
        for earlier, later in pairwise(sequence):
            if earlier != later:
                graph.setdefault(later, set()).add(earlier)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return False
    return True


class World:
    """Members of one order and the packets between them, in no sequence."""

    def __init__(self, kind: type[Order], members: int, seed: int, options: dict[str, object]) -> None:
        self.random = Random(f"{kind.__name__} {members} {seed}")
        self.kind = kind
        self.options = options
        self.orders = [kind(me, members, **options) for me in range(members)]
        self.record = Record(members)
        self.flying: list[tuple[Packet, bytes]] = []
        self.landed: list[tuple[Packet, bytes]] = []
        self.waiting: list[dict[tuple[str, int, str, bytes], tuple[Packet, bytes]]] = [{} for _ in range(members)]
        """Packets that each member holds and has not accepted, with their bytes."""
        self.accepted: list[Message] = []
        self.duplicates = True

    def send(self, source: int, to: int) -> None:
        message = Message(f"m{len(self.accepted)}", source, to, bytes([len(self.accepted) % 256]))
        self.accepted.append(message)
        order = self.orders[source]
        before = order.snapshot()
        self._carry_out(source, order.send(message), order.snapshot() != before, None)

    def arrive(self, at: int) -> None:
        """The packet at that place in flight reaches its target."""
        packet, data = self.flying[at]
        self.flying[at] = self.flying[-1]
        self.flying.pop()
        order = self.orders[packet.target]
        stamp = order.decode(packet.kind, packet.source, data)
        assert stamp == packet.stamp, "a stamp changed on the wire"
        packet = msgspec.structs.replace(packet, stamp=stamp)
        before = order.snapshot()
        verdict, effects = order.receive(packet)
        assert verdict is not Verdict.DUPLICATE or not effects
        changed = order.snapshot() != before
        if verdict is Verdict.HOLD:
            self.waiting[packet.target][_key(packet, data)] = (packet, data)
            assert effects or not changed, "a held packet is in the durable state, but was not accepted"
        self._carry_out(packet.target, effects, changed, packet if verdict is Verdict.DELIVER else None)
        if self.duplicates:
            self.landed.append((packet, data))

    def again(self) -> None:
        """Something that arrived before arrives a second time."""
        packet, data = self.random.choice(self.landed)
        order = self.orders[packet.target]
        before = (order.snapshot(), order.held_packets(), order.held(), order.unposted())
        stamp = order.decode(packet.kind, packet.source, data)
        verdict, effects = order.receive(msgspec.structs.replace(packet, stamp=stamp))
        assert verdict is Verdict.DUPLICATE, f"{verdict} for a second {packet}"
        assert not effects
        assert (order.snapshot(), order.held_packets(), order.held(), order.unposted()) == before

    def restart(self, member: int) -> None:
        """Crash between two steps: only held packets are lost, and the link brings them again."""
        order = self.orders[member]
        snapshot = order.snapshot()
        fresh = self.kind(member, order.members, **self.options)
        fresh.restore(snapshot)
        assert fresh.snapshot() == snapshot
        assert not fresh.held_packets()
        self.orders[member] = fresh
        lost = self.waiting[member]
        self.flying.extend(lost.values())
        # What flies again has not landed: its next arrival is the first.
        gone = {id(packet) for packet, _ in lost.values()}
        self.landed = [pair for pair in self.landed if id(pair[0]) not in gone]
        lost.clear()

    def clone(self, member: int) -> None:
        """Go on with a clone, while the original lives another life for one step."""
        original = self.orders[member]
        twin = original.clone()
        state = (original.snapshot(), original.held_packets(), original.held(), original.unposted())
        assert (twin.snapshot(), twin.held_packets(), twin.held(), twin.unposted()) == state
        self.orders[member] = twin
        mine = [packet for packet, _ in self.flying if packet.target == member]
        if mine and self.random.random() < 0.5:
            original.receive(self.random.choice(mine))
        else:
            original.send(Message("elsewhere", member, original.everyone))
        assert (twin.snapshot(), twin.held_packets(), twin.held(), twin.unposted()) == state

    def _carry_out(self, member: int, effects: Effects, changed: bool, taken: Packet | None) -> None:
        order = self.orders[member]
        assert not changed or any(isinstance(effect, Persist) for effect in effects), "a change that is not persisted"
        durable = False
        delivered = set()
        for effect in effects:
            if isinstance(effect, Persist):
                durable = True
                continue
            assert durable or not changed, f"{effect} leaves before the state is durable"
            if isinstance(effect, Sent):
                self.record.send(effect.message)
            elif isinstance(effect, Send):
                packet = effect.packet
                assert packet.source == member
                assert (packet.kind == COPY) == (packet.message is not None)
                assert packet.kind == COPY or packet.kind in self.kind.controls
                data = order.encode(packet)
                assert order.size(packet) == len(data), "size() differs from the encoded stamp"
                self.flying.append((packet, data))
            elif isinstance(effect, Deliver):
                delivered.add(effect.message.id)
                self.record.deliver(effect.message, member)
            elif isinstance(effect, Accept):
                del self.waiting[member][_key(effect.packet, order.encode(effect.packet))]
        if taken is not None and taken.message is not None and taken.message.to >> member & 1:
            assert taken.message.id in delivered, f"DELIVER, but {taken.message.id} was not delivered in that step"
        held = {_key(packet, order.encode(packet)) for packet in order.held_packets()}
        assert held == set(self.waiting[member]), "held_packets() are not the packets held and not accepted"

    def play(self, messages: int, faults: bool) -> None:
        """Some sends, everything arriving in any sequence, then quiet."""
        random = self.random
        members = len(self.orders)
        eager = random.choice((0.2, 0.5, 0.9))
        """How much rather a message is sent than a packet arrives: eager senders make deep queues."""
        style = random.choice(("unicast", "multicast", "mixed", "broadcast"))
        if "broadcast" in self.kind.needs:
            style = "broadcast"
        left = messages
        while left or self.flying:
            if left and (not self.flying or random.random() < eager):
                left -= 1
                self.send(random.randrange(members), _destinations(random, members, style))
            else:
                self.arrive(random.randrange(len(self.flying)))
            if faults and random.random() < 0.15:
                fault = random.choice(("again", "restart", "clone"))
                if fault == "again" and self.landed:
                    self.again()
                elif fault == "restart":
                    self.restart(random.randrange(members))
                elif fault == "clone":
                    self.clone(random.randrange(members))


def _key(packet: Packet, data: bytes) -> tuple[str, int, str, bytes]:
    return (packet.kind, packet.source, packet.subject, data)


def _destinations(random: Random, members: int, style: str) -> int:
    everyone = (1 << members) - 1
    if style == "mixed":
        style = random.choice(("unicast", "multicast", "broadcast", "nobody"))
    if style == "unicast":
        return 1 << random.randrange(members)
    if style == "multicast":
        return mask_of(random.sample(range(members), random.randint(1, members)))
    return everyone if style == "broadcast" else 0


def run(
    kind: type[Order],
    seed: int,
    *,
    members: int = 0,
    messages: int = 0,
    faults: bool = True,
    duplicates: bool = True,
    **options: object,
) -> set[str]:
    """Play one schedule; the names of the properties that it broke.

    An order without counters cannot tell a duplicate: play it with ``duplicates=False``.
    """
    random = Random(f"{kind.__name__} scope {seed}")
    members = members or random.randint(2, 5)
    world = World(kind, members, seed, options)
    world.duplicates = duplicates
    world.play(messages or random.randint(2, 12), faults)
    broken = world.record.broken(world.accepted)
    if "undelivered" not in broken:
        for order in world.orders:
            assert not order.held()
            assert not order.unposted()
            assert not order.held_packets()
    return broken


def seeds(count: int) -> Iterator[int]:
    """As many seeds as the environment asks for, else ``count``."""
    return iter(range(int(os.environ.get("ANTECEDE_SEEDS", count))))


@pytest.fixture
def order_run() -> Callable[..., set[str]]:
    """Play one schedule on an order class; the set of broken properties."""
    return run


@pytest.fixture
def order_campaign() -> Callable[..., None]:
    """Play many schedules on an order class; none may break what the order guarantees."""

    def campaign(kind: type[Order], count: int = 300, duplicates: bool = True, **options: Any) -> None:
        promised = kind(0, 2, **options).guarantees | {"undelivered"}
        for seed in seeds(count):
            try:
                broken = run(kind, seed, duplicates=duplicates, **options) & promised
            except Exception as error:
                raise AssertionError(f"{kind.__name__} {options} seed {seed}: {error!r}") from error
            assert not broken, f"{kind.__name__} {options} seed {seed} broke {sorted(broken)}"

    return campaign


@pytest.fixture
def order_breaks() -> Callable[..., set[str]]:
    """Play many schedules on a broken order; all that broke in any of them, ``contract`` for the contract itself."""

    def breaks(kind: type[Order], count: int = 300, **options: Any) -> set[str]:
        found: set[str] = set()
        for seed in range(count):
            try:
                found |= run(kind, seed, faults=False, **options)
            except (AssertionError, AntecedeError):
                found.add("contract")
        return found

    return breaks


@pytest.fixture
def two_servers() -> Callable[..., None]:
    """Play ``play(near, far)`` on two servers of one domain, in this process; each is given its agents' classes."""

    def played(
        play: Callable[[ServerRuntime, ServerRuntime], Awaitable[None]],
        near_agents: dict[str, type[Agent]],
        far_agents: dict[str, type[Agent]],
    ) -> None:
        ports = free_ports(2)
        homes = [(name, place) for place, names in (("s1", near_agents), ("s2", far_agents)) for name in names]
        file = parse_topology(
            f'[servers]\ns1 = "tcp://127.0.0.1:{ports[0]}"\ns2 = "tcp://127.0.0.1:{ports[1]}"\n'
            '[domains]\nA = { servers = ["s1", "s2"] }\n[agents]\n'
            + "".join(f'{name} = {{ server = "{place}", class = "x:Given" }}\n' for name, place in homes)
        )

        async def main() -> None:
            near = ServerRuntime(file, "s1", durability="memory", agents=near_agents)
            far = ServerRuntime(file, "s2", durability="memory", agents=far_agents)
            await near.start()
            await far.start()
            try:
                async with asyncio.timeout(20):
                    await play(near, far)
            finally:
                await near.stop()
                await far.stop()

        asyncio.run(main())

    return played


@pytest.fixture(
    params=[
        ("chord", 8, 1_235, 541),
        ("simpledb", 5, 509, 95),
        ("voldemort", 20, 864, 34),
        ("reliable-broadcast", 4, 116, 48),
        ("simple-reliable-broadcast", 3, 39, 16),
        ("tsviz_shared_var_4_threads", 4, 5_000, 548),
        ("recordsfs-1", 3, 8_213, 1_311),
        ("slack-1", 2, 121, 22),
        ("twittor-1", 9, 39, 14),
    ],
    ids=lambda given: given[0],
)
def logged(request: pytest.FixtureRequest) -> tuple[str, int, int, int]:
    """A log with vector clocks among the shared data, its hosts, its events, and the messages that its clocks show."""
    given: tuple[str, int, int, int] = request.param
    return given
