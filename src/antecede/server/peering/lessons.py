"""Lessons between two servers. The server with the newer topology sends the topology in force, and the other server
records it.

See :mod:`antecede.server.peering.learning` for the rules. A lesson comes after both hellos, on the same connection. It
does not matter which of the two servers has dialed. When the receiver has recorded the lesson, it closes the
connection, and both servers connect again. A server that refuses a lesson sends the reason and closes the connection. A
server accepts lessons only from servers that it believes (see *Which servers are believed* in ``learning``). When any
other server has a newer topology, the server requests a lesson from the servers that it believes.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from antecede import limits, wire
from antecede.access import Refusal
from antecede.errors import AntecedeError, OverloadError
from antecede.server import AgentServer
from antecede.server.connections import Connection
from antecede.server.inputs import Log
from antecede.server.peering.inquiries import CODE
from antecede.server.peering.learning import learns, lesson_of, teachers_of, teaches, trusts
from antecede.server.peering.peer import Peer

if TYPE_CHECKING:
    from antecede.server.peering import Peering

UNCONFIRMED: Final = "unconfirmed"
"""The code of a refusal: the other server has a newer topology, but this server does not accept lessons from it. The
refusals end when this server has learned the change from a server whose lessons it accepts."""
Learn = Callable[[bytes, Callable[[Any, AntecedeError | None], None]], None]
"""A function with two arguments: a lesson as JSON, and a callback. It records the lesson in the log, and then calls the
callback with the result or the error."""


class Lessons:
    """Sends and receives lessons for one server. The server sends a lesson when another server has missed changes of
    the topology. The server receives a lesson when it has missed changes itself."""

    def __init__(self, peering: "Peering", machine: AgentServer, log: Log) -> None:
        self._peering = peering
        self._machine = machine
        self._log = log
        self.learn: Learn = lambda content, done: done(None, None)
        self.ask: Callable[[str], None] = lambda server: None
        """A function that connects to a server to get a lesson from it. That server need not be a peer."""
        self._waiting: set[str] = set()
        """Servers that have a newer topology, but from which this server does not accept lessons. Each of them was
        disconnected once for this reason. The set is emptied when another topology comes into force here."""
        self._trouble = ""
        """The reason why the last lesson was refused."""

    def are_due_to(self, hello: wire.ServerHello) -> bool:
        """Return whether the sender of a hello must learn changes of the topology from this server. The sender is an
        authenticated server."""
        return self._same_copy(hello) and teaches(self._machine, hello)

    def are_due_from(self, hello: wire.ServerHello) -> bool:
        """Return whether this server must learn changes of the topology from the sender of a hello. The sender is an
        authenticated server."""
        return self._same_copy(hello) and learns(self._machine, hello)

    def _same_copy(self, hello: wire.ServerHello) -> bool:
        # A restored system has its id behind its epoch (antecede.backups.folder).
        return hello.epoch.partition("~")[2] == self._peering.restored

    def give(self, hello: wire.ServerHello, connection: Connection, dialed: bool) -> None:
        """Send a lesson to the sender of ``hello``. ``dialed``: whether this server has dialed. If it has not, send our
        hello first, because the other server waits for it. The other server closes the connection after the lesson."""
        lesson = wire.Lesson(lesson_of(self._machine.organisation))
        self._log.info("teaches", peer=hello.server[:64], change=self._machine.organisation.change)
        if dialed:
            self._peering.when_durable(lambda: connection.send([lesson]))
        else:
            to = Peer(hello.server[:64], [], False)
            self._peering.say_hello(to, connection, lambda: connection.send([lesson]), hello.attempt[:64], True)

    def expect(self, hello: wire.ServerHello, connection: Connection, dialed: bool) -> bool:
        """Prepare to receive a lesson (the changes that this server has missed) from the sender of ``hello``.
        ``dialed``: whether this server has dialed. If it has not, send our hello, because the other server waits for
        it. If this server does not accept lessons from the other one, close the connection and return False. Otherwise
        return True."""
        if not trusts(self._machine, hello.server):
            self._send_away(hello, connection)
            return False
        connection.trust(server=True)
        if not dialed:
            self._peering.say_hello(Peer(hello.server[:64], [], False), connection, lambda: None)
        return True

    def _send_away(self, hello: wire.ServerHello, connection: Connection) -> None:
        """Close the connection to a server that has a newer topology, but from which this server does not accept
        lessons. Ask for a lesson from the servers whose lessons this server accepts. The first time, the other server
        may connect again immediately. After that, it is refused until another topology is in force here. If there is no
        server to ask, the other server is refused immediately."""
        teachers = teachers_of(self._machine)
        for server in teachers:
            self.ask(server)
        other = hello.server[:64]
        if teachers and other not in self._waiting and len(self._waiting) < limits.topology_servers_max:
            self._waiting.add(other)
            connection.close("the topology has changed", code=CODE)
            return
        me, change = self._machine.name, self._machine.organisation.change
        reason = f"server {other} has change {hello.change} of the topology and {me} has change {change}: "
        if teachers:
            reason += f"{me} learns changes only from {teachers[-1]}, which has not confirmed it"
            reason += f" ({self._trouble})" if self._trouble else ""
        else:
            reason += (
                f"{me} takes part in every change, so its data or the data of {other} does not belong to this system"
            )
        self._peering.refuse(hello.server, connection, Refusal(UNCONFIRMED, reason))

    def organised(self) -> None:
        """Forget which servers were disconnected, and why the last lesson was refused, because another topology is in
        force."""
        self._waiting.clear()
        self._trouble = ""

    def take(self, peer: str, part: wire.AnyPart, connection: Connection) -> None:
        """Handle the part that a peer has sent when this server expects a lesson (the changes that this server has
        missed). Refuse the part if it is not a lesson."""
        if not isinstance(part, wire.Lesson):
            what = f"{type(part).__name__} where a topology was expected"
            self._peering.refuse(peer, connection, Refusal("lesson-expected", what))
            return

        def learned(result: Any, error: AntecedeError | None) -> None:
            if error is None or isinstance(error, OverloadError):
                self._log.info("learned", peer=peer, change=self._machine.organisation.change, ok=error is None)
                connection.close("the topology has changed", code=CODE)
            else:
                self._trouble = str(error)
                self._peering.refuse(peer, connection, Refusal("other-topology", str(error)))

        self.learn(part.content, learned)

    def part(self) -> None:
        """Close the connections to servers that do not take part in the change that is staged."""
        organisation = self._machine.organisation
        for peer in self._peering.peers.values():
            for connection in (peer.connection, peer.dialed):
                if connection is not None and organisation.is_apart(peer.name):
                    connection.close("the topology changes", code=CODE)
