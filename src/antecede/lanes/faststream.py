"""Causal order for FastStream, as a middleware: two lines.

    order = CausalOrder()
    broker = NatsBroker(url, middlewares=[order])

FastStream calls ``publish_scope`` around each publish, where we add the header and see the acknowledgement, and
``consume_scope`` around each handler, where we wait. A message is finished when our middleware is left, which is after
its response was published, and before FastStream acknowledges; so we acknowledge right there, before others start.

What cannot be in order is refused with a ``LanesError``, at the latest with the first message: the error is logged, and
the application ends.
"""

import asyncio
import logging
from collections.abc import Callable
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from faststream import AckPolicy, BaseMiddleware
from faststream.exceptions import AckMessage, HandlerException, RejectMessage
from faststream.message import AckStatus
from faststream.message.source_type import SourceType

from antecede.lanes.box import Verdict, Within
from antecede.lanes.drive import Delivery, Order, Outcome, Waiting
from antecede.lanes.frontier import HEADER, Key, LanesError, Scope, Stamp

if TYPE_CHECKING:
    from antecede.record import Recorder

_log = logging.getLogger("antecede.lanes")


class CausalOrder:
    """The middleware. One object serves one broker."""

    def __init__(
        self,
        *,
        scope: Scope = "service",
        within: Within = "lane",
        key: Callable[[Any], Key] | None = None,
        timeout: float | None = None,
        overdue: Literal["deliver", "dead-letter"] = "deliver",
        recorder: "Recorder | None" = None,
        metrics: Any = None,
        name: str = "",
    ) -> None:
        """``scope``: whose past a message carries: that of the ``service`` (this instance), of the service with the
        same ``key``, or of the ``message`` whose handler publishes. ``within``: the order in each lane. ``key`` gives
        the key of a message; it is called with what is published and with what is consumed, which both have
        ``headers``. ``name``: of the broker, if messages come from several of the same kind. The others are those of
        :class:`antecede.lanes.drive.Order`."""
        self.key = key or (lambda message: None)
        self._name = name
        self._options: dict[str, Any] = {
            "scope": scope,
            "within": within,
            "timeout": timeout,
            "overdue": overdue,
            "recorder": recorder,
            "metrics": metrics,
        }
        self._broker: Any = None
        self._door: _Door | None = None

    def __call__(self, msg: Any, /, *, context: Any) -> "_Middleware":
        return _Middleware(msg, context=context, order=self)

    def bind(self, broker: Any) -> None:
        """Say which broker it is. Necessary only before a publish outside of handlers in a program without
        ``FastStream(broker)``."""
        if self._broker is not None and self._broker is not broker:
            raise LanesError("two-brokers", "Each broker needs a CausalOrder of its own.")
        self._broker = broker

    async def check(self, broker: Any) -> None:
        """Refuse now what cannot be in order, and not with the first message. The broker must have started."""
        self.bind(broker)
        await self._bound(None).opened()

    def waiting(self) -> list[Waiting]:
        """Everything that waits, with what it waits for."""
        return [] if self._door is None else self._door.order.waiting()

    def token(self, key: Key = None) -> str:
        """The past as text, for a request by HTTP or a row of a database; ``merge`` takes it."""
        return self._bound(None).order.context.token(key)

    def merge(self, token: str, key: Key = None) -> None:
        """Take a token into the past."""
        self._bound(None).order.context.merge(token, key)

    def _bound(self, context: Any) -> "_Door":
        """What the broker needs, from its first message on."""
        if self._door is None:
            if self._broker is None and context is not None:
                known = (context.get("broker"), *(getattr(context.get("app"), "brokers", None) or ()))
                mine = [one for one in known if one is not None and any(each is self for each in one.middlewares)]
                self._broker = mine[0] if mine else None
            if self._broker is None:
                raise LanesError("unbound", "Make FastStream(broker) before the first publish, or order.bind(broker).")
            self._door = _door(self._broker, self._name, self._options, self.key)
        return self._door


class _Middleware(BaseMiddleware[Any, Any]):
    __slots__ = ("causal", "delivery", "message", "policy", "token")

    def __init__(self, msg: Any, /, *, context: Any, order: CausalOrder) -> None:
        super().__init__(msg, context=context)
        self.causal = order
        self.delivery: Delivery | None = None
        self.message: Any = None
        self.policy: Any = None
        self.token: Token[Delivery | None] | None = None

    async def publish_scope(self, call_next: Callable[[Any], Any], cmd: Any) -> Any:
        door = self.causal._bound(self.context)
        order = door.order
        stamp = await order.stamp(self.causal.key(cmd)) if await door.numbered(cmd) else None
        cmd.headers = {**(cmd.headers or {}), **order.headers(stamp)}
        if stamp is None:
            result = await call_next(cmd)
            door.confirmed(cmd, result)
            return result
        try:
            result = await call_next(cmd)
        except BaseException:
            order.unknown()
            raise
        door.sent(stamp, cmd, result)
        return result

    async def consume_scope(self, call_next: Callable[[Any], Any], msg: Any) -> Any:
        if msg.source_type is not SourceType.CONSUME:
            return await call_next(msg)
        try:
            door = self.causal._bound(self.context)
            subscriber = self.context.get("handler_")
            delivery = await door.delivery(subscriber, msg)
        except LanesError as error:
            _log.critical("%s", error)
            raise SystemExit(str(error)) from error
        if delivery is None:
            return await call_next(msg)
        verdict = await door.order.begin(delivery)
        if verdict is not Verdict.START:
            if verdict is Verdict.REPEAT:
                await msg.ack()
            elif verdict is Verdict.RETURN:
                await delivery.give_back()
            else:
                door.mute(msg)
            raise AckMessage
        self.delivery, self.message, self.policy = delivery, msg, subscriber.ack_policy
        self.token = door.order.running.set(delivery)
        if delivery.missing:
            if door.order.overdue == "dead-letter":
                raise RejectMessage
            with self.context.scope("missing", delivery.missing):
                return await call_next(msg)
        return await call_next(msg)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> bool | None:
        if self.delivery is not None and self.token is not None:
            door = self.causal._bound(self.context)
            door.order.running.reset(self.token)
            outcome = _outcome(exc_val, self.policy, self.message)
            if outcome is Outcome.SETTLED:
                await door.settled(self.message)
            await door.order.finish(self.delivery, outcome)
        return False


def _outcome(error: BaseException | None, policy: Any, message: Any) -> Outcome:
    """What FastStream will do with the message when we have left."""
    if policy is AckPolicy.MANUAL:
        if message.committed is None or message.committed is AckStatus.NACKED:
            return Outcome.FAILED
        return Outcome.SETTLED
    if error is None or isinstance(error, AckMessage):
        return Outcome.DONE
    if isinstance(error, RejectMessage):
        return Outcome.SETTLED
    if isinstance(error, HandlerException) or not isinstance(error, Exception):
        return Outcome.FAILED
    return {AckPolicy.ACK: Outcome.DONE, AckPolicy.NACK_ON_ERROR: Outcome.FAILED}.get(policy, Outcome.SETTLED)


class _Door:
    """What differs between the brokers of FastStream."""

    def __init__(self, broker: Any, source: Any, options: dict[str, Any], key: Callable[[Any], Key]) -> None:
        self.broker, self.source, self.key = broker, source, key
        self.order = Order(source, **options)
        self._opening: asyncio.Future[None] | None = None
        self._queue: list[object] = []

    async def numbered(self, cmd: Any) -> bool:
        """Whether the broker will tell a position for this message."""
        raise NotImplementedError

    def sent(self, stamp: Stamp, cmd: Any, result: Any) -> None:
        raise NotImplementedError

    def confirmed(self, cmd: Any, result: Any) -> None:
        """A message without a position was published."""

    async def delivery(self, subscriber: Any, message: Any) -> Delivery | None:
        """The delivery of a message; None if it has no place in any lane."""
        raise NotImplementedError

    def mute(self, message: Any) -> None:
        """Do not let FastStream acknowledge this delivery."""
        message.committed = AckStatus.ACKED

    async def settled(self, message: Any) -> None:
        """It was acknowledged by the handler, or will be rejected for good."""

    def subscribers(self) -> list[Any]:
        found = [one for one in self.broker.subscribers if one.calls]
        for one in found:
            if one.ack_policy is AckPolicy.ACK_FIRST or getattr(one, "extra_options", {}).get("manual_ack") is False:
                raise LanesError(
                    "ack-first", f"{_where(one)} acknowledges first. Set ack_policy=AckPolicy.NACK_ON_ERROR."
                )
            if "Batch" in type(one).__name__:
                raise LanesError("batch", f"{_where(one)} gets batches: order is between single messages.")
        return found

    async def opened(self) -> None:
        """Open everything that the application reads, once. Deliveries go on in the sequence in which they came."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.ensure_future(self._open())
        if not self._opening.done() or self._queue:
            turn = object()
            self._queue.append(turn)
            try:
                await asyncio.shield(self._opening)
                while self._queue[0] is not turn:
                    await asyncio.sleep(0)
            finally:
                self._queue.remove(turn)
        self._opening.result()

    async def _open(self) -> None:
        for subscriber in self.subscribers():
            for reader in await self.readers(subscriber):
                await self.order.open(reader)

    async def readers(self, subscriber: Any) -> list[str]:
        raise NotImplementedError


def _where(subscriber: Any) -> str:
    return f"The subscriber {subscriber.specification.call_name}"


class _Nats(_Door):
    def __init__(self, broker: Any, name: str, options: dict[str, Any], key: Callable[[Any], Key]) -> None:
        from antecede.lanes.nats import JetStream

        self._js = JetStream(broker.config.broker_config.connection_state.stream, name or "nats")
        super().__init__(broker, self._js, options, key)

    async def numbered(self, cmd: Any) -> bool:
        if cmd.stream:
            return True
        if not cmd.destination.startswith("_INBOX.") and await self._js.stored(cmd.destination):
            raise LanesError(
                "core-publish", f"A stream stores {cmd.destination}: publish with stream=… to get a position."
            )
        return False

    def sent(self, stamp: Stamp, cmd: Any, result: Any) -> None:
        self.order.sent(stamp, self._js.lane(result.stream), result.seq)

    async def readers(self, subscriber: Any) -> list[str]:
        if getattr(subscriber, "stream", None) is None or subscriber.subscription is None:
            return []
        info = await subscriber.subscription.consumer_info()
        workers, in_flight = getattr(subscriber, "max_workers", 1), info.config.max_ack_pending or -1
        if in_flight < 0 or workers < in_flight:
            raise LanesError(
                "max-workers",
                f"{_where(subscriber)} has up to {in_flight} messages in flight, but max_workers={workers}. Set "
                f"max_workers to at least max_ack_pending, or ConsumerConfig(max_ack_pending=…) to that.",
            )
        return [self._js.reader(info.stream_name, info.name)]

    async def delivery(self, subscriber: Any, message: Any) -> Delivery | None:
        raw = message.raw_message
        if not raw.reply.startswith("$JS.ACK."):
            return None
        arrival = self._js.arrival(raw, self.order.stamped(message.headers.get(HEADER), raw.subject))
        await self.opened()
        return Delivery(arrival, message.headers, ack=message.ack, give_back=message.nack, alive=raw.in_progress)

    def mute(self, message: Any) -> None:
        super().mute(message)
        message.raw_message._ackd = True


class _Redis(_Door):
    def __init__(self, broker: Any, name: str, options: dict[str, Any], key: Callable[[Any], Key]) -> None:
        from antecede.lanes.redis import RedisStreams

        self._redis = RedisStreams(broker.config.broker_config.connection.client, name or "redis")
        form = broker.message_format
        self._redis.header_of = lambda fields: form.parse(fields.get(b"__data__", b""))[1].get(HEADER)
        super().__init__(broker, self._redis, options, key)

    async def numbered(self, cmd: Any) -> bool:
        stream: bool = cmd.destination_type.value == "stream"
        if stream and cmd.pipeline is not None:
            raise LanesError("pipeline", "A pipeline tells no positions: publish without it.")
        return stream

    def sent(self, stamp: Stamp, cmd: Any, result: Any) -> None:
        from antecede.lanes.redis import position_of

        self.order.sent(stamp, self._redis.lane(cmd.destination), position_of(result))

    async def readers(self, subscriber: Any) -> list[str]:
        stream = getattr(subscriber, "stream_sub", None)
        if stream is None:
            raise LanesError(
                "not-a-stream", f"{_where(subscriber)} reads a list or a channel. Only streams have an order."
            )
        if not stream.group or stream.no_ack:
            raise LanesError("group", f"{_where(subscriber)} needs a group and acknowledgements.")
        reader = self._redis.reader(stream.name, stream.group)
        idle = stream.min_idle_time or stream.claim_min_idle_time
        if idle:
            self._redis.claim_seconds = min(self._redis.claim_seconds, idle / 1000)
            self._redis.alive_seconds = self._redis.claim_seconds / 3
        self._redis.claims.setdefault(reader, (stream.consumer, self._claimed(subscriber, stream.name)))
        return [reader]

    def _claimed(self, subscriber: Any, stream: str) -> Callable[[bytes, dict[bytes, bytes]], Any]:
        async def claimed(entry: bytes, fields: dict[bytes, bytes]) -> None:
            raw = {"type": "stream", "channel": stream, "message_ids": [entry], "data": fields}
            asyncio.get_running_loop().create_task(subscriber.consume(raw))

        return claimed

    async def delivery(self, subscriber: Any, message: Any) -> Delivery | None:
        raw = message.raw_message
        stream, entry = subscriber.stream_sub, raw["message_ids"][0]
        await self.opened()
        reader = self._redis.reader(stream.name, stream.group)
        arrival = self._redis.arrival(reader, entry, self.order.stamped(message.headers.get(HEADER), reader))
        return Delivery(
            arrival,
            message.headers,
            ack=message.ack,
            give_back=lambda: self._redis.again(arrival, entry, raw["data"]),
            alive=lambda: self._redis.keep(stream.name, stream.group, stream.consumer, entry),
        )

    async def settled(self, message: Any) -> None:
        # Redis has no rejection: a dead letter would stay pending for ever, and everybody would wait for it.
        await message.ack()


class _Kafka(_Door):
    def __init__(self, broker: Any, name: str, options: dict[str, Any], key: Callable[[Any], Key]) -> None:
        from antecede.lanes.kafka import Kafka

        self._kafka = Kafka(name or "kafka")
        self._looking = asyncio.Lock()
        super().__init__(broker, self._kafka, options, key)

    async def numbered(self, cmd: Any) -> bool:
        if getattr(cmd, "no_confirm", False):
            raise LanesError("no-confirm", f"no_confirm tells no position: publish to {cmd.destination} without it.")
        self._kafka.written.add(cmd.destination)
        await self._look()
        return True

    async def _look(self) -> None:
        async with self._looking:
            if self._kafka.lookup is None:
                lookup = self.broker.config.broker_config.builder(group_id=None)
                await lookup.start()
                self._kafka.lookup = lookup

    async def _open(self) -> None:
        await self._look()
        await super()._open()

    def sent(self, stamp: Stamp, cmd: Any, result: Any) -> None:
        self._kafka.sent(self.order, stamp, result)

    async def readers(self, subscriber: Any) -> list[str]:
        consumers = getattr(subscriber, "consumer_subgroup", None) or [subscriber.consumer]
        group = subscriber.group_id
        if group is None:
            raise LanesError("group", f"{_where(subscriber)} needs a group_id.")
        for consumer in consumers:
            self._kafka.consumers[consumer] = group
        partitions = len(subscriber.partitions)
        if partitions:
            self._kafka.fixed.update(consumers)
        else:
            partitions = sum(len(consumers[0].partitions_for_topic(one) or ()) for one in consumers[0].subscription())
        if partitions > len(consumers):
            raise LanesError(
                "max-workers",
                f"{_where(subscriber)} reads {partitions} partitions one after the other, and holds all at once. "
                f"Give each topic a subscriber of its own, with max_workers of at least its partitions.",
            )
        return []

    async def delivery(self, subscriber: Any, message: Any) -> Delivery | None:
        raw = message.raw_message
        stamp = self.order.stamped(message.headers.get(HEADER), raw.topic)
        arrival = self._kafka.arrival(raw, subscriber.group_id, stamp)
        await self.opened()
        await self._kafka.open(self.order)
        consumer = message.consumer
        message.consumer = committer = self._kafka.committer(consumer, arrival)
        return Delivery(arrival, message.headers, message.ack, committer.give_back)


class _Rabbit(_Door):
    def confirmed(self, cmd: Any, result: Any) -> None:
        if result is None:
            raise LanesError(
                "confirms", f"No confirm for {cmd.destination}: the channel needs publisher_confirms=True."
            )

    def __init__(self, broker: Any, name: str, options: dict[str, Any], key: Callable[[Any], Key]) -> None:
        from antecede.lanes.rabbitmq import Queues

        self._queues = Queues(name or "rabbitmq")
        super().__init__(broker, self._queues, options, key)

    async def numbered(self, cmd: Any) -> bool:
        return False

    async def delivery(self, subscriber: Any, message: Any) -> Delivery | None:
        raw = message.raw_message
        if self._opening is None:
            self.subscribers()
            self._opening = asyncio.get_running_loop().create_future()
        arrival, fresh = self._queues.arrival(subscriber.queue.name, raw, self.key(message))
        self.order.renumber(arrival.reader, self._queues.start, fresh)

        async def give_back() -> None:
            self._queues.given_back(arrival, raw)
            await message.nack()

        return Delivery(arrival, message.headers, message.ack, give_back)

    def mute(self, message: Any) -> None:
        raise AssertionError("the number of a delivery is new, or it was given back")


def _door(broker: Any, name: str, options: dict[str, Any], key: Callable[[Any], Key]) -> _Door:
    for kind in type(broker).__mro__:
        for package, door in (("nats", _Nats), ("redis", _Redis), ("kafka", _Kafka), ("rabbit", _Rabbit)):
            if kind.__module__.startswith(f"faststream.{package}."):
                return door(broker, name, options, key)
    raise LanesError("broker", f"{type(broker).__name__}: expected a broker for NATS, Redis, Kafka or RabbitMQ.")
