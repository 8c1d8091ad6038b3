"""The cost of a message: the sum of α + β·σ(order, s) over all domains that it enters. Here s is the number of servers
in a domain.

* **α** is the CPU time of one durable hop, from the log of one server to the log of the next server.
* **β** is the cost of one byte of stamp: the CPU time to encode, decode and keep the byte, and 8 ns on a network of 1
  Gbit/s.
* **σ(order, s)** is the mean stamp in bytes in a domain of s servers. For ``matrix`` it is s². For the other orders it
  comes from the table ``STAMP_BYTES``. ``antecede sweep stamps`` measured this table with uniform unicasts. Each server
  first receives 200 messages as warm-up. The warm-up fills the sets from which ``direct`` and ``updates`` make their
  stamps. Then each server receives 200 messages that are measured. Between two sizes, σ is interpolated on a double
  logarithmic scale. Beyond the last size, σ is computed with the slope between the last two sizes.

``--model paper`` is the assumption of Laumay et al. (§6.2): α = 0, β = 1, σ = s², for every order.

The constants are measured values, and are not adjusted. A hop costs as much as 1,640 bytes of stamp, so one flat domain
is often the cheapest plan. ``./run bench hop`` measures α and β again.
"""

from collections.abc import Sequence
from math import exp, inf, log

import msgspec

from antecede.errors import UsageError

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
    exchange equally many messages (:mod:`antecede.topology.graph`)."""
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
