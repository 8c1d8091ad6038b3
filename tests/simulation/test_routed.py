"""Worlds of domains under random schedules, judged from their traces alone by the plain oracle.

A forest of causal domains is causal end to end, for any tree, any mixture of causal orders, unicast and multicast. It
takes both halves of Laumay et al.'s theorem: organisations that are not forests break causal order, and so does a
router that forwards later than in the step that delivers (Laumay et al. §4).
"""

from collections.abc import Callable
from heapq import heappush
from random import Random

import msgspec
import pytest

from antecede.errors import TopologyError
from antecede.messages import Message, members_of
from antecede.orders import parse
from antecede.simulator.draws import below, parse_draw, stream, subset
from antecede.simulator.routed import RoutedWorld
from antecede.simulator.routed_record import RoutedFigures, RoutedRecorder
from antecede.simulator.workloads import SHAPES, RequestReply, Spontaneous
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
    world: RoutedWorld
    rows: list[Event]
    verdict: Verdict


def _run(
    topology: Topology,
    orders: Callable[[Random], str],
    seed: int,
    shape: str = "unicast",
    world_of: type[RoutedWorld] = RoutedWorld,
    messages: int = 60,
) -> _Run:
    rng = stream(seed, "routed")
    rows: list[Event] = []
    delay = parse_draw(_delays[below(rng, len(_delays))], stream(seed, "delay"))
    world = world_of(
        topology,
        {name: parse(orders(rng)) for name in topology.domains},
        delay,
        watcher=RoutedRecorder(topology.servers, rows.append),
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


def test_star_that_shares_one_server_is_causal() -> None:
    topology = _organised([("A", "01"), ("B", "02"), ("C", "03")])
    assert topology.cycle is None
    for seed in range(100):
        assert _run(topology, lambda rng: "pruned", seed).verdict.causal == []


class _LateRouter(RoutedWorld):
    """A planted bug: the router forwards in a step of its own, some time after the step that delivered."""

    def _forward(self, server: int, onward: list[tuple[int, int]], id_: str) -> None:
        later = (self.now + self._delay(), self._tie(), (server, onward, id_))
        heappush(self._happenings, later)

    def _happen(self, happening: object) -> None:
        if isinstance(happening, tuple) and len(happening) == 3:
            self._post(*happening)
            self._react()
        else:
            super()._happen(happening)


class _UnicastRouter(RoutedWorld):
    """A planted bug: a multicast is forwarded as a loop of unicasts, each a message of its own in the domain."""

    def _forward(self, server: int, onward: list[tuple[int, int]], id_: str) -> None:
        for station, to in onward:
            for member in members_of(to):
                self._post(server, [(station, 1 << member)], id_)


@pytest.mark.parametrize(
    ("bug", "shape"), [(_LateRouter, "unicast"), (_LateRouter, "multicast"), (_UnicastRouter, "multicast")]
)
def test_planted_router_bugs_are_caught_on_a_tree(bug: type[RoutedWorld], shape: str) -> None:
    topology = _organised([("A", "012"), ("B", "234"), ("C", "45")])
    assert topology.cycle is None
    runs = [_run(topology, lambda rng: "matrix", seed, shape, bug) for seed in range(60)]
    assert all(run.verdict.undelivered == 0 for run in runs)
    assert sum(bool(run.verdict.causal) for run in runs) > 0


def test_hop_rows_tell_the_way() -> None:
    topology = _organised([("A", "01"), ("B", "12"), ("C", "23")])
    rows: list[Event] = []
    recorder = RoutedRecorder(topology.servers, rows.append)
    specs = {name: parse("matrix") for name in topology.domains}
    world = RoutedWorld(topology, specs, lambda: 0.5, watcher=recorder)

    class Once:
        def start(self, world: RoutedWorld) -> None:
            world.send(0, 0b1001)

        def wake(self, world: RoutedWorld, process: int) -> None: ...

        def delivered(self, world: RoutedWorld, process: int, message: Message) -> None: ...

    world.run(Once())  # type: ignore[arg-type]
    told = [(row.process, row.index, row.kind, row.domain, row.hop, row.time, row.stamp_bytes) for row in rows]
    half = 500_000_000
    assert told == [
        ("s0", 0, SEND, None, None, 0, 4),
        ("s0", 1, ARRIVE, None, None, half, 4),
        ("s0", 2, DELIVER, None, None, half, None),
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
    world = RoutedWorld(topology, specs, lambda: 0.5, figures=RoutedFigures(warmup=1))

    class Twice:
        def start(self, world: RoutedWorld) -> None:
            world.send(0, 0b1000)
            world.send(0, 0b1010)

        def wake(self, world: RoutedWorld, process: int) -> None: ...

        def delivered(self, world: RoutedWorld, process: int, message: Message) -> None: ...

    world.run(Twice())  # type: ignore[arg-type]
    figures = world.figures.report()
    # One packet in each of three domains, for two destinations.
    assert (figures["messages"], figures["deliveries"], figures["undelivered"]) == (1, 2, 0)
    assert figures["stamp"]["paper_bytes_mean"] == 3 * 16 / 2
    assert figures["stamp"]["bytes_mean"] == 3 * 4 / 2
    assert figures["stamp"]["bytes_max"] == 6
    assert figures["hops"]["mean"] == 1.5
    assert figures["latency"]["mean"] == 1.0


def test_every_domain_gets_one_multicast() -> None:
    """However many destinations there are, each domain on the way sees one send."""
    for seed in range(50):
        rng = stream(seed, "one")
        topology = _forest(rng)
        run = _run(topology, lambda rng: "pruned", seed, "multicast", messages=20)
        hops = [(row.message, row.domain) for row in run.rows if row.kind == HOP]
        assert len(set(hops)) == len(hops)


def test_routes_equal_those_of_the_graph() -> None:
    for seed in range(200):
        rng = stream(seed, "routes")
        topology = _forest(rng)
        world = RoutedWorld(topology, {name: parse("fifo") for name in topology.domains}, lambda: 0.1)
        count = len(topology.servers)
        source = below(rng, count)
        to = subset(rng, list(range(count)), 1 + below(rng, count))
        expected = topology.hops(topology.servers[source], [topology.servers[n] for n in range(count) if to >> n & 1])
        for server, hops in expected.items():
            given = world._route(source, to)[topology.servers.index(server)]
            said = [(world._domain[station], members_of(mask)) for station, mask in given]
            named = [(name, tuple(topology.domains[name].servers[m] for m in members)) for name, members in said]
            assert named == [(hop.domain, hop.targets) for hop in hops]


def test_no_way_is_a_typed_error() -> None:
    topology = _organised([("A", "01"), ("B", "23")])
    world = RoutedWorld(topology, {name: parse("fifo") for name in topology.domains}, lambda: 0.1)
    with pytest.raises(TopologyError, match="no way from s0 to s3"):
        world.send(0, 0b1000)
