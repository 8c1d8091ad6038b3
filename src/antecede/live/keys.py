"""Ed25519 keys (through the package ``cryptography``), and the folder with the credentials of one identity.

A folder contains ``credential.toml`` (role and name) and ``key.pem`` (the private key). For TLS it also contains
``certificate.pem`` (the certificate of this identity) and ``authority.pem`` (the certificate of the authority). The
other end of a TLS connection is accepted only if this authority has signed the certificate of that end. Clients and
operators also have ``servers.toml``: the servers to trust, in the format of an access file. After a rotation the
folder also has ``previous-key.pem``. The identity then signs with both keys, because the process that checks the
signature may know only one of them. If ``key.pem`` is not an Ed25519 key, it is used for TLS only, and the certificate
proves the identity.
"""

import ssl
import tomllib
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_bytes
from time import time
from typing import TYPE_CHECKING, Any

from antecede import limits
from antecede.access import Access, Authoriser, Identity, parse_access
from antecede.access.authoriser import REVOKED
from antecede.access.model import ROLES, SERVER
from antecede.access.proof import NONCE_BYTES, Keyring
from antecede.documents import read_text
from antecede.errors import AccessError
from antecede.server.core import ServerCore
from antecede.topology import brief, is_name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

CREDENTIAL = "credential.toml"
KEY = "key.pem"
NEW_KEY = "new-key.pem"
PREVIOUS_KEY = "previous-key.pem"
CERTIFICATE = "certificate.pem"
AUTHORITY = "authority.pem"
SERVERS = "servers.toml"


class PrivateKey:
    """A private Ed25519 key; see :class:`antecede.access.proof.Signer`."""

    def __init__(self, key: "Ed25519PrivateKey") -> None:
        self.key = key
        self.public = "ed25519:" + b64encode(key.public_key().public_bytes_raw()).decode()

    def sign(self, content: bytes) -> bytes:
        """Return the signature of this content."""
        return self.key.sign(content)


def verify(public: str, signature: bytes, content: bytes) -> bool:
    """Return whether the owner of a public key signed this content."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(b64decode(public.removeprefix("ed25519:"))).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


def require_cryptography() -> None:
    """Raise an error if the package ``cryptography`` is missing. The text of the error says what to install."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise AccessError("credentials need the package cryptography: install antecede[security]") from None


def read_key(path: Path) -> PrivateKey | None:
    """Return the private key in a file; None if it is not an Ed25519 key."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_read(path).encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise AccessError(f"{path}: expected a private key in PEM, without a password: {error}") from None
    return PrivateKey(key) if isinstance(key, Ed25519PrivateKey) else None


class Credentials:
    """The credentials of one identity, read from its folder."""

    def __init__(self, folder: str | Path) -> None:
        require_cryptography()
        self.folder = Path(folder)
        self.role, self.name = self._named()
        self.signer = read_key(self.folder / KEY)
        self._previous = self._earlier()
        self.tls = (self.folder / CERTIFICATE).exists()
        """True if the folder has a certificate. Then connections use TLS."""
        self._contexts: list[ssl.SSLContext] = []
        self._servers: Access | None = None
        if self.role != SERVER:
            self._servers = read_access(self.folder / SERVERS)

    def _named(self) -> tuple[str, str]:
        path = self.folder / CREDENTIAL
        try:
            document: dict[str, Any] = tomllib.loads(_read(path))
        except ValueError as error:
            raise AccessError(f"{path}: bad TOML: {error}") from None
        role, name = document.get("role"), document.get("name")
        if role not in ROLES:
            raise AccessError(f"{path}: role = {brief(role)}: expected one of {', '.join(ROLES)}")
        if not isinstance(name, str) or not is_name(name):
            raise AccessError(f"{path}: name = {brief(name)}: expected a name of 1 to 64 letters, digits, _, . or -")
        return role, name

    def _earlier(self) -> tuple[PrivateKey, ...]:
        """Return the key that was used before the last rotation, or nothing if the folder does not have this key. The
        key may have been revoked. Only the processes that check signatures know whether it is still valid."""
        with suppress(AccessError):
            if (self.folder / PREVIOUS_KEY).exists() and (key := read_key(self.folder / PREVIOUS_KEY)) is not None:
                return (key,)
        return ()

    def expect(self, role: str, name: str = "") -> None:
        """Raise AccessError if these are the credentials of another role, or of another name. An empty ``name`` allows
        all names."""
        if self.role != role or (name and self.name != name):
            wanted = f"those of {role} {name}" if name else f"a folder in {role}s/"
            raise AccessError(f"{self.folder}: these are the credentials of {self.role} {self.name}: expected {wanted}")

    def keyring(
        self,
        servers: Callable[[], Mapping[str, Identity]] | None = None,
        renew: Callable[[str], bool] = lambda code: False,
    ) -> Keyring:
        """Return the keyring that proves this identity. ``servers``: a function that returns the servers to trust. If
        it is None, the servers in ``servers.toml`` of the folder are trusted. ``renew``: see
        :class:`antecede.access.proof.Keyring`."""
        assert servers or self._servers, "a server trusts the servers of its access file"
        trusted = servers or (lambda: {} if self._servers is None else self._servers.servers)
        nonce = lambda: token_bytes(NONCE_BYTES)  # noqa: E731
        return Keyring(self.role, self.name, self, verify, nonce, time, trusted, renew)

    @property
    def publics(self) -> list[str]:
        """The public keys with which this identity signs, the newest first. The list is empty if the identity has no
        Ed25519 key."""
        return [key.public for key in self._keys()]

    def _keys(self) -> list[PrivateKey]:
        return [*(() if self.signer is None else (self.signer,)), *self._previous]

    def sign(self, content: bytes) -> bytes:
        """Return one signature of this content for each key of this identity, joined without a separator. The result is
        empty if the identity has no Ed25519 key."""
        return b"".join(key.sign(content) for key in self._keys())

    # TLS.

    def dialing(self) -> ssl.SSLContext | None:
        """Return the TLS context for outgoing connections, or None if connections do not use TLS. The host name is not
        checked, because the server proves its name after the handshake."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext] | None:
        """Return two TLS contexts, for incoming and for outgoing connections, or None if connections do not use TLS. A
        server refuses incoming connections without a certificate."""
        listening, dialing = self._context(ssl.PROTOCOL_TLS_SERVER), self.dialing()
        return None if listening is None or dialing is None else (listening, dialing)

    def _context(self, protocol: Any) -> ssl.SSLContext | None:
        if not self.tls:
            return None
        context = ssl.SSLContext(protocol)
        # The binding of the proof to the channel relies on it.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        self._load(context)
        self._contexts.append(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        # A rotation that was killed may have left the key of the new certificate under the name NEW_KEY.
        unfinished = self.folder / NEW_KEY
        try:
            try:
                context.load_cert_chain(self.folder / CERTIFICATE, self.folder / KEY)
            except ssl.SSLError:
                if not unfinished.exists():
                    raise
                context.load_cert_chain(self.folder / CERTIFICATE, unfinished)
            context.load_verify_locations(self.folder / AUTHORITY)
        except (OSError, ssl.SSLError) as error:
            files = (self.folder / AUTHORITY, self.folder / CERTIFICATE, self.folder / KEY)
            raise AccessError(f"TLS: {tls_fault(error, *files)}") from None

    def adopt(self, newer: "Credentials") -> None:
        """From now on, use the key and the certificate of ``newer``, which was read from the same folder. TLS contexts
        that were made earlier also use this key and this certificate for new connections."""
        for context in self._contexts:
            newer._load(context)
        self.signer = newer.signer
        self._previous = newer._previous

    # A client's folder may be replaced while the client runs.

    def read_again(self) -> None:
        """Read the folder again, and use its content for new connections from now on. If the folder cannot be used, for
        example because it is just being written, keep the present credentials."""
        with suppress(AccessError):
            newer = Credentials(self.folder)
            newer.expect(self.role, self.name)
            newer.dialing()
            self.adopt(newer)
            self._servers = newer._servers

    def renew(self, code: str) -> bool:
        """Read the folder again after one end of a connection has refused the other end. ``code``: the code of the
        refusal. Return whether another attempt to connect makes sense. It makes sense if the folder has changed. It
        also makes sense if the key of an open connection was revoked and this identity has two keys, because the
        connection used only one of them."""
        before = self._marks()
        self.read_again()
        return self._marks() != before or (code == REVOKED and bool(self._previous))

    def _marks(self) -> tuple[list[str], str]:
        return self.publics, self._servers.digest if self._servers else ""


def tls_fault(
    error: OSError, authority: str | Path | None, certificate: str | Path | None = None, key: str | Path | None = None
) -> str:
    """Return which of these files cannot be used for TLS, and why. The error itself does not name the file."""
    for path in (certificate, key, authority):
        try:
            if path is not None:
                Path(path).read_bytes()
        except OSError as found:
            return f"{path}: {found.strerror}"
    if isinstance(error, ssl.SSLError) and error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
        return f"{certificate} does not belong to {key}"
    for path in (certificate, authority):
        try:
            if path is not None:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
        except ssl.SSLError:
            return f"{path}: expected a certificate in PEM"
    return f"{key}: expected a private key in PEM: {error}"


def read_access(path: str | Path) -> Access:
    """Read an access file."""
    return parse_access(_read(path), str(path))


def _read(path: str | Path) -> str:
    return read_text(path, limits.access_bytes_max, AccessError)


# A server's access file and its own credentials: read at the start, and read again when the process gets SIGHUP.
#
# After SIGHUP, a server uses its rotated key without a restart. But a server decides only at its start whether it
# uses TLS.


class ServerSecurity:
    """The identity of one server, and the identities that it knows."""

    def __init__(self, access: str | Path, credentials: Credentials, server: str) -> None:
        """``access``: the path of the access file."""
        credentials.expect(SERVER, server)
        self._file = access
        self.credentials = credentials
        self.authoriser = Authoriser(self._read(credentials), clock=time)
        self.keyring = credentials.keyring(self.authoriser.servers)

    def _read(self, own: Credentials) -> Access:
        """Read the access file. Raise AccessError if it does not fit this server's own credentials. The file may
        contain servers that the topology does not contain, because a change may add these servers later or may have
        removed them."""
        access = read_access(self._file)
        entry = access.servers.get(own.name)
        if entry is None:
            raise AccessError(f"{access.name}: expected a table [servers.{own.name}] with the key of this server")
        if entry.keys and not {key.public for key in entry.keys}.intersection(own.publics):
            file = own.folder / KEY
            raise AccessError(f"{access.name}: servers.{own.name}.keys: expected the public key of {file} in this list")
        return access

    def reload(self, core: ServerCore) -> None:
        """Read the access file and this server's credentials again. If one of the two cannot be used, keep both as they
        were."""
        try:
            newer = Credentials(self.credentials.folder)
            newer.expect(SERVER, self.credentials.name)
            access = self._read(newer)
            self.credentials.adopt(newer)
        except AccessError as error:
            core.keep_access(str(error))
        else:
            core.reload(access)


def authoriser_of(security: ServerSecurity | None, token: str) -> Authoriser:
    """Return the authoriser of a server. It uses the server's access file. Without an access file, it knows only the
    token."""
    return Authoriser(token=token, clock=time) if security is None else security.authoriser
