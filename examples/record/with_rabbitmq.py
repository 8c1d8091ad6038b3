"""Record RabbitMQ clients: three services, each with its own queue and its own connection.

    pip install pika
    python with_rabbitmq.py localhost
    antecede verify traces

RabbitMQ keeps the order from one channel to one queue, not that of a chain through another service.
"""

import sys
from collections.abc import Iterator
from threading import Thread

import pika

from antecede.record import Recorder

host = sys.argv[1] if len(sys.argv) > 1 else "localhost"


class Service(Thread):
    """One service: a thread with its own connection, its own queue and its own recorder."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.me = Recorder(f"traces/{name}.jsonl", mode="w")
        self.channel = pika.BlockingConnection(pika.ConnectionParameters(host)).channel()
        self.channel.queue_declare(name, auto_delete=True)

    def send(self, text: str, to: list[str]) -> None:
        message_id = self.me.sent(to=to, label=text)  # before the message leaves
        properties = pika.BasicProperties(message_id=message_id)
        for name in to:
            self.channel.basic_publish("", name, text.encode(), properties)

    def take(self) -> Iterator[str]:
        for method, properties, body in self.channel.consume(self.name):
            self.me.delivered(properties.message_id)  # where the handler begins
            yield body.decode()
            self.channel.basic_ack(method.delivery_tag)


class Billing(Service):
    def run(self) -> None:
        next(self.take())
        self.send("payment for tea", to=["shipping"])


class Shipping(Service):
    def run(self) -> None:
        messages = self.take()
        for _ in range(2):
            print("shipping got", next(messages))


services = [Billing("billing"), Shipping("shipping")]
checkout = Service("checkout")
checkout.send("order for tea", to=["billing", "shipping"])
for service in services:
    service.start()
for service in services:
    service.join()
