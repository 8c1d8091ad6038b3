"""Others who say nothing, read nothing or acknowledge nothing: the server's memory is bounded, and it goes on."""

import asyncio
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from live_agents import Counted, Report, Word

import antecede
from antecede import wire
from antecede.topology import parse_topology
from antecede.wire import frame
from campaigns.walks import Processes, free_ports
from helpers.hellos import server_hello
from helpers.overload import fill

_here = Path(__file__).resolve().parent
_limits = {
    "hello_seconds_max": 1,
    "heartbeat_seconds": 1,
    "backlog_frames_max": 50,
    "write_buffer_bytes_max": 100_000,
    "deferred_frames_max": 20,
}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Processes]:
    """s1 runs with low limits; s2 is somebody else at first."""
    one, other = free_ports(2, Random(str(tmp_path)))
    text = f"""
        [servers]
        s2 = "tcp://127.0.0.1:{one}"
        s1 = "tcp://127.0.0.1:{other}"
        [domains]
        A = {{ servers = ["s1", "s2"] }}
        [agents]
        counter = {{ server = "s2", class = "live_agents:WordCounter" }}
    """
    made = Processes(tmp_path / "servers", parse_topology(text), "campaigns.serve")
    shutil.copy(_here / "live_agents.py", made.folder)
    yield made
    made.close()


def _start(servers: Processes, server: str) -> None:
    servers.start(server, *(part for name, value in _limits.items() for part in ("--limit", f"{name}={value}")))
    servers.wait(server)


def _connect(servers: Processes, server: str) -> socket.socket:
    address = servers.topology.servers[server]
    return socket.create_connection((address.host, address.port), 10)


def _hears_the_end(one: socket.socket) -> bytes:
    one.settimeout(20)
    heard = b""
    while piece := one.recv(65_536):
        heard += piece
    return heard


def test_half_open_connections_end(servers: Processes) -> None:
    """Who says nothing at first, or nothing any more, is hung up on with a reason."""
    _start(servers, "s1")
    with _connect(servers, "s1") as silent, _connect(servers, "s1") as client, _connect(servers, "s1") as half:
        client.sendall(frame([wire.ClientHello("", "carol")]))
        half.sendall(frame([wire.ClientHello("", "dave")])[:9])
        assert b"no hello" in _hears_the_end(silent)
        assert b"no hello" in _hears_the_end(half)
        assert b"nothing received for 3 s" in _hears_the_end(client)
    said = servers.log("s1")
    assert said.count("no hello") == 2
    assert "client-gone client=carol" in said


@pytest.mark.parametrize("reads", [True, False])
def test_a_peer_that_never_acknowledges(servers: Processes, reads: bool) -> None:
    """Clients are refused before the backlog is too long; when the true peer comes everything accepted arrives."""
    address = servers.topology.servers["s2"]
    with socket.create_server((address.host, address.port)) as listener:
        _start(servers, "s1")
        listener.settimeout(20)
        connection, _ = listener.accept()
        with connection:
            connection.sendall(frame([server_hello(servers.topology, "s2", "s1", 5)]))
            accepted, refused = asyncio.run(_flood(servers, connection, reads))
    assert 50 < accepted < 5_000
    assert "catching up" in refused
    # The impostor had another incarnation: an operator has to say that it may be forgotten.
    _start(servers, "s2")
    forget = asyncio.run(_forget(servers))
    assert forget["sent_again"] > 0
    asyncio.run(_counted(servers, accepted))


async def _flood(servers: Processes, connection: socket.socket, reads: bool) -> tuple[int, str]:
    """Send until refused."""
    loop = asyncio.get_running_loop()
    connection.setblocking(False)

    async def read() -> None:
        while reads and await loop.sock_recv(connection, 65_536):
            await loop.sock_sendall(connection, frame([wire.Ping()]))

    reading = asyncio.create_task(read())
    async with antecede.connect(str(servers.topology.servers["s1"]), name="alice") as bus:
        async with asyncio.timeout(30):
            found = await fill(bus, lambda: bus.send("counter", Word(text="x" * 10_000)))
        reading.cancel()
        return found


async def _forget(servers: Processes) -> dict[str, int]:
    from antecede.live.client.operator import request

    found: dict[str, int] = {}
    for server in ("s2", "s1"):
        found = await request(servers.topology.servers[server], "", "forget", "A", "1")
    return found


async def _counted(servers: Processes, expected: int) -> None:
    async with antecede.connect(str(servers.topology.servers["s2"]), name="bob") as bus, asyncio.timeout(60):
        while (counted := await bus.ask("counter", Report(), expect=Counted)).count < expected:
            await asyncio.sleep(0.05)
        assert counted.count == expected
