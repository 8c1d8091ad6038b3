"""Kafka: a lane is a partition, a reader is a group on it, and the message at offset ``n`` has position ``n + 1``.

So a position is also the offset to commit when everything up to there has finished. A group has one member for each
partition: what is finished of the partitions assigned to this process, it knows; of the others, the group's committed
offset tells. After a rebalance, a partition is opened again with the committed offset. If a group has committed nothing
yet, its member commits where it starts, so that the others know.

Commits are *finished + 1*, for one partition only. A commit without offsets, which covers whatever was fetched, would
lose messages that are held.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError

from antecede.lanes.box import Arrival, Verdict
from antecede.lanes.drive import Delivery, Facts, Opening, Order
from antecede.lanes.frontier import HEADER, Key, LanesError, Stamp

_log = logging.getLogger("antecede.lanes")

Record = Any
"""aiokafka's ``ConsumerRecord``."""


class Kafka:
    """The partitions of one cluster. ``name`` stands for the cluster in the names of lanes."""

    # A consumer tells its broker itself that it lives.
    alive_seconds = 1e9

    def __init__(self, name: str = "kafka") -> None:
        self.name = name
        self.consumers: dict[AIOKafkaConsumer, str | None] = {}
        """With their groups."""
        self.fixed: set[AIOKafkaConsumer] = set()
        """Consumers with partitions by ``assign``: their groups read no others."""
        self.written: set[str] = set()
        """Topics to which this process publishes."""
        self.lookup: AIOKafkaConsumer | None = None
        """A consumer that reads nothing, for questions about the ends of lanes. The broker answers others behind their
        fetches only, which wait for half a second."""
        self._owners: dict[str, AIOKafkaConsumer | None] = {}
        self._first: dict[str, int] = {}
        """The first offset of each partition that came here: if nobody has committed, nothing before it concerns us."""
        self._committed: dict[str, int] = {}
        self._rewound: set[str] = set()

    def lane(self, where: TopicPartition) -> str:
        return f"{self.name}:{where.topic}/{where.partition}"

    def reader(self, where: TopicPartition, group: str | None) -> str:
        return f"{self.lane(where)} {group or ''}"

    def readers(self) -> list[str]:
        """All partitions of all topics that our groups read, whoever of them reads it."""
        found: dict[str, None] = {}
        for consumer, group in self.consumers.items():
            for topic in () if consumer in self.fixed else consumer.subscription():
                for number in sorted(consumer.partitions_for_topic(topic) or ()):
                    found[self.reader(TopicPartition(topic, number), group)] = None
            for where in consumer.assignment():
                found[self.reader(where, group)] = None
        return list(found)

    async def ends(self) -> Mapping[str, int]:
        made: dict[str, int] = {}
        for topic in {self._parts(reader)[0].topic for reader in self.readers()} | self.written:
            made |= await self._ends_of(topic)
        return made

    async def end(self, lane: str) -> int:
        topic, _, partition = lane.removeprefix(f"{self.name}:").rpartition("/")
        if not lane.startswith(f"{self.name}:") or not partition.isdigit():
            return -1
        return (await self._ends_of(topic)).get(lane, -1)

    async def _ends_of(self, topic: str) -> dict[str, int]:
        """The ends of all partitions of a topic, from their leaders, also of transactions that are still open."""
        consumer = self.lookup or next(iter(self.consumers), None)
        if consumer is None:
            raise LanesError("no-consumer", "Kafka tells ends to consumers only: set `lookup` to a consumer.")
        numbers = consumer.partitions_for_topic(topic)
        if numbers is None:
            # A consumer has no public way to ask about topics of others; and asking for one by name may make it.
            numbers = (await consumer._client.fetch_all_metadata()).partitions_for_topic(topic)
        if not numbers:
            return {}
        found = await consumer.end_offsets([TopicPartition(topic, number) for number in numbers])
        return {self.lane(where): int(offset) for where, offset in found.items()}

    async def opening(self, reader: str) -> Opening:
        where, group = self._parts(reader)
        owner = self._owners[reader] = self._owner(where, group)
        self._rewound.discard(reader)
        self._committed.pop(reader, None)
        committed = None if group is None else await self._any(group).committed(where)
        if owner is None:
            return Opening(self.lane(where), committed or 0)
        position = int(await owner.position(where))
        if committed is None:
            committed = min(position, self._first.get(reader, position))
            if group is not None:
                await owner.commit({where: committed})
        if position > committed and group is not None:
            # What was fetched and is not finished comes again, so that nothing is missing here.
            owner.seek(where, committed)
            self._rewound.add(reader)
            position = committed
        return Opening(self.lane(where), committed, position, sole=True)

    async def first(self, reader: str, position: int) -> None:
        return None

    async def facts(self, reader: str, position: int) -> Facts:
        where, group = self._parts(reader)
        if group is None:
            return Facts(0)
        consumer = self._any(group)
        # What retention has removed will not come.
        removed = (await (self.lookup or consumer).beginning_offsets([where]))[where]
        return Facts(max(int(removed), await consumer.committed(where) or 0))

    def _any(self, group: str | None) -> AIOKafkaConsumer:
        return next(consumer for consumer, other in self.consumers.items() if other == group)

    def _owner(self, where: TopicPartition, group: str | None) -> AIOKafkaConsumer | None:
        return next((c for c, other in self.consumers.items() if other == group and where in c.assignment()), None)

    def moved(self) -> list[str]:
        """The readers whose partition came or went since they were opened: they must be closed."""
        found = [reader for reader, owner in self._owners.items() if self._owner(*self._parts(reader)) is not owner]
        for reader in found:
            del self._owners[reader]
        return found

    def _parts(self, reader: str) -> tuple[TopicPartition, str | None]:
        lane, _, group = reader.removeprefix(f"{self.name}:").rpartition(" ")
        topic, _, partition = lane.rpartition("/")
        return TopicPartition(topic, int(partition)), group or None

    def arrival(self, record: Record, group: str | None, stamp: Stamp) -> Arrival:
        reader = self.reader(TopicPartition(record.topic, record.partition), group)
        self._first.setdefault(reader, record.offset)
        again, time = reader in self._rewound, record.timestamp / 1000
        return Arrival(reader, record.offset + 1, stamp.causes, stamp.track, redelivered=again, time=time)

    async def give_back(self, consumer: AIOKafkaConsumer, where: TopicPartition, offset: int) -> None:
        """Fetch this record again, if the partition is still ours."""
        if where in consumer.assignment() and await consumer.position(where) > offset:
            consumer.seek(where, offset)

    def committer(self, consumer: AIOKafkaConsumer, arrival: Arrival) -> "Committer":
        """A consumer as the handler of one message should see it."""
        return Committer(self, consumer, arrival)

    def sent(self, order: Order, stamp: Stamp, found: Any) -> int:
        """Take the metadata of an acknowledged record, and return its position."""
        if found.offset < 0:
            order.unknown()
            raise LanesError("acks", "The broker gave no offset: the producer needs acks='all'.")
        order.sent(stamp, self.lane(TopicPartition(found.topic, found.partition)), found.offset + 1)
        return int(found.offset) + 1

    # -- aiokafka without a framework -------------------------------------------------------------------------------

    async def publish(
        self,
        order: Order,
        producer: AIOKafkaProducer,
        topic: str,
        value: bytes | None,
        *,
        key: Key = None,
        headers: Mapping[str, bytes] | None = None,
        **more: Any,
    ) -> int:
        """Send, and return the position. The producer must have ``acks="all"``."""
        self.written.add(topic)
        stamp = await order.stamp(key)
        made = {**(headers or {}), **{name: text.encode() for name, text in order.headers(stamp).items()}}
        raw = key if key is None or isinstance(key, bytes) else str(key).encode()
        try:
            found = await producer.send_and_wait(topic, value, key=raw, headers=list(made.items()), **more)
        except BaseException:
            order.unknown()
            raise
        return self.sent(order, stamp, found)

    async def consume(
        self,
        order: Order,
        consumer: AIOKafkaConsumer,
        group: str | None,
        handler: Callable[[Record], Awaitable[Any]],
        *,
        in_flight: int = 64,
        retry_seconds: float = 0.1,
    ) -> None:
        """Read the partitions of a consumer that has started (``enable_auto_commit=False``), and call the handler for
        each record, until the task is cancelled. Of each partition, at most ``in_flight`` records wait or run here. A
        handler that fails is called again: Kafka itself redelivers nothing before a rebalance."""
        self.consumers[consumer] = group
        busy: dict[TopicPartition, set[asyncio.Task[None]]] = {}

        async def one(record: Record) -> None:
            headers, failed, where = dict(record.headers), False, TopicPartition(record.topic, record.partition)
            while not failed or where in consumer.assignment():
                arrival = self.arrival(record, group, order.stamped(headers.get(HEADER), record.topic))
                arrival.redelivered |= failed
                try:
                    verdict = await order.run(Delivery(arrival, headers), lambda: handler(record))
                    if verdict is Verdict.RETURN:
                        await self.give_back(consumer, where, record.offset)
                    return
                except Exception as error:
                    _log.warning("A handler of %s failed: %r", arrival.reader, error)
                    failed = True
                    await asyncio.sleep(retry_seconds)

        try:
            while True:
                await self.open(order)
                full = {where for where, tasks in busy.items() if len(tasks) >= in_flight} & consumer.assignment()
                consumer.pause(*full)
                found = await consumer.getmany(timeout_ms=20, max_records=in_flight)
                consumer.resume(*(full & consumer.assignment()))
                for where, records in found.items():
                    # Before a new partition is opened: its position is beyond these records already.
                    self._first.setdefault(self.reader(where, group), records[0].offset)
                await self.open(order)
                for where, records in found.items():
                    tasks = busy.setdefault(where, set())
                    for record in records:
                        task = asyncio.get_running_loop().create_task(one(record))
                        tasks.add(task)
                        task.add_done_callback(tasks.discard)
                await self.commit(order, consumer)
        finally:
            for task in [task for tasks in busy.values() for task in tasks]:
                task.cancel()

    async def open(self, order: Order) -> None:
        """Open the readers of all partitions; those that came from or went to another member, again."""
        while True:
            for reader in self.moved():
                order.close(reader)
            try:
                for reader in self.readers():
                    await order.open(reader)
                return
            except KafkaError as error:
                _log.info("A partition cannot be opened yet: %r", error)
                await asyncio.sleep(0.05)

    async def commit(self, order: Order, consumer: AIOKafkaConsumer) -> None:
        """Commit what has finished in the partitions of this consumer."""
        made = {}
        for reader, owner in self._owners.items():
            if owner is consumer and order.is_open(reader):
                finished = order.box.finished(reader)
                if finished > self._committed.get(reader, 0):
                    made[reader] = finished
        if made:
            # Without an answer it is committed again: the others of the group wait for it.
            with suppress(KafkaError):
                await consumer.commit({self._parts(reader)[0]: finished for reader, finished in made.items()})
                self._committed |= made

    def listener(self, order: Order, consumer: AIOKafkaConsumer) -> ConsumerRebalanceListener:
        """For ``consumer.subscribe(…, listener=…)``: before a partition goes, what has finished is committed, and the
        handlers that run are awaited."""
        return _Listener(self, order, consumer)


class Committer:
    """The consumer of one message of FastStream: it commits this message only, not whatever was fetched."""

    def __init__(self, kafka: Kafka, consumer: AIOKafkaConsumer, arrival: Arrival) -> None:
        self._kafka, self._consumer, self._arrival = kafka, consumer, arrival
        self._where = kafka._parts(arrival.reader)[0]

    async def commit(self) -> None:
        if self._where in self._consumer.assignment():
            await self._consumer.commit({self._where: self._arrival.position})

    def seek(self, partition: TopicPartition, offset: int) -> None:
        if partition in self._consumer.assignment():
            # What comes now came before.
            self._kafka._rewound.add(self._arrival.reader)
            self._consumer.seek(partition, offset)

    async def give_back(self) -> None:
        if self._arrival.verdict is Verdict.RETURN:
            await self._kafka.give_back(self._consumer, self._where, self._arrival.position - 1)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, kafka: Kafka, order: Order, consumer: AIOKafkaConsumer) -> None:
        self._kafka, self._order, self._consumer = kafka, order, consumer

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        await self._kafka.commit(self._order, self._consumer)
        for reader in [r for r, owner in self._kafka._owners.items() if owner is self._consumer]:
            del self._kafka._owners[reader]
            self._order.close(reader)
        await self._order.idle()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        pass
