"""What is on its way from a bus, and the way itself."""

import asyncio
from collections.abc import Generator
from typing import Any, Protocol

from antecede.errors import AntecedeError


class Ticket:
    """A batch of publishes on their way; to await it is to wait until they are accepted."""

    __slots__ = (
        "_waiting",
        "ask",
        "bodies",
        "bytes",
        "context",
        "error",
        "kind",
        "number",
        "seen",
        "settled",
        "target",
        "to",
    )

    def __init__(
        self, number: int, target: str | tuple[str, ...], to: tuple[str, ...], kind: str, ask: bool, context: str = ""
    ) -> None:
        self.number = number
        self.target = target
        self.to = to
        self.kind = kind
        self.ask = ask
        self.context = context
        """The span that all of them were sent in, as a W3C trace context; empty: none."""
        self.bodies: list[bytes] = []
        self.bytes = 0
        self.settled = False
        self.error: AntecedeError | None = None
        self.seen = False
        self._waiting: list[asyncio.Future[None]] | None = None

    def __await__(self) -> Generator[Any, None, None]:
        if not self.settled:
            future = asyncio.get_running_loop().create_future()
            if self._waiting is None:
                self._waiting = []
            self._waiting.append(future)
            yield from future
        if self.error is not None:
            self.seen = True
            raise type(self.error)(str(self.error))

    def settle(self, error: AntecedeError | None = None) -> None:
        """Accepted, or refused."""
        self.settled = True
        self.error = error
        for future in self._waiting or ():
            if not future.done():
                future.set_result(None)


class Line(Protocol):
    """The way from a bus to its home server."""

    async def open(self) -> None:
        """Reach the server; the bus has been welcomed when this returns."""
        ...

    def publish(self, ticket: Ticket, last: bool) -> None:
        """Say it; ``last``: nothing else will be published in this turn of the event loop."""
        ...

    def done(self, letters: list[str], dead: str) -> None: ...

    def listen(self) -> None: ...

    async def close(self) -> None: ...
