"""Whatever comes over a connection: the server closes it with a logged reason, and goes on."""

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from live_agents import Ping, Pong

import antecede
from antecede import wire
from antecede.topology import TopologyFile
from antecede.wire import ClientHello, Listen, PeerAck, PeerFrames, Publish, Request, frame
from campaigns.lies import ORDERS, Liar, trial
from helpers.hellos import server_hello

_frames = 2_000


@pytest.fixture
def world(cluster: Callable[..., Any]) -> Any:
    world = cluster({"A": ["s1", "s2"]}, {"echo": ("s1", "live_agents:Echo")})
    world.start("s1")
    return world


def _say(world: Any, data: bytes, *, wait: bool = True) -> bytes:
    """Send bytes, and read until the server hangs up."""
    with socket.create_connection(("127.0.0.1", world.ports["s1"]), 10) as one:
        try:
            one.sendall(data)
            if not wait:
                return b""
            one.shutdown(socket.SHUT_WR)
            heard = b""
            while piece := one.recv(65_536):
                heard += piece
            return heard
        except (ConnectionResetError, BrokenPipeError):
            return b""


def _alive(world: Any) -> None:
    async def main() -> None:
        async with antecede.connect(world.addresses["s1"], name="alice") as bus:
            assert (await bus.ask("echo", Ping(number=1), expect=Pong, timeout=10)).number == 1

    asyncio.run(main())
    assert world.processes["s1"].poll() is None


def _topology(world: Any) -> TopologyFile:
    return antecede.parse_topology(world.file.read_text())


def _client(client: str = "mallory") -> ClientHello:
    return ClientHello("", client)


def _hello(client: str = "mallory") -> bytes:
    return frame([_client(client)])


_cases = [
    (struct.pack(">IB", 2**31, wire.VERSION) + b"x", "frame of 2147483648 bytes announced"),
    (struct.pack(">IB", 0, wire.VERSION), "frame of 0 bytes announced"),
    (struct.pack(">IB", 300_000, wire.VERSION) + b"x", "frame of 300000 bytes announced"),
    (struct.pack(">IB", 2, 99) + b"\x90", "wire version 99"),
    (struct.pack(">IB", 4, wire.VERSION) + b"abc", "unreadable frame"),
    (struct.pack(">IB", 10_001, wire.VERSION) + b"\x91" * 10_000, "unreadable frame"),
    (struct.pack(">IB", 100_001, wire.VERSION) + b"\x91" * 100_000, "frame of 100001 bytes announced"),
    (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", "bytes announced"),
    (frame([Listen()]), "Listen where a hello was expected"),
    (frame([PeerAck("A", 1, 1, 1, b"")]), "PeerAck where a hello was expected"),
    (frame([ClientHello("", "a b")]), "a client's name is"),
    (frame([ClientHello("token", "a")]), "wrong token"),
    (_hello() + frame([Publish(0, ("echo",), "Ping", [b""])]), "malformed publish from client mallory: number 0"),
    (_hello() + frame([Publish(1, (), "Ping", [b""])]), "from client mallory: no destination"),
    (
        _hello() + frame([Publish(1, ("echo",), "Ping", [b""], begun=[(1, "x")])]),
        "from client mallory: a handled letter at position 1, expected 0 to 0",
    ),
    (_hello() + frame([Publish(1, ("echo",), "Ping", [])]), "from client mallory: no notification"),
    (_hello() + frame([PeerFrames("A", 1, 1, [1], [b""])]), "PeerFrames from client mallory"),
]


def test_malformed(world: Any) -> None:
    for data, reason in _cases:
        heard = _say(world, data)
        for _ in range(5):
            # If bytes are still on their way when the server closes, the reset may overtake its good-bye.
            heard = heard or _say(world, data)
        if reason:
            world.until(lambda reason=reason: reason in world.log("s1"), f"the log says {reason!r}")
        assert b"\x0d" in heard, f"the server says good-bye after {data[:40]!r}"
    _alive(world)


def test_mutated_frames(world: Any) -> None:
    """Two thousand conversations with a lie in each; ``tests/campaigns`` tells a million without a socket."""
    random = Random(4)
    whole: list[list[list[Any]]] = [
        [[_client()], [Listen(), Publish(1, ("echo",), "Ping", [b"\x81\xa6number\x01"] * 3, False)]],
        [[_client("oscar")], [wire.Done(["s1.1.1"], "x"), wire.Ping(), wire.Pong(), wire.Bye("so long")]],
        [[server_hello(_topology(world), "s2", "s1", 5)], [wire.Ping()]],
        [[Request("", "status", []), Request("", "dead-show", ["x"])]],
    ]
    liar = Liar(random)
    for _ in range(_frames):
        data = liar.mutated(random.choice(whole))
        with socket.create_connection(("127.0.0.1", world.ports["s1"]), 10) as one, suppress(OSError):
            one.sendall(data)
    _alive(world)
    assert "Traceback" not in world.log("s1")


def test_frames_of_a_peer_that_are_none(world: Any) -> None:
    """A peer that knows the epoch and the token, and then says nonsense, is hung up on."""
    hello = frame([server_hello(_topology(world), "s2", "s1", 5, sent=3)])
    _say(world, hello + frame([PeerFrames("B", 5, 0, [1], [b"x"])]))
    world.until(lambda: "malformed frames" in world.log("s1"), "the domain is refused")
    _say(world, hello + frame([PeerFrames("A", 5, 0, [1], [b"nonsense"])]))
    world.until(lambda: "bad-frame" in world.log("s1"), "the packet is refused")
    _say(world, hello + frame([PeerFrames("A", 5, 0, [2**62], [b"nonsense"])]))
    world.until(lambda: "a correct peer does not send this number" in world.log("s1"), "the jump is refused")
    _alive(world)


def test_many_silent_connections(world: Any) -> None:
    """Half-open connections cost little, and nobody else notices."""
    silent = [socket.create_connection(("127.0.0.1", world.ports["s1"]), 10) for _ in range(200)]
    try:
        _alive(world)
    finally:
        for one in silent:
            one.close()
    _alive(world)


def test_lies_at_every_depth() -> None:
    """Forged stamps, packets and letters for each order, from peers and clients that know everything they should, and
    floods from everybody. The work for a frame is in proportion to its length."""
    outcome = asyncio.run(trial(1, 20_000, life=1_000))
    assert not outcome.found, outcome.found
    assert outcome.closed > outcome.lies // 3, "the lies have become harmless"
    assert outcome.records > 60 * len(ORDERS), "hardly a lie was believed"
    assert min(outcome.kinds.values()) > 1_000, outcome.kinds
    assert len(outcome.kinds) == 4
    assert outcome.calls_per_byte < 10, "function calls per byte of a frame"
    assert outcome.growth_mib < 100, "memory"
    # A peer whose stamps contradict each other: the log could not be replayed. And frames where a topology was
    # expected: the connection was closed without a word in the log.
    for seed, order in ((858, "matrix"), (6548, "updates")):
        assert not asyncio.run(trial(seed, 2_000, (order,))).found
