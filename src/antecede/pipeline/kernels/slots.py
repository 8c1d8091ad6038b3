"""What kernels along a walk share: the slots of what messages carry.

A message on its way carries a vector (or a set) of what its sender knew: a *slot*, taken when the message is sent and
given back after its last delivery. While it is taken, its number stands in the lines where the send had the number of
deliveries that it awaits, so that a delivery finds it by position.

Arguments that belong together are tuples with names, which compiled code takes apart for nothing.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled
from antecede.pipeline.kernels.walk import Flat as Flat
from antecede.pipeline.kernels.walk import Segments as Segments

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Make = Callable[[tuple[int, int], Any], NDArray[Any]]

FIRST_SLOTS = 64


class Slots(NamedTuple):
    """What messages on their way carry, a row for each slot."""

    rows: NDArray[Any]
    owed: Ints
    """For each slot the deliveries that are awaited from it."""
    free: Ints
    """The numbers of free slots, as many as ``left`` says."""
    left: Longs


class Vectors(NamedTuple):
    """What processes know."""

    lane_of: Ints
    """For each process the lane of its entry, -1 if nobody keeps one."""
    known: NDArray[Any]
    """For each process its entries."""
    slot_of: Ints
    """For each process the slot that its next send can share, or -1."""


def slots_of(lanes: int, kind: Any, count: int = FIRST_SLOTS, make: Make = np.zeros) -> Slots:
    """So many free slots."""
    return Slots(make((count, lanes), kind), np.zeros(count, np.int32), free_of(count), np.array([count], np.int64))


def free_of(count: int) -> Ints:
    """So many free numbers."""
    return np.arange(count, dtype=np.int32)


def grown(slots: Slots, make: Make = np.zeros) -> Slots:
    """Twice as many slots, if none is free; the new ones are."""
    if slots.left[0]:
        return slots
    old = len(slots.owed)
    rows = make((2 * old, slots.rows.shape[1]), slots.rows.dtype)
    rows[:old] = slots.rows
    return Slots(rows, doubled(slots.owed), more_free(slots.free), np.array([old], np.int64))


def more_free(free: Ints) -> Ints:
    """Room for twice as many free numbers, where none is free; the first of them are the new ones."""
    old = len(free)
    return np.concatenate([np.arange(old, 2 * old, dtype=np.int32), np.zeros(old, np.int32)])


def doubled(rows: NDArray[Any], axis: int = 0) -> NDArray[Any]:
    """As many zeros behind the rows (or columns) of an array as it has."""
    return np.concatenate([rows, np.zeros_like(rows)], axis=axis)


@compiled
def take(slots: Slots, deliveries: int) -> int:
    """A free slot, for a message with so many deliveries; there must be one."""
    slots.left[0] -= 1
    slot: int = slots.free[slots.left[0]]
    slots.owed[slot] = deliveries
    return slot


@compiled
def give_back(slots: Slots, slot: int) -> None:
    """One delivery less is awaited from a slot that one send has; it is free after the last."""
    slots.owed[slot] -= 1
    if slots.owed[slot] == 0:
        slots.free[slots.left[0]] = slot
        slots.left[0] += 1


@compiled
def depart(process: int, at: int, argument: Ints, vectors: Vectors, slots: Slots) -> bool:
    """Give a send the slot of what its process knows, a new one if that has changed; False: none is free."""
    slot = vectors.slot_of[process]
    if slot < 0:
        if slots.left[0] == 0:
            return False
        slots.left[0] -= 1
        slot = slots.free[slots.left[0]]
        for k in range(vectors.known.shape[1]):
            slots.rows[slot, k] = vectors.known[process, k]
        vectors.slot_of[process] = slot
    slots.owed[slot] += argument[at]
    argument[at] = slot
    return True


@compiled
def arrive(slot: int, sender: int, vectors: Vectors, slots: Slots) -> None:
    """One delivery less is awaited from a slot; it is free after the last, unless its sender's next send shares it."""
    slots.owed[slot] -= 1
    if slots.owed[slot] == 0 and vectors.slot_of[sender] != slot:
        slots.free[slots.left[0]] = slot
        slots.left[0] += 1


@compiled
def renew(process: int, vectors: Vectors, slots: Slots) -> None:
    """Let go of the slot that a process's next send would have shared."""
    slot = vectors.slot_of[process]
    if slot >= 0:
        vectors.slot_of[process] = -1
        if slots.owed[slot] == 0:
            slots.free[slots.left[0]] = slot
            slots.left[0] += 1
