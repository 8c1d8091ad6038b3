"""Roots whose time is up together: each is answered, and giving up many costs no more than it must."""

from collections.abc import Generator
from typing import Any

import msgspec

from antecede import limits
from antecede.objects import Answered, Call, Object, Root, group, operation


class Caller(Object):
    @operation
    def call(self) -> Generator[Call, Any, None]:
        yield Call("far", "call")


def test_thousands_may_be_given_up_together() -> None:
    """Each on its own would be looked for among all that wait, field by field."""
    site = group({"near": Caller, "far": Caller}).create(0, 2)
    begun = [site.start("call", deadline=1.0)[0] for _ in range(limits.roots_running_max)]
    waiting = [site.start("call", deadline=1.0 + number % 2)[0] for number in range(4_000)]
    compared = 0

    class Compared(Root):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return self is other

    queue = site.roots._waiting["call"]
    queue.extend([Compared(*msgspec.structs.astuple(queue.popleft())) for _ in range(len(queue))])
    effects = site.tick(1.0)
    assert compared == 0
    ended = [effect for effect in effects if isinstance(effect, Answered)]
    assert [(one.root, one.ok) for one in ended] == [(root, False) for root in (*begun, *waiting[::2])]
    assert [root.name for root in site.roots] == waiting[1::2]
