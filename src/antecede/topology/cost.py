"""What a message costs in an organisation (Laumay et al. §6.2).

The paper supposes that sending in a domain of s servers costs s², the size of its matrix clock; a message pays for
every domain on its way. For a bus of n servers in leaves of s around a backbone of n/s routers, the longest way costs
2s² + (n/s)²: 3n at s = √n, and least at s = √n / ⁴√2 ≈ 0.84·√n, where it is 2√2·n ≈ 2.83·n. A flat organisation costs
n².

For uniform traffic no pair has to be walked: a domain of a forest, taken out, leaves one part at each of its members,
and is on the way of exactly those pairs that lie in different parts.
"""

from collections.abc import Callable, Mapping

from antecede.topology.graph import Topology

Cost = Callable[[int], float]
"""What sending in a domain of that many servers costs."""


def matrix_cost(servers: int) -> float:
    """A matrix clock: one number for each pair."""
    return float(servers * servers)


def cost_mean(topology: Topology, cost: Cost = matrix_cost) -> float:
    """The mean over all ordered pairs of servers between which there is a way (the organisation must be a forest)."""
    pairs = sum(len(part) * (len(part) - 1) for part in topology.trees)
    total = 0.0
    for name, domain in topology.domains.items():
        parts = [_part_without(topology, name, server) for server in domain.servers]
        crossing = sum(parts) ** 2 - sum(part * part for part in parts)
        total += crossing * cost(len(domain.servers))
    return total / pairs if pairs else 0.0


def _part_without(topology: Topology, domain: str, server: str) -> int:
    """How many servers still reach ``server``, itself included, when ``domain`` is taken out."""
    seen = {server}
    entered = {domain}
    waiting = [server]
    while waiting:
        for name in topology.domains_of(waiting.pop()):
            if name in entered:
                continue
            entered.add(name)
            for other in topology.domains[name].servers:
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
    return len(seen)


def costs_from(topology: Topology, source: str, cost: Cost = matrix_cost) -> dict[str, float]:
    """What a message from ``source`` costs to every server that can be reached."""
    weights = {name: cost(len(domain.servers)) for name, domain in topology.domains.items()}
    costs = {source: 0.0}
    # The tree lists servers by their distance, so that each one's predecessor comes first.
    for server, (domain, before) in topology.tree(source).items():
        costs[server] = costs[before] + weights[domain]
    return costs


def cost_max(topology: Topology, cost: Cost = matrix_cost) -> float:
    """The dearest way in a forest: in a tree, the far end of any longest way from anywhere begins a longest of all."""
    most = 0.0
    for part in topology.trees:
        start = min(part)
        costs = costs_from(topology, start, cost)
        far = max(costs, key=lambda server: costs[server])
        most = max(most, *costs_from(topology, far, cost).values())
    return most


def cost_of_traffic(topology: Topology, traffic: Mapping[tuple[str, str], float], cost: Cost = matrix_cost) -> float:
    """The whole cost of so many messages from one server to another, for each pair of them."""
    total = 0.0
    known: dict[str, dict[str, float]] = {}
    for (source, target), messages in traffic.items():
        if source == target:
            continue
        if target not in known.get(source, ()):
            # Whom it does not know, or cannot reach, the route refuses by name.
            topology.route(source, target)
            known[source] = costs_from(topology, source, cost)
        total += messages * known[source][target]
    return total


def hops_mean(topology: Topology) -> float:
    """How many domains a message between two servers passes through, in the mean over the pairs."""
    return cost_mean(topology, lambda servers: 1.0)
