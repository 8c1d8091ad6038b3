"""Servers, domains, and the route from one server to another (Laumay et al. §4.1–4.2).

A *domain* is a group of servers that use one order. A server in several domains is a *router*. Consider a graph in
which every server and every domain is a node, and an edge connects each server with each of its domains. Suppose that
every domain keeps its order. Then the order also holds between servers of different domains if and only if this graph
is a **forest** (a graph without cycles). Two other tests for a topology give wrong results. The test in the paper
accepts a domain inside another domain, although such a topology breaks order. The second test searches for a cycle in a
graph that has only domains as nodes. It rejects a star, although a star is safe.

In a forest there is at most one route between two servers. In other graphs the shortest route is used. If several
routes are equally short, the sequence in which the domains are given decides.

A message to several servers travels along the tree of the shortest routes from its source. It is sent only once in each
domain, so no server and no domain receives it twice. This module knows only names. It does not know orders or
addresses.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property

import msgspec

from antecede.errors import TopologyError


class Domain(msgspec.Struct, frozen=True):
    """A group of servers that use one order."""

    name: str
    servers: tuple[str, ...]


class Topology:
    """Servers grouped into domains."""

    def __init__(self, domains: Sequence[Domain], servers: Iterable[str] = ()) -> None:
        self.domains = {domain.name: domain for domain in domains}
        if len(self.domains) < len(domains):
            raise TopologyError("two domains have the same name")
        for domain in domains:
            if len(set(domain.servers)) < len(domain.servers):
                raise TopologyError(f"domain {domain.name} names a server twice")
        self.servers = tuple(dict.fromkeys([*servers, *(name for domain in domains for name in domain.servers)]))
        self._domains_of: dict[str, list[str]] = {name: [] for name in self.servers}
        for domain in domains:
            for name in domain.servers:
                self._domains_of[name].append(domain.name)
        self._trees: dict[str, dict[str, tuple[str, str]]] = {}

    def domains_of(self, server: str) -> tuple[str, ...]:
        """Return the domains of a server, in the sequence in which all domains were given."""
        return tuple(self._domains_of[server])

    def is_router(self, server: str) -> bool:
        """Return whether a server is a router, which means that it is in several domains."""
        return len(self._domains_of[server]) > 1

    @cached_property
    def trees(self) -> tuple[frozenset[str], ...]:
        """The connected parts of the topology, each as a set of servers. There is no route from one part to another."""
        parts: list[frozenset[str]] = []
        placed: set[str] = set()
        for server in self.servers:
            if server not in placed:
                parts.append(frozenset((server, *self.tree(server))))
                placed |= parts[-1]
        return tuple(parts)

    @cached_property
    def cycle(self) -> tuple[str, ...] | None:
        """Return a cycle in the graph of servers and domains, or None if there is no cycle. The cycle is a tuple of
        names: server, domain, server, …, and the first server again."""
        parent: dict[_Node, _Node | None] = {}
        for server in self.servers:
            root = (_SERVER, server)
            if root not in parent:
                parent[root] = None
                found = self._cycle_from(root, parent)
                if found is not None:
                    return found
        return None

    def _cycle_from(self, root: "_Node", parent: "dict[_Node, _Node | None]") -> tuple[str, ...] | None:
        """Return a cycle that can be reached from the node ``root``, or None. The search builds a tree from ``root``
        and enters each new node into ``parent``. An edge to a node that is already in the tree closes a cycle."""
        waiting = deque([root])
        while waiting:
            node = waiting.popleft()
            for other in self._adjacent(node):
                if other == parent[node]:
                    continue
                if other in parent:
                    return _closed(_upwards(node, parent), _upwards(other, parent))
                parent[other] = node
                waiting.append(other)
        return None

    def _adjacent(self, node: "_Node") -> list["_Node"]:
        kind, name = node
        if kind == _SERVER:
            return [(_DOMAIN, domain) for domain in self._domains_of[name]]
        return [(_SERVER, server) for server in self.domains[name].servers]

    def tree(self, source: str) -> dict[str, tuple[str, str]]:
        """Return the shortest routes from ``source`` as a dictionary. The keys are the other servers that can be
        reached, the nearest server first. The value for a server is the last step of the route to it: the domain of
        this step, and the previous server on the route."""
        known = self._trees.get(source)
        if known is not None:
            return known
        before: dict[str, tuple[str, str]] = {}
        entered: set[str] = set()
        waiting = deque([source])
        while waiting:
            server = waiting.popleft()
            for domain in self._domains_of[server]:
                if domain in entered:
                    continue
                entered.add(domain)
                for other in self.domains[domain].servers:
                    if other != source and other not in before:
                        before[other] = (domain, server)
                        waiting.append(other)
        self._trees[source] = before
        return before

    def walk(self, start: str) -> Iterator[tuple[str, str, str]]:
        """Yield every other domain that can be reached from the domain ``start``, the nearest first. Each item is a
        tuple of three names: the domain, the previous domain on the way from ``start``, and a server that is in both
        domains."""
        entered = {start}
        waiting = deque([start])
        while waiting:
            name = waiting.popleft()
            for server in self.domains[name].servers:
                for other in self._domains_of[server]:
                    if other not in entered:
                        entered.add(other)
                        waiting.append(other)
                        yield other, name, server

    def route(self, source: str, target: str) -> list[str]:
        """Return the servers on the route from ``source`` to ``target``, both included. Raise :class:`TopologyError` if
        a server is unknown or there is no route."""
        if source not in self._domains_of or target not in self._domains_of:
            raise TopologyError(f"unknown server {source if source not in self._domains_of else target}")
        before = self.tree(source)
        way = [target]
        while way[-1] != source:
            if way[-1] not in before:
                raise TopologyError(f"no route from {source} to {target}: no chain of domains connects them")
            way.append(before[way[-1]][1])
        return way[::-1]


_Node = tuple[str, str]
_SERVER, _DOMAIN = "server", "domain"


def _upwards(node: _Node, parent: dict[_Node, _Node | None]) -> list[_Node]:
    way = [node]
    while (above := parent[way[-1]]) is not None:
        way.append(above)
    return way


def _closed(one: list[_Node], other: list[_Node]) -> tuple[str, ...]:
    """Return the cycle that arises if two nodes of a tree are connected by one more edge. The cycle begins with a
    server. ``one`` and ``other`` are the paths from the two nodes to the root of the tree."""
    while len(one) > 1 and len(other) > 1 and one[-2] == other[-2]:
        one.pop()
        other.pop()
    ring = one + other[-2::-1]
    if ring[0][0] == _DOMAIN:
        ring = ring[1:] + ring[:1]
    return tuple(name for _, name in [*ring, ring[0]])


def shown(cycle: Sequence[str]) -> str:
    """Return a cycle in readable form: ``s1 –A– s2 –B– s1``."""
    return "".join(name if position % 2 == 0 else f" –{name}– " for position, name in enumerate(cycle))


# The cost of a message in a topology (Laumay et al. §6.2).
#
# The paper assumes that sending in a domain of s servers costs s², the size of its matrix clock. The cost of a message
# is the sum of the costs of all domains on its route. A flat topology of n servers costs n². A bus of n servers has n/s
# leaf domains of s servers, and a backbone of n/s routers. Its longest route goes through two leaf domains and the
# backbone, and costs 2s² + (n/s)². This is 3n for s = √n. The smallest cost is 2√2·n ≈ 2.83·n, for s = √n / ⁴√2 ≈
# 0.84·√n.
#
# The mean cost over all pairs of servers is computed without examining each pair. The topology must be a forest (a
# graph without cycles). If a domain is removed from its tree, the rest of the tree falls into parts, one for each
# member of the domain. The domain is on the route of exactly those pairs whose two servers are in different parts.


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
