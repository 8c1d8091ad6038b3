"""Services that are killed all the time, and brokers that are killed now and then: ``python -m lanes.deadly KIND FOLDER
KILLS BROKER_KILLS [without]`` prints what an oracle found, which knows no frontiers.

An asker writes questions, two instances of an answerer share a group and answer each, and two instances of a reader
share a group and read both. Each message names its direct causes: what its author had sent or was handling. A start is
*late* if one of them had not been finished by anybody of the readers. What was acknowledged to its author and not
handled by the readers is *lost*; if they made no progress for long, it is *stuck*.

Services are forked from this process, which has imported everything, so that hundreds of kills take minutes.
"""

import asyncio
import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from antecede.lanes.drive import Order
from helpers.brokers import Broker

ROLES = ("asker1", "asker2", "answerer1", "answerer2", "reader1", "reader2")
REDELIVERY_SECONDS = 0.6
Handler = Callable[[dict[str, Any]], Awaitable[None]]


class Log:
    """Events of one process, whole lines at once: they survive a kill."""

    def __init__(self, folder: Path, role: str) -> None:
        self._file = os.open(folder / f"{role}.{os.getpid()}.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def write(self, kind: str, message: dict[str, Any]) -> None:
        os.write(self._file, json.dumps([kind, time.monotonic_ns(), message]).encode() + b"\n")


class Link:
    """One process on one broker: raw clients and our adapters."""

    def __init__(self, kind: str, url: str, group: str, instance: str, ordered: bool) -> None:
        self.kind, self.url, self.group, self.instance, self.ordered = kind, url, group, instance, ordered

    async def open(self) -> None:
        if self.kind == "nats":
            import nats

            from antecede.lanes.nats import JetStream

            quiet = {"error_cb": _ignore, "max_reconnect_attempts": -1, "reconnect_time_wait": 0.05}
            self.client: Any = await nats.connect(self.url, **quiet)
            self.js = self.client.jetstream(timeout=2)
            self.source: Any = JetStream(self.js)
        elif self.kind == "redis":
            from redis.asyncio import Redis

            from antecede.lanes.redis import RedisStreams

            self.client = Redis.from_url(self.url)
            self.source = RedisStreams(self.client, claim_seconds=REDELIVERY_SECONDS)
        elif self.kind == "rabbitmq":
            import aio_pika

            from antecede.lanes.rabbitmq import Queues

            self.client = await aio_pika.connect_robust(self.url, reconnect_interval=0.2)
            self.channel = await self.client.channel()
            await self.channel.set_qos(32)
            topic = aio_pika.ExchangeType.TOPIC
            self.exchange = await self.channel.declare_exchange("lanes", topic, durable=True)
            self.source = Queues(gone_seconds=2.0)
        else:
            from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

            from antecede.lanes.kafka import Kafka

            self.client = AIOKafkaProducer(bootstrap_servers=self.url, acks="all", request_timeout_ms=3000)
            await self.client.start()
            self.source = Kafka()
            self.source.lookup = AIOKafkaConsumer(bootstrap_servers=self.url)
            await self.source.lookup.start()
        self.order = Order(self.source)

    async def publish(self, lane: str, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        if self.kind == "nats":
            await self.source.publish(self.order, lane, data, timeout=5)
        elif self.kind == "redis":
            await self.source.publish(self.order, lane, {"body": data})
        elif self.kind == "kafka":
            await self.source.publish(self.order, self.client, lane, data, partition=body["number"] % 2)
        else:
            import aio_pika

            message = aio_pika.Message(data, message_id=body["id"], delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await self.exchange.publish(message, lane, timeout=5)

    async def consume(self, lanes: tuple[str, ...], handler: Handler) -> None:
        if self.kind == "nats":
            await self._nats(lanes, handler)
        elif self.kind == "redis":

            async def entry(fields: Any) -> None:
                await handler(json.loads(fields[b"body"]))

            await self.source.consume(self.order, lanes, self.group, self.instance, entry, in_flight=32)
        elif self.kind == "kafka":
            await self._kafka(lanes, handler)
        else:
            queue = await self.channel.declare_queue(
                self.group, durable=True, arguments={"x-single-active-consumer": True}
            )
            for lane in lanes:
                await queue.bind(self.exchange, lane)

            async def message(one: Any) -> None:
                await handler(json.loads(one.body))

            async def plain(one: Any) -> None:
                async with one.process(requeue=True):
                    await message(one)

            await queue.consume(self.source.callback(self.order, self.group, message) if self.ordered else plain)

    async def _nats(self, lanes: tuple[str, ...], handler: Handler) -> None:
        from nats.js.api import ConsumerConfig

        tasks: set[asyncio.Future[None]] = set()

        async def message(one: Any) -> None:
            await handler(json.loads(one.data))

        async def plain(one: Any) -> None:
            async def run() -> None:
                await message(one)
                await one.ack()

            tasks.add(task := asyncio.ensure_future(run()))
            task.add_done_callback(tasks.discard)

        callback = self.source.callback(self.order, message) if self.ordered else plain
        config = ConsumerConfig(max_ack_pending=32, ack_wait=REDELIVERY_SECONDS)
        names = {lane: f"{self.group}-{lane}" for lane in lanes}
        self.order.expect(*(self.source.reader(lane, name) for lane, name in names.items()))
        for lane, name in names.items():
            await self.js.subscribe(
                lane, queue=name, durable=name, stream=lane, cb=callback, manual_ack=True, config=config
            )

    async def _kafka(self, lanes: tuple[str, ...], handler: Handler) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

        class Slow(RoundRobinPartitionAssignor):  # type: ignore[misc]
            """The mock cluster refuses members that answer after the leader."""

            @classmethod
            def assign(cls, cluster: Any, members: Any) -> Any:
                time.sleep(0.15)
                return RoundRobinPartitionAssignor.assign(cluster, members)

        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.url,
            group_id=self.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            # The mock cluster lets three seconds pass before a group begins; members must live longer.
            session_timeout_ms=5000,
            heartbeat_interval_ms=200,
            partition_assignment_strategy=[Slow],
        )
        consumer.subscribe(list(lanes), listener=self.source.listener(self.order, consumer))
        await consumer.start()

        async def record(one: Any) -> None:
            await handler(json.loads(one.value))

        await self.source.consume(self.order, consumer, self.group, record, in_flight=32)


async def _ignore(error: Exception) -> None:
    pass


async def serve(kind: str, url: str, role: str, folder: Path, ordered: bool) -> None:
    """One life of a service."""
    log = Log(folder, role)
    link = Link(kind, url, role[:-1], role, ordered)
    await link.open()
    count, last = 0, ""

    async def publish(lane: str, after: list[str]) -> None:
        nonlocal count, last
        count += 1
        body = {"id": f"{role}.{os.getpid()}.{count}", "after": [one for one in (*after, last) if one], "number": count}
        log.write("try", body)
        await link.publish(lane, body)
        log.write("sent", body)
        last = body["id"]

    one_at_a_time = asyncio.Lock()

    async def answer(message: dict[str, Any]) -> None:
        async with one_at_a_time:
            await publish("answers", [message["id"]])

    async def read(message: dict[str, Any]) -> None:
        log.write("start", message)
        await asyncio.sleep(random.choice((0.0, 0.001, 0.004)))
        log.write("done", message)

    if role.startswith("asker"):
        while not (folder / "enough").exists():
            with suppress(Exception):
                await publish("questions", [])
            # A rebalance stops a group of the mock cluster for some seconds.
            await asyncio.sleep(random.uniform(0.005, 0.02) * (10 if kind == "kafka" else 1))
        return
    await link.consume(*((("questions",), answer) if role.startswith("answerer") else (("questions", "answers"), read)))
    await asyncio.Event().wait()


def spawn(kind: str, url: str, role: str, folder: Path, ordered: bool) -> int:
    child = os.fork()
    if child:
        return child
    error = os.open(folder / f"{role}.err", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(error, 1)
    os.dup2(error, 2)
    logging.basicConfig(level=logging.WARNING)
    random.seed()
    while True:
        try:
            asyncio.run(serve(kind, url, role, folder, ordered))
            os._exit(0)
        except BaseException as failure:
            os.write(2, f"{role}: {failure!r}\n".encode())
            time.sleep(0.1)


async def prepare(kind: str, url: str) -> None:
    if kind == "nats":
        import nats

        client = await nats.connect(url)
        for lane in ("questions", "answers"):
            await client.jetstream().add_stream(name=lane, subjects=[lane])
        await client.close()
    elif kind == "rabbitmq":
        link = Link(kind, url, "reader", "", False)
        for group, lanes in (("answerer", ("questions",)), ("reader", ("questions", "answers"))):
            await link.open()
            queue = await link.channel.declare_queue(group, durable=True, arguments={"x-single-active-consumer": True})
            for lane in lanes:
                await queue.bind(link.exchange, lane)
            await link.client.close()


def events(folder: Path) -> list[tuple[int, str, dict[str, Any], str]]:
    found = []
    for file in folder.glob("*.log"):
        if file.name == "broker.log":
            continue
        for line in file.read_bytes().split(b"\n"):
            if line.endswith(b"]"):
                kind, when, message = json.loads(line)
                found.append((when, kind, message, file.name.partition(".")[0]))
    return sorted(found, key=lambda one: one[0])


def judge(folder: Path) -> dict[str, int]:
    """What happened, by an oracle that knows only what the handlers did."""
    finished: set[str] = set()
    started: set[str] = set()
    result = {"sent": 0, "starts": 0, "late": 0, "repeated": 0, "lost": 0}
    sent: set[str] = set()
    found = events(folder)
    # What was neither confirmed to its author nor handled by any reader may have reached one queue of RabbitMQ only.
    real = {message["id"] for _, kind, message, _ in found if kind in ("sent", "start")}
    for _, kind, message, _ in found:
        if kind == "sent":
            sent.add(message["id"])
        elif kind == "start":
            result["starts"] += 1
            result["repeated"] += message["id"] in started
            started.add(message["id"])
            result["late"] += any(one not in finished for one in message["after"] if one in real)
        elif kind == "done":
            finished.add(message["id"])
    result["sent"], result["lost"] = len(sent), len(sent - finished)
    return result


def main(kind: str, folder: Path, kills: int, broker_kills: int, ordered: bool, pause: float) -> dict[str, int]:
    broker = Broker(kind, folder / "broker", synced=True)
    broker.start()
    alive: dict[int, str] = {}
    chance = random.Random(kills)
    begun = time.monotonic()
    try:
        asyncio.run(prepare(kind, broker.url))
        for role in ROLES:
            alive[spawn(kind, broker.url, role, folder, ordered)] = role
        time.sleep(8.0 if kind == "kafka" else 1.0)
        plan = ["service"] * kills + ["broker"] * broker_kills
        chance.shuffle(plan)
        for what in plan:
            if what == "broker":
                broker.restart()
            else:
                victim = chance.choice(list(alive))
                role = alive.pop(victim)
                os.kill(victim, signal.SIGKILL)
                os.waitpid(victim, 0)
                alive[spawn(kind, broker.url, role, folder, ordered)] = role
            time.sleep(chance.uniform(0.8 * pause, 1.2 * pause) if kind == "kafka" else chance.uniform(0, 2 * pause))
        (folder / "enough").touch()
        end, before = time.monotonic() + 40, (-1, -1)
        while time.monotonic() < end:
            time.sleep(1.0)
            result = judge(folder)
            if result["lost"] == 0 and (result["sent"], result["starts"]) == before:
                break
            if (result["sent"], result["starts"]) != before:
                end = time.monotonic() + 40
            before = (result["sent"], result["starts"])
    finally:
        for victim in alive:
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
        broker.stop()
    return {**judge(folder), "kills": kills, "broker_kills": broker_kills, "seconds": round(time.monotonic() - begun)}


if __name__ == "__main__":
    words = sys.argv[1:]
    place = Path(words[1])
    place.mkdir(parents=True, exist_ok=True)
    # The mock cluster does not survive a kill during a rebalance, which takes it some seconds.
    pause_seconds = {"kafka": 9.0}.get(words[0], 0.25)
    made = main(words[0], place, int(words[2]), int(words[3]), "without" not in words, pause_seconds)
    print(json.dumps(made))
