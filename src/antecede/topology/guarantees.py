"""The guarantees of a topology from sender to receiver, and the reasons to refuse a topology.

Between two domains the **weakest order on the route** determines the guarantee. Only FIFO and causal order can hold
across domains. Nothing orders the deliveries of different domains relative to each other, so total order holds only
inside one domain. If no route connects two domains, nothing is guaranteed between them. The orders of domains outside
the route do not matter. The reason: in a forest, a chain of messages may leave the route at some server, but it can
return to the route only at the same server.

A topology is refused in these cases:

* It is not a forest. Such a topology breaks causal order, whatever its orders are (Laumay et al. §4.3).
* It has several domains, and the order of one domain does not give the guarantee that the topology file asks for. (The
  file asks for ``causal`` unless it declares a weaker guarantee.)
* An order needs timers. (Servers do not support timers: they never call the method ``tick`` of an order.)
* It has a replicated object without a suitable domain. A suitable domain contains all servers of the object, and its
  order is based on conflicts.
* It has several domains and an order that supports only broadcasts. (A message between domains is a multicast to some
  members of a domain, not a broadcast.)
* It has several domains and an order based on conflicts. (Conflicts are not visible across domains.)

This module does not know the orders: its callers describe each order by :class:`OrderFacts`.
"""

from collections.abc import Callable, Iterable

import msgspec

from antecede.topology.file import TopologyFile
from antecede.topology.graph import shown

_across = frozenset({"fifo", "causal"})
_within = _across | {"total"}
_asked = {"causal": "causal", "fifo": "fifo", "none": None}


class OrderFacts(msgspec.Struct, frozen=True):
    """The guarantees and the needs of one order. Both may depend on the options of the order."""

    guarantees: frozenset[str]
    needs: frozenset[str] = frozenset()

    @property
    def alone(self) -> bool:
        """Return whether the order supports only topologies with a single domain."""
        return "broadcast" in self.needs or "significant" in self.guarantees


class Pair(msgspec.Struct, frozen=True):
    """Two domains, and the guarantees for a message from one into the other."""

    source: str
    target: str
    route: tuple[str, ...]
    """The domains on the route from ``source`` to ``target``, both included; empty if there is no route."""
    guarantees: frozenset[str]


class Check(msgspec.Struct, frozen=True):
    """The verdict on a topology file."""

    cycle: tuple[str, ...] | None
    refusals: tuple[str, ...]
    """The reasons why the topology must not be used, one line each. If there is a cycle, the first line shows it."""
    facts: dict[str, OrderFacts]
    """The facts about the order of each domain."""
    pairs: tuple[Pair, ...]
    """Every pair of two domains, and each domain with itself; empty if there is a cycle."""

    @property
    def holds(self) -> bool:
        return not self.refusals


def strength(guarantees: Iterable[str]) -> str:
    """Return a set of guarantees as a short text: ``causal`` (which implies fifo), ``fifo, total``, ``none`` …"""
    kept = set(guarantees)
    if "causal" in kept:
        kept.discard("fifo")
    known = [name for name in ("fifo", "causal", "total", "synchronous", "significant") if name in kept]
    return ", ".join(known) or "none"


def check(file: TopologyFile, facts_of: Callable[[str], OrderFacts]) -> Check:
    """Check a topology. ``facts_of`` gets the text of an order, as written in the file, and returns the facts about
    this order."""
    facts = {domain.name: facts_of(domain.order) for domain in file.domains}
    cycle = file.organisation.cycle
    refusals = []
    if cycle is not None:
        refusals.append(f"not a forest: {shown(cycle)}")
    refusals += [
        f"domain {domain.name}: order {domain.order} needs timers, which servers do not have"
        for domain in file.domains
        if "timers" in facts[domain.name].needs
    ]
    if len(file.domains) > 1:
        refusals += _unfit(file, facts)
    refusals += _misplaced(file, facts)
    pairs = () if cycle is not None else tuple(_pairs(file, facts))
    return Check(cycle, tuple(refusals), facts, pairs)


def _misplaced(file: TopologyFile, facts: dict[str, OrderFacts]) -> Iterable[str]:
    for one in file.objects:
        shared = [domain for domain in file.domains if set(one.servers) <= set(domain.servers)]
        if not shared:
            yield f"object {one.name}: no domain has all its servers ({', '.join(one.servers)})"
        elif not any("significant" in facts[domain.name].guarantees for domain in shared):
            domain = shared[0]
            yield (
                f"object {one.name}: domain {domain.name} has order {domain.order}: replicated objects need an order "
                'based on conflicts, such as the order "objects"'
            )


def _unfit(file: TopologyFile, facts: dict[str, OrderFacts]) -> Iterable[str]:
    asked = _asked[file.guarantee]
    for domain in file.domains:
        known = facts[domain.name]
        if known.alone:
            yield f"domain {domain.name}: order {domain.order} supports only topologies with a single domain"
        elif asked is not None and asked not in known.guarantees:
            less = "fifo" if asked == "causal" and "fifo" in known.guarantees else "none"
            yield (
                f"domain {domain.name}: order {domain.order} is not {asked}, and there are several domains: "
                f'choose another order, or set guarantee = "{less}"'
            )


def _pairs(file: TopologyFile, facts: dict[str, OrderFacts]) -> Iterable[Pair]:
    """Return every pair of two domains once, in the file's sequence, and each domain with itself."""
    place = {domain.name: number for number, domain in enumerate(file.domains)}
    single = len(file.domains) == 1
    for domain in file.domains:
        source = domain.name
        own = facts[source].guarantees
        reached: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {source: ((source,), own)}
        for other, before, _ in file.organisation.walk(source):
            route, kept = reached[before]
            reached[other] = ((*route, other), kept & facts[other].guarantees)
        yield Pair(source, source, (source,), own if single else own & _within)
        for other in list(place)[place[source] + 1 :]:
            route, kept = reached.get(other, ((), frozenset()))
            yield Pair(source, other, route, kept & _across)
