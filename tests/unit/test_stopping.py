"""A server that stops or fails waits for the ends that it has closed, and not for idle connections."""

import asyncio
from collections.abc import Callable

import pytest

from antecede.live import ServerRuntime, server
from antecede.topology import TopologyFile, parse_topology
from helpers.ports import free_ports


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a server that waits for an idle connection wait for an hour."""
    monkeypatch.setattr(server, "LINGER_SECONDS", 3600.0)


def _topology() -> TopologyFile:
    one, two = free_ports(2)
    return parse_topology(
        f'[servers]\ns1 = "tcp://127.0.0.1:{one}"\ns2 = "tcp://127.0.0.1:{two}"\n'
        '[domains]\nA = { servers = ["s1", "s2"] }\n'
    )


async def _until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("fails", [False, True])
def test_idle_connections_delay_no_stop(fails: bool) -> None:
    async def main() -> None:
        topology = _topology()
        silent = topology.servers["s2"]
        # A peer that is dialed and never answers, and an end that connects and never says hello.
        dialed: list[asyncio.StreamReader] = []
        peer = await asyncio.start_server(lambda reader, writer: dialed.append(reader), silent.host, silent.port)
        runtime = ServerRuntime(topology, "s1", None, durability="memory", agents={})
        await runtime.start()
        here = topology.servers["s1"]
        reader, writer = await asyncio.open_connection(here.host, here.port)
        await _until(lambda: dialed and runtime.core.entry.connections)
        if fails:
            await runtime.give_up("the disk has failed")
        else:
            await runtime.stop(0.0)
        reason = b"the disk has failed" if fails else b"the server stops"
        assert reason in await reader.read(), "it gets the reason, and the connection ends"
        assert reason in await dialed[0].read()
        writer.close()
        peer.close()

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await main()

    asyncio.run(bounded())
