"""The access file, ``access.toml``: identities, their keys, permissions and limits.

::

    [servers.s1]
    keys = ["ed25519:…"]
    certificates = ["spiffe://shop/server/s1"]
    [clients.alice]
    keys = ["ed25519:…", { key = "ed25519:…", expires = 2027-01-31T00:00:00Z }]
    names = ["alice-*"]
    send = ["orders", "bank.*", "*@s1"]
    receive = ["*"]
    subscribe = ["news"]
    call = ["account.deposit"]
    limits = { rate = 1000, bytes = 1_000_000, connections = 4 }
    [operators.admin]
    keys = ["ed25519:…"]
    tokens = ["sha256:…"]
    operate = ["status", "dead-*"]
    [anonymous]
    operate = ["health", "live", "ready"]
    [limits]
    connections = 100
    [addresses]
    connections = 200
    attempts = 50

Mistakes in the file are never ignored: for example, an unknown setting or command, a public key that two identities
share, or a bad pattern. Each mistake is an error that names the file, the line, the table and the setting.

Two servers compare the digests of their topology files (the *epochs*) when they connect. The epoch does not depend on
the access file. So servers may have different access files, and an access file may change while servers run.
"""

import re
import tomllib
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterable
from typing import Any

from antecede import limits
from antecede.access.model import (
    CLIENT,
    COMMANDS,
    OPERATOR,
    PAGES,
    SERVER,
    Access,
    AddressLimits,
    Identity,
    Key,
    Limits,
)
from antecede.errors import AccessError
from antecede.topology import brief, is_name, line_of, natural

TABLES = {SERVER: "servers", CLIENT: "clients", OPERATOR: "operators"}
"""Role → the name of the table in the access file that contains the identities with this role."""
PERMISSIONS = ("names", "send", "receive", "subscribe", "call", "operate")
"""The names of those settings whose value is a list of patterns."""

_pattern = re.compile(r"[A-Za-z0-9_.*-]+(@[A-Za-z0-9_.*-]+)?")
_certificate = re.compile(r"[\x21-\x7e]+")
_token = re.compile(r"sha256:[0-9a-f]{64}")
_common = ("keys", "certificates", "certificate_alone")
_keys = {
    SERVER: _common,
    CLIENT: (*_common, "names", "send", "receive", "subscribe", "call", "limits"),
    OPERATOR: (*_common, "tokens", "operate", "limits"),
}


def parse_access(text: str, file: str = "access.toml") -> Access:
    """Return the content of an access file. ``text``: the text of the file. ``file``: its name, for messages. Raise
    :class:`AccessError` if the text has an error."""
    return _Reader(text.removeprefix("\ufeff"), file).read()


def public_key_fault(text: Any) -> str:
    """Check the text of a public key. Return an empty string if the text is valid, and otherwise a message that says
    what was expected."""
    expected = "expected ed25519: and 32 bytes in base64"
    if not isinstance(text, str) or not text.startswith("ed25519:") or len(text) > _public_chars:
        return expected
    try:
        raw = b64decode(text.removeprefix("ed25519:"), validate=True)
    except (Base64Error, ValueError):
        return expected
    return "" if len(raw) == _public_bytes else expected


class _Reader:
    """Reads one access file. Each error message names the place of the error in the file."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file

    def _error(self, reason: str, *path: str) -> AccessError:
        line = line_of(self._text, path) if path else None
        table = f"{'.'.join(path)}: " if path else ""
        return AccessError(f"{self._file}:{line}: {table}{reason}" if line else f"{self._file}: {table}{reason}")

    def read(self) -> Access:
        if len(self._text.encode(errors="replace")) > limits.access_bytes_max:
            raise self._error(f"the file has more than {limits.access_bytes_max} bytes")
        try:
            document = tomllib.loads(self._text)
        except ValueError as error:
            found = re.search(r"at line (\d+)", str(error))
            where = f"{self._file}:{found[1]}" if found else self._file
            raise AccessError(f"{where}: bad TOML: {error}") from None
        except RecursionError:
            raise self._error("bad TOML: the tables or lists are nested too deeply") from None
        self._known(document, (*TABLES.values(), "anonymous", "limits", "addresses"))
        anonymous = self._table(document, "anonymous")
        self._known(anonymous, ("operate",), "anonymous")
        access = Access(
            self._identities(document, SERVER),
            self._identities(document, CLIENT),
            self._identities(document, OPERATOR),
            self._patterns(anonymous, "anonymous", "operate"),
            self._limits(self._table(document, "limits"), "limits"),
            self._addresses(document),
            self._file,
        )
        self._bind(access)
        return access

    def _identities(self, document: dict[str, Any], role: str) -> dict[str, Identity]:
        tables = self._table(document, TABLES[role])
        if len(tables) > limits.identities_max:
            raise self._error(f"{len(tables)} identities: expected at most {limits.identities_max}", TABLES[role])
        return {name: self._identity(role, name, tables[name]) for name in sorted(tables, key=natural)}

    def _identity(self, role: str, name: str, table: Any) -> Identity:
        at = (TABLES[role], name)
        if not is_name(name):
            raise self._error("expected a name of 1 to 64 letters, digits, _, . or -", *at)
        if not isinstance(table, dict):
            raise self._error(f"{brief(table)}: expected a table [{TABLES[role]}.{name}]", *at)
        self._known(table, _keys[role], *at)
        keys = tuple(self._key(entry, *at, "keys") for entry in self._list(table, "a public key", *at, "keys"))
        identity = Identity(
            role,
            name,
            keys,
            self._texts(table, _certificate, "a name in a certificate", *at, "certificates"),
            self._alone(table, *at),
            self._texts(
                table, _token, 'sha256: and 64 hexadecimal digits ("printf %s SECRET | sha256sum")', *at, "tokens"
            ),
            limits=self._limits(table.get("limits", {}), *at, "limits"),
            **{key: self._patterns(table, *at, key) for key in PERMISSIONS},
        )
        if len({key.public for key in keys}) < len(keys):
            raise self._error("the same key twice", *at, "keys")
        return identity

    def _alone(self, table: dict[str, Any], *at: str) -> bool:
        alone = table.get("certificate_alone", False)
        if not isinstance(alone, bool):
            raise self._error(f"{brief(alone)}: expected true or false", *at, "certificate_alone")
        if alone and (table.get("keys") or not table.get("certificates")):
            raise self._error(
                "true is allowed only with one or more certificates and without keys", *at, "certificate_alone"
            )
        return alone

    def _key(self, entry: Any, *at: str) -> Key:
        expires: float | None = None
        if isinstance(entry, dict):
            self._known(entry, ("key", "expires"), *at)
            when = entry.get("expires")
            if when is not None:
                if getattr(when, "tzinfo", None) is None or not hasattr(when, "timestamp"):
                    raise self._error(f"expires = {brief(when)}: expected a time such as 2027-01-31T00:00:00Z", *at)
                expires = when.timestamp()
            entry = entry.get("key")
        fault = public_key_fault(entry)
        if fault:
            raise self._error(f"{brief(entry)}: {fault}", *at)
        return Key(entry, expires)

    def _patterns(self, table: dict[str, Any], *at: str) -> tuple[str, ...]:
        found = self._texts(table, _pattern, 'a name, or a pattern such as "bank.*" or "*@s1"', *at)
        for entry in found if at[-1] == "operate" else ():
            if "*" not in entry and entry not in (*COMMANDS, *PAGES):
                raise self._error(
                    f"{brief(entry)}: expected one of {', '.join((*COMMANDS, *PAGES))}, or a pattern with *", *at
                )
        return found

    def _texts(self, table: dict[str, Any], form: re.Pattern[str], expected: str, *at: str) -> tuple[str, ...]:
        given = self._list(table, expected, *at)
        for entry in given:
            if not isinstance(entry, str) or len(entry) > limits.pattern_chars_max or not form.fullmatch(entry):
                raise self._error(f"{brief(entry)}: expected {expected}", *at)
        return tuple(given)

    def _list(self, table: dict[str, Any], expected: str, *at: str) -> list[Any]:
        given = table.get(at[-1], [])
        if not isinstance(given, list):
            raise self._error(f"{brief(given)}: expected a list; each entry must be {expected}", *at)
        if len(given) > limits.patterns_max:
            raise self._error(f"{len(given)} entries: expected at most {limits.patterns_max}", *at)
        return given

    def _limits(self, table: Any, *at: str) -> Limits:
        self._known(table, ("rate", "bytes", "connections"), *at)
        return Limits(
            self._number(table, *at, "rate"), self._number(table, *at, "bytes"), self._count(table, *at, "connections")
        )

    def _addresses(self, document: dict[str, Any]) -> AddressLimits:
        table = self._table(document, "addresses")
        self._known(table, ("connections", "attempts"), "addresses")
        return AddressLimits(
            self._count(table, "addresses", "connections"), self._number(table, "addresses", "attempts")
        )

    def _number(self, table: dict[str, Any], *at: str) -> float | None:
        value = table.get(at[-1])
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= limits.counter_max:
            raise self._error(f"{brief(value)}: expected a number larger than 0, at most {limits.counter_max}", *at)
        return float(value)

    def _count(self, table: dict[str, Any], *at: str) -> int | None:
        value = table.get(at[-1])
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise self._error(f"{brief(value)}: expected a whole number, 1 or more", *at)
        return value

    def _table(self, document: dict[str, Any], name: str) -> dict[str, Any]:
        table = document.get(name, {})
        if not isinstance(table, dict):
            raise self._error(f"{brief(table)}: expected a table [{name}]", name)
        return table

    def _known(self, table: Any, keys: Iterable[str], *at: str) -> None:
        if not isinstance(table, dict):
            raise self._error(f"{brief(table)}: expected {{ {' = …, '.join(keys)} = … }}", *at)
        for key in table:
            if key not in keys:
                raise self._error(f"unknown key {brief(key)}: expected {', '.join(keys)}", *at, key)

    def _bind(self, access: Access) -> None:
        """Raise an error if a key, a certificate or a token belongs to two identities."""
        owners: dict[str, Identity] = {}
        for identity in access.everyone():
            marks = [key.public for key in identity.keys]
            for mark in (*marks, *identity.certificates, *identity.tokens):
                other = owners.setdefault(mark, identity)
                if other is not identity:
                    at = (TABLES[identity.role], identity.name)
                    raise self._error(f"{brief(mark)} already belongs to {other.label}", *at)


_public_bytes = 32
_public_chars = 64
