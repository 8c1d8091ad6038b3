"""The epochs of a trace. If the topology of a system changes while the trace is recorded, each topology is an epoch.

The metadata of a trace contain a list of its epochs under the key ``epochs``, oldest first. Each epoch has its
guarantees, the number of the change that began the epoch, and ``since``: for each process the index of its first event
in this epoch. ``since`` may leave out a process that had no event in the previous epoch. The first index of this
process is then the same as in the previous epoch (0 in the first epoch). A process is identified by its address, so its
index continues if a change moves it to another server. Each server lists its own processes. The lists of all files are
united.

**The rule.** FIFO or causal order may be guaranteed only in some domains, or only in some epochs. Then a late delivery
is not always a violation. Let m be a message that was delivered late, and m′ the message that overtook it. Consider the
epoch in which m was sent, the epoch in which m′ was sent, and all epochs between them. The late delivery is a violation
if the order was guaranteed on the route of m in all these epochs. Otherwise it is counted as ``not_guaranteed``.
Suppose that one of the two messages was sent before a change and the other one after it. Then the weaker of the two
guarantees holds, as ``docs/design/change.md`` states. If the topology is a forest, only the route of m matters: a chain
that leaves this route at some server comes back to the route at the same server.

*Soundness*: every reported violation breaks a guarantee. *Completeness* is limited: if several messages overtook m,
only the first of them is examined. If the other messages were sent in other epochs, a violation may be missed. Then
``holds`` may be true, although a guarantee was broken.

An order that no domain guaranteed in any epoch is judged over the whole trace, as if the trace had no epochs. The
reason is that the user asks whether the order was kept, not whether it was guaranteed. Total and synchronous order are
judged over the whole trace as well, because a cycle belongs to no single epoch.

This module knows names, routes and guarantees. It does not know orders or servers.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Literal

import msgspec

from antecede.errors import TopologyError, TraceError
from antecede.topology import Domain, Topology
from antecede.trace.schema import Metadata

Guarantee = Literal["none", "fifo", "causal"]
_strength = {"none": 0, "fifo": 1, "causal": 2}
JUDGED = ("fifo", "causal")
"""The orders that are judged by epoch."""


class Area(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """A domain: its servers, and its guarantee."""

    servers: tuple[str, ...]
    guarantee: Guarantee


class Epoch(msgspec.Struct, frozen=True, omit_defaults=True):
    """One epoch, as in the metadata."""

    change: int
    """The number of the change that began this epoch; 0 for the first epoch."""
    guarantee: Guarantee
    """The guarantee that holds between all processes: the weakest of the guarantees of all domains."""
    since: dict[str, int] = {}
    epoch: str = ""
    """The digest of the topology."""
    time: int | None = None
    """The time of the change, in nanoseconds of the wall clock."""
    domains: dict[str, Area] = {}
    agents: dict[str, str] = {}
    """The server of each agent. A process with a name ``NAME@SERVER`` is not listed; its server is ``SERVER``."""
    moved: dict[str, str] = {}
    """Servers that were removed, each with the server that has its processes now."""


class _Routes:
    """The guarantees of the routes of one epoch."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._known: dict[tuple[str, str], int] = {}
        try:
            self._topology = Topology([Domain(name, area.servers) for name, area in epoch.domains.items()])
        except TopologyError as error:
            raise TraceError(f"metadata: epochs: change {epoch.change}: {error}") from None

    def strength(self, source: str, target: str) -> int:
        """Return the guarantee for messages from one process to another, as a number. A stronger guarantee is a larger
        number. If no route is known, return the weakest guarantee of all domains."""
        ends = self._home(source), self._home(target)
        known = self._known.get(ends)
        if known is None:
            known = self._known[ends] = self._on_route(*ends)
        return known

    def _home(self, process: str) -> str:
        home = self._epoch.agents.get(process) or process.rpartition("@")[2]
        return self._epoch.moved.get(home, home)

    def _on_route(self, source: str, target: str) -> int:
        try:
            way = self._topology.route(source, target)
        except TopologyError:
            return _strength[self._epoch.guarantee]
        before = self._topology.tree(source)
        areas = [self._epoch.domains[before[server][0]] for server in way[1:]]
        return min([_strength["causal"], *(_strength[area.guarantee] for area in areas)])


class Epochs:
    """The epochs of a trace, in sequence."""

    def __init__(self, listed: Sequence[Epoch]) -> None:
        self.listed = sorted(listed, key=lambda one: one.change)
        self._routes = [_Routes(one) for one in self.listed]
        self._starts: dict[str, list[int]] = {}

    def limited(self, orders: Iterable[str]) -> set[str]:
        """Return the orders that were guaranteed only in part: at least one domain guaranteed the order in at least one
        epoch, and at least one domain did not guarantee it in at least one epoch."""
        kept = {
            _strength[each]
            for one in self.listed
            for each in ([area.guarantee for area in one.domains.values()] or [one.guarantee])
        }
        return {order for order in orders if order in JUDGED and min(kept) < _strength[order] <= max(kept)}

    def of(self, process: str, index: int) -> int:
        """Return the position of an event's epoch among the listed epochs; -1 if the event came before the first listed
        epoch."""
        starts = self._starts.get(process)
        if starts is None:
            starts = self._starts[process] = [*accumulate((one.since.get(process, 0) for one in self.listed), max)]
        return bisect_right(starts, index) - 1

    def guaranteed(self, order: str, first: int, last: int, source: str, target: str) -> bool:
        """Return whether an order was guaranteed on the route from ``source`` to ``target`` in a range of epochs.
        ``first`` and ``last`` are the positions of the two ends of the range in ``listed``; ``first`` may be larger.
        If one of them is -1 (the time before the first listed epoch), return False."""
        first, last = min(first, last), max(first, last)
        if first < 0:
            return False
        needed = _strength[order]
        return all(self._routes[at].strength(source, target) >= needed for at in range(first, last + 1))


class Tally:
    """Counts late deliveries per epoch. Late deliveries that break a guarantee and other late deliveries are counted
    separately."""

    def __init__(self, epochs: Epochs, orders: Iterable[str]) -> None:
        self._epochs = epochs
        self._orders = [order for order in orders if order in JUDGED]
        self._limited = epochs.limited(self._orders)
        self._counts = {order: [[0, 0] for _ in epochs.listed] for order in self._orders}
        self._before: dict[str, int] = dict.fromkeys(self._orders, 0)

    def add(self, order: str, source: str, send_index: int, target: str, over: str, over_index: int) -> bool:
        """Count one late delivery, and return whether it is a violation. The late message was sent by ``source``, at
        index ``send_index``, to ``target``. The message that overtook it was sent by the process ``over``, at index
        ``over_index``."""
        sent, last = self._epochs.of(source, send_index), self._epochs.of(over, over_index)
        wrong = order not in self._limited or self._epochs.guaranteed(order, sent, last, source, target)
        if sent < 0:
            self._before[order] += not wrong
        else:
            self._counts[order][sent][0 if wrong else 1] += 1
        return wrong

    def complete(self, report: dict[str, Any]) -> None:
        """Add the counts of every epoch to a report. For each order, also add the number of late deliveries that break
        no guarantee (``not_guaranteed``)."""
        for order in self._orders:
            others = sum(other for _, other in self._counts[order]) + self._before[order]
            report["orders"][order]["not_guaranteed"] = others
        report["epochs"] = [
            {
                "change": one.change,
                "epoch": one.epoch,
                "guarantee": one.guarantee,
                "time": one.time,
                "orders": {
                    order: {"late": self._counts[order][at][0], "not_guaranteed": self._counts[order][at][1]}
                    for order in self._orders
                },
            }
            for at, one in enumerate(self._epochs.listed)
        ]


def epochs_in(document: Any, where: str) -> list[Epoch]:
    """Return the epochs in a decoded JSON document. ``where`` names the document in error messages."""
    try:
        found = msgspec.convert(document, list[Epoch])
    except msgspec.ValidationError as error:
        raise TraceError(f"{where}: epochs: {error}") from None
    if any(one.change < 0 or any(index < 0 for index in one.since.values()) for one in found):
        raise TraceError(f"{where}: epochs: a change or an index is negative")
    return found


def epochs_of(metadata: Iterable[Metadata]) -> Epochs | None:
    """Join the epochs in the metadata of all files of a trace. Return ``None`` if no file has epochs."""
    return united([epochs_in(one_file.epochs, "metadata") for one_file in metadata if one_file.epochs is not None])


def united(lists: Iterable[Sequence[Epoch]]) -> Epochs | None:
    """Join the epochs that several servers have listed; return ``None`` if they list none."""
    found: dict[int, Epoch] = {}
    since: dict[int, dict[str, int]] = {}
    for listed in lists:
        for one in listed:
            known = found.setdefault(one.change, one)
            if one.domains and not known.domains:
                # The other server has learned this change late, together with later ones.
                found[one.change] = one
            if known.epoch != one.epoch or (known.guarantee != one.guarantee and known.domains and one.domains):
                raise TraceError(
                    f"metadata: the files list different topologies for change {one.change} ({known.epoch[:12]}, "
                    f"{one.epoch[:12]}): verify the traces of different systems separately, or use --everywhere"
                )
            own = since.setdefault(one.change, {})
            for process, index in one.since.items():
                own[process] = max(index, own.get(process, 0))
    listed = [msgspec.structs.replace(one, since=since[change]) for change, one in found.items()]
    return Epochs(listed) if listed else None
