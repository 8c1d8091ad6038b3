"""The verdict of a checker on one trace, in a form that allows comparing two checkers.

``holds`` is ``None`` if there was no delivery to judge.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from antecede.errors import UsageError

ORDERS = ("fifo", "causal", "total", "synchronous")


def known_orders(orders: Sequence[str]) -> tuple[str, ...]:
    """Return the requested orders without duplicates. A misspelt name is an error. If it were ignored, the report would
    show no violation of this order, and the reader might believe that the order holds."""
    known = (*ORDERS, "significant")
    for name in [orders] if isinstance(orders, str) else orders:
        if name not in known:
            raise UsageError(f"order {name!r} is not one of {', '.join(known)}")
    if isinstance(orders, str):
        raise UsageError(f"orders: expected a tuple or list of names, such as ({orders!r},), not a text")
    return tuple(dict.fromkeys(orders))


class Late(msgspec.Struct, frozen=True, order=True):
    """A delivery that came too late: the receiver had already delivered another message that should have come later.

    Late deliveries are sorted by index, and at equal indices by the receiver's name; the order of the fields ensures
    this. The *first* late delivery is the smallest one.
    """

    deliver_index: int
    to: str
    message: str
    source: str
    send_index: int
    overtaken_by: str = ""
    """The overtaking message: the first message delivered at ``to`` that should have come after ``message``. For causal
    order, the overtaking message depends on ``message``. For FIFO order, the same sender sent the overtaking message
    later. For significant order, ``message`` significantly precedes the overtaking message, or another object delivered
    the overtaking message after ``message``. Empty if the overtaking message was not searched for."""
    rule: str = ""
    """For significant order, the rule that the delivery breaks. Empty for other orders, and if the overtaking message
    was not searched for."""

    def as_json(self) -> dict[str, Any]:
        return {
            "message": self.message,
            "from": self.source,
            "to": self.to,
            "send_index": self.send_index,
            "deliver_index": self.deliver_index,
            "overtaken_by": self.overtaken_by,
        }


class Verdict(msgspec.Struct):
    """The verdicts on the requested orders; fields about other orders keep their defaults."""

    deliveries: int
    undelivered: int
    orders: tuple[str, ...]
    fifo: list[Late] = []
    """The deliveries that are late under FIFO order, sorted."""
    causal: list[Late] = []
    """The deliveries that are late under causal order, sorted."""
    fifo_undecided: int = 0
    """The number of deliveries that may be late under FIFO order. The import of a trace had to assume the positions of
    some rows. These deliveries are late only if the assumed positions are right."""
    causal_undecided: int = 0
    """The number of deliveries that may be late under causal order. The import of a trace had to assume the positions
    of some rows. These deliveries are late only if the assumed positions are right."""
    pairwise: bool = True
    """Whether every two processes deliver their common messages in the same sequence."""
    cycle: list[str] | None = None
    """A cycle of messages that breaks total order. For each message of the cycle, there is a process that delivers it
    before the next message."""
    crown: list[str] | None = None
    """A cycle of messages that breaks synchronous order. For each message of the cycle, there is a process in which an
    event of this message comes before an event of the next message."""

    significant: list[Late] = []
    """The deliveries that are late under significant order, sorted."""
    unlisted: list[str] = []
    """Operations that the conflict table does not name."""

    def holds(self, order: str) -> bool | None:
        """Return whether the order holds; ``None`` if there was nothing to judge."""
        assert order in self.orders, f"{order} was not judged"
        if not self.deliveries:
            return None
        found: dict[str, list[Late] | list[str] | None] = {
            "fifo": self.fifo,
            "causal": self.causal,
            "total": self.cycle,
            "synchronous": self.crown,
            "significant": self.significant,
        }
        return not found[order]

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object that ``antecede verify --json`` prints under the key ``orders``."""
        report: dict[str, Any] = {}
        for order in self.orders:
            entry: dict[str, Any] = {"holds": self.holds(order)}
            if order == "fifo":
                entry |= {"late": len(self.fifo), "undecided": self.fifo_undecided}
            elif order == "causal":
                entry |= {"late": len(self.causal), "undecided": self.causal_undecided}
                entry["first"] = self.causal[0].as_json() if self.causal else None
            elif order == "total":
                entry["pairwise"] = self.pairwise if self.deliveries else None
                entry["cycle"] = self.cycle
            elif order == "significant":
                late = self.significant
                entry |= {"late": len(late), "crossed": sum(one.rule == "agreement" for one in late)}
                entry["first"] = late[0].as_json() | {"rule": late[0].rule} if late else None
                entry["unlisted"] = self.unlisted
            else:
                entry["crown"] = self.crown
            report[order] = entry
        return report
