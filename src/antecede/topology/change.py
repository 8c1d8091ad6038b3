"""The difference between two topologies: what a change adds, removes and moves, what pauses during the change, and
which changes are refused.

**Routes.** Messages are ordered along the route from server to server. If the route between two servers changes, a
message on the new route could overtake one on the old route. So every message on the old route must have arrived before
the first one is sent on the new route. The **region** of a change is the set of domains that must pause until all their
letters have arrived:

* domains that are removed, or that get other members or another order, because old stamps then lose their meaning;
* all domains on the old or the new route between two servers whose route changes;
* all domains on the old or the new route to an agent that moves or is removed, or to a server that is removed.

If a domain of the region has already stamped a letter (put the order's control information on it), the letter reaches
its mailbox before the change takes effect. The other letters wait where they would enter the region: at their origin,
or at a router at the border of the region. The route from outside to this router is the same before and after the
change. Otherwise the domains on this route would also be in the region.

Adding an agent, or a server with a separate new domain, changes no route: the region is empty and nothing pauses.

**Servers that must take part** (``needed``) are those for which something changes:

* members of domains that pause, or that start with a new state;
* servers that are added or removed, servers that get or lose agents or clients, and servers of agents that get another
  class;
* servers whose address changes, and the servers that connect to them and so need the new address;
* all servers, if the application's module changes.

The first server of the old topology must take part in every change. So if two changes of the same topology are tried,
at most one of them can be made, even if servers cannot reach each other. A server that does not take part learns the
change later, from this first server. So all servers must take part if the first server is removed or gets another
address.

A server that need not take part may be down, and learn the change later (:mod:`antecede.server.learning`). Its
domains, its agents and its routes to the servers that it knows stay the same. (If one of these routes changed, a domain
of the server would be in the region.)

This module knows names and routes. It does not know what the servers contain.
"""

from collections.abc import Iterable, Iterator

import msgspec

from antecede.topology.file import AgentHome, TopologyFile
from antecede.topology.graph import Topology


class Difference(msgspec.Struct, frozen=True):
    """One difference between two topologies: a line in the description of a change."""

    kind: str
    """The kind of difference: ``agent-added``, ``agent-removed``, ``agent-moved``, ``agent-class``, ``server-added``,
    ``server-removed``, ``server-address``, ``domain-added``, ``domain-removed``, ``domain-members``, ``domain-order``,
    ``object-added``, ``object-removed``, ``object-changed``, ``moved-added``, ``moved-removed``, ``moved-changed``,
    ``module`` or ``guarantee``."""
    name: str
    before: str = ""
    after: str = ""


class Change(msgspec.Struct, frozen=True):
    """The plan of a change from one topology to another."""

    differences: tuple[Difference, ...]
    region: tuple[str, ...]
    """The domains of the old topology that pause until all their letters have arrived."""
    begun: tuple[str, ...]
    """The domains of the new topology that start with a new state: domains that are new or changed, and domains in the
    region. In these domains, a server that has made the change does not connect to a server that has not made it.
    (The two servers would forward letters differently.)"""
    leaving: dict[str, str]
    """The key is an agent that leaves its server. The value is the server that gets the agent's state, or an empty text
    if the agent is removed."""
    emptied: dict[str, str]
    """The key is a server that is removed. The value is the server that gets the removed server's clients, or an empty
    text if these clients are also removed."""
    refusals: tuple[str, ...]
    """The reasons why the change must not be made, one line each."""
    needed: tuple[str, ...] = ()
    """The servers of the old and of the new topology that must take part; other servers may be down."""
    concerned: frozenset[str] = frozenset()
    """The servers that cannot learn the change later: servers for which something changes, and the first server of the
    old topology."""

    @property
    def paused(self) -> bool:
        """Whether anything pauses: a domain, an agent that leaves its server, or a server that is removed."""
        return bool(self.region or self.leaving or self.emptied)


def plan_change(old: TopologyFile, new: TopologyFile) -> Change:
    """Plan the change from one topology to another."""
    before, after = {one.name: one for one in old.agents}, {one.name: one for one in new.agents}
    removed = [server for server in old.servers if server not in new.servers]
    moves = {name: after[name].server for name in before if name in after and after[name].server != before[name].server}
    leaving = moves | {name: "" for name in before if name not in after}
    region = _region(old, new, [*(before[name] for name in leaving), *(after[name] for name in moves)])
    begun = tuple(name for name in new.organisation.domains if name in region or not _same_domain(old, new, name))
    needed = concerned = _concerned(old, new, region, begun)
    first = next(iter(old.servers))
    if old.servers[first] != new.servers.get(first):
        # The others ask it whether there was a change, and would not find it.
        needed = {*old.servers, *new.servers}
    return Change(
        tuple(_differences(old, new)),
        tuple(sorted(region)),
        begun,
        leaving,
        {server: new.home_of(server) if new.home_of(server) in new.servers else "" for server in removed},
        tuple(_refusals(old, new)),
        tuple(server for server in {**old.servers, **new.servers} if server in needed),
        frozenset(concerned),
    )


def _differences(old: TopologyFile, new: TopologyFile) -> Iterator[Difference]:
    yield from _two("server", _addresses(old), _addresses(new), "address")
    yield from _two("domain", _members(old), _members(new), "members")
    orders = {one.name: one.order for one in new.domains}
    for domain in old.domains:
        if orders.get(domain.name, domain.order) != domain.order:
            yield Difference("domain-order", domain.name, domain.order, orders[domain.name])
    yield from _two("agent", _homes(old), _homes(new), "moved")
    kinds = {one.name: one.kind for one in new.agents}
    for agent in old.agents:
        if kinds.get(agent.name, agent.kind) != agent.kind:
            yield Difference("agent-class", agent.name, agent.kind, kinds[agent.name])
    yield from _two("object", _objects(old), _objects(new), "changed")
    if old.module != new.module:
        yield Difference("module", "application", old.module or "", new.module or "")
    if old.guarantee != new.guarantee:
        yield Difference("guarantee", "guarantee", old.guarantee, new.guarantee)
    yield from _two("moved", dict(old.moved), dict(new.moved), "changed")


def _two(what: str, before: dict[str, str], after: dict[str, str], changed: str) -> Iterator[Difference]:
    for name in after:
        if name not in before:
            yield Difference(f"{what}-added", name, "", after[name])
    for name in before:
        if name not in after:
            yield Difference(f"{what}-removed", name, before[name], "")
        elif before[name] != after[name]:
            yield Difference(f"{what}-{changed}", name, before[name], after[name])


def _addresses(file: TopologyFile) -> dict[str, str]:
    return {server: str(address) for server, address in file.servers.items()}


def _members(file: TopologyFile) -> dict[str, str]:
    return {domain.name: " ".join(domain.servers) for domain in file.domains}


def _homes(file: TopologyFile) -> dict[str, str]:
    return {agent.name: agent.server for agent in file.agents}


def _objects(file: TopologyFile) -> dict[str, str]:
    return {one.name: f"{one.kind} on {' '.join(one.servers)}" for one in file.objects}


def _same_domain(old: TopologyFile, new: TopologyFile, name: str) -> bool:
    known = next((domain for domain in old.domains if domain.name == name), None)
    return known is not None and known == new.domain(name)


def _region(old: TopologyFile, new: TopologyFile, leaving: list[AgentHome]) -> set[str]:
    """Return the domains of the old topology in which all letters must have arrived before the new topology takes
    effect."""
    before, after = old.organisation, new.organisation
    changed = {name for name in before.domains if name not in after.domains or not _same_domain(old, new, name)}
    region = set(changed)
    if changed or set(after.domains) != set(before.domains):
        for server in before.servers:
            region |= _domains_with_other_routes(before, after, server)
    # All senders change their way to an agent that moves: from its old server to its new one. If an agent is removed,
    # its last letters must arrive while they are known to be genuine.
    ends = {agent.server for agent in leaving}
    ends |= {server for server in before.servers if server not in after.servers}
    for end in ends:
        region |= {domain for domain, _ in before.tree(end).values()} if end in before.servers else set()
        region |= {domain for domain, _ in after.tree(end).values()} if end in after.servers else set()
    return {name for name in region if name in before.domains}


def _domains_with_other_routes(before: Topology, after: Topology, source: str) -> set[str]:
    """Find the servers to which the route from ``source`` changes. Return all domains on the old and the new routes to
    these servers. If ``source`` is removed, return an empty set."""
    if source not in after.servers:
        return set()
    old, new = before.tree(source), after.tree(source)
    same = {source: True}
    found: set[str] = set()
    # Both trees list a server after the one before it on its route.
    for target in old:
        if target in after.servers:
            way, other = old[target], new.get(target)
            same[target] = other is not None and way[1] == other[1] and same.get(way[1], False)
    for target in new:
        if target in before.servers and not same.get(target, False):
            found |= _domains_on(old, source, target) | _domains_on(new, source, target)
    for target in old:
        if target in after.servers and target not in new:
            found |= _domains_on(old, source, target)
    return found


def _domains_on(tree: dict[str, tuple[str, str]], source: str, target: str) -> set[str]:
    domains: set[str] = set()
    while target != source and target in tree:
        domain, target = tree[target]
        domains.add(domain)
    return domains


def _concerned(old: TopologyFile, new: TopologyFile, region: set[str], begun: Iterable[str]) -> set[str]:
    """Return the servers for which something changes, and the first server of the old topology. For ``begun``, see
    :class:`Change`."""
    if old.module != new.module:
        # Every server imports it.
        return {*old.servers, *new.servers}
    needed = {next(iter(old.servers)), *(old.servers.keys() ^ new.servers.keys())}
    needed.update(server for name in region for server in old.domain(name).servers)
    needed.update(server for name in begun for server in new.domain(name).servers)
    needed.update(agent.server for agent in {*old.agents} ^ {*new.agents})
    needed.update(server for one in {*old.objects} ^ {*new.objects} for server in one.servers)
    for server in {*old.servers, *old.moved, *new.moved}:
        homes = {old.home_of(server), new.home_of(server)}
        if len(homes) > 1:
            needed |= homes & {*old.servers, *new.servers}
    for server in old.servers.keys() & new.servers.keys():
        if old.servers[server] != new.servers[server]:
            # Of two servers the one with the smaller name dials, so it must know the address.
            members = [one for name in old.organisation.domains_of(server) for one in old.domain(name).servers]
            needed |= {server, *(one for one in members if one < server)}
    return needed


def _refusals(old: TopologyFile, new: TopologyFile) -> Iterator[str]:
    if _objects(old) != _objects(new):
        yield "replicated objects cannot be added, removed, moved or changed: their replicas would differ"
    hosting = {one.name for one in old.domains if any(set(each.servers) <= set(one.servers) for each in old.objects)}
    for name in sorted(hosting):
        if name not in new.organisation.domains or not _same_domain(old, new, name):
            yield f"domain {name} has replicated objects: its members and its order cannot change"
    if old.objects and len(new.domains) > len(old.domains):
        yield "a topology with replicated objects has one domain: no domain can be added"
    for server, home in old.moved.items():
        if server not in new.moved:
            yield (
                f'[moved] has no {server}, but addresses NAME@{server} may still be in use: keep {server} = "{home}", '
                f"and give a new server another name"
            )
        elif home in new.servers and new.moved[server] != home:
            yield f"[moved] {server} = {new.moved[server]}: the addresses NAME@{server} are on {home}, which stays"
    if not set(old.servers) & set(new.servers):
        yield "no server of the old topology is left: expected at least one"
