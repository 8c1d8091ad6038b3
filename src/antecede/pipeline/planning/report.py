"""Make the report of the command ``plan`` for some traffic. Convert this report to a topology file.

If the setting ``disconnected`` is true, servers that exchange messages are put into one group. A pin (a constraint from
the operator) can also put servers into one group. Each group becomes a separate tree of domains, and there is no route
between two groups. If the setting is false, all servers form one tree. The report uses the server names of the traffic.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random
from typing import Any

import msgspec

from antecede import __version__, limits
from antecede.messages import COPY, Message, Packet
from antecede.orders import parse
from antecede.orders.contract import Order
from antecede.pipeline.planning import search as plans
from antecede.pipeline.planning.problem import Bounds, Figures, Model, Pins, Plan, Problem, model_of
from antecede.pipeline.planning.search import Candidate, Outcome, ReportProgress, Run, search, violated
from antecede.pipeline.planning.traffic import Traffic
from antecede.simulator.draws import below, parse_draw, stream
from antecede.simulator.kernel import World
from antecede.simulator.observers import Figures as SimulatedFigures
from antecede.simulator.worlds import ChannelWorld
from antecede.topology import Address, Domain, DomainEntry, Topology, TopologyFile, is_name

# Check a plan in the simulator: send a sample of the traffic through the plan's domains, and measure the cost.
#
# The cost model predicts the size of stamps from a table, which was measured with uniform traffic. A replay measures
# the stamps of the given traffic: the simulator sends and routes each message, and each message gets a real stamp of
# the chosen order. A message has a stamp in each domain that it enters. The sizes of these stamps are added up. A size
# is a number of bytes or, with ``--model paper``, a number of counters. If a multicast has several copies in one
# domain, only the mean size of their stamps is added.


_gap_seconds = 0.1
"""The mean time between two sends of one server, and the mean delay of a packet, in seconds."""

_bytes_replayed_max = 2.0e7
"""A limit for the expected size of all stamps in a replay. The size is a number of bytes or, with ``--model paper``, a
number of counters. A replay of this size takes some seconds. If the expected size is above the limit, the replay sends
fewer messages. The limit never reduces the number of messages below ``_sample_min``."""

_sample_min = 500


class Replayed(msgspec.Struct, frozen=True):
    """The figures of a replay: the number of messages, and means per message."""

    messages: int
    cost: float
    hops: float
    stamp: float
    """The size of stamps per message, in bytes or, with ``--model paper``, in counters. A message has a stamp in each
    domain that it enters, and the sizes of these stamps are added up. ``stamp`` is the mean of this sum over all
    messages."""


class _Charges(SimulatedFigures):
    """Adds up two numbers over all messages of a replay: the number of domains that the messages enter, and the size of
    their stamps in these domains."""

    def __init__(self, paper: bool) -> None:
        super().__init__(0, routed=True)
        self._paper = paper
        self.entered = 0.0
        self.stamps = 0.0

    def posted(self, order: Order, packet: Packet) -> None:
        super().posted(order, packet)
        if packet.kind == COPY and packet.message is not None:
            copies = max(1, packet.message.to.bit_count())
            self.entered += 1 / copies
            self.stamps += (order.dependents(packet) if self._paper else order.size(packet)) / copies


class _Sampled:
    """Sends a sample of the traffic, in random order. A *flow* consists of all messages with the same source and the
    same targets. The share of each flow in the sample is its share in the traffic, rounded to whole messages.

    If messages were drawn independently of each other, a small sample would often miss a flow that has only one
    message. So the messages are not drawn independently.
    """

    def __init__(self, traffic: Traffic, number_of: dict[str, int], messages: int, seed: int) -> None:
        flows = list(traffic.flows())
        upto = list(accumulate(count for _, _, count in flows))
        rng: Random = stream(seed, "destinations")
        drawn = [min(bisect_right(upto, (k + 0.5) * upto[-1] / messages), len(flows) - 1) for k in range(messages)]
        for last in range(messages - 1, 0, -1):
            other = below(rng, last + 1)
            drawn[last], drawn[other] = drawn[other], drawn[last]
        self._sends = [
            (number_of[traffic.servers[source]], sum(1 << number_of[traffic.servers[target]] for target in targets))
            for source, targets, _ in (flows[flow] for flow in drawn)
        ]
        self._gap = parse_draw(f"exponential:{_gap_seconds / len(traffic.servers)}", stream(seed, "gap"))

    def start(self, world: World) -> None:
        world.wake_after(self._gap(), 0)

    def wake(self, world: World, process: int) -> None:
        if self._sends:
            world.send(*self._sends.pop())
            world.wake_after(self._gap(), 0)

    def delivered(self, world: World, process: int, message: Message) -> None:
        pass


def replay(
    traffic: Traffic, domains: dict[str, list[str]], model: Model, predicted_stamp: float, most: int, seed: int
) -> Replayed | None:
    """Send a sample of the traffic, at most ``most`` messages, through the domains. Return the figures. Return None if
    there is no message to send, or if there are no domains."""
    wanted = min(most, int(traffic.messages), max(_sample_min, int(_bytes_replayed_max / max(1.0, predicted_stamp))))
    if wanted < 1 or not domains:
        return None
    topology = Topology([Domain(name, tuple(members)) for name, members in domains.items()], traffic.servers)
    charges = _Charges(model.name == "paper")
    spec = parse(model.order)
    world = ChannelWorld(
        topology,
        dict.fromkeys(domains, spec),
        parse_draw(f"exponential:{_gap_seconds}", stream(seed, "delay")),
        figures=charges,
    )
    number_of: dict[str, int] = {name: place for place, name in enumerate(topology.servers)}
    world.run(_Sampled(traffic, number_of, wanted, seed))
    hops, stamp = charges.entered / wanted, charges.stamps / wanted
    return Replayed(wanted, model.alpha * hops + model.beta * stamp, hops, stamp)


def as_json(replayed: Replayed | None) -> dict[str, Any] | None:
    """Return the value of the report's key ``replay``."""
    return None if replayed is None else msgspec.structs.asdict(replayed)


ReportStatus = Callable[[str], None]

REFERENCES = ("flat", "bus", "blocks", "star")


class Settings(msgspec.Struct, frozen=True):
    """The settings of a plan."""

    order: str = "pruned"
    model: str = "cpu"
    bounds: Bounds = Bounds()
    pins: Pins = Pins()
    disconnected: bool = False
    seed: int = 1
    sample: int = 20_000


class _Part(msgspec.Struct):
    """One planned tree of domains: its problem, its traffic, and the result of its search."""

    problem: Problem
    traffic: Traffic
    outcome: Outcome


def make_plan(
    traffic: Traffic,
    settings: Settings,
    before: Sequence[Sequence[str]] | None = None,
    run: Run | None = None,
    report_progress: ReportProgress = lambda done, all_: None,
    report_status: ReportStatus = lambda _: None,
) -> dict[str, Any]:
    """Plan domains for some traffic, and return the report. The report compares the plan with ``before``, the current
    domains. By default this is one flat domain."""
    started = time.perf_counter()
    model = model_of(settings.model, str(parse(settings.order)))
    settings.bounds.check()
    total = traffic.messages
    groups = traffic.parts(settings.pins.together) if settings.disconnected else [list(range(len(traffic.servers)))]
    parts: list[_Part] = []
    for number, members in enumerate(groups):
        if len(members) < 2:
            continue
        report_status(f"searching for domains of {len(members)} servers")
        own = traffic.among(members) if len(groups) > 1 else traffic
        problem = Problem(own, model, settings.bounds, settings.pins.within(own.servers), total or 1.0)
        parts.append(_Part(problem, own, search(problem, settings.seed + number, run, report_progress)))
    domains = _named([(part, part.outcome.best.plan) for part in parts])
    figures = _summed([part.outcome.best.figures for part in parts])
    report_status("replaying the traffic in the plan")
    stamp = (figures.cost - model.alpha * figures.hops_mean) / model.beta
    # Nothing is replayed without traffic, nor if the plan must not be used.
    replayed = replay(traffic, domains, model, stamp, settings.sample, settings.seed) if figures.feasible else None
    today = _today(traffic, model, before)
    return {
        "version": __version__,
        "servers": len(traffic.servers),
        "messages": round(total),
        "local": round(traffic.local),
        "feasible": figures.feasible,
        "violated": violated(figures, settings.bounds),
        "flat": figures.feasible and len(domains) == len(parts),
        "domains": domains,
        "cost": {
            "before": None if today is None else today.cost,
            "after": figures.cost,
            "simulated_after": None if replayed is None else replayed.cost,
            "lower_bound": sum(part.problem.lower_bound() for part in parts),
        },
        "busiest_share": figures.busiest_share,
        "hops_mean": figures.hops_mean,
        "hops_max": figures.longest,
        "routers": [row for part in parts for row in _routers(part)],
        "front": _front(parts),
        **_references(parts, settings.bounds),
        "replay": as_json(replayed),
        "model": _model(model, len(traffic.servers)),
        "seed": settings.seed,
        "seconds": round(time.perf_counter() - started, 3),
    }


def _named(parts: Sequence[tuple[_Part, Plan]]) -> dict[str, list[str]]:
    """Return the domains of all parts, with unique names."""
    found = [
        [part.problem.servers[server] for server in members]
        for part, plan in parts
        for members in plans.domains_of(plan)
    ]
    return {f"d{number}": members for number, members in enumerate(found, 1)}


def _summed(figures: Sequence[Figures]) -> Figures:
    """Combine the figures of several trees into the figures of the whole plan."""
    return Figures(
        sum(one.cost for one in figures),
        sum(one.hops_mean for one in figures),
        max((one.busiest_share for one in figures), default=0.0),
        max((one.largest for one in figures), default=1),
        max((one.longest for one in figures), default=0),
        sum(one.broken_pins for one in figures),
        sum(one.excess for one in figures),
    )


def _today(traffic: Traffic, model: Model, before: Sequence[Sequence[str]] | None) -> Figures | None:
    """Return the figures of the current domains for this traffic. ``before`` has the current domains; None means one
    flat domain. Return None if the given domains are not one tree, or have servers that the traffic does not have. Also
    return None if ``before`` is None and there are fewer than two servers."""
    problem = Problem(traffic, model, Bounds(), Pins(), traffic.messages or 1.0)
    if before is None:
        return problem.figures(plans.plan_of(plans.flat(problem.n), problem.n)) if problem.n > 1 else None
    kept = [Domain(f"d{number}", tuple(members)) for number, members in enumerate(before) if len(members) > 1]
    topology = Topology(kept, traffic.servers)
    if topology.cycle is not None or len(topology.trees) > 1 or len(topology.servers) > problem.n:
        return None
    numbers = {name: number for number, name in enumerate(traffic.servers)}
    domains = [[numbers[name] for name in domain.servers] for domain in kept]
    return problem.figures(plans.plan_of(domains, problem.n))


def _routers(part: _Part) -> list[dict[str, Any]]:
    """Return the routers of a plan. For each router, the result has the share of all messages that it forwards, and the
    number of servers that are cut off if it fails."""
    plan, problem = part.outcome.best.plan, part.problem
    forwarded, sizes = forwarding(part.traffic, plan), _cut_off(plan)
    rows = [
        {
            "server": problem.servers[server],
            "domains": count,
            "share": forwarded[server] / problem.inputs.total,
            "cut_off": lost,
        }
        for server, (count, lost) in sizes.items()
    ]
    return sorted(rows, key=lambda row: (-row["share"], row["server"]))


def _cut_off(plan: Plan) -> dict[int, tuple[int, int]]:
    """Return two numbers for each router: the number of its domains, and the number of other servers that are cut off
    if the router fails. Without the router, the tree falls into several parts. All servers outside the largest part are
    cut off."""
    parent, block = plan[0].tolist(), plan[1].tolist()
    below = [1] * len(parent)
    for server in _upwards(parent):
        if parent[server] >= 0:
            below[parent[server]] += below[server]
    parts: dict[int, dict[int, int]] = {}
    for server, above in enumerate(parent):
        if above >= 0:
            own = parts.setdefault(above, {})
            own[block[server]] = own.get(block[server], 0) + below[server]
    found = {}
    for server, own in parts.items():
        sizes = [*own.values()]
        if parent[server] >= 0:
            sizes.append(len(parent) - below[server])
        if len(sizes) > 1:
            found[server] = len(sizes), sum(sizes) - max(sizes)
    return found


def _upwards(parent: Sequence[int]) -> list[int]:
    """Return all servers of a plan's tree, each before its parent."""
    below: dict[int, list[int]] = {}
    for server, above in enumerate(parent):
        below.setdefault(above, []).append(server)
    order = list(below[-1])
    for server in order:
        order += below.get(server, [])
    return order[::-1]


def forwarding(traffic: Traffic, plan: Plan) -> list[float]:
    """Return, for each server, the number of messages that it forwards. If a server forwards a message to several
    targets, the message counts once."""
    parent, block = plan[0].tolist(), plan[1].tolist()
    depth = [0] * len(parent)
    for server in reversed(_upwards(parent)):
        if parent[server] >= 0:
            depth[server] = depth[parent[server]] + 1
    found = [0.0] * len(parent)
    for source, targets, count in traffic.flows():
        for server in {between for target in targets for between in route(parent, block, depth, source, target)}:
            found[server] += count
    return found


def route(parent: Sequence[int], block: Sequence[int], depth: Sequence[int], source: int, target: int) -> list[int]:
    """Return the servers between ``source`` and ``target`` on the route of a message."""
    up, down = [source], [target]
    while up[-1] != down[-1]:
        if depth[up[-1]] >= depth[down[-1]]:
            up.append(parent[up[-1]])
        else:
            down.append(parent[down[-1]])
    top = up.pop()
    down.pop()
    # Two children of one block reach each other directly.
    direct = bool(up) and bool(down) and block[up[-1]] == block[down[-1]]
    way = [*up, *([] if direct else [top]), *reversed(down)]
    return way[1:-1]


def _front(parts: Sequence[_Part]) -> list[dict[str, Any]]:
    """Return the plans that no other plan beats in cost, hops and the load of the busiest router (the Pareto front).
    Leave out plans that break a bound or a pin. If the result of the planning consists of several trees, return only
    the chosen plan."""
    if len(parts) == 1:
        return [_front_row(parts[0], one) for one in parts[0].outcome.front]
    figures = _summed([part.outcome.best.figures for part in parts])
    domains = _named([(part, part.outcome.best.plan) for part in parts])
    return [_axes(figures) | {"domains": domains}] if parts and figures.feasible else []


def _front_row(part: _Part, one: Candidate) -> dict[str, Any]:
    return _axes(one.figures) | {"domains": _named([(part, one.plan)])}


def _axes(figures: Figures) -> dict[str, Any]:
    return {"cost": figures.cost, "busiest_share": figures.busiest_share, "hops_mean": figures.hops_mean}


def _references(parts: Sequence[_Part], bounds: Bounds) -> dict[str, Any]:
    """Return the cost and the other figures of each reference plan (flat, bus, blocks, star), for a comparison with the
    plan. The cost is null if the reference plan breaks a bound or a pin. If the reference plan needs igraph and igraph
    is not installed, the cost is null and the other figures are missing."""
    costs: dict[str, float | None] = {}
    about: dict[str, Any] = {}
    for name in REFERENCES:
        known = [part.outcome.references[name] for part in parts]
        there = [one.figures for one in known if one is not None]
        if len(there) < len(known):
            costs[name], about[name] = None, {"violated": "igraph is not installed"}
            continue
        figures = _summed(there)
        costs[name] = figures.cost if figures.feasible else None
        about[name] = _axes(figures) | {"largest": figures.largest, "violated": violated(figures, bounds)}
    return {"references": costs, "reference_figures": about}


def _model(model: Model, servers: int) -> dict[str, Any]:
    sizes = [size for size in (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if size <= max(servers, 2)]
    return {
        "name": model.name,
        "order": model.order,
        "unit": "counters" if model.name == "paper" else "ns",
        "alpha": model.alpha,
        "beta": model.beta,
        "stamp": {str(size): round(model.stamp(size), 1) for size in sorted({*sizes, servers} - {0, 1})},
        "break_even": model.break_even(limits.plan_break_even_servers_max),
    }


def topology_of(
    report: dict[str, Any], servers: Sequence[str], order: str, known: TopologyFile | None
) -> tuple[TopologyFile, dict[str, str]]:
    """Return the plan as a topology file, and the new name of each renamed server. The servers are renamed only if one
    of their names is not allowed in a topology file.

    If the topology file ``known`` is given, the result is this file with new domains and a new guarantee, and no server
    is renamed. Otherwise the result is a new file, in which the servers have addresses on this machine.
    """
    guarantees = parse(order).guarantees()
    promised = "causal" if "causal" in guarantees else "fifo" if "fifo" in guarantees else "none"
    if known is not None:
        entries = _entries(report["domains"], order, {})
        return msgspec.structs.replace(known, domains=entries, guarantee=promised), {}
    called: dict[str, str] = {}
    if not all(is_name(name) for name in servers):
        called = {name: f"s{number}" for number, name in enumerate(servers, 1)}
    addresses = {called.get(name, name): Address("127.0.0.1", 7101 + number) for number, name in enumerate(servers)}
    made = TopologyFile(addresses, _entries(report["domains"], order, called), guarantee=promised, name="plan")
    return made, called


def _entries(domains: dict[str, list[str]], order: str, called: dict[str, str]) -> tuple[DomainEntry, ...]:
    return tuple(
        DomainEntry(name, tuple(called.get(server, server) for server in members), order)
        for name, members in domains.items()
    )
