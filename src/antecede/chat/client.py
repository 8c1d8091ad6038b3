"""A chat in the terminal: a client in a room; each line of input is said to all members."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from threading import Thread

from antecede.chat import Join, Leave, Members, Said
from antecede.errors import AntecedeError
from antecede.live.client import Bus, Received


class Chat:
    """One person in one room."""

    def __init__(self, bus: Bus, room: str, show: Callable[[str], None]) -> None:
        self._bus = bus
        self._room = room
        self._show = show
        self._members: tuple[str, ...] = ()
        self._joined = asyncio.Event()

    async def run(self) -> None:
        """Join, say every line of input, and leave when the input ends."""
        self._bus.on(Said, self._said)
        self._bus.on(Members, self._changed)
        self._bus.otherwise(lambda letter: None)
        await self._bus.send(self._room, Join())
        await self._joined.wait()
        async for line in _lines():
            others = [name for name in self._members if name != self._bus.address]
            if not others:
                self._show("(no other member is in the room)")
            elif line:
                try:
                    await self._bus.send(others, Said(by=self._bus.name, text=line))
                except AntecedeError as error:
                    self._show(f"(not sent: {error})")
        await self._bus.send(self._room, Leave())
        await self._bus.drain()

    def _said(self, said: Said, letter: Received) -> None:
        self._show(f"{said.by}: {said.text}")

    def _changed(self, members: Members, letter: Received) -> None:
        if members.names != self._members:
            self._members = members.names
            self._show(f"(in the {self._room}: {', '.join(name.partition('@')[0] for name in members.names)})")
        if self._bus.address in members.names:
            self._joined.set()


async def _lines() -> AsyncIterator[str]:
    """Yield the lines of standard input. A thread waits for them, which does not keep the program alive."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str | None] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line.strip())
        loop.call_soon_threadsafe(lines.put_nowait, None)

    Thread(target=read, daemon=True).start()
    while (line := await lines.get()) is not None:
        yield line
