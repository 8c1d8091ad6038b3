"""The inputs that one step takes, limited by their sizes."""

from collections import deque
from typing import Any, Final

from antecede import limits
from antecede.server import Input
from antecede.server.inputs import Drop, FromPeer, ReplayMany
from antecede.server.items import BuriedMany, Organising, Published, PublishedMany


def take_inputs(inputs: deque[Input]) -> list[Input]:
    """Remove the inputs of the next step from the queue, and return them. Stop as soon as the size of these inputs is
    ``step_bytes_max`` or more. So the record of the step usually fits into one write. The sizes are estimates: a
    reaction counts as 4 KiB, although its state and its letters may be larger. If the record does not fit into one
    write, it is written in pieces."""
    taken: list[Input] = []
    size = 0
    while inputs and size < limits.step_bytes_max:
        given = inputs.popleft()
        taken.append(given)
        size += _size_of(given)
    return taken


def take_until_change(inputs: deque[Input]) -> list[Input]:
    """Remove the first inputs from the queue, and return them. Stop at ``step_bytes_max`` bytes, as ``take_inputs``
    does. Stop also before an item about a change of the topology (``Organising``). But if the first input is such an
    item, remove and return only this item."""
    if not inputs or isinstance(inputs[0], Organising):
        return [inputs.popleft()] if inputs else []
    taken: list[Input] = []
    size = 0
    while inputs and size < limits.step_bytes_max and not isinstance(inputs[0], Organising):
        taken.append(inputs.popleft())
        size += _size_of(taken[-1])
    return taken


def _size_of(given: Any) -> int:
    """Return the approximate number of bytes that an input adds to the record of its step."""
    if isinstance(given, FromPeer):
        return len(getattr(given.content, "body", b"")) + 64
    if isinstance(given, PublishedMany):
        return sum(map(len, given.bodies)) + _copy_bytes * len(given.bodies) * len(given.to)
    if isinstance(given, Published):
        return len(given.body) + _copy_bytes * len(given.to)
    if isinstance(given, ReplayMany):
        return given.bytes + _copy_bytes * len(given.letters)
    if isinstance(given, BuriedMany | Drop):
        return _copy_bytes * (given.letters if isinstance(given, Drop) else len(given.keys))
    return 4_096


_copy_bytes: Final = limits.step_bytes_max // limits.step_letters_max
"""The number of bytes that ``_size_of`` counts for each copy of a letter, in addition to the letter's body."""
