"""The tickets with which a program waits until its publishes are accepted. Also :class:`Line`, the interface of the
connection on which the publishes are sent."""

import asyncio
from collections.abc import Generator, Iterable
from typing import Any, Protocol

from antecede.channel.letters import Letter
from antecede.errors import AntecedeError, again
from antecede.server.client.publishing import Ticket as BareTicket


class Ticket(BareTicket):
    """A batch of publishes that a program has sent. Await the ticket to wait until the server has accepted all of
    them."""

    __slots__ = ("_waiting", "answer", "error", "seen", "settled")

    def __init__(
        self, number: int, target: str | tuple[str, ...], to: tuple[str, ...], kind: str, ask: bool, context: str = ""
    ) -> None:
        super().__init__(number, target, to, kind, ask, context)
        self.settled = False
        self.error: AntecedeError | None = None
        self.seen = False
        """True if the error of this ticket has already reached a caller. Then ``drain`` does not raise the error
        again."""
        self.answer: asyncio.Future[Letter] | None = None
        """The future that gets the answer, if this ticket is a question."""
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
            raise again(self.error)

    def settle(self, error: AntecedeError | None = None) -> None:
        """End the wait for this batch. Without ``error``, the server has accepted the batch. Otherwise the batch has
        failed with this error."""
        self.settled = True
        self.error = error
        for future in self._waiting or ():
            if not future.done():
                future.set_result(None)


class Tickets:
    """The tickets of one ``send_many``. Await this object to wait until the server has accepted all notifications."""

    __slots__ = ("_tickets",)

    def __init__(self, tickets: Iterable[Ticket]) -> None:
        # Notifications in a row share a batch.
        self._tickets = list(dict.fromkeys(tickets))

    def __await__(self) -> Generator[Any, None, None]:
        failed: AntecedeError | None = None
        for ticket in self._tickets:
            try:
                yield from ticket.__await__()
            except AntecedeError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    @property
    def settled(self) -> bool:
        """True if the result of every batch is known: each batch was accepted or has failed."""
        return all(ticket.settled for ticket in self._tickets)


class Line(Protocol):
    """The connection of a bus to its server, over the network or within one process."""

    async def open(self) -> None:
        """Connect to the server. Return when the server has welcomed the bus."""
        ...

    def publish(self, ticket: Ticket, last: bool) -> None:
        """Send the publishes of a ticket. ``last``: True if no other batch is ready to be sent now. (A question may
        still follow in the same iteration of the event loop.)"""
        ...

    def done(self, letters: list[str], dead: str) -> None: ...

    def listen(self) -> None: ...

    async def close(self) -> None: ...
