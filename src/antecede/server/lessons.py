"""Lessons between two servers: the one that is ahead sends the topology in force, the other one records it.

See :mod:`antecede.server.learning` for the rules. A lesson comes after both hellos, on the same connection, whichever
end has dialed. Then the server that has learned closes the connection, and both connect again. If it does not believe
the lesson, it says why, and stays apart.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from antecede import wire
from antecede.errors import AntecedeError, OverloadError
from antecede.server import AgentServer
from antecede.server.connections import Connection
from antecede.server.inquiries import CODE
from antecede.server.learning import learns, lesson_of, teaches
from antecede.server.peer import Peer
from antecede.server.words import Log, Refusal

if TYPE_CHECKING:
    from antecede.server.peering import Peering

Learn = Callable[[bytes, Callable[[Any, AntecedeError | None], None]], None]
"""Records a lesson, and reports its result or the error."""


class Lessons:
    """The lessons that one server gives and takes."""

    def __init__(self, peering: "Peering", machine: AgentServer, log: Log) -> None:
        self._peering = peering
        self._machine = machine
        self._log = log
        self.learn: Learn = lambda content, done: done(None, None)

    def are_due_to(self, hello: wire.ServerHello) -> bool:
        """Return whether the sender of a hello, which has proved to be a server, must learn from this one."""
        return self._same_copy(hello) and teaches(self._machine, hello)

    def are_due_from(self, hello: wire.ServerHello) -> bool:
        """Return whether this server must learn from the sender of a hello, which has proved to be a server."""
        return self._same_copy(hello) and learns(self._machine, hello)

    def _same_copy(self, hello: wire.ServerHello) -> bool:
        # A restored system has its id behind its epoch (antecede.backups.system).
        mine = self._peering.epoch.partition("~")[2]
        return hello.epoch.partition("~")[2] == mine

    def give(self, hello: wire.ServerHello, connection: Connection, dialed: bool) -> None:
        """Send a lesson, after our hello if it was not sent yet; the other end closes the connection."""
        lesson = wire.Lesson(lesson_of(self._machine.organisation))
        self._log.info("teaches", peer=hello.server[:64], change=self._machine.organisation.change)
        if dialed:
            self._peering.when_durable(lambda: connection.send([lesson]))
        else:
            to = Peer(hello.server[:64], [], False)
            self._peering.say_hello(to, connection, lambda: connection.send([lesson]), hello.attempt[:64], True)

    def expect(self, hello: wire.ServerHello, connection: Connection, dialed: bool) -> None:
        """Get ready for a lesson: the end that has dialed waits for our hello first."""
        connection.trust(server=True)
        if not dialed:
            self._peering.say_hello(Peer(hello.server[:64], [], False), connection, lambda: None)

    def take(self, peer: str, part: wire.AnyPart, connection: Connection) -> None:
        """Take a lesson."""
        if not isinstance(part, wire.Lesson):
            what = f"{type(part).__name__} where a topology was expected"
            self._peering.refuse(peer, connection, Refusal("lesson-expected", what))
            return

        def learned(result: Any, error: AntecedeError | None) -> None:
            if error is None or isinstance(error, OverloadError):
                self._log.info("learned", peer=peer, change=self._machine.organisation.change, ok=error is None)
                connection.close("the topology has changed", code=CODE)
            else:
                self._peering.refuse(peer, connection, Refusal("other-topology", str(error)))

        self.learn(part.content, learned)

    def part(self) -> None:
        """Close the connections to servers that do not take part in the change that is staged."""
        organisation = self._machine.organisation
        for peer in self._peering.peers.values():
            for connection in (peer.connection, peer.dialed):
                if connection is not None and organisation.is_apart(peer.name):
                    connection.close("the topology changes", code=CODE)
