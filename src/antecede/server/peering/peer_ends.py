"""The two ends of a connection between servers: the one that dialed, and the one that answered.

With an access file, each end first proves its identity. When the hellos have been accepted, both ends pass everything
that they receive on the connection to :class:`antecede.server.peering.Peering`.
"""

from typing import TYPE_CHECKING

from antecede import wire
from antecede.access import Refusal
from antecede.access.proof import Dialing
from antecede.errors import WireError
from antecede.server.connections import Connection
from antecede.server.peering.inquiries import CODE
from antecede.server.peering.peer import Peer

if TYPE_CHECKING:
    from antecede.server.peering import Peering


class Dialed:
    """The dialing end of a connection to a peer."""

    def __init__(self, peering: "Peering", peer: Peer, connection: Connection) -> None:
        self._peering = peering
        self._peer = peer
        self._connection = connection
        self._met = False
        self._refused = False
        self._learning = False
        self._change = -1
        """The number of the topology change in our hello, or −1 if our hello was not sent yet."""
        peer.dialed = connection
        peer.who = None
        keyring = peering.guard.keyring
        self._proof = None if keyring is None else Dialing(keyring, connection, peer.name)
        if self._proof is None:
            self._greet()
        else:
            connection.send([self._proof.introduction])

    def _greet(self) -> None:
        stopped = self._peering.stopped(self._peer.name)
        if stopped is not None:
            self._refuse(stopped)
        else:
            self._say_hello()

    def _say_hello(self) -> None:
        self._change = self._peering.change
        self._peering.say_hello(self._peer, self._connection, lambda: None)

    def received(self, parts: list[wire.AnyPart]) -> None:
        if self._met:
            self._peering.received(self._peer, parts)
            return
        # One part: the connection reads no more until it is trusted.
        first = parts[0]
        if isinstance(first, wire.Bye):
            self._peering.closed_by_peer(self._peer, first, self._connection.remote)
        elif self._refused:
            return
        elif self._learning:
            self._refused = True
            self._peering.lessons.take(self._peer.name, first, self._connection)
        elif self._proof is not None:
            self._check(self._proof, first)
        else:
            self._take_hello(first)

    def _check(self, dialing: Dialing, first: wire.AnyPart) -> None:
        """Check the peer's proof of its identity, and send ours."""
        proof = dialing.answer(first)
        if isinstance(proof, Refusal):
            self._peering.guard.refused(self._connection.remote, f"server {self._peer.name}", proof)
            self._refuse(proof)
            return
        self._proof = None
        self._peer.who = dialing.who
        self._connection.send([proof])
        self._greet()

    def _take_hello(self, first: wire.AnyPart) -> None:
        if not isinstance(first, wire.ServerHello):
            raise WireError(f"{type(first).__name__} where a server's hello was expected", "hello-expected")
        refusal = self._peering.guard.authoriser.token_refusal(first.token) if self._peer.who is None else None
        if refusal is None and first.server != self._peer.name:
            refusal = Refusal("wrong-server", f"dialed {self._peer.name} and {first.server[:64]} answered")
        if refusal is None and self._peering.decide(first):
            self._connection.close("the topology changes", code=CODE)
            return
        if refusal is None and self._is_lesson(first):
            return
        refusal = refusal or self._judge(first)
        if refusal is not None:
            self._refuse(refusal)
            return
        self._met = True
        self._peering.met(self._peer, self._connection, first)
        self._peering.open_for_frames(self._peer, self._connection)

    def _is_lesson(self, hello: wire.ServerHello) -> bool:
        """Handle the three cases in which the peer's hello must not be used, and return True. (1) The topology has
        changed here since our hello: close the connection. (2) The other server has missed changes: send a lesson. (3)
        This server has missed changes: prepare to receive a lesson. In all other cases, do nothing and return False.
        Then the caller must process the hello."""
        lessons = self._peering.lessons
        if self._change != self._peering.change:
            # The other end has got an older hello, and does not expect a lesson.
            self._connection.close("the topology has changed", code=CODE)
        elif lessons.are_due_to(hello):
            self._refused = True
            lessons.give(hello, self._connection, dialed=True)
        elif hello.teaches and lessons.are_due_from(hello):
            self._learning = lessons.expect(hello, self._connection, dialed=True)
            self._refused = not self._learning
        else:
            return False
        return True

    def _judge(self, hello: wire.ServerHello) -> Refusal | None:
        return self._peering.refusal(hello)

    def _refuse(self, refusal: Refusal) -> None:
        self._refused = True
        self._peering.refuse(self._peer.name, self._connection, refusal)

    def closed(self, reason: str, now: float) -> None:
        if self._peer.dialed is self._connection:
            self._peer.dialed = None
        self._peering.lost_dialed(self._peer, self._connection, reason, now)

    def writable(self) -> None:
        self._peer.writable()


class Inquiry(Dialed):
    """The dialing end of a connection that is made for one question (:mod:`antecede.server.peering.inquiries`)."""

    def _greet(self) -> None:
        self._say_hello()

    def _judge(self, hello: wire.ServerHello) -> Refusal | None:
        self._peering.inquiries.answered(hello)
        return Refusal(CODE, "the question is answered")

    def _refuse(self, refusal: Refusal) -> None:
        self._refused = True
        self._connection.close(refusal.reason, code=refusal.code)

    def closed(self, reason: str, now: float) -> None:
        """Do nothing, because nothing depends on this connection."""


class Answered:
    """The answering end of a connection that a peer has dialed, from the moment when the peer's hello is accepted."""

    def __init__(self, peering: "Peering", connection: Connection, hello: wire.ServerHello) -> None:
        self._peering = peering
        self._connection = connection
        self._peer = peering.peers[hello.server]
        connection.expect_a_reader(False)
        peering.met(self._peer, connection, hello)
        peering.say_hello(self._peer, connection, lambda: peering.open_for_frames(self._peer, connection))

    def received(self, parts: list[wire.AnyPart]) -> None:
        self._peering.received(self._peer, parts)

    def closed(self, reason: str, now: float) -> None:
        self._peering.lost(self._peer, self._connection, reason, now)

    def writable(self) -> None:
        self._peer.writable()
