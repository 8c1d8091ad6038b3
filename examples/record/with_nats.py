"""Record NATS clients: three services on three connections, each a process of the trace.

    pip install nats-py
    python with_nats.py nats://localhost:4222
    antecede verify traces

NATS keeps the order of one publisher on one connection, not that of a chain through another service.
"""

import asyncio
import sys

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from antecede.record import Recorder

server = sys.argv[1] if len(sys.argv) > 1 else "nats://localhost:4222"


async def send(client: Client, me: Recorder, subject: str, text: str, to: list[str]) -> None:
    """Publish a message with its id."""
    message_id = me.sent(to=to, label=text)  # before the message leaves
    await client.publish(subject, text.encode(), headers={"message-id": message_id})


def take(me: Recorder, message: Msg) -> str:
    """Record a message where its handler begins."""
    me.delivered((message.headers or {})["message-id"])
    return message.data.decode()


async def main() -> None:
    clients = [await nats.connect(server) for _ in range(3)]
    checkout, billing, shipping = (Recorder(f"traces/{name}.jsonl", mode="w") for name in names)
    done: asyncio.Queue[str] = asyncio.Queue()

    async def bill(message: Msg) -> None:
        take(billing, message)
        await send(clients[1], billing, "payments", "payment for tea", to=["shipping"])

    async def ship(message: Msg) -> None:
        await done.put(take(shipping, message))

    await clients[1].subscribe("orders", cb=bill)
    await clients[2].subscribe("orders", cb=ship)
    await clients[2].subscribe("payments", cb=ship)
    for client in clients:
        await client.flush()
    await send(clients[0], checkout, "orders", "order for tea", to=["billing", "shipping"])
    for _ in range(2):
        print("shipping got", await done.get())
    for client in clients:
        await client.close()


names = ("checkout", "billing", "shipping")
asyncio.run(main())
