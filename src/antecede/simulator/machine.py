"""One simulated machine: the channel of a real server, with a disk. The state on the disk may be older than the state
in memory.

As on a live server, :class:`antecede.channel.Channel` and its :class:`~antecede.channel.MessageConsumer` connect links
with an order, and forward messages between domains. In each step, a machine gives one input to its channel, and lets
the channel finish the step. The result of the step contains the events of the orders, in sequence, and the frames and
acknowledgements that leave. The caller decides whether these frames and acknowledgements arrive.

**What a crash loses.** The state of the links is durable after every step. The state of an order becomes durable only
when the order returns the effect ``Persist``. So a crash shows the mistake of an order that forgets ``Persist``: after
the crash, the links remember packets that the state of the order does not contain. Effects that an order returns before
``Persist`` are carried out even if the machine crashes before the step is durable. Such effects have *leaked*.

Each letter is a separate message of the order, so that a trace and a script can refer to each letter.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple, cast

import msgspec

from antecede.channel import Channel, Letter, MessageConsumer, Outgoing, decode_train
from antecede.errors import AntecedeError
from antecede.link import Ack, Arrival, Frame, Link
from antecede.messages import Deliver, Effects, Message, Packet, Persist, Send, Verdict
from antecede.orders import OrderSpec
from antecede.orders.contract import Order
from antecede.topology import Topology


class Asked(NamedTuple):
    """An event: an order was asked to send a message."""

    message: Message


class Received(NamedTuple):
    """An event: an order has received a packet and returned a verdict."""

    packet: Packet
    verdict: Verdict


class Delivered(NamedTuple):
    """An event: a letter has reached the application."""

    letter: Letter


class Event(NamedTuple):
    """One event of a step. ``domain`` and ``order`` say where it happened. For a ``Delivered`` event, ``domain`` is
    empty and ``order`` is None."""

    domain: str
    order: Order | None
    what: Any
    """``Asked``, ``Received`` or ``Delivered``, or an effect of the order."""


class InTransit(NamedTuple):
    """A frame or an acknowledgement in transit to a peer."""

    domain: str
    peer: str
    content: Any


class Step(msgspec.Struct):
    """The outcome of one step: its events, frames and acknowledgements, each in sequence."""

    events: list[Event]
    frames: list[InTransit]
    acks: list[InTransit]
    leaked_events: int = 0
    """The number of events that take place even if the machine crashes in this step: the events before the first
    ``Persist`` of the step. In a step without ``Persist``, these are all events."""
    leaked_frames: int = 0

    def sizes(self, letter: str, domain: str | None = None) -> list[int]:
        """Return the stamp sizes of all copies of a letter that leave in this step. If ``domain`` is given, only copies
        in this domain are included."""
        return [
            event.order.size(event.what.packet)
            for event in self.events
            if type(event.what) is Send
            and event.order is not None
            and event.domain == (event.domain if domain is None else domain)
            and (message := event.what.packet.message) is not None
            and letter_of(message).id == letter
        ]


class ObservedOrder:
    """A wrapper around an order. It behaves as this order does, and also reports the order's actions to its machine."""

    def __init__(self, order: Order, domain: str, machine: "Machine") -> None:
        self._order = order
        self._domain = domain
        self._machine = machine
        self._durable = order.snapshot() if machine.crashes else b""
        for name in ("deadline", "decode", "encode", "everyone", "me", "members", "packet_format"):
            # Accessed with every packet or step.
            setattr(self, name, getattr(order, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._order, name)

    def send(self, message: Message) -> Iterator[Any]:
        self._report(Asked(message))
        return self.carried_out(self._order.send(message))

    def receive(self, packet: Packet) -> tuple[Verdict, Iterator[Any]]:
        verdict, effects = self._order.receive(packet)
        self._report(Received(packet, verdict))
        return verdict, self.carried_out(effects)

    def tick(self, now: float) -> Iterator[Any]:
        return self.carried_out(self._order.tick(now))

    def carried_out(self, effects: Effects) -> Iterator[Any]:
        """Report each effect to the machine, and yield the effects that the channel must carry out."""
        machine = self._machine
        for effect in effects:
            kind = type(effect)
            if kind is Persist:
                machine.persisted()
                if machine.crashes:
                    self._durable = self._order.snapshot()
                continue
            self._report(effect)
            # Messages between objects are not letters of an agent.
            if kind is not Deliver or effect.message.label is None:  # type: ignore[union-attr]
                yield effect

    def _report(self, what: Any) -> None:
        machine = self._machine
        if machine.channel.arrived:
            machine.take_arrived()
        machine.events.append(Event(self._domain, self._order, what))

    def snapshot(self) -> bytes:
        return self._durable if self._machine.crashes else self._order.snapshot()

    def restore(self, snapshot: bytes) -> None:
        self._order.restore(snapshot)
        self._durable = snapshot


class SingleConsumer(MessageConsumer):
    """A consumer that sends each letter in a separate message."""

    train_letters_max = 1


class TravellingConsumer(SingleConsumer):
    """A consumer that uses the network even for packets that a process sends to itself. So these packets can also be
    late, lost and repeated."""

    own_at_once = False

    def _take_own(self, now: float) -> None:
        frames = [frame for frame in self._loop if isinstance(frame, Frame)]
        self._loop.clear()
        self.outgoing += [Outgoing(self.domain, self.members[self.me], frame) for frame in frames]

    def resend_own(self, now: float) -> None:
        """Send again the overdue packets that this process has sent to itself."""
        self._loop += self.own.tick(now)
        self._take_own(now)


class NoLink(Link):
    """A link that neither checks the numbers of frames nor resends frames. So the order sees duplicates, and lost
    packets stay lost."""

    def send(self, body: Any, now: float) -> Frame:
        self.sent = self.admitted = self.sent + 1
        return Frame(self.incarnation, 0, self.sent, body)

    def receive(self, frame: Frame) -> Arrival:
        return Arrival.FRESH


class UnlinkedConsumer(TravellingConsumer):
    """A consumer that uses ``NoLink`` for all connections, so that no link protects the order from faults."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.links = {peer: NoLink(self.own.incarnation) for peer in self.links}
        self.own = NoLink(self.own.incarnation)

    def _accept(self, peer: str, number: int, body: bytes, held: bool = False, repeat: bool = False) -> None:
        pass


class RoutedChannel(Channel):
    """The channel of a server in a world with a topology. It routes letters between the server's domains. There are
    also worlds whose topology is not a forest."""

    checks_senders = False
    consumer: type[MessageConsumer] = SingleConsumer


FLAT = "all"
"""The name of the single domain in a world without a topology."""


class FlatChannel(Channel):
    """The channel of a process in a single domain. The order of the domain handles all messages, including messages
    that a process sends to itself."""

    checks_senders = False
    consumer: type[MessageConsumer] = TravellingConsumer

    def _make_plan(self, from_domain: str, to: tuple[str, ...]) -> Any:
        if from_domain:
            return (self.me,), (), ""
        return (), tuple((domain, to) for domain in self.consumers), ""


class Machine:
    """One process or server: its channel, its disk, and whether the machine is up."""

    def __init__(
        self,
        name: str,
        topology: Topology,
        specs: dict[str, OrderSpec],
        kind: type[Channel],
        *,
        raw: bool = False,
        crashes: bool = True,
        resend_after: float = 0.5,
    ) -> None:
        self.name = name
        self.up = True
        self.crashes = crashes
        """Whether the machine can crash. If it cannot, no state is saved, and steps are many times faster."""
        if raw:
            kind = type("Unlinked", (kind,), {"consumer": UnlinkedConsumer})
        self._topology = topology
        self._specs = specs
        self._kind = kind
        self._resend_after = resend_after
        self._disk: Any = None
        self.events: list[Event] = []
        """The events of the present step so far."""
        self._persisted = False
        self._leaked = (0, 0)
        self.channel = self._fresh_channel()

    def orders(self) -> list[Order]:
        """Return the orders of the machine's domains as they are now."""
        return [consumer.order for consumer in self.channel.consumers.values()]

    def _link(self, domain: str, peer: str) -> Link:
        consumer = self.channel.consumers[domain]
        return consumer.links.get(peer, consumer.own)

    def unacknowledged(self, domain: str, peer: str) -> int:
        """Return how many frames for a peer are kept for resending."""
        return self._link(domain, peer).unacknowledged

    def has_accepted(self, peer: str, sent: InTransit) -> bool:
        """Return whether this machine has accepted a peer's frame. The content of an accepted frame is durable here."""
        return self._link(sent.domain, peer).has_accepted(sent.content.number)

    def _fresh_channel(self) -> Channel:
        homes = {server: server for server in self._topology.servers}
        incarnation = 1 + self._topology.servers.index(self.name)
        channel = self._kind(self.name, self._topology, self._specs, homes, incarnation, self._resend_after)
        for domain, consumer in channel.consumers.items():
            consumer.order = cast(Order, ObservedOrder(consumer.order, domain, self))
        return channel

    # Steps.

    def step(self, act: Callable[[Channel], object], now: float) -> Step:
        """Give one input to the channel by calling ``act(channel)``, let the channel finish the step, and return the
        result."""
        self.events = []
        self._persisted = False
        channel = self.channel
        act(channel)
        channel.flush(now)
        self.take_arrived()
        if channel.faults or channel.lost:
            raise AntecedeError(f"{self.name}: {(channel.faults or channel.lost)[0]}")
        if not self._persisted:
            self._note_leaks()
        for consumer in channel.consumers.values():
            if isinstance(consumer, TravellingConsumer):
                consumer.resend_own(now)
            # A log would keep these; here the disk keeps states instead.
            consumer.taken.clear()
        step = Step(self.events, [], [], *self._leaked)
        for leaving in channel.leaving(now, True):
            kind = step.acks if isinstance(leaving.content, Ack) else step.frames
            kind.append(InTransit(leaving.domain, leaving.peer, leaving.content))
        return step

    def receive(self, peer: str, sent: InTransit, now: float) -> Step:
        """Give the channel a frame from a peer, as one step, and return the result."""
        return self.step(lambda channel: channel.consumers[sent.domain].receive(peer, sent.content, now), now)

    def acknowledged(self, peer: str, sent: InTransit, now: float) -> None:
        """Process an acknowledgement from a peer: the link forgets the frames that the peer has accepted."""
        self._link(sent.domain, peer).on_ack(sent.content, now)

    def tick(self, now: float) -> Step:
        """Handle expired timers, as one step, and return the result: orders act, and links resend overdue frames."""

        def let_orders_act(channel: Channel) -> None:
            for consumer in channel.consumers.values():
                consumer.perform(consumer.order.tick(now), now)

        return self.step(let_orders_act, now)

    def deadline(self) -> float | None:
        """Return the time at which ``tick`` must be called next; None if no call is needed."""
        dues = [self.channel.deadline()]
        for consumer in self.channel.consumers.values():
            dues.append(consumer.order.deadline())
            if isinstance(consumer, TravellingConsumer):
                dues.append(consumer.own.deadline())
        return min([due for due in dues if due is not None], default=None)

    # What the observed orders report.

    def persisted(self) -> None:
        """Record that an order has returned ``Persist``. At the first ``Persist`` of a step, record how many events and
        frames the step has so far. A crash in this step does not undo these events, and these frames are sent."""
        if not self._persisted:
            self._persisted = True
            self._note_leaks()

    def _note_leaks(self) -> None:
        self.take_arrived()
        self._leaked = (len(self.events), sum([len(one.outgoing) for one in self.channel.consumers.values()]))

    def take_arrived(self) -> None:
        """Move letters from the channel to ``events``, as ``Delivered`` events. These letters have reached the
        application."""
        if self.channel.arrived:
            self.events += [
                Event("", None, Delivered(letter)) for _, letters in self.channel.arrived for letter in letters
            ]
            self.channel.arrived.clear()

    # The disk.

    def save(self) -> None:
        """Write the durable state of the channel to the disk. If the machine is down, leave the disk as it is."""
        if self.up:
            self._disk = self.channel.dump()

    def crash(self, *, saved: bool = False) -> None:
        """Crash: lose everything that is not durable. If ``saved`` is false, this method writes the present durable
        state to the disk first. If it is true, the caller called ``save`` before the last step. The disk then does not
        contain the last step, so the crash loses this step too."""
        if not saved:
            self.save()
        self.up = False

    def restart(self, now: float) -> Step:
        """Restart from the disk, and resend everything that was not acknowledged."""
        self.up = True
        self.channel = self._fresh_channel()
        return self.step(lambda channel: channel.load(self._disk, now), now)


def send_by(channel: Channel, topology: Topology, letter: Letter) -> None:
    """Send a letter. If the topology has a cycle, send a separate letter to each destination. The code of real servers
    can route a letter with several destinations only in a topology without cycles, so servers refuse other
    topologies."""
    if topology.cycle is None:
        channel.send(letter)
    else:
        for target in letter.to:
            channel.send(msgspec.structs.replace(letter, to=(target,)))


def letter_of(message: Message) -> Letter:
    """Return the letter that the payload of an order's message contains."""
    return _letter_in(message.payload)


@lru_cache(maxsize=4096)
def _letter_in(train: bytes) -> Letter:
    (letter,) = decode_train(train)
    return letter
