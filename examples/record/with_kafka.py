"""Record Kafka clients: three services, two topics, and a payment that may arrive before its order.

    pip install confluent-kafka
    python with_kafka.py localhost:9092        # the topics orders and payments must exist
    antecede verify traces

Kafka keeps the order of one partition. The order and its payment travel in two topics, so nothing orders them.
"""

import sys
from threading import Thread

from confluent_kafka import Consumer, Message, Producer

from antecede.record import Recorder

servers = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"


class Service(Thread):
    """One service: a thread with its own consumer, its own producer and its own recorder."""

    def __init__(self, name: str, *topics: str) -> None:
        super().__init__(name=name)
        self.me = Recorder(f"traces/{name}.jsonl", mode="w")
        self.producer = Producer({"bootstrap.servers": servers})
        self.consumer = Consumer({"bootstrap.servers": servers, "group.id": name, "auto.offset.reset": "earliest"})
        if topics:
            self.consumer.subscribe(list(topics))

    def send(self, topic: str, text: str, to: list[str]) -> None:
        message_id = self.me.sent(to=to, label=text)  # before the message leaves
        self.producer.produce(topic, text, headers={"message-id": message_id})
        self.producer.flush()

    def take(self) -> Message:
        while True:
            message = self.consumer.poll(1.0)
            if message is not None and not message.error():
                headers = dict(message.headers() or ())
                self.me.delivered(headers["message-id"].decode())  # where the handler begins
                return message


class Billing(Service):
    def run(self) -> None:
        self.take()
        self.send("payments", "payment for tea", to=["shipping"])


class Shipping(Service):
    def run(self) -> None:
        for _ in range(2):
            print("shipping got", self.take().value().decode())


services = [Billing("billing", "orders"), Shipping("shipping", "orders", "payments")]
checkout = Service("checkout")
checkout.send("orders", "order for tea", to=["billing", "shipping"])
for service in services:
    service.start()
for service in services:
    service.join()
    service.consumer.close()
