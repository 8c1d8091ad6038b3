"""The stamp of :mod:`antecede.orders.pruned`: its encoding as bytes, and its size as Jang et al. §6.2 count it.

The stamp is small for three reasons:

* the newest timestamp of each sender is near the stamp's own timestamp, so only the signed distance is written;
* older entries and delivery constraints are near the newest entry of their sender, so only their *age* is written: the
  distance to this newest entry;
* most senders have only one entry, and this entry has no destinations (an *empty* entry). For such a sender, two bits
  and the distance are enough. A destination set is a list of members or a bit map, whichever is shorter.

A stamp consists of the following parts, in this sequence:

* the stamp's own timestamp;
* a bit map of the senders that have entries, and a bit map of the senders that have several entries, or one entry that
  is not empty;
* for each sender in the first bit map: the distance of its newest entry from the stamp's own timestamp;
* for each sender in the second bit map: the number of its entries, and then its entries, newest first. An entry is
  written as two values: its age minus the age of the previous entry (left out for the newest entry), and its
  destinations;
* the number of constraints, and then the constraints, in ascending order of their senders. A constraint is written as
  two values. The first is the member number of its sender, minus the member number in the previous constraint. The
  second is its age.
"""

from functools import lru_cache
from typing import Final

import msgspec

from antecede import limits
from antecede.errors import StampError
from antecede.messages import members_of
from antecede.orders.encoding import Reader, Writer, number_size

Log = tuple[int, ...]
"""The log about one sender: (τ, D, τ′, D′, …), ascending in τ. Each τ is the timestamp of a message of this sender. D
is a bit mask of the members at which this message may be undelivered."""
_tails_max: Final = 1_024
_brief_bytes_max: Final = 512
"""The maximum length of a stamp that :func:`read_brief` reads in one step: enough for a few hundred members. Together
with ``_tails_max``, it limits the memory of the cache of :func:`_read_tail`."""


def _fold(distance: int) -> int:
    """Return a signed number as an unsigned one: 0, −1, 1, −2, … become 0, 1, 2, 3, …"""
    return distance << 1 if distance >= 0 else (-distance << 1) - 1


def _mask(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _map_size(members: int) -> int:
    return (members + 7) >> 3


class Control(msgspec.Struct, eq=False, gc=False):
    """The control block: the part of the stamp that all copies of one message share. It contains the timestamp of the
    message and the sender's log, which never change. The sizes are computed once and cached."""

    time: int
    log: tuple[Log, ...]
    _size: int = -1
    _dependents: int = -1
    _paper_bytes: int = -1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Control) and (self.time, self.log) == (other.time, other.log)

    def __hash__(self) -> int:
        return hash((self.time, self.log))

    def __repr__(self) -> str:
        return f"Control(time={self.time}, log={self.log})"

    def dependents(self) -> int:
        """Return the number of entries in the sender's log."""
        if self._dependents < 0:
            self._dependents = sum(map(len, self.log)) >> 1
        return self._dependents

    def paper_bytes(self) -> int:
        """Return the size as Jang et al. count it (§6.2): four bytes per entry and two per destination."""
        if self._paper_bytes < 0:
            destinations = sum([mask.bit_count() for log in self.log for mask in log[1::2]])
            self._paper_bytes = 4 * self.dependents() + 2 * destinations
        return self._paper_bytes

    def size(self) -> int:
        """Return the number of bytes that ``write`` will write."""
        if self._size < 0:
            members, time = len(self.log), self.time
            size = number_size(time) + 2 * _map_size(members)
            for log in self.log:
                if not log:
                    continue
                newest = log[-2]
                distance = newest - time
                size += 1 if -64 <= distance < 64 else number_size(_fold(distance))
                if len(log) == 2:
                    if log[1]:
                        size += 1 + _set_size(log[1], members)
                    continue
                size += number_size(len(log) >> 1) + _set_size(log[-1], members)
                previous = newest
                for at in range(len(log) - 4, -1, -2):
                    size += number_size(previous - log[at]) + _set_size(log[at + 1], members)
                    previous = log[at]
            self._size = size
        return self._size

    def write(self, out: Writer) -> None:
        time, members = self.time, len(self.log)
        width = (members + 7) >> 3
        present = richer = 0
        bit = 1
        distances: list[int] = []
        for log in self.log:
            if log:
                present |= bit
                distance = log[-2] - time
                distances.append(distance << 1 if distance >= 0 else (-distance << 1) - 1)
                if log[1] or len(log) > 2:
                    richer |= bit
            bit <<= 1
        out.number(time)
        out.raw(present.to_bytes(width, "little") + richer.to_bytes(width, "little"))
        out.numbers(distances)
        for k in members_of(richer):
            log = self.log[k]
            out.number(len(log) >> 1)
            previous = log[-2]
            for at in range(len(log) - 2, -1, -2):
                if at < len(log) - 2:
                    out.number(previous - log[at])
                    previous = log[at]
                _write_set(log[at + 1], members, out)


def read_control(source: int, me: int, known: list[int], data: Reader) -> Control:
    """Read and validate a control block from ``source``. ``known`` has, for each member, the newest timestamp that we
    know."""
    members = data.members
    width = (members + 7) >> 3
    time = data.ordinal(known[source], "timestamp")
    if source == me and time > known[me]:
        raise StampError("stamp counts messages that we never sent")
    maps = data.raw(2 * width)
    present, richer = _mask(maps[:width]), _mask(maps[width:])
    if present >> members or richer & ~present:
        raise StampError("bit maps of a stamp list unknown members, or contradict each other")
    logs: list[Log] = [()] * members
    remaining = present
    for folded in data.numbers(present.bit_count()):
        bit = remaining & -remaining
        remaining ^= bit
        k = bit.bit_length() - 1
        logs[k] = (_newest(k, source, me, time, known[k], folded), 0)
    for k in members_of(richer):
        entries: list[int] = []
        newest = at = logs[k][0]
        for position in range(data.count(at, "entries")):
            if position:
                age = data.number()
                if age == 0 or age >= at:
                    raise StampError("entries of a stamp are out of sequence")
                at -= age
            destinations = _read_set(data)
            if position and not destinations:
                raise StampError("stamp has an entry without destinations that is not the newest of its sender")
            entries[:0] = (at, destinations)
        if not entries or entries == [newest, 0]:
            raise StampError("second bit map of a stamp lists a sender that has neither destinations nor older entries")
        logs[k] = tuple(entries)
    return Control(time, tuple(logs))


def brief(control: Control) -> bytes | None:
    """Encode a stamp without constraints quickly, in one step. Return None if this is not possible. It is possible if
    every sender has either no entry, or a single entry without destinations and with a timestamp near the stamp's own.
    When members send few messages, most stamps are like this."""
    time = control.time
    distances: list[int | None] = []
    for log in control.log:
        if not log:
            distances.append(None)
        elif log[1] or len(log) != 2:
            return None
        else:
            distances.append(log[0] - time)
    tail = _tail(tuple(distances))
    if tail is None:
        return None
    if time <= 0x7F:
        return bytes((time,)) + tail
    if time <= 0x3FFF:
        return bytes((time & 0x7F | 0x80, time >> 7)) + tail
    head = Writer()
    head.number(time)
    return head.bytes() + tail


@lru_cache(maxsize=_tails_max)
def _tail(distances: tuple[int | None, ...]) -> bytes | None:
    """Return the bytes that follow the timestamp in a stamp that ``brief`` writes. ``distances``: for each sender, the
    timestamp of its newest entry minus the stamp's own timestamp, or None if it has no entry. Return None if a distance
    does not fit into one byte. Results are cached, because the same distances often occur again."""
    present, folded = 0, bytearray()
    for k, distance in enumerate(distances):
        if distance is not None:
            if not -64 <= distance < 64:
                return None
            present |= 1 << k
            folded.append(_fold(distance))
    width = _map_size(len(distances))
    return b"".join((present.to_bytes(width, "little"), bytes(width), folded, b"\0"))


_Distances = tuple[tuple[int, int], ...]
"""Pairs (member, distance). A distance is the timestamp of the member's newest entry minus the stamp's own."""


@lru_cache(maxsize=_tails_max)
def _read_tail(members: int, tail: bytes) -> _Distances | None:
    """Return the distances that ``_tail`` has encoded, for the senders that have an entry. Return None if ``_tail``
    cannot have written these bytes."""
    width = _map_size(members)
    present, richer, distances = _mask(tail[:width]), _mask(tail[width : 2 * width]), tail[2 * width : -1]
    if len(tail) <= 2 * width or tail[-1] or richer or present >> members or len(distances) != present.bit_count():
        return None
    if not distances.isascii():
        return None
    pairs = zip(members_of(present), distances, strict=True)
    return tuple((k, -((folded + 1) >> 1) if folded & 1 else folded >> 1) for k, folded in pairs)


def read_brief(source: int, me: int, mine: int, known: list[Log], data: bytes) -> Control | None:
    """Read a control block that ``brief`` wrote. Return None if ``data`` is not from ``brief``, is too long, fails a
    check, or is from ourselves. The caller must then use ``read_control``. ``mine``: our own timestamp. ``known``: our
    log, by sender."""
    if source == me or not 4 <= len(data) <= _brief_bytes_max:
        return None
    time, at = data[0], 1
    if time > 0x7F:
        byte = data[1]
        time, at = time & 0x7F | (byte & 0x7F) << 7, 2
        while byte > 0x7F and at < len(data):
            byte = data[at]
            time |= (byte & 0x7F) << 7 * at
            at += 1
        if not byte:
            return None
    members = len(known)
    distances = _read_tail(members, data[at:])
    log = known[source]
    if distances is None or not 1 <= time <= (log[-2] if log else 0) + limits.counter_jump_max:
        return None
    logs: list[Log] = [()] * members
    for k, distance in distances:
        newest = time + distance
        if k == source:
            sound = distance < 0
        elif k == me:
            sound = newest <= mine
        else:
            log = known[k]
            sound = newest <= (log[-2] if log else 0) + limits.counter_jump_max
        if newest < 1 or not sound:
            return None
        logs[k] = (newest, 0)
    return Control(time, tuple(logs))


def _newest(k: int, source: int, me: int, time: int, known: int, folded: int) -> int:
    """Compute and check the timestamp of the newest entry of member ``k``. ``folded``: its distance to the stamp's own
    timestamp ``time``, as ``_fold`` returns it. ``known``: the newest timestamp of this member that we know."""
    newest = time - ((folded + 1) >> 1) if folded & 1 else time + (folded >> 1)
    if newest < 1 or newest > known + limits.counter_jump_max:
        raise StampError(f"stamp: timestamp {newest} of member {k}: expected 1 to {known + limits.counter_jump_max}")
    if k == me and newest > known:
        raise StampError("stamp counts messages that we never sent")
    if k == source and newest >= time:
        raise StampError("stamp lists its own message, or a later message of the sender, as a predecessor")
    return newest


def write_constraints(control: Control, constraints: tuple[int, ...], out: Writer) -> None:
    """Write the constraints (k, τ, k′, τ′, …), which are ascending in k. Each pair is a sender k and the timestamp τ of
    one of its messages. Each τ is written as its age: the newest timestamp of k in the control block, minus τ."""
    out.number(len(constraints) >> 1)
    previous = 0
    for at in range(0, len(constraints), 2):
        k, time = constraints[at], constraints[at + 1]
        out.number(k - previous)
        out.number(control.log[k][-2] - time)
        previous = k


def constraints_size(control: Control, constraints: tuple[int, ...]) -> int:
    """Return the number of bytes that ``write_constraints`` will write."""
    count = len(constraints) >> 1
    size = number_size(count) + 2 * count
    previous = 0
    log = control.log
    for at in range(0, len(constraints), 2):
        k = constraints[at]
        age = log[k][-2] - constraints[at + 1]
        if age > 0x7F:
            size += number_size(age) - 1
        if k - previous > 0x7F:
            size += number_size(k - previous) - 1
        previous = k
    return size


def read_constraints(control: Control, data: Reader) -> tuple[int, ...]:
    """Read the constraints (k, τ, k′, τ′, …), ascending in k. Each pair is a sender k and the timestamp τ of one of its
    messages. Raise StampError if a constraint is invalid, for example if the log in the control block has no entry of
    its sender."""
    constraints: list[int] = []
    k = 0
    for position in range(data.count(data.members, "constraints")):
        step = data.number(data.members)
        k += step
        if k >= data.members or (position and step == 0) or not control.log[k]:
            raise StampError("constraint of a stamp has an unknown member, one member twice, or a member without entry")
        time = control.log[k][-2] - data.number()
        if time < 1:
            raise StampError("constraint of a stamp has a message number below 1")
        constraints += (k, time)
    return tuple(constraints)


def _set_size(mask: int, members: int) -> int:
    return min(_list_size(mask), 1 + _map_size(members))


def _list_size(mask: int) -> int:
    size = number_size(mask.bit_count() + 1)
    if mask >> 128 == 0:
        # Every step is below 128, and takes one byte.
        return size + mask.bit_count()
    previous = 0
    for member in members_of(mask):
        size += number_size(member - previous)
        previous = member
    return size


def _write_set(mask: int, members: int, out: Writer) -> None:
    """Write a set of members as a list, or as a bit map if this is shorter. A list begins with a number that is one
    more than the number of members in the set. Then each member of the set is written as its distance to the previous
    one. A bit map begins with 0."""
    if _list_size(mask) > 1 + _map_size(members):
        out.number(0)
        out.raw(mask.to_bytes(_map_size(members), "little"))
        return
    out.number(mask.bit_count() + 1)
    previous = 0
    for member in members_of(mask):
        out.number(member - previous)
        previous = member


def _read_set(data: Reader) -> int:
    head = data.number(data.members + 1)
    if head == 0:
        mask = int.from_bytes(data.raw(_map_size(data.members)), "little")
        if mask >> data.members:
            raise StampError("stamp names unknown members")
        if _list_size(mask) <= 1 + _map_size(data.members):
            raise StampError("stamp has a bit map of members that is not shorter than a list: expected the list")
        return mask
    mask = member = 0
    for position in range(head - 1):
        step = data.number(data.members)
        member += step
        if member >= data.members or (position and step == 0):
            raise StampError("stamp names unknown members, or one member twice")
        mask |= 1 << member
    if _list_size(mask) > 1 + _map_size(data.members):
        raise StampError("stamp has a list of members that is longer than a bit map: expected the bit map")
    return mask
