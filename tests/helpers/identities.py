"""Keys, credentials and raw connections for tests of identities."""

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

from antecede import wire
from antecede.access import Dialing, Identity, Key, Keyring, Refusal
from antecede.live.tcp import TcpConnection, dial
from antecede.topology import Address


def public_key(number: int) -> str:
    """Return a different public key for each number; nobody has the private one."""
    return "ed25519:" + b64encode(bytes([number]) * 32).decode()


def issue(
    folder: Path,
    role: str,
    name: str,
    expires: float | None = None,
    authority: object | None = None,
    **permissions: object,
) -> Identity:
    """Write a key into a folder; return the identity for the access file."""
    from antecede.live.issuing import Authority, new_key, write_folder

    key = new_key()
    uri = f"spiffe://test/{role}/{name}"
    certificate = pem = None
    if isinstance(authority, Authority):
        certificate, pem = authority.issue(key, name, uri, ("127.0.0.1",) if role == "server" else (), 1), authority.pem
    write_folder(folder, role, name, key, certificate, pem)
    names = (uri,) if certificate else ()
    return Identity(role, name, (Key(key.public, expires),), names, **permissions)  # type: ignore[arg-type]


class RawConnection:
    """A connection that sends any parts, and returns those that come."""

    def __init__(self) -> None:
        self._parts: asyncio.Queue[wire.AnyPart | None] = asyncio.Queue()
        self.connection: TcpConnection

    @classmethod
    async def open(cls, address: Address, keyring: Keyring | None = None, tls: object = None) -> "RawConnection":
        """Connect; with a keyring prove the identity. If that is refused, ``next`` returns why."""
        raw = cls()

        def opened(connection: TcpConnection) -> "RawConnection":
            raw.connection = connection
            return raw

        await dial(opened, address.host, address.port, tls)  # type: ignore[arg-type]
        if keyring is not None:
            dialing = Dialing(keyring, raw.connection)
            raw.send(dialing.introduction)
            answer = dialing.answer(await raw.next())
            assert not isinstance(answer, Refusal), answer
            raw.send(answer)
        return raw

    def send(self, *parts: wire.Part) -> None:
        """Send parts, each in a separate frame."""
        for part in parts:
            self.connection.send([part])

    async def next(self) -> wire.AnyPart:
        """Return the next part that is not a ping; a Bye if the connection ended."""
        async with asyncio.timeout(10):
            while True:
                part = await self._parts.get()
                if part is None:
                    return wire.Bye("closed", code="closed")
                if not isinstance(part, wire.Ping):
                    return part

    async def answer(self, *parts: wire.Part) -> str:
        """Send parts; return ``ok``, or the code of the refusal."""
        self.send(*parts)
        return code_of(await self.next())

    def close(self) -> None:
        self.connection.close("done", final=True)

    def received(self, parts: Sequence[wire.AnyPart]) -> None:
        for part in parts:
            self._parts.put_nowait(part)

    def closed(self, reason: str, now: float) -> None:
        self._parts.put_nowait(None)

    def writable(self) -> None:
        return


def code_of(part: wire.AnyPart) -> str:
    """Return ``ok``, or the code of a refusal."""
    if isinstance(part, wire.Bye | wire.Refused):
        return part.code
    if isinstance(part, wire.Answer):
        # A command that ran and did not like its arguments was allowed.
        return "ok" if part.ok or part.code == "usage" else part.code
    return "ok"
