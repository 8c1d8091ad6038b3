"""A simulated broker: lanes, durables and consumers as JetStream, Redis Streams and Kafka have them, with their faults.

The broker answers at once; whoever uses it decides by the kernel's clock when a request reaches it, and when its
deliveries arrive. A *durable* is what a group knows of a lane: what has been delivered, what is pending, and the
*floor*, up to which everything is finished. Three kinds of durables:

- ``counted`` (JetStream): the deliveries of a durable are numbered, and it may have a filter;
- ``pooled`` (Redis Streams): any consumer of the group gets the next message;
- ``assigned`` (Kafka): one consumer owns the lane, reads it from the committed position on, and commits positions.

Faults are methods: a lane is made again, restored from a copy, or trimmed, a durable rewound, a delivery lost.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Kind = Literal["counted", "pooled", "assigned"]


@dataclass(slots=True, eq=False)
class Stored:
    """A message in a lane."""

    lane: str
    position: int
    life: int
    key: str | None
    header: str | None
    body: Any
    time: float


@dataclass(slots=True, eq=False)
class Delivery:
    """A message on its way to a consumer."""

    message: Stored
    durable: "Durable"
    attempt: int
    sequence: int
    fenced: int


@dataclass(slots=True, eq=False)
class Pending:
    delivery: Delivery
    consumer: "Consumer | None"


class Consumer:
    """One subscription of one process. ``room`` says how many more deliveries it takes; ``take`` receives them."""

    def __init__(self, room: Callable[[], int], take: Callable[[Delivery], None]) -> None:
        self.room, self.take = room, take
        self.strict = False
        """Whether what comes again needs room, too: then a consumer can block itself."""


@dataclass
class Lane:
    name: str
    life: int = 0
    """How often the lane was made."""
    first: int = 1
    log: list[Stored] = field(default_factory=list)
    ids: dict[Any, int] = field(default_factory=dict)
    """Positions by the ids of publishes: a publish that is repeated is stored once."""

    @property
    def end(self) -> int:
        return len(self.log)


class Durable:
    def __init__(
        self, broker: "Broker", name: str, lane: Lane, kind: Kind, accepts: Callable[[Stored], bool] | None, tries: int
    ) -> None:
        self.broker, self.name, self.lane, self.kind, self.tries = broker, name, lane, kind, tries
        self.accepts = accepts or (lambda message: True)
        self.consumers: list[Consumer] = []
        # What is to be delivered again.
        self.again: list[int] = []
        self.dead: list[Stored] = []
        self.fence = 0
        self.limit = 0
        """How many messages may be pending before new ones are delivered; 0 for any number."""
        self.rewind(0)

    def rewind(self, position: int) -> None:
        """Start again above this position."""
        self.delivered = position
        self.acknowledged = position
        self.sequence = 0
        self.pending: dict[int, Pending] = {}
        self.attempts: dict[int, int] = {}
        self.again.clear()
        self.fence += 1

    def _next(self) -> int:
        """The position of the next message that was not delivered; above the end if there is none."""
        position = max(self.delivered + 1, self.lane.first)
        while position <= self.lane.end and not self.accepts(self.lane.log[position - 1]):
            position += 1
        return position

    @property
    def floor(self) -> int:
        """Everything up to there is finished: exact, also for filters."""
        if self.kind == "assigned":
            return max(self.acknowledged, self.lane.first - 1)
        return min([self._next(), *self.pending]) - 1

    @property
    def handed(self) -> int:
        """Everything up to there that concerns this durable was delivered."""
        return self._next() - 1

    def pump(self) -> None:
        """Deliver. What comes again needs no room: nothing new may start before it."""
        if self.kind == "assigned":
            return
        while self.consumers:
            consumer = self.broker.choose(self.consumers)
            if self.again and (not consumer.strict or consumer.room() > 0):
                position = self.again.pop(int(self.broker.draw() * len(self.again)))
                if position not in self.pending:
                    continue
            else:
                free = [one for one in self.consumers if one.room() > 0]
                position = self._next()
                if position > self.lane.end or not free or (self.limit and len(self.pending) >= self.limit):
                    return
                consumer = self.broker.choose(free)
                self.delivered = position
            attempt = self.attempts[position] = self.attempts.get(position, 0) + 1
            self.sequence += 1
            delivery = Delivery(self.lane.log[position - 1], self, attempt, self.sequence, self.fence)
            self.pending[position] = Pending(delivery, consumer)
            consumer.take(delivery)

    def acknowledge(self, delivery: Delivery) -> None:
        """A consumer has finished a message. An acknowledgement for an earlier lane or durable has no effect."""
        if delivery.fenced == self.fence:
            self.pending.pop(delivery.message.position, None)
            self.pump()

    def back(self, delivery: Delivery) -> None:
        """The message was given back, or nobody acknowledged it in time: it comes again, or is given up silently."""
        position = delivery.message.position
        pending = self.pending.get(position)
        if delivery.fenced != self.fence or pending is None or pending.delivery is not delivery:
            return
        if self.tries and self.attempts[position] >= self.tries:
            self.dead.append(self.pending.pop(position).delivery.message)
        else:
            self.pending[position].consumer = None
            self.again.append(position)
        self.pump()

    def gone(self, consumer: Consumer) -> None:
        """A consumer is not connected any more."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)

    def fetch(self, position: int, most: int) -> list[Delivery]:
        """Messages above a position, for the owner of the lane."""
        start = max(position + 1, self.lane.first)
        found = [message for message in self.lane.log[start - 1 : start - 1 + most] if self.accepts(message)]
        self.delivered = max(self.delivered, found[-1].position if found else 0)
        return [Delivery(message, self, 1, 0, self.fence) for message in found]

    def commit(self, position: int, fenced: int) -> None:
        if fenced == self.fence:
            self.acknowledged = max(self.acknowledged, position)


class Broker:
    """Lanes and durables by name. ``draw`` gives the random numbers of the run, ``now`` the time."""

    def __init__(self, draw: Callable[[], float], now: Callable[[], float]) -> None:
        self.draw, self.now = draw, now
        self.lanes: dict[str, Lane] = {}
        self.durables: dict[str, Durable] = {}

    def choose(self, options: list[Any]) -> Any:
        return options[int(self.draw() * len(options))]

    def lane(self, name: str) -> Lane:
        return self.lanes.setdefault(name, Lane(name))

    def durable(
        self,
        name: str,
        lane: str,
        kind: Kind,
        accepts: Callable[[Stored], bool] | None = None,
        tries: int = 0,
    ) -> Durable:
        return self.durables.setdefault(name, Durable(self, name, self.lane(lane), kind, accepts, tries))

    def publish(self, lane: str, key: str | None, header: str | None, body: Any, number: Any = None) -> int:
        """Store a message, and return its position: the acknowledgement."""
        one = self.lane(lane)
        if number is not None and number in one.ids:
            return one.ids[number]
        message = Stored(lane, one.end + 1, one.life, key, header, body, self.now())
        one.log.append(message)
        if number is not None:
            one.ids[number] = message.position
        self._pump(one)
        return message.position

    def _pump(self, lane: Lane) -> None:
        for durable in self.durables.values():
            if durable.lane is lane:
                durable.pump()

    def make_again(self, name: str) -> None:
        """The lane is deleted and made again, with its durables."""
        lane = self.lane(name)
        lane.life += 1
        lane.log, lane.first, lane.ids = [], 1, {}
        for durable in self.durables.values():
            if durable.lane is lane:
                durable.rewind(0)

    def copy(self, name: str) -> Any:
        """A backup of a lane and its durables."""
        lane = self.lane(name)
        states = {d.name: (d.delivered, d.floor) for d in self.durables.values() if d.lane is lane}
        return list(lane.log), lane.first, dict(lane.ids), states

    def restore(self, name: str, backup: Any) -> None:
        """The lane is as it was when the backup was made. What was not acknowledged then comes again as new."""
        lane = self.lane(name)
        lane.life += 1
        lane.log = [replace(message, life=lane.life) for message in backup[0]]
        lane.first, lane.ids = backup[1], dict(backup[2])
        for durable in self.durables.values():
            if durable.lane is lane:
                durable.rewind(backup[3].get(durable.name, (0, 0))[1])
        self._pump(lane)

    def trim(self, name: str, first: int) -> None:
        """Remove the messages below a position, by retention."""
        lane = self.lane(name)
        lane.first = max(lane.first, min(first, lane.end + 1))
        for durable in self.durables.values():
            if durable.lane is lane:
                for position in [p for p in durable.pending if p < lane.first]:
                    del durable.pending[position]
        self._pump(lane)
