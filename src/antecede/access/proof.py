"""Both ends of a connection prove their identity. They do this before their first normal messages (the *hellos*), and
before any state is read or changed.

::

    dialing end                                   answering end (always a server)
    Introduce(role, name, to, nonce)      ──►
                                          ◄──     Challenge(server, nonce, signature)
    Proof(signature), then the hello      ──►

Each end signs the following values: both nonces, the role and the name of the dialing end, the name of the server,
and the binding of the TLS channel (empty without TLS). The signed content also says which end
signs: dialing or answering. So a signature is not valid on another connection, in the other direction, for another
name, or through a relay that decrypts TLS. Until the server has proved its identity, the dialing end sends nothing
about itself except its role and its name.

An identity is proved by a signature with one of its valid keys. If the access file lists certificates for the identity,
and the other end shows a certificate, then this certificate must also have one of the listed names. An identity with
``certificate_alone`` is proved by its certificate, which TLS has checked. An identity that has neither keys nor
``certificate_alone`` cannot be proved. So, to revoke an identity that has keys, remove all its keys from the access
file.

While a key is replaced (rotation), its owner has the old and the new key, and signs with both. So every process that
knows one of the two keys accepts the identity. The processes can get their new access files in any sequence.

A refusal does not say whether the name or the key is wrong. So an unknown program cannot find out which names exist.
The server's log contains the text of the refusal, the claimed name, and the address of the other end.
"""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from antecede import wire
from antecede.access.authoriser import Authoriser, Who
from antecede.access.model import ROLES, SERVER, Identity, Refusal


class Signer(Protocol):
    """Signs with the private keys of an identity. There is one key or, after a rotation (the replacement of the key),
    there can be two: the new key and the previous key."""

    def sign(self, content: bytes) -> bytes:
        """Return one signature of this content for each key, joined without a separator. If a certificate alone proves
        the identity, the result is empty."""
        ...


Verify = Callable[[str, bytes, bytes], bool]
"""A function ``verify(public, signature, content)``. It returns whether the owner of the public key signed this
content."""


class Channel(Protocol):
    """The facts about a connection that are needed to prove an identity."""

    binding: bytes
    """A value that only the two ends of this TLS connection know. Without TLS, it is empty."""
    certified: tuple[str, ...]
    """The names in the certificate of the other end, which TLS has checked. If the other end showed no certificate,
    there are no names."""


class Keyring:
    """The identity of this process. The keyring proves this identity to other processes, and checks the identities of
    other processes."""

    def __init__(
        self,
        role: str,
        name: str,
        signer: Signer,
        verify: Verify,
        nonce: Callable[[], bytes],
        clock: Callable[[], float],
        servers: Callable[[], Mapping[str, Identity]],
        renew: Callable[[str], bool] = lambda code: False,
    ) -> None:
        """``signer``: signs as this process. ``verify``: checks the signatures of other processes. ``nonce``: returns
        32 random bytes. ``clock``: returns seconds since 1970. ``servers``: returns the servers that this process
        trusts. ``renew``: reads a client's credentials again after a refusal with the given code, and returns whether
        the client should connect again."""
        self.role = role
        self.name = name
        self.sign = signer.sign
        self.verify = verify
        self.nonce = nonce
        self.clock = clock
        self.servers = servers
        self.renew = renew

    def proven_by(self, identity: Identity | None, signatures: bytes, content: bytes, channel: Channel) -> str:
        """Return the key or the certificate that proves an identity, or "" if nothing proves it. If two keys prove the
        identity, return the newer key, because it will be valid for longer."""
        if identity is None:
            return ""
        certificate = next((name for name in identity.certificates if name in channel.certified), "")
        if identity.certificates and channel.certified and not certificate:
            return ""
        if identity.certificate_alone:
            return certificate
        starts = range(0, len(signatures), SIGNATURE_BYTES)
        each = [signatures[start : start + SIGNATURE_BYTES] for start in starts]
        for key in reversed(identity.keys):
            valid = key.expires is None or self.clock() < key.expires
            if valid and any(self.verify(key.public, signature, content) for signature in each):
                return key.public
        return ""


class Dialing:
    """The end that opened a connection (the dialing end). It checks the proof of the server, and then returns its own
    proof."""

    def __init__(self, keyring: Keyring, channel: Channel, to: str = "") -> None:
        """``to``: the name of the server that must answer. If it is empty, any trusted server may answer."""
        self._keyring = keyring
        self._channel = channel
        self._to = to
        self.who: Who | None = None
        """The identity of the server; None until the server has proved it."""
        self.introduction = wire.Introduce(keyring.role, keyring.name, to, keyring.nonce())

    def answer(self, part: wire.AnyPart) -> wire.Proof | Refusal:
        """Check the server's first message, which must prove that the expected server sent it. Return our own proof. If
        the check fails, return the reason instead."""
        keyring = self._keyring
        if not isinstance(part, wire.Challenge):
            return Refusal("no-proof", f"{type(part).__name__} where a server's proof was expected")
        if self._to and part.server != self._to:
            return Refusal("wrong-server", f"dialed {self._to} and {part.server[:64]} answered")
        given = (self.introduction, part.server, part.nonce, self._channel.binding)
        identity = keyring.servers().get(part.server)
        by = keyring.proven_by(identity, part.signature, signed(_answering, *given), self._channel)
        if not by:
            return Refusal(NOT_PROVEN, f"the server at this address did not prove to be {part.server[:64]}")
        self.who = Who(SERVER, part.server, by)
        return wire.Proof(keyring.sign(signed(_dialing, *given)))


class Answering:
    """The end that accepted a connection (the answering end). This is always a server. It returns its own proof, and
    then checks the proof of the other end, which may be a stranger."""

    def __init__(
        self, keyring: Keyring, authoriser: Authoriser, channel: Channel, introduction: wire.Introduce
    ) -> None:
        self._keyring = keyring
        self._authoriser = authoriser
        self._channel = channel
        self.introduction = introduction
        self._nonce = keyring.nonce()

    def challenge(self) -> wire.Challenge | Refusal:
        """Return the message with our own proof and our nonce, or the reason why the other end's introduction is
        refused."""
        asked = self.introduction
        if asked.to not in ("", self._keyring.name):
            return Refusal("wrong-server", f"this is server {self._keyring.name}, not {asked.to[:64]}")
        if asked.role not in ROLES or len(asked.nonce) != NONCE_BYTES:
            return Refusal("bad-introduction", f"expected a role ({', '.join(ROLES)}) and {NONCE_BYTES} random bytes")
        return wire.Challenge(self._keyring.name, self._nonce, self._keyring.sign(self._content(_answering)))

    def check(self, proof: wire.Proof) -> Who | Refusal:
        """Return the identity that the other end has proved, or the reason why its proof is refused."""
        asked = self.introduction
        identity = self._authoriser.identity(asked.role, asked.name)
        by = self._keyring.proven_by(identity, proof.signature, self._content(_dialing), self._channel)
        if not by:
            return Refusal(
                NOT_PROVEN,
                f"not proved to be {asked.role} {asked.name[:64]}: expected a key or a certificate "
                "that the servers' access file lists for this name",
            )
        return Who(asked.role, asked.name, by)

    def _content(self, end: str) -> bytes:
        return signed(end, self.introduction, self._keyring.name, self._nonce, self._channel.binding)


def signed(end: str, introduction: wire.Introduce, server: str, nonce: bytes, binding: bytes) -> bytes:
    """Return the content that one end signs. ``end``: which end signs, dialing or answering. In the content, the length
    of each field comes before the field itself. So two different lists of fields never give the same content."""
    fields = (
        _context,
        end.encode(),
        introduction.role.encode(),
        introduction.name.encode(),
        SERVER.encode(),
        server.encode(),
        introduction.nonce,
        nonce,
        binding,
    )
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


NONCE_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
NOT_PROVEN: Final = "not-proven"
_context: Final = b"antecede proof of identity 2"
_dialing: Final = "dialing"
_answering: Final = "answering"
