"""Event numbers, object vectors, and the stamps that carry them (Enokido, Higaki, Takizawa §4.1, §4.2).

An **event number** is a triple (clock, object, no): the time of a Lamport clock that ticks at sends, the object that
sends, and the number of earlier sends of this object. Triples are compared number by number. (The paper concatenates
the three numbers. Compared as texts, the results would be in a wrong order: "10i0" < "2j0".) The clock alone orders the
sends of one object.

An **object vector** contains, for each object, the event number of this object's last relevant send. It is a dictionary
object → (clock, no), because most objects need no entry in a group whose operations rarely conflict.

A message carries its number on the link, its event number, its vector V, and its label. The **receipt vector** RV is
equal to V, except for the sender's entry. This entry is the maximum of two event numbers: the sender's entry in V, and
the event number of the message (Fig. 7).
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec

from antecede import limits
from antecede.errors import StampError
from antecede.messages import ABORT, COMMIT, REQUEST, RESPONSE, Label
from antecede.orders.encoding import Reader, Writer

Vector = dict[int, tuple[int, int]]
"""An object vector: for each object, the pair (clock, no) of one of its sends."""

Entries = tuple[tuple[int, int, int], ...]
"""A vector as it is written into a stamp: triples (object, clock, no), sorted by object."""

_types = (None, REQUEST, RESPONSE, COMMIT, ABORT)


class Stamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The stamp of one copy of a message."""

    number: int
    """The copy's number among the sender's messages to this destination, from 1."""
    clock: int
    no: int
    vector: Entries
    label: Label | None


def entries_of(vector: Vector) -> Entries:
    """Return the vector as it is written into a stamp."""
    return tuple((member, *vector[member]) for member in sorted(vector))


def join(vector: Vector, other: Iterable[tuple[int, tuple[int, int]]]) -> None:
    """For each object, set the entry in ``vector`` to the larger of its entries in ``vector`` and in ``other``."""
    for member, event in other:
        if vector.get(member, (0, 0)) < event:
            vector[member] = event


def receipt(source: int, stamp: Stamp) -> Vector:
    """Return the receipt vector RV of a message (§4.2, Fig. 7)."""
    vector = {member: (clock, no) for member, clock, no in stamp.vector}
    join(vector, [(source, (stamp.clock, stamp.no))])
    return vector


def write_stamp(stamp: Stamp, out: Writer) -> None:
    """Append a copy's stamp to ``out``."""
    out.number(stamp.number)
    out.raw(_in_all_copies(stamp.clock, stamp.no, stamp.vector, stamp.label))


@lru_cache(maxsize=4)
def _in_all_copies(clock: int, no: int, vector: Entries, label: Label | None) -> bytes:
    """Return the bytes that the stamps of all copies of a message share. They are cached, because all copies are
    encoded one after the other."""
    out = Writer()
    for number in (clock, no, len(vector), *chain.from_iterable(vector)):
        out.number(number)
    if label is None:
        out.number(0)
        return out.bytes()
    out.number(_types.index(label.type))
    out.number(label.several)
    for name in (label.operation, label.instance, label.by_operation, label.by_instance):
        text = name.encode()
        out.number(len(text))
        out.raw(text)
    return out.bytes()


def read_stamp(data: Reader, source: int, expected: int, clock: int) -> Stamp:
    """Read and validate the stamp of a copy from ``source``. Messages 1 to ``expected`` from ``source`` have
    arrived; raise StampError if the number of this copy is much larger. ``clock``: our own clock."""
    number = data.ordinal(expected)
    own_clock, no = _event(data, clock)
    entries: list[tuple[int, int, int]] = []
    for _ in range(data.count(data.members, "vector entries")):
        member = data.member()
        if entries and member <= entries[-1][0]:
            raise StampError(f"member {member} out of sequence in a vector: expected ascending member numbers")
        entry = _event(data, own_clock)
        if entry[0] >= own_clock:
            raise StampError(f"vector of a message with time {own_clock} has time {entry[0]}: expected an earlier time")
        if member == source and entry[1] >= no:
            raise StampError(
                f"the vector of message {no} of member {member} lists message {entry[1]} of the same member: "
                "expected an earlier message"
            )
        entries.append((member, *entry))
    return Stamp(number, own_clock, no, tuple(entries), _label(data))


def write_time(time: tuple[int, int, int], members: int, out: Writer) -> None:
    """Append the stamp of a ``clock`` packet. ``time`` contains the number of messages sent to the receiver so far, the
    sender's time, and a bit mask of the members to which the receiver should send its own time."""
    sent, clock, wanted = time
    out.number(sent)
    out.number(clock)
    out.raw(wanted.to_bytes((members + 7) // 8, "little"))


def read_time(data: Reader, expected: int, clock: int) -> tuple[int, int, int]:
    """Read the stamp of a ``clock`` packet, as ``write_time`` wrote it."""
    sent, time = data.counter(expected), data.counter(clock)
    wanted = int.from_bytes(data.raw((data.members + 7) // 8), "little")
    if wanted >> data.members:
        raise StampError("stamp of a clock packet lists unknown members")
    return (sent, time, wanted)


def _event(data: Reader, clock: int) -> tuple[int, int]:
    time = data.counter(clock)
    no = data.number()
    if no >= time:
        raise StampError(f"message {no} has time {time}: expected a time above {no}, as clocks tick at every send")
    return time, no


def _label(data: Reader) -> Label | None:
    kind = _types[data.number(len(_types) - 1)]
    if kind is None:
        return None
    several = bool(data.number(1))
    names = []
    for _ in range(4):
        text = data.raw(data.number(4 * limits.label_chars_max))
        try:
            name = text.decode()
        except UnicodeDecodeError:
            raise StampError("a name in a label is not UTF-8") from None
        if len(name) > limits.label_chars_max:
            raise StampError(f"a name of {len(name)} characters in a label: expected at most {limits.label_chars_max}")
        names.append(name)
    return Label(kind, names[0], names[1], names[2], names[3], several)


def vector_in(state: Any) -> Vector:
    """Return a vector from a snapshot."""
    return {int(member): (int(clock), int(no)) for member, clock, no in state}
