"""Connections from anybody: they can neither stall a server, nor use up its memory or its file descriptors."""

import asyncio
import os
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from live_agents import Ping as Question
from live_agents import Pong as Reply
from live_agents import Word

import antecede
from antecede import wire
from antecede.wire import ClientHello, Done, Ping, Publish, Request, frame
from helpers.overload import refused

_here = Path(__file__).resolve().parent
_mib = 1024 * 1024


@pytest.fixture
def world(cluster: Callable[..., Any]) -> Any:
    world = cluster({"A": ["s1"]}, {"echo": ("s1", "live_agents:Echo")})
    world.start("s1")
    return world


def _connected(world: Any) -> socket.socket:
    return socket.create_connection(("127.0.0.1", world.ports["s1"]), 30)


def _entries(count: int, entry: bytes) -> bytes:
    """A MessagePack list with the same entry again and again."""
    return b"\xdd" + count.to_bytes(4, "big") + entry * count


def _framed(body: bytes) -> bytes:
    return struct.pack(">IB", len(body) + 1, wire.VERSION) + body


_hello = frame([ClientHello("", "mallory")])
_publish = b"\x91\x95\x06\x01\x91\xa4echo\xa4Ping"
"""The beginning of a publish, up to its list of bodies."""


def _reply(world: Any, data: bytes) -> bytes:
    """Send bytes, and return all that the server sends until it closes the connection."""
    with _connected(world) as one:
        reply = b""
        with suppress(ConnectionResetError, BrokenPipeError):
            one.sendall(data)
        with suppress(ConnectionResetError):
            while piece := one.recv(65_536):
                reply += piece
        return reply


def _memory_mib(world: Any) -> int:
    """The most memory that the server has had so far."""
    lines = Path(f"/proc/{world.processes['s1'].pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


def _cpu_seconds(world: Any) -> float:
    fields = Path(f"/proc/{world.processes['s1'].pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main

    asyncio.run(bounded())


def _serves(world: Any) -> None:
    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            assert (await bus.ask("echo", Question(number=1), expect=Reply, timeout=20)).number == 1

    _run(main())
    assert world.processes["s1"].poll() is None


def test_one_part_before_the_hello(world: Any) -> None:
    """A frame of 240 KB with 120,000 pings took more than a second, in the square of their number."""
    before = _cpu_seconds(world)
    for count in (2, 8_000, 120_000):
        reply = _reply(world, _framed(_entries(count, b"\x91\x0b")))
        assert b"frame-length" in reply or b"unreadable" in reply, f"{count} pings are refused"
    assert b"hello-expected" in _reply(world, frame([Ping()]))
    assert b"one-request" in _reply(world, frame([Request("", "status", [])]) * 1_000), "one request per connection"
    assert _cpu_seconds(world) - before < 1.0, "little work"
    _serves(world)


def test_a_client_that_sends_too_many_of_something(world: Any) -> None:
    """The server has its own bounds, which it checks before anything is accepted, or even decoded."""
    ahead = b"\x95\x06\xce\x00\x02\x00\x00\x91\xa4echo\xa4Ping" + _entries(900, b"\xc4\x00")
    cases = [
        ("30 M pings", _entries(30_000_000, b"\x91\x0b"), b"frame-length"),
        ("5 M pings", _entries(5_000_000, b"\x91\x0b"), b"unreadable"),
        ("9 M bodies", _publish + _entries(9_000_000, b"\xc4\x00"), b"frame-length"),
        ("5 M bodies", _publish + _entries(5_000_000, b"\xc4\x00"), b"unreadable"),
        (
            "3 M addresses",
            b"\x91\x95\x06\x01" + _entries(3_000_000, b"\xa2ab") + b"\xa4Ping\x91\xc4\x00",
            b"unreadable",
        ),
        ("3 M letters done", b"\x91\x93\x0a" + _entries(3_000_000, b"\xa2ab") + b"\xa0", b"unreadable"),
        ("4 M letters beyond the window", _entries(5_000, ahead), b"bad-publish"),
    ]
    before = _memory_mib(world)
    for what, body, code in cases:
        assert code in _reply(world, _hello + _framed(body)), what
        assert _memory_mib(world) - before < 150, f"memory after {what}"
        world.until(lambda code=code: f"code={code.decode()}" in world.log("s1"), "the log has the code")
    _serves(world)
    assert world.stop("s1") == [0]
    world.start("s1")
    _serves(world)


def test_pings_are_answered_once_per_frame(world: Any) -> None:
    with _connected(world) as one:
        one.sendall(_hello)
        unframer = wire.Unframer()
        unframer.trust()
        while not unframer.feed(one.recv(65_536)):
            pass
        one.sendall(_framed(_entries(2_048, b"\x91\x0b")))
        one.sendall(frame([Publish(1, ("echo",), "Ping", [b"\x81\xa6number\x01"])]))
        parts: list[Any] = []
        while not any(isinstance(part, wire.Accepted) for part in parts):
            parts += unframer.feed(one.recv(65_536))
    assert parts.count(wire.Pong()) == 1


def test_copies_for_thousands_of_addresses(world: Any) -> None:
    """One frame of 50 KB asks for four million copies. They are made step by step until the server is full. A short
    time later, other clients can publish again, because the oldest of the copies have expired."""
    many = tuple(f"a{number}@s1" for number in range(4_096))
    before = _memory_mib(world)
    with _connected(world) as one:
        one.sendall(_hello)
        one.recv(65_536)
        one.sendall(frame([Publish(1, many, "Ping", [b""] * 1_024)]))
        reply = b""
        while b"catching up" not in reply:
            piece = one.recv(65_536)
            assert piece, "it refuses what is too much"
            reply += piece
    assert _memory_mib(world) - before < 400, "memory"
    world.until(lambda: "caught-up" in world.log("s1"), "the server accepts publishes again", 20)
    _serves(world)


def test_many_parts_are_handled_in_several_turns(world: Any) -> None:
    """All of them, in their sequence, and a rule that the last one breaks ends the connection."""
    publishes = [Publish(number, ("echo",), "Ping", [b"\x81\xa6number\x01"]) for number in range(1, 5_001)]
    with _connected(world) as one:
        one.sendall(_hello)
        one.recv(65_536)
        one.sendall(frame([*publishes, Publish(5_001, (), "Ping", [b""])]))
        one.sendall(frame([Publish(5_001, ("echo",), "Ping", [b""])]))
        reply = b""
        while piece := one.recv(65_536):
            reply += piece
    assert b"bad-publish" in reply
    with _connected(world) as one:
        one.sendall(_hello)
        welcome = wire.Unframer().feed(one.recv(65_536))
    assert [getattr(part, "last", 0) for part in welcome] == [5_000]


def test_a_publish_that_an_application_gets_wrong(world: Any) -> None:
    """It is refused with its number, and the client goes on."""
    many = tuple(f"a{number}@s1" for number in range(4_097))
    cases = [
        (Publish(1, ("echo",), "x" * 401, [b""]), "notification type of 401 characters: expected at most 400"),
        (Publish(1, ("x" * 198 + "@s1",), "Ping", [b""]), "address of 201 characters: expected at most 200"),
        (Publish(1, many, "Ping", [b""]), "4097 destinations: expected at most 4096"),
        (Publish(1, ("echo",), "Ping", [b"x" * (8 * _mib + 1)]), "notification of 8388609 bytes"),
        (Publish(1, ("x" * 197 + "@s1",), "x" * 400, [b""] * 1_024), ""),
        (Publish(1_025, many[:4_096], "Ping", [b"x" * 8 * _mib]), ""),
    ]
    with _connected(world) as one:
        one.sendall(_hello)
        unframer = wire.Unframer()
        unframer.trust()

        def answer(kind: type) -> Any:
            while True:
                piece = one.recv(65_536)
                assert piece, "the connection stays"
                for part in unframer.feed(piece):
                    if isinstance(part, kind):
                        return part

        answer(wire.Welcome)
        for publish, reason in cases:
            one.sendall(frame([publish, Done(["x"] * 1_024)]))
            if reason:
                assert reason in answer(wire.Refused).reason
            else:
                assert answer(wire.Accepted).upto == publish.number + len(publish.bodies) - 1, "at the bound"


def test_a_request_with_a_silly_argument(world: Any) -> None:
    for arguments in (["A", "9" * 5_000], ["A", "9" * 400], ["A" * 5_000, "1"], ["x"] * 8):
        with _connected(world) as one:
            one.sendall(frame([Request("", "forget", arguments)]))
            assert b"expected" in one.recv(65_536) or len(arguments) == 8
    assert "Traceback" not in world.log("s1")
    _serves(world)


def _few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))


@contextmanager
def _small(world: Any, limit: Callable[[], None] | None) -> Iterator[Any]:
    """A server whose log needs a new segment for every few messages."""
    log = (world.folder / "s1.log").open("ab")
    program = [sys.executable, str(_here / "small_segments.py"), str(world.file), "s1", str(world.folder / "s1")]
    with closing(log):
        world.processes["s1"] = subprocess.Popen(
            [*program, "unrecorded"], env=world.environment, cwd=world.folder, stderr=log, preexec_fn=limit
        )
    world.until(lambda: world.listens("s1"), "s1 listens")
    yield world
    assert world.stop("s1") == [0]


async def _fill(bus: antecede.Bus, count: int) -> None:
    """Send so much that the log needs new segments."""
    for _ in range(count):
        await bus.send("nobody@s1", Word(text="x" * 100_000))


def test_more_silent_connections_than_file_descriptors(cluster: Callable[..., Any]) -> None:
    """The oldest strangers make way; the log gets its files, and clients and operators are served all the time."""
    world = cluster({"A": ["s1"]}, {"echo": ("s1", "live_agents:Echo")})
    with _small(world, _few_files):

        async def main() -> None:
            async with antecede.connect(world.addresses["s1"], name="bob") as bus:
                silent = [_connected(world) for _ in range(400)]
                await _fill(bus, 30)
                await asyncio.to_thread(_serves, world)
                assert world.command("status", str(world.file)).returncode == 0
                half = frame([Publish(1, ("echo",), "Ping", [b"x" * 10_000])])[:9_000]
                for one in silent[-20:]:
                    one.sendall(half)
                await _fill(bus, 30)
                for one in silent:
                    one.close()
                await _fill(bus, 1)

        _run(main())
        world.until(lambda: "strangers-dropped" in world.log("s1"), "the log says so")
        assert "disk-failed" not in world.log("s1")


def test_places_for_clients(cluster: Callable[..., Any]) -> None:
    """One client too many is refused by name, for now; operators are served, and those who are here stay."""
    world = cluster({"A": ["s1"]}, {"echo": ("s1", "live_agents:Echo")})
    with _small(world, _few_files):
        replies: list[bytes] = []
        clients: list[socket.socket] = []
        for number in range(80):
            one = _connected(world)
            clients.append(one)
            one.sendall(frame([ClientHello("", f"client{number}")]))
            replies.append(one.recv(65_536))
        # 256 descriptors without the 160 that are reserved; a quarter of those places is for strangers.
        assert [b"too-many-clients" in reply for reply in replies] == [False] * 72 + [True] * 8
        assert world.command("status", str(world.file)).returncode == 0
        for one in clients:
            one.close()
        _serves(world)


def test_no_file_descriptor_left(cluster: Callable[..., Any]) -> None:
    """Then it is as with a full disk: clients are refused by name, nothing is lost, and it goes on afterwards."""
    world = cluster({"A": ["s1"]}, {"echo": ("s1", "live_agents:Echo")})
    with _small(world, None):
        pid = world.processes["s1"].pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)

        async def main() -> None:
            async with antecede.connect(world.addresses["s1"], name="bob") as bus:
                await _fill(bus, 1)
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
                ticket = bus.send("nobody@s1", Word(text="x" * 100_000))
                while not await refused(bus, ticket):
                    ticket = bus.send("nobody@s1", Word(text="x" * 100_000))
                assert "no file descriptor for the next segment" in bus.trouble
                # Nobody can be accepted either; those who are waiting are, later.
                waiting = _connected(world)
                waiting.sendall(frame([Request("", "status", [])]))
                await asyncio.to_thread(world.until, lambda: "accept-failed" in world.log("s1"), "the log says so")
                resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
                assert b"health" in waiting.recv(65_536)
                waiting.close()
                async with asyncio.timeout(30):
                    await ticket
                await _fill(bus, 30)

        _run(main())
        assert "disk-failed" not in world.log("s1")


def test_tls_handshakes_that_never_end(cluster: Callable[..., Any]) -> None:
    world = cluster({"A": ["s1"]}, {"echo": ("s1", "live_agents:Echo")})
    key, certificate = world.folder / "key.pem", world.folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no openssl to make a certificate with")
    world.start(options=("--certificate", str(certificate), "--key", str(key), "--authority", str(certificate)))
    pid = world.processes["s1"].pid
    silent = [_connected(world) for _ in range(400)]
    ask = ("send", str(world.file), "echo", "Ping", '{"number": 5}', "--ask", "--authority", str(certificate))
    answer = world.command(*ask)
    assert answer.returncode == 0, answer.stderr
    # Of one address: no more than half of all strangers that there may be.
    world.until(lambda: len(os.listdir(f"/proc/{pid}/fd")) < 300, "the oldest are closed")
    for one in silent:
        one.close()
    assert "Traceback" not in world.log("s1")
