"""A chat in the terminal: the client of a person joins a room, and sends each line of input to all other members.

When the input ends (Ctrl-D), the client leaves the room. If the server has not accepted all lines when the input ends,
the chat first waits until the server has accepted them. It gives up if the server accepts no line for some time. A
second Ctrl-D, or Ctrl-C, ends the chat immediately.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

from chat_room import Join, Leave, Members, Said

from antecede import AntecedeError, Bus, ClosedError, Received

leave_seconds = 5.0
"""The time for which the chat waits, at the end of the input, until the server accepts another line."""


class Typed:
    """The lines that the user types. A daemon thread reads them, so the program can end while the thread waits for
    input."""

    def __init__(self, descriptor: int | None) -> None:
        """``descriptor``: the descriptor of the file to read, or None if there is no input."""
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._descriptor = descriptor
        self.ended = asyncio.Event()
        self.ended_again = asyncio.Event()
        """Set when the user has pressed Ctrl-D a second time."""
        self.waiting = 0
        """The number of lines that were typed, but are not handled yet (see :meth:`handled`)."""
        Thread(target=self._read, daemon=True).start()

    async def next(self) -> str | None:
        """Return the next line, or None at the end of the input."""
        return await self._lines.get()

    def handled(self) -> None:
        """Record that one line was handled: it was accepted by the server, or it could not be sent."""
        self.waiting -= 1

    def _read(self) -> None:
        # The loop may be closed already.
        with suppress(RuntimeError):
            if self._descriptor is None:
                self._call(self._end)
                return
            self._read_lines(self._descriptor, self._add)
            self._call(self._end)
            if os.isatty(self._descriptor):
                # A terminal can be read again after Ctrl-D.
                self._read_lines(self._descriptor, lambda line: None)
                self._call(self.ended_again.set)

    def _read_lines(self, descriptor: int, add: Callable[[str], None]) -> None:
        """Read lines until the input ends, and pass each line to ``add``. This method does not use ``sys.stdin``.
        Otherwise this thread would still hold the lock of that stream at the end of the program."""
        rest = b""
        with suppress(OSError):
            while data := os.read(descriptor, 65_536):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._call(add, line.decode("utf-8", "replace").strip())
        if rest:
            self._call(add, rest.decode("utf-8", "replace").strip())

    def _call(self, function: Callable[..., object], *arguments: str) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)

    def _add(self, line: str) -> None:
        if line:
            self.waiting += 1
            self._lines.put_nowait(line)

    def _end(self) -> None:
        self._lines.put_nowait(None)
        self.ended.set()


class Chat:
    """The chat of one person in one room: it sends the lines of this person, and shows the lines of the others."""

    def __init__(self, bus: Bus, room: str, show: Callable[[str], None]) -> None:
        self._bus = bus
        self._room = room
        self._show = show
        self._members: tuple[str, ...] = ()
        self._joined = asyncio.Event()

    async def run(self, typed: Typed | None = None) -> None:
        """Join the room, send every line of input, and leave the room when the input ends. Raise ClosedError if the
        server does not accept all lines."""
        self._bus.on(Said, self._show_line)
        self._bus.on(Members, self._changed)
        self._bus.otherwise(lambda letter: None)
        if typed is None:
            typed = Typed(None if sys.stdin is None else sys.stdin.fileno())
        sending = asyncio.create_task(self._send_lines(typed))
        ended = asyncio.create_task(typed.ended.wait())
        closed = asyncio.create_task(self._bus.until_closed())
        try:
            await asyncio.wait({sending, ended, closed}, return_when=asyncio.FIRST_COMPLETED)
            if closed.done():
                return closed.result()
            await self._finish(sending, typed)
        finally:
            for task in (sending, ended, closed):
                task.cancel()

    async def _send_lines(self, typed: Typed) -> None:
        await self._bus.send(self._room, Join())
        await self._joined.wait()
        while (line := await typed.next()) is not None:
            await self._say(line)
            typed.handled()
        await self._bus.send(self._room, Leave())

    async def _say(self, line: str) -> None:
        others = [name for name in self._members if name != self._bus.address]
        if not others:
            self._show("(no other member is in the room)")
            return
        try:
            await self._bus.send(others, Said(by=self._bus.name, text=line))
        except AntecedeError as error:
            self._show(f"(not sent: {error})")

    async def _finish(self, sending: "asyncio.Task[None]", typed: Typed) -> None:
        """After the end of the input, wait until the server has accepted all lines. Raise ClosedError if the server
        accepts no line for some time, or if the user presses Ctrl-D a second time."""
        again = asyncio.create_task(typed.ended_again.wait())
        leaving, seconds = {sending, again}, leave_seconds
        await asyncio.wait(leaving, timeout=seconds / 10, return_when=asyncio.FIRST_COMPLETED)
        if not sending.done() and not again.done():
            what = f"{_lines(typed.waiting)} not accepted yet" if typed.waiting else "the server has not answered yet"
            self._show(f"({what}: waiting {seconds:g} seconds more; Ctrl-C ends at once)")
        before = None
        while not sending.done() and not again.done() and before != (before := self._progress(typed)):
            await asyncio.wait(leaving, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        if sending.done():
            return sending.result()
        unsent = f"{_lines(typed.waiting)} not accepted, and " if typed.waiting else ""
        state = "is still a member of" if self._joined.is_set() else "did not join"
        raise ClosedError(f"no answer from the server: {unsent}{self._bus.name} {state} the {self._room}")

    def _progress(self, typed: Typed) -> tuple[int, int]:
        return typed.waiting, self._bus.last_accepted

    def _show_line(self, message: Said, letter: Received) -> None:
        self._show(f"{message.by}: {message.text}")

    def _changed(self, members: Members, letter: Received) -> None:
        if members.names != self._members:
            self._members = members.names
            self._show(f"(in the {self._room}: {', '.join(name.partition('@')[0] for name in members.names)})")
        if self._bus.address in members.names:
            self._joined.set()


def _lines(count: int) -> str:
    return "1 line was" if count == 1 else f"{count} lines were"
