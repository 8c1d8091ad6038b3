"""A client in the server's own process: a session without a connection."""

import asyncio

from antecede.access import LOCAL
from antecede.channel import Letter
from antecede.errors import RefusedError
from antecede.live.client import Bus, Ticket
from antecede.server import Accepted, Refused
from antecede.server.client import refusal_of
from antecede.server.sessions import Sessions


class LocalSession:
    """Connects a bus to a server in the same process. This object has two roles: for the server it is a session, and
    for the bus it is the connection to the server (:class:`antecede.live.client.Line`)."""

    def __init__(self, sessions: Sessions, bus: Bus) -> None:
        self.client = bus.name
        self.address = ""
        self.listening = False
        self.handed: list[str] = []
        self.rights = sessions.rights(LOCAL)
        self.forbidden: dict[str, str] = {}
        self._sessions = sessions
        self._bus = bus
        self._welcomed = asyncio.Event()

    async def open(self) -> None:
        refusal = self._sessions.refusal(self.client)
        if refusal is not None:
            raise RefusedError(refusal.reason, refusal.code)
        self._sessions.begin(self)
        try:
            await self._welcomed.wait()
        except BaseException:
            self._sessions.finish(self)
            raise

    def publish(self, ticket: Ticket, last: bool) -> None:
        sent = ticket.number, ticket.to, ticket.kind, ticket.bodies, ticket.ask, ticket.context, ticket.begun
        self._sessions.publish(self, *sent)

    def done(self, letters: list[str], dead: str) -> None:
        self._sessions.done(self, letters, dead)

    def listen(self) -> None:
        self._sessions.listen(self)

    async def close(self) -> None:
        self._sessions.finish(self)

    # From the server.

    def welcome(self, address: str, last: int) -> None:
        self._bus.welcomed(address, last)
        self._welcomed.set()

    def reply(self, reply: Accepted | Refused) -> None:
        if isinstance(reply, Accepted):
            self._bus.accepted(reply.number)
        else:
            self._bus.refused(reply.number, refusal_of(reply.reason, reply.code, reply.retry), reply.retry)

    def deliver(self, letters: list[Letter]) -> None:
        if self._sessions.is_current(self):
            self._bus.delivered(letters)

    def end(self, reason: str, code: str) -> None:
        self._sessions.finish(self)
        self._bus.gone(RefusedError(reason, code))
