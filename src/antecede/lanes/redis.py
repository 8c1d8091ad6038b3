"""Redis Streams: a lane is a stream, a reader is a group on it, and an id ``ms-n`` is the position ``ms << 64 | n``.

Any process may join a group at any time, and Redis does not number deliveries. So a reader is always shared: what has
finished is what Redis says. Everything up to the group's last delivered id is finished, except what is pending. The
last delivered id is read *before* the pending entries: an entry that is delivered in between is then pending, and not
taken for finished. Pending entries that were trimmed from the stream will never come, and do not count.

Redis redelivers nothing by itself. While something waits, the lowest pending entry is claimed here when it has been
idle for ``claim_seconds``; entries that wait here are claimed again in time, so that nobody else takes them.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from antecede.lanes.box import Arrival, Verdict
from antecede.lanes.drive import Delivery, Facts, First, Opening, Order
from antecede.lanes.frontier import HEADER, Key, Stamp

_log = logging.getLogger("antecede.lanes")
_id = re.compile(r"(\d+)-(\d+)")
Claimed = Callable[[bytes, dict[bytes, bytes]], Awaitable[None]]


def position_of(text: bytes | str) -> int:
    """The position of an id."""
    match = _id.fullmatch(text.decode() if isinstance(text, bytes) else text)
    return int(match[1]) << 64 | int(match[2]) if match else 0


def id_of(position: int) -> str:
    return f"{position >> 64}-{position & (1 << 64) - 1}"


class RedisStreams:
    """The streams of one Redis. ``name`` stands for it in the names of lanes."""

    def __init__(self, client: Redis, name: str = "redis", claim_seconds: float = 30.0) -> None:
        # What it answers depends on the version of the protocol and of redis-py; its types do not say how.
        self.client: Any = client
        self.name, self.claim_seconds = name, claim_seconds
        self.alive_seconds = claim_seconds / 3
        self.claims: dict[str, tuple[str, Claimed]] = {}
        """By reader: the name of the consumer that claims, and what to do with a claimed entry."""
        self.header_of: Callable[[dict[bytes, bytes]], str | bytes | None] = lambda fields: fields.get(HEADER.encode())
        """Finds the header in an entry."""
        self._top: dict[str, int] = {}

    def lane(self, stream: str) -> str:
        return f"{self.name}:{stream}"

    def reader(self, stream: str, group: str) -> str:
        return f"{self.name}:{stream} {group}"

    async def ends(self) -> Mapping[str, int]:
        """The last ids of all streams of this database."""
        names = [name async for name in self.client.scan_iter(match="*", count=1000, _type="stream")]
        made = {}
        for name in names:
            lane = self.lane(_text(name))
            made[lane] = await self.end(lane)
        return made

    async def end(self, lane: str) -> int:
        try:
            info = await self.client.xinfo_stream(lane.removeprefix(f"{self.name}:"))
        except ResponseError:
            return -1
        return position_of(info["last-generated-id"])

    async def opening(self, reader: str) -> Opening:
        stream, group = self._parts(reader)
        _, last, pending, _ = await self._state(stream, group)
        self._top[reader] = last
        return Opening(self.lane(stream), last if pending is None else pending - 1, last)

    async def facts(self, reader: str, position: int) -> Facts:
        stream, group = self._parts(reader)
        top = self._top.get(reader, 0)
        end, last, pending, idle = await self._state(stream, group)
        if last < top:
            return Facts(0, back=True)
        if pending is not None:
            if idle > self.claim_seconds and reader in self.claims:
                await self._claim(reader, stream, group, pending)
            return Facts(min(last, pending - 1))
        if last < position:
            # What was deleted before anybody read it will not come.
            following = await self.client.xrange(stream, f"({id_of(last)}", "+", 1)
            last = max(last, position_of(following[0][0]) - 1 if following else end)
        return Facts(last)

    async def first(self, reader: str, position: int) -> First | None:
        stream, _ = self._parts(reader)
        for entry, fields in await self.client.xrange(stream, f"({id_of(position)}", "+", 1):
            return First(position_of(entry), self.header_of(fields), (position_of(entry) >> 64) / 1000)
        return None

    async def _state(self, stream: str, group: str) -> tuple[int, int, int | None, float]:
        """The end of the stream, the last position that was delivered to the group, the lowest pending one, and for
        how many seconds that has been idle. One round trip, in this sequence."""
        start = "-"
        while True:
            questions = self.client.pipeline(transaction=False)
            questions.xinfo_stream(stream).xinfo_groups(stream).xpending_range(stream, group, start, "+", 16)
            info, groups, entries = await questions.execute()
            end = position_of(info["last-generated-id"])
            first = position_of(info["first-entry"][0]) if info["first-entry"] else end + 1
            last = next((position_of(one["last-delivered-id"]) for one in groups if _text(one["name"]) == group), 0)
            for one in entries:
                entry, idle = one["message_id"], one["time_since_delivered"] / 1000
                found = position_of(entry)
                trimmed = found < first
                if not trimmed and idle > self.claim_seconds:
                    trimmed = not await self.client.xrange(stream, entry, entry, 1)
                if not trimmed:
                    return end, last, found, idle
                # Nobody can read it any more.
                await self.client.xack(stream, group, entry)
            if not entries:
                return end, last, None, 0.0

    async def _claim(self, reader: str, stream: str, group: str, position: int) -> None:
        consumer, give = self.claims[reader]
        least = int(self.claim_seconds * 1000)
        for entry, fields in await self.client.xclaim(stream, group, consumer, least, [id_of(position)]):
            await give(entry, fields)

    def _parts(self, reader: str) -> tuple[str, str]:
        stream, _, group = reader.removeprefix(f"{self.name}:").rpartition(" ")
        return stream, group

    def arrival(self, reader: str, entry: bytes | str, stamp: Stamp) -> Arrival:
        """The arrival of an entry. Anybody may claim an entry that waits in a client's buffer, so that it comes for the
        second time before the first; therefore whatever is not new counts as a redelivery."""
        position = position_of(entry)
        again = position <= self._top.get(reader, 0)
        self._top[reader] = max(position, self._top.get(reader, 0))
        return Arrival(reader, position, stamp.causes, stamp.track, again, time=(position >> 64) / 1000)

    async def again(self, arrival: Arrival, entry: bytes, fields: dict[bytes, bytes]) -> None:
        """What the box returns comes again at once. What failed stays pending, and is claimed later."""
        if arrival.verdict is Verdict.RETURN:
            await self.claims[arrival.reader][1](entry, fields)

    async def keep(self, stream: str, group: str, consumer: str, entry: bytes | str) -> None:
        """Nobody else may claim this entry for now: it waits here."""
        await self.client.xclaim(stream, group, consumer, 0, [entry], justid=True)

    # -- redis-py without a framework -------------------------------------------------------------------------------

    async def publish(self, order: Order, stream: str, fields: Mapping[Any, Any], *, key: Key = None) -> int:
        """``XADD``, and return the position."""
        stamp = await order.stamp(key)
        made = {**fields, **order.headers(stamp)}
        try:
            entry = await self.client.xadd(stream, made)
        except BaseException:
            order.unknown()
            raise
        position = position_of(entry)
        order.sent(stamp, self.lane(stream), position)
        return position

    async def consume(
        self,
        order: Order,
        streams: Iterable[str],
        group: str,
        consumer: str,
        handler: Callable[[Mapping[bytes, bytes]], Awaitable[Any]],
        *,
        in_flight: int = 64,
    ) -> None:
        """Read all streams that a service reads, and call the handler for each entry, until the task is cancelled. Of
        each stream, at most ``in_flight`` entries wait or run here."""
        names = list(streams)
        for stream in names:
            with suppress(ResponseError):
                await self.client.xgroup_create(stream, group, "0", mkstream=True)
            order.expect(self.reader(stream, group))
        await order.opened()
        await asyncio.gather(*(self._read(order, stream, group, consumer, handler, in_flight) for stream in names))

    async def _read(
        self,
        order: Order,
        stream: str,
        group: str,
        consumer: str,
        handler: Callable[[Mapping[bytes, bytes]], Awaitable[Any]],
        in_flight: int,
    ) -> None:
        reader = self.reader(stream, group)
        tasks: set[asyncio.Task[None]] = set()

        async def claimed(entry: bytes, fields: dict[bytes, bytes]) -> None:
            task = asyncio.get_running_loop().create_task(self._one(order, reader, consumer, entry, fields, handler))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        self.claims[reader] = (consumer, claimed)
        last = 0.0
        try:
            while True:
                try:
                    if (now := asyncio.get_running_loop().time()) - last > self.claim_seconds / 2:
                        last = now
                        await self._reclaim(stream, group, consumer, claimed)
                    if len(tasks) >= in_flight:
                        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=0.1)
                        continue
                    count = in_flight - len(tasks)
                    for _, entries in await self.client.xreadgroup(group, consumer, {stream: ">"}, count, block=100):
                        for entry, fields in entries:
                            await claimed(entry, fields)
                except (RedisError, OSError) as error:
                    _log.warning("Reading %s: %r", stream, error)
                    await asyncio.sleep(0.2)
        finally:
            for task in tasks:
                task.cancel()

    async def _reclaim(self, stream: str, group: str, consumer: str, give: Claimed) -> None:
        least, start = int(self.claim_seconds * 1000), b"0-0"
        while True:
            start, entries, *_ = await self.client.xautoclaim(stream, group, consumer, least, start, 64)
            for entry, fields in entries:
                await give(entry, fields)
            if start == b"0-0":
                return

    async def _one(
        self,
        order: Order,
        reader: str,
        consumer: str,
        entry: bytes,
        fields: dict[bytes, bytes],
        handler: Callable[[Mapping[bytes, bytes]], Awaitable[Any]],
    ) -> None:
        stream, group = self._parts(reader)
        stamp = order.stamped(fields.get(HEADER.encode()), reader)
        arrival = self.arrival(reader, entry, stamp)
        named = {key.decode(): value for key, value in fields.items()}
        delivery = Delivery(
            arrival,
            named,
            ack=lambda: self.client.xack(stream, group, entry),
            give_back=lambda: self.again(arrival, entry, fields),
            alive=lambda: self.keep(stream, group, consumer, entry),
        )
        try:
            await order.run(delivery, lambda: handler(fields))
        except (RedisError, OSError) as error:
            _log.warning("An entry of %s stays pending: %r", stream, error)


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name
