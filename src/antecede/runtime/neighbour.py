"""One other server, and what leaves on the connection to it.

Frames of one moment share a write. While the connection is full, first copies wait, up to a bound, and resends are
dropped: their link sends them again.

**Acknowledgements are in no hurry.** A connection loses nothing, and a frame that is not acknowledged costs its sender
a little memory. To say after every frame that it is here would be a good part of the work that the frame itself is, at
both ends. So steps don't acknowledge for a few milliseconds, or until there is much to say; the next one that takes
place anyway does, and its words travel with its frames. If there is none for as long again, one is taken for it.
"""

import asyncio
from collections.abc import Callable

from antecede import limits, wire
from antecede.channel import Outgoing
from antecede.link import Ack, Frame
from antecede.transports import Connection


class Peer:
    """One neighbour."""

    def __init__(self, name: str, domains: list[str]) -> None:
        self.name = name
        self.domains = domains
        self.connection: Connection | None = None
        self.ready = False
        """Both hellos were said."""
        self.deferred: list[Outgoing] = []
        self.newest: dict[str, int] = {}
        """For each domain the largest frame number that was written to this connection: what is larger is no resend."""
        self.version = wire.VERSION_OLDEST
        """The wire version that both ends speak."""
        self.meetings = 0
        """How often a connection was made: all but the first are reconnections."""
        self.parting = ""
        """Why the other end has just said good-bye."""
        self.dialer: asyncio.Task[None] | None = None
        self.wake = asyncio.Event()

    def begin(self) -> None:
        """A new connection: nothing has been said on it."""
        self.ready = False
        self.deferred.clear()
        self.newest.clear()

    def write(self, several: list[Outgoing]) -> None:
        """Frames and acknowledgements that may leave."""
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
        """The connection has room again."""
        if self.ready and self.deferred:
            deferred, self.deferred = self.deferred, []
            self.write(deferred)

    def _parts(self, several: list[Outgoing]) -> list[wire.Part]:
        """Frames of one link share a part."""
        newest = self.newest
        if len(several) == 1:
            domain, content = several[0].domain, several[0].content
            if isinstance(content, Ack):
                return [_said(domain, content)]
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
                parts.append(_said(one.domain, content))
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


def _said(domain: str, ack: Ack) -> wire.PeerAck:
    return wire.PeerAck(domain, ack.source, ack.target, ack.upto, ack.beyond)


class Patience:
    """When the next acknowledgements are due."""

    def __init__(self, poke: Callable[[], None]) -> None:
        self._poke = poke
        self._frames = 0
        self._timer: asyncio.TimerHandle | None = None
        self.over = False
        """The next step is to acknowledge what there is."""

    def got(self, frames: int) -> None:
        """So many frames came that want to be acknowledged."""
        self._frames += frames
        if self._frames >= _frames_together:
            self.over = True
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_ack_seconds, self._up)

    def acknowledged(self) -> None:
        """A step did."""
        self._frames, self.over = 0, False

    def _up(self) -> None:
        self._timer = None
        if self._frames:
            if self.over:
                self._poke()
            self.over = True
            self._timer = asyncio.get_running_loop().call_later(_ack_seconds, self._up)


_ack_seconds = 0.003
_frames_together = 64
