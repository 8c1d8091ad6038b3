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
"""The operator commands that an access file can allow."""
PAGES: Final = ("metrics", "health", "live", "ready")
"""The pages of the metrics server that an access file can allow."""


class Refusal(msgspec.Struct, frozen=True):
    """The reason why a process is not allowed to connect, or why an identity is not allowed to do an action."""

    code: str
    """The reason as a short fixed word such as ``not-allowed``, for programs."""
    reason: str


class Key(msgspec.Struct, frozen=True):
    """A public key of an identity."""

    public: str
    """The public key as text: ``ed25519:``, followed by the 32 bytes of the key in base64."""
    expires: float | None = None
    """The time at which the key expires, in seconds since 1970. If it is None, the key does not expire."""


class Limits(msgspec.Struct, frozen=True):
    """The limits of one identity at one server. Each limit applies to all connections of the identity together. If a
    limit in the table of an identity is None, the default limit in ``Access.limits`` applies. If that is also None,
    there is no limit."""

    rate: float | None = None
    """The largest number of messages that a client may send per second. For operators: the largest number of requests
    per second."""
    bytes: float | None = None
    """The largest number of bytes of notifications per second."""
    connections: int | None = None
    """The largest number of connections at the same time."""


class AddressLimits(msgspec.Struct, frozen=True):
    """The limits for the connections from one network address. They apply even before a connection has proved an
    identity. If a limit is None, it does not apply."""

    connections: int | None = None
    """The largest number of incoming connections at the same time. Connections of servers that have proved their
    identity are not counted."""
    attempts: float | None = None
    """The largest number of new connections per second."""


class Identity(msgspec.Struct, frozen=True):
    """One server, client or operator, and the actions that it may do. An empty permission, such as an empty ``send``,
    allows nothing."""

    role: str
    name: str
    keys: tuple[Key, ...] = ()
    certificates: tuple[str, ...] = ()
    """Names in the certificates of this identity (subject alternative names): URIs such as ``spiffe://shop/client/x``,
    or DNS names."""
    certificate_alone: bool = False
    """Whether a certificate with one of the names in ``certificates`` is enough to prove the identity, without a
    key."""
    tokens: tuple[str, ...] = ()
    """Hashes of secrets, each in the form ``sha256:…``. A caller of the metrics server's pages sends one of these
    secrets to prove this identity. Only operators have tokens."""
    names: tuple[str, ...] = ()
    """Patterns of client names. A client may connect under its own name, and under every name that matches one of the
    patterns."""
    send: tuple[str, ...] = ()
    receive: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    call: tuple[str, ...] = ()
    operate: tuple[str, ...] = ()
    limits: Limits = Limits()

    @property
    def label(self) -> str:
        """The role and the name of the identity, for messages: ``client alice``."""
        return f"{self.role} {self.name}"


class Access(msgspec.Struct, frozen=True, dict=True):
    """The content of an access file."""

    servers: dict[str, Identity] = {}
    clients: dict[str, Identity] = {}
    operators: dict[str, Identity] = {}
    anonymous: tuple[str, ...] = ()
    """The pages of the metrics server that a caller without an identity may see, as patterns of page names. In the
    access file, this is the setting ``operate`` of the table ``[anonymous]``."""
    limits: Limits = Limits()
    """The default limits of clients and operators. They apply where the table of an identity has no such limit."""
    addresses: AddressLimits = AddressLimits()
    name: str = "access.toml"
    """The name of the access file, for messages. The name has no influence on ``digest``."""

    def identities(self, role: str) -> dict[str, Identity]:
        """Return the identities that have this role, by name. For an unknown role, the result is empty."""
        return {SERVER: self.servers, CLIENT: self.clients, OPERATOR: self.operators}.get(role, {})

    def everyone(self) -> list[Identity]:
        """Return all identities: first the servers, then the clients, then the operators."""
        return [*self.servers.values(), *self.clients.values(), *self.operators.values()]

    @cached_property
    def digest(self) -> str:
        """A hash of the content of the access file: 16 hexadecimal digits. Different content has a different hash."""
        content = msgspec.structs.replace(self, name="")
        ordered = msgspec.json.Encoder(order="deterministic").encode(content)
        return hashlib.sha256(ordered).hexdigest()[:16]

    def limits_of(self, identity: Identity) -> Limits:
        """Return the limits that apply to an identity. Where the identity has no limit in its own table, the default
        limit in ``self.limits`` applies."""
        own, general = identity.limits, self.limits
        return Limits(
            general.rate if own.rate is None else own.rate,
            general.bytes if own.bytes is None else own.bytes,
            general.connections if own.connections is None else own.connections,
        )

    def expiring(self) -> list[tuple[float, Identity, Key]]:
        """Return the keys that can expire, the earliest first. Each entry has the expiry time, the owner of the key,
        and the key."""
        found = [
            (key.expires, identity, key)
            for identity in self.everyone()
            for key in identity.keys
            if key.expires is not None
        ]
        return sorted(found, key=lambda one: (one[0], one[1].role, one[1].name))


def matches(patterns: tuple[str, ...], name: str) -> bool:
    """Return whether one of the patterns matches the name. The pattern ``*`` matches every name. In a longer pattern,
    ``*`` matches any characters except ``@``. The address of a client contains ``@``, as in ``alice@s1``. So ``bank.*``
    matches agents but not clients, and ``*@s1`` matches the clients of server s1."""
    if not patterns:
        return False
    return "*" in patterns or _compiled(patterns).fullmatch(name) is not None


@lru_cache(maxsize=4_096)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(_expression, patterns)))


def _expression(pattern: str) -> str:
    """Return a regular expression for a pattern. It never goes back more than one ``*``: after a ``*``, the first
    occurrence of the text up to the next ``*`` is as good as any later one. (If this text contains ``@``, there is only
    one occurrence.) So the time does not grow exponentially with the number of ``*``."""
    first, *between = map(re.escape, pattern.split("*"))
    if not between:
        return first
    *between, last = between
    return first + "".join(f"(?>[^@]*?{text})" for text in between) + f"[^@]*{last}"
