"""Track incoming connections, and limit what they may use.

A connection is a *stranger* from the moment it is accepted, TLS handshake included, until its hello is accepted. The
number of strangers is limited, in total and per address. When a new stranger exceeds a limit, the oldest one is closed,
since a correct program sends its hello at once. So silent connections can neither use up the file descriptors nor block
others. The number of clients is limited, too, but a client is never closed to make room for a stranger. Other servers
can always connect: one connection is reserved for each.

An access file may limit one address further: the connections that it has at the same time, known clients included, and
the new connections that it makes per second. Connections above these limits are closed at once.

Bytes of incomplete frames are counted as well, in total and per address. Above a limit, the connection whose frame
began first is closed. Frames of other servers are not counted, because there are only few servers.
"""

from collections import Counter
from collections.abc import Callable

from antecede import limits
from antecede.access.model import AddressLimits
from antecede.access.rates import Attempts

Drop = Callable[[str, str], None]
"""A function that closes a connection. Its arguments are the reason and the code of the reason."""


class Guest:
    """One incoming connection."""

    __slots__ = ("address", "admission", "drop", "known", "server", "unfinished")

    def __init__(self, admission: "Admission", address: str, drop: Drop) -> None:
        self.admission = admission
        self.address = address
        self.drop = drop
        self.known = False
        """Whether the hello of this connection was accepted. It is False again after the connection is closed."""
        self.server = False
        """Whether the other end is another server, and its hello was accepted."""
        self.unfinished = 0
        """Bytes of a frame that is not complete."""

    @property
    def is_client(self) -> bool:
        """Whether the other end is a client: its hello was accepted, and it is not another server."""
        return self.known and not self.server

    def proved(self, *, server: bool) -> None:
        """Record that the hello was accepted."""
        self.admission._proved(self, server)

    def left(self) -> None:
        """Record that the connection is closed."""
        self.admission._left(self)

    def keeps(self, unfinished: int) -> None:
        """Set the number of bytes of an incomplete frame."""
        self.admission._keeps(self, unfinished)


class Admission:
    """All incoming connections of one server."""

    def __init__(self, connections_max: int = limits.connections_max, servers: int = 0) -> None:
        self.strangers_max = min(limits.strangers_max, max(1, connections_max // 4))
        self.strangers_address_max = min(limits.strangers_address_max, max(1, self.strangers_max // 2))
        self.clients_max = max(1, connections_max - self.strangers_max - servers)
        self.clients = 0
        self.dropped = 0
        """The number of strangers that were closed because of a limit, or because no file descriptor was left."""
        self._strangers: dict[Guest, None] = {}
        """The strangers, oldest first."""
        self._of_address: Counter[str] = Counter()
        self._connected: Counter[str] = Counter()
        """The number of connections of each address, except those of other servers."""
        self._connected_max: int | None = None
        self._attempts: Attempts | None = None
        self._unfinished: dict[Guest, None] = {}
        """The connections that have an incomplete frame, in the sequence in which these frames began. Connections of
        other servers are not included."""
        self._unfinished_of: Counter[str] = Counter()
        self.unfinished_bytes = 0

    @property
    def strangers(self) -> int:
        """The number of connections whose hello is not accepted yet."""
        return len(self._strangers)

    @property
    def full(self) -> bool:
        """Whether there is no place for another client."""
        return self.clients >= self.clients_max

    def limit_addresses(self, limited: AddressLimits) -> None:
        """Apply the limits of an access file to new connections."""
        self._connected_max = limited.connections
        rate = limited.attempts
        self._attempts = None if rate is None else Attempts(rate, limits.addresses_watched_max)

    def _excess(self, address: str, now: float) -> str:
        """Return the reason to close a new connection from this address: a limit of the access file that the connection
        exceeds. Return an empty string if it exceeds none."""
        if self._attempts is not None and not self._attempts.take(address, now):
            return "too many attempts to connect from one address: try again later"
        if self._connected_max is not None and self._connected[address] >= self._connected_max:
            return f"more than {self._connected_max} connections from one address"
        return ""

    def enter(self, address: str, drop: Drop, now: float = 0.0) -> Guest:
        """Register a new connection as a stranger. ``drop``: a function that closes this connection. If there are too
        many strangers, the oldest one is closed. If the address exceeds a limit of the access file, the new connection
        is closed."""
        excess = self._excess(address, now)
        if self._of_address[address] >= self.strangers_address_max:
            self._drop_stranger(address)
        elif len(self._strangers) >= self.strangers_max:
            self._drop_stranger()
        guest = Guest(self, address, drop)
        self._strangers[guest] = None
        self._of_address[address] += 1
        self._connected[address] += 1
        if excess:
            self.dropped += 1
            guest.left()
            drop(excess, "too-many-from-address")
        return guest

    def make_room(self) -> None:
        """Close the oldest stranger, if there is one, because no file descriptor is left."""
        if self._strangers:
            self._drop_stranger()

    def _drop_stranger(self, address: str = "") -> None:
        oldest = next(guest for guest in self._strangers if not address or guest.address == address)
        self.dropped += 1
        oldest.left()
        oldest.drop("too many connections without a hello: try again", "too-many-strangers")

    def _proved(self, guest: Guest, server: bool) -> None:
        if guest.known or guest not in self._strangers:
            return
        self._forget_stranger(guest)
        guest.known, guest.server = True, server
        self.clients += not server
        if server:
            self._keeps(guest, 0)
            self._disconnected(guest.address)

    def _left(self, guest: Guest) -> None:
        self._keeps(guest, 0)
        if guest.known:
            self.clients -= not guest.server
            guest.known = False
            if not guest.server:
                self._disconnected(guest.address)
        elif guest in self._strangers:
            self._forget_stranger(guest)
            self._disconnected(guest.address)

    def _disconnected(self, address: str) -> None:
        self._connected[address] -= 1
        if not self._connected[address]:
            del self._connected[address]

    def _forget_stranger(self, guest: Guest) -> None:
        del self._strangers[guest]
        self._of_address[guest.address] -= 1
        if not self._of_address[guest.address]:
            del self._of_address[guest.address]

    def _keeps(self, guest: Guest, unfinished: int) -> None:
        if guest.server and unfinished:
            return
        more = unfinished - guest.unfinished
        if not more:
            return
        if not guest.unfinished:
            self._unfinished[guest] = None
        guest.unfinished = unfinished
        if not unfinished:
            del self._unfinished[guest]
        self.unfinished_bytes += more
        self._unfinished_of[guest.address] += more
        if not self._unfinished_of[guest.address]:
            del self._unfinished_of[guest.address]
        if more > 0:
            self._bound_unfinished(guest.address)

    def _bound_unfinished(self, address: str) -> None:
        while self._unfinished_of[address] > limits.unfinished_address_bytes_max:
            self._drop_unfinished(next(guest for guest in self._unfinished if guest.address == address))
        while self.unfinished_bytes > limits.unfinished_bytes_max:
            self._drop_unfinished(next(iter(self._unfinished)))

    def _drop_unfinished(self, guest: Guest) -> None:
        self._keeps(guest, 0)
        guest.drop("too many bytes of incomplete frames: try again", "too-much-unfinished")
