"""The one place that decides what an identity may do at a server, for every entry point.

The code that serves peers, clients, operators and the metrics page asks :class:`Authoriser` before each action. Every
future entry point must do the same. The answer is a :class:`Refusal` with a code, or None if the action is allowed. In
the one-token mode there is no access file, and every process that has the token may do everything.

Each question has an action and a name. This table says what the name means for each action:

==============  ===================================================================================================
action          name
==============  ===================================================================================================
``link``        the name of a server of the topology; only this server may connect with this name
``connect``     the name of a client: the identity's name, a name that matches ``names``, or a temporary name
``send``        a destination: an agent, or ``name@server``
``receive``     the sender of a letter (a message); a client may always receive the answers to its own questions
``subscribe``   the destination of a client's notification ``Subscribe`` or ``Unsubscribe``
``call``        ``object.operation``; a permission for ``object`` includes all its operations
``operate``     an operator's command, or a page of the metrics server
==============  ===================================================================================================

A permission to subscribe to a topic is also a permission to receive the letters of this topic. A client's permissions
are checked by the server that the client is connected to. Agents, and clients in the server's own process, may do
everything.
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
    """A proven identity. ``by``: what proved the identity. It is the public key, a name in the certificate, or the hash
    of the secret."""

    role: str
    name: str
    by: str = ""

    @property
    def label(self) -> str:
        """The role and the name of the identity, for messages: ``client alice``."""
        return f"{self.role} {self.name}" if self.name else self.role


TOKEN: Final = Who("token", "")
"""The identity of every process that has the token, in the one-token mode."""
LOCAL: Final = Who("local", "")
"""The identity of a client that runs in the server's own process."""
ANONYMOUS: Final = Who("anonymous", "")
"""The identity of a caller of the metrics page who sends no token."""


class Authoriser:
    """Decides what each identity may do at one server. The access file can be replaced while the server runs."""

    def __init__(self, access: Access | None = None, token: str = "", clock: Callable[[], float] = lambda: 0.0) -> None:
        """``access``: the content of the access file. If it is None, the server has no access file, and checks
        ``token`` (the one-token mode). ``clock``: returns seconds since 1970."""
        self.access = access
        self.clock = clock
        self.error = ""
        """The reason why the last reload of the access file failed, or an empty string if it did not fail. After a
        failure, the previous content of the file stays in use."""
        self._token = token.encode()
        self._rates: dict[Who, Rate] = {}

    @property
    def mode(self) -> str:
        """The way in which the server checks identities: ``access-file``, ``token`` (one token for all processes) or
        ``open`` (no check)."""
        return "access-file" if self.access is not None else "token" if self._token else "open"

    def replace(self, access: Access) -> None:
        """Use another access file from now on."""
        self.access = access
        self.error = ""
        self._rates.clear()

    def servers(self) -> Mapping[str, Identity]:
        """Return the identities of servers in the access file, by name. Without an access file, there are none."""
        return {} if self.access is None else self.access.servers

    def identity(self, role: str, name: str) -> Identity | None:
        """Return the entry of an identity in the access file, or None if there is no such entry or no file."""
        return None if self.access is None else self.access.identities(role).get(name)

    # Who it is.

    def token_refusal(self, token: str) -> Refusal | None:
        """Decide whether to accept a process that sends this token and proves no identity. Return None if the process
        is accepted, and otherwise the reason for the refusal."""
        if self.access is not None:
            return Refusal(
                "proof-required", "this server accepts only connections with credentials: expected --credentials DIR"
            )
        if not hmac.compare_digest(token.encode(), self._token):
            return Refusal("wrong-token", "wrong token")
        return None

    def page_caller(self, secret: str) -> Who | None:
        """Return the identity of a caller of the metrics page. ``secret``: the secret that the caller sent, or an empty
        string if the caller sent no secret. With an access file, return the operator who has this secret,
        ``ANONYMOUS`` if the caller sent no secret, or None if the secret is unknown. In the one-token mode, return
        ``TOKEN`` for every caller, without checking the secret."""
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
        """Return the reason why an identity that was proved earlier is no longer valid. For example, its key was
        revoked or has expired. Return None if the identity is still valid."""
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
        """Return the reason why the identity may not do this action, or None if it may. The table at the top of this
        module explains ``action`` and ``name``."""
        if self.allows(who, action, name):
            return None
        return Refusal(NOT_ALLOWED, f"{who.label} may not {_phrases[action]} {name[:_shown_chars]}")

    def allows(self, who: Who, action: str, name: str) -> bool:
        """Return whether the identity is allowed to do this action. The table at the top of this module explains
        ``action`` and ``name``."""
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
        """Return the largest number of connections that an identity may have at the same time. Return None if there is
        no limit, as for servers."""
        identity = None if who.role == SERVER else self.identity(who.role, who.name)
        return None if identity is None or self.access is None else self.access.limits_of(identity).connections

    def rate(self, who: Who) -> Rate | None:
        """Return the rate limits of an identity, or None if it has no rate limit. All connections of the identity share
        one ``Rate`` object."""
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
        """Return facts about the access file in use, such as its digest and the keys that expire, for ``antecede
        status``."""
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
    """Return a name for a temporary client of an identity. The temporary name contains the name of the identity or, if
    the identity's name is too long, a hash of that name. So no other identity can connect with this temporary name.
    ``unique``: 16 hexadecimal digits."""
    return f"{TEMPORARY}{_part(identity)}.{unique}"


def _is_replaced(identity: Identity, key: Key, now: float) -> bool:
    """Return whether another key replaces ``key``, so that ``key`` can be removed. This is the case if the last key in
    the identity's list is another key and has not expired."""
    newest = identity.keys[-1]
    return newest is not key and (newest.expires is None or newest.expires > now)


def _is_temporary_of(identity: str, client: str) -> bool:
    prefix = f"{TEMPORARY}{_part(identity)}."
    return client.startswith(prefix) and _unique.fullmatch(client.removeprefix(prefix)) is not None


def _part(identity: str) -> str:
    """Return the middle part of a temporary name: the name of the identity. If this name is too long, return a hash of
    the name instead. So the whole temporary name has at most 64 characters."""
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
