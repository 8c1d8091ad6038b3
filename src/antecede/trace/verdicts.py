"""The verdict of a checker on one trace, in a form that allows comparing two checkers.

``holds`` is ``None`` if there was no delivery to judge.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from antecede.errors import UsageError

ORDERS = ("fifo", "causal", "total", "synchronous")


def known_orders(orders: Sequence[str]) -> tuple[str, ...]:
    """Return the requested orders, each once. A misspelt order is refused, because it would be missing from the report,
    and an order without a reported violation looks like one that holds."""
    known = (*ORDERS, "significant")
    for name in [orders] if isinstance(orders, str) else orders:
        if name not in known:
            raise UsageError(f"order {name!r} is not one of {', '.join(known)}")
    if isinstance(orders, str):
        raise UsageError(f"orders: expected a tuple or list of names, such as ({orders!r},), not a text")
    return tuple(dict.fromkeys(orders))


class Late(msgspec.Struct, frozen=True, order=True):
    """A delivery that came too late: after the delivery of a message that should have waited for it.

    The *first* late delivery is the one with the smallest index; at equal indices the receiver's name decides. The
    order of the fields ensures this.
    """

    deliver_index: int
    to: str
    message: str
    source: str
    send_index: int
    overtaken_by: str = ""
    """The first message delivered at ``to`` that should have come after ``message``. For causal order it was sent
    causally later; for FIFO order it was sent later by the same sender; for significant order it was sent significantly
    later, or another object delivered it after ``message``. Empty if it was not searched."""
    rule: str = ""
    """The rule that the delivery breaks, if the order has several rules."""

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
    """Late deliveries by FIFO order, ascending."""
    causal: list[Late] = []
    """Late deliveries by causal order, ascending."""
    fifo_undecided: int = 0
    """The number of deliveries that are late by FIFO order only if the positions of assumed rows are right."""
    causal_undecided: int = 0
    """The number of deliveries that are late by causal order only if the positions of assumed rows are right."""
    pairwise: bool = True
    """Whether every two processes deliver their common messages in the same order."""
    cycle: list[str] | None = None
    """A cycle of messages, each delivered before the next in some process."""
    crown: list[str] | None = None
    """A cycle of messages that breaks synchronous order: each message has an event that comes before an event of the
    next message in the same process."""

    significant: list[Late] = []
    """Late deliveries by significant order, ascending."""
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
        """The ``orders`` object of ``antecede verify --json``."""
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
