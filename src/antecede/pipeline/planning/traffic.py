"""The messages between servers.

A message goes from the server of its sender to the servers of its destinations. A message to one other server is a
unicast; a message to several other servers is a multicast. Messages within a server are free, and are counted
separately.

The table of ``--servers`` assigns processes to servers. Without this table, the topology from ``--topology`` or from
the trace's metadata assigns them. Without a topology, every process is treated as a separate server. This module knows
traces and names; it must not know costs.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from antecede import limits
from antecede.errors import TraceError, UsageError
from antecede.topology import natural
from antecede.trace.matched import Matched
from antecede.trace.schema import DELIVER, SEND

Home = Callable[[str], str]
"""A function that returns the name of a process's server."""


class Traffic(msgspec.Struct, frozen=True):
    """The numbers of messages between servers. Servers are numbered in the natural order of their names."""

    servers: list[str]
    pairs: dict[tuple[int, int], float]
    """The number of unicasts (messages to one server) for each source and target."""
    multicasts: dict[tuple[int, tuple[int, ...]], float]
    """The number of multicasts (messages to several servers) for each source and group of targets."""
    local: float = 0.0
    """The number of messages that stayed within one server. In the result of :meth:`among`, this number still includes
    the local messages of the servers that were left out."""

    @property
    def messages(self) -> float:
        """The number of messages that left their server."""
        return sum(self.pairs.values()) + sum(self.multicasts.values())

    def flows(self) -> Iterator[tuple[int, tuple[int, ...], float]]:
        """Yield the source, the targets and the number of messages of each entry: first all entries of ``pairs``, then
        all entries of ``multicasts``."""
        for (source, target), count in self.pairs.items():
            yield source, (target,), count
        for (source, targets), count in self.multicasts.items():
            yield source, targets, count

    def among(self, chosen: Iterable[int]) -> "Traffic":
        """Return the traffic among the chosen servers. Each message from a chosen server keeps only those targets that
        are chosen too. Messages without such a target, and messages from other servers, are left out."""
        kept = sorted(set(chosen))
        numbers = {old: new for new, old in enumerate(kept)}
        counter = _Counter([self.servers[old] for old in kept])
        for source, targets, count in self.flows():
            reached = [numbers[target] for target in targets if target in numbers]
            if source in numbers and reached:
                counter.add(numbers[source], reached, count)
        return counter.traffic(self.local)

    def busiest(self, count: int) -> "Traffic":
        """Return the traffic among the busiest servers: the ``count`` servers that send and receive the most
        messages."""
        weight = [0.0] * len(self.servers)
        for source, targets, messages in self.flows():
            for server in (source, *targets):
                weight[server] += messages
        ranked = sorted(range(len(self.servers)), key=lambda server: (-weight[server], server))
        return self.among(ranked[:count])

    def check_size(self) -> None:
        """Raise :class:`UsageError` if there are more servers than a topology may have."""
        if len(self.servers) > limits.topology_servers_max:
            raise UsageError(
                f"{len(self.servers)} servers: expected at most {limits.topology_servers_max}: plan only the busiest "
                "ones with --busiest, or assign the processes to fewer servers with --servers"
            )

    def parts(self, joined: Iterable[Sequence[str]] = ()) -> list[list[int]]:
        """Divide the servers into connected groups. Servers are connected if they send or receive the same message, or
        if they are in the same entry of ``joined``."""
        above = list(range(len(self.servers)))

        def top(server: int) -> int:
            while above[server] != server:
                above[server] = above[above[server]]
                server = above[server]
            return server

        numbers = {name: number for number, name in enumerate(self.servers)}
        sets = [[source, *targets] for source, targets, _ in self.flows()]
        sets += [[numbers[name] for name in group if name in numbers] for group in joined]
        for members in sets:
            for other in members[1:]:
                one, two = top(members[0]), top(other)
                above[max(one, two)] = min(one, two)
        found: dict[int, list[int]] = {}
        for server in range(len(self.servers)):
            found.setdefault(top(server), []).append(server)
        return list(found.values())


class _Counter:
    """Counts messages for a :class:`Traffic`."""

    def __init__(self, servers: Iterable[str]) -> None:
        self.servers = sorted(set(servers), key=natural)
        self.numbers = {name: number for number, name in enumerate(self.servers)}
        self._pairs: dict[tuple[int, int], float] = {}
        self._multicasts: dict[tuple[int, tuple[int, ...]], float] = {}
        self._local = 0.0

    def add(self, source: int, targets: Iterable[int], count: float) -> None:
        """Count messages from one server to some targets. The source itself may be among the targets. If there is no
        other target, the messages are local."""
        others = tuple(sorted({target for target in targets if target != source}))
        if not others:
            self._local += count
        elif len(others) == 1:
            key = source, others[0]
            self._pairs[key] = self._pairs.get(key, 0.0) + count
        else:
            group = source, others
            self._multicasts[group] = self._multicasts.get(group, 0.0) + count

    def traffic(self, local: float = 0.0) -> Traffic:
        """Return the counted traffic; ``local`` is added to its number of local messages. If there are more than
        ``limits.plan_multicasts_max`` different multicasts, only the most frequent ones are kept. Their counts are all
        multiplied by the same factor, so that the total does not change."""
        kept = self._multicasts
        if len(kept) > limits.plan_multicasts_max:
            heaviest = sorted(kept, key=lambda group: (-kept[group], group))[: limits.plan_multicasts_max]
            scale = sum(kept.values()) / sum(kept[group] for group in heaviest)
            kept = {group: kept[group] * scale for group in heaviest}
        return Traffic(self.servers, self._pairs, kept, local + self._local)


def of_trace(trace: Matched, home: Home, also: Iterable[str] = ()) -> Traffic:
    """Return the traffic of a matched trace. If the destinations of a message are unknown, the processes that delivered
    it are counted as its destinations.

    ``also`` has the names of servers that belong to the plan even if they do not occur in the trace.
    """
    reached: dict[str, list[str]] = {}
    for name, line in zip(trace.names, trace.lines, strict=True):
        for event in line:
            if event.kind == DELIVER and trace.sent(event.message or "").to is None:
                reached.setdefault(event.message or "", []).append(name)
    names = set(trace.names)
    sends = []
    for name, line in zip(trace.names, trace.lines, strict=True):
        for event in line:
            if event.kind == SEND:
                to = event.to if event.to is not None else tuple(reached.get(event.message or "", ()))
                sends.append((name, to))
                names.update(to)
    homes = {name: home(name) for name in sorted(names)}
    counter = _Counter([*homes.values(), *also])
    for name, to in sends:
        counter.add(counter.numbers[homes[name]], [counter.numbers[homes[other]] for other in to], 1.0)
    return counter.traffic()


def of_rows(rows: Sequence[Mapping[str, Any]], home: Home, also: Iterable[str] = ()) -> Traffic:
    """Return the traffic of rows with ``from``, ``to`` and ``messages``, like the rows in the report of ``measure``.
    Every message is treated as a unicast (a message to one server)."""
    homes = {name: home(name) for name in sorted({str(row[key]) for row in rows for key in ("from", "to")})}
    counter = _Counter([*homes.values(), *also])
    for row in rows:
        source, target = counter.numbers[homes[row["from"]]], counter.numbers[homes[row["to"]]]
        counter.add(source, (target,), float(row["messages"]))
    return counter.traffic()


def read_matrix(text: str, where: str) -> list[dict[str, Any]]:
    """Return the rows of a table ``from,to,messages[,bytes]``."""
    rows = []
    for line, row in _table(text, where, ("from", "to", "messages")):
        try:
            count = float(row["messages"])
        except ValueError:
            count = -1.0
        if not 0 <= count < 2**63:
            raise TraceError(f"{where}:{line}: column messages: {row['messages']!r}: expected a number, 0 or more")
        rows.append({"from": row["from"], "to": row["to"], "messages": count})
    if not rows:
        raise TraceError(f"{where}: expected rows below the header from,to,messages")
    return rows


def read_homes(text: str, where: str) -> dict[str, str]:
    """Return the server of each process, from a table ``process,server``."""
    homes: dict[str, str] = {}
    for line, row in _table(text, where, ("process", "server")):
        if homes.setdefault(row["process"], row["server"]) != row["server"]:
            raise TraceError(f"{where}:{line}: process {row['process']} has two servers: expected one")
    return homes


def _table(text: str, where: str, needed: Sequence[str]) -> Iterable[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(io.StringIO(text), restkey="", restval="")
    names = [str(name).strip() for name in reader.fieldnames or ()]
    reader.fieldnames = names
    for name in needed:
        if name not in names:
            raise TraceError(f"{where}:1: no column {name!r}: expected a header {','.join(needed)}")
    try:
        for row in reader:
            clean = {name: str(row[name]).strip() for name in needed}
            for name in needed:
                if not clean[name]:
                    raise TraceError(f"{where}:{reader.line_num}: no value in column {name!r}")
            yield reader.line_num, clean
    except csv.Error as error:
        raise TraceError(f"{where}:{reader.line_num}: cannot be read as CSV: {error}") from None
