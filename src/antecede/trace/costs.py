"""The cost of keeping an order, as recorded in a trace. Each function computes one figure; its docstring defines the
figure.

All functions expect valid events (:mod:`antecede.trace.quarantine`). The parameter ``hops`` contains the valid rows of
routers. A *copy* is a message together with one of its destinations. If the send row of a message does not name its
destinations, the processes where the message arrived or was delivered are treated as its destinations. The parameter
``implied`` contains these destinations, as :func:`destinations` returns them. A figure that the trace does not record
is ``None``, never 0.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from math import ceil
from random import Random
from typing import Any

import msgspec

from antecede.trace.matched import Matched
from antecede.trace.schema import ARRIVE, DELIVER, INT64_MAX, SEND, Event, is_count

Pair = tuple[str, str]

compared_max = 4_096
"""The largest number of messages that :func:`concurrency` compares with each other. If a trace has more messages, only
a sample of this size is compared."""


def destinations(trace: Matched) -> dict[str, tuple[str, ...]]:
    """Find the messages whose send row does not name destinations (``to``). Return, for each of them, the processes
    where it arrived or was delivered."""
    reached: dict[str, dict[str, None]] = {}
    for event in _events(trace, ARRIVE, DELIVER):
        if trace.sent(event.message or "").to is None:
            reached.setdefault(event.message or "", {})[event.process] = None
    return {message: tuple(names) for message, names in reached.items()}


def payload_bytes(send: Event) -> int | None:
    """Return the size of a message without its stamp. This is the column ``bytes`` of its send row or, if that column
    has no valid number, the column ``size``. Return None if neither column has one."""
    for name in ("bytes", "size"):
        value = (send.extra or {}).get(name)
        if is_count(value):
            return value
    return None


def traffic(trace: Matched, implied: dict[str, tuple[str, ...]]) -> dict[Pair, tuple[int, int | None]]:
    """Return, for each pair of sender and receiver, the number of copies and the sum of their payload bytes. The sum is
    ``None`` if the size of one of the messages is not recorded."""
    messages: Counter[Pair] = Counter()
    weighed: Counter[Pair] = Counter()
    total: Counter[Pair] = Counter()
    for send in _events(trace, SEND):
        size = payload_bytes(send)
        for name in _to(send, implied):
            pair = send.process, name
            messages[pair] += 1
            if size is not None:
                weighed[pair] += 1
                total[pair] += size
    return {
        pair: (messages[pair], total[pair] if weighed[pair] == messages[pair] else None) for pair in sorted(messages)
    }


class Stamps(msgspec.Struct):
    """The sizes of stamps in bytes. A *stamp* is the control information that an order adds to a message. Only copies
    with a known stamp size are included."""

    copies: int = 0
    bytes: int = 0
    most: int = 0

    def add(self, copies: int, total: int) -> None:
        self.copies += copies
        self.bytes += total
        self.most = max(self.most, ceil(total / copies))


def stamps(trace: Matched, hops: Iterable[Event], implied: dict[str, tuple[str, ...]]) -> Stamps:
    """Return the stamp sizes per copy.

    **No router forwarded the message.** The stamp size of a copy is recorded in the row of its first arrival or, if
    this row does not have it, in the delivery row. If neither row has it, the stamp size in the send row is used. It
    is the mean over all copies of the message.

    **Routers forwarded the message.** The message has one packet to each destination and to each router on the way. The
    stamp sizes of all its packets are added and divided by the number of its destinations. If the stamp size of one
    packet is unknown, the message is left out. The stamp size of a packet to a destination is in the row of the arrival
    or the delivery. For the packets to routers there are two cases:

    - The send row has a stamp size. Then each router's row has the stamp size of the packet that left the router. So
      the size of a packet to a router h hops away is estimated: it is the mean size of the packets that left the
      servers h − 1 hops away. For a message with one destination this is exact.
    - The send row has no stamp size, as in the traces of servers. Then a router's row has the stamp size of the packet
      that the router received.
    """
    arrived: dict[tuple[str, str], int] = {}
    for event in _events(trace, ARRIVE, DELIVER):
        if event.stamp_bytes is not None:
            arrived.setdefault((event.message or "", event.process), event.stamp_bytes)
    passed = _by_message(hops)
    found = Stamps()
    for send in _events(trace, SEND):
        message = send.message or ""
        to = _to(send, implied)
        own = [arrived.get((message, name), None if message in passed else send.stamp_bytes) for name in to]
        if message in passed:
            packets = [*own, *_router_packets(send, passed[message], to)]
            if to and None not in packets:
                found.add(len(to), sum(size for size in packets if size is not None))
        else:
            for size in own:
                if size is not None:
                    found.add(1, size)
    return found


def _router_packets(send: Event, rows: list[Event], to: tuple[str, ...]) -> list[int | None]:
    """Return the stamp sizes of the packets to routers that are not destinations themselves."""
    if send.stamp_bytes is None:
        received: dict[str, list[int | None]] = {}
        for row in rows:
            if row.process not in to and row.process != send.process:
                received.setdefault(row.process, []).append(row.stamp_bytes)
        return [None if None in sizes else min(size or 0 for size in sizes) for sizes in received.values()]
    left: dict[int, list[int | None]] = {0: [send.stamp_bytes]}
    behind: dict[str, int] = {}
    for row in rows:
        hop = row.hop or 0
        left.setdefault(hop, []).append(row.stamp_bytes)
        if row.process not in to and row.process != send.process:
            behind[row.process] = min(hop, behind.get(row.process, hop))
    packets: list[int | None] = []
    for hop in behind.values():
        before = left.get(hop - 1, [None])
        known = [size for size in before if size is not None]
        packets.append(round(sum(known) / len(known)) if len(known) == len(before) else None)
    return packets


def delays(trace: Matched) -> dict[Pair, "array[int]"]:
    """Return, for each pair of sender and receiver, the delays from send to delivery in nanoseconds.

    The time of the send comes from the sender's clock, and the time of the delivery comes from the receiver's clock. If
    these clocks differ, a delay may be negative. Delays are not corrected.
    """
    found: dict[Pair, array[int]] = {}
    for event in _events(trace, DELIVER):
        send = trace.sent(event.message or "")
        if event.time is not None and send.time is not None:
            pair = send.process, event.process
            if pair not in found:
                found[pair] = array("q")
            # Two clocks with extreme values must not overflow.
            found[pair].append(max(-INT64_MAX, min(INT64_MAX, event.time - send.time)))
    return found


def quantile(ascending: Sequence[int], percent: int) -> int:
    """Return a quantile of the given values: the smallest value v for which at least ``percent`` percent of the values
    are ≤ v."""
    return ascending[max(0, -(-len(ascending) * percent // 100) - 1)]


def held(trace: Matched, hops: Iterable[Event] = ()) -> dict[str, tuple[int, int]]:
    """Return for each process the number of its arrivals, and how many of them were held (not delivered at once).

    An arrival is not counted if its message was already delivered to that process. An arrival is *direct* if its
    message was delivered at once. The rows do not show this exactly. So an arrival is treated as direct if two
    conditions are true: every index between the arrival and the delivery belongs to a delivery, and the two rows have
    the same time (or one of them has no time). All other arrivals are treated as held, even if their messages were
    never delivered. (If a message arrives a second time before its delivery, the receiver had lost it after the first
    arrival. Then the first arrival is treated as held.)

    Servers write no ``arrive`` rows, because a letter waits in a mailbox between its arrival and its reaction. Instead,
    the column ``held`` in their ``deliver`` and ``hop`` rows records whether the packet was held. Each such row is
    counted as one arrival.
    """
    found = {}
    for name, line in zip(trace.names, trace.lines, strict=True):
        waiting: dict[str, tuple[int, int, int | None]] = {}
        delivered: set[str] = set()
        arrivals = direct = 0
        for event in line:
            message = event.message or ""
            if event.kind == DELIVER:
                if event.held is not None:
                    arrivals += 1
                    direct += not event.held
                since = waiting.pop(message, None)
                if since is not None and event.index - since[0] - 1 == len(delivered) - since[1]:
                    direct += since[2] is None or event.time is None or since[2] == event.time
                delivered.add(message)
            elif event.kind == ARRIVE and message not in delivered:
                arrivals += 1
                waiting[message] = event.index, len(delivered), event.time
        if arrivals:
            found[name] = arrivals, arrivals - direct
    for hop in hops:
        if hop.held is not None:
            before = found.get(hop.process, (0, 0))
            found[hop.process] = before[0] + 1, before[1] + hop.held
    return found


def hop_figures(
    trace: Matched, hops: Iterable[Event], implied: dict[str, tuple[str, ...]]
) -> tuple[float | None, int | None]:
    """Return two figures: the mean number of packets per copy, and the largest number of hops to a destination. Both
    are ``None`` if no router wrote a ``hop`` row.

    A message takes one packet to each of its destinations and to each router that forwarded it. If the message reached
    a router after h hops, it reaches the next server after h + 1 hops.
    """
    passed = {message: rows for message, rows in _by_message(hops).items() if message in trace.sends}
    if not passed:
        return None, None
    packets = copies = 0
    for send in _events(trace, SEND):
        to = _to(send, implied)
        if to:
            copies += len(to)
            routers = {row.process for row in passed.get(send.message or "", ())} - {send.process}
            packets += len(routers | set(to))
    behind = [row.hop for rows in passed.values() for row in rows if row.hop is not None]
    return packets / copies if copies else None, max(behind) + 1 if behind else None


def drawn(messages: int) -> list[int]:
    """Return the ranks of the messages that :func:`concurrency` compares, ascending.

    The rank of a message is the position of its send among all sends, sorted by process name, then by index. If there
    are more than ``compared_max`` messages, the result is a sample: the ranks are divided into ``compared_max`` ranges
    of about the same length, and one rank is taken from each range. The sample is always the same for the same number
    of messages.
    """
    if messages <= compared_max:
        return list(range(messages))
    random = Random("concurrency")
    edges = [stratum * messages // compared_max for stratum in range(compared_max + 1)]
    return [edges[k] + int(random.random() * (edges[k + 1] - edges[k])) for k in range(compared_max)]


def concurrency(trace: Matched) -> tuple[float | None, int]:
    """Return the share of pairs of messages that are *concurrent*: neither send happened before the other. Also return
    the number of messages that were compared. All pairs of these messages are examined. The share is ``None`` if there
    are fewer than two messages."""
    sends = list(_events(trace, SEND))
    bits = {sends[rank].message or "": 1 << number for number, rank in enumerate(drawn(len(sends)))}
    compared = len(bits)
    if compared < 2:
        return None, compared
    return 1 - _ordered(trace, bits) / (compared * (compared - 1) // 2), compared


def _ordered(trace: Matched, bits: dict[str, int]) -> int:
    """Return the number of pairs of messages in which one send happened before the other. ``bits`` contains the
    messages to compare, each with a different power of two."""
    awaited = Counter(event.message for event in _events(trace, DELIVER))
    known = [0] * len(trace.lines)
    carried: dict[str, int] = {}
    ordered = 0
    for process, _, event in trace.in_causal_order():
        message = event.message or ""
        if event.kind == SEND:
            bit = bits.get(message)
            if bit is not None:
                ordered += known[process].bit_count()
                known[process] |= bit
            if awaited[message]:
                carried[message] = known[process]
        elif event.kind == DELIVER:
            known[process] |= carried[message]
            awaited[message] -= 1
            if not awaited[message]:
                del carried[message]
    return ordered


class Span(msgspec.Struct, frozen=True):
    """The range of time that a trace covers, by its processes' clocks, in nanoseconds."""

    first: int
    last: int


def span(trace: Matched) -> Span | None:
    """Return the range from the first to the last time of a send, an arrival or a delivery. Return None if no such
    event has a time."""
    times = [event.time for event in _events(trace, SEND, ARRIVE, DELIVER) if event.time is not None]
    return Span(min(times), max(times)) if times else None


def sends_by_second(trace: Matched, first: int) -> dict[str, Counter[int]]:
    """Return for each process how many messages it sent in each second since ``first``."""
    found: dict[str, Counter[int]] = {}
    for send in _events(trace, SEND):
        if send.time is not None:
            found.setdefault(send.process, Counter())[(send.time - first) // 10**9] += 1
    return found


def hop_table(hops: Iterable[Event]) -> list[dict[str, Any]]:
    """Return one row for each combination of a router, a domain and a number of hops. The row has the number of
    messages that the router forwarded into this domain after this number of hops. It also has the sum of the stamp
    sizes of these messages in bytes, or ``None`` if the size of one stamp is unknown."""
    found: dict[tuple[str, str | None, int | None], list[int | None]] = {}
    for row in hops:
        found.setdefault((row.process, row.domain, row.hop), []).append(row.stamp_bytes)
    table = []
    for (router, domain, hop), sizes in sorted(found.items(), key=lambda item: str(item[0])):
        known = [size for size in sizes if size is not None]
        total = sum(known) if len(known) == len(sizes) else None
        table.append({"router": router, "domain": domain, "hop": hop, "messages": len(sizes), "stamp_bytes": total})
    return table


def _by_message(hops: Iterable[Event]) -> dict[str, list[Event]]:
    passed: dict[str, list[Event]] = {}
    for row in hops:
        passed.setdefault(row.message or "", []).append(row)
    return passed


def _events(trace: Matched, *kinds: str) -> Iterable[Event]:
    return (event for line in trace.lines for event in line if event.kind in kinds)


def _to(send: Event, implied: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    return send.to if send.to is not None else implied.get(send.message or "", ())
