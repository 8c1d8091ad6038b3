"""How a connection ends whose other end breaks a rule of the protocol: on a live and on a simulated server alike."""

import asyncio

import pytest

from antecede import wire
from antecede.live import ServerRuntime
from antecede.simulator.servers.network import End, connect
from antecede.testing import World
from antecede.topology import parse_topology
from helpers.identities import RawConnection
from helpers.ports import free_ports

_text = '[servers]\ns1 = "tcp://127.0.0.1:{}"\n[domains]\nA = {{ servers = ["s1"] }}\n'
_hello = wire.ClientHello("", "alice")
_bad = wire.Publish(1, (), "Note", [b"\x80"], False)

_cases = pytest.mark.parametrize(
    ("parts", "final", "code"),
    [
        pytest.param([_hello, wire.Accepted(1)], True, "unexpected-part", id="a client sends what only servers send"),
        pytest.param([_hello, _bad], True, "bad-publish", id="a client publishes to no destination"),
        pytest.param([wire.Pong()], False, "hello-expected", id="a stranger"),
    ],
)


@_cases
def test_live(parts: list[wire.Part], final: bool, code: str) -> None:
    async def main() -> wire.Bye:
        topology = parse_topology(_text.format(*free_ports(1)))
        runtime = ServerRuntime(topology, "s1", None, durability="memory", agents={})
        await runtime.start()
        raw = await RawConnection.open(topology.servers["s1"])
        for part in parts:
            raw.send(part)
            answer = await raw.next()
        raw.close()
        await runtime.stop(0.0)
        assert isinstance(answer, wire.Bye)
        return answer

    bye = asyncio.run(main())
    assert (bye.final, bye.code) == (final, code)


@_cases
def test_simulated(parts: list[wire.Part], final: bool, code: str) -> None:
    world = World(_text.format(1), agents={})
    world.run()
    simulated = world._world
    server, got = simulated.servers["s1"], list[wire.AnyPart]()
    mine = End(simulated, "s1", lambda end, parts: got.extend(parts), lambda end, reason: None, lambda end: None)
    theirs = server.end("alice")
    connect(mine, theirs)
    server.guard(server.life, server.accept, theirs)
    mine.receiver = theirs.receiver
    for part in parts:
        mine.send([part])
        world.run()
    bye = got[-1]
    assert isinstance(bye, wire.Bye)
    assert (bye.final, bye.code) == (final, code)
