"""How much of what waits goes into one step: so much that its record stays bearable."""

from collections import deque
from typing import Any

from antecede import limits
from antecede.server import FromPeer, Input
from antecede.server.items import Published, PublishedMany


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
        return sum(map(len, given.bodies)) + 64
    if isinstance(given, Published):
        return len(given.body) + 64
    return 4_096
