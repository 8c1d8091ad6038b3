"""Message ids as exact numbers: two rows get the same number iff their ids are the same text.

Texts are stored in one array of bytes, as in Arrow. The bucket of a text, and its place in a table, are found from a
hash of 64 bits. But the texts themselves are compared, so two different ids never get the same number. The quality of
the hash affects only the speed. In tests, a mask ``narrow`` keeps only few bits of the hash. Then many different ids
have the same hash, and the tests check that these ids still get different numbers.

Many systems use UUIDs. A UUID in its usual form (lower case, with hyphens) is stored as 16 bytes, two *words*, which
take half the space and are fast to compare. A UUID has the same hash whether it is stored as text or as two words.
"""

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import Bytes, Ints, Longs, Words, compiled, inner

WIDE = 2**64 - 1
"""The mask that keeps all bits of the hash."""

UUID_LENGTH = 36

_bad = 0x80
_digits = np.full(256, _bad, np.uint8)
_digits[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_characters = np.frombuffer(b"0123456789abcdef", np.uint8).copy()
_hyphens, _hyphen = (8, 13, 18, 23), ord("-")
_places = np.array([k for k in range(UUID_LENGTH) if k not in _hyphens], np.int64)
"""The positions of the 32 digits in the text of a UUID."""


@inner
def _uuid(data: Bytes, start: int) -> tuple[bool, np.uint64, np.uint64]:
    """Return whether the 36 bytes from ``start`` on are a UUID in its usual form, and the two words of this UUID."""
    # Unsigned positions, since numba tests signed ones for negative values at each access.
    at = np.uint64(start)
    high = low = np.uint64(0)
    seen = np.uint8(0)
    for k in _hyphens:
        if data[at + np.uint64(k)] != _hyphen:
            return False, high, low
    high, seen = _digits_from(data, at, 8, high, seen)
    high, seen = _digits_from(data, at + np.uint64(9), 4, high, seen)
    high, seen = _digits_from(data, at + np.uint64(14), 4, high, seen)
    low, seen = _digits_from(data, at + np.uint64(19), 4, low, seen)
    low, seen = _digits_from(data, at + np.uint64(24), 12, low, seen)
    return bool(seen < _bad), high, low


@inner
def _digits_from(data: Bytes, at: np.uint64, count: int, word: np.uint64, seen: np.uint8) -> tuple[np.uint64, np.uint8]:
    for _ in range(count):
        digit = _digits[data[at]]
        seen |= digit
        word = (word << np.uint64(4)) | np.uint64(digit)
        at += np.uint64(1)
    return word, seen


@inner
def _hashed_words(high: np.uint64, low: np.uint64) -> np.uint64:
    first, second = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
    hashed = high * second
    hashed ^= hashed >> np.uint64(29)
    hashed = (hashed ^ low) * second
    hashed ^= hashed >> np.uint64(32)
    hashed *= first
    hashed ^= hashed >> np.uint64(29)
    return hashed


@compiled
def uuids(offsets: Ints, data: Bytes, out: Words) -> bool:
    """Convert all texts to UUIDs: write each text to ``out`` as two words of 64 bits, and return True. Return False if
    a text is not a UUID in the usual form (lower case, with hyphens). Then ``out`` is incomplete."""
    for i in range(len(offsets) - 1):
        if offsets[i + 1] - offsets[i] != UUID_LENGTH:
            return False
        good, high, low = _uuid(data, offsets[i])
        if not good:
            return False
        out[i, 0], out[i, 1] = high, low
    return True


@compiled
def uuid_texts(words: Words, out: NDArray[np.uint8]) -> None:
    """Write the text of each UUID into its row of ``out``. The rows already contain the hyphens."""
    for i in range(len(words)):
        for k in range(32):
            shift = np.uint64(60 - 4 * (k % 16))
            out[i, _places[k]] = _characters[(words[i, k // 16] >> shift) & np.uint64(15)]


@compiled
def hash_uuids(words: Words, narrow: np.uint64, out: Words) -> None:
    """Hash each UUID to 64 bits, with the same result as :func:`hash_texts` for its text."""
    for i in range(len(words)):
        out[i] = _hashed_words(words[i, 0], words[i, 1]) & narrow


@compiled
def number_uuids(words: Words, hashed: Words, out: Ints) -> int:
    """Give each UUID a number, beginning with 0. Equal UUIDs get the same number. Return how many different UUIDs there
    are."""
    size = 16
    while size < 2 * len(hashed):
        size *= 2
    mask = np.uint64(size - 1)
    table = np.full(size, -1, np.int32)
    count = 0
    for i in range(len(hashed)):
        slot = (hashed[i] >> np.uint64(24)) & mask
        while True:
            other = table[slot]
            if other < 0:
                table[slot] = i
                out[i] = count
                count += 1
                break
            if words[other, 0] == words[i, 0] and words[other, 1] == words[i, 1]:
                out[i] = out[other]
                break
            slot = (slot + np.uint64(1)) & mask
    return count


@compiled
def hash_texts(offsets: Ints, data: Bytes, narrow: np.uint64, out: Words) -> None:
    """Hash each text to 64 bits; ``narrow`` is a mask of the bits that are kept."""
    first, second = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
    for i in range(len(offsets) - 1):
        k, end = offsets[i], offsets[i + 1]
        if end - k == UUID_LENGTH:
            good, high, low = _uuid(data, k)
            if good:
                out[i] = _hashed_words(high, low) & narrow
                continue
        hashed = np.uint64(end - k) * first
        while k + 8 <= end:
            word = (
                np.uint64(data[k])
                | np.uint64(data[k + 1]) << np.uint64(8)
                | np.uint64(data[k + 2]) << np.uint64(16)
                | np.uint64(data[k + 3]) << np.uint64(24)
                | np.uint64(data[k + 4]) << np.uint64(32)
                | np.uint64(data[k + 5]) << np.uint64(40)
                | np.uint64(data[k + 6]) << np.uint64(48)
                | np.uint64(data[k + 7]) << np.uint64(56)
            )
            hashed = (hashed ^ word) * second
            hashed ^= hashed >> np.uint64(29)
            k += 8
        while k < end:
            hashed = (hashed ^ np.uint64(data[k])) * second
            k += 1
        hashed ^= hashed >> np.uint64(32)
        hashed *= first
        hashed ^= hashed >> np.uint64(29)
        out[i] = hashed & narrow


@compiled
def number(offsets: Ints, data: Bytes, hashed: Words, out: Ints) -> int:
    """Give each text a number, beginning with 0. Equal texts get the same number. Return how many different texts there
    are."""
    size = 16
    while size < 2 * len(hashed):
        size *= 2
    mask = np.uint64(size - 1)
    table = np.full(size, -1, np.int32)
    count = 0
    for i in range(len(hashed)):
        # The lower bits selected the bucket, so the table uses other bits.
        slot = (hashed[i] >> np.uint64(24)) & mask
        while True:
            other = table[slot]
            if other < 0:
                table[slot] = i
                out[i] = count
                count += 1
                break
            if hashed[other] == hashed[i] and _same(
                data, offsets[other], offsets[other + 1], offsets[i], offsets[i + 1]
            ):
                out[i] = out[other]
                break
            slot = (slot + np.uint64(1)) & mask
    return count


@compiled
def _same(data: Bytes, a: int, a_end: int, b: int, b_end: int) -> bool:
    if a_end - a != b_end - b:
        return False
    while a < a_end:
        if data[a] != data[b]:
            return False
        a += 1
        b += 1
    return True


@compiled
def hides(offsets: Ints, valid: Bytes, first: int) -> bool:
    """Return whether a column of lists stores values in a row whose list is null. ``valid`` has one bit per row.
    ``first`` is the position of the first row's bit."""
    for i in range(len(offsets) - 1):
        bit = first + i
        if offsets[i + 1] != offsets[i] and not valid[bit >> 3] >> (bit & 7) & 1:
            return True
    return False


@compiled
def runs(lane: Ints, index: Longs, start: Longs, end: Longs, out_lane: Ints, out_start: Longs, out_end: Longs) -> int:
    """Combine consecutive indices of the same lane (a process, or the hops of a server) into runs. The last run of a
    lane is open. It is closed when the next index of the lane does not continue it. Closed runs are written to
    ``out_lane``, ``out_start`` and ``out_end``. Return the number of closed runs.

    ``start`` and ``end`` contain, for each lane, the start and the end of its open run. The two are equal if the lane
    has no open run. The arrays for closed runs are as long as ``index``. If the rows of a process are in the order of
    their indices, as in most traces, its runs are long.
    """
    closed = 0
    for i in range(len(index)):
        a = lane[i]
        if index[i] != end[a] or start[a] == end[a]:
            if start[a] != end[a]:
                out_lane[closed] = a
                out_start[closed] = start[a]
                out_end[closed] = end[a]
                closed += 1
            start[a] = index[i]
        end[a] = index[i] + 1
    return closed
