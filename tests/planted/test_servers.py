"""Bugs planted into link, channel, engine, store, server and router, each caught by the schedules of whole servers.

Every test breaks one thing in one place, and the random worlds of :mod:`worlds.schedules` must
notice within a stated number of schedules. The same schedules find nothing in what we ship:
``tests/simulation/test_servers.py`` sees to that.
"""

from collections import deque
from itertools import islice
from typing import Any

import msgspec
import pytest

from antecede.channel import Channel, Letter, MessageConsumer, Returns
from antecede.engine import Engine, React, Reaction
from antecede.errors import TopologyError
from antecede.link import Ack, Arrival, Frame, Link
from antecede.live.application import plan_of
from antecede.server import AgentServer, Driver, Gate, Peering, Published, Reacted, Timers
from antecede.simulator.servers import ServerWorld
from antecede.simulator.servers.network import Faults
from antecede.simulator.servers.server import SimulatedServer
from antecede.store import Segments
from antecede.store import recovery as walk_module
from antecede.topology import Domain, Topology, parse_topology
from helpers.planted import caught
from worlds import schedules

Patch = pytest.MonkeyPatch


# Link.


def test_acknowledging_before_it_is_durable(monkeypatch: Patch) -> None:
    def put(self: Gate, outgoing: list[Any], replies: list[Any]) -> None:
        early = [one for one in outgoing if isinstance(one.content, Ack)]
        self._send(early)
        real(self, [one for one in outgoing if one not in early], replies)

    real = Gate.put
    monkeypatch.setattr(Gate, "put", put)
    caught(150)


def test_duplicates_that_are_not_recognised(monkeypatch: Patch) -> None:
    def receive(self: Link, frame: Frame) -> Arrival:
        arrival = real(self, frame)
        if arrival is Arrival.DUPLICATE and frame.number in self._accepted:
            self._received.add(frame.number)
            return Arrival.FRESH
        return arrival

    real = Link.receive
    monkeypatch.setattr(Link, "receive", receive)
    caught(30)


def test_numbers_that_are_used_again_after_a_crash(monkeypatch: Patch) -> None:
    def load(self: Link, state: Any, now: float) -> None:
        incarnation, peer, sent, bodies, upto, beyond = state
        real(self, (incarnation, peer, max(bodies, default=max(0, sent - 1)), bodies, upto, beyond), now)

    real = Link.load
    monkeypatch.setattr(Link, "load", load)
    caught(150)


def test_a_hello_that_says_more_than_is_durable(monkeypatch: Patch) -> None:
    def say_hello(self: Peering, peer: Any, connection: Any, then: Any, *more: Any) -> None:
        connection.send([self.hello(peer, *more)])
        then()

    monkeypatch.setattr(Peering, "say_hello", say_hello)
    caught(300, faults=Faults(crashes=12, powercuts=1.0, resets=150, slow_disks=12, seconds=0.5))


# Channel.


def test_a_hop_in_a_later_step(monkeypatch: Patch) -> None:
    """Laumay et al. §4: a router that forwards later breaks causal order even on a tree."""

    def dispatch(
        self: Channel, letter: Letter, local: Any, onward: Any, returns_by: str, from_domain: str = ""
    ) -> None:
        elsewhere = self._addresses.origin(letter.source) != self.me
        real(self, letter, local, () if elsewhere else onward, returns_by, from_domain)
        if elsewhere and onward:
            late.setdefault(self, []).append((letter, onward))

    def flush(self: Channel, now: float) -> None:
        earlier = ripe.pop(self, [])
        ripe[self] = late.pop(self, [])
        real_flush(self, now)
        for letter, onward in earlier:
            real(self, letter, (), onward, "")
        real_flush(self, now)

    late: dict[Channel, list[Any]] = {}
    ripe: dict[Channel, list[Any]] = {}
    real, real_flush = Channel._dispatch, Channel.flush
    monkeypatch.setattr(Channel, "_dispatch", dispatch)
    monkeypatch.setattr(Channel, "flush", flush)
    caught(150, "causal order does not hold", "fifo order does not hold")


def test_trains_that_are_stamped_in_any_sequence(monkeypatch: Patch) -> None:
    def flush(self: MessageConsumer, now: float) -> bool:
        self.trains.reverse()
        return real(self, now)

    real = MessageConsumer.flush
    monkeypatch.setattr(MessageConsumer, "flush", flush)
    caught(100, "causal order does not hold", "fifo order does not hold")


def test_trains_that_are_stamped_with_the_state_before_the_step(monkeypatch: Patch) -> None:
    def flush(self: MessageConsumer, now: float) -> bool:
        if len(self.trains) < 2:
            return real(self, now)
        before = self.order.snapshot()
        trains, self.trains = self.trains, []
        for train in trains:
            self.order = self.spec.create(self.me, len(self.members))
            self.order.restore(before)
            self.trains = [train]
            real(self, now)
        return True

    real = MessageConsumer.flush
    monkeypatch.setattr(MessageConsumer, "flush", flush)
    caught(60, orders=("matrix", "pruned", "updates", "direct"))


_total = ("lamport", "token", "coordinator", "skeen:causal=true")


def test_a_local_copy_that_does_not_go_through_the_total_order(monkeypatch: Patch) -> None:
    def create(self: Channel, *given: Any) -> None:
        real(self, *given)
        self._total = dict.fromkeys(self._total, False)

    real = Channel.__init__
    monkeypatch.setattr(Channel, "__init__", create)
    caught(300, "total order does not hold", orders=_total)


def test_what_overtakes_an_own_letter_in_a_total_order(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Returns, "admits", lambda self, domains: domains in ([], [self.domain]))
    caught(150, "causal order does not hold", orders=_total)


def test_an_own_letter_that_is_forwarded_twice(monkeypatch: Patch) -> None:
    def dispatch(
        self: Channel, letter: Letter, local: Any, onward: Any, returns_by: str, from_domain: str = ""
    ) -> None:
        real(self, letter, local, onward, returns_by, from_domain)
        if returns_by:
            for domain, members in self._plan(returns_by, letter.to)[1]:
                self.consumers[domain].enqueue(members, letter)

    real = Channel._dispatch
    monkeypatch.setattr(Channel, "_dispatch", dispatch)
    caught(150, "delivered 2 times", orders=_total)


# Router.


def test_a_multicast_as_unicasts(monkeypatch: Patch) -> None:
    def enqueue(self: MessageConsumer, targets: tuple[str, ...], letter: Letter) -> None:
        for target in targets:
            real(self, (target,), letter)

    real = MessageConsumer.enqueue
    monkeypatch.setattr(MessageConsumer, "enqueue", enqueue)
    caught(400, "causal order does not hold", "total order does not hold")


def test_a_router_that_sends_back_where_it_came_from(monkeypatch: Patch) -> None:
    def plan(self: Channel, from_domain: str, to: tuple[str, ...]) -> Any:
        local, onward, returns_by = real(self, from_domain, to)
        return (local, real(self, "", to)[1], "") if from_domain and len(to) > 1 else (local, onward, returns_by)

    real = Channel._make_plan
    monkeypatch.setattr(Channel, "_make_plan", plan)
    caught(60)


@pytest.mark.parametrize(
    ("domains", "cycle"),
    [
        ({"A": "s1 s2", "B": "s1 s2 s3"}, "s1 –A– s2 –B– s1"),
        ({"A": "s1 s2 s3", "B": "s2 s3 s4"}, "s3 –A– s2 –B– s3"),
        ({"A": "s1 s2", "B": "s2 s3", "C": "s3 s4", "D": "s1 s4"}, "s4 –D– s1 –A– s2 –B– s3 –C– s4"),
    ],
    ids=["a domain in another", "two shared servers", "a ring"],
)
def test_an_organisation_that_is_no_forest(domains: dict[str, str], cycle: str, monkeypatch: Patch) -> None:
    """Laumay et al. §4, Theorem 1. No server starts on one; with that check bypassed the schedules that a forest
    carries safely break causal order, though every domain keeps its own."""
    members = {name: tuple(servers.split()) for name, servers in domains.items()}
    names = sorted({server for servers in members.values() for server in servers})
    lines = ["[servers]", *(f'{name} = "tcp://127.0.0.1:{7101 + place}"' for place, name in enumerate(names))]
    lines += ["[domains]", *(f"{name} = {{ servers = {list(servers)} }}" for name, servers in members.items())]
    with pytest.raises(TopologyError, match=cycle):
        plan_of(parse_topology("\n".join(lines).replace("'", '"')))
    topology = Topology([Domain(name, servers) for name, servers in members.items()])
    monkeypatch.setattr(schedules, "forest", lambda random: topology)
    # Some letters go round and round: such a world is given up early.
    monkeypatch.setattr(ServerWorld, "events_max", 10_000)
    faults = Faults(loss=0.3, slow_disks=2, partitions=2, seconds=0.3)
    caught(600, "causal order does not hold", orders=("matrix", "pruned"), faults=faults)


# Engine.


def test_a_mailbox_that_is_emptied_before_the_commit(monkeypatch: Patch) -> None:
    def hand_out(self: Engine, agent: str) -> React:
        mailbox = self.mailboxes[agent]
        due = real(self, agent)
        taken.setdefault(id(self), {})[agent] = deque(islice(mailbox, len(due.letters)))
        for _ in due.letters:
            mailbox.popleft()
        return due

    def finish(self: Engine, agent: str, reactions: tuple[Reaction, ...], *rest: Any) -> list[Letter]:
        back = taken.get(id(self), {}).pop(agent, None)
        if back:
            self.mailboxes.setdefault(agent, deque()).extendleft(reversed(back))
        return real_finish(self, agent, reactions, *rest)

    def finish_plainly(self: Engine, agent: str, ids: list[str], *rest: Any) -> None:
        finish(self, agent, tuple(map(Reaction, ids)), *rest)

    taken: dict[int, dict[str, deque[Letter]]] = {}
    real, real_finish = Engine._hand_out, Engine.finish
    monkeypatch.setattr(Engine, "_hand_out", hand_out)
    monkeypatch.setattr(Engine, "finish", finish)
    monkeypatch.setattr(Engine, "finish_plainly", finish_plainly)
    caught(300)


def test_sends_of_a_reaction_outside_of_its_record(monkeypatch: Patch) -> None:
    def take(self: AgentServer, given: Any, now: float, clock_ms: int) -> None:
        real(self, given, now, clock_ms)
        if isinstance(given, Reacted):
            self.items[-1] = msgspec.structs.replace(
                given, reactions=tuple(Reaction(r.letter) for r in given.reactions)
            )

    real = AgentServer._take
    monkeypatch.setattr(AgentServer, "_take", take)
    caught(20)


def test_states_that_are_saved_before_the_commit(monkeypatch: Patch) -> None:
    def recover(self: SimulatedServer) -> None:
        before = getattr(self, "host", None)
        real(self)
        if before is not None:
            self.host._alive.update(before._alive)

    real = SimulatedServer._recover
    monkeypatch.setattr(SimulatedServer, "_recover", recover)
    caught(150, "remembers", "did something twice")


def test_an_answer_and_a_timeout_of_one_question(monkeypatch: Patch) -> None:
    def handler(self: Engine, letter: Letter, settled: set[str]) -> str:
        settled.clear()
        return real(self, letter, settled)

    real = Engine._handler
    monkeypatch.setattr(Engine, "_handler", handler)
    caught(1000, "were settled")


# Store.


def test_a_sync_that_is_skipped(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Segments, "sync", lambda self: None)
    caught(60)


def test_a_torn_group_that_is_kept(monkeypatch: Patch) -> None:
    monkeypatch.setattr(walk_module, "checked", lambda header, body: True)
    caught(300, faults=Faults(crashes=12, powercuts=1.0, seconds=0.5))


# Server.


def _let_leave(self: Gate, outgoing: list[Any], replies: list[Any]) -> None:
    self._reply(replies)
    self._send(outgoing)


def test_what_leaves_before_it_is_durable(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Gate, "put", _let_leave)
    caught(100)


def test_what_leaves_when_only_its_own_record_is_durable(monkeypatch: Patch) -> None:
    """A step without a record may acknowledge again what an earlier step took, whose record is not durable yet."""

    def turn(self: Driver, now: float, clock_ms: int) -> Any:
        before = self.gate.last
        with monkeypatch.context() as patch:
            patch.setattr(Gate, "put", lambda self, *sent: hurried(self, before, *sent))
            return real(self, now, clock_ms)

    def hurried(self: Gate, before: int, outgoing: list[Any], replies: list[Any]) -> None:
        if self.last == before:
            _let_leave(self, outgoing, replies)
        else:
            real_put(self, outgoing, replies)

    real, real_put = Driver.turn, Gate.put
    monkeypatch.setattr(Driver, "turn", turn)
    caught(300, faults=Faults(crashes=10, powercuts=1.0, slow_disks=6, seconds=0.5))


def test_a_replay_that_stamps_nothing(monkeypatch: Patch) -> None:
    def replay(self: AgentServer, record: bytes, now: float) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Channel, "flush", lambda self, now: None)
            real(self, record, now)

    real = AgentServer.replay
    monkeypatch.setattr(AgentServer, "replay", replay)
    caught(60)


def test_publishes_whose_numbers_are_not_remembered(monkeypatch: Patch) -> None:
    def publish(self: AgentServer, given: Any, now: float, clock_ms: int) -> None:
        if isinstance(given, Published):
            self.clients[given.client] = given.number - 1
        real(self, given, now, clock_ms)

    real = AgentServer._publish
    monkeypatch.setattr(AgentServer, "_publish", publish)
    caught(150, "published")


@pytest.mark.parametrize("lost", ["timers", "clients"])
def test_what_a_snapshot_forgets(lost: str, monkeypatch: Patch) -> None:
    def restore(self: AgentServer, *given: Any) -> None:
        real(self, *given)
        if lost == "timers":
            self.timers = Timers(self.engine.footprint)
        else:
            self.clients = {}

    real = AgentServer.restore
    monkeypatch.setattr(AgentServer, "restore", restore)
    caught(400)


def test_own_letters_that_a_snapshot_forgets(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Returns, "load", lambda self, state: None)
    caught(1500, orders=_total)
