"""The content of an access file: identities with their keys and certificates, permissions, and limits."""

import hashlib
import re
from functools import cached_property, lru_cache
from typing import Final

import msgspec

SERVER: Final = "server"
CLIENT: Final = "client"
OPERATOR: Final = "operator"
ROLES: Final = (SERVER, CLIENT, OPERATOR)
COMMANDS: Final = (
    *("status", "dead-list", "dead-show", "dead-replay", "dead-bury", "mailbox-drop"),
    *("client-list", "client-remove", "client-unsubscribe", "forget", "acknowledge", "backup", "topology"),
)
"""The commands that an operator may be allowed to give."""
PAGES: Final = ("metrics", "health", "live", "ready")
"""The pages of the metrics server."""


class Refusal(msgspec.Struct, frozen=True):
    """The reason why a process is not allowed to connect, or an identity is not allowed to do something."""

    code: str
    """The reason in one word, for programs."""
    reason: str


class Key(msgspec.Struct, frozen=True):
    """A public key."""

    public: str
    """``ed25519:`` and the 32 bytes of the key in base64."""
    expires: float | None = None
    """The time from which the key is not valid any more, in seconds since 1970; None: it does not expire."""


class Limits(msgspec.Struct, frozen=True):
    """The limits of one identity over all its connections to one server; None: no limit."""

    rate: float | None = None
    """Publishes per second; for operators requests per second."""
    bytes: float | None = None
    """Bytes of notifications per second."""
    connections: int | None = None
    """The number of connections at the same time."""


class AddressLimits(msgspec.Struct, frozen=True):
    """The limits of one network address. They apply even before a connection has proved an identity; None: no limit."""

    connections: int | None = None
    """The number of incoming connections at the same time. Servers that have proved their identity are not counted."""
    attempts: float | None = None
    """New connections per second."""


class Identity(msgspec.Struct, frozen=True):
    """One server, client or operator, and what it may do. A missing permission allows nothing."""

    role: str
    name: str
    keys: tuple[Key, ...] = ()
    certificates: tuple[str, ...] = ()
    """Names in the certificates of this identity (subject alternative names): URIs such as ``spiffe://shop/client/x``,
    or DNS names."""
    certificate_alone: bool = False
    """Whether a certificate with one of the names in ``certificates`` is enough, without a key."""
    tokens: tuple[str, ...] = ()
    """``sha256:`` and the hash of a secret, for the pages of the metrics server; only for operators."""
    names: tuple[str, ...] = ()
    """Patterns of client names, besides its own name, under which the identity may connect."""
    send: tuple[str, ...] = ()
    receive: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    call: tuple[str, ...] = ()
    operate: tuple[str, ...] = ()
    limits: Limits = Limits()

    @property
    def label(self) -> str:
        """The identity in words: ``client alice``."""
        return f"{self.role} {self.name}"


class Access(msgspec.Struct, frozen=True, dict=True):
    """The content of an access file."""

    servers: dict[str, Identity] = {}
    clients: dict[str, Identity] = {}
    operators: dict[str, Identity] = {}
    anonymous: tuple[str, ...] = ()
    """Permissions (``operate``) of callers of the metrics page without an identity."""
    limits: Limits = Limits()
    """The limits of clients and operators that have none in their own table."""
    addresses: AddressLimits = AddressLimits()
    name: str = "access.toml"
    """The file's name, for messages; not part of its content."""

    def identities(self, role: str) -> dict[str, Identity]:
        """Return the identities of a role, by name; none if there is no such role."""
        return {SERVER: self.servers, CLIENT: self.clients, OPERATOR: self.operators}.get(role, {})

    def everyone(self) -> list[Identity]:
        """Return all identities: servers, clients, operators."""
        return [*self.servers.values(), *self.clients.values(), *self.operators.values()]

    @cached_property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that differ when the content does."""
        content = msgspec.structs.replace(self, name="")
        ordered = msgspec.json.Encoder(order="deterministic").encode(content)
        return hashlib.sha256(ordered).hexdigest()[:16]

    def limits_of(self, identity: Identity) -> Limits:
        """Return the limits of an identity: its own, and the general ones where it has none."""
        own, general = identity.limits, self.limits
        return Limits(
            general.rate if own.rate is None else own.rate,
            general.bytes if own.bytes is None else own.bytes,
            general.connections if own.connections is None else own.connections,
        )

    def expiring(self) -> list[tuple[float, Identity, Key]]:
        """Return the keys that have an expiry time, with this time, the earliest first."""
        found = [
            (key.expires, identity, key)
            for identity in self.everyone()
            for key in identity.keys
            if key.expires is not None
        ]
        return sorted(found, key=lambda one: (one[0], one[1].role, one[1].name))


def matches(patterns: tuple[str, ...], name: str) -> bool:
    """Return whether one of the patterns matches the name. ``*`` alone matches every name; within a pattern it matches
    any characters except ``@``. So ``bank.*`` matches agents of the topology, and ``*@s1`` the clients of s1."""
    if not patterns:
        return False
    return "*" in patterns or _compiled(patterns).fullmatch(name) is not None


@lru_cache(maxsize=4_096)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(pattern).replace(r"\*", "[^@]*") for pattern in patterns))
