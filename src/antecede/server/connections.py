"""One end of a connection, as the sans-I/O classes see it: TCP in a live server, simulated in the simulator."""

from collections.abc import Sequence
from itertools import count
from typing import Final, Protocol

from antecede import limits
from antecede.errors import WireError
from antecede.wire import AnyPart, Part, Ping

# Pauses between tries: how long to wait after a failure, and after how many failures to give up.
#
# If a **handler** of an agent or a client fails, it is tried again a few times. Each pause is twice as long as the one
# before. After the last try, the letter becomes a dead letter. A **server** that cannot be reached, or refuses us, is
# dialed again for as long as we need this server. The pauses grow up to a bound, and a part of each pause is random. So
# if many clients and servers lose the connection to the same server, they do not dial it at the same moment.


def is_last_try(tries: int) -> bool:
    """Return whether to give up after a handler has failed ``tries`` times."""
    return tries >= limits.reaction_tries_max


def pause_after(tries: int) -> float:
    """Return the number of seconds between the last failure of a handler and its next try. ``tries``: the number of
    failures so far."""
    return float(limits.reaction_pause_seconds * 2 ** (tries - 1))


class Backoff:
    """The pauses before one server is dialed again."""

    __slots__ = ("_pause",)

    def __init__(self) -> None:
        self._pause = _first_seconds

    def next(self, random: float) -> float:
        """Return how many seconds to wait before the next dial: from half of the pause (``random`` is 0) to the whole
        pause (``random`` is 1). Then double the pause, up to ``dial_seconds_max``."""
        seconds = self._pause * (1 + random) / 2
        self._pause = min(2 * self._pause, limits.dial_seconds_max)
        return seconds

    def grow_to(self, seconds: float) -> None:
        """Set the next pause to at least ``seconds``."""
        self._pause = max(self._pause, seconds)

    def reset(self) -> None:
        """Make the next pause the shortest one, because the server can be used again."""
        self._pause = _first_seconds


_first_seconds: Final = 0.05


SILENT: Final = "silent"
"""The reason code of a connection that was closed because nothing was received on it."""
NO_HELLO: Final = "no-hello"
"""The reason code of a connection that was closed because no hello was received on it."""


CLOSED_AT_ONCE: Final = (
    "the server closed the connection without an answer; does it use TLS? (--credentials DIR, or --authority FILE)"
)
"""The error text if the other end closed the connection, and sent neither an answer nor a reason."""
NO_WELCOME: Final = "it accepts the connection and does not answer; is this the port of a server?"
"""The error text while the connection is open and no answer has come."""

serials = count(1)
"""Numbers for the connections of this process."""


class Connection(Protocol):
    """One end of a connection."""

    serial: int
    """The number of this connection. A connection that was made later has a larger number."""
    remote: str
    """The other end's address, for logs."""
    last_sent: float
    """The time of the last write."""
    code: str
    """The code for the reason why this end closed the connection. It is empty if this end gave no code, or has not
    closed the connection."""
    binding: bytes
    """A value that only the two ends of this TLS connection know. It is empty if the connection does not use TLS."""
    certified: tuple[str, ...]
    """The names in the other end's certificate, which TLS has checked. The tuple is empty if the other end showed no
    certificate."""

    @property
    def last_received(self) -> float:
        """The time of the last input. While this end does not read, this is the present time, so that the connection is
        not closed because of silence."""
        ...

    @property
    def full(self) -> bool:
        """Whether the connection is full: the other end has so much to read that nothing more should be written."""
        ...

    def send(self, parts: Sequence[Part]) -> None:
        """Write parts (messages of the wire protocol). They are lost if the connection is closed."""
        ...

    def close(self, reason: str, final: bool = False, code: str = "") -> None:
        """Send the reason to the other end, and close the connection. Afterwards the connection calls the method
        ``closed`` of its receiver. ``final``: whether it is useless to connect again. ``code``: the reason in one
        word."""
        ...

    def trust(self, *, server: bool) -> None:
        """Allow longer frames from now on: the other end is authenticated. ``server``: whether the
        other end is a server."""
        ...

    def hold(self, held: bool) -> None:
        """Stop reading if ``held`` is true; otherwise continue."""
        ...

    def busy(self, busy: bool) -> None:
        """Stop reading if ``busy`` is true, because parts that have arrived are not yet handled. If ``busy`` is false,
        continue to read, unless ``hold`` has stopped the reading."""
        ...

    def expect_a_reader(self, expected: bool) -> None:
        """Set whether this end waits for a slow reader. If ``expected`` is true, this end reads nothing while the
        connection is full because the other end reads too slowly. Between two servers, ``expected`` is false: if both
        servers stopped reading, they might wait for each other forever."""
        ...


class Receiver(Protocol):
    """The object that handles a connection: the connection calls these methods to report events."""

    def received(self, parts: list[AnyPart]) -> None:
        """Handle parts that have arrived. If this method raises a :class:`antecede.errors.WireError`, the caller must
        call ``break_off``."""
        ...

    def closed(self, reason: str, now: float) -> None:
        """Record that the connection has ended. The connection calls this method exactly one time. ``reason`` is empty
        if the other end closed the connection."""
        ...

    def writable(self) -> None:
        """Continue writing: a connection that was full has room again."""
        ...


def break_off(connection: Connection, error: WireError, *, client: bool) -> None:
    """Close a connection whose other end broke a rule of the protocol. ``client``: whether the other end is a client
    with a session. For such a client it is useless to try again, because its library would break the same rule after a
    reconnect."""
    connection.close(str(error), final=client, code=error.code)


def keep_alive(connection: Connection, now: float) -> None:
    """Send a ping if nothing was sent for a while. Close the connection if nothing was received for a longer time."""
    if now - connection.last_received > 3 * limits.heartbeat_seconds:
        connection.close(f"nothing received for {3 * limits.heartbeat_seconds:.0f} s", code=SILENT)
    elif now - connection.last_sent >= limits.heartbeat_seconds:
        connection.send([Ping()])
