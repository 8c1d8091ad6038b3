"""The one place that decides what an identity may do at a server, for every entry point.

Peers, clients, operators and the metrics page all ask this class, and every further entry point must ask it, too. It
answers with a refusal, which has a code, or with None: allowed. In the one-token mode there is no access file, and all
who have the token may do everything.

==============  ===================================================================================================
action          name
==============  ===================================================================================================
``link``        a server of the topology: only this server may connect under the name
``connect``     a client's name: its own, one of ``names``, or a temporary name that contains its own
``send``        a destination: an agent, or ``name@server``
``receive``     the sender of a letter; the answer to one's own question is always allowed
``subscribe``   a destination of a notification ``Subscribe`` or ``Unsubscribe``
``call``        ``object.operation``; a permission for ``object`` includes all its operations
``operate``     an operator's command, or a page of the metrics server
==============  ===================================================================================================

Permissions are checked at the client's own server. Agents are trusted, and so are clients in the server's own process.
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from antecede import limits
from antecede.access.model import CLIENT, OPERATOR, SERVER, Access, Identity, Key, Refusal, matches
from antecede.access.rates import Rate
from antecede.wire import TEMPORARY

LINK: Final = "link"
CONNECT: Final = "connect"
SEND: Final = "send"
RECEIVE: Final = "receive"
SUBSCRIBE: Final = "subscribe"
CALL: Final = "call"
OPERATE: Final = "operate"
ACTIONS: Final = (LINK, CONNECT, SEND, RECEIVE, SUBSCRIBE, CALL, OPERATE)
NOT_ALLOWED: Final = "not-allowed"
REVOKED: Final = "revoked"


class Who(msgspec.Struct, frozen=True):
    """A proven identity, and the key or certificate that proved it."""

    role: str
    name: str
    by: str = ""

    @property
    def label(self) -> str:
        """The identity in words."""
        return f"{self.role} {self.name}" if self.name else self.role


TOKEN: Final = Who("token", "")
"""Everybody who has the token of the one-token mode."""
LOCAL: Final = Who("local", "")
"""A client in the server's own process."""
ANONYMOUS: Final = Who("anonymous", "")
"""A caller of the metrics page without a token."""


class Authoriser:
    """Decides what each identity may do at one server; the access file can be replaced while the server runs."""

    def __init__(self, access: Access | None = None, token: str = "", clock: Callable[[], float] = lambda: 0.0) -> None:
        """``access``: the access file; None: the one-token mode. ``clock``: returns seconds since 1970."""
        self.access = access
        self.clock = clock
        self.error = ""
        """The reason why the last reload kept the previous file, or empty."""
        self._token = token.encode()
        self._rates: dict[Who, Rate] = {}

    @property
    def mode(self) -> str:
        """How identities are checked: ``access-file``, ``token`` or ``open``."""
        return "access-file" if self.access is not None else "token" if self._token else "open"

    def replace(self, access: Access) -> None:
        """Use another access file from now on."""
        self.access = access
        self.error = ""
        self._rates.clear()

    def servers(self) -> Mapping[str, Identity]:
        """Return the identities of servers in the access file, by name; empty without an access file."""
        return {} if self.access is None else self.access.servers

    def identity(self, role: str, name: str) -> Identity | None:
        """Return the entry of an identity in the access file; None: there is no entry, or no access file."""
        return None if self.access is None else self.access.identities(role).get(name)

    # Who it is.

    def token_refusal(self, token: str) -> Refusal | None:
        """Return why a hello with this token, and without a proof, is refused; None: it is accepted."""
        if self.access is not None:
            return Refusal(
                "proof-required", "this server accepts only connections with credentials: expected --credentials DIR"
            )
        if not hmac.compare_digest(token.encode(), self._token):
            return Refusal("wrong-token", "wrong token")
        return None

    def page_caller(self, secret: str) -> Who | None:
        """Return the identity of a caller of a page who shows this secret (empty: no secret); None: the secret is
        unknown."""
        if self.access is None:
            return TOKEN
        if not secret:
            return ANONYMOUS
        shown = f"sha256:{hashlib.sha256(secret.encode()).hexdigest()}"
        for identity in self.access.operators.values():
            if any(hmac.compare_digest(shown, token) for token in identity.tokens):
                return Who(OPERATOR, identity.name, shown)
        return None

    def lapse(self, who: Who) -> Refusal | None:
        """Return why an identity that was proved earlier does not count any more (its key was revoked, or expired);
        None: it still counts."""
        if who in (TOKEN, LOCAL, ANONYMOUS):
            return None
        identity = self.identity(who.role, who.name)
        key = next((key for key in identity.keys if key.public == who.by), None) if identity is not None else None
        if key is not None:
            if key.expires is not None and key.expires <= self.clock():
                return Refusal(REVOKED, f"the key of {who.label} has expired")
            return None
        if identity is not None:
            certificates = identity.certificates if identity.certificate_alone else ()
            if who.by in (*certificates, *identity.tokens):
                return None
        return Refusal(REVOKED, f"the credentials of {who.label} were revoked")

    # What it may do.

    def refusal(self, who: Who, action: str, name: str) -> Refusal | None:
        """Return why the identity is not allowed to do this; None: it is allowed."""
        if self.allows(who, action, name):
            return None
        return Refusal(NOT_ALLOWED, f"{who.label} may not {_phrases[action]} {name[:_shown_chars]}")

    def allows(self, who: Who, action: str, name: str) -> bool:
        """Return whether the identity is allowed to do this."""
        if who in (TOKEN, LOCAL):
            return True
        if who == ANONYMOUS:
            return action == OPERATE and self.access is not None and matches(self.access.anonymous, name)
        identity = self.identity(who.role, who.name)
        if identity is None:
            return False
        if who.role == SERVER:
            return action == LINK and name == who.name
        if who.role == OPERATOR:
            return action == OPERATE and matches(identity.operate, name)
        return who.role == CLIENT and _client_may(identity, action, name)

    def is_unrestricted(self, who: Who) -> bool:
        """Return whether the identity may do everything, so that nothing needs to be checked."""
        return who in (TOKEN, LOCAL)

    # How much.

    def connections_max(self, who: Who) -> int | None:
        """Return the number of connections that an identity may have at the same time; None: any. Servers can always
        connect."""
        identity = None if who.role == SERVER else self.identity(who.role, who.name)
        return None if identity is None or self.access is None else self.access.limits_of(identity).connections

    def rate(self, who: Who) -> Rate | None:
        """Return the limits of rate of an identity, shared by all its connections; None: it has none."""
        if who in self._rates:
            return self._rates[who]
        identity = self.identity(who.role, who.name)
        if identity is None or self.access is None:
            return None
        own = self.access.limits_of(identity)
        if own.rate is None and own.bytes is None:
            return None
        found = self._rates[who] = Rate(own.rate, own.bytes)
        return found

    def status(self) -> dict[str, object]:
        """Return the facts about the access file in use, for ``antecede status``."""
        access = self.access
        now = self.clock()
        return {
            "mode": self.mode,
            "digest": None if access is None else access.digest,
            "identities": 0 if access is None else len(access.everyone()),
            "error": self.error,
            "expires": [
                {
                    "role": identity.role,
                    "name": identity.name,
                    "key": key.public,
                    "time": when,
                    "days": round((when - now) / 86_400, 1),
                    "expired": when <= now,
                    "replaced": _is_replaced(identity, key, now),
                }
                for when, identity, key in ([] if access is None else access.expiring()[:_shown_max])
            ],
        }


def temporary_name(identity: str, unique: str) -> str:
    """Return the name of a temporary client of an identity. It contains the identity's name (if this is long, its
    hash), so that no other identity can take it. ``unique``: 16 hexadecimal digits."""
    return f"{TEMPORARY}{_part(identity)}.{unique}"


def _is_replaced(identity: Identity, key: Key, now: float) -> bool:
    """Return whether the identity has a newer key that is valid, so that this one can be revoked."""
    newest = identity.keys[-1]
    return newest is not key and (newest.expires is None or newest.expires > now)


def _is_temporary_of(identity: str, client: str) -> bool:
    prefix = f"{TEMPORARY}{_part(identity)}."
    return client.startswith(prefix) and _unique.fullmatch(client.removeprefix(prefix)) is not None


def _part(identity: str) -> str:
    """Return the part of a temporary name that stands for an identity. The whole name has at most 64 characters."""
    return identity if len(identity) <= _part_chars else hashlib.sha256(identity.encode()).hexdigest()[:_part_chars]


def _client_may(identity: Identity, action: str, name: str) -> bool:
    if action == CONNECT:
        if name.startswith(TEMPORARY):
            return _is_temporary_of(identity.name, name)
        return name == identity.name or matches(identity.names, name)
    if action == CALL:
        return matches(identity.call, name) or matches(identity.call, name.rpartition(".")[0])
    if action == RECEIVE:
        # A topic's letters are the purpose of a subscription.
        return matches(identity.receive, name) or matches(identity.subscribe, name)
    if action == SEND:
        return matches(identity.send, name)
    return action == SUBSCRIBE and matches(identity.subscribe, name)


_phrases: Final = {
    LINK: "connect as server",
    CONNECT: "connect as client",
    SEND: "send to",
    RECEIVE: "receive from",
    SUBSCRIBE: "subscribe to",
    CALL: "call",
    OPERATE: "run",
}
_unique: Final = re.compile(r"[0-9a-f]{16}")
_part_chars: Final = 64 - len(TEMPORARY) - 1 - 16
_shown_chars: Final = limits.address_chars_max
_shown_max: Final = 20
