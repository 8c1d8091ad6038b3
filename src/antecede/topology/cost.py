"""The cost of a message in a topology (Laumay et al. §6.2).

The paper assumes that sending in a domain of s servers costs s², the size of its matrix clock. The cost of a message is
the sum of the costs of all domains on its route. A flat topology of n servers costs n². A bus of n servers has n/s leaf
domains of s servers, and a backbone of n/s routers. Its longest route goes through two leaf domains and the backbone,
and costs 2s² + (n/s)². This is 3n for s = √n. The smallest cost is 2√2·n ≈ 2.83·n, for s = √n / ⁴√2 ≈ 0.84·√n.

The mean cost over all pairs of servers is computed without examining each pair. The topology must be a forest (a graph
without cycles). If a domain is removed from its tree, the rest of the tree falls into parts, one for each member of the
domain. The domain is on the route of exactly those pairs whose two servers are in different parts.
"""

from collections.abc import Callable

from antecede.topology.graph import Topology

Cost = Callable[[int], float]
"""A function that returns the cost of sending in a domain with this number of servers."""


def matrix_cost(servers: int) -> float:
    """Return the cost of a matrix clock: one number for each ordered pair of servers."""
    return float(servers * servers)


def cost_mean(topology: Topology, cost: Cost = matrix_cost) -> float:
    """Return the mean cost of a message over all ordered pairs of servers that have a route, or 0 if there are no such
    pairs. The topology must be a forest (a graph without cycles)."""
    pairs = sum(len(part) * (len(part) - 1) for part in topology.trees)
    total = 0.0
    for part in topology.trees:
        behind = dict.fromkeys(part, 1)
        """For each server, the number of servers that a message from ``min(part)`` reaches through this server,
        including the server itself."""
        parts: dict[str, list[int]] = {}
        for server, (domain, before) in reversed(topology.tree(min(part)).items()):
            behind[before] += behind[server]
            parts.setdefault(domain, []).append(behind[server])
        for name, sizes in parts.items():
            crossing = len(part) ** 2 - sum(size * size for size in [*sizes, len(part) - sum(sizes)])
            total += crossing * cost(len(topology.domains[name].servers))
    return total / pairs if pairs else 0.0


def costs_from(topology: Topology, source: str) -> dict[str, float]:
    """Return, for each reachable server, the cost of a message from ``source`` to this server."""
    weights = {name: matrix_cost(len(domain.servers)) for name, domain in topology.domains.items()}
    costs = {source: 0.0}
    # The tree lists servers by their distance, so that each server's predecessor comes first.
    for server, (domain, before) in topology.tree(source).items():
        costs[server] = costs[before] + weights[domain]
    return costs


def cost_max(topology: Topology) -> float:
    """Return the cost of the most expensive route in a forest. Two searches per tree are enough. The first search finds
    the server that is most expensive to reach from an arbitrary server. The most expensive route of the tree begins at
    the server that was found. The second search finds the cost of this route."""
    most = 0.0
    for part in topology.trees:
        start = min(part)
        costs = costs_from(topology, start)
        far = max(costs, key=lambda server: costs[server])
        most = max(most, *costs_from(topology, far).values())
    return most


def hops_mean(topology: Topology) -> float:
    """Return the mean number of domains on the route between two servers."""
    return cost_mean(topology, lambda servers: 1.0)
