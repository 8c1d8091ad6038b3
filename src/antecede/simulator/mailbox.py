"""Receive statements: an application that takes messages when it wants them (Mattern, Fünfrocken §4.1–4.2).

A program that *receives* decides when a message reaches it, and perhaps from whom. Where its messages wait meanwhile
depends on what the order can say:

* :class:`SelectiveMailbox` stands **before** an order that can judge a packet without taking it (``selective``).
  ``take(source)`` finds the first packet from there that the order would deliver *now*, that is relative to what the
  program has received. So the matrix protocol lets a program take x although y came first, and refuses z while an x on
  which it depends has not been received.
* :class:`QueueMailbox` stands **behind** any other order and keeps its sequence: the buffer protocol knows nothing
  about dependencies, so only the head can be taken.

A receive that finds nothing waits; so does all that follows it in its program. When nothing is on its way any more,
such a program is **blocked** for ever (``blocked``): selective receive may contradict causal order, and then there is
no execution at all.

This module knows packets and orders. What is kept with a packet (a frame, say) is the owner's business.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any

from antecede.messages import Message, Packet, Verdict
from antecede.orders.contract import Order


class SelectiveMailbox:
    """Packets before an order that can judge them without taking them."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Packet, Any]] = {}

    def __contains__(self, packet: Packet) -> bool:
        return id(packet) in self._waiting

    def put(self, packet: Packet, kept: Any = None) -> None:
        """A packet has arrived; ``kept`` is given back with it."""
        self._waiting[id(packet)] = (packet, kept)

    def take(self, order: Order, source: int | None = None) -> Any:
        """What was kept with the first packet, from ``source`` if one is named, that ``order`` would deliver now."""
        for packet, kept in self._waiting.values():
            if source in (None, packet.source) and order.check(packet) is Verdict.DELIVER:
                del self._waiting[id(packet)]
                return kept
        return None

    def clear(self) -> list[Packet]:
        """A crash: what was not received is lost."""
        lost = [packet for packet, _ in self._waiting.values()]
        self._waiting.clear()
        return lost

    def messages(self) -> list[Message]:
        """What has arrived and is not received."""
        return [packet.message for packet, _ in self._waiting.values() if packet.message is not None]


class QueueMailbox:
    """Messages that their order has delivered, in that sequence."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Message, Any]] = deque()

    def put(self, message: Message, source: Any) -> None:
        """The order has delivered a message; ``source`` is whom a program may ask for."""
        self._waiting.append((message, source))

    def take(self, source: Any = None) -> Message | None:
        """The head, if it is from ``source`` or no source is named."""
        if not self._waiting or source not in (None, self._waiting[0][1]):
            return None
        return self._waiting.popleft()[0]

    def messages(self) -> list[Message]:
        """What was delivered and is not received."""
        return [message for message, _ in self._waiting]


def blocked(waiting: Iterable[str], anything_on_its_way: bool) -> list[str]:
    """Of the programs that wait in a receive, those that wait for ever: all of them, once nothing can arrive."""
    return [] if anything_on_its_way else list(waiting)
