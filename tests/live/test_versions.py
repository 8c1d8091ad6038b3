"""There is one wire version and one log format: any other is refused by name, and nothing is changed."""

import asyncio
from collections.abc import Callable
from typing import Any
from zlib import crc32

from antecede import wire
from antecede.store import FORMAT


def test_an_end_of_another_wire_version_is_refused(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1"]}, {})
    world.start()

    async def dial(version: int) -> list[wire.AnyPart]:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.ports["s1"])
        hello = bytearray(wire.frame([wire.ClientHello("", "alice")]))
        hello[4] = version
        writer.write(hello)
        async with asyncio.timeout(20):
            head = await reader.readexactly(4)
            heard = wire.Unframer().feed(head + await reader.readexactly(int.from_bytes(head, "big")))
        writer.close()
        return heard

    for version in (wire.VERSION - 1, wire.VERSION + 1):
        (bye,) = asyncio.run(dial(version))
        assert isinstance(bye, wire.Bye)
        assert bye.code == "version"
    (welcome,) = asyncio.run(dial(wire.VERSION))
    assert isinstance(welcome, wire.Welcome)


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
