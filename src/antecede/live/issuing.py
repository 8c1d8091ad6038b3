"""Credentials for a topology: an authority, one key and one certificate per identity, and the access file.

An identity has one Ed25519 key. It is used for the TLS certificate, and to sign proofs of identity
(:mod:`antecede.access.proof`). A signature for one use is not valid for the other use, because the signed contents
begin differently. A file with a private key has the mode 600: other users of the computer cannot read it.
"""

import json
import os
import re
import shutil
import stat
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from antecede import limits
from antecede.access import Access, parse_access
from antecede.access.file import PERMISSIONS, TABLES
from antecede.access.model import ROLES, Identity, Key
from antecede.documents import read_text
from antecede.errors import AccessError
from antecede.live.keys import (
    AUTHORITY,
    CERTIFICATE,
    CREDENTIAL,
    KEY,
    PREVIOUS_KEY,
    SERVERS,
    PrivateKey,
    read_key,
    require_cryptography,
)
from antecede.store.files import Files

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, CertificateBuilder

FOLDERS = TABLES
"""Role → the name of the folder that contains the credentials of this role. The role's table in an access file has the
same name."""
_authority_days = 3_650
_early = timedelta(minutes=5)
"""A new certificate is valid from five minutes in the past, because the clock of another computer may be slow."""


def new_key() -> PrivateKey:
    """Return a new private key (Ed25519)."""
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return PrivateKey(Ed25519PrivateKey.generate())


class Authority:
    """The authority that signs all certificates of one system."""

    def __init__(self, key: PrivateKey, certificate: "Certificate") -> None:
        self._key = key
        self._certificate = certificate

    @classmethod
    def create(cls, folder: Path, system: str) -> "Authority":
        """Create the authority of a system, and write its key and its certificate to ``folder``."""
        from cryptography import x509
        from cryptography.x509.oid import NameOID

        key = new_key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{system} authority")])
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = (
            _begun(key, name, name, _authority_days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
        )
        made = cls(key, builder.sign(key.key, None))
        # The folder gets its name when it is complete, so that an interrupted command can be repeated.
        unfinished = folder.with_name(f".{folder.name}.new")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        _write(unfinished / KEY, _pem(key), 0o600)
        _write(unfinished / AUTHORITY, made.pem)
        os.replace(unfinished, folder)
        return made

    @staticmethod
    def is_in(folder: Path) -> bool:
        """Return whether ``folder`` seems to contain an authority: the path exists, and is not an empty folder. Only
        ``read`` checks whether the authority can be used."""
        return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))

    @classmethod
    def read(cls, folder: Path) -> "Authority":
        """Read the authority that ``create`` has written."""
        from cryptography import x509

        try:
            key = read_key(folder / KEY)
            certificate = x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes())
        except (AccessError, OSError, ValueError) as error:
            raise AccessError(f"{folder}: no usable authority: {error}") from None
        if key is None:
            raise AccessError(f"{folder}: no usable authority: expected an Ed25519 key in {KEY}")
        return cls(key, certificate)

    @property
    def pem(self) -> bytes:
        """Return the authority's certificate in PEM."""
        return _certificate_pem(self._certificate)

    def issue(self, key: PrivateKey, name: str, uri: str, hosts: tuple[str, ...], days: float) -> bytes:
        """Return a certificate for this key, in PEM. It contains the name, the URI and the host names, and is valid for
        this number of days."""
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri), *map(_host, hosts)]
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if hosts:
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
        builder = (
            _begun(key, subject, self._certificate.subject, days)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.key.public_key()), critical=False
            )
        )
        return _certificate_pem(builder.sign(self._key.key, None))


def _begun(key: PrivateKey, subject: Any, issuer: Any, days: float) -> "CertificateBuilder":
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _early)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.key.public_key()), critical=False)
    )


def _host(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write_folder(
    folder: Path,
    role: str,
    name: str,
    key: PrivateKey,
    certificate: bytes | None,
    authority: bytes | None,
    valid: Collection[str] = (),
) -> None:
    """Write the credentials of one identity. ``key``: the new key. ``valid``: the public keys of this identity in the
    access file. If the folder already has a ``key.pem`` with one of these keys, this file is kept as
    ``previous-key.pem``. Any other ``key.pem`` comes from an interrupted rotation, and is replaced. The power may fail
    at any moment. After a power cut, a folder that had a valid key contains this key or the new key."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o700)
    if _has_one_of(folder, valid):
        _write(folder / PREVIOUS_KEY, (folder / KEY).read_bytes(), 0o600)
    _write(folder / f"new-{KEY}", _pem(key), 0o600)
    files = {CREDENTIAL: f'role = "{role}"\nname = "{name}"\n'.encode()}
    if certificate is not None and authority is not None:
        files |= {CERTIFICATE: certificate, AUTHORITY: authority}
    for file, content in files.items():
        _write(folder / f"new-{file}", content)
    # From here on the disk needs no more space.
    for file in (*files, KEY):
        os.replace(folder / f"new-{file}", folder / file)
    # Durable before the access file names the new key.
    try:
        Files().sync_directory(str(folder))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from None


def _has_one_of(folder: Path, valid: Collection[str]) -> bool:
    with suppress(AccessError):
        present = read_key(folder / KEY) if (folder / KEY).exists() else None
        return present is not None and present.public in valid
    return False


def write_servers(folder: Path, servers: list[Identity]) -> None:
    """Write the file ``servers.toml``, which lists the servers that a client or an operator trusts."""
    text = "# The servers to trust. Written by: antecede credentials\n" + "".join(map(table, servers))
    _write(folder / SERVERS, text.encode())


def table(identity: Identity) -> str:
    """Return the text of an identity's table in an access file."""
    permissions = {key: getattr(identity, key) for key in PERMISSIONS if getattr(identity, key)}
    name = f'"{identity.name}"' if "." in identity.name else identity.name
    lines = [f"\n[{FOLDERS[identity.role]}.{name}]", f"keys = {keys_text(identity.keys)}"]
    if identity.certificates:
        lines.append(f"certificates = {json.dumps(identity.certificates)}")
    lines += [f"{key} = {json.dumps(patterns)}" for key, patterns in permissions.items()]
    return "\n".join(lines) + "\n"


def keys_text(keys: tuple[Key, ...]) -> str:
    """Return the text of a list of keys in an access file."""
    return "[" + ", ".join(map(_key_text, keys)) + "]"


def _key_text(key: Key) -> str:
    if key.expires is None:
        return f'"{key.public}"'
    when = datetime.fromtimestamp(key.expires, UTC)
    return f'{{ key = "{key.public}", expires = {when:%Y-%m-%dT%H:%M:%SZ} }}'


def _pem(key: PrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _certificate_pem(certificate: "Certificate") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _write(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace a file in one step: a reader finds either the previous or the new content, even after a power cut."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.unlink(missing_ok=True)
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(file, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(file)
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        # An error of a write does not name its file.
        raise OSError(error.errno, error.strerror, str(path)) from None


def write_public(path: Path, data: bytes) -> None:
    """Replace a file that contains no secrets, in one step. An existing file keeps its mode. If the path is a symbolic
    link, the file that the link points to is replaced."""
    path = path.resolve()
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    _write(path, data)
    if mode is not None:
        os.chmod(path, mode)


# Change an access file that a person may have edited: append tables, and replace the keys in a table.
#
# Comments, layout and line ends stay. The changed text is parsed before it is written. If its content differs from
# the wanted content, the file is not changed. If keys cannot be replaced, the error message contains the text that
# the operator must write into the file.


class AccessText:
    """The text of an access file and its parsed content. Both are changed together; ``write`` writes the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.existed = path.exists()
        text = read_text(path, limits.access_bytes_max, AccessError) if self.existed else _head
        self._line_end = "\r\n" if "\r\n" in text else "\n"
        self._text = text.replace("\r\n", "\n")
        self.access = parse_access(self._text, str(path))

    def add(self, identity: Identity) -> None:
        """Append the table of a new identity to the text."""
        if identity.name in self.access.identities(identity.role):
            raise AccessError(f"{self.path}: {identity.label} exists already: use antecede credentials rotate")
        self._change(self._text.rstrip("\n") + "\n" + table(identity), _with(self.access, identity))

    def set_keys(self, identity: Identity, keys: tuple[Key, ...]) -> None:
        """Replace the keys in the table of an identity."""
        wanted = _with(self.access, msgspec.structs.replace(identity, keys=keys))
        try:
            self._change(_replaced(self._text, identity, keys_text(keys)), wanted)
        except AccessError:
            where = f"{FOLDERS[identity.role]}.{identity.name}"
            raise AccessError(f"{self.path}: cannot edit {where}: set keys = {keys_text(keys)} by hand") from None

    def _change(self, text: str, wanted: Access) -> None:
        found = parse_access(text, str(self.path))
        if found.digest != wanted.digest:
            raise AccessError(f"{self.path}: not changed, because this edit would change more than intended")
        self._text, self.access = text, found

    def write(self) -> None:
        """Write the file atomically: a reader finds either the previous content or the new content."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_public(self.path, self._text.replace("\n", self._line_end).encode())


def find(access: Access, name: str) -> Identity:
    """Return the identity with this name. If identities of several roles have the same name, ``name`` must have the
    form ``ROLE/NAME``."""
    role, _, plain = name.rpartition("/")
    found = [
        access.identities(one)[plain]
        for one in ROLES
        if role in ("", one, FOLDERS[one]) and plain in access.identities(one)
    ]
    if not found:
        raise AccessError(f"{access.name}: no identity {name!r}; to list all: antecede credentials show")
    if len(found) > 1:
        choices = " or ".join(f"{one.role}/{one.name}" for one in found)
        raise AccessError(f"{access.name}: several identities {name!r}: expected {choices}")
    return found[0]


def _with(access: Access, identity: Identity) -> Access:
    key = FOLDERS[identity.role]
    return msgspec.structs.replace(access, **{key: {**access.identities(identity.role), identity.name: identity}})


def _replaced(text: str, identity: Identity, keys: str) -> str:
    """Return the text of the access file with new keys for an identity. ``text``: the present text of the file.
    ``keys``: the new list of keys, as text."""
    name = re.escape(identity.name)
    header = re.search(rf"^[ \t]*\[{FOLDERS[identity.role]}\.(?:{name}|\"{name}\")\][^\n]*\n", text, re.MULTILINE)
    if header is None:
        raise AccessError(f"the access file has no table for {identity.label}")
    end = re.compile(r"^[ \t]*\[[^\n]*\][ \t]*(?:#[^\n]*)?$", re.MULTILINE).search(text, header.end())
    body = text[header.end() : end.start() if end else len(text)]
    found = re.search(r"^[ \t]*keys[ \t]*=[ \t]*(?=\[)", body, re.MULTILINE)
    if found is None:
        changed = f"keys = {keys}\n{body}"
    else:
        changed = body[: found.end()] + keys + body[_closing(body, found.end()) :]
    return text[: header.end()] + changed + text[header.end() + len(body) :]


def _closing(text: str, start: int) -> int:
    """Return the index directly after the closing bracket of the list that begins at ``start``. The search
    ignores quotes: the strings in the list are keys, and keys contain no brackets."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"[": 1, "]": -1}.get(text[place], 0)
        if not depth:
            return place + 1
    raise AccessError("no closing bracket")


_head = """\
# Who may connect to the servers of this topology, and what each may do: see docs/guide/security.md.
# After a change: kill -HUP every server. A missing permission allows nothing; "*" allows everything.

[anonymous]
operate = ["health", "live", "ready"]
"""
