"""The line of a bus over TCP: a bus is connected, dials again, or is gone with a reason; never anything else."""

import asyncio

import pytest

from antecede.engine import Notification
from antecede.errors import ClosedError
from antecede.live import ServerRuntime
from antecede.live.client.line import connect
from antecede.topology import parse_topology
from helpers.ports import free_ports


class Word(Notification):
    pass


def _broken(*_: object) -> None:
    raise LookupError("a fault of the application")


def test_a_callback_that_fails_ends_the_first_connection() -> None:
    (port,) = free_ports(1)

    async def main() -> None:
        async with asyncio.timeout(10):
            await connect(f"tcp://127.0.0.1:{port}", patience=60.0, waits=_broken).__aenter__()

    with pytest.raises(ClosedError, match=f":{port}: the line to the server failed: LookupError: a fault of the appl"):
        asyncio.run(main())


def test_a_line_that_fails_ends_its_bus() -> None:
    (port,) = free_ports(1)
    topology = parse_topology(f'[servers]\ns1 = "tcp://127.0.0.1:{port}"\n[domains]\nA = {{ servers = ["s1"] }}\n')

    async def main() -> None:
        runtime = ServerRuntime(topology, "s1", durability="memory")
        await runtime.start()
        bus = await connect(f"tcp://127.0.0.1:{port}", name="alice").__aenter__()
        # Whatever may fail between two connections.
        bus._line._read_again = _broken  # type: ignore[attr-defined]
        bus._line._line._connection._transport.abort()  # type: ignore[attr-defined]
        async with asyncio.timeout(10):
            with pytest.raises(ClosedError, match="the line to the server failed: LookupError"):
                await bus.until_closed()
        with pytest.raises(ClosedError, match="the line to the server failed: LookupError"):
            bus.send("bob@s1", Word())
        await bus.close()
        await runtime.stop()

    asyncio.run(main())
