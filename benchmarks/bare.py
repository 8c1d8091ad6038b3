"""Minimal programs, with which Antecede is compared. They do only the unavoidable work: TCP on the event loop, msgspec,
and in some measurements a disk.

A frame contains a MessagePack list of pairs (number, body), after four bytes with the length of this list. A receiver
in the role *log* writes the bodies into a file that was allocated before the measurement. One thread takes all bodies
that have arrived, writes them, and syncs once, as our log does. The receiver answers when the last body is on the disk.
If the roles *echo* and *ping* use a disk, each end writes and syncs a message before sending the message.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from threading import Condition, Thread
from time import perf_counter
from typing import cast

import msgspec

from benchmarks import payload
from benchmarks.common import act, figures, say, settle, until_told

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, bytes]]).decode


def framed(items: list[tuple[int, bytes]]) -> bytes:
    """Return one frame that contains these pairs (number, body)."""
    body = _encode(items)
    return len(body).to_bytes(4, "big") + body


class End(asyncio.BufferedProtocol):
    """One end of a connection. It calls ``got`` with the pairs (number, body) of every frame that it receives. Like
    Antecede's own connections, it always reads into the same buffer."""

    def __init__(self, got: "Callable[[End, list[tuple[int, bytes]]], None]") -> None:
        self._got = got
        self._pending = b""
        self._input = memoryview(bytearray(256 * 1024))
        self._room = asyncio.Event()
        self._room.set()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._input

    def buffer_updated(self, nbytes: int) -> None:
        data = self._pending + self._input[:nbytes]
        start, end = 0, len(data)
        while end - start >= 4:
            stop = start + 4 + int.from_bytes(data[start : start + 4], "big")
            if stop > end:
                break
            self._got(self, _decode(data[start + 4 : stop]))
            start = stop
        self._pending = data[start:]

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    async def room(self) -> None:
        await self._room.wait()


class _File:
    """A file that is allocated with its full length before the measurement. Writing continues at the start of the file
    when the end is reached."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(self._file, 0, _file_bytes)
        os.fsync(self._file)
        self._at = 0

    def keep(self, data: bytes) -> None:
        if self._at + len(data) > _file_bytes:
            self._at = 0
        os.pwrite(self._file, data, self._at)
        os.fdatasync(self._file)
        self._at += len(data)


class Log:
    """Writes messages to a file in a separate thread. After each write it calls ``written`` with the number of the last
    written message."""

    def __init__(self, path: str, written: Callable[[int], None]) -> None:
        self._file = _File(path)
        self._written = written
        self._loop = asyncio.get_running_loop()
        self._pending: list[tuple[int, bytes]] = []
        self._some = Condition()
        Thread(target=self._run, daemon=True).start()

    def append(self, items: list[tuple[int, bytes]]) -> None:
        with self._some:
            self._pending += items
            self._some.notify()

    def _run(self) -> None:
        while True:
            with self._some:
                while not self._pending:
                    self._some.wait()
                items, self._pending = self._pending, []
            self._file.keep(b"".join([body for _, body in items]))
            self._loop.call_soon_threadsafe(self._written, items[-1][0])


async def listen(got: Callable[[End, list[tuple[int, bytes]]], None]) -> None:
    """Report the port to the benchmark, and accept connections until standard input ends. ``got``: called with the
    items of every frame."""
    server = await asyncio.get_running_loop().create_server(lambda: End(got), "127.0.0.1", 0)
    settle()
    say(port=server.sockets[0].getsockname()[1])
    await until_told()


async def dial(port: int, got: Callable[[End, list[tuple[int, bytes]]], None]) -> End:
    """Connect to the other end at this port. ``got``: called with the items of every frame from the other end."""
    _, end = await asyncio.get_running_loop().create_connection(lambda: End(got), "127.0.0.1", port)
    settle()
    return end


async def log(data: str) -> None:
    """Receive messages and write them to the file ``data``. Messages are numbered backwards, so the last message
    has the number 0. Send an answer when this message is on the disk."""
    ends: list[End] = []
    log = Log(data, lambda number: ends[0].transport.write(framed([(0, b"")])) if number == 0 else None)

    def got(end: End, items: list[tuple[int, bytes]]) -> None:
        ends[:] = [end]
        log.append(items)

    await listen(got)


async def pipelined(port: int, messages: int, together: int, warm: int = 2_000) -> None:
    """Send messages that the other end writes to its disk. Report the number of messages per second. ``together``:
    messages per frame. ``warm``: the number of messages before the measurement."""
    done = asyncio.Event()
    end = await dial(port, lambda _, items: done.set())
    for count in (warm, messages):
        started = perf_counter()
        items: list[tuple[int, bytes]] = []
        for number in range(count - 1, -1, -1):
            items.append((number, payload))
            if len(items) == together or not number:
                end.transport.write(framed(items))
                items = []
                await end.room()
        await done.wait()
        done.clear()
    say(per_second=messages / (perf_counter() - started))


async def echo(data: str | None = None) -> None:
    """Send every message back. With ``data``, first write the message to this file and sync it."""
    file = None if data is None else _File(data)

    def got(end: End, items: list[tuple[int, bytes]]) -> None:
        if file is not None:
            file.keep(items[0][1])
        end.transport.write(framed(items))

    await listen(got)


async def ping(port: int, messages: int, data: str | None = None, warm: int = 200) -> None:
    """Send one message at a time, wait for its answer, and report the round-trip times. With ``data``, first write each
    message to this file and sync it. ``warm``: the number of messages before the measurement."""
    file = None if data is None else _File(data)
    loop = asyncio.get_running_loop()
    answers: list[asyncio.Future[None]] = []
    end = await dial(port, lambda _, items: answers[0].set_result(None))
    times = []
    for number in range(warm + messages):
        started = perf_counter()
        answers[:] = [loop.create_future()]
        if file is not None:
            file.keep(payload)
        end.transport.write(framed([(number, payload)]))
        await answers[0]
        times.append(perf_counter() - started)
    say(**figures(times[warm:]))


_file_bytes = 64 * 1024 * 1024

if __name__ == "__main__":
    act({"log": log, "pipelined": pipelined, "echo": echo, "ping": ping})
