"""The change of an agent's state: which bytes of the old state are replaced, and by which.

If one entry of a large state changes, as with each subscription to a topic, the log need not repeat the whole state.

Only a change that is cheap to find is used: a few byte ranges whose length stays the same (counters, the length of a
list), then one byte range of any length. In all other cases the log gets the whole new state.
"""

from zlib import crc32

import msgspec

from antecede.errors import StoreError


class Change(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The bytes that turn one state into the next."""

    parts: tuple[tuple[int, int, bytes], ...]
    """(offset in the old state, number of bytes to remove there, bytes to insert), by ascending offset."""
    check: int
    """The checksum of the new state."""


State = bytes | Change
CHANGES_FROM_BYTES = 1024
"""Shorter states are written whole."""


def change_of(old: bytes | None, new: bytes) -> State:
    """Return the change between two states. If the change would have about half of the new state's bytes, or more,
    return the new state itself."""
    if old is None:
        return new
    common = min(len(old), len(new))
    tail = _common_end(old, new, common)
    stop, place = common - tail, 0
    parts: list[tuple[int, int, bytes]] = []
    while len(parts) < _places_max:
        place = _common_start(old, new, place, stop)
        again = place + _place_bytes
        if again + _sure_bytes > stop or old[again : again + _sure_bytes] != new[again : again + _sure_bytes]:
            break
        parts.append((place, _place_bytes, new[place:again]))
        place = again
    place = _common_start(old, new, place, stop)
    rest = new[place : len(new) - tail]
    if len(old) - tail > place or rest:
        parts.append((place, len(old) - tail - place, rest))
    return Change(tuple(parts), crc32(new)) if 2 * len(rest) < len(new) else new


def changed(old: bytes | None, state: State) -> bytes:
    """Return the new state. ``old``: the state from which the change was made."""
    if isinstance(state, bytes):
        return state
    old, done = old or b"", 0
    pieces: list[bytes] = []
    for place, removed, inserted in state.parts:
        pieces += (old[done:place], inserted)
        done = place + removed
    new = b"".join([*pieces, old[done:]])
    if crc32(new) != state.check:
        raise StoreError("the change of an agent's state does not fit the state before it")
    return new


def _common_start(one: bytes, other: bytes, start: int, stop: int) -> int:
    """Return the first offset from ``start`` on, before ``stop``, at which the two differ; ``stop`` if they do not
    differ."""
    while start < stop:
        middle = (start + stop + 1) // 2
        if one[start:middle] == other[start:middle]:
            start = middle
        else:
            stop = middle - 1
    return start


def _common_end(one: bytes, other: bytes, most: int) -> int:
    """Return how many bytes at the end of the two are the same, up to ``most``."""
    count = 0
    while count < most:
        more = (count + most + 1) // 2
        if one[len(one) - more : len(one) - count] == other[len(other) - more : len(other) - count]:
            count = more
        else:
            most = more - 1
    return count


_places_max = 3
_place_bytes = 8
_sure_bytes = 32
"""After a replaced byte range whose length stays the same, this many bytes must be equal in the old and the new
state."""
