"""A letter is a notification on its way to its destinations. It contains the sender, the destinations, and the type and
the bytes of the notification.

Within a domain, letters travel in *trains*. A train contains consecutive letters: a server sends them in one step, to
the same members of the domain, and sends nothing else in this domain between them. The train is one message of the
domain's order: it has one stamp, and one frame for each of these members. Because the letters are consecutive, sending
the train has the same effect as sending its letters one by one. For example, letters to x, to y and again to x are
three trains. The third letter may depend on the letter to y. If the third letter were in the first train, it would get
its stamp too early: before the letter to y. The size of a train is limited.

The address of an agent of the topology file is its name. The address of a client, or of an agent that a running agent
created, is ``name@server``. This module does not use routes, orders or the code of agents.

Every letter contains the complete list of its destinations. In memory, equal lists are stored only once
(:class:`Destinations`). Otherwise each letter to a topic would have a separate list of all subscribers in memory. A
train can be written as bytes in two forms: with one list per letter, or with each list written only once
(:func:`encode_train`).
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from antecede import limits
from antecede.errors import WireError
from antecede.limits import address_chars_max, publish_to_max, type_chars_max


class Letter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A notification with its envelope: sender, destinations, type and further fields for its delivery."""

    id: str
    """The unique id of the letter: server, incarnation, number. It stays the same on the whole route."""
    source: str
    to: tuple[str, ...]
    type: str
    """The name of the notification's type. The receiver uses this name only to find the handler, never to import a
    class."""
    body: bytes
    ask: str = ""
    """The text that the answer must quote. It is empty if the sender does not want an answer."""
    answers: str = ""
    """The ``ask`` of the question that this letter answers. It is empty if this letter is not an answer."""
    replays: str = ""
    """The id of the dead letter that this letter replays. It is empty if this letter does not replay a dead letter."""
    context: str = ""
    """The W3C trace context of the span in which the letter was sent, and the letter's label (:mod:`antecede.labels`).
    This module does not read them."""


id_of: Callable[[Letter], str] = attrgetter("id")
source_of: Callable[[Letter], str] = attrgetter("source")
to_of: Callable[[Letter], tuple[str, ...]] = attrgetter("to")
answers_of: Callable[[Letter], str] = attrgetter("answers")
body_of: Callable[[Letter], bytes] = attrgetter("body")
"""Return the body of a letter. For many letters, ``map`` with this function is faster than a loop."""


class Past(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The messages on which a train of letters depends, within one domain. This information comes from the stamp of
    the train."""

    domain: str
    source: int
    """The member that sent the train."""
    counts: tuple[int, ...]
    """For each member of the domain: the number of the member's newest message on which the train depends. For the
    member ``source``: the number of the train itself."""


class Destinations:
    """A store of recently used lists of several destinations. Letters with equal lists share one stored list."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._addresses = 0
        """The number of addresses in all stored lists together."""

    def shared(self, to: tuple[str, ...]) -> tuple[str, ...]:
        """Return the stored list that equals ``to``. If there is no such list, store ``to`` and return it. A list with
        one destination is returned, but not stored."""
        if len(to) == 1:
            return to
        known = self._known.get(to)
        if known is not None:
            return known
        if self._addresses + len(to) > limits.shared_addresses_max:
            self._known.clear()
            self._addresses = 0
        self._known[to] = to
        self._addresses += len(to)
        return to

    def share(self, letters: list[Letter]) -> None:
        """In letters that were just decoded, replace each list of several destinations by the equal stored list."""
        for letter in letters:
            if len(letter.to) > 1:
                msgspec.structs.force_setattr(letter, "to", self.shared(letter.to))


class _Listed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A letter in a train of the form ``_Lists``. Such a train contains each list of destinations only once. The fields
    are the same as in a :class:`Letter`. Only the content of ``to`` differs."""

    id: str
    source: str
    to: int | tuple[str, ...]
    """The position of the letter's list of destinations among the lists of the train. If the letter has only one
    destination, this field is a tuple with this destination."""
    type: str
    body: bytes
    ask: str = ""
    answers: str = ""
    replays: str = ""
    context: str = ""


_Lists = tuple[int, list[tuple[str, ...]], list[_Listed]]
"""The form of a train that contains each list of destinations only once, even if several letters have this list. It has
three values: the number 3, the lists, and the letters."""

_encode = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Letter]).decode
_decode_lists: Final = msgspec.msgpack.Decoder(_Lists).decode


_with_lists: Final = b"\x93\x03"
"""The first two bytes of a train in the form ``_Lists``: they begin an array of three values, and the first value is 3.
In the other form of a train, the first value of the array is a letter, and a letter is an array."""


def envelope_fault(to: tuple[str, ...], kind: str) -> str:
    """Return what is wrong with the destinations or the type of a notification, or an empty string if nothing is wrong.
    The client library calls this function. The server calls it, too, because a server does not trust clients."""
    if len(kind) > type_chars_max:
        return f"notification type of {len(kind)} characters: expected at most {type_chars_max}"
    if len(to) > publish_to_max:
        return f"{len(to)} destinations: expected at most {publish_to_max}; use a topic for more"
    for address in to:
        if len(address) > address_chars_max:
            return f"address of {len(address)} characters: expected at most {address_chars_max}"
    return ""


def body_fault(size: int) -> str:
    """Return an error text if a notification is too large, and otherwise an empty string."""
    most = limits.letter_bytes_max
    return f"notification of {size} bytes: at most {most}" if size > most else ""


def encode_train(letters: list[Letter]) -> bytes:
    """Encode letters as one train. If several letters have the same list of two or more destinations, the train
    contains each list only once."""
    several = [letter.to for letter in letters if len(letter.to) > 1]
    lists = {to: place for place, to in enumerate(dict.fromkeys(several))}
    if len(lists) < len(several):
        listed = [_Listed(one.id, one.source, lists.get(one.to, one.to), *_rest(one)) for one in letters]
        return _encode((3, list(lists), listed))
    return _encode(letters)


def decode_train(train: bytes) -> list[Letter]:
    """Decode a train that came from the network, and return its letters."""
    try:
        return _unlisted(train) if train[:2] == _with_lists else _decode(train)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"unreadable train of letters: {error}") from None


def _unlisted(train: bytes) -> list[Letter]:
    _, lists, listed = _decode_lists(train)
    letters: list[Letter] = []
    copies = 0
    for one in listed:
        to = one.to
        if isinstance(to, int):
            if not 0 <= to < len(lists):
                raise WireError(
                    f"unreadable train of letters: a letter refers to list {to} of destinations, counted from 0, but "
                    f"the train has {len(lists)} lists"
                )
            to = lists[to]
        copies += len(to)
        if copies > limits.train_copies_max:
            raise WireError(
                f"train of letters: its letters together have more than {limits.train_copies_max} destinations"
            )
        letters.append(Letter(one.id, one.source, to, *_rest(one)))
    return letters


def _rest(one: Letter | _Listed) -> tuple[str, bytes, str, str, str, str]:
    return one.type, one.body, one.ask, one.answers, one.replays, one.context


# Counts the memory of the letters that a server keeps.
#
# A *place* is where a letter is kept: a mailbox, a timer, the held letters or the dead letters. All mailboxes that
# contain a multicast share one Python object. So the memory of a letter, with its envelope, is counted only once, even
# if many places contain the letter. A list of destinations that several letters share is counted only once, too.
#
# Adding or removing a letter usually takes constant time. It takes longer if no other kept letter has the same list of
# destinations: then the time is proportional to the length of this list.
#
# The sizes in bytes are those of 64-bit CPython. A test compares them with the memory that letters really take.


class Footprint:
    """Counts the letters that a server keeps, and the bytes of their memory."""

    __slots__ = ("_lists", "_multicasts", "bytes", "entries")

    def __init__(self) -> None:
        self.entries = 0
        """The number of kept letters. A letter that is in three mailboxes counts as three."""
        self.bytes = 0
        self._multicasts: dict[int, int] = {}
        """For each letter with several destinations: the number of places that contain it. The key is
        ``id(letter)``."""
        self._lists: dict[int, int] = {}
        """For each list of several destinations: the number of letters in ``_multicasts`` that have this list. The key
        is ``id(letter.to)``."""

    def add(self, letter: Letter) -> None:
        """Count a letter that was put into a mailbox or another place."""
        self.entries += 1
        if len(letter.to) > 1:
            held = self._multicasts.get(id(letter), 0)
            self._multicasts[id(letter)] = held + 1
            if held:
                self.bytes += _entry_bytes
                return
            carried = self._lists.get(id(letter.to), 0)
            self._lists[id(letter.to)] = carried + 1
            if not carried:
                self.bytes += _list_bytes(letter.to)
        self.bytes += _entry_bytes + _envelope_bytes + len(letter.body)

    def remove(self, letter: Letter) -> None:
        """Remove a letter from the count, after it was taken out of a mailbox or another place."""
        self.entries -= 1
        if len(letter.to) > 1:
            held = self._multicasts.pop(id(letter)) - 1
            if held:
                self._multicasts[id(letter)] = held
                self.bytes -= _entry_bytes
                return
            carried = self._lists.pop(id(letter.to)) - 1
            if carried:
                self._lists[id(letter.to)] = carried
            else:
                self.bytes -= _list_bytes(letter.to)
        self.bytes -= _entry_bytes + _envelope_bytes + len(letter.body)


def plain_bytes(letters: Sequence[Letter]) -> int | None:
    """Return the number of bytes that :meth:`Footprint.add` counts for these letters. Return None if a letter has
    several destinations."""
    lengths = [len(letter.body) for letter in letters if len(letter.to) == 1]
    if len(lengths) < len(letters):
        return None
    return sum(lengths) + len(lengths) * (_entry_bytes + _envelope_bytes)


def _list_bytes(to: tuple[str, ...]) -> int:
    return _address_bytes * len(to) + sum(map(len, to))


_entry_bytes = 9
"""The memory of a pointer to a letter in a deque, including its share of the deque's block."""
_envelope_bytes = 560
"""The memory of a letter without the content of its body. It is the sum of the struct, the object headers of the body
and of up to six strings, a tuple with one destination, and 80 characters for all strings together. The strings can be
longer than that, but the length of each string is limited."""
_address_bytes = 64
"""The memory of one address in a list of destinations, without its characters: a pointer in a tuple, and the object
header of a string."""
