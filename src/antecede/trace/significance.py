"""The significant precedence of messages, computed along a trace.

**The relation** (Enokido, Higaki, Takizawa, *Protocol for a group of objects*, §3.2). m1 → m2 means that m1
significantly precedes m2. An *instance* is one execution of an operation. m1 → m2 holds in exactly these three cases:

1. an object sends m1 before m2, and (1-1) one instance sends both, or (1-2) the instance that sends m1 conflicts with
   the one that sends m2;
2. an object receives m1 before it sends m2, and (2-1) one instance does both, or (2-2) the instance that receives m1
   conflicts with the one that sends m2;
3. m1 → m3 → m2 for some message m3.

In (1-2) and (2-2) the first instance must *precede* the second: it must be complete before the second begins. (In the
paper, this is required by the cases S2.2 and R2.2 of §3.2.) An instance that aborted precedes nothing (§4.1). A message
that no instance sends has no predecessors. In (2-1), an instance also receives repeated requests, commits and aborts of
its operation. :mod:`antecede.trace.cells` defines which instances conflict.

**The computation** is one walk over all events of the trace. The walk visits an event after all events that happened
before it. An instance *knows* the messages that it received and sent, and all messages that precede these. A message
carries the messages that its sender knows. Each instance i also has a *base*. Take all instances that conflict with i
and ended before i began: the base contains the messages that they knew at their end. When i sends its first message,
the base is added to the messages that i knows. The base is not added earlier, because (1-2) and (2-2) apply only to
messages that i sends. Conflicting instances are found by *cell*: a cell is a group of instances of one
object that have the same conflicts. An object keeps one set of messages for each cell: all messages that the completed
instances of the cell knew. (Conflict is not transitive, so several cells cannot share a set.) The base of an instance
is the union of the sets of all cells that conflict with its own cell.

The sets are bit masks. The bit of a message is needed until the last delivery of the message. Unused bits are removed
from time to time, so that masks do not become much wider than the number of messages in transit.
"""

from collections import Counter
from collections.abc import Collection

import msgspec

from antecede.trace.cells import NO_CELL, Cells
from antecede.trace.instances import REQUEST, Instance
from antecede.trace.schema import DELIVER, SEND, Event

_squeezed_bits = 1_024
"""The unused bits are removed from the masks when this condition is true: the number of unused bits, minus the number
of bits in use, is larger than this number."""


class _Running(msgspec.Struct):
    """The messages that a running instance knows, as bit masks."""

    base: int
    known: int = 0
    received: int = 0
    """The part of ``known`` that came with requests and responses to this instance."""


class DeliveryMasks(msgspec.Struct):
    """The data that is needed to judge a delivery, as bit masks: the bit of its message, the messages that this message
    carries, and the messages that earlier deliveries at the object carried."""

    bit: int
    carried: int
    received: int
    """The messages that earlier requests and responses to the same instance carried."""
    requests: int
    """The messages that earlier requests at the object carried. Only requests that conflict with the delivered request
    or response are considered."""


class Significance:
    """The messages that each instance knows while the events of a trace are processed one after the other (the *walk*).

    ``asked``: the messages that get a bit in the masks. ``None`` means all messages that are delivered somewhere. If
    ``squeeze`` is set, the bit of a message exists only until the last delivery of this message.
    """

    def __init__(self, cells: Cells, asked: Collection[str] | None = None, squeeze: bool = True) -> None:
        self._instances = cells.instances
        self._cells = cells
        self._asked = asked
        self._squeeze = squeeze
        self._awaited = Counter(event.message for line in cells.trace.lines for event in line if event.kind == DELIVER)
        self.bits: dict[str, int] = {}
        self._width = 0
        self._running: dict[tuple[int, str], _Running] = {}
        self._done: dict[int, int] = {}
        self._requests: dict[int, int] = {}
        self._carried: dict[str, int] = {}

    def carried(self, message: str) -> int:
        """Return the messages that the sender of a message knew when it sent the message, as a bit mask. The mask is 0
        before the send and after the last delivery."""
        return self._carried.get(message, 0)

    def take(self, process: int, position: int, event: Event) -> DeliveryMasks | None:
        """Handle one event of a walk. If the event is a delivery to an instance, return the data that is needed to
        judge the delivery. For any other event, return None."""
        instance = self._instances.of(process, event)
        if instance is None:
            if event.kind == SEND:
                self._send(event.message or "", None)
            elif event.kind == DELIVER:
                self._delivered(event.message or "")
            return None
        key = process, instance.name
        if position == instance.first:
            self._running[key] = _Running(self._union(self._done, instance, self._cells.rivals))
        running = self._running[key]
        arrived = None
        if event.kind == SEND:
            self._send(event.message or "", running)
        elif event.kind == DELIVER:
            arrived = self._deliver(process, position, event, instance, running)
        if position == instance.last:
            del self._running[key]
            cell = self._cells.of(instance)
            if cell != NO_CELL and not instance.aborted:
                self._done[cell] = self._done.get(cell, 0) | running.known
        return arrived

    def _union(self, sets: dict[int, int], instance: Instance, conflicting: list[frozenset[int]]) -> int:
        """Return the union of the sets of all cells that conflict with the cell of an instance."""
        cell = self._cells.of(instance)
        union = 0
        if cell != NO_CELL:
            rivals = conflicting[cell]
            for rival in rivals if len(rivals) < len(sets) else rivals & sets.keys():
                union |= sets.get(rival, 0)
        return union

    def _send(self, message: str, running: _Running | None) -> None:
        bit = 0
        if self._awaited[message] and (self._asked is None or message in self._asked):
            bit = self.bits[message] = 1 << self._width
            self._width += 1
        carried = bit
        if running is not None:
            running.known |= running.base | bit
            carried = running.known
        if self._awaited[message] and carried:
            self._carried[message] = carried
        if self._width > 2 * len(self.bits) + _squeezed_bits:
            self._squeeze_out()

    def _deliver(
        self, process: int, position: int, event: Event, instance: Instance, running: _Running
    ) -> DeliveryMasks:
        message = event.message or ""
        carried = self._carried.get(message, 0)
        received_as = self._instances.received_as(process, position, event)
        conflicting = self._cells.request_rivals if received_as == REQUEST else self._cells.rivals
        requests = self._union(self._requests, instance, conflicting)
        arrived = DeliveryMasks(self.bits.get(message, 0), carried, running.received, requests)
        running.known |= carried
        if received_as is not None:
            running.received |= carried
        cell = self._cells.of(instance)
        if cell != NO_CELL and received_as == REQUEST:
            self._requests[cell] = self._requests.get(cell, 0) | carried
        self._delivered(message)
        return arrived

    def _delivered(self, message: str) -> None:
        self._awaited[message] -= 1
        if not self._awaited[message]:
            self._carried.pop(message, None)
            if self._squeeze:
                self.bits.pop(message, None)

    def _squeeze_out(self) -> None:
        """Remove the unused bits from every mask, and renumber the bits that are in use."""
        new = {bit: 1 << number for number, bit in enumerate(self.bits.values())}
        alive = sum(new)
        self.bits = {message: new[bit] for message, bit in self.bits.items()}
        self._width = len(new)

        def squeezed(mask: int) -> int:
            mask &= alive
            out = 0
            while mask:
                lowest = mask & -mask
                out |= new[lowest]
                mask ^= lowest
            return out

        for masks in (self._done, self._requests):
            for place, mask in masks.items():
                masks[place] = squeezed(mask)
        self._carried = {message: squeezed(mask) for message, mask in self._carried.items()}
        for running in self._running.values():
            running.base, running.known, running.received = map(
                squeezed, (running.base, running.known, running.received)
            )
