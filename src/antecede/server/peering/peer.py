"""One other server, and the output on the connection to it.

Frames that can be sent at the same time are written together. While the connection is full, at most
``deferred_frames_max`` frames and acknowledgements wait here. Further frames and acknowledgements are dropped. A frame
that was already written to this connection does not wait here again: it is dropped, too. Nothing is lost, because the
link repeats each frame until it is acknowledged.
"""

from typing import Any

import msgspec

from antecede import limits, wire
from antecede.access import Who
from antecede.channel.consumer import Outgoing
from antecede.link import Ack, Frame
from antecede.server.connections import Backoff, Connection


class Unreachable(msgspec.Struct, frozen=True):
    """A peer that does not answer when it is dialed."""

    reason: str
    """The reason why the last try failed."""
    since: float
    tries: int

    def status(self, now: float) -> dict[str, Any]:
        """Return the values that the operators' command ``status`` shows for this peer."""
        return {"reason": self.reason, "tries": self.tries, "seconds": round(max(0.0, now - self.since), 1)}


class Peer:
    """Another server that shares a domain with this one."""

    def __init__(self, name: str, domains: list[str], ours_to_dial: bool) -> None:
        self.name = name
        self.domains = domains
        self.ours_to_dial = ours_to_dial
        self.connection: Connection | None = None
        self.serial = 0
        """The number of the newest connection on which a hello was accepted."""
        self.dialed: Connection | None = None
        """The connection that we dialed, even if the peer has not sent its hello yet."""
        self.who: Who | None = None
        """The identity that the peer has proved on the connection that we dialed."""
        self.ready = False
        """Whether this server and the peer have sent their hellos. Frames may be sent only after both hellos."""
        self.deferred: list[Outgoing] = []
        """Frames and acknowledgements that wait for space on the connection."""
        self.newest: dict[str, int] = {}
        """Domain → the largest frame number written to this connection. A frame with a larger number is new for this
        connection."""
        self.connections = 0
        """The number of connections that were made so far. Every connection after the first is a reconnection."""
        self.bye = ""
        """The reason that the other end gave for closing the connection."""
        self.claim = ""
        """The reason why this server last refused a program that claimed to be this peer without proof. The text is
        empty if no such program was refused since the peer last connected."""
        self.dial_at: float | None = None
        """The time at which this server will dial the peer, or None if no dial is planned."""
        self.backoff = Backoff()

    def begin(self) -> None:
        """Forget the state of an earlier connection. Drop the frames and acknowledgements that wait for space on it."""
        self.ready = False
        self.claim = ""
        self.deferred.clear()
        self.newest.clear()

    def write(self, several: list[Outgoing]) -> None:
        """Write frames and acknowledgements. If the connection is full, add them to ``deferred`` instead. In this case,
        drop frames that were already written to this connection, and everything beyond ``deferred_frames_max``."""
        connection = self.connection
        assert connection is not None
        if not connection.full:
            connection.send(self._parts(several))
            return
        for one in several:
            content = one.content
            again = isinstance(content, Frame) and content.number <= self.newest.get(one.domain, 0)
            if not again and len(self.deferred) < limits.deferred_frames_max:
                self.deferred.append(one)

    def writable(self) -> None:
        """Write the frames and acknowledgements that were kept, because the connection has room again."""
        if self.ready and self.deferred:
            deferred, self.deferred = self.deferred, []
            self.write(deferred)

    def _parts(self, several: list[Outgoing]) -> list[wire.Part]:
        """Return the parts to write. A part contains an acknowledgement, or consecutive frames of one link, up to a
        size limit."""
        newest = self.newest
        if len(several) == 1:
            domain, content = several[0].domain, several[0].content
            if isinstance(content, Ack):
                return [_acknowledgement(domain, content)]
            if content.number > newest.get(domain, 0):
                newest[domain] = content.number
            return [wire.PeerFrames(domain, content.source, content.target, [content.number], [content.body])]
        parts: list[wire.Part] = []
        open_: tuple[str, int, int] | None = None
        numbers: list[int] = []
        bodies: list[bytes] = []
        size = 0
        for one in several:
            content = one.content
            if isinstance(content, Ack):
                parts.append(_acknowledgement(one.domain, content))
                continue
            link = (one.domain, content.source, content.target)
            if link != open_ or size > limits.frame_bytes_wanted:
                numbers, bodies, size, open_ = [], [], 0, link
                parts.append(wire.PeerFrames(*link, numbers, bodies))
            numbers.append(content.number)
            bodies.append(content.body)
            size += len(content.body)
            if content.number > newest.get(one.domain, 0):
                newest[one.domain] = content.number
        return parts


def _acknowledgement(domain: str, ack: Ack) -> wire.PeerAck:
    return wire.PeerAck(domain, ack.source, ack.target, ack.upto, ack.beyond)
