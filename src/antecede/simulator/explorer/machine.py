"""A table of the steps of an order: (state, input) → (new state, events, packets). Each row of the table is computed
once.

Orders are deterministic and do no I/O, so a member's state and its input determine its step. States and packets get
numbers when they first occur. When a step is needed for the first time, the order is cloned and run. After that, every
run takes the result of this step from the table.

Each step is run on a clone of the order. A clone contains only the data of ``snapshot()`` and ``held_packets()``, so
this data identifies a state. Any other data (a field that ``dump`` forgets) is lost after every step.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from antecede.errors import OrderError
from antecede.messages import Deliver, Effects, Packet, Send, Sent
from antecede.orders.contract import Order
from antecede.simulator.explorer.scope import Scope

Factory = Callable[[int, int], Order]
"""A function that creates the order of one member. Its arguments are the index of this member (from 0), and the
number of members."""

SHARED: Final = "a step of a clone changes the order that was cloned: load must copy the lists that dump returns"

Flights = tuple[int, ...]
"""The numbers of packets. The number of a packet is its index in ``Machine.packets``."""


_clones_checked_max: Final = 1_000
"""The number of steps that are checked at the beginning of an exploration. Each step runs on a clone of an order, and
must not change the original order. If clones share data with the original, these first steps usually show this
error."""


class Step(NamedTuple):
    """The result of one input to the order of a member."""

    state: int
    events: tuple[tuple[bool, int], ...]
    """The events in sequence. Each event is a pair. The first part is True for a send event, and False for a delivery.
    The second part is the position of the message in bit masks of messages."""
    emitted: Flights
    """The packets that the order hands to the network, in sequence."""
    failure: str
    """A description of how the order broke its contract; empty if the order did not break it."""


class Machine:
    """The table of an order: all states of all members that have occurred so far, and the steps between these
    states."""

    def __init__(self, create: Factory, scope: Scope) -> None:
        self._scope = scope
        self._orders: list[Order] = []
        self.idle: list[bool] = []
        """For each state, by number: whether nothing waits in the order. If True, the order holds no message that has
        arrived, and it has handed all copies of its application's messages to the network."""
        self._states: dict[tuple[bytes, Flights], int] = {}
        self.packets: list[Packet] = []
        self._packet_numbers: dict[Packet, int] = {}
        self._received: dict[tuple[int, int], Step] = {}
        self._sent: dict[tuple[int, int, int], Step] = {}
        self._clones_checked = 0
        self.initial = [self._number_state(create(me, scope.processes)) for me in range(scope.processes)]

    def __len__(self) -> int:
        return len(self._orders)

    def receive(self, state: int, packet: int) -> Step:
        """Return the step in which the packet with the number ``packet`` arrives."""
        step = self._received.get((state, packet))
        if step is None:
            arrived = self.packets[packet]
            step = self._received[state, packet] = self._run(state, lambda order: order.receive(arrived)[1])
        return step

    def send(self, state: int, number: int, to: int) -> Step:
        """Return the step in which the application sends its message with the number ``number`` to the destinations
        ``to``. The first message of each application has the number 0."""
        step = self._sent.get((state, number, to))
        if step is None:
            message = self._scope.message(self._orders[state].me, number, to)
            step = self._sent[state, number, to] = self._run(state, lambda order: order.send(message))
        return step

    def _run(self, state: int, feed: Callable[[Order], Effects]) -> Step:
        original = self._orders[state]
        try:
            order = original.clone()
            before = original.snapshot() if self._clones_checked < _clones_checked_max else b""
            effects = feed(order)
            if before:
                self._check_clone(original, before)
            after = self._number_state(order)
        except OrderError:
            # The scope needs something that this order does not support: this is a usage error, not a finding.
            raise
        except Exception as error:
            # A broken order may fail in any way; the failure is the finding.
            return Step(state, (), (), f"{type(error).__name__}: {error}".rstrip(": "))
        return self._summary(order, after, effects)

    def _check_clone(self, original: Order, before: bytes) -> None:
        """Raise an error if the step of a clone changed the original order. With such an order, the explorer would play
        impossible runs."""
        self._clones_checked += 1
        if original.snapshot() != before:
            raise OrderError(f"order {original.name!r}: {SHARED}")

    def _summary(self, order: Order, after: int, effects: Effects) -> Step:
        events: list[tuple[bool, int]] = []
        emitted: list[int] = []
        failure = ""
        for effect in effects:
            if isinstance(effect, Send):
                emitted.append(self._number_packet(effect.packet, order))
            elif isinstance(effect, Sent):
                events.append((True, self._scope.bit_of(effect.message.id)))
            elif isinstance(effect, Deliver):
                if not effect.message.to >> order.me & 1:
                    failure = "it delivers a message that is not addressed to it"
                events.append((False, self._scope.bit_of(effect.message.id)))
        return Step(after, tuple(events), tuple(emitted), failure)

    def _number_state(self, order: Order) -> int:
        held = order.held_packets()
        snapshot = order.snapshot()
        if not isinstance(snapshot, bytes):
            raise OrderError(f"order {order.name!r}: a snapshot must be bytes, not {type(snapshot).__name__}")
        key = (snapshot, tuple([self._number_packet(packet, order) for packet in held]))
        number = self._states.setdefault(key, len(self._orders))
        if number == len(self._orders):
            self._orders.append(order)
            self.idle.append(not (held or order.held() or order.unposted()))
        return number

    def _number_packet(self, packet: Packet, order: Order) -> int:
        try:
            number = self._packet_numbers.setdefault(packet, len(self.packets))
        except TypeError as error:
            raise OrderError(
                f"order {order.name!r}: the stamp of a {packet.kind} must be hashable to be explored "
                f"(a tuple, bytes or a frozen struct): {error}"
            ) from None
        if number == len(self.packets):
            self.packets.append(packet)
        return number
