"""Keys and identities of a simulated world.

Identities are proven as in a live server; only the signatures are simulated. A signature is a hash of a secret and the
content. The world knows the secret of every public key, so only the world can check signatures. Servers
and clients sign only with the keys that they were given.
"""

import hashlib
from base64 import b64encode
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from antecede import wire
from antecede.access import Access, Authoriser, Identity, Key
from antecede.access.model import CLIENT, OPERATOR, SERVER
from antecede.access.proof import NONCE_BYTES, SIGNATURE_BYTES, Keyring

_tables = {SERVER: "servers", CLIENT: "clients", OPERATOR: "operators"}


class SimulatedKey:
    """A private key whose signatures only the simulated world can check."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.public = "ed25519:" + b64encode(hashlib.sha256(b"public" + secret).digest()).decode()

    def sign(self, content: bytes) -> bytes:
        """Return the signature of this content."""
        return hashlib.blake2b(self._secret + content, digest_size=SIGNATURE_BYTES).digest()


class Seen(msgspec.Struct, frozen=True):
    """A proof that travelled on the network, where an intruder can see it."""

    server: str
    introduction: wire.Introduce
    proof: wire.Proof


class _Watched:
    """A signer that also records its proofs: a simulated intruder sees them on the network, and may send them again."""

    def __init__(self, role: str, name: str, key: SimulatedKey, seen: list[Seen]) -> None:
        self._role = role
        self._name = name
        self._key = key
        self._seen = seen

    def sign(self, content: bytes) -> bytes:
        signature = self._key.sign(content)
        fields = _fields(content)
        if fields[1] == b"dialing":
            made = wire.Introduce(wire.VERSION, wire.VERSION_OLDEST, self._role, self._name, "", fields[7])
            self._seen.append(Seen(fields[5].decode(), made, wire.Proof(signature)))
        return signature


def _fields(content: bytes) -> list[bytes]:
    fields = []
    while content:
        size = int.from_bytes(content[:4], "big")
        fields.append(content[4 : 4 + size])
        content = content[4 + size :]
    return fields


class Identities:
    """All keys of one world, and its access file, which all servers share."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._keys: dict[str, SimulatedKey] = {}
        self._of: dict[tuple[str, str], SimulatedKey] = {}
        self.access = Access()
        self.proofs: list[Seen] = []

    def new_key(self) -> SimulatedKey:
        """Return a new key that no identity has yet."""
        key = SimulatedKey(self._random.randbytes(16))
        self._keys[key.public] = key
        return key

    def add(self, role: str, name: str, **permissions: tuple[str, ...]) -> None:
        """Add an identity with a new key and these permissions."""
        key = self._of[(role, name)] = self.new_key()
        self.set(msgspec.structs.replace(Identity(role, name, (Key(key.public),)), **permissions))

    def set(self, identity: Identity) -> None:
        """Add an identity to the access file, or replace it. Servers use the change when they read the file again."""
        table = {**self.access.identities(identity.role), identity.name: identity}
        self.access = msgspec.structs.replace(self.access, **{_tables[identity.role]: table})

    def verify(self, public: str, signature: bytes, content: bytes) -> bool:
        """Return whether the owner of a public key signed this content."""
        key = self._keys.get(public)
        return key is not None and key.sign(content) == signature

    def keyring(self, role: str, name: str, key: SimulatedKey | None = None) -> Keyring:
        """Return a keyring that proves this identity. ``key``: a key to use instead of the identity's own key."""
        signer = _Watched(role, name, key or self._of[(role, name)], self.proofs if key is None else [])
        nonce: Callable[[], bytes] = lambda: self._random.randbytes(NONCE_BYTES)  # noqa: E731
        return Keyring(role, name, signer, self.verify, nonce, lambda: 0.0, lambda: self.access.servers)

    def of_client(self, client: str) -> Keyring:
        """Return the keyring of a client. The name of a temporary client contains the name of its identity."""
        return self.keyring(CLIENT, client.split(".")[1] if wire.is_temporary(client) else client)

    def of_server(self, name: str) -> dict[str, Any]:
        """Return keyword arguments for a server's core (:class:`antecede.server.core.ServerCore`). The
        arguments contain the present access file, and a keyring with which the core proves and checks identities."""
        return {"authoriser": Authoriser(self.access), "keyring": self.keyring(SERVER, name)}
