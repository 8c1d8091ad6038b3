"""A topology as an outline: the central domain first, the others below the router that leads to them.

::

    A  pruned  s1* s2 s3*
    ├─ s1: E  pruned  s1* s4*
    │      └─ s4: B  pruned  s4* s5
    └─ s3: D  pruned  s3* s6*
           └─ s6: C  pruned  s6* s7 s8

A star marks a router. The central domain is the middle of a longest route, so the outline has as few levels as
possible. Every domain appears once; if the topology is not a forest, the edges that close a cycle are left out.
"""

import msgspec

from antecede.topology.file import TopologyFile
from antecede.topology.graph import Topology


class Branch(msgspec.Struct):
    """A domain, the router through which it is reached, and the branches below it."""

    domain: str
    via: str = ""
    below: list["Branch"] = []


def branches(topology: Topology) -> list[Branch]:
    """Return each connected part of a topology as a tree below its central domain."""
    roots: list[Branch] = []
    entered: set[str] = set()
    for name in topology.domains:
        if name not in entered:
            root = Branch(_centre(topology, name))
            part = {root.domain: root}
            for domain, before, server in topology.walk(root.domain):
                part[domain] = Branch(domain, server)
                part[before].below.append(part[domain])
            entered.update(part)
            roots.append(root)
    return roots


def _centre(topology: Topology, start: str) -> str:
    """Return the domain in the middle of a longest route, in the connected part that contains the domain ``start``."""
    far = _ways(topology, start)[1]
    before, end = _ways(topology, far)
    way = [end]
    while way[-1] != far:
        way.append(before[way[-1]])
    return way[len(way) // 2]


def _ways(topology: Topology, start: str) -> tuple[dict[str, str], str]:
    """Return two values: for each domain, the previous domain on the route from ``start``; and a domain that is
    farthest from ``start``."""
    before = {start: start} | {domain: previous for domain, previous, _ in topology.walk(start)}
    return before, next(reversed(before))


def outline(file: TopologyFile, *, unicode: bool = True) -> str:
    """Return the outline of a topology as text."""
    lines: list[str] = []
    strokes = ("├─ ", "└─ ", "│  ") if unicode else ("|- ", "`- ", "|  ")
    topology = file.organisation
    orders = {domain.name: domain.order for domain in file.domains}

    def described(name: str) -> str:
        members = (f"{server}*" if topology.is_router(server) else server for server in topology.domains[name].servers)
        return f"{name}  {orders[name]}  {' '.join(members)}"

    # An explicit stack: a daisy of thousands of domains is too deep for recursion in Python.
    for root in branches(topology):
        waiting = [(root, "", "")]
        while waiting:
            branch, first, rest = waiting.pop()
            lines.append(first + described(branch.domain))
            for place, child in enumerate(reversed(branch.below)):
                lead = f"{child.via}: "
                stroke, onward = (strokes[1], "   ") if place == 0 else (strokes[0], strokes[2])
                waiting.append((child, f"{rest}{stroke}{lead}", f"{rest}{onward}{' ' * len(lead)}"))
    isolated = [server for server in topology.servers if not topology.domains_of(server)]
    if isolated:
        lines.append(f"in no domain: {' '.join(isolated)}")
    return "\n".join(lines) + "\n"
