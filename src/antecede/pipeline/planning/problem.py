"""The input of the planner as arrays: the traffic, the bounds, and the price of a message, which depends on the size of
its domain.

The compiled code looks for a good plan for a :class:`Problem`. A problem is plain data, so that a part of the search
can run in another process. Servers have numbers instead of names, and a plan is two arrays
(:mod:`antecede.pipeline.planning.kernel`).
"""

from collections.abc import Sequence
from math import exp, inf, log

import msgspec
import numpy as np

from antecede.errors import UsageError
from antecede.pipeline.kernels import Floats, Ints
from antecede.pipeline.planning import kernel
from antecede.pipeline.planning.traffic import Traffic

# The cost of a message: the sum of α + β·σ(order, s) over all domains that it enters. Here s is the number of servers
# in a domain.
#
# * **α** is the CPU time of one durable hop, from the log of one server to the log of the next server.
# * **β** is the cost of one byte of stamp: the CPU time to encode, decode and keep the byte, and 8 ns on a network of 1
#   Gbit/s.
# * **σ(order, s)** is the mean stamp in bytes in a domain of s servers. For ``matrix`` it is s². For the other orders
#   it comes from the table ``STAMP_BYTES``. ``antecede sweep stamps`` measured this table with uniform unicasts. Each
#   server first receives 200 messages as warm-up. The warm-up fills the sets from which ``direct`` and ``updates`` make
#   their stamps. Then each server receives 200 messages that are measured. Between two sizes, σ is interpolated on a
#   double logarithmic scale. Beyond the last size, σ is computed with the slope between the last two sizes.
#
# ``--model paper`` is the assumption of Laumay et al. (§6.2): α = 0, β = 1, σ = s², for every order.
#
# The constants are measured values, and are not adjusted. A hop costs as much as 1,640 bytes of stamp, so one flat
# domain is often the cheapest plan. ``./run bench hop`` measures α and β again.


MODELS = ("cpu", "paper")

ALPHA_NS = 622_000.0
"""CPU time of one hop of a single message: the sum of the times of the sending and the receiving server. Both servers
store the message on disk (measured by ``./run bench hop``)."""

BETA_NS = 380.0
"""The cost of one byte of stamp: 372 ns to write, read and merge it, and 8 ns on a network of 1 Gbit/s
(``./run bench hop``)."""

SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""The domain sizes at which stamps were measured."""

STAMP_BYTES: dict[str, tuple[float, ...]] = {
    "pruned": (8.9, 14.0, 19.4, 31.7, 43.9, 72.9, 101.4, 163.7, 224.1, 353.7, 487.0),
    "direct": (10.8, 17.7, 26.2, 48.7, 88.3, 226.9, 451.6, 1185.0, 2293.3, 5521.5, 10038.0),
    "updates": (3.0, 6.4, 9.9, 24.7, 48.1, 119.8, 224.5, 521.5, 957.8, 2205.2, 3942.4),
    "buffer": (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    "fifo": (2.0, 1.7, 1.1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
}
"""For each order, the mean size of a stamp in bytes at each domain size in ``SIZES``. Each value is the mean of runs
with three seeds (``antecede sweep stamps`` prints this table)."""


class Model(msgspec.Struct, frozen=True):
    """A cost model for one order."""

    name: str
    order: str
    alpha: float
    beta: float

    def stamp(self, size: int) -> float:
        """Return the mean size of a stamp in a domain of ``size`` servers. The size is a number of bytes or, for the
        model ``paper``, a number of counters."""
        family = self.order.partition(":")[0]
        if self.name == "paper" or family == "matrix":
            return float(size * size)
        return _interpolated(STAMP_BYTES[family], size)

    def price(self, size: int) -> float:
        """Return the cost of one message in a domain of ``size`` servers."""
        return self.alpha + self.beta * self.stamp(size)

    def break_even(self, most: int) -> int | None:
        """Return the smallest number of servers for which the best bus costs less than one flat domain. A bus consists
        of leaf domains and a backbone domain that connects them. The traffic is uniform: all pairs of servers exchange
        equally many messages. Return None if there is no such number up to ``most``."""
        prices = [0.0, 0.0, *(self.price(size) for size in range(2, most + 1))]
        for servers in range(4, most + 1):
            if min(_bus(prices, servers, leaf) for leaf in range(2, servers // 2 + 1)) < prices[servers]:
                return servers
        return None


def model_of(name: str, order: str) -> Model:
    """Return the cost model with the name ``name``, for stamps of the order ``order``."""
    if name not in MODELS:
        raise UsageError(f"--model {name!r}: expected one of {', '.join(MODELS)}")
    if name == "paper":
        return Model(name, order, 0.0, 1.0)
    family = order.partition(":")[0]
    if family != "matrix" and family not in STAMP_BYTES:
        known = ", ".join(["matrix", *sorted(STAMP_BYTES)])
        raise UsageError(f"--order {order}: its stamps were not measured; choose one of {known}, or --model paper")
    return Model(name, order, ALPHA_NS, BETA_NS)


def _bus(prices: Sequence[float], servers: int, leaf: int) -> float:
    """Return the mean cost of a message on a bus. Each leaf domain has about ``leaf`` servers, and all pairs of servers
    exchange equally many messages (:mod:`antecede.topology.cost`)."""
    leaves = -(-servers // leaf)
    if leaves < 2 or leaves >= len(prices):
        return inf
    same = (leaf - 1) / (servers - 1)
    return same * prices[leaf] + (1 - same) * (prices[leaves] + 2 * (1 - 1 / leaf) * prices[leaf])


def _interpolated(table: Sequence[float], size: int) -> float:
    if size <= SIZES[0]:
        return table[0]
    place = next((k for k, known in enumerate(SIZES) if known >= size), len(SIZES) - 1)
    low, high = place - 1, place
    if table[low] <= 0 or table[high] <= 0:
        # An order without stamps, or nearly so: a straight line is the best estimate.
        slope = (table[high] - table[low]) / (SIZES[high] - SIZES[low])
        return max(0.0, table[low] + slope * (size - SIZES[low]))
    steep = log(table[high] / table[low]) / log(SIZES[high] / SIZES[low])
    return exp(log(table[low]) + steep * log(size / SIZES[low]))


Plan = tuple[Ints, Ints]
"""A plan as two arrays with one entry for each server. The first array has the server's parent in the tree, or -1 for
the root. The second array has the number of the server's block. A server forms a domain with those of its children that
are in one block (:mod:`antecede.pipeline.planning.kernel`)."""


class Pins(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operator's constraints: servers that must share a domain, servers that must not share a domain, and servers
    that must not be routers."""

    together: tuple[tuple[str, ...], ...] = ()
    apart: tuple[tuple[str, ...], ...] = ()
    never_router: tuple[str, ...] = ()

    def within(self, servers: Sequence[str]) -> "Pins":
        """Return the pins, limited to these servers: other servers are removed from each list, and groups with fewer
        than two remaining servers are dropped."""
        known = set(servers)

        def among(groups: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
            kept = (tuple(sorted(known.intersection(group))) for group in groups)
            return tuple(group for group in kept if len(group) > 1)

        never_router = tuple(name for name in self.never_router if name in known)
        return Pins(among(self.together), among(self.apart), never_router)


class Bounds(msgspec.Struct, frozen=True):
    """Limits that a plan must not exceed. A field that is ``None`` sets no limit."""

    max_domain: int | None = None
    """The largest allowed number of servers in one domain."""
    max_share: float | None = None
    """The largest share of all messages that one router may forward."""
    max_hops: int | None = None
    """The largest allowed number of hops between any two servers."""

    def check(self) -> None:
        """Raise an error for bounds that are out of range."""
        if self.max_domain is not None and self.max_domain < 2:
            raise UsageError(f"--max-domain {self.max_domain}: expected 2 servers or more")
        if self.max_share is not None and not 0 <= self.max_share <= 1:
            raise UsageError(f"--max-share {self.max_share}: expected a share from 0 to 1")
        if self.max_hops is not None and self.max_hops < 1:
            raise UsageError(f"--max-hops {self.max_hops}: expected 1 or more")


class Figures(msgspec.Struct, frozen=True):
    """The figures of one plan. Plans are compared by these figures."""

    cost: float
    hops_mean: float
    busiest_share: float
    largest: int
    longest: int
    broken_pins: int
    excess: float

    @property
    def feasible(self) -> bool:
        return self.excess <= 1e-9


class Problem:
    """The input of a search: traffic, prices, bounds and pins, in the form that the compiled code needs."""

    def __init__(self, traffic: Traffic, model: Model, bounds: Bounds, pins: Pins, total: float | None = None) -> None:
        self.servers = traffic.servers
        self.n = len(traffic.servers)
        self.model = model
        self.bounds = bounds
        numbers = {name: number for number, name in enumerate(traffic.servers)}
        folded: dict[tuple[int, int], float] = {}
        for (source, target), count in traffic.pairs.items():
            key = (source, target) if source < target else (target, source)
            folded[key] = folded.get(key, 0.0) + count
        keys = sorted(folded)
        one, other = np.array([key[0] for key in keys], np.int32), np.array([key[1] for key in keys], np.int32)
        weight = np.array([folded[key] for key in keys], np.float64)
        groups = sorted(traffic.multicasts)
        together = [[numbers[name] for name in group] for group in pins.together]
        apart = [(numbers[a], numbers[b]) for group in pins.apart for k, a in enumerate(group) for b in group[k + 1 :]]
        self.inputs = kernel.Inputs(
            one=one,
            other=other,
            weight=weight,
            degree=np.bincount(np.concatenate([one, other]), np.tile(weight, 2), self.n).astype(np.float64),
            first=np.cumsum([0, *(len(members) + 1 for _, members in groups)]).astype(np.int32),
            member=np.array([m for source, members in groups for m in (source, *members)], np.int32),
            source=np.array([source for source, _ in groups], np.int32),
            times=np.array([traffic.multicasts[group] for group in groups], np.float64),
            total=float(total if total is not None else traffic.messages),
            price=np.array([model.price(size) if size > 1 else 0.0 for size in range(self.n + 1)], np.float64),
            bounds=_limits(bounds),
            together_first=np.cumsum([0, *map(len, together)]).astype(np.int32),
            together=np.array([v for group in together for v in group], np.int32),
            apart=np.array(apart, np.int32).reshape(-1),
            leaves=np.array([numbers[name] for name in pins.never_router], np.int32),
        )
        self.near, self.near_first = self._partners()

    def _partners(self) -> tuple[Ints, Ints]:
        """Return two arrays. The first array has the partners of server 0, then the partners of server 1, and so on.
        The partners of a server are the servers with which it exchanges messages. A partner has one entry for all
        unicasts, and one more entry for each group of multicasts with the same source and the same targets. The entries
        of a server are sorted by their number of messages, in descending order. In this sorting, each target of a group
        counts for an equal part of the group's messages. The second array has, for each server, the position in the
        first array at which its partners begin. The last entry of the second array is the length of the first
        array."""
        inputs = self.inputs
        ends, others = np.concatenate([inputs.one, inputs.other]), np.concatenate([inputs.other, inputs.one])
        weights = np.concatenate([inputs.weight, inputs.weight])
        spans = np.diff(inputs.first)
        sources = np.repeat(inputs.source, spans)
        mine = inputs.member != sources
        share = np.repeat(inputs.times / np.maximum(spans - 1, 1), spans)[mine]
        ends = np.concatenate([ends, sources[mine], inputs.member[mine]])
        others = np.concatenate([others, inputs.member[mine], sources[mine]])
        weights = np.concatenate([weights, share, share])
        order = np.lexsort((others, -weights, ends))
        first = np.searchsorted(ends[order], np.arange(self.n + 1)).astype(np.int32)
        return others[order].astype(np.int32), first

    def figures(self, plan: Plan) -> Figures:
        """Return the figures of a plan."""
        found = np.zeros(kernel.FIGURES)
        kernel.evaluate(*plan, self.inputs, found)
        return figures_of(found)

    def bounded(self, bounds: Bounds) -> "Problem":
        """Return the same problem with other bounds."""
        other = Problem.__new__(Problem)
        other.__dict__.update(self.__dict__)
        other.bounds = bounds
        other.inputs = self.inputs._replace(bounds=_limits(bounds))
        return other

    def work(self) -> float:
        """Return the approximate number of steps that the evaluation of one plan takes."""
        return 4.0 * len(self.inputs.one) + 30.0 * self.n + 6.0 * len(self.inputs.member) + 50.0

    def lower_bound(self) -> float:
        """Return a lower bound of the cost: no plan can cost less.

        With n servers, at most n − 1 pairs can have a domain that contains only the two servers of the pair. All other
        pairs share a larger domain, or need two or more hops. A multicast costs at least as much as the cheapest
        domains that connect all its servers.
        """
        prices = self.inputs.price
        pair = float(prices[2]) if self.n > 1 else 0.0
        larger = min(float(prices[3:].min()) if self.n > 2 else pair, 2 * pair)
        heaviest = np.sort(self.inputs.weight)[::-1]
        few = float(heaviest[: self.n - 1].sum())
        cost = few * min(pair, larger) + (float(heaviest.sum()) - few) * larger
        spans = np.diff(self.inputs.first)
        if len(spans):
            cost += float((self.inputs.times * _joining(prices, int(spans.max()))[spans]).sum())
        return cost / self.inputs.total if self.inputs.total else 0.0


def _limits(bounds: Bounds) -> Floats:
    """Return the bounds as an array for the kernel: largest domain, share, hops. A missing bound is -1 for the share,
    and 0 for the others."""
    share = -1.0 if bounds.max_share is None else bounds.max_share
    return np.array([bounds.max_domain or 0, share, bounds.max_hops or 0], np.float64)


def _joining(prices: Floats, most: int) -> Floats:
    """Return an array with the entries 0 to ``most``. Entry k is the smallest cost of a set of domains that connects k
    servers. The first domain of s servers connects s servers. Each further domain of s servers connects s − 1 more."""
    # A domain larger than necessary may be cheaper, so the smallest price from there on counts.
    cheapest = np.minimum.accumulate(prices[::-1])[::-1]
    least = np.zeros(most + 1)
    for count in range(2, most + 1):
        sizes = np.arange(2, count + 1)
        least[count] = (cheapest[sizes] + least[count - sizes + 1]).min()
    return least


def figures_of(found: Floats) -> Figures:
    """Return the kernel's figures as a struct with names."""
    return Figures(
        float(found[kernel.COST]),
        float(found[kernel.HOPS]),
        float(found[kernel.SHARE]),
        int(found[kernel.DOMAIN]),
        int(found[kernel.LONGEST]),
        int(found[kernel.PINS]),
        float(found[kernel.EXCESS]),
    )
