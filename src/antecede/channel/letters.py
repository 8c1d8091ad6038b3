"""A letter is a notification in transit between two agents: its sender, its destinations, its type and its bytes.

Letters travel end to end; within a domain they travel in *trains*. Letters that a server sends in one step, one after
the other, to the same next servers of a domain share one message of that domain's order, up to a limit: one stamp, and
one frame for each of these servers. The server sends nothing else in this domain in between, so a train is equivalent
to its letters one by one. (Letters to x, to y and to x again are three trains: if the third letter were in the first
train, it would be stamped before the letter to y, from which it may follow.)

An address is the name of an agent of the topology file, or ``name@server`` for a client or an agent that a running
agent created. Nothing here knows routes, orders or agents' code.

A multicast names all its destinations in every letter. In memory each list of destinations exists once
(:class:`Destinations`), however many letters carry it: otherwise the memory of a topic would grow with the number of
its subscribers times the number of its letters. A train contains each list once, too, if several letters have it
(:func:`couple`).
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Final

import msgspec

from antecede import limits
from antecede.errors import WireError
from antecede.limits import address_chars_max, publish_to_max, type_chars_max


class Letter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A notification with its envelope."""

    id: str
    """The same id on the whole route, which no other letter ever has: server, incarnation, number."""
    source: str
    to: tuple[str, ...]
    type: str
    """The notification's name, as its receiver's handlers know it; never a class to import."""
    body: bytes
    ask: str = ""
    """The text that the answer must quote, if the sender wants an answer; otherwise empty."""
    answers: str = ""
    """The ``ask`` of the question, if this letter is an answer; otherwise empty."""
    replays: str = ""
    """The id of the dead letter that this letter replays, if it replays one; otherwise empty."""
    context: str = ""
    """The span in which it was sent, as a W3C trace context, and its label (:mod:`antecede.labels`); nothing here reads
    them."""


id_of: Callable[[Letter], str] = attrgetter("id")
source_of: Callable[[Letter], str] = attrgetter("source")
to_of: Callable[[Letter], tuple[str, ...]] = attrgetter("to")
answers_of: Callable[[Letter], str] = attrgetter("answers")
body_of: Callable[[Letter], bytes] = attrgetter("body")
"""For ``map`` over many letters: faster than a loop."""


class Past(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The messages on which the train of a letter depends, as the stamp of the train shows."""

    domain: str
    source: int
    """The member that sent the train."""
    counts: tuple[int, ...]
    """For each member the number of its newest message on which the train depends; for the source, the number of the
    train itself."""


class Destinations:
    """Lists of several destinations that were used recently, each stored once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._addresses = 0
        """The number of addresses in all known lists."""

    def shared(self, to: tuple[str, ...]) -> tuple[str, ...]:
        """Return the stored list that equals this one; store this one if there is none."""
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
        """Make letters that were just decoded carry shared lists."""
        for letter in letters:
            if len(letter.to) > 1:
                msgspec.structs.force_setattr(letter, "to", self.shared(letter.to))

    def uncouple(self, train: bytes) -> list[Letter]:
        """Return the letters of a long train. It is long because of one large letter, or of many long lists of
        destinations. Decode one letter at a time, and replace its list by the equal one that is stored, before the next
        is decoded. So many copies of a list never exist at the same time."""
        if train[:2] == _with_lists:
            return uncouple(train)
        letters: list[Letter] = []
        try:
            for piece in _decode_pieces(train):
                letters.append(_decode_letter(piece))
                self.share(letters[-1:])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise WireError(f"unreadable train of letters: {error}") from None
        return letters


class _Listed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A letter in a train with lists; the same fields as a :class:`Letter`."""

    id: str
    source: str
    to: int | tuple[str, ...]
    """The position of its list among the lists of the train, or a tuple with its only destination."""
    type: str
    body: bytes
    ask: str = ""
    answers: str = ""
    replays: str = ""
    context: str = ""


_Lists = tuple[int, list[tuple[str, ...]], list[_Listed]]
"""A train with lists: 3 (the log format that introduced this form), the lists, the letters."""

_encode = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Letter]).decode
_decode_lists: Final = msgspec.msgpack.Decoder(_Lists).decode
_decode_pieces: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_letter: Final = msgspec.msgpack.Decoder(Letter).decode


_with_lists: Final = b"\x93\x03"
"""How a train with lists begins: an array of three values, the first is 3. In the other form the first value is an
array."""


def envelope_fault(to: tuple[str, ...], kind: str) -> str:
    """Return what is wrong with the destinations or the type of a notification, or an empty string. The client library
    checks them, and so does the server, which trusts no client."""
    if len(kind) > type_chars_max:
        return f"notification type of {len(kind)} characters: expected at most {type_chars_max}"
    if len(to) > publish_to_max:
        return f"{len(to)} destinations: expected at most {publish_to_max}; use a topic for more"
    for address in to:
        if len(address) > address_chars_max:
            return f"address of {len(address)} characters: expected at most {address_chars_max}"
    return ""


def body_fault(size: int) -> str:
    """Return what is wrong with the size of a notification, or an empty string."""
    most = limits.letter_bytes_max
    return f"notification of {size} bytes: at most {most}" if size > most else ""


def couple(letters: list[Letter], share: bool = False) -> bytes:
    """Return letters as one train. ``share``: write a list of several destinations once, if several letters have it.
    Servers whose log format is lower than 3, and servers and clients whose wire version is lower than 3, cannot read
    such a train."""
    if share and len(letters) > 1:
        lists: dict[tuple[str, ...], int] = {}
        several = 0
        for letter in letters:
            if len(letter.to) > 1:
                lists.setdefault(letter.to, len(lists))
                several += 1
        if len(lists) < several:
            listed = [_Listed(one.id, one.source, lists.get(one.to, one.to), *_rest(one)) for one in letters]
            return _encode((3, list(lists), listed))
    return _encode(letters)


def uncouple(train: bytes) -> list[Letter]:
    """Return the letters of a train from the wire."""
    try:
        return _unlisted(train) if train[:2] == _with_lists else _decode(train)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"unreadable train of letters: {error}") from None


def unshared(train: bytes) -> bytes:
    """Return a train in the form for servers and clients whose wire version is lower than 3."""
    return couple(uncouple(train)) if train[:2] == _with_lists else train


def _unlisted(train: bytes) -> list[Letter]:
    _, lists, listed = _decode_lists(train)
    letters: list[Letter] = []
    copies = 0
    for one in listed:
        to = one.to
        if isinstance(to, int):
            if not 0 <= to < len(lists):
                raise WireError(f"unreadable train of letters: no list {to} of destinations, only {len(lists)} lists")
            to = lists[to]
        copies += len(to)
        if copies > limits.train_copies_max:
            raise WireError(f"train whose letters have more than {limits.train_copies_max} destinations in all")
        letters.append(Letter(one.id, one.source, to, *_rest(one)))
    return letters


def _rest(one: Letter | _Listed) -> tuple[str, bytes, str, str, str, str]:
    return one.type, one.body, one.ask, one.answers, one.replays, one.context
