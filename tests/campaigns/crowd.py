"""The participants of an overload trial: agents, and programs that run as separate processes.

``python -m campaigns.crowd publish|strangers SETTINGS`` runs one of the programs. SETTINGS is a JSON document.
When the program ends, it prints its results as another JSON document. A publisher offers numbered messages at a fixed
rate, whether they are accepted or not. Its results include the sum of the numbers of the accepted messages. Strangers
connect from many loopback addresses, but never send a valid hello (the message that opens a connection). Each stranger
sends nothing, or nonsense, or half a hello. It waits until it is disconnected, and then connects again.
"""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from antecede.engine import Agent, Context, Notification
from antecede.errors import AntecedeError, OverloadError
from antecede.live.client.bus import Ticket
from antecede.live.client.line import connect
from antecede.live.server import raise_limit


class Item(Notification):
    """A numbered message that a publisher sends."""

    number: int
    fill: bytes = b""


class Count(Notification):
    """A request to a sink for the count of its messages and the sum of their numbers."""


class Counted(Notification):
    """The answer of a sink to :class:`Count`. ``digest`` is the sum of the numbers."""

    count: int
    digest: int


class Ask(Notification):
    """A question that :class:`Echo` answers. The trial sends it to measure how fast servers answer."""


class Answer(Notification):
    """The answer to :class:`Ask`."""


class Sink(Agent):
    """An agent that works for 0.1 ms on each message. It keeps the count of its messages and the sum of their
    numbers."""

    count: int = 0
    digest: int = 0

    def on_item(self, item: Item, ctx: Context) -> None:
        until = time.perf_counter() + _work_seconds
        self.count += 1
        self.digest += item.number
        while time.perf_counter() < until:
            pass

    def on_count(self, count: Count, ctx: Context) -> None:
        ctx.reply(Counted(count=self.count, digest=self.digest))


class Echo(Agent):
    """An agent that answers every question immediately."""

    def on_ask(self, ask: Ask, ctx: Context) -> None:
        ctx.reply(Answer())


class Stuck(Agent):
    """An agent whose handler does not return during the trial."""

    def on_item(self, item: Item, ctx: Context) -> None:
        time.sleep(86_400)


class Offer:
    """Counts the messages that a publisher offers, and how many of them are accepted or refused."""

    def __init__(self) -> None:
        self.offered = self.accepted = self.refused = self.skipped = self.digest = 0
        self._open: list[tuple[Ticket, list[int]]] = []

    def add(self, ticket: Ticket, number: int) -> None:
        """Record a message that was sent, with its ticket (which will show whether the message is accepted)."""
        self.offered += 1
        if self._open and self._open[-1][0] is ticket:
            self._open[-1][1].append(number)
        else:
            self._open.append((ticket, [number]))

    def count(self) -> bool:
        """Count the messages that were accepted or refused since the last call. Return whether there are messages that
        are neither accepted nor refused yet."""
        still = []
        for ticket, numbers in self._open:
            if not ticket.settled:
                still.append((ticket, numbers))
            elif ticket.error is None:
                self.accepted += len(numbers)
                self.digest += sum(numbers)
            else:
                ticket.seen = True
                self.refused += len(numbers)
        self._open = still
        return bool(still)


async def publish(address: str, name: str, to: str, rate: float, seconds: float) -> dict[str, float]:
    """Offer ``rate`` messages per second for ``seconds`` seconds. Then wait until each message is accepted or refused,
    and return the counts."""
    offer, sent, fill = Offer(), 0, bytes(_fill_bytes)
    async with connect(address, name=name, patience=120) as bus:
        begin = time.monotonic()
        while (elapsed := time.monotonic() - begin) < seconds:
            due = min(int(elapsed * rate) - sent, _burst_max)
            for _ in range(max(due, 0)):
                sent += 1
                try:
                    offer.add(bus.send(to, Item(number=sent, fill=fill)), sent)
                except OverloadError:
                    offer.skipped += 1
            offer.count()
            await asyncio.sleep(_tick_seconds)
        while offer.count():
            await asyncio.sleep(_tick_seconds)
    return {key: getattr(offer, key) for key in ("offered", "accepted", "refused", "skipped", "digest")}


async def strangers(addresses: list[str], count: int, seconds: float) -> dict[str, float]:
    """Let ``count`` strangers (clients that never send a valid hello) connect again and again for ``seconds`` seconds.
    Return how often they connected, were disconnected and were refused."""
    raise_limit()
    seen: Counter[str] = Counter()
    end = time.monotonic() + seconds
    tasks = [
        asyncio.create_task(_stranger(place, addresses[place % len(addresses)], end, seen)) for place in range(count)
    ]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return dict(seen)


async def _stranger(place: int, address: str, end: float, seen: Counter[str]) -> None:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    mine = (f"127.{1 + place // 62_500}.{place // 250 % 250}.{1 + place % 250}", 0)
    await asyncio.sleep(place % 100 / 100)
    while time.monotonic() < end:
        try:
            reader, writer = await asyncio.open_connection(host, int(port), local_addr=mine)
            seen["connections"] += 1
            writer.write((b"", b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x40\x03half", bytes(64))[place % 4])
            while await reader.read(65_536):
                pass
            seen["disconnected"] += 1
            writer.close()
        except OSError:
            seen["refused"] += 1
        await asyncio.sleep(1 + place % 3)


def main(arguments: list[str]) -> int:
    """Run the program whose name is the first argument (``publish`` or ``strangers``). The second argument contains the
    settings of the program as JSON."""
    what, settings = arguments
    # The load of a real system comes from other machines. Here it must not take the processor from the servers.
    os.nice(_nice)
    try:
        document = asyncio.run(_programs[what](**json.loads(settings)))
    except AntecedeError as error:
        print(json.dumps({"error": str(error)}))
        return 1
    print(json.dumps(document))
    return 0


_programs: dict[str, Callable[..., Coroutine[Any, Any, dict[str, float]]]] = {
    "publish": publish,
    "strangers": strangers,
}
_nice = 10
_work_seconds = 0.0001
_fill_bytes = 100
_tick_seconds = 0.005
_burst_max = 2_000

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
