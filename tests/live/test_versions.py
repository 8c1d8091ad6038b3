"""Wire version N speaks N − 1, log format N reads N − 1; what is newer is refused by name."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pytest
from live_agents import Counted, Ping, Pong, Report

import antecede
from antecede import wire
from antecede.store.format import FORMAT, HEADER_BYTES, Identity, decode_identity, encode_identity

_before = wire.VERSION - 1


class _Struct(msgspec.Struct, frozen=True, array_like=True, tag_field="part"):
    """Parts as the version before knew them: fewer fields, and what it does not know it passes over."""


class OldHello(_Struct, frozen=True, array_like=True, tag=4):
    version: int
    oldest: int
    token: str
    client: str


class OldPublish(_Struct, frozen=True, array_like=True, tag=6):
    number: int
    to: tuple[str, ...]
    type: str
    bodies: list[bytes]
    ask: bool = False
    answers: str = ""
    replays: str = ""


class OldListen(_Struct, frozen=True, array_like=True, tag=16):
    pass


class OldLetter(msgspec.Struct, frozen=True, array_like=True):
    id: str
    source: str
    to: tuple[str, ...]
    type: str
    body: bytes
    ask: str = ""
    answers: str = ""
    replays: str = ""


class OldEnd:
    """An end of a connection that speaks the version before, and reads no newer frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, *parts: _Struct, version: int = _before) -> None:
        body = msgspec.msgpack.encode(list(parts))
        self.writer.write((len(body) + 1).to_bytes(4, "big") + bytes([version]) + body)

    async def hear(self) -> list[Any]:
        """The next frame's parts, as plain lists: [tag, field, …]."""
        length = int.from_bytes(await self.reader.readexactly(4), "big")
        version, *_ = await self.reader.readexactly(1)
        assert version in (wire.VERSION_OLDEST, _before), f"a frame of version {version}, which this end cannot read"
        parts: list[Any] = msgspec.msgpack.decode(await self.reader.readexactly(length - 1))
        return parts

    async def until(self, tag: int) -> Any:
        while True:
            for part in await self.hear():
                if part[0] == tag:
                    return part


def _run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(40):
            await main

    asyncio.run(bounded())


async def _dial(world: Any, server: str) -> OldEnd:
    return OldEnd(*await asyncio.open_connection("127.0.0.1", world.ports[server]))


def test_a_client_of_the_version_before(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1", "s2"]}, {"echo": ("s2", "live_agents:Echo")})
    world.start()

    async def main() -> None:
        old = await _dial(world, "s1")
        old.say(OldHello(_before, _before, "", "old"))
        welcome = await old.until(5)
        assert welcome[1:] == [_before, "s1", "old@s1", 0]
        old.say(OldListen(), OldPublish(1, ("echo",), "Ping", [msgspec.msgpack.encode(Ping(number=3))], True))
        assert (await old.until(7))[1] == 1
        letters = msgspec.msgpack.decode((await old.until(9))[1], type=list[OldLetter])
        assert [(letter.type, letter.answers) for letter in letters] == [("Pong", "?1")]
        assert msgspec.msgpack.decode(letters[0].body, type=Pong).number == 3
        old.writer.close()
        # A newer one speaks what we speak, if it still can; if not, it is told so.
        newer = await _dial(world, "s1")
        newer.say(OldHello(wire.VERSION + 5, _before, "", "newer"))
        head = await newer.reader.readexactly(5)
        assert head[4] == wire.VERSION_OLDEST, "the first word is one that every version reads"
        newer.writer.close()
        newest = await _dial(world, "s1")
        newest.say(OldHello(wire.VERSION + 5, wire.VERSION + 1, "", "newest"))
        bye = await newest.until(13)
        assert f"the other end supports wire versions {wire.VERSION + 1} to {wire.VERSION + 5}" in bye[1]
        newest.writer.close()

    _run(main())


def test_a_server_of_the_version_before(cluster: Callable[..., Any]) -> None:
    """s0 dials and says hello as an older server does; the answer is one that it can read."""
    world = cluster({"A": ["s0", "s1"]}, {"echo": ("s1", "live_agents:Echo")})
    world.start("s1")
    epoch = antecede.parse_topology(world.file.read_text()).epoch

    async def main() -> None:
        old = await _dial(world, "s1")
        hello = wire.ServerHello(_before, _before, epoch, "s0", "s1", "", [wire.LinkHello("A", 77, 0, 0, 0, 0)])
        old.say(hello)  # type: ignore[arg-type]
        answer = await old.until(1)
        assert answer[1:3] == [wire.VERSION, wire.VERSION_OLDEST]
        assert answer[4:6] == ["s1", "s0"]
        old.say(wire.Ping())  # type: ignore[arg-type]
        await old.until(12)
        old.writer.close()

    _run(main())


def _format_one(directory: Path) -> None:
    """Make a data directory what the version before would have left: its own number everywhere, checksums to match."""
    path = directory / "identity"
    identity = decode_identity(path.read_bytes(), str(path))
    path.write_bytes(encode_identity(Identity(identity.incarnation, identity.seal, FORMAT - 1)))
    segment = min(directory.glob("segment-*.log"))
    segment.write_bytes(_renumbered(segment.read_bytes()))
    for snapshot in directory.glob("snapshot-*"):
        snapshot.unlink()


def _renumbered(data: bytes) -> bytes:
    out, at, previous = bytearray(data), 0, None
    while data[at : at + 8] == b"antegrp\n":
        size = int.from_bytes(data[at + 48 : at + 52], "little")
        out[at + 16 : at + 18] = (FORMAT - 1).to_bytes(2, "little")
        if previous is not None:
            out[at + 52 : at + 56] = previous
        body = data[at + HEADER_BYTES : at + HEADER_BYTES + size]
        previous = crc32(body, crc32(out[at : at + HEADER_BYTES - 4])).to_bytes(4, "little")
        out[at + HEADER_BYTES - 4 : at + HEADER_BYTES] = previous
        at += HEADER_BYTES + size
    assert previous is not None, "the segment has groups"
    return bytes(out)


def test_a_log_of_the_format_before(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1"]}, {"counter": ("s1", "live_agents:Counter")})
    world.start()

    async def send(first: int, count: int) -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            for number in range(first, first + 5):
                await bus.send("counter", Ping(number=number))
            assert (await bus.ask("counter", Report(), expect=Counted)).count == count

    _run(send(1, 5))
    world.kill("s1")
    _format_one(world.folder / "s1")
    shown = json.loads(world.command("inspect", str(world.folder / "s1"), "--json").stdout)
    assert (shown["format"], shown["corrupt"], shown["torn"]) == (FORMAT - 1, None, None)
    world.start("s1")
    _run(send(6, 10))
    # It went on in the newer format, and says so: an older version refuses it instead of cutting what it cannot read.
    world.kill("s1")
    shown = json.loads(world.command("inspect", str(world.folder / "s1"), "--json").stdout)
    assert (shown["format"], shown["corrupt"]) == (FORMAT, None)
    world.start("s1")
    _run(send(11, 15))
    world.stop()


def test_a_newer_format_is_refused(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1"]}, {})
    world.start()
    world.stop()
    path = world.folder / "s1" / "identity"
    identity = decode_identity(path.read_bytes(), str(path))
    path.write_bytes(encode_identity(Identity(identity.incarnation, identity.seal, FORMAT + 1)))
    refused = world.command("serve", str(world.file), "--server", "s1", "--data", str(world.folder / "s1"))
    assert refused.returncode == 2
    expected = f"written in log format {FORMAT + 1}; this version reads formats 1 to {FORMAT}"
    assert expected in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize("version", [wire.VERSION_OLDEST, wire.VERSION])
def test_frames_of_every_version_are_read(version: int) -> None:
    assert wire.Unframer().feed(wire.frame([wire.Ping()], version)) == [wire.Ping()]
