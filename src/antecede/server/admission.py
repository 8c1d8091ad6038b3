"""Track incoming connections, and limit what they may use.

A new connection is a *stranger* until the server has accepted its hello (its first message). This includes the time of
the TLS handshake. The number of strangers is limited, in total and per address. When a new stranger exceeds a limit,
the oldest stranger is closed. This does not affect correct programs, because they send their hello immediately. So
silent connections can neither use up the file descriptors nor block others. The number of clients is also limited, but
a client is never closed to make room for a stranger. The limit of clients does not affect other servers: one more
connection is reserved for each of them.

An access file may set two more limits for each address: the number of connections at the same time, and the number of
new connections per second. The first limit includes strangers and clients, but not other servers. A new connection
above one of these limits is closed immediately.

An IPv6 host can usually choose among 2**64 addresses. So the first 64 bits of an IPv6 address count as one address.

The bytes of incomplete frames are also limited, in total and per address. Above a limit, the connection with the oldest
incomplete frame is closed. Frames of other servers are not counted, because there are only a few servers.
"""

from collections import Counter
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Any

from antecede import limits
from antecede.access import Authoriser, Refusal, Who
from antecede.access.audit import REFUSED, Audit
from antecede.access.authoriser import ANONYMOUS, OPERATE
from antecede.access.model import AddressLimits
from antecede.access.proof import Answering, Keyring
from antecede.access.rates import Attempts
from antecede.server.connections import Connection
from antecede.server.inputs import Log
from antecede.wire import Introduce

# The guard of a server: it checks identities, counts their connections, and writes the audit log.
#
# It uses three objects. The authoriser decides what an identity may do. The keyring proves this server's identity. The
# audit log stores the events. This module checks all connections of peers, clients and operators. It also checks all
# requests for pages of the metrics server.


class Guard:
    """Checks the identities that connect to one server, counts their connections, and writes the audit log."""

    def __init__(self, authoriser: Authoriser, keyring: Keyring | None, audit: Audit | None, log: Log) -> None:
        """``keyring`` proves this server's identity. If it is None, there is no access file, and all programs use the
        same token."""
        self.authoriser = authoriser
        self.keyring = keyring
        self._audit = audit
        self._log = log
        self._connections: Counter[tuple[str, str]] = Counter()

    def answering(self, connection: Connection, introduction: Introduce) -> Answering | Refusal:
        """Begin to check the identity at the other end of an incoming connection. Return a Refusal if this server has
        no keyring, because a server without a keyring cannot check identities."""
        if self.keyring is None:
            return Refusal("no-access-file", "this server has no access file, and cannot check credentials")
        return Answering(self.keyring, self.authoriser, connection, introduction)

    def lapse(self, who: Who | None) -> Refusal | None:
        """Return why the identity of an open connection is no longer valid, or None if it is still valid."""
        return None if who is None else self.authoriser.lapse(who)

    # Connections of identities.

    def enter(self, who: Who) -> Refusal | None:
        """Count a new connection of an identity. If the identity already has the largest number of connections that it
        may have, do not count the new one, and return a Refusal."""
        place = (who.role, who.name)
        most = self.authoriser.connections_max(who)
        if most is not None and self._connections[place] >= most:
            return Refusal("too-many-connections", f"{who.label} has {most} connections, and may not have more")
        self._connections[place] += 1
        return None

    def leave(self, who: Who) -> None:
        """Reduce the number of an identity's connections by one, because a connection has ended."""
        place = (who.role, who.name)
        self._connections[place] -= 1
        if self._connections[place] <= 0:
            del self._connections[place]

    # The audit log.

    def note(self, event: str, who: Who | None, remote: str, **fields: Any) -> None:
        """Write an event to the audit log, if there is one."""
        if self._audit is not None:
            self._audit.note(event, who, remote, **fields)

    def refused(self, remote: str, claims: str, refusal: Refusal, who: Who | None = None) -> None:
        """Write a refusal to the audit log. ``claims``: the name that the other end gives itself."""
        fields = {"claims": claims[:_claim_chars], "code": refusal.code, "reason": refusal.reason}
        self.note(REFUSED, who, remote, **fields)

    def refused_stranger(self, remote: str, claims: str, refusal: Refusal, who: Who | None) -> None:
        """Write a refusal to the log and to the audit log: the other end of a connection did not prove the name that it
        claims. ``claims``: this name. It is empty if the TLS handshake failed before a name was claimed. ``who``: the
        identity that the other end has proved, if any."""
        self.refused(remote, claims, refusal, who)
        named: dict[str, Any] = {"claims": claims} if claims else {}
        self._log.warning("stranger-refused", **named, remote=remote, code=refusal.code, reason=refusal.reason)


def page_refusal(authoriser: Authoriser, name: str, secret: str) -> tuple[Who | None, Refusal | None]:
    """Return two values: the identity of the caller that asks for a page of the metrics server, and the reason why this
    caller may not see the page. ``name``: the page. ``secret``: the caller's bearer token. It is empty if the caller
    sent no token. The identity is None if the secret is unknown. The reason is None if the caller may see the page."""
    who = authoriser.page_caller(secret)
    if who is None:
        return None, Refusal(UNKNOWN_CALLER, "unknown bearer token")
    refusal = authoriser.refusal(who, OPERATE, name)
    if refusal is not None and who is ANONYMOUS:
        refusal = Refusal(UNKNOWN_CALLER, f"{refusal.reason}: expected the bearer token of an operator")
    return who, refusal


UNKNOWN_CALLER = "unknown-caller"
_claim_chars = 100


Drop = Callable[[str, str], None]
"""A function that closes a connection. Its arguments are the reason and the code of the reason."""


class ConnectionSlot:
    """One incoming connection."""

    __slots__ = ("address", "admission", "drop", "known", "server", "unfinished")

    def __init__(self, admission: "Admission", address: str, drop: Drop) -> None:
        self.admission = admission
        self.address = address
        self.drop = drop
        self.known = False
        """True from the moment when the hello is accepted until the connection is closed."""
        self.server = False
        """True if the other end is another server, and its hello was accepted."""
        self.unfinished = 0
        """Bytes of a frame that is not complete."""

    @property
    def is_client(self) -> bool:
        """True if the other end is a client: its hello was accepted, and it is not another server."""
        return self.known and not self.server

    def proved(self, *, server: bool) -> None:
        """Record that the hello was accepted."""
        self.admission._proved(self, server)

    def left(self) -> None:
        """Record that the connection is closed."""
        self.admission._left(self)

    def set_unfinished(self, unfinished: int) -> None:
        """Set the number of bytes of an incomplete frame."""
        self.admission._set_unfinished(self, unfinished)


class Admission:
    """All incoming connections of one server."""

    def __init__(self, connections_max: int = limits.connections_max, servers: int = 0) -> None:
        self.strangers_max = min(limits.strangers_max, max(1, connections_max // 4))
        self.strangers_address_max = min(limits.strangers_address_max, max(1, self.strangers_max // 2))
        self.clients_max = max(1, connections_max - self.strangers_max - servers)
        self.clients = 0
        self.dropped = 0
        """The number of connections that were closed while they were strangers, because of a limit or because the
        process had no free file descriptor."""
        self._strangers: dict[ConnectionSlot, None] = {}
        """The strangers, oldest first."""
        self._of_address: Counter[str] = Counter()
        self._connected: Counter[str] = Counter()
        """The number of connections of each address, except those of other servers."""
        self._connected_max: int | None = None
        self._attempts: Attempts | None = None
        self._unfinished: dict[ConnectionSlot, None] = {}
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
        """True if the number of clients has reached its limit."""
        return self.clients >= self.clients_max

    def limit_addresses(self, limited: AddressLimits) -> None:
        """Apply the limits of an access file to new connections."""
        self._connected_max = limited.connections
        rate = limited.attempts
        self._attempts = None if rate is None else Attempts(rate, limits.addresses_watched_max)

    def _excess(self, address: str, now: float) -> str:
        """Check a new connection from this address against the limits of the access file. If the connection exceeds a
        limit, return the reason for which it must be closed. Otherwise return an empty string."""
        if self._attempts is not None and not self._attempts.take(address, now):
            return "too many attempts to connect from one address: try again later"
        if self._connected_max is not None and self._connected[address] >= self._connected_max:
            return f"more than {self._connected_max} connections from one address"
        return ""

    def enter(self, address: str, drop: Drop, now: float = 0.0) -> ConnectionSlot:
        """Register a new connection as a stranger. ``drop``: a function that closes this connection. If there are too
        many strangers, in total or from this address, the oldest of them is closed. If the address exceeds a limit of
        the access file, the new connection is closed."""
        address = _counted(address)
        excess = self._excess(address, now)
        if self._of_address[address] >= self.strangers_address_max:
            self._drop_stranger(address)
        elif len(self._strangers) >= self.strangers_max:
            self._drop_stranger()
        slot = ConnectionSlot(self, address, drop)
        self._strangers[slot] = None
        self._of_address[address] += 1
        self._connected[address] += 1
        if excess:
            self.dropped += 1
            slot.left()
            drop(excess, "too-many-from-address")
        return slot

    def make_room(self) -> None:
        """Close the oldest stranger, if there is one, because the process has no free file descriptor."""
        if self._strangers:
            self._drop_stranger()

    def _drop_stranger(self, address: str = "") -> None:
        oldest = next(slot for slot in self._strangers if not address or slot.address == address)
        self.dropped += 1
        oldest.left()
        oldest.drop("too many connections without a hello: try again", "too-many-strangers")

    def _proved(self, slot: ConnectionSlot, server: bool) -> None:
        if slot.known or slot not in self._strangers:
            return
        self._forget_stranger(slot)
        slot.known, slot.server = True, server
        self.clients += not server
        if server:
            self._set_unfinished(slot, 0)
            self._disconnected(slot.address)

    def _left(self, slot: ConnectionSlot) -> None:
        self._set_unfinished(slot, 0)
        if slot.known:
            self.clients -= not slot.server
            slot.known = False
            if not slot.server:
                self._disconnected(slot.address)
        elif slot in self._strangers:
            self._forget_stranger(slot)
            self._disconnected(slot.address)

    def _disconnected(self, address: str) -> None:
        self._connected[address] -= 1
        if not self._connected[address]:
            del self._connected[address]

    def _forget_stranger(self, slot: ConnectionSlot) -> None:
        del self._strangers[slot]
        self._of_address[slot.address] -= 1
        if not self._of_address[slot.address]:
            del self._of_address[slot.address]

    def _set_unfinished(self, slot: ConnectionSlot, unfinished: int) -> None:
        if slot.server and unfinished:
            return
        more = unfinished - slot.unfinished
        if not more:
            return
        if not slot.unfinished:
            self._unfinished[slot] = None
        slot.unfinished = unfinished
        if not unfinished:
            del self._unfinished[slot]
        self.unfinished_bytes += more
        self._unfinished_of[slot.address] += more
        if not self._unfinished_of[slot.address]:
            del self._unfinished_of[slot.address]
        if more > 0:
            self._bound_unfinished(slot.address)

    def _bound_unfinished(self, address: str) -> None:
        while self._unfinished_of[address] > limits.unfinished_address_bytes_max:
            self._drop_unfinished(next(slot for slot in self._unfinished if slot.address == address))
        while self.unfinished_bytes > limits.unfinished_bytes_max:
            self._drop_unfinished(next(iter(self._unfinished)))

    def _drop_unfinished(self, slot: ConnectionSlot) -> None:
        self._set_unfinished(slot, 0)
        slot.drop("too many bytes of incomplete frames: try again", "too-much-unfinished")


def _counted(address: str) -> str:
    """Return the name under which the connections from an address are counted."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    return str(found.ipv4_mapped or f"{IPv6Address(int(found) >> 64 << 64)}/64")
