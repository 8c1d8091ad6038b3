"""Connections whose transport uvloop has closed by itself: every call of it raises, and ``connection_lost`` may never
come."""

import asyncio
from typing import Any

import pytest

from antecede.live.tcp import TcpConnection


class _Transport(asyncio.Transport):
    """A transport that fails in one of its methods from some moment on, as a closed one of uvloop does."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = ""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 7) if name == "peername" else None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return True

    def _called(self, name: str) -> None:
        if name == self.failing:
            raise RuntimeError("the handler is closed")

    def write(self, data: Any) -> None:
        self._called("write")

    def write_eof(self) -> None:
        self._called("write_eof")

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None:
        self._called("resume_reading")

    def abort(self) -> None: ...


class _Receiver:
    def __init__(self) -> None:
        self.ends: list[str] = []

    def received(self, parts: list[Any]) -> None: ...

    def writable(self) -> None: ...

    def closed(self, reason: str, now: float) -> None:
        self.ends.append(reason)


@pytest.mark.parametrize("failing", ["write", "write_eof", "resume_reading"])
def test_a_connection_that_uvloop_has_closed_is_forgotten_without_an_error(failing: str) -> None:
    async def play() -> tuple[list[str], list[str], int]:
        errors: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["message"]))
        transport, receiver, connections = _Transport(), _Receiver(), set[TcpConnection]()
        connection = TcpConnection(lambda connection: receiver)
        connection.connection_made(transport)
        connection.join(connections)
        connection.busy(True)
        transport.failing = failing
        connection.close("the server stops")
        await asyncio.sleep(0)
        return errors, receiver.ends, len(connections)

    assert asyncio.run(play()) == ([], ["the server stops"], 0)
