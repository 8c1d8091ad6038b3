"""Two processes that share their durables, and what they find out about forged headers."""

import asyncio
from collections.abc import Mapping

from antecede.lanes import Arrival, decode
from antecede.lanes.drive import Delivery, Facts, First, Opening, Order, Outcome


class Shared:
    """A broker in memory with one durable per lane, which several processes share."""

    alive_seconds = 10.0

    def __init__(self, **logs: str) -> None:
        self.logs = logs
        self.finished: set[str] = set()

    async def ends(self) -> Mapping[str, int]:
        return dict.fromkeys(self.logs, 1)

    async def end(self, lane: str) -> int:
        return 1 if lane in self.logs else -1

    async def opening(self, reader: str) -> Opening:
        return Opening(reader, 0)

    async def facts(self, reader: str, position: int) -> Facts:
        return Facts(1 if reader in self.finished else 0)

    async def first(self, reader: str, position: int) -> First | None:
        return First(1, self.logs[reader], ord(reader)) if position == 0 else None


async def _run(source: Shared) -> list[str]:
    handled: list[str] = []

    async def process(lane: str) -> None:
        order = Order(source)
        for reader in source.logs:
            await order.open(reader)
        stamp = decode(source.logs[lane])
        delivery = Delivery(Arrival(lane, 1, stamp.causes, stamp.track, time=ord(lane)), lane)
        await order.begin(delivery)
        handled.append(lane)
        source.finished.add(lane)
        await order.finish(delivery, Outcome.DONE)

    async with asyncio.timeout(30):
        await asyncio.gather(*map(process, source.logs))
    return handled


def test_positions_that_do_not_exist() -> None:
    assert sorted(asyncio.run(_run(Shared(X="1 Y=7 nowhere=3", Y="1")))) == ["X", "Y"]


def test_a_circle_over_two_processes() -> None:
    """Each of them holds one message of the circle, and asks for the other one."""
    # Y is younger: so it is the header of X that is forged.
    assert asyncio.run(_run(Shared(X="1 Y=1", Y="1 X=1"))) == ["X", "Y"]
