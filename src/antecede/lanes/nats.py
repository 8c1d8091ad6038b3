"""NATS JetStream: a lane is a stream, a reader is a consumer of it, and positions are the sequences of the stream.

JetStream numbers the deliveries of a consumer without gaps. So a sole reader (a push consumer without a queue group)
knows from its own numbers that nothing was lost on the way. What a consumer has finished follows from its
acknowledgement floor. The floor of a *filtered* consumer lags behind, because it stays at the last message of the
filter; so the next message of the filter is looked up: everything before it is finished.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerInfo, StreamInfo
from nats.js.errors import NotFoundError

from antecede.lanes.box import Arrival
from antecede.lanes.drive import Delivery, Facts, First, Opening, Order
from antecede.lanes.frontier import HEADER, Key, LanesError, Stamp

PAGE = 256


class JetStream:
    """The streams of one NATS system. ``name`` stands for the system in the names of lanes."""

    alive_seconds = 5.0

    def __init__(self, js: JetStreamContext, name: str = "nats") -> None:
        self.js, self.name = js, name
        self._homes: dict[str, bool] = {}
        self._first: dict[str, tuple[int, int]] = {}
        self._known: set[str] = set()

    def reader(self, stream: str, consumer: str) -> str:
        return f"{self.name}:{stream} {consumer}"

    def lane(self, stream: str) -> str:
        return f"{self.name}:{stream}"

    async def ends(self) -> Mapping[str, int]:
        """The last sequences of all streams: of all pages, and no page may change between them."""
        ends: dict[str, int] = {}
        offset = 0
        while True:
            page = await self.js.streams_info(offset=offset)
            ends |= {self.lane(one.config.name or ""): one.state.last_seq for one in page}
            offset += len(page)
            if len(page) < PAGE:
                return ends

    async def end(self, lane: str) -> int:
        stream = lane.removeprefix(f"{self.name}:")
        if stream == lane:
            return -1
        try:
            return (await self.js.stream_info(stream)).state.last_seq
        except NotFoundError:
            return -1

    async def opening(self, reader: str) -> Opening:
        stream, consumer = self._parts(reader)
        before, info = await self._state(stream, consumer)
        _check(info)
        if info.config.ack_wait:
            self.alive_seconds = min(self.alive_seconds, info.config.ack_wait / 3)
        delivered = (info.delivered.stream_seq, info.delivered.consumer_seq) if info.delivered else (0, 0)
        sole = bool(info.config.deliver_subject) and not info.config.deliver_group
        if sole and reader in self._first:
            # From its first delivery on, everything comes here.
            delivered = self._first.pop(reader)
        return Opening(self.lane(stream), await self._floor(before, info), delivered[0], delivered[1], sole)

    async def facts(self, reader: str, position: int) -> Facts:
        stream, consumer = self._parts(reader)
        before, info = await self._state(stream, consumer)
        delivered = info.delivered
        if delivered is None:
            return Facts(await self._floor(before, info, position))
        quiet = delivered.stream_seq if info.num_pending else max(delivered.stream_seq, before.state.last_seq)
        return Facts(await self._floor(before, info, position), quiet, delivered.consumer_seq)

    async def first(self, reader: str, position: int) -> First | None:
        stream, consumer = self._parts(reader)
        config = (await self.js.consumer_info(stream, consumer)).config
        found = []
        for subject in config.filter_subjects or [config.filter_subject or ">"]:
            with suppress(NotFoundError):
                found.append(await self.js.get_msg(stream, seq=position + 1, subject=subject, next=True))
        one = min(found, key=lambda one: one.seq or 0, default=None)
        if one is None:
            return None
        return First(one.seq or 0, (one.headers or {}).get(HEADER), one.time.timestamp() if one.time else 0.0)

    async def _state(self, stream: str, consumer: str) -> tuple[StreamInfo, ConsumerInfo]:
        """The stream is asked first: whatever it has by then, the consumer's answer covers."""
        before = await self.js.stream_info(stream)
        return before, await self.js.consumer_info(stream, consumer)

    async def _floor(self, before: StreamInfo, info: ConsumerInfo, wanted: int | None = None) -> int:
        last = before.state.last_seq
        if not info.num_pending and not info.num_ack_pending:
            return last
        # What was deleted or expired will not come.
        floor = max(info.ack_floor.stream_seq if info.ack_floor else 0, before.state.first_seq - 1)
        if wanted is not None and floor >= wanted:
            return floor
        several = info.config.filter_subjects or [info.config.filter_subject or ">"]
        following = [await self._next(info.stream_name, floor + 1, one) for one in several]
        return max(floor, min([last, *(one - 1 for one in following if one is not None)]))

    async def _next(self, stream: str, position: int, subject: str) -> int | None:
        try:
            return (await self.js.get_msg(stream, seq=position, subject=subject, next=True)).seq
        except NotFoundError:
            return None

    def _parts(self, reader: str) -> tuple[str, str]:
        stream, _, consumer = reader.removeprefix(f"{self.name}:").partition(" ")
        return stream, consumer

    async def stored(self, subject: str) -> bool:
        """Whether some stream stores what is published to this subject."""
        if subject not in self._homes:
            if len(self._homes) > 4096:
                self._homes.clear()
            try:
                await self.js.find_stream_name_by_subject(subject)
                self._homes[subject] = True
            except NotFoundError:
                self._homes[subject] = False
        return self._homes[subject]

    # -- nats-py without a framework --------------------------------------------------------------------------------

    def arrival(self, msg: Msg, stamp: Stamp) -> Arrival:
        """The arrival of a message of a stream."""
        meta = msg.metadata
        reader = self.reader(meta.stream, meta.consumer)
        if reader not in self._known and meta.num_delivered == 1:
            self._first[reader] = (meta.sequence.stream - 1, meta.sequence.consumer - 1)
        self._known.add(reader)
        return Arrival(
            reader,
            meta.sequence.stream,
            stamp.causes,
            stamp.track,
            redelivered=meta.num_delivered > 1,
            sequence=meta.sequence.consumer,
            time=meta.timestamp.timestamp(),
        )

    async def publish(
        self,
        order: Order,
        subject: str,
        payload: bytes = b"",
        *,
        key: Key = None,
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> int:
        """Publish through JetStream, and return the position."""
        stamp = await order.stamp(key)
        made = {**(headers or {}), **order.headers(stamp)}
        try:
            ack = await self.js.publish(subject, payload, headers=made, **more)
        except BaseException:
            order.unknown()
            raise
        order.sent(stamp, self.lane(ack.stream), ack.seq)
        return ack.seq

    def callback(
        self,
        order: Order,
        handler: Callable[[Msg], Awaitable[Any]],
        spawn: Callable[[Any], Any] = asyncio.ensure_future,
    ) -> Callable[[Msg], Awaitable[None]]:
        """A callback for ``js.subscribe(…, cb=…, manual_ack=True)``. It returns at once, so that the subscription can
        bring whatever the broker has in flight. Name all consumers of the service with ``order.expect`` before."""
        tasks: set[asyncio.Future[None]] = set()

        async def one(msg: Msg) -> None:
            arrival = self.arrival(msg, order.stamped((msg.headers or {}).get(HEADER), msg.subject))
            order.expect(arrival.reader)
            await order.opened()
            delivery = Delivery(arrival, msg.headers or {}, msg.ack, msg.nak, msg.in_progress)
            await order.run(delivery, lambda: handler(msg))

        async def callback(msg: Msg) -> None:
            task = asyncio.ensure_future(one(msg))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        return callback


def _check(info: ConsumerInfo) -> None:
    if info.config.ack_policy != AckPolicy.EXPLICIT:
        raise LanesError(
            "acknowledgements", f"Consumer {info.name} of {info.stream_name} does not acknowledge each message."
        )
