"""The guard of a server: it checks identities, counts their connections, and writes the audit log.

It uses three objects. The authoriser decides what an identity may do. The keyring proves this server's identity. The
audit log stores the events. This module checks all connections of peers, clients and operators. It also checks all
requests for pages of the metrics server.
"""

from collections import Counter
from typing import Any

from antecede.access import Authoriser, Refusal, Who
from antecede.access.audit import REFUSED, Audit
from antecede.access.authoriser import ANONYMOUS, OPERATE
from antecede.access.proof import Answering, Keyring
from antecede.server.connections import Connection
from antecede.server.inputs import Log
from antecede.wire import Introduce


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
