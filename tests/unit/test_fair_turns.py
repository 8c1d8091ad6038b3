"""An overloaded server serves others soon: slow handlers end a run of turns, and there are no cycles to collect."""

import asyncio
import gc
import socket
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from antecede import limits
from antecede.engine import Outcome
from antecede.live import tcp
from antecede.live.application import plan_of
from antecede.server import Admission, AgentServer, Driver, Published, PublishedMany, Refused
from antecede.topology import parse_topology

_topology = """
[servers]
s1 = "tcp://127.0.0.1:7101"
[domains]
A = { servers = ["s1"] }
[agents]
a = { server = "s1", class = "nowhere:Agent" }
[mailboxes]
a = { letters = 3, full = "refuse" }
"""


class _Outputs:
    """Takes everything and does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: None


@contextmanager
def _uncollected() -> Iterator[None]:
    """Nothing but reference counts frees memory."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("slow", [False, True])
def test_slow_reactions_end_a_run_of_turns(slow: bool) -> None:
    machine = AgentServer("s1", plan_of(parse_topology(_topology)), 1)
    driver = Driver(machine, lambda agent: True, _Outputs(), lambda: None, _Outputs(), machine.begin("e"))
    driver.appended(len(driver.turn(0.0, 1).records))
    driver.rest(0.0)
    driver.durable(driver.gate.last)
    seconds = limits.reactions_together_seconds if slow else limits.reactions_together_seconds / 100
    for run in range(2):
        begin = 10.0 + run
        driver.feed(Published("al", run + 1, ("a",), "T", b""))
        turn = driver.turn(begin, 1)
        (due,) = turn.reactions
        driver.appended(len(turn.records))
        assert driver.urgent == (slow and run > 0), "records are committed first, if the last reactions were slow"
        assert bool(turn.records) == driver.urgent, "otherwise the reaction shares the record"
        driver.reacted(due, Outcome("a", [], None, plain=[letter.id for letter in due.letters]), begin + seconds, 1)
        assert driver.goes_on() != driver.urgent, "a step that is open must end"
        turns = 0
        while driver.goes_on():
            turns += 1
            driver.appended(len(driver.turn(begin + seconds, 1).records))
        assert turns == (not driver.urgent)
        driver.rest(begin + seconds)


@pytest.mark.parametrize("to", [("a",), ("nobody",)])
def test_a_refused_publish_is_freed_at_once(to: tuple[str, ...]) -> None:
    """The error must not refer to itself through its traceback: that would keep the whole step."""
    machine = AgentServer("s1", plan_of(parse_topology(_topology)), 1)
    machine.begin("e")
    body = bytes(1_000)
    before = sys.getrefcount(body)
    with _uncollected():
        (refused,) = machine.step([PublishedMany("al", 1, to, "T", [body] * 4)], 0.0, 1).replies
        assert isinstance(refused, Refused)
        assert sys.getrefcount(body) == before


class _Receiver:
    def __init__(self, connection: tcp.TcpConnection) -> None:
        self.connection = connection

    def received(self, parts: list[Any]) -> None: ...

    def closed(self, reason: str, now: float) -> None: ...

    def writable(self) -> None: ...


@pytest.mark.parametrize("sent", [b"", b"nonsense" * 10])
def test_a_connection_that_has_ended_is_freed_at_once(sent: bytes) -> None:
    made: list[weakref.ref[tcp.TcpConnection]] = []

    def opened(connection: tcp.TcpConnection) -> _Receiver:
        made.append(weakref.ref(connection))
        return _Receiver(connection)

    async def main() -> None:
        listener = await tcp.listen(opened, "127.0.0.1", 0, admission=Admission())
        address = listener._sockets[0].getsockname()
        with _uncollected():
            for count in range(1, 11):
                with socket.create_connection(address) as one:
                    one.sendall(sent)
                    while len(made) < count:
                        await asyncio.sleep(0.001)
            async with asyncio.timeout(30):
                while any(one() is not None for one in made):
                    await asyncio.sleep(0.01)
        listener.close()

    asyncio.run(main())
