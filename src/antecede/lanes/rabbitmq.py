"""RabbitMQ numbers nothing, so there are no stamps. Causal order holds in *one queue per service*: bind it to whatever
the service reads, and wait for the confirm of each publish. Then a question lies in the queue before anybody could
answer it.

What is left to do is at the consumer. Here, deliveries are numbered as they come. A message that was given back comes
again behind those that were already on their way; it gets its old number again, and the others wait for it. It is known
by its ``message_id``, or by its content if it has none. If it does not come within ``gone_seconds`` (another consumer
has it, or it became a dead letter), the others go on. After a lost connection everything comes again in the sequence of
the queue, so the numbers begin anew.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b
from typing import Any

from antecede.lanes.box import Arrival
from antecede.lanes.drive import Delivery, Facts, Opening, Order
from antecede.lanes.frontier import LARGEST, Key, track_of


class Queues:
    """The queues of one service. There should be one, with one consumer at a time (``x-single-active-consumer``)."""

    # A broker waits half an hour for acknowledgements.
    alive_seconds = 1e9

    def __init__(self, name: str = "rabbitmq", gone_seconds: float = 5.0) -> None:
        self.name, self.gone_seconds = name, gone_seconds
        self._channels: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self._bases: dict[str, int] = {}
        self._back: dict[str, dict[Any, tuple[Arrival, float]]] = {}

    async def ends(self) -> Mapping[str, int]:
        return {}

    async def end(self, lane: str) -> int:
        return LARGEST

    async def opening(self, reader: str) -> Opening:
        return self.start(reader)

    def start(self, reader: str) -> Opening:
        """Everything that came over an earlier channel is over: what was not acknowledged comes again."""
        return Opening(reader, self._bases[reader], sole=True)

    async def first(self, reader: str, position: int) -> None:
        return None

    async def facts(self, reader: str, position: int) -> Facts:
        back, now = self._back[reader], time.monotonic()
        gone = [key for key, (_, since) in back.items() if now - since > self.gone_seconds]
        return Facts(0, gone=[back.pop(key)[0] for key in gone])

    def arrival(self, queue: str, message: Any, key: Key = None) -> tuple[Arrival, bool]:
        """The arrival of a message, and whether it came over a new channel: then the reader must be closed first."""
        reader = f"{self.name}:{queue}"
        fresh = self._channels.get(reader) is not message.channel
        if fresh:
            self._channels[reader], self._back[reader] = message.channel, {}
            self._bases[reader] = self._counts.get(reader, 0)
        back = self._back[reader].pop(_name(message), None) if message.redelivered else None
        if back is None:
            self._counts[reader] = self._counts.get(reader, 0) + 1
        number = self._counts[reader] if back is None else back[0].position
        return Arrival(reader, number, {}, track_of(key), redelivered=back is not None), fresh

    def given_back(self, arrival: Arrival, message: Any) -> None:
        """The message goes back to the queue, and will come again."""
        self._back[arrival.reader][_name(message)] = (arrival, time.monotonic())

    # -- aio-pika without a framework -------------------------------------------------------------------------------

    def callback(
        self,
        order: Order,
        queue: str,
        handler: Callable[[Any], Awaitable[Any]],
        key: Callable[[Any], Key] = lambda message: None,
    ) -> Callable[[Any], Awaitable[None]]:
        """A callback for ``queue.consume``. aio-pika calls it for the next message without waiting for the last."""

        async def callback(message: Any) -> None:
            arrival, fresh = self.arrival(queue, message, key(message))
            order.renumber(arrival.reader, self.start, fresh)

            async def give_back() -> None:
                self.given_back(arrival, message)
                await message.nack(requeue=True)

            delivery = Delivery(arrival, message.headers, message.ack, give_back)
            await order.run(delivery, lambda: handler(message))

        return callback


def _name(message: Any) -> Any:
    return message.message_id or blake2b(message.body, digest_size=16).digest()
