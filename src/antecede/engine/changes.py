"""The change of an agent's state: which byte ranges of the old state are replaced, and the new bytes for each range.

The log can contain such a change instead of the whole new state. This saves space if only one entry of a large state
changes, as with each subscription to a topic.

A change has a simple form, so that it can be found quickly. It replaces a few short byte ranges whose length stays the
same (for example counters), and then one byte range of any length. If this last range would be too long, the log gets
the whole new state.
"""

from zlib import crc32

import msgspec

from antecede.errors import StoreError


class Change(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The difference between an old state and a new state of an agent."""

    parts: tuple[tuple[int, int, bytes], ...]
    """The replaced byte ranges, by ascending offset. Each is (offset in the old state, number of bytes to remove there,
    bytes to insert there)."""
    check: int
    """The checksum (CRC-32) of the new state."""


State = bytes | Change
CHANGES_FROM_BYTES = 1024
"""A state with fewer bytes is always written to the log as a whole, not as a :class:`Change`."""


def change_of(old: bytes | None, new: bytes) -> State:
    """Return the change from the old state to the new state. Return the whole new state instead if there is no old
    state, or if the change would insert about half of the new state's bytes or more."""
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
    """Return the new state as bytes. If ``state`` is a :class:`Change`, apply it to ``old``, the state before the
    change. If ``state`` is already the whole new state, return it."""
    if isinstance(state, bytes):
        return state
    old, done = old or b"", 0
    pieces: list[bytes] = []
    for place, removed, inserted in state.parts:
        pieces += (old[done:place], inserted)
        done = place + removed
    new = b"".join([*pieces, old[done:]])
    if crc32(new) != state.check:
        raise StoreError("the log has a change of an agent's state that does not fit the agent's previous state")
    return new


def _common_start(one: bytes, other: bytes, start: int, stop: int) -> int:
    """Return the first offset at which the bytes of ``one`` and ``other`` differ. Compare only the bytes at the offsets
    from ``start`` to ``stop - 1``. Return ``stop`` if none of them differs."""
    while start < stop:
        middle = (start + stop + 1) // 2
        if one[start:middle] == other[start:middle]:
            start = middle
        else:
            stop = middle - 1
    return start


def _common_end(one: bytes, other: bytes, most: int) -> int:
    """Return how many bytes are equal at the ends of ``one`` and ``other``. The result is not larger than ``most``."""
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
"""A short byte range is replaced separately only if at least this many bytes after it are equal in the old and the new
state. Otherwise this short range becomes a part of the last range, which may be long."""
