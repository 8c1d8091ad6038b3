"""A simulated operator: the shipped request, on a connection of its own."""

from collections.abc import Callable
from typing import Any

from antecede import wire
from antecede.errors import AntecedeError
from antecede.server.operator import OperatorRequest
from antecede.simulator.servers.network import End, Loop, connect
from antecede.simulator.servers.server import SimulatedServer


def request(
    loop: Loop,
    server: SimulatedServer,
    command: str,
    arguments: list[str],
    answered: Callable[[Any, AntecedeError | None], None],
) -> None:
    """Send a request to a server that is up. ``answered`` is called with its document, or with the error."""

    def received(end: End, parts: list[wire.AnyPart]) -> None:
        assert end.receiver is not None
        end.receiver.received(parts)

    def closed(end: End, reason: str) -> None:
        assert end.receiver is not None
        end.receiver.closed(reason, loop.now)

    mine = End(loop, server.name, received, closed, lambda end: None)
    theirs = server.end("operator")
    connect(mine, theirs)
    server.guard(server.life, server.accept, theirs)
    mine.receiver = OperatorRequest(mine, wire.Request("", command, arguments), answered)
