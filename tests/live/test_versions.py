"""Wire version N speaks N − 1, log format N reads N − 1; what is newer is refused by name."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from zlib import crc32

import msgspec
import pytest
from live_agents import Ping, Pong

import antecede
from antecede import wire
from antecede.store.directory import FORMAT

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


def test_a_directory_of_another_format_is_refused(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1"]}, {})
    world.start()
    world.stop()
    path = world.folder / "s1" / "identity"
    for other in (FORMAT - 1, FORMAT + 1):
        data = path.read_bytes()[:8] + other.to_bytes(2, "little") + path.read_bytes()[10:-4]
        path.write_bytes(data + crc32(data).to_bytes(4, "little"))
        before = {one.name: one.read_bytes() for one in path.parent.iterdir() if one.is_file()}
        refused = world.command("serve", str(world.file), "--server", "s1", "--data", str(path.parent))
        assert refused.returncode == 2
        assert len(refused.stderr.splitlines()) == 1
        after = {one.name: one.read_bytes() for one in path.parent.iterdir() if one.is_file()}
        assert {**after, "lock": b""} == {**before, "lock": b""}


@pytest.mark.parametrize("version", [wire.VERSION_OLDEST, wire.VERSION])
def test_frames_of_every_version_are_read(version: int) -> None:
    assert wire.Unframer().feed(wire.frame([wire.Ping()], version)) == [wire.Ping()]
