"""The way of a letter from one server: the first hop to each other server, and what a server does with a letter.

In a forest the route to a server is unique. So a router is responsible for the destinations that it does not reach
through the domain from which the letter came.
"""

from collections.abc import Callable, Mapping

from antecede.errors import NoRouteError
from antecede.topology import Topology

Hops = tuple[tuple[str, tuple[str, ...]], ...]
Way = tuple[tuple[str, ...], Hops, str]
"""Agents on this server; the members to send to in each next domain; the domain through which the letter comes back
here, or empty."""


def way_of(
    me: str,
    came_by: str,
    to: tuple[str, ...],
    home: Callable[[str], str],
    first: Mapping[str, tuple[str, str]],
    total: Mapping[str, bool],
) -> Way:
    """Return the way of a letter. ``came_by``: the domain that brought it; empty: it was sent here. ``home``: returns
    the server of an address. ``total``: whether the order of a domain is total."""
    local: list[str] = []
    onward: dict[str, list[str]] = {}
    for agent in dict.fromkeys(to):
        server = home(agent)
        if server == me:
            local.append(agent)
            continue
        if server not in first:
            raise NoRouteError(f"no route from {me} to {agent} on {server}: no chain of domains connects them")
        domain, member = first[server]
        if domain != came_by:
            members = onward.setdefault(domain, [])
            if member not in members:
                members.append(member)
    returns_by = ""
    if not came_by and local:
        returns_by = next((domain for domain in onward if total.get(domain)), "")
        if returns_by:
            # Further domains get it when it is back, as they do for any other member.
            onward = {returns_by: [*onward[returns_by], me]}
            local = []
    hops = tuple((domain, tuple(sorted(members))) for domain, members in onward.items())
    return tuple(local), hops, returns_by


def first_hops(topology: Topology, me: str) -> dict[str, tuple[str, str]]:
    """Return, for every reachable server, the first domain on the way there, and the member of that domain to send
    to."""
    before = topology.tree(me)
    first: dict[str, tuple[str, str]] = {}
    for server in before:
        at = server
        while before[at][1] != me:
            at = before[at][1]
        first[server] = (before[at][0], at)
    return first
