"""Topologies of a given shape for n servers: the shapes that Laumay et al. draw (Fig. 10), and the flat shape.

The size s of domains can be chosen. :mod:`antecede.topology.graph` defines the cost of a message.

* **flat**: one domain of all servers. The cost of a message is n².
* **bus**: several domains of s servers, called leaves. The first server of each leaf is a router. All routers form one
  more domain, the backbone. No route is longer than three domains. If each leaf has about 0.84·√n servers, the cost of
  the longest route is lowest: about 2.83·n. So with this size of leaves, the cost grows linearly.
* **daisy**: a chain of domains of s servers. Each domain shares one server with the next domain.
* **tree**: domains of s servers, filled level by level. In each domain, up to k servers have another domain below them.
  The parameter ``branches`` of :func:`make` sets k; the default is s − 1. The length of routes grows with the logarithm
  of n.
* **star**: domains of s servers that all share one server, the hub. No route is longer than two domains. Every route
  between two domains passes through the hub.

Every shape is a forest. The servers are named s1 … sN. A leaf that would contain only its router is left out.
"""

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from math import sqrt

from antecede import limits
from antecede.errors import TopologyError
from antecede.topology.file import DEFAULT_ORDER, Address, DomainEntry, TopologyFile, parse_topology

Groups = list[tuple[str, list[int]]]
"""A list of domains: for each domain its name and the numbers of its servers."""

SHAPES = ("bus", "daisy", "tree", "star", "flat")


def best_size(shape: str, servers: int) -> int:
    """Return a good number of servers per domain. For a bus, this is the number with the lowest cost. For a daisy,
    it is the square root of ``servers``, for a tree 4, and for a star 2. For the flat shape, it is ``servers``."""
    if shape == "bus":
        return max(2, round(sqrt(servers) / 2**0.25))
    if shape == "daisy":
        return max(2, round(sqrt(servers)))
    return {"tree": 4, "star": 2}.get(shape, max(servers, 1))


def make(
    shape: str,
    servers: int,
    size: int | None = None,
    order: str = DEFAULT_ORDER,
    host: str = "127.0.0.1",
    port: int = 7101,
    branches: int | None = None,
) -> TopologyFile:
    """Return a topology of this shape. All servers are on ``host`` and have consecutive ports, beginning with ``port``.
    ``size``: the servers per domain, by default :func:`best_size`. ``branches``: allowed only for a tree. In each
    domain of the tree, at most ``branches`` servers have another domain below them. Raise TopologyError if a value is
    not valid."""
    if shape not in SHAPES:
        raise TopologyError(f"unknown shape {shape!r}: expected one of {', '.join(SHAPES)}")
    if not 1 <= servers <= limits.topology_servers_max:
        raise TopologyError(f"{servers} servers: expected 1 to {limits.topology_servers_max}")
    if size is None:
        size = best_size(shape, servers)
    if size < 2 and shape != "flat":
        raise TopologyError(f"domain size {size}: expected 2 servers or more")
    if branches is not None and (shape != "tree" or not 1 <= branches < size):
        raise TopologyError(
            f"{branches} branches: only a tree has branches, from 1 to {size - 1} (the size of its domains minus one)"
        )
    if not 1 <= port <= 65_536 - servers:
        raise TopologyError(f"port {port}: expected 1 to {65_536 - servers}, since {servers} servers need a port each")
    groups = _shapes[shape](servers, size, branches)
    made = TopologyFile(
        {f"s{number}": Address(host, port + number - 1) for number in range(1, servers + 1)},
        tuple(DomainEntry(name, tuple(f"s{number}" for number in members), order) for name, members in groups),
    )
    # Host and order came from outside: the file's own reader checks them.
    return parse_topology(made.text(), shape)


def _flat(servers: int, size: int, branches: int | None) -> Groups:
    return [("all", list(range(1, servers + 1)))]


def _bus(servers: int, size: int, branches: int | None) -> Groups:
    leaves = -(-servers // size)
    if leaves == 1:
        return _flat(servers, size, branches)
    # Sizes differ by at most one, so that no leaf has only one or two servers left over.
    bounds = [servers * leaf // leaves for leaf in range(leaves + 1)]
    members = [list(range(low + 1, high + 1)) for low, high in pairwise(bounds)]
    groups = [("backbone", [leaf[0] for leaf in members])]
    return groups + [(f"leaf{number}", leaf) for number, leaf in enumerate(members, 1) if len(leaf) > 1]


def _daisy(servers: int, size: int, branches: int | None) -> Groups:
    links = max(1, -(-(servers - 1) // (size - 1)))
    bounds = [1 + (servers - 1) * link // links for link in range(links + 1)]
    return [(f"d{number}", list(range(low, high + 1))) for number, (low, high) in enumerate(pairwise(bounds), 1)]


def _tree(servers: int, size: int, branches: int | None) -> Groups:
    below = branches or size - 1
    first = list(range(1, min(size, servers) + 1))
    groups: Groups = [("d1", first)]
    placed = len(first)
    routers = deque(first[:below])
    while placed < servers:
        new = list(range(placed + 1, min(placed + size - 1, servers) + 1))
        groups.append((f"d{len(groups) + 1}", [routers.popleft(), *new]))
        routers.extend(new[:below])
        placed += len(new)
    return groups


def _star(servers: int, size: int, branches: int | None) -> Groups:
    arms = max(1, -(-(servers - 1) // (size - 1)))
    bounds = [2 + (servers - 1) * arm // arms for arm in range(arms + 1)]
    return [(f"d{number}", [1, *range(low, high)]) for number, (low, high) in enumerate(pairwise(bounds), 1)]


_shapes: dict[str, Callable[[int, int, int | None], Groups]] = {
    "bus": _bus,
    "daisy": _daisy,
    "tree": _tree,
    "star": _star,
    "flat": _flat,
}
