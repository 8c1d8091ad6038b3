"""The receiver of a live connection: it hands what arrives to the server's core."""

from time import monotonic
from typing import TYPE_CHECKING

from antecede.server.connections import Receiver
from antecede.wire import AnyPart

if TYPE_CHECKING:
    from antecede.live.server import ServerRuntime


class Fed:
    """Hands what a connection brings to the core, and takes a turn if the core asks for one."""

    __slots__ = ("_receiver", "_runtime")

    def __init__(self, runtime: "ServerRuntime", receiver: Receiver) -> None:
        self._runtime = runtime
        self._receiver = receiver

    def received(self, parts: list[AnyPart]) -> None:
        if self._runtime.core.received(self._receiver, parts, monotonic()):
            self._runtime.tick()

    def closed(self, reason: str, now: float) -> None:
        self._receiver.closed(reason, now)
        self._runtime.set_timer()

    def writable(self) -> None:
        self._receiver.writable()
