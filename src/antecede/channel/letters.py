"""A letter is a notification in transit between two agents: its sender, its destinations, its type and its bytes.

Letters travel end to end; within a domain they travel in *trains*. All letters that a server sends in one step to the
same next servers of a domain share one message of that domain's order: one stamp, one frame, one record for any number
of letters. The server delivers and sends nothing else in between, so a train is equivalent to its letters one by one.

An address is the name of an agent of the topology file, or ``name@server`` for a client or an agent that a running
agent created. Nothing here knows routes, orders or agents' code.

A multicast names all its destinations in every letter. In memory each list of destinations exists once
(:class:`Destinations`), however many letters carry it: without that, a topic with many subscribers needs memory for
subscribers times letters.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from antecede import limits
from antecede.errors import WireError


class Letter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A notification with its envelope."""

    id: str
    """End-to-end, unique for ever: server, incarnation, number."""
    source: str
    to: tuple[str, ...]
    type: str
    """The notification's name, as its receiver's handlers know it; never a class to import."""
    body: bytes
    ask: str = ""
    """Unless empty: the sender wants an answer that quotes this."""
    answers: str = ""
    """Unless empty: the ``ask`` that this answers."""
    replays: str = ""
    """Unless empty: the dead letter that this sends again."""
    context: str = ""
    """The span in which it was sent, as a W3C trace context for tracing; nothing here reads it."""


class Destinations:
    """Lists of several destinations that were used recently, each stored once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._addresses = 0
        """The length of all known lists together."""

    def shared(self, to: tuple[str, ...]) -> tuple[str, ...]:
        """Return the one list that equals this one."""
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
        """Return the letters of a train that is so long that it must have one large letter or many long lists. Decode
        its letters one by one and share each list at once, so that they never exist all at the same time."""
        letters: list[Letter] = []
        try:
            for piece in _decode_pieces(train):
                letters.append(_decode_letter(piece))
                self.share(letters[-1:])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise WireError(f"unreadable train of letters: {error}") from None
        return letters


_encode = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Letter]).decode
_decode_pieces: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_letter: Final = msgspec.msgpack.Decoder(Letter).decode


def couple(letters: Iterable[Letter]) -> bytes:
    """Return letters as one train."""
    return _encode(list(letters))


def uncouple(train: bytes) -> list[Letter]:
    """Return the letters of a train from the wire."""
    try:
        return _decode(train)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"unreadable train of letters: {error}") from None
