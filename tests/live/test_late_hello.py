"""A peer's hello that arrives after the peer has given up that connection and has made a newer one."""

import socket
from collections.abc import Callable
from typing import Any

import antecede
from antecede import wire
from antecede.wire import Ping, Pong, ServerHello, Unframer, frame
from helpers.hellos import server_hello


def test_a_hello_on_an_older_connection_changes_nothing(cluster: Callable[..., Any]) -> None:
    """Its numbers are out of date: taken for new, they would look as if the peer had lost its data."""
    world = cluster({"A": ["s0", "s1"]}, {"echo": ("s1", "live_agents:Echo")})
    world.start("s1")
    file = antecede.parse_topology(world.file.read_text())

    def hello(sent: int, life: int) -> bytes:
        return frame([server_hello(file, "s0", "s1", 77, sent, life)])

    address = ("127.0.0.1", world.ports["s1"])
    with socket.create_connection(address, 30) as older, socket.create_connection(address, 30) as newer:
        newer.sendall(hello(2, 2))
        read = Unframer()
        read.trust()

        def until(kind: type) -> None:
            found: list[wire.AnyPart] = []
            while not any(isinstance(part, kind) for part in found):
                piece = newer.recv(65_536)
                assert piece, world.log("s1")
                found = read.feed(piece)

        until(ServerHello)
        older.sendall(hello(0, 1))
        heard = b""
        while piece := older.recv(65_536):
            heard += piece
        assert b"a newer connection took its place" in heard
        newer.sendall(frame([Ping()]))
        until(Pong)
    assert "link-stopped" not in world.log("s1")
