"""Where what comes from outside goes, and how much of it goes into one step: its record must stay bearable."""

from collections import deque
from typing import Any, Protocol

from antecede import limits
from antecede.server import FromPeer, Input
from antecede.server.items import Published, PublishedMany


class Intake(Protocol):
    """The runtime, as those see it who read from connections."""

    def submit(self, given: Input) -> None:
        """Something for the next step."""
        ...

    def poke(self) -> None:
        """Take a step, even if there is nothing to take."""
        ...

    def gather(self) -> bool:
        """From now on what is submitted came in one piece; if this is true, ``go`` must follow."""
        ...

    def go(self) -> None:
        """All of it is here."""
        ...


def take_inputs(inputs: deque[Input]) -> list[Input]:
    """Take the inputs of the next step off the queue."""
    if len(inputs) <= 2:
        taken = list(inputs)
        inputs.clear()
        return taken
    taken = []
    size = 0
    while inputs and size < limits.step_bytes_max:
        given = inputs.popleft()
        taken.append(given)
        size += _size(given)
    return taken


def _size(given: Any) -> int:
    if isinstance(given, FromPeer):
        return len(getattr(given.content, "body", b"")) + 64
    if isinstance(given, PublishedMany):
        return sum(map(len, given.bodies)) + _copy_bytes * len(given.bodies) * len(given.to)
    if isinstance(given, Published):
        return len(given.body) + _copy_bytes * len(given.to)
    return 4_096


_copy_bytes = limits.step_bytes_max // limits.step_letters_max
"""What a copy of a letter counts besides its body."""
