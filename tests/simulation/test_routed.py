"""Worlds of domains under random schedules, judged from their traces alone by the plain oracle.

A forest of causal domains is causal end to end, for any tree, any mixture of causal orders, unicast and multicast. It
takes both halves of Laumay et al.'s theorem: organisations that are not forests break causal order, and so does a
router that forwards later than in the step that delivers (Laumay et al. §4).
"""

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from antecede.channel import Letter
from antecede.errors import NoRouteError
from antecede.messages import Message
from antecede.orders import parse
from antecede.simulator.draws import below, parse_draw, stream, subset
from antecede.simulator.machine import RoutedChannel
from antecede.simulator.observers import Figures, Recorder
from antecede.simulator.run import SHAPES, RequestReply, Spontaneous
from antecede.simulator.worlds import ChannelWorld
from antecede.topology import Domain, Topology
from antecede.trace import ARRIVE, DELIVER, HOP, SEND, Event, Verdict, judge

_stamped = ("matrix", "updates", "pruned", "direct")
_others = (
    "buffer",
    "buffer:pipelined=true",
    "buffer:multicast=hold-delivery",
    "synchronous",
    "coordinator",
    "token",
    "lamport",
    "skeen:causal=true",
)
_causal = (*_stamped, *_stamped, *_others)
_delays = ("exponential:0.1", "uniform:0.001,1", "pareto:1.1,0.01")
_broken = {
    "a domain in another": [("A", "01"), ("B", "012")],
    "two shared servers": [("A", "012"), ("B", "123")],
    "a ring": [("A", "01"), ("B", "12"), ("C", "23"), ("D", "30")],
}


def _forest(rng: Random) -> Topology:
    """A random tree: every new domain hangs on a server that is there already."""
    domains = [Domain("D0", tuple(f"s{number}" for number in range(2 + below(rng, 3))))]
    servers = list(domains[0].servers)
    for number in range(1, 1 + below(rng, 5)):
        router = servers[below(rng, len(servers))]
        new = [f"s{len(servers) + place}" for place in range(1 + below(rng, 3))]
        servers += new
        domains.append(Domain(f"D{number}", (router, *new)))
    return Topology(domains)


def _organised(groups: list[tuple[str, str]]) -> Topology:
    return Topology([Domain(name, tuple(f"s{server}" for server in servers)) for name, servers in groups])


class _Run(msgspec.Struct):
    world: ChannelWorld
    rows: list[Event]
    verdict: Verdict


def _run(
    topology: Topology,
    orders: Callable[[Random], str],
    seed: int,
    shape: str = "unicast",
    channel: type[RoutedChannel] = RoutedChannel,
    messages: int = 60,
) -> _Run:
    rng = stream(seed, "routed")
    rows: list[Event] = []
    delay = parse_draw(_delays[below(rng, len(_delays))], stream(seed, "delay"))
    world = ChannelWorld(
        topology,
        {name: parse(orders(rng)) for name in topology.domains},
        delay,
        channel=channel,
        observer=Recorder(topology.servers, rows.append),
    )
    gap = parse_draw(("exponential:0.02", "exponential:0.1", "exponential:0.5")[below(rng, 3)], stream(seed, "gap"))
    kind = RequestReply if below(rng, 2) else Spontaneous
    world.run(kind(messages, gap, SHAPES[shape](len(topology.servers), stream(seed, "destinations"))))
    return _Run(world, rows, judge(rows, ("fifo", "causal")))


@pytest.mark.parametrize("shape", ["unicast", "multicast", "broadcast"])
def test_forest_of_causal_domains_is_causal(shape: str, seeds: int) -> None:
    for seed in range(seeds):
        run = _run(_forest(stream(seed, "forest")), lambda rng: _causal[below(rng, len(_causal))], seed, shape)
        assert run.verdict.causal == [], seed
        assert run.verdict.undelivered == 0, seed
        assert run.verdict.deliveries == sum(len(row.to or ()) for row in run.rows if row.kind == SEND)


def test_forest_of_fifo_domains_is_fifo_and_not_causal(seeds: int) -> None:
    late = 0
    for seed in range(seeds):
        run = _run(_forest(stream(seed, "forest")), lambda rng: "fifo", seed, "multicast")
        assert run.verdict.fifo == [], seed
        assert run.verdict.undelivered == 0, seed
        late += len(run.verdict.causal)
    assert late > 0


@pytest.mark.parametrize("name", _broken)
@pytest.mark.parametrize("order", ["matrix", "pruned"])
def test_what_is_no_forest_breaks_causal_order(name: str, order: str) -> None:
    """The same traffic that a forest carries safely; each domain keeps its own order without fault."""
    topology = _organised(_broken[name])
    assert topology.cycle is not None
    runs = [_run(topology, lambda rng: order, seed) for seed in range(100)]
    assert all(run.verdict.undelivered == 0 for run in runs)
    assert sum(bool(run.verdict.causal) for run in runs) > 0


@pytest.mark.parametrize("name", _broken)
def test_multicast_reaches_everybody_once_where_there_is_no_forest(name: str) -> None:
    """The shipped hop relies on a forest; without one its multicasts would go round for ever, so none is sent."""
    for seed in range(10):
        run = _run(_organised(_broken[name]), lambda rng: "matrix", seed, "multicast")
        assert (run.verdict.undelivered, run.world.twice) == (0, [])


def test_star_that_shares_one_server_is_causal() -> None:
    topology = _organised([("A", "01"), ("B", "02"), ("C", "03")])
    assert topology.cycle is None
    for seed in range(100):
        assert _run(topology, lambda rng: "pruned", seed).verdict.causal == []


class _LateRouter(RoutedChannel):
    """A planted bug in the shipped hop: what passes through is sent on some time after the step that delivered it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._fresh: list[tuple[Letter, Any]] = []
        self._late: list[tuple[float, Letter, Any]] = []

    def _dispatch(
        self, letter: Letter, local: tuple[str, ...], onward: Any, returns_by: str, from_domain: str = ""
    ) -> None:
        if letter.source == self.me or not onward:
            super()._dispatch(letter, local, onward, returns_by, from_domain)
        else:
            super()._dispatch(letter, local, (), returns_by, from_domain)
            self._fresh.append((letter, onward))

    def flush(self, now: float) -> None:
        super().flush(now)
        ripe = [(letter, onward) for due, letter, onward in self._late if due <= now]
        self._late = [late for late in self._late if late[0] > now]
        self._late += [(now + 0.1, letter, onward) for letter, onward in self._fresh]
        self._fresh = []
        for letter, onward in ripe:
            super()._dispatch(letter, (), onward, "")
        super().flush(now)

    def deadline(self) -> float | None:
        dues = [due for due, _, _ in self._late]
        resend = super().deadline()
        return min(dues if resend is None else [resend, *dues], default=None)


class _UnicastRouter(RoutedChannel):
    """A planted bug in the shipped hop: a multicast is sent on as a loop of unicasts, each a message of its own."""

    def _dispatch(
        self, letter: Letter, local: tuple[str, ...], onward: Any, returns_by: str, from_domain: str = ""
    ) -> None:
        if letter.source != self.me:
            onward = [(domain, (member,)) for domain, members in onward for member in members]
        super()._dispatch(letter, local, onward, returns_by, from_domain)


@pytest.mark.parametrize(
    ("bug", "shape"), [(_LateRouter, "unicast"), (_LateRouter, "multicast"), (_UnicastRouter, "multicast")]
)
def test_planted_router_bugs_are_caught_on_a_tree(bug: type[RoutedChannel], shape: str) -> None:
    topology = _organised([("A", "012"), ("B", "234"), ("C", "45")])
    assert topology.cycle is None
    runs = [_run(topology, lambda rng: "matrix", seed, shape, bug) for seed in range(60)]
    assert all(run.verdict.undelivered == 0 for run in runs)
    assert sum(bool(run.verdict.causal) for run in runs) > 0


def test_hop_rows_tell_the_way() -> None:
    topology = _organised([("A", "01"), ("B", "12"), ("C", "23")])
    rows: list[Event] = []
    recorder = Recorder(topology.servers, rows.append)
    specs = {name: parse("matrix") for name in topology.domains}
    world = ChannelWorld(topology, specs, lambda: 0.5, observer=recorder)

    class Once:
        def start(self, world: ChannelWorld) -> None:
            world.send(0, 0b1001)

        def wake(self, world: ChannelWorld, process: int) -> None: ...

        def delivered(self, world: ChannelWorld, process: int, message: Message) -> None: ...

    world.run(Once())  # type: ignore[arg-type]
    told = [(row.process, row.index, row.kind, row.domain, row.hop, row.time, row.stamp_bytes) for row in rows]
    half = 500_000_000
    assert told == [
        ("s0", 0, SEND, None, None, 0, 4),
        # A letter to an agent of the same server does not travel.
        ("s0", 1, DELIVER, None, None, 0, None),
        ("s1", 0, HOP, "B", 1, half, 4),
        ("s2", 0, HOP, "C", 2, 2 * half, 4),
        ("s3", 0, ARRIVE, None, None, 3 * half, 4),
        ("s3", 1, DELIVER, None, None, 3 * half, None),
    ]
    assert rows[0].to == ("s0", "s3")


def test_figures_are_over_all_hops() -> None:
    """Three domains of two: a way of k hops weighs k matrices of four numbers."""
    topology = _organised([("A", "01"), ("B", "12"), ("C", "23")])
    specs = {name: parse("matrix") for name in topology.domains}
    figures = Figures(warmup=1, routed=True)
    world = ChannelWorld(topology, specs, lambda: 0.5, figures=figures)

    class Twice:
        def start(self, world: ChannelWorld) -> None:
            world.send(0, 0b1000)
            world.send(0, 0b1010)

        def wake(self, world: ChannelWorld, process: int) -> None: ...

        def delivered(self, world: ChannelWorld, process: int, message: Message) -> None: ...

    world.run(Twice())  # type: ignore[arg-type]
    report = figures.report()
    # One packet in each of three domains, for two destinations.
    assert (report["messages"], report["deliveries"], report["undelivered"]) == (1, 2, 0)
    assert report["stamp"]["paper_bytes_mean"] == 3 * 16 / 2
    assert report["stamp"]["bytes_mean"] == 3 * 4 / 2
    assert report["stamp"]["bytes_max"] == 6
    assert report["hops"]["mean"] == 1.5
    assert report["latency"]["mean"] == 1.0


def test_every_domain_gets_one_multicast() -> None:
    """However many destinations there are, each domain on the way sees one send."""
    for seed in range(50):
        rng = stream(seed, "one")
        topology = _forest(rng)
        run = _run(topology, lambda rng: "pruned", seed, "multicast", messages=20)
        hops = [(row.message, row.domain) for row in run.rows if row.kind == HOP]
        assert len(set(hops)) == len(hops)


def test_routes_equal_those_of_the_graph() -> None:
    """Each server's channel decides by itself, from the domain by which a letter came; the graph knows it all."""
    for seed in range(200):
        rng = stream(seed, "routes")
        topology = _forest(rng)
        names = topology.servers
        world = ChannelWorld(topology, {name: parse("fifo") for name in topology.domains}, lambda: 0.1)
        count = len(names)
        source = below(rng, count)
        mask = subset(rng, list(range(count)), 1 + below(rng, count)) & ~(1 << source)
        to = tuple(names[number] for number in range(count) if mask >> number & 1)
        before = topology.tree(names[source])
        ways: dict[str, dict[str, set[str]]] = {}
        for target in to:
            for server in topology.route(names[source], target)[1:]:
                domain, previous = before[server]
                ways.setdefault(previous, {}).setdefault(domain, set()).add(server)
        for server, hops in ways.items():
            from_domain = "" if server == names[source] else before[server][0]
            _, onward, _ = world.machines[names.index(server)].channel._plan(from_domain, to)
            assert {domain: set(members) for domain, members in onward} == hops


def test_no_way_is_a_typed_error() -> None:
    topology = _organised([("A", "01"), ("B", "23")])
    world = ChannelWorld(topology, {name: parse("fifo") for name in topology.domains}, lambda: 0.1)
    with pytest.raises(NoRouteError, match="no route from s0 to s3"):
        world.send(0, 0b1000)
