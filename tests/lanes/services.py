"""Small services written with FastStream, as users have them: the same code with and without our middleware."""

from collections.abc import Awaitable, Callable
from typing import Any

LANES = ("questions", "answers")
Handler = Callable[[Any], Awaitable[Any]]


class Service:
    """One service: its connection to the broker, and its subscriptions. ``order`` is a ``CausalOrder`` or None."""

    def __init__(self, kind: str, url: str, name: str, order: Any = None, retry: float = 1.0) -> None:
        self.kind, self.name, self.order, self.retry = kind, name, order, retry
        middlewares = [] if order is None else [order]
        if kind == "nats":
            from faststream.nats import NatsBroker

            self.broker: Any = NatsBroker(url, middlewares=middlewares, logger=None)
        elif kind == "redis":
            from faststream.redis import RedisBroker

            self.broker = RedisBroker(url, middlewares=middlewares, logger=None)
        elif kind == "kafka":
            from faststream.kafka import KafkaBroker

            self.broker = KafkaBroker(url, middlewares=middlewares, logger=None)
        else:
            from faststream.rabbit import Channel, RabbitBroker

            channel = Channel(prefetch_count=32)
            self.broker = RabbitBroker(url, middlewares=middlewares, logger=None, default_channel=channel)
        from faststream import FastStream

        self.app = FastStream(self.broker)

    def on(self, lanes: str | tuple[str, ...], handler: Handler, instance: str = "1", **more: Any) -> None:
        """Subscribe. RabbitMQ: to all these lanes with one queue; the others: with one subscription for each lane."""
        from faststream import AckPolicy

        names = (lanes,) if isinstance(lanes, str) else lanes
        if self.kind == "rabbitmq":
            self.rabbit(names, handler, f"{self.name}-{'-'.join(names)}")
            return
        for lane in names:
            common: dict[str, Any] = {"ack_policy": AckPolicy.NACK_ON_ERROR}
            if self.kind == "nats":
                from faststream.nats import JStream
                from nats.js.api import ConsumerConfig

                in_flight = more.get("in_flight", 64)
                config = ConsumerConfig(max_ack_pending=in_flight, ack_wait=more.get("ack_wait", 30.0))
                common |= {
                    "stream": JStream(lane),
                    "durable": f"{self.name}-{lane}",
                    "queue": (more.get("shared", False) and f"{self.name}-{lane}") or "",
                    "config": config,
                    "max_workers": more.get("workers", in_flight),
                }
                self.broker.subscriber(lane, **common)(handler)
            elif self.kind == "redis":
                from faststream.redis import StreamSub

                new = StreamSub(lane, group=self.name, consumer=instance, last_id=">", polling_interval=20)
                common["max_workers"] = more.get("workers", 1)
                again = StreamSub(
                    lane,
                    group=self.name,
                    consumer=instance,
                    min_idle_time=int(self.retry * 1000),
                    polling_interval=20,
                )
                self.broker.subscriber(stream=new, **common)(handler)
                self.broker.subscriber(stream=again, **common)(handler)
            else:
                from faststream.kafka import TopicPartition

                # The mock cluster cannot make a topic of one partition, and its groups admit one member at a time.
                common |= {"group_id": self.name, "auto_offset_reset": "earliest"}
                self.broker.subscriber(partitions=[TopicPartition(lane, 0)], **common)(handler)

    def rabbit(self, lanes: tuple[str, ...], handler: Handler, queue: str) -> None:
        from faststream import AckPolicy
        from faststream.rabbit import ExchangeType, RabbitExchange, RabbitQueue

        exchange = RabbitExchange("lanes", type=ExchangeType.TOPIC, durable=True)
        key = lanes[0] if len(lanes) == 1 else "#"
        made = RabbitQueue(queue, routing_key=key, durable=True)
        self.broker.subscriber(made, exchange, ack_policy=AckPolicy.NACK_ON_ERROR)(handler)

    async def say(self, lane: str, body: Any, key: str = "") -> Any:
        """Publish, and wait until the broker has it."""
        headers = {"key": key} if key else {}
        if self.kind == "nats":
            return await self.broker.publish(body, lane, stream=lane, headers=headers, timeout=10.0)
        if self.kind == "redis":
            return await self.broker.publish(body, stream=lane, headers=headers)
        if self.kind == "kafka":
            return await self.broker.publish(body, lane, headers=headers, key=(key or "all").encode(), partition=0)
        from faststream.rabbit import ExchangeType, RabbitExchange

        exchange = RabbitExchange("lanes", type=ExchangeType.TOPIC, durable=True)
        return await self.broker.publish(body, lane, exchange=exchange, headers=headers, persist=True)
