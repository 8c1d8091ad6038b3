"""Frames that no correct peer sends: changed bytes, wrong lengths, numbers out of sequence, forged stamps and letters.

A *lie* is such a forged input. It is made from a valid conversation (all frames of one connection) of a client, an
operator or a peer. The conversation is changed at one of four depths:

1. in the bytes of a frame,
2. in a field of a part (a struct in a frame),
3. in a packet of the domain's ordering protocol, mostly in the stamp of the packet, or
4. in a letter that such a packet contains.

The deeper the change, the more checks the lie passes before it is found.

Some frames are *flooded* instead: one part is repeated many times, or one list or text of a part is made very long, up
to and beyond the bounds of :mod:`antecede.limits`.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from antecede.wire import VERSION, Part, PeerFrames, frame

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.decode

_flooded = 0.005
"""The share of conversations that are flooded. It is small, because a flooded conversation can be as long as thousands
of others."""
_floods = (300, 1_024, 1_025, 5_000, 65_536, 65_537, 200_000)
_flood_bytes = 2 * 1024 * 1024
_nest = b"\x91" * 2_000
_odd: tuple[Any, ...] = (
    *(0, 1, -1, 127, 128, 255, 256, 2**16, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)),
    *("", "s1", "s2", "echo", "A", "x@s1", "nobody", "\x00", "é" * 40, "x" * 5_000, "@", "a@", "@s1"),
    *(b"", b"\x00", b"\xff" * 9, b"\x80" * 40, b"\x91" * 3_000, b"x" * 5_000),
    *(None, True, False, 1.5, float("inf"), [], [[]], {}, [0] * 300, {"a": {"b": {}}}, [[[[[[[[1]]]]]]]]),
)


class Liar:
    """Turns valid conversations into lies. It changes one frame of each conversation, and sometimes also the sequence
    of the frames. In most cases the change breaks a rule of the protocol."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def mutated(self, conversation: Sequence[Sequence[Part]]) -> bytes:
        """Change a valid conversation so that it contains false data. Return the bytes to send on a connection."""
        random = self._random
        frames = [list(parts) for parts in conversation]
        if random.random() < _flooded:
            return self._flood(frames)
        depth = int(random.random() * 4)
        deep = [
            (at, place)
            for at, parts in enumerate(frames)
            for place, part in enumerate(parts)
            if depth < 2 or (isinstance(part, PeerFrames) and part.bodies)
        ]
        at, place = deep[int(random.random() * len(deep))] if deep else (0, 0)
        written = [frame(parts) for parts in frames]
        if depth == 0:
            written[at] = self._bytes(written[at])
        else:
            parts: list[Any] = list(frames[at])
            parts[place] = self._part(frames[at][place], depth)
            written[at] = self._framed(parts)
        if random.random() < 0.05:
            random.shuffle(written)
        return b"".join(written)

    def _flood(self, frames: list[list[Part]]) -> bytes:
        """Flood a conversation with many equal parts, or with a very long list or text; return its bytes."""
        random = self._random
        written = [frame(parts) for parts in frames]
        at = int(random.random() * len(frames))
        part = frames[at][int(random.random() * len(frames[at]))]
        count = _floods[int(random.random() * len(_floods))]
        fields: list[Any] = _decode(_encode(part))
        long = [place for place, value in enumerate(fields) if isinstance(value, list | str | bytes) and value]
        if long and random.random() < 0.7:
            place = long[int(random.random() * len(long))]
            value = fields[place]
            fields[place] = value * min(count, max(1, _flood_bytes // len(_encode(value))))
            written[at] = self._framed([fields])
        else:
            written[at] = self._framed([fields] * min(count, max(1, _flood_bytes // len(_encode(fields)))))
        return b"".join(written)

    def _framed(self, parts: list[Any]) -> bytes:
        """Return a frame with these parts, even if they are not valid parts."""
        body = _encode(parts)
        length = len(body) + 1
        return length.to_bytes(4, "big") + bytes([VERSION]) + body

    def _part(self, part: Part, depth: int) -> Any:
        fields = _decode(_encode(part))
        if depth == 1 or not isinstance(part, PeerFrames) or not part.bodies:
            return self._value(fields)
        bodies = list(part.bodies)
        place = int(self._random.random() * len(bodies))
        bodies[place] = self._packet(bodies[place], depth)
        fields[-1] = bodies
        return fields

    def _packet(self, body: bytes, depth: int) -> bytes:
        """Change a packet that an ordering protocol has encoded; return the changed packet. The fields of a packet are
        name, version, kind, subject, stamp, source, to and payload."""
        fields = list(_decode(body))
        if depth == 3 and fields[-1]:
            fields[-1] = self._train(fields[-1])
        elif self._random.random() < 0.6:
            fields[4] = self._bytes(fields[4])
        elif self._random.random() < 0.5 and fields[-1]:
            fields[-1] = self._bytes(fields[-1])
        else:
            fields = self._value(fields)
        return _encode(fields)

    def _train(self, train: bytes) -> bytes:
        letters = _decode(train)
        if letters and self._random.random() < 0.2:
            letters = letters * 3
        return _encode(self._value(letters))

    def _value(self, value: Any) -> Any:
        """Return a value with one change in it."""
        random = self._random
        if isinstance(value, list) and value and random.random() < 0.9:
            changed = list(value)
            place = int(random.random() * len(changed))
            kind = random.random()
            if kind < 0.06:
                del changed[place]
            elif kind < 0.12:
                changed.insert(place, changed[place])
            else:
                changed[place] = self._value(changed[place])
            return changed
        if isinstance(value, bytes) and random.random() < 0.5:
            return self._bytes(value)
        if type(value) is int and random.random() < 0.3:
            return value + int(random.random() * 7) - 3
        # Mostly of its own type, because other types are detected soon.
        odd = [one for one in _odd if type(one) is type(value)] if random.random() < 0.8 else _odd
        return odd[int(random.random() * len(odd))] if odd else None

    def _bytes(self, data: bytes) -> bytes:
        """Return bytes with one to four changes, such as other bytes, missing or doubled pieces, nested lists or a
        wrong length."""
        random = self._random
        changed = bytearray(data)
        for _ in range(1 + int(random.random() * 4)):
            at = int(random.random() * (len(changed) + 1))
            kind = int(random.random() * 8)
            if kind == 0 and at < len(changed):
                changed[at] = int(random.random() * 256)
            elif kind == 1 and at < len(changed):
                changed[at] ^= 1 << int(random.random() * 8)
            elif kind == 2:
                del changed[at:]
            elif kind == 3:
                changed[at:at] = changed[at : at + int(random.random() * 20)]
            elif kind == 4:
                changed[at:at] = _nest[: int(random.random() * len(_nest))]
            elif kind == 5:
                changed[:4] = int(random.random() * 2 ** (1 + int(random.random() * 32))).to_bytes(5, "big")[1:]
            elif kind == 6:
                changed[at:at] = b"\xff" * int(random.random() * 12)
            elif kind == 7:
                del changed[at : at + 1 + int(random.random() * 8)]
        return bytes(changed)
