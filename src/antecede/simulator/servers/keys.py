"""Keys and identities of a simulated world: the shipped proof, with signatures that only this world can check.

A signature is a hash of a secret and the content. The world knows the secret of every public key, so it can check
signatures; processes of the world sign only with the keys that they were given.
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
from antecede.access.proof import NONCE_BYTES, Keyring

_tables = {SERVER: "servers", CLIENT: "clients", OPERATOR: "operators"}


class SimulatedKey:
    """A private key whose signatures only the simulated world can check."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.public = "ed25519:" + b64encode(hashlib.sha256(b"public" + secret).digest()).decode()

    def sign(self, content: bytes) -> bytes:
        """Return the signature of this content."""
        return hashlib.sha256(self._secret + content).digest()


class Seen(msgspec.Struct, frozen=True):
    """A proof that travelled on the network, where an intruder can see it."""

    server: str
    introduction: wire.Introduce
    proof: wire.Proof


class _Watched(Keyring):
    """A keyring whose proofs an intruder sees."""

    seen: list[Seen]

    def sign(self, content: bytes) -> bytes:
        signature = super().sign(content)
        fields = _fields(content)
        if fields[1] == b"dialing":
            made = wire.Introduce(wire.VERSION, wire.VERSION_OLDEST, self.role, self.name, "", fields[7])
            self.seen.append(Seen(fields[5].decode(), made, wire.Proof(signature)))
        return signature


def _fields(content: bytes) -> list[bytes]:
    """Return the fields of a signed content."""
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
        """Add an identity with a key."""
        key = self._of[(role, name)] = self.new_key()
        self.set(msgspec.structs.replace(Identity(role, name, (Key(key.public),)), **permissions))

    def set(self, identity: Identity) -> None:
        """Change an identity of the access file; servers notice when they read it again."""
        table = {**self.access.identities(identity.role), identity.name: identity}
        self.access = msgspec.structs.replace(self.access, **{_tables[identity.role]: table})

    def verify(self, public: str, signature: bytes, content: bytes) -> bool:
        """Return whether the owner of a public key signed this content."""
        key = self._keys.get(public)
        return key is not None and key.sign(content) == signature

    def keyring(self, role: str, name: str, key: SimulatedKey | None = None) -> Keyring:
        """Return the means to prove an identity; ``key``: a key to use instead of the identity's own."""
        signer = key or self._of[(role, name)]
        nonce: Callable[[], bytes] = lambda: self._random.randbytes(NONCE_BYTES)  # noqa: E731
        keyring = _Watched(role, name, signer, self.verify, nonce, lambda: 0.0, lambda: self.access.servers)
        keyring.seen = self.proofs if key is None else []
        return keyring

    def of_client(self, client: str) -> Keyring:
        """Return the keyring of the identity behind a client's name."""
        return self.keyring(CLIENT, client.split(".")[1] if wire.is_temporary(client) else client)

    def of_server(self, name: str) -> dict[str, Any]:
        """Return what a server's core needs: it reads the access file as it is now."""
        return {"authoriser": Authoriser(self.access), "keyring": self.keyring(SERVER, name)}
