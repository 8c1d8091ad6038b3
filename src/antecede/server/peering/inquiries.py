"""Questions to other servers about a change of the topology. Each question has its own connection, only for hellos.

A question is a hello that names no links. The other server answers with its hello, and then closes the connection. A
server that is refused because it has not made a change yet gets the same answer. From this answer it learns that the
change was made. See :mod:`antecede.server.change.deciding`.
"""

from typing import TYPE_CHECKING

from antecede import wire
from antecede.access import Refusal
from antecede.server import AgentServer
from antecede.server.connections import Connection
from antecede.server.inputs import Log
from antecede.server.peering.agreement import BEHIND
from antecede.server.peering.peer import Peer

if TYPE_CHECKING:
    from antecede.server.peering import Peering

CODE = "topology-changed"


class Inquiries:
    """The questions of one server about a change of the topology, and its answers to such questions."""

    def __init__(self, peering: "Peering", machine: AgentServer, log: Log) -> None:
        self._peering = peering
        self._machine = machine
        self._log = log
        self._at: dict[str, float] = {}
        """The server's name → the time at which to ask this server."""
        self._dialed: set[str] = set()

    def ask(self, server: str, now: float) -> None:
        """Plan to ask a server for its hello at the time ``now``."""
        self._at[server] = now

    def deadline(self) -> float | None:
        """Return the time of the next question, or None if no question is planned."""
        return min(self._at.values(), default=None)

    def due(self, now: float) -> list[str]:
        """Return the servers to dial now for a question. The caller then calls ``ended`` for each of them."""
        found = [name for name, when in self._at.items() if when <= now]
        for name in found:
            del self._at[name]
        fresh = [name for name in found if name not in self._dialed]
        self._dialed.update(fresh)
        return fresh

    def ended(self, name: str) -> bool:
        """Record that the attempt to dial a server has ended, with success or without. Return whether the server was
        dialed for a question."""
        asked = name in self._dialed
        self._dialed.discard(name)
        return asked

    def answered(self, hello: wire.ServerHello) -> None:
        """Handle the answer to a question. If this server is new and the other server does not know it, record that
        this server is not part of the system yet."""
        organisation = self._machine.organisation
        if not hello.known and organisation.is_new(self._machine.channel):
            if not organisation.outside:
                self._log.info("not-yet-part", peer=hello.server, topology=hello.epoch[:64])
            organisation.outside = True

    def answers(self, hello: wire.ServerHello, refusal: Refusal) -> bool:
        """Return whether a refused server must get our hello. It gets the hello if it asked a question, or if it has
        not made a change yet."""
        behind = hello.change < self._machine.organisation.change or bool(hello.attempt)
        return refusal.code in BEHIND and (behind or not hello.links)

    def answer(self, hello: wire.ServerHello, connection: Connection, refusal: Refusal) -> None:
        """Send our hello when everything recorded so far is durable, and then close the connection."""
        to, attempt = Peer(hello.server[:64], [], False), hello.attempt[:64]
        self._peering.say_hello(to, connection, lambda: connection.close(refusal.reason, code=CODE), attempt)
