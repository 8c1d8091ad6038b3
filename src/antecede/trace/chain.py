"""Why a delivery is late: the overtaking chain with the fewest messages.

A message m from p to q is overtaken by a chain m1 … mk that leaves p after send(m), hops from process to process, and
reaches q before m does (Garg §12.1: "a single message not be overtaken by a sequence of messages"). Let T_h[r] be the
least index at r that h messages or fewer can reach from send(m). T_0 is the send itself; T_h follows from T_(h−1) by
one look at every message, for a message sent at r after T_(h−1)[r] reaches its receiver at its delivery. The first h
with T_h[q] < deliver(m) is the length of a shortest chain, which is then walked back.
"""

import msgspec

from antecede.trace.matched import Matched
from antecede.trace.schema import DELIVER, Event
from antecede.trace.verdicts import Late


class Link(msgspec.Struct, frozen=True):
    """One message of a chain: where it was sent and where it was delivered."""

    message: str
    source: str
    send_index: int
    to: str
    deliver_index: int

    def as_json(self) -> dict[str, str | int]:
        return {
            "message": self.message,
            "from": self.source,
            "send_index": self.send_index,
            "to": self.to,
            "deliver_index": self.deliver_index,
        }


def overtaking_chain(trace: Matched, late: Late) -> list[Link]:
    """The messages that overtook ``late``, first to last. Among shortest chains, the one that arrives first."""
    deliveries = [
        (trace.sent(event.message or ""), event) for line in trace.lines for event in line if event.kind == DELIVER
    ]
    # The message itself may begin the chain, by a copy of it that went elsewhere: hence "after the event before it".
    reach = {late.source: late.send_index - 1}
    came_by: dict[str, Link] = {}
    chain_ends: list[Link] = []
    while not chain_ends:
        possible = [(send, deliver) for send, deliver in deliveries if send.index > reach.get(send.process, send.index)]
        chain_ends = [
            _link(send, deliver)
            for send, deliver in possible
            if deliver.process == late.to and deliver.index < late.deliver_index
        ]
        reached: dict[str, Link] = {}
        for send, deliver in possible:
            best = reached[deliver.process].deliver_index if deliver.process in reached else reach.get(deliver.process)
            if best is None or deliver.index < best:
                reached[deliver.process] = _link(send, deliver)
        assert chain_ends or reached, "a late delivery has no overtaking chain"
        if not chain_ends:
            came_by.update(reached)
            reach.update((process, link.deliver_index) for process, link in reached.items())
    return _walk_back(min(chain_ends, key=lambda link: (link.deliver_index, link.message)), came_by, late.source)


def _link(send: Event, deliver: Event) -> Link:
    return Link(send.message or "", send.process, send.index, deliver.process, deliver.index)


def _walk_back(last: Link, came_by: dict[str, Link], origin: str) -> list[Link]:
    chain = [last]
    while chain[-1].source != origin:
        chain.append(came_by[chain[-1].source])
    return chain[::-1]
