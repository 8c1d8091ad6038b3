"""Operations, and clients, that do what nobody should: each is told why it failed, and all servers go on.

A request that cannot be read stops the link that it comes by, a record that does not fit ends its server, and an
operation that ends its server does so again at every start. So none of these may ever get that far.
"""

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from antecede import Call, ReplicatedObject, limits, operation
from antecede.testing import World
from helpers.replicas import topology

TOPOLOGY = topology(a="s1 s2 s3", b="s2 s3")

_many = 500
_large = limits.letter_bytes_max


class Rough(ReplicatedObject):
    count: int = 0

    @operation(conflicts_with=["visit"])
    def visit(self, here: str, there: str, more: int) -> Generator[Call, Any, list[int]]:
        """Call the other object, which calls this one: what is inside has ended when it comes back."""
        self.count += 1
        seen = [self.count]
        if more:
            seen += yield Call(there, "visit", (there, here, more - 1))
        return [*seen, self.count]

    @operation
    def long_name(self) -> Generator[Call, Any, None]:
        yield Call("b", "x" * _many)

    @operation
    def half_name(self) -> Generator[Call, Any, None]:
        yield Call("b", "\ud800")

    @operation
    def no_tuple(self) -> Generator[Call, Any, None]:
        yield Call("b", "visit", 5)  # type: ignore[arg-type]

    @operation
    def large_call(self) -> Generator[Call, Any, None]:
        yield Call("b", "visit", (b"." * _large,))

    @operation
    def large_reason(self) -> None:
        raise ValueError("x" * _large)

    @operation
    def cancelled(self) -> None:
        raise asyncio.CancelledError

    @operation
    def mute(self) -> None:
        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no text")

        raise Mute

    @operation
    def without_end(self, here: str, there: str) -> Generator[Call, Any, None]:
        yield Call(there, "without_end", (there, here))


def _world() -> World:
    return World(TOPOLOGY, agents={"a": Rough, "b": Rough}, seed=1)


@pytest.mark.parametrize(
    ("called", "reason"),
    [
        (("long_name",), "the name of an operation has more than 400 characters"),
        (("half_name",), "the name of an operation has more than 400 characters, or is not a text"),
        (("no_tuple",), "TypeError: arguments of a Call: expected a tuple"),
        (("large_call",), "ValueError: arguments of visit of "),
        (("large_reason",), "ValueError: xxx"),
        (("cancelled",), "CancelledError: "),
        (("mute",), "Mute: its text cannot be read"),
        (("without_end", "a", "b"), "calls nested deeper than 32"),
        (("x" * 300,), "Rough has no operation 'xxx"),
    ],
)
def test_it_fails_with_its_reason_and_the_servers_go_on(called: tuple[str, ...], reason: str) -> None:
    world = _world()
    world.call("al@s1", "a", *called)
    world.run()
    (returned,) = world.returned("al@s1")
    assert not returned.ok
    assert not returned.late
    assert reason in returned.reason
    for server in ("s1", "s2", "s3"):
        world.crash(server)
    world.call("bo@s3", "b", "visit", "b", "a", 0)
    world.run()
    assert [(one.ok, one.value) for one in world.returned("bo@s3")] == [(True, [1, 1])]
    world.check()


@pytest.mark.parametrize("more", [1, 2, 5, 12])
@pytest.mark.parametrize("there", ["a", "b"])
def test_objects_that_call_each_other_in_a_circle(there: str, more: int) -> None:
    world = _world()
    for client in ("al@s1", "bo@s2", "cy@s3"):
        world.call(client, "a", "visit", "a", there, more, timeout=500.0)
    world.run()
    answers = sorted(one.value for client in ("al@s1", "bo@s2", "cy@s3") for one in world.returned(client))
    visits = {name: sum(name == ("a", there)[turn % 2] for turn in range(more + 1)) for name in ("a", there)}
    for number, answer in enumerate(answers):
        begun, ended = answer[: more + 1], answer[more + 1 :]
        own = {name: number * visits[name] for name in visits}
        for turn, value in enumerate(begun):
            name = ("a", there)[turn % 2]
            own[name] += 1
            assert value == own[name]
        assert ended == [own[("a", there)[turn % 2]] for turn in range(more, -1, -1)]
    for name in visits:
        assert {state["count"] for state in world.replicas(name).values()} == {3 * visits[name]}
    world.check()
