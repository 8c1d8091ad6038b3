"""Slots store the data that messages carry. The kernels (compiled loops) that follow a walk over the events share this
module.

A message carries a vector (or a set) with the knowledge of its sender. The vector is stored in a *slot* from the send
of the message to its last delivery. During that time, the entry of the send in the array ``argument`` is the number of
the slot. Until the walk reaches the send, this entry is the number of deliveries of the message. A delivery knows the
position of its send, so it finds the slot.

Arguments that belong together are combined into named tuples. In compiled code, named tuples cost nothing.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled, inner
from antecede.pipeline.kernels.walk import Flat as Flat
from antecede.pipeline.kernels.walk import Segments as Segments

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Make = Callable[[tuple[int, int], Any], NDArray[Any]]

FIRST_SLOTS = 64


class Slots(NamedTuple):
    """The data that messages carry, one row per slot. A slot is in use until the last delivery of its messages."""

    rows: NDArray[Any]
    outstanding: Ints
    """For each slot, the number of deliveries that are still awaited."""
    free: Ints
    """The numbers of the free slots, in the first ``left[0]`` entries. The other entries are unused."""
    left: Longs


class Vectors(NamedTuple):
    """The vectors of the processes. The vector of a process shows which sends this process knows through deliveries."""

    lane_of: Ints
    """For each process, the lane of its entry in the vectors, or -1 if the process has no lane."""
    known: NDArray[Any]
    """For each process, the entries of its vector."""
    slot_of: Ints
    """For each process, the slot that its next send can share; -1 if there is no such slot."""


def slots_of(lanes: int, kind: Any, count: int = FIRST_SLOTS, make: Make = np.zeros) -> Slots:
    """Return ``count`` free slots."""
    return Slots(make((count, lanes), kind), np.zeros(count, np.int32), free_of(count), np.array([count], np.int64))


def free_of(count: int) -> Ints:
    """Return a list of free numbers: all numbers from 0 to ``count`` - 1."""
    return np.arange(count, dtype=np.int32)


def grown(slots: Slots, make: Make = np.zeros) -> Slots:
    """Return ``slots`` unchanged if one of them is free. Otherwise return twice as many slots; the new ones are
    free."""
    if slots.left[0]:
        return slots
    old = len(slots.outstanding)
    rows = make((2 * old, slots.rows.shape[1]), slots.rows.dtype)
    rows[:old] = slots.rows
    return Slots(rows, doubled(slots.outstanding), more_free(slots.free), np.array([old], np.int64))


def more_free(free: Ints) -> Ints:
    """Return a new list of free numbers, twice as long as ``free``. Call this only if all old numbers are in use. The
    first half of the new list has new numbers, which are free. The second half is unused."""
    old = len(free)
    return np.concatenate([np.arange(old, 2 * old, dtype=np.int32), np.zeros(old, np.int32)])


def doubled(rows: NDArray[Any], axis: int = 0) -> NDArray[Any]:
    """Return the array with twice as many rows. If ``axis`` is 1, it has twice as many columns instead. The new rows or
    columns are zero."""
    return np.concatenate([rows, np.zeros_like(rows)], axis=axis)


@compiled
def take(slots: Slots, deliveries: int) -> int:
    """Reserve a free slot for a message that has ``deliveries`` deliveries, and return the number of the slot. At least
    one slot must be free."""
    slots.left[0] -= 1
    slot: int = slots.free[slots.left[0]]
    slots.outstanding[slot] = deliveries
    return slot


@inner
def give_back(slots: Slots, slot: int) -> None:
    """Count one delivery of the message in ``slot``. After the last delivery, the slot becomes free. Call this only for
    a slot that no other send shares."""
    slots.outstanding[slot] -= 1
    if slots.outstanding[slot] == 0:
        slots.free[slots.left[0]] = slot
        slots.left[0] += 1


@inner
def depart(process: int, at: int, argument: Ints, vectors: Vectors, slots: Slots) -> bool:
    """Assign a slot to the send at ``at``. If the process has learned nothing since its previous send, both sends share
    one slot. Otherwise copy the vector of the process into a free slot. Return False if there is no free slot."""
    slot = vectors.slot_of[process]
    if slot < 0:
        if slots.left[0] == 0:
            return False
        slots.left[0] -= 1
        slot = slots.free[slots.left[0]]
        for k in range(vectors.known.shape[1]):
            slots.rows[slot, k] = vectors.known[process, k]
        vectors.slot_of[process] = slot
    slots.outstanding[slot] += argument[at]
    argument[at] = slot
    return True


@compiled
def arrive(slot: int, sender: int, vectors: Vectors, slots: Slots) -> None:
    """Count one delivery of a message in ``slot``. Several messages of ``sender`` may share the slot. After the last
    delivery of these messages, the slot becomes free, unless the next send of ``sender`` can share it."""
    slots.outstanding[slot] -= 1
    if slots.outstanding[slot] == 0 and vectors.slot_of[sender] != slot:
        slots.free[slots.left[0]] = slot
        slots.left[0] += 1


@inner
def renew(process: int, vectors: Vectors, slots: Slots) -> None:
    """Record that a process has learned something. Its next send then takes a new slot. The slot of its previous sends
    becomes free if all their messages have been delivered."""
    slot = vectors.slot_of[process]
    if slot >= 0:
        vectors.slot_of[process] = -1
        if slots.outstanding[slot] == 0:
            slots.free[slots.left[0]] = slot
            slots.left[0] += 1
