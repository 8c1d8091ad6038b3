"""A network that loses: a TCP proxy that passes frames on, forgets one in five, and now and then hangs up.

TCP itself loses nothing, so the loss is that of whole frames: what a connection that broke would have taken with it,
only worse, for the connection stays. The first frame each way is a hello and is passed on: a connection without one is
none.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any


class LossyProxy:
    """Listens at ``127.0.0.1`` for servers that really listen at ``127.0.0.2``, on the same ports."""

    def __init__(self, ports: list[int], seed: int, loss: float = 0.2, cuts: float = 0.002) -> None:
        self.random = Random(seed)
        self.loss = loss
        self.cuts = cuts
        self.passed = 0
        self.lost = 0
        self.hung_up = 0
        self._ports = ports
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "LossyProxy":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def calm(self) -> None:
        """Lose nothing any more."""
        self.loss = self.cuts = 0.0

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        for port in self._ports:
            serve = asyncio.start_server(self._between(port), "127.0.0.1", port)
            self._loop.run_until_complete(serve)
        self._ready.set()
        self._loop.run_forever()

    def _between(self, port: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]:
        async def opened(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                there, back = await asyncio.open_connection("127.0.0.2", port)
            except OSError:
                writer.close()
                return
            ways = [self._pass_on(reader, back), self._pass_on(there, writer)]
            _, left = await asyncio.wait(map(asyncio.ensure_future, ways), return_when=asyncio.FIRST_COMPLETED)
            for task in left:
                task.cancel()
            for end in (writer, back):
                end.close()

        return opened

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = True
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                header = await reader.readexactly(4)
                frame = header + await reader.readexactly(int.from_bytes(header, "big"))
                if not first and self.random.random() < self.cuts:
                    self.hung_up += 1
                    return
                if not first and self.random.random() < self.loss:
                    self.lost += 1
                    continue
                first = False
                self.passed += 1
                writer.write(frame)
                await writer.drain()
