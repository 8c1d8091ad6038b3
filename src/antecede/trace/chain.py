"""The reason why a delivery is late: the overtaking chain with the fewest messages.

Let m be a message from p to q. A chain of messages m1 … mk overtakes m if three conditions are true:

* p sends m1 after m, or m1 is m itself (then the chain begins with a copy of m to another destination);
* the receiver of each message, except the last, sends the next message after it has delivered this message;
* q delivers mk before m.

This is the definition of Garg (§12.1: "a single message not be overtaken by a sequence of messages"). Let T_h[r] be the
first position at process r that a chain of at most h messages can reach from send(m). T_0 has only one entry, the
position of send(m) at p. Round h examines the messages that each process s sent after T_(h−1)[s]. Round 1 also examines
m itself. T_h[r] is the smallest of T_(h−1)[r] and the positions at which r delivered the examined messages. The first h
with T_h[q] < deliver(m) is the length of a shortest chain.

**Only new sends are examined.** If T became smaller at a process, only the sends between its new T and its old T are
examined, because the sends after the old T were examined in an earlier round. So every send is examined once. Every
message of round h was sent after a delivery that round h − 1 found, so a chain found in round h has exactly h messages.

**Only a part of the trace is examined.** All events are put into one sequence that agrees with happened-before. In this
sequence, every chain lies between send(m) and deliver(m). The sequence is computed once, for all explanations. The
search along a process stops at the first event that comes after deliver(m) in this sequence.

There may be several shortest chains. Then their last messages are compared, and the message that q delivers first is
chosen. Its sender received the previous message of the chain. The previous message is chosen by the same rule, and so
on, back to p. So the answer does not depend on the sequence in which sends are examined.
"""

from array import array
from bisect import bisect_left
from operator import attrgetter
from typing import Any, cast

import msgspec

from antecede.trace.matched import Matched
from antecede.trace.schema import DELIVER, SEND
from antecede.trace.verdicts import Late

_index = attrgetter("index")


class Link(msgspec.Struct, frozen=True, rename={"source": "from"}):
    """One message of a chain: where it was sent and where it was delivered."""

    message: str
    source: str
    send_index: int
    to: str
    deliver_index: int

    def as_json(self) -> dict[str, Any]:
        return cast("dict[str, Any]", msgspec.to_builtins(self))


class _Step(msgspec.Struct, frozen=True, gc=False):
    """A copy of a message. Process ``source`` sent it at position ``sent``, and process ``to`` delivered it at position
    ``delivered``."""

    source: int
    sent: int
    to: int
    delivered: int


class Chains:
    """Finds the shortest overtaking chain of each late delivery in one trace."""

    def __init__(self, trace: Matched) -> None:
        self._trace = trace
        self._numbers = {name: number for number, name in enumerate(trace.names)}
        self._moments = [array("q", bytes(8 * len(line))) for line in trace.lines]
        """The position of each event in one sequence of all events. The sequence agrees with happened-before."""
        self._copies: dict[tuple[int, int], list[tuple[int, int]]] = {}
        """For each send, the deliveries of its message. Sends and deliveries are given by process and position."""
        for moment, (process, position, event) in enumerate(trace.in_causal_order()):
            self._moments[process][position] = moment
            if event.kind == DELIVER:
                sent = trace.sends[event.message or ""]
                self._copies.setdefault(sent, []).append((process, position))

    def shortest(self, late: Late) -> list[Link]:
        """Return the messages of the shortest chain that overtook a late delivery, from the first to the last."""
        source, sent = self._trace.sends[late.message]
        target = self._numbers[late.to]
        deadline = bisect_left(self._trace.lines[target], late.deliver_index, key=_index)
        levels: list[dict[int, _Step]] = []
        reach: dict[int, int] = {}
        # The message itself may begin the chain, by a copy to another destination: therefore its send is included.
        frontier = [(source, sent, len(self._trace.lines[source]))]
        while True:
            reached: dict[int, _Step] = {}
            for process, start, stop in frontier:
                for step in self._sent_in(process, start, stop, self._moments[target][deadline]):
                    limit = deadline if step.to == target else reach.get(step.to)
                    best = reached.get(step.to)
                    if (limit is None or step.delivered < limit) and (best is None or step.delivered < best.delivered):
                        reached[step.to] = step
            if target in reached:
                return self._walked_back(reached[target], levels)
            # A chain gains nothing by returning to its start.
            reached.pop(source, None)
            assert reached, "a late delivery has no overtaking chain"
            levels.append(reached)
            frontier = []
            for process, step in reached.items():
                stop = reach.get(process, len(self._trace.lines[process]))
                frontier.append((process, step.delivered + 1, stop))
                reach[process] = step.delivered

    def _sent_in(self, process: int, start: int, stop: int, horizon: int) -> list[_Step]:
        """Return the delivered copies that ``process`` sent at a position in ``range(start, stop)``. Sends that come at
        or after the moment ``horizon`` (see ``_moments``) are left out."""
        line, moments = self._trace.lines[process], self._moments[process]
        stop = bisect_left(moments, horizon, start, stop)
        return [
            _Step(process, position, to, delivered)
            for position in range(start, stop)
            if line[position].kind == SEND
            for to, delivered in self._copies.get((process, position), ())
        ]

    def _walked_back(self, last: _Step, levels: list[dict[int, _Step]]) -> list[Link]:
        steps = [last]
        for reached in reversed(levels):
            steps.append(reached[steps[-1].source])
        return [self._link(step) for step in reversed(steps)]

    def _link(self, step: _Step) -> Link:
        lines = self._trace.lines
        send, delivery = lines[step.source][step.sent], lines[step.to][step.delivered]
        return Link(send.message or "", send.process, send.index, delivery.process, delivery.index)
