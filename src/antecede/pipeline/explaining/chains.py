"""Chains of overtaking messages, and cycles of messages: the search of :mod:`antecede.trace.explain`, on arrays.

That module defines T_h[r]: the first position at process r that a chain of at most h messages can reach. Both modules
compute T_h[r] from T_(h−1)[r], examine each send once, and examine nothing after the late delivery. This module
examines all sends of one round h in one step. A Spark task runs the search and returns the places (process and index)
of only those events that are part of an explanation.
"""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.judge.orders import Circle, causal_late, certain, fifo_late
from antecede.pipeline.kernels.merge import deliveries_of
from antecede.pipeline.kernels.moments import number_segments
from antecede.pipeline.kernels.walk import NOTHING, SENT
from antecede.pipeline.match.lines import Lines, Walk
from antecede.pipeline.packing import pack

Longs = NDArray[np.int64]
Place = tuple[int, int]
"""The place of an event: its process and its index."""


class Sought(msgspec.Struct, frozen=True):
    """The choice of the late deliveries to explain. If ``message`` is false, the late deliveries with the smallest
    indices are explained; ``first`` is the largest number of explanations. If ``message`` is true, all late deliveries
    of one message are explained. Then ``sent`` is the place of the send of this message, and ``delivered`` has the
    places of its deliveries."""

    order: str
    first: int
    message: bool = False
    sent: Place | None = None
    delivered: tuple[Place, ...] = ()


def explained(lines: Lines, sought: Sought) -> bytes:
    """Return the explanations that ``sought`` asks for. For FIFO and causal order, these are late deliveries with their
    chains. For the other orders, the explanation is a cycle of messages, or ``None`` if there is no cycle. Each event
    is given by its place."""
    if sought.order in ("fifo", "causal"):
        return _overtakings(lines, certain(lines), sought)
    lines = certain(lines, sequences=True)
    circle = Circle(lines, with_sends=sought.order == "synchronous")
    if circle.merges:
        return pack({"circle": None})
    sends = np.array(circle.witness(), np.int64)
    first, delivered = deliveries_of(lines.offsets, lines.source, lines.argument)
    homes = []
    for send in sends.tolist():
        own = delivered[first[send] : first[send + 1]]
        homes.append([lines.process_at(own).tolist(), lines.index_at(own).tolist()])
    return pack({"circle": [*_places(lines, sends), homes]})


def _overtakings(trace: Lines, lines: Lines, sought: Sought) -> bytes:
    """Return the late deliveries to explain, with their chains. ``trace`` has the event sequences of the processes.
    ``lines`` is the result of ``certain(trace)``: in it, nothing depends on positions that were guessed when the trace
    was imported. Only deliveries that are late in ``lines`` are explained."""
    total = 0
    kept = np.zeros(0, np.int64)
    wanted = trace.flat(*_as_arrays([sought.sent])) if sought.sent is not None else np.zeros(0, np.int64)
    for late in fifo_late(lines) if sought.order == "fifo" else causal_late(lines):
        total += len(late)
        if sought.message:
            kept = np.concatenate([kept, late[np.isin(lines.home(lines.send_of(late)), wanted)]])
        else:
            kept = np.concatenate([kept, late])
            kept = kept[_ranking(lines, kept)[: sought.first]]
    kept = kept[_ranking(lines, kept)]
    chains = Chains(lines) if len(kept) else None
    found = [chains.shortest(at) for at in kept.tolist()] if chains else []
    steps = np.array([step for chain in found for step in chain], np.int64).reshape(-1, 2)
    # A delivery on a cycle with its send was set aside, so its edge has been removed.
    circular = 0
    if sought.delivered:
        circular = int((trace.source[trace.flat(*_as_arrays(sought.delivered))] == NOTHING).sum())
    return pack({
        "late": total, "circular": circular, "lengths": [len(chain) for chain in found],
        "sent": _places(lines, lines.send_of(kept)), "delivered": _places(lines, kept),
        "chain_sent": _places(lines, steps[:, 0]), "chain_delivered": _places(lines, steps[:, 1]),
    })  # fmt: skip


def _as_arrays(places: Any) -> tuple[NDArray[np.int32], Longs]:
    return np.array([place[0] for place in places], np.int32), np.array([place[1] for place in places], np.int64)


def _ranking(lines: Lines, flat: Longs) -> Longs:
    """Return the permutation that sorts the deliveries at the positions ``flat`` by index. Deliveries with the same
    index are sorted by process."""
    return np.lexsort((lines.process_at(flat), lines.index_at(flat)))


def _places(lines: Lines, flat: Longs) -> list[list[int]]:
    at = lines.home(flat)
    return [lines.process_at(at).tolist(), lines.index_at(at).tolist()]


class Chains:
    """A search for chains of overtaking messages in one trace. An event is given by its flat position: its position in
    the joined event sequences of all processes."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._first, self._delivered = deliveries_of(lines.offsets, lines.source, lines.argument)
        self._moments = lines.scratch.array(len(lines.source), np.int64)
        walk = Walk(lines)
        moment = 0
        for count in walk:
            moment = number_segments(lines.offsets, *walk.segments, count, moment, self._moments)

    def shortest(self, late: int) -> list[tuple[int, int]]:
        """Return the shortest chain of messages that overtook a late delivery. The result has one pair per message,
        from the first message to the last: the positions of its send and its delivery in the joined event sequences of
        all processes."""
        return self._between(int(self._lines.send_of(np.array([late]))[0]), late)

    def _between(self, sent: int, until: int) -> list[tuple[int, int]]:
        """Return the shortest chain of messages from the event ``sent`` to the event ``until``. The first message is
        sent by the process of ``sent``, at ``sent`` or later. The last message is delivered by the process of
        ``until``, before ``until``. The result has one pair per message, from the first message to the last: the
        positions of its send and its delivery in the joined event sequences of all processes."""
        lines = self._lines
        source, target = lines.process_at(np.array([sent, until])).tolist()
        reach: dict[int, int] = {}
        levels: list[dict[int, tuple[int, int]]] = []
        frontier = [(sent, int(lines.offsets[source + 1]))]
        while True:
            reached = self._round(frontier, until, target, reach)
            if target in reached:
                steps = [reached[target]]
                for level in reversed(levels):
                    steps.append(level[int(lines.process_at(np.array([steps[-1][0]]))[0])])
                return steps[::-1]
            reached.pop(source, None)
            assert reached, "the second event does not follow from the first"
            levels.append(reached)
            frontier = []
            for process, (_, delivered) in reached.items():
                frontier.append((delivered + 1, reach.get(process, int(lines.offsets[process + 1]))))
                reach[process] = delivered

    def _round(
        self, frontier: list[tuple[int, int]], late: int, target: int, reach: dict[int, int]
    ) -> dict[int, tuple[int, int]]:
        """Examine the messages that were sent in some parts of the trace. ``frontier`` lists these parts, as pairs of
        positions (start, end) in the joined event sequences of all processes. For each process, return the first
        delivery of such a message, as a pair of positions (send, delivery). A process is left out if this delivery is
        too late. At the process ``target``, the delivery must come before ``late``. At any other process that has an
        entry in ``reach``, the delivery must come before this entry."""
        lines = self._lines
        horizon = self._moments[late]
        pieces = []
        for start, stop in frontier:
            stop = start + int(np.searchsorted(self._moments[start:stop], horizon))
            pieces.append(start + np.flatnonzero(lines.source[start:stop] == SENT))
        sends = np.concatenate(pieces)
        counts = self._first[sends + 1] - self._first[sends]
        begin = np.cumsum(counts) - counts
        picked = np.repeat(self._first[sends] - begin, counts) + np.arange(int(counts.sum()))
        delivered, sent = self._delivered[picked], np.repeat(sends, counts)
        receiver = lines.process_at(delivered)
        reached: dict[int, tuple[int, int]] = {}
        order = np.lexsort((delivered, receiver))
        earliest = order[np.append(True, receiver[order][1:] != receiver[order][:-1])] if len(order) else order
        for k in earliest.tolist():
            process, at = int(receiver[k]), int(delivered[k])
            limit = late if process == target else reach.get(process)
            if limit is None or at < limit:
                reached[process] = int(sent[k]), at
        return reached
