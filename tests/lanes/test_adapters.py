"""The adapters without a framework, what they refuse, and what is seen of deliveries that wait."""

import asyncio
import itertools
import json
import logging
import random
from typing import Any

import pytest

from helpers.brokers import Broker
from lanes.services import Service
from lanes.test_live import in_thread, until

pytest.importorskip("faststream")
from faststream import Context

from antecede.lanes import decode, drive
from antecede.lanes.faststream import CausalOrder
from antecede.lanes.frontier import LanesError

_numbers = itertools.count()
MISSING = Context("missing")


@pytest.fixture
def nats(brokers: dict[str, Broker], tmp_path_factory: pytest.TempPathFactory) -> Broker:
    return started("nats", brokers, tmp_path_factory)


@pytest.fixture
def redis(brokers: dict[str, Broker], tmp_path_factory: pytest.TempPathFactory) -> Broker:
    return started("redis", brokers, tmp_path_factory)


@pytest.fixture
def kafka(brokers: dict[str, Broker], tmp_path_factory: pytest.TempPathFactory) -> Broker:
    return started("kafka", brokers, tmp_path_factory)


def started(kind: str, brokers: dict[str, Broker], factory: pytest.TempPathFactory) -> Broker:
    from lanes.conftest import running

    return running(kind, brokers, factory)


def name() -> str:
    return f"lane{next(_numbers)}x"


async def refused(service: Service) -> str:
    """The code with which the service is refused when its subscriptions are open."""
    await service.broker.start()
    try:
        with pytest.raises(LanesError) as error:
            await service.order.check(service.broker)
        return error.value.code
    finally:
        await service.broker.stop()


def test_a_consumer_with_fewer_workers_than_messages_in_flight_is_refused(nats: Broker) -> None:
    async def main() -> None:
        service = Service("nats", nats.url, name(), CausalOrder())
        service.on(name(), handler, workers=2, in_flight=8)
        assert await refused(service) == "max-workers"

    in_thread(main)


async def handler(message: Any) -> None:
    pass


def test_a_handler_that_is_acknowledged_first_is_refused(nats: Broker) -> None:
    from faststream import AckPolicy
    from faststream.nats import JStream

    async def main() -> None:
        service = Service("nats", nats.url, name(), CausalOrder())
        lane = name()
        service.broker.subscriber(lane, stream=JStream(lane), ack_policy=AckPolicy.ACK_FIRST)(handler)
        assert await refused(service) == "ack-first"

    in_thread(main)


def test_a_batch_is_refused(nats: Broker) -> None:
    from faststream.nats import JStream, PullSub

    async def main() -> None:
        service = Service("nats", nats.url, name(), CausalOrder())
        lane = name()
        service.broker.subscriber(lane, stream=JStream(lane), durable="d", pull_sub=PullSub(batch=True))(handler)
        assert await refused(service) == "batch"

    in_thread(main)


def test_a_publish_without_a_position_is_refused(nats: Broker) -> None:
    async def main() -> None:
        service = Service("nats", nats.url, name(), CausalOrder())
        lane = name()
        service.on(lane, handler)
        await service.broker.start()
        with pytest.raises(LanesError) as error:
            await service.broker.publish("x", lane)
        assert error.value.code == "core-publish"
        await service.broker.publish("x", "nobody.stores.this")
        await service.broker.stop()

    in_thread(main)


def test_lists_and_channels_of_redis_are_refused(redis: Broker) -> None:
    async def main(**where: str) -> None:
        service = Service("redis", redis.url, name(), CausalOrder())
        service.broker.subscriber(**where)(handler)
        assert await refused(service) == "not-a-stream"

    in_thread(lambda: main(list="jobs"))
    in_thread(lambda: main(channel="news"))


def test_kafka_without_confirmation_or_with_partitions_one_after_the_other_is_refused(kafka: Broker) -> None:
    from faststream import AckPolicy

    async def main() -> None:
        service = Service("kafka", kafka.url, name(), CausalOrder())
        lane = name()
        service.broker.subscriber(lane, group_id="g", ack_policy=AckPolicy.NACK_ON_ERROR)(handler)
        await service.broker.start()
        with pytest.raises(LanesError) as error:
            await service.broker.publish("x", lane, no_confirm=True)
        assert error.value.code == "no-confirm"
        with pytest.raises(LanesError) as error:
            await service.order.check(service.broker)
        assert error.value.code == "max-workers"
        await service.broker.stop()

    in_thread(main)


HOSTILE = [
    "2 a=1",
    "1 =",
    "1 a=-1",
    "1 " + "x" * 60_000,
    "1 " + " ".join(f"l{n}=1" for n in range(1000)),
    "1 {lane}=99999999999999999999",
    "1 nats:never=12",
    "\xff\xfe",
    "1 {lane}=" + "9" * 39,
]


def test_a_hostile_header_neither_stops_a_consumer_nor_lets_it_wait(nats: Broker) -> None:
    got: list[int] = []

    async def main() -> None:
        service = Service("nats", nats.url, name(), CausalOrder())
        lane = name()

        async def handle(message: int) -> None:
            got.append(message)

        service.on(lane, handle)
        await service.broker.start()
        js = service.broker.config.broker_config.connection_state.stream
        for number, header in enumerate(HOSTILE):
            text = header.replace("{lane}", f"nats:{lane}")
            await js.publish(lane, str(number).encode(), headers={"antecede": text, "content-type": "application/json"})
        await service.say(lane, len(HOSTILE))
        await until(lambda: len(got) > len(HOSTILE))
        await service.broker.stop()

    in_thread(main)
    assert got == list(range(len(HOSTILE) + 1))


@pytest.mark.parametrize("overdue", ["deliver", "dead-letter"])
def test_what_waits_is_shown_and_ends_after_the_time_out(
    nats: Broker, overdue: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A message of one lane waits for one of another, whose handler does not end."""
    from prometheus_client import CollectorRegistry

    monkeypatch.setattr(drive, "WARN_SECONDS", 0.2)
    registry = CollectorRegistry()
    got: list[str] = []
    seen: list[Any] = []

    async def main() -> None:
        order = CausalOrder(timeout=1.0, overdue=overdue, metrics=registry)
        reader = Service("nats", nats.url, name(), order)
        writer = Service("nats", nats.url, name(), CausalOrder())
        first, second = name(), name()
        release = asyncio.Event()

        async def slow(message: str) -> None:
            await release.wait()
            got.append(message)

        async def fast(message: str, missing: Any = MISSING) -> None:
            got.append(message)
            assert (f"nats:{first}", 1) in missing

        reader.on(first, slow)
        reader.on(second, fast)
        await reader.broker.start()
        await writer.broker.start()
        await writer.say(first, "cause")
        await writer.say(second, "effect")
        await until(lambda: any((f"nats:{first}", 1) in one.missing for one in order.waiting()), 5)
        seen.extend(order.waiting())
        await asyncio.sleep(1.6)
        release.set()
        await until(lambda: "cause" in got, 5)
        await asyncio.sleep(0.1)
        for one in (reader, writer):
            await one.broker.stop()
        assert any((f"nats:{first}", 1) in one.missing for one in seen)

    with caplog.at_level(logging.WARNING, "antecede.lanes"):
        in_thread(main)
    assert any("nats:" in record.getMessage() for record in caplog.records)
    assert got == (["effect", "cause"] if overdue == "deliver" else ["cause"])
    assert registry.get_sample_value("antecede_lanes_overdue_total") == 1
    assert registry.get_sample_value("antecede_lanes_held") == 0
    assert registry.get_sample_value("antecede_lanes_header_bytes_count") == 0


def test_records_of_one_partition_run_at_the_same_time_and_keys_stay_in_sequence(kafka: Broker) -> None:
    """The adapter for aiokafka: a failed record is handled again before the next one of its key, and what is committed
    is never above what has finished."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    from antecede.lanes.kafka import Kafka

    got: dict[int, list[int]] = {}
    running: set[int] = set()
    most = 0
    failed: set[int] = set()
    chance = random.Random(3)
    committed: list[tuple[int, int]] = []
    count, keys = 120, 6

    async def main() -> None:
        nonlocal most
        topic = name()
        producer = AIOKafkaProducer(bootstrap_servers=kafka.url, acks="all")
        await producer.start()
        consumer = AIOKafkaConsumer(
            bootstrap_servers=kafka.url, group_id=topic, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        await consumer.start()
        consumer.assign([TopicPartition(topic, 0)])
        source = Kafka()
        source.lookup = consumer
        source.fixed.add(consumer)
        order = drive.Order(source, scope="key", within="key")
        for number in range(count):
            await source.publish(order, producer, topic, json.dumps(number).encode(), key=number % keys, partition=0)

        async def handle(record: Any) -> None:
            nonlocal most
            number = json.loads(record.value)
            running.add(number)
            most = max(most, len(running))
            await asyncio.sleep(chance.uniform(0, 0.01))
            running.discard(number)
            if number in (13, 40) and number not in failed:
                failed.add(number)
                raise ValueError(number)
            got.setdefault(number % keys, []).append(number)
            done = sorted(n for several in got.values() for n in several)
            prefix = next((n for n in range(count) if n >= len(done) or done[n] != n), count)
            committed.append((await consumer.committed(TopicPartition(topic, 0)) or 0, prefix))

        task = asyncio.ensure_future(source.consume(order, consumer, topic, handle))
        await until(lambda: sum(map(len, got.values())) >= count)
        await asyncio.sleep(0.2)
        committed.append((await consumer.committed(TopicPartition(topic, 0)), count))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await consumer.stop()
        await producer.stop()

    in_thread(main)
    assert got == {key: list(range(key, count, keys)) for key in range(keys)}
    assert failed == {13, 40}
    assert most > 1
    assert all(offset <= prefix for offset, prefix in committed)
    assert committed[-1] == (count, count)


def test_an_entry_that_was_trimmed_or_deleted_is_not_waited_for(redis: Broker) -> None:
    from redis.asyncio import Redis

    from antecede.lanes.redis import RedisStreams

    got: list[bytes] = []

    async def main() -> None:
        client = Redis.from_url(redis.url)
        source = RedisStreams(client, claim_seconds=0.3)
        writer, order = drive.Order(source), drive.Order(source)
        first, second, group = name(), name(), name()
        await client.xgroup_create(first, group, "0", mkstream=True)
        for number in range(6):
            await source.publish(writer, first, {"n": number})
        # Two are pending with somebody who is gone, and lose their content; the last one is deleted unread.
        await client.xreadgroup(group, "gone", {first: ">"}, 2)
        entries = [entry for entry, _ in await client.xrange(first)]
        await client.xtrim(first, minid=entries[1], approximate=False)
        await client.xdel(first, entries[1], entries[5])
        await source.publish(writer, second, {"n": "effect"})

        async def handle(fields: Any) -> None:
            got.append(fields[b"n"])

        task = asyncio.ensure_future(source.consume(order, (second, first), group, "me", handle))
        await until(lambda: len(got) >= 4)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.aclose()

    in_thread(main)
    assert got == [b"2", b"3", b"4", b"effect"]


def test_the_first_unfinished_message_is_looked_up(nats: Broker, redis: Broker) -> None:
    """Its header tells whether it is older than a message that waits for it."""

    async def main() -> None:
        import nats as client
        from nats.js.api import ConsumerConfig, StreamConfig
        from redis.asyncio import Redis

        from antecede.lanes.nats import JetStream
        from antecede.lanes.redis import RedisStreams

        lane = name()
        connection = await client.connect(nats.url)
        js = connection.jetstream()
        await js.add_stream(StreamConfig(lane, subjects=[f"{lane}.*"]))
        await js.add_consumer(lane, ConsumerConfig(durable_name="one", filter_subject=f"{lane}.b"))
        for subject in "ab":
            await js.publish(f"{lane}.{subject}", b"", headers={"antecede": f"1 {subject}=7"})
        source = JetStream(js)
        first = await source.first(source.reader(lane, "one"), 0)
        assert first is not None
        assert (first.position, first.header) == (2, "1 b=7")
        assert first.time > 1e9
        assert await source.first(source.reader(lane, "one"), 2) is None
        await connection.close()

        plain = Redis.from_url(redis.url)
        await plain.xadd(lane, {"antecede": "1 a=1"})
        entry = await plain.xadd(lane, {"antecede": "1 b=7"})
        streams = RedisStreams(plain)
        found = await streams.first(streams.reader(lane, "group"), await streams.end(streams.lane(lane)) - 1)
        assert found is not None
        assert found.header == b"1 b=7"
        assert found.time == int(entry.split(b"-")[0]) / 1000
        # FastStream packs the headers.
        service = Service("redis", redis.url, name(), CausalOrder())
        await service.broker.start()
        other = name()
        await service.say(other, 1)
        found = await service.order._bound(None).order.source.first(streams.reader(other, "group"), 0)
        assert found is not None
        assert found.header
        assert decode(found.header).problem is None
        await service.broker.stop()
        await plain.aclose()

    in_thread(main)


def test_a_process_that_only_writes_learns_the_ends_of_its_topics(kafka: Broker) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    from antecede.lanes.kafka import Kafka

    async def main() -> None:
        topic = name()
        producer = AIOKafkaProducer(bootstrap_servers=kafka.url, acks="all")
        lookup = AIOKafkaConsumer(bootstrap_servers=kafka.url)
        await producer.start()
        await lookup.start()
        for _ in range(3):
            await producer.send_and_wait(topic, b"x", partition=0)
        source = Kafka()
        source.lookup = lookup
        order = drive.Order(source)
        await source.publish(order, producer, topic, b"y", partition=1)
        assert order.context.token() == f"1 kafka:{topic}/0=3 kafka:{topic}/1=1 kafka:{topic}/2=0 kafka:{topic}/3=0"
        assert await source.end(f"kafka:{topic}/0") == 3
        assert await source.end("kafka:nobody-made-this/0") == -1
        assert "nobody-made-this" not in await lookup.topics()
        await producer.stop()
        await lookup.stop()

    in_thread(main)


def test_ends_of_several_new_topics_can_be_asked_at_the_same_time(kafka: Broker) -> None:
    """A client of aiokafka forgets a topic that it is told of while it asks about another one."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    from antecede.lanes.kafka import Kafka

    async def main() -> None:
        topics = [name() for _ in range(5)]
        source = Kafka()
        source.lookup = AIOKafkaConsumer(bootstrap_servers=kafka.url)
        await source.lookup.start()
        producer = AIOKafkaProducer(bootstrap_servers=kafka.url, acks="all")
        await producer.start()
        for topic in topics:
            await producer.send_and_wait(topic, b"", partition=0)
        assert await asyncio.gather(*(source.end(f"kafka:{topic}/0") for topic in topics)) == [1] * 5
        await producer.stop()
        await source.lookup.stop()

    in_thread(main)


def test_questions_about_a_group_do_not_wait_for_its_fetches(kafka: Broker) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    from antecede.lanes.kafka import Kafka

    async def main() -> None:
        topic = name()
        where = TopicPartition(topic, 0)
        producer = AIOKafkaProducer(bootstrap_servers=kafka.url, acks="all")
        await producer.start()
        await producer.send_and_wait(topic, b"", partition=0)
        source = Kafka()
        source.lookup = AIOKafkaConsumer(bootstrap_servers=kafka.url)
        await source.lookup.start()
        consumer = AIOKafkaConsumer(
            bootstrap_servers=kafka.url,
            group_id=topic,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=8000,
        )
        source.consumers[consumer] = topic
        await consumer.start()
        consumer.assign([where])
        await consumer.getone()
        await consumer.commit({where: 1})
        # Now the next fetch waits at the broker.
        assert not await consumer.getmany(timeout_ms=200)
        async with asyncio.timeout(4):
            assert (await source.facts(source.reader(where, topic), 1)).floor == 1
        for client in (producer, source.lookup, consumer):
            await client.stop()

    in_thread(main)


def test_records_that_came_with_a_new_partition_are_not_taken_for_finished(kafka: Broker) -> None:
    """A rebalance ends within the fetch: the position is beyond the first records before the partition is opened."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    from antecede.lanes.kafka import Kafka

    got: list[bytes] = []

    async def main() -> None:
        topic = name()
        where = TopicPartition(topic, 0)
        producer = AIOKafkaProducer(bootstrap_servers=kafka.url, acks="all")
        await producer.start()
        for number in range(4):
            await producer.send_and_wait(topic, str(number).encode(), partition=0)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=kafka.url, group_id=topic, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        await consumer.start()
        source = Kafka()
        source.fixed.add(consumer)
        fetch = consumer.getmany

        async def late(**options: Any) -> Any:
            if not consumer.assignment():
                consumer.assign([where])
                options["timeout_ms"] = 5000
            return await fetch(**options)

        consumer.getmany = late

        async def handle(record: Any) -> None:
            got.append(record.value)

        task = asyncio.ensure_future(source.consume(drive.Order(source), consumer, topic, handle))
        await until(lambda: len(got) >= 4, 6)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await consumer.stop()
        await producer.stop()

    in_thread(main)
    assert got == [b"0", b"1", b"2", b"3"]
