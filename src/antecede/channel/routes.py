"""Routes, as one server sees them: the first hop to each other server, and the next hops of a letter.

The domains form a forest, so there is only one route to each server. A router never sends a letter back into the domain
from which the letter came. Destinations in that direction get the letter through other members of that domain.
"""

from collections.abc import Callable, Mapping

from antecede.errors import NoRouteError
from antecede.topology import Topology

Hops = tuple[tuple[str, tuple[str, ...]], ...]
Way = tuple[tuple[str, ...], Hops, str]
"""The next part of a letter's route, seen from one server. It has three values. (1) The agents on this server that get
the letter now. (2) Each next domain, and the members of this domain that get the letter. (3) The domain with a total
order through which the letter comes back to this server. This value is empty if the letter does not come back."""


def way_of(
    me: str,
    from_domain: str,
    to: tuple[str, ...],
    home: Callable[[str], str],
    first: Mapping[str, tuple[str, str]],
    total: Mapping[str, bool],
) -> Way:
    """Return the next part of a letter's route, seen from server ``me``. ``from_domain``: the domain that brought the
    letter, or an empty string if the letter was sent on this server. ``to``: its destinations. ``home``: a function
    that returns the server of an address. ``first``: the result of :func:`first_hops`. ``total``: for each domain,
    whether its order is total. Raise NoRouteError if a destination cannot be reached."""
    local: list[str] = []
    onward: dict[str, list[str]] = {}
    for agent in dict.fromkeys(to):
        server = home(agent)
        if server == me:
            local.append(agent)
            continue
        if server not in first:
            raise NoRouteError(f"no route from {me} to {agent} on {server}: no chain of domains connects these servers")
        domain, member = first[server]
        if domain != from_domain:
            members = onward.setdefault(domain, [])
            if member not in members:
                members.append(member)
    returns_by = ""
    if not from_domain and local:
        returns_by = next((domain for domain in onward if total.get(domain)), "")
        if returns_by:
            # Further domains get it when it is back, as they do for any other member.
            onward = {returns_by: [*onward[returns_by], me]}
            local = []
    hops = tuple((domain, tuple(sorted(members))) for domain, members in onward.items())
    return tuple(local), hops, returns_by


def first_hops(topology: Topology, me: str) -> dict[str, tuple[str, str]]:
    """Return the first hop of the route from server ``me`` to each server that ``me`` can reach. A hop is a domain, and
    the member of this domain that gets the letters."""
    before = topology.tree(me)
    first: dict[str, tuple[str, str]] = {}
    for server in before:
        at = server
        while before[at][1] != me:
            at = before[at][1]
        first[server] = (before[at][0], at)
    return first
