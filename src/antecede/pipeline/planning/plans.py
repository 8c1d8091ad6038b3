"""Plans as lists of domains, and the plans with which a search begins.

* **flat**: one domain. **star**: for each server except the hub, a domain of this server and the hub. **bus**: leaf
  domains of about 0.84·√n servers, and a backbone domain (:mod:`antecede.topology.shapes`).
* **blocks**: the biconnected blocks of the traffic graph. Two blocks share at most one server (an articulation point).
  No message is forwarded, because every two servers that exchange messages share a domain.
* **communities**: found by the Leiden algorithm, with the constant Potts model at several resolutions. Each community
  is a domain. One server of each community also belongs to the backbone: the server with the most traffic to other
  communities.

If igraph is installed, it finds the blocks and the communities. Without igraph, a search begins with the other plans.
"""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np

from antecede.pipeline.planning.problem import Plan, Problem

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
