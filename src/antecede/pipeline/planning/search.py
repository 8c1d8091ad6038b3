"""The search for good plans: it runs simulated annealing many times, from good start plans, and combines the results.

Each run of the annealing is a separate task, with a start plan and a random seed. Tasks run two at a time in threads of
this process (the kernel does not hold the interpreter's lock), or as Spark tasks. The number of tasks and the number of
their steps depend only on the problem and never on the clock. So the same seed gives the same plan on every machine.

The **Pareto front** consists of the plans that no other plan beats in all three figures: cost, hops and the load of the
busiest router. It is chosen from the results of all tasks and the reference plans. Some tasks are needed only for the
front. They search for plans in which the busiest router forwards less than in the best plan.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import pairwise
from math import sqrt
from typing import Any

import msgspec
import numpy as np

from antecede import limits
from antecede.pipeline.planning import kernel
from antecede.pipeline.planning.problem import Bounds, Figures, Plan, Problem

# Plans as lists of domains, and the plans with which a search begins.
#
# * **flat**: one domain. **star**: for each server except the hub, a domain of this server and the hub. **bus**: leaf
#   domains of about 0.84·√n servers, and a backbone domain (:mod:`antecede.topology.shapes`).
# * **blocks**: the biconnected blocks of the traffic graph. Two blocks share at most one server (an articulation
#   point). No message is forwarded, because every two servers that exchange messages share a domain.
# * **communities**: found by the Leiden algorithm, with the constant Potts model at several resolutions. Each community
#   is a domain. One server of each community also belongs to the backbone: the server with the most traffic to other
#   communities.
#
# If igraph is installed, it finds the blocks and the communities. Without igraph, a search begins with the other plans.


Domains = list[list[int]]


def plan_of(domains: Sequence[Sequence[int]], servers: int, root: int = 0) -> Plan:
    """Return the plan with these domains, which must form one tree over all servers."""
    parent = np.full(servers, -2, np.int32)
    block = np.zeros(servers, np.int32)
    of: list[list[int]] = [[] for _ in range(servers)]
    for number, members in enumerate(domains):
        for server in members:
            of[server].append(number)
    parent[root] = -1
    entered: set[int] = set()
    waiting = [root]
    for server in waiting:
        for number in of[server]:
            if number in entered:
                continue
            entered.add(number)
            for other in domains[number]:
                if other == server:
                    continue
                assert parent[other] == -2, "the domains are not a tree"
                parent[other], block[other] = server, len(entered) - 1
                waiting.append(other)
    assert len(waiting) == servers, "the domains do not reach all servers"
    return parent, block


def domains_of(plan: Plan) -> Domains:
    """Return the domains of a plan, as a sorted list. Each domain is the list of its servers in ascending order."""
    parent, block = plan
    found: dict[int, list[int]] = {}
    for server, above in enumerate(parent.tolist()):
        if above >= 0:
            found.setdefault(int(block[server]), [above]).append(server)
    return sorted(sorted(members) for members in found.values())


def flat(servers: int) -> Domains:
    """Return one domain of all servers. If there is only one server, return no domain."""
    return [list(range(servers))] if servers > 1 else []


def star(servers: int, hub: int) -> Domains:
    """Return a star: for each server except the hub, one domain of this server and the hub."""
    return [sorted((hub, server)) for server in range(servers) if server != hub]


def bus(servers: int) -> Domains:
    """Return a bus: leaf domains of servers with consecutive numbers, and a backbone domain with the first server of
    each leaf."""
    leaf = max(2, round(sqrt(servers) / 2**0.25))
    leaves = -(-servers // leaf)
    if leaves < 2:
        return flat(servers)
    bounds = [servers * number // leaves for number in range(leaves + 1)]
    members = [list(range(low, high)) for low, high in pairwise(bounds)]
    return _with_backbone([(part, part[0]) for part in members])


def _with_backbone(parts: Sequence[tuple[list[int], int]]) -> Domains:
    """Return one domain for each part that has at least two servers. If there are several parts, also return a backbone
    domain that consists of the routers of all parts. Each part is given as a pair: its servers and its router."""
    domains = [sorted(part) for part, _ in parts if len(part) > 1]
    return [sorted(router for _, router in parts), *domains] if len(parts) > 1 else domains


def best_star(problem: Problem) -> Domains:
    """Return a star. The hub is the server that sends and receives the most messages, because messages from or to the
    hub need only one hop."""
    inputs = problem.inputs
    busy = inputs.degree.copy()
    for group in range(len(inputs.source)):
        busy[inputs.member[inputs.first[group] : inputs.first[group + 1]]] += inputs.times[group]
    return star(problem.n, int(np.argmax(busy)))


def blocks(problem: Problem) -> Domains | None:
    """Return the biconnected blocks of the traffic graph as domains. If the graph is not connected, an additional
    domain of two servers connects each smaller part to the largest part. Return None if igraph is not installed."""
    if find_spec("igraph") is None:
        return None
    graph = _graph(problem)
    found: Domains = [sorted(members) for members in graph.biconnected_components()]
    parts = [sorted(members) for members in graph.connected_components()]
    hub = max(parts, key=lambda part: (len(part), -part[0]))
    head = int(max(hub, key=lambda server: (problem.inputs.degree[server], -server)))
    found += [sorted((head, part[0])) for part in parts if part is not hub]
    return found


def communities(problem: Problem, seed: int) -> Iterator[Domains]:
    """Yield plans that the Leiden algorithm finds at several resolutions. The domains of a plan are the communities
    that the algorithm finds, and a backbone that joins them. Skip plans with a single community, plans in which every
    community is one server, and repeated plans. If igraph is not installed, if there is no traffic, or if there are
    fewer than 4 servers, yield nothing."""
    if find_spec("igraph") is None or problem.n < 4 or not len(problem.near):
        return
    import random

    import igraph

    graph = _graph(problem)
    igraph.set_random_number_generator(random.Random(seed))
    density = sum(graph.es["weight"]) / (problem.n * (problem.n - 1) / 2)
    seen = set()
    for factor in (0.25, 1.0, 4.0, 16.0):
        found = graph.community_leiden(
            objective_function="CPM", weights="weight", resolution=density * factor, n_iterations=4
        )
        parts = [sorted(members) for members in found]
        key = tuple(map(tuple, parts))
        if len(parts) < 2 or len(parts) == problem.n or key in seen:
            continue
        seen.add(key)
        yield _with_backbone([(part, _gateway(problem, graph, part)) for part in parts])
    igraph.set_random_number_generator(random)


def _gateway(problem: Problem, graph: Any, part: list[int]) -> int:
    """Return the server in ``part`` that has the most traffic with servers outside ``part``."""
    inside = set(part)

    def outward(server: int) -> float:
        edges = graph.es[graph.incident(server)]
        return float(sum(e["weight"] for e in edges if not {e.source, e.target} <= inside))

    return max(part, key=lambda server: (outward(server), -server))


def _graph(problem: Problem) -> Any:
    """Return the traffic as an undirected graph. For a multicast, the graph has an edge from the source to each
    target."""
    import igraph

    inputs = problem.inputs
    weights: dict[tuple[int, int], float] = {}
    for a, b, weight in zip(inputs.one.tolist(), inputs.other.tolist(), inputs.weight.tolist(), strict=True):
        weights[a, b] = weights.get((a, b), 0.0) + weight
    for group, source in enumerate(inputs.source.tolist()):
        for other in inputs.member[inputs.first[group] : inputs.first[group + 1]].tolist():
            if other != source:
                key = min(source, other), max(source, other)
                weights[key] = weights.get(key, 0.0) + float(inputs.times[group])
    return igraph.Graph(n=problem.n, edges=list(weights), edge_attrs={"weight": list(weights.values())})


ReportProgress = Callable[[int, int], None]
"""A function that is called after each task, with the number of finished tasks and the number of all tasks."""

_hot, _warm, _cold = 0.15, 0.04, 0.0004
"""Temperatures of the annealing. A task begins at ``_hot`` or, if it only improves the best plan, at ``_warm``. Every
task ends at ``_cold``. For example, at a temperature of 0.04, a change that increases the cost by 4 % is accepted with
a probability of about 37 % (1/e)."""


class Task(msgspec.Struct, frozen=True):
    """The input of one run of the annealing: the start plan (``parent`` and ``block``), the random seed, the number of
    steps, and the temperature at the start (``heat``)."""

    parent: bytes
    block: bytes
    seed: int
    steps: int
    heat: float
    share: float | None = None
    """A tighter bound for the share of all messages that the busiest router forwards. It replaces the requested bound
    ``max_share``."""


class Candidate(msgspec.Struct, frozen=True):
    """A plan and its figures."""

    plan: Plan
    figures: Figures


class Outcome(msgspec.Struct):
    """The result of a search."""

    best: Candidate
    references: dict[str, Candidate | None]
    front: list[Candidate]


Run = Callable[[Problem, Sequence[Task]], Iterator[tuple[bytes, bytes]]]
"""A function that runs tasks. It returns the parents and the blocks of the best plan of each task, in the order of the
tasks."""


def search(
    problem: Problem, seed: int, run: "Run | None" = None, report_progress: ReportProgress = lambda done, all_: None
) -> Outcome:
    """Search for plans. Return the best plan, the reference plans for comparison, and the Pareto front."""
    references = dict(_references(problem))
    starts = [one.plan for one in references.values() if one is not None]
    starts += [plan_of(domains, problem.n) for domains in communities(problem, seed)]
    steps = effort(problem, len(starts))
    carry_out = run or here
    found = [one for one in references.values() if one is not None]
    # Two more from the best of them, cooler, each with another random seed, and three for the front.
    total = len(starts) + 2 + 3
    done = 0

    def collect(wanted: Sequence[Task]) -> list[Candidate]:
        nonlocal done
        ended = []
        for parent, block in carry_out(problem, wanted):
            plan = np.frombuffer(parent, np.int32).copy(), np.frombuffer(block, np.int32).copy()
            ended.append(Candidate(plan, problem.figures(plan)))
            done += 1
            report_progress(done, total)
        return ended

    found += collect(_tasks(starts, steps, seed, _hot))
    best = choose(found)
    found += collect(_tasks([best.plan] * 2, steps * len(starts) // 2, seed + 1, _warm))
    best = choose(found)
    if best.figures.feasible:
        lower_shares = [best.figures.busiest_share * share for share in (0.7, 0.4, 0.2)]
        wanted = _tasks([best.plan] * len(lower_shares), steps, seed + 2, _hot)
        pairs = zip(wanted, lower_shares, strict=True)
        found += collect([msgspec.structs.replace(task, share=share) for task, share in pairs])
    report_progress(total, total)
    return Outcome(choose(found), references, front_of(found))


def effort(problem: Problem, starts: int) -> int:
    """Return the number of steps of each task. Large problems get fewer steps."""
    evaluations = limits.plan_work_max / problem.work()
    per_task = int(evaluations / (2 * starts + 3))
    return max(200, min(per_task, 400 * problem.n + 4_000))


def _tasks(starts: Iterable[Plan], steps: int, seed: int, heat: float) -> list[Task]:
    return [
        Task(parent.tobytes(), block.tobytes(), 1_000_003 * seed + number, steps, heat)
        for number, (parent, block) in enumerate(starts)
    ]


def annealed(problem: Problem, task: Task) -> tuple[bytes, bytes]:
    """Run one task; return the best plan's parents and blocks."""
    if task.share is not None:
        problem = problem.bounded(msgspec.structs.replace(problem.bounds, max_share=task.share))
    parent, block = np.frombuffer(task.parent, np.int32), np.frombuffer(task.block, np.int32)
    best_parent, best_block, best = parent.copy(), block.copy(), np.zeros(kernel.FIGURES)
    given = parent, block, task.steps, task.heat, _cold, task.seed, problem.near, problem.near_first
    kernel.anneal(*given, problem.inputs, best_parent, best_block, best)
    return best_parent.tobytes(), best_block.tobytes()


def here(problem: Problem, tasks: Sequence[Task]) -> Iterator[tuple[bytes, bytes]]:
    """Run tasks in this process, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(lambda task: annealed(problem, task), tasks)


def on_spark(context: Any) -> Run:
    """Return a function that runs each task as a Spark task."""

    def run(problem: Problem, tasks: Sequence[Task]) -> Iterator[tuple[bytes, bytes]]:
        shared = context.broadcast(problem)
        work = context.parallelize(list(tasks), max(1, len(tasks)))
        yield from work.map(lambda task: annealed(shared.value, task)).collect()
        shared.destroy()

    return run


def _references(problem: Problem) -> Iterator[tuple[str, Candidate | None]]:
    """Yield the name and the plan of each reference plan. The result of the search is compared with these plans. A
    reference plan may break the bounds. The plan is None if it needs igraph and igraph is not installed."""
    servers = problem.n
    known: dict[str, Domains | None] = {
        "flat": flat(servers),
        "bus": bus(servers),
        "blocks": blocks(problem),
        "star": best_star(problem),
    }
    for name, domains in known.items():
        if domains is None:
            yield name, None
        else:
            plan = plan_of(domains, servers)
            yield name, Candidate(plan, problem.figures(plan))


def choose(found: Sequence[Candidate]) -> Candidate:
    """Return the best plan in ``found``. The plans are compared by their excess over the bounds, then by cost, then by
    hops, then by the load of the busiest router."""
    return min(found, key=_rank)


def _rank(one: Candidate) -> tuple[float, ...]:
    return (0.0 if one.figures.feasible else one.figures.excess, *_axes(one))


def front_of(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the feasible plans that no other plan beats: at most ``limits.plan_front_max`` plans, the cheapest first.
    A plan is beaten if another plan is at least as good in all three figures: cost, hops and the load of the busiest
    router. Of several equal plans, only the first is kept."""
    feasible = sorted((one for one in found if one.figures.feasible), key=_axes)
    front: list[Candidate] = []
    for one in feasible:
        if not any(all(a <= b for a, b in zip(_axes(other), _axes(one), strict=True)) for other in front):
            front.append(one)
    return front[: limits.plan_front_max]


def _axes(one: Candidate) -> tuple[float, float, float]:
    """Return the cost, the hops and the share of the busiest router. The values are rounded, so that rounding errors do
    not make two plans different."""
    figures = one.figures
    return float(f"{figures.cost:.11g}"), float(f"{figures.hops_mean:.11g}"), float(f"{figures.busiest_share:.11g}")


def violated(figures: Figures, bounds: Bounds) -> str | None:
    """Return the bound that a plan breaks most, as a text with the limit and the plan's value. All pins together are
    treated as one more bound. If the plan breaks no bound and no pin, return ``None``."""
    found = []
    if bounds.max_domain is not None and figures.largest > bounds.max_domain:
        found.append(
            (figures.largest / bounds.max_domain, f"max-domain {bounds.max_domain}: {figures.largest} servers")
        )
    if bounds.max_share is not None and figures.busiest_share > bounds.max_share + 1e-12:
        over = figures.busiest_share / max(bounds.max_share, 0.01)
        found.append(
            (over, f"max-share {bounds.max_share:g}: a router forwards a share of {figures.busiest_share:.3g}")
        )
    if bounds.max_hops is not None and figures.longest > bounds.max_hops:
        found.append((figures.longest / bounds.max_hops, f"max-hops {bounds.max_hops}: {figures.longest} hops"))
    if figures.broken_pins:
        found.append((1.0 + figures.broken_pins, f"pins: {figures.broken_pins} of them broken"))
    return max(found)[1] if found else None
