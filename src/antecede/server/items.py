"""The items of a log record: the inputs of one step, in the sequence in which the server took them.

The server's state machine is deterministic: the same inputs from the same state lead to the same state, with the same
stamps on the same frames. So a record contains only the inputs (a packet of a peer, a client's publish, the outcome of
a reaction, a timer that fired, a peer's identity). It contains nothing that follows from these inputs, except
:class:`Related` and :class:`Enacted`. All items of one record belong to one step: their messages were stamped together,
at the end of the step.

After a restart, unacknowledged frames are made again from the log, with the same bytes. So the rules that group letters
into trains (the contents of frames) are part of the log's format: whoever changes them changes the format's number
(``FORMAT`` in :mod:`antecede.store.format`).
"""

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from antecede import limits
from antecede.channel.consumer import Taken
from antecede.channel.letters import Letter
from antecede.engine import Belongings, Reaction
from antecede.engine.agents import State
from antecede.errors import StoreError
from antecede.labels import tail_in
from antecede.limits import record_piece_bytes_max
from antecede.objects.replicas import Row

# The items of a log that are about changes of the topology; see :mod:`antecede.server.organisation`.
#
# The numbers and texts here have bounds, because operators and other servers send them as JSON, and JSON does not limit
# the length of a number or a text.


ChangeNumber = Annotated[int, Meta(ge=0, le=limits.change_number_max)]
ClockMs = Annotated[int, Meta(ge=0, le=limits.clock_ms_max)]
Mark = Annotated[str, Meta(max_length=limits.mark_chars_max)]
"""The random name of a system or of an attempt to change the topology, or the epoch (hash) of a topology."""
Name = Annotated[str, Meta(max_length=limits.name_chars_max)]
"""The name of a server or a domain."""
TopologyText = Annotated[str, Meta(max_length=limits.topology_bytes_max)]
Since = Annotated[dict[Name, ChangeNumber], Meta(max_length=limits.topology_servers_max)]
"""Domain → the number of the last change that started or restarted this domain."""


class Epoch(msgspec.Struct, frozen=True, array_like=True):
    """A topology that is or was in force."""

    change: ChangeNumber
    epoch: Mark
    clock_ms: ClockMs
    """The wall clock when the topology came into force, or 0 if this time is not known."""
    attempt: Mark = ""
    """The name of the attempt that made the change, or an empty string if it is not known."""
    guarantee: Literal["", "none", "fifo", "causal"] = ""
    """The weakest guarantee among the domains of this topology, or an empty string if it is not known."""


History = Annotated[list[Epoch], Meta(max_length=limits.changes_kept_max)]
"""The last topologies of the system (at most ``limits.changes_kept_max``), oldest first."""


class Organised(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=41):
    """The topology in force at the beginning of a log."""

    topology: str
    """The text of a topology file."""


class Staged(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=42):
    """This server is ready for a change of the topology. It does not know yet whether the change will be made."""

    system: str
    """The random name of the whole system, which was chosen at the first change of its topology."""
    change: int
    topology: str
    since: dict[str, int]
    """Domain → the number of the last change that started or restarted this domain."""
    coordinator: str
    """The server whose log decides whether the change is made."""
    leaving: list[str]
    """Agents and clients that leave this server. From this item on, everything that belongs to them is stored
    separately, until the change is committed or abandoned."""
    clock_ms: int
    attempt: str = ""
    """The random name of the attempt to make this change. An abandoned change and the next change have the same number,
    but their attempts have different names."""
    absent: list[str] = []
    """The servers that do not take part. They do not know the new topology before it is in force, so this server does
    not connect with them until the change is decided."""
    history: list[Epoch] = []
    """The last topologies of the system, oldest first, if the change adds this server. Otherwise the list is empty."""


class Received(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=43):
    """Agents and clients that will live on this server after the change that is staged."""

    change: int
    belongings: list[Belongings]


class Committed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=44):
    """The change that was staged is in force."""

    change: int
    clock_ms: int
    attempt: str = ""
    """The name of the attempt that made the change. If it is empty, the previous :class:`Staged` item in the log names
    the attempt."""


class Abandoned(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=45):
    """The change that was staged will not be made."""

    change: int
    attempt: str = ""
    """The name of the attempt that is abandoned. If it is empty, the attempt in progress on this server is
    abandoned."""


class Paused(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=46):
    """The start of a pause, which ends when the change is committed or abandoned. During the pause, two kinds of
    letters wait: letters that would enter ``domains`` from outside, and letters from this server to ``agents``. These
    agents leave their servers in this change, and do not react during the pause. If they reacted, their messages would
    wait on the old server, and later messages from the new server could overtake the waiting messages."""

    change: int
    domains: list[str]
    agents: list[str]
    whole: bool = False
    """True if the change removes this server. In this case, during the pause, none of its agents reacts and its clients
    are refused."""
    attempt: str = ""
    """The name of the attempt to make this change."""
    clients: list[str] = []
    """The clients that are connected at this moment, if the change removes this server. They move with their addresses
    to another server, even if they have published nothing so far and have no letters."""


class Learned(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=47):
    """This server has learned changes that were made without it (:mod:`antecede.server.learning`). They are now
    in force here, too. They change nothing for the domains, agents and clients of this server."""

    system: str
    change: int
    topology: str
    since: dict[str, int]
    history: list[Epoch]
    """The last topologies of the system, oldest first, including those that this server already knew."""


_letter_of: Callable[[Reaction], str] = attrgetter("letter")


class Begun(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The letters that a client had begun to handle before a publish, except letters that were already recorded for an
    earlier publish. In the trace, the deliveries of these letters come before the publish. The letters stay in the
    mailbox until the client reports that it has handled them."""

    at: int
    """The position of the client's publish in its batch of publishes."""
    letters: tuple[str, ...]
    clock_ms: int = 0


class Published(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=2):
    """A client's publish. The client numbers its publishes, so that the server recognises a repeated one."""

    client: str
    number: int
    to: tuple[str, ...]
    type: str
    body: bytes
    ask: bool = False
    answers: str = ""
    replays: str = ""
    context: str = ""
    """The publish's span, as a W3C trace context, and the publish's label (:mod:`antecede.labels`)."""
    source: str = ""
    """The original sender, if it is not the client itself. So a replayed dead letter keeps its sender."""
    asked: str = ""
    """The id that an answer must quote, if a dead letter is sent again and is a question; otherwise empty."""
    deadline_ms: int = 0
    """The server time, in milliseconds, by which the call must have ended; 0 if this publish is not a call."""
    begun: tuple[Begun, ...] = ()


class Reacted(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=3):
    """An agent (or a client) has reacted to its next letters."""

    agent: str
    reactions: tuple[Reaction, ...]
    state: State | None
    clock_ms: int
    """The server time at which the reactions ended. If a reaction sets a timer, the timer's delay starts then."""

    @property
    def letters(self) -> list[str]:
        """The ids of the letters to which the agent has reacted."""
        return list(map(_letter_of, self.reactions))


class Fired(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=4):
    """Timers whose time has come."""

    timers: tuple[int, ...]


class Forgot(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=5):
    """An operator reset a domain, because one of its members lost its data."""

    domain: str
    generation: int
    """The number of times that the domain was reset; members with different numbers do not connect."""
    again: tuple[tuple[tuple[str, ...], bytes], ...] = ()
    """The trains (groups of letters) that this server must send after the reset: those that it has not sent yet, and
    those that were not acknowledged. Each entry is a pair (members to send to, train)."""


class Buried(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=6):
    """An operator removed a dead letter: it was sent again, or it was deleted permanently."""

    key: str

    @property
    def keys(self) -> list[str]:
        """The key of the removed letter, as a list."""
        return [self.key]


class PublishedMany(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=7):
    """Several publishes of a client, of the same type and to the same destinations. They have consecutive numbers."""

    client: str
    number: int
    """The number of the first publish."""
    to: tuple[str, ...]
    type: str
    bodies: list[bytes]
    context: str = ""
    begun: tuple[Begun, ...] = ()

    def without(self, count: int) -> "PublishedMany":
        """Return the batch without its first ``count`` publishes, which the server has already accepted."""
        begun = tuple([Begun(max(0, one.at - count), one.letters) for one in self.begun])
        rest = self.bodies[count:]
        return PublishedMany(self.client, self.number + count, self.to, self.type, rest, self.context, begun)

    def letters(self, prefix: str, first: int, source: str, to: tuple[str, ...]) -> list[Letter]:
        """Return the letters of these publishes. Each id is the prefix and a number; numbers begin with ``first``."""
        kind, context = self.type, self.context
        return [
            Letter(f"{prefix}{number}", source, to, kind, body, context=context)
            for number, body in enumerate(self.bodies, first)
        ]


class Met(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=8):
    """A peer's *incarnation* (the number of the peer's data directory) and *life* (a random number that the peer
    chooses at each start). Both come from the peer's hello. If a later hello has another incarnation, the peer has lost
    data. If a later hello has another life, the peer was restarted. This hello also contains the number of frames that
    the peer had sent before the restart. If this server has received more, the peer was restored from an old backup."""

    domain: str
    peer: str
    incarnation: int
    life: int = 0


class Began(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=9):
    """The first item of a log: the server and the epoch (the digest of the topology) under which the log was begun."""

    server: str
    epoch: str
    incarnation: int = 0
    """The incarnation (see :class:`Met`) with which the log began, if the server was later restored from a backup. The
    value is 0 if the log began with the incarnation that is in the data directory now."""


class Enacted(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=10):
    """The actions of this server's objects in this step. They follow from the other items and the objects' code. They
    are recorded for programs that read the log without this code. A replay compares them with the actions that it
    computes again."""

    rows: list[Row]
    clock_ms: int


class Expired(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=11):
    """The server aborts the calls that had to end before or at this server time."""

    clock_ms: int


class Related(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=12):
    """The pairs of operations that conflict from now on, for each replica of an object."""

    conflicts: dict[str, list[list[str]]]


class Left(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=13):
    """A client is gone permanently: it was temporary, or an operator removed it. The server forgets the number of the
    client's last publish."""

    client: str


class Listed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=14):
    """All lists of two or more destinations in the later items of this record. Each list occurs here once. In the later
    items, a short name replaces the list: a NUL character and the number of the list. This item is only in the bytes of
    a record, never among the items of a step."""

    lists: list[tuple[str, ...]]


class Resumed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=16):
    """The server has started again. The last steps before the restart may be lost. Handlers may already have seen
    letters that these steps created, because reactions can run before a step is durable. So from here on, the numbers
    of new letters are larger than the number of any lost letter."""

    def numbers_after(self, last: int) -> int:
        """Return the largest number that new letters must not use. The next letter gets the number after this one.
        ``last``: the number of the last letter in the log."""
        return (last // LIFE_NUMBERS + 1) * LIFE_NUMBERS


class BuriedMany(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=18):
    """Several dead letters were removed. An operator sent them again or deleted them permanently, or the server dropped
    them, because there were too many."""

    keys: list[str]


class Seen(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=19):
    """The server looked into the mailboxes of these agents at this time. The age of a letter that it had not
    seen before is measured from this time."""

    agents: list[str]
    clock_ms: int


class Holding(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=20):
    """The agents for which letters are held: from now on, a letter to one of them is held if it depends on a dead
    letter. Letters to other agents are not held."""

    agents: list[str]


class Tried(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=30):
    """The handler calls that were interrupted when the server's process ended. ``life``: the number of that run of the
    process. Each call is a pair (agent, id of the letter), and counts as one try to handle this letter."""

    life: int
    calls: tuple[tuple[str, str], ...]


class Handled(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=21):
    """An agent (or a client) has reacted to its next letters, and its reactions requested nothing: no sends, no timers,
    no new agents. This is a short form of :class:`Reacted`, with the ids of the letters instead of the reactions. Most
    batches have this form."""

    agent: str
    letters: list[str]
    state: State | None
    clock_ms: int

    @property
    def reactions(self) -> tuple[Reaction, ...]:
        """The reactions to the letters, in the form of :class:`Reacted`."""
        return tuple(map(Reaction, self.letters))


class Clocked(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=33):
    """The server time and the wall clock time of one moment. From here on, wall clock times are computed with the
    difference between the two; see :mod:`antecede.server.clock`."""

    clock_ms: int
    wall_ms: int


class Truncated(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=34):
    """Recovery removed a torn write (a write that a crash had interrupted) from this log."""

    group: int
    """The number of the removed group of records."""
    file: str
    offset: int
    bytes: int
    segments: int
    reason: str
    wall_ms: int
    """The time at which the server started and found the torn write (wall clock, in milliseconds)."""


class Acknowledged(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=35):
    """An operator has acknowledged all removals of torn writes (:class:`Truncated`) up to the group ``upto``."""

    upto: int


class Restored(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="item", tag=40):
    """The records before this one come from a backup. From here on, the server and all its peers have new incarnations
    (see :class:`Met`). A replay never applies this item, because a replay begins with a snapshot that already includes
    the item. A trace needs the item, because letters get other ids from here on."""

    incarnation: int


Organising = Organised | Staged | Received | Committed | Abandoned | Paused | Learned
"""The items about changes of the topology."""
Item = (
    Organising
    | Taken
    | Published
    | Reacted
    | Fired
    | Forgot
    | Buried
    | PublishedMany
    | Met
    | Began
    | Enacted
    | Expired
    | Related
    | Left
    | Listed
    | Resumed
    | BuriedMany
    | Seen
    | Holding
    | Tried
    | Handled
    | Clocked
    | Truncated
    | Acknowledged
    | Restored
)
Done = Reacted | Handled
"""The items about letters that an agent or a client has handled."""
Applied = Forgot | Buried | BuriedMany | Left | Organising
"""The types of items that are also types of inputs of a step. Publishes and ``Done`` are inputs, too, but are not
listed here."""
_encode = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Item]).decode


def encode_record(items: list[Item], share: bool = False) -> bytes:
    """Return the bytes of a step's record. ``share``: whether to write each list of several destinations only once."""
    if share:
        lists: dict[tuple[str, ...], int] = {}
        short = [_with_lists(item, lambda to: _short(to, lists)) for item in items]
        return _encode([Listed(list(lists)), *short])
    return _encode(items)


def decode_record(record: bytes) -> list[Item]:
    """Return the items of a record from the log."""
    try:
        items = _decode(record)
        if items and isinstance(items[0], Listed):
            lists = items[0].lists
            return [_with_lists(item, lambda to: _long(to, lists)) for item in items[1:]]
        return items
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, IndexError) as error:
        raise StoreError(f"unreadable record in the log: {error}") from None


_To = tuple[str, ...]


def _with_lists(item: Item, change: Callable[[_To], _To]) -> Item:
    """Apply ``change`` to each list of destinations in an item, and return the changed item."""
    if isinstance(item, Published | PublishedMany):
        return msgspec.structs.replace(item, to=change(item.to))
    if isinstance(item, Reacted):
        reactions = tuple([_reaction_with_lists(reaction, change) for reaction in item.reactions])
        return msgspec.structs.replace(item, reactions=reactions)
    return item


def _reaction_with_lists(reaction: Reaction, change: Callable[[_To], _To]) -> Reaction:
    if not reaction.outbound:
        return reaction
    outbound = tuple([msgspec.structs.replace(sent, to=change(sent.to)) for sent in reaction.outbound])
    return msgspec.structs.replace(reaction, outbound=outbound)


def _short(to: _To, lists: dict[_To, int]) -> _To:
    # No name begins with NUL. If one ever did, its list would be written like those of several names.
    if len(to) == 1 and to[0][:1] != _nul:
        return to
    return (f"{_nul}{lists.setdefault(to, len(lists))}",)


def _long(to: _To, lists: list[_To]) -> _To:
    if len(to) == 1 and to[0][:1] == _nul:
        return lists[int(to[0][1:])]
    return to


def enacted_items(conflicts: dict[str, list[list[str]]] | None, rows: list[Row], clock_ms: int) -> list[Item]:
    """Return the items about objects for a step's record: first an item with the new conflicts (if there are any), then
    an item with the objects' actions (if there are any)."""
    items: list[Item] = [] if conflicts is None else [Related(conflicts)]
    return [*items, Enacted(rows, clock_ms)] if rows else items


def sent_again(letter: Letter, client: str, number: int, to: tuple[str, ...]) -> Published:
    """Return the publish that sends a dead letter again. It keeps the original sender. If the letter is a question, the
    publish also keeps the id that an answer must quote."""
    published = Published(client, number, to, letter.type, letter.body, replays=letter.id)
    return msgspec.structs.replace(published, source=letter.source, asked=letter.ask, context=tail_in(letter.context))


def pieces_of(record: bytes) -> list[bytes]:
    """Return a record as the log stores it: whole, or in several pieces if the record is too long. The first byte of a
    piece shows that the piece is not a whole record."""
    if len(record) <= record_piece_bytes_max:
        return [record]
    cuts = range(0, len(record), record_piece_bytes_max)
    last = cuts[-1]
    return [
        _piece + (b"L" if at == last else b"F" if at == 0 else b"M") + record[at : at + record_piece_bytes_max]
        for at in cuts
    ]


def joined(stored: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the records of a log, each joined from its pieces. A record whose last piece is missing is left out. It is
    safe to leave out such a record, because no output of the record's step had left the server."""
    pieces: list[bytes] = []
    for one in stored:
        if one[:1] != _piece:
            pieces = []
            yield one
            continue
        if one[1:2] == b"F":
            pieces = []
        pieces.append(one[2:])
        if one[1:2] == b"L":
            yield b"".join(pieces)
            pieces = []


LIFE_NUMBERS: Final = 10**9
"""The size of a block of letter numbers. At each start of the server, the numbers of new letters begin after the next
multiple of this value."""
_nul: Final = "\0"
_piece: Final = b"\xc1"
"""The first byte of each piece of a record. It is the only byte with which no MessagePack value begins."""
