"""A server's durable state as bytes: a map with named fields. It has one table of letters
(:mod:`antecede.server.snapshots`); mailboxes, timers and so on store only the position of a letter in this table.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec.structs import replace

from antecede.channel import SavedChannel, SavedReturns
from antecede.channel.consumer import SavedConsumer
from antecede.channel.letters import Letter, Past
from antecede.engine import Dead, Question, SavedEngine
from antecede.engine.dead import SavedFollowing
from antecede.errors import SnapshotError, StoreError, TopologyError
from antecede.link import SavedLink
from antecede.server.clock import Times
from antecede.server.items import Truncated
from antecede.server.organisation import SavedOrganisation

# Letters in a snapshot: each letter is stored only once, even if many mailboxes contain it.
#
# A multicast is one letter in many mailboxes. In a snapshot, each letter has a number, and a mailbox contains only the
# numbers of its letters. So a mailbox entry takes a few bytes, and after a restart the mailboxes share the letter as
# before. Names (senders, destinations, types) and lists of destinations have numbers in the same way.
#
# The table is stored by columns. Python builds and reads columns several times faster than one object per letter.


Position = Annotated[int, msgspec.Meta(ge=0)]
"""The index of a value in a column of :class:`SavedLetters`, from 0."""
_Value = TypeVar("_Value")


class SavedLetters(msgspec.Struct, frozen=True):
    """A table of letters in a snapshot. Letter ``n`` has the values at position ``n`` of the columns from ``ids`` to
    ``bodies``."""

    names: list[str]
    lists: list[list[Position]]
    """Lists of destinations. Each destination is a position in ``names``."""
    ids: list[str]
    sources: list[Position]
    """The sender of each letter, as a position in ``names``."""
    to: list[Position]
    """The destinations of each letter, as a position in ``lists``."""
    types: list[Position]
    """The type of each letter, as a position in ``names``."""
    bodies: list[bytes]
    marks: list[tuple[Position, str, str, str, str]]
    """The optional fields of letters. For each letter that uses at least one of them: the position of the letter, and
    its ``ask``, ``answers``, ``replays`` and ``context``."""

    def letters(self) -> list[Letter]:
        """Return the letters of the table. Letters with the same destinations share one list."""
        if len({len(self.ids), len(self.sources), len(self.to), len(self.types), len(self.bodies)}) > 1:
            raise SnapshotError("table of letters: the columns have different lengths")
        try:
            name = self.names.__getitem__
            lists = [tuple(map(name, positions)) for positions in self.lists]
            to = map(lists.__getitem__, self.to)
            letters = list(map(Letter, self.ids, map(name, self.sources), to, map(name, self.types), self.bodies))
            for position, ask, answers, replays, context in self.marks:
                plain = letters[position]
                letters[position] = Letter(
                    plain.id, plain.source, plain.to, plain.type, plain.body, ask, answers, replays, context
                )
        except IndexError:
            raise SnapshotError("table of letters: a position is beyond the end of the column it refers to") from None
        return letters


class LetterTable:
    """Gives letters their numbers while a snapshot is made.

    Equal multicasts get the same number, even if they are different Python objects, so that equal states give equal
    snapshots. A letter with one destination is kept only once on a server, so it is not compared with other letters.
    """

    def __init__(self) -> None:
        self._letters: list[Letter] = []
        self._by_object: dict[int, int] = {}
        self._by_id: dict[str, int] = {}

    def positions(self, letters: Collection[Letter]) -> Sequence[int]:
        """Return the number of each letter. Keep the letters in memory until you call ``saved``, because the table
        recognises them by ``id(letter)``."""
        first = len(self._letters)
        if all(map(_one.__eq__, map(len, map(_to, letters)))):
            self._letters += letters
            return range(first, len(self._letters))
        return [self.position(letter) for letter in letters]

    def position(self, letter: Letter) -> int:
        """Return the number of a letter. A new letter gets the next free number."""
        known = self._by_object.get(id(letter))
        if known is not None:
            return known
        position = len(self._letters)
        if len(letter.to) > 1:
            position = self._by_id.setdefault(letter.id, position)
            self._by_object[id(letter)] = position
        if position == len(self._letters):
            self._letters.append(letter)
        elif self._letters[position] != letter:
            # Ids come from peers too, so two letters with one id may still differ.
            self._by_object[id(letter)] = position = len(self._letters)
            self._letters.append(letter)
        return position

    def saved(self) -> SavedLetters:
        """Return a table with all letters that have a number."""
        letters = self._letters
        sources, types, to = (list(map(get, letters)) for get in (_source, _type, _to))
        lists = _numbered(to)
        names = _numbered(chain(sources, types, chain.from_iterable(lists)))
        return SavedLetters(
            names=list(names),
            lists=[[names[name] for name in destinations] for destinations in lists],
            ids=list(map(_id, letters)),
            sources=list(map(names.__getitem__, sources)),
            to=list(map(lists.__getitem__, to)),
            types=list(map(names.__getitem__, types)),
            bodies=list(map(_body, letters)),
            marks=[
                (position, letter.ask, letter.answers, letter.replays, letter.context)
                for position, letter in enumerate(letters)
                if letter.ask or letter.answers or letter.replays or letter.context
            ],
        )


def _numbered(values: Iterable[_Value]) -> dict[_Value, int]:
    """Return a number for each different value: 0 for the first value, 1 for the next different value, and so on."""
    return {value: number for number, value in enumerate(dict.fromkeys(values))}


_one = 1
_id, _source, _to, _type, _body = map(attrgetter, ("id", "source", "to", "type", "body"))


Timers = dict[int, tuple[int, str, Letter]]
"""The number of each timer → the server time in milliseconds at which the timer fires, its agent, and the letter that
the agent then gets."""


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that a server must remember, as a snapshot stores it. A ``Position`` stands for a letter:
    it is the position of this letter in ``letters``."""

    server: str
    incarnation: int
    epoch: str
    numbers: int
    consumers: dict[str, SavedConsumer]
    letters: SavedLetters
    left: int
    away_domain: str
    away: list[tuple[int, Position]]
    """Some letters of this server are sent through ``away_domain``, a domain with a total order. They also come back to
    this server. For each letter that is not back yet: its number, and the letter."""
    waiting: list[tuple[int, bool, Position]]
    """Letters that cannot be sent until letters in ``away`` are back. Each entry has three values: the number of the
    last letter in ``away`` that must be back; whether all destinations are on this server; and the waiting letter."""
    mailboxes: dict[str, list[Position]]
    states: dict[str, bytes]
    born: dict[str, str]
    dead: list[tuple[str, Position, str]]
    """For each dead letter: its agent, the letter, and the reason why it is dead."""
    asks: dict[str, Question]
    clients: dict[str, int]
    timers: list[tuple[int, int, str, Position]]
    """For each timer: its number, the server time in milliseconds at which it fires, its agent, and its letter."""
    stopped: list[tuple[str, str, str]]
    deaths: int
    """The number of letters that have become dead letters on this server so far."""
    died: list[tuple[int, int]]
    """For each letter in ``dead``: the number of the dead letter, and the server time at which it became dead."""
    clock_ms: int
    """The server time at which the last reactions were recorded."""
    ages: dict[str, list[tuple[int, int]]]
    """For each mailbox with a time limit: pairs of a server time and the number of letters that were first seen at this
    time."""
    holding: list[str]
    """The agents with the setting ``dead_follow = "hold"``. If a letter to such an agent becomes a dead letter, the
    agent's letters that depend on the dead letter are held."""
    pasts: dict[str, Past]
    blocks: dict[str, list[str]]
    held: dict[str, list[Position]]
    numbers_held: dict[str, int]
    newest_held: int
    since_held: dict[str, int]
    tries: dict[str, int]
    """For each letter and agent: how often the server's process ended while the agent was handling the letter. A key is
    ``LETTER-ID AGENT``."""
    tried_life: int
    careful: list[str]
    read: dict[str, str]
    """Client → the last letter that the client has begun to handle, as far as the log shows this. Not every client has
    an entry."""
    times: Times
    truncations: list[Truncated]
    """The truncations of the log that no operator has acknowledged. The field ``newest_cut`` is the largest group
    number of all truncations, acknowledged or not."""
    newest_cut: int
    organisation: SavedOrganisation


def check_server(me: str, server: str) -> None:
    """Refuse a log that belongs to another server."""
    if server != me:
        raise StoreError(f"the data directory belongs to server {server}, not to {me}")


def unknown_topology(server: str, begun: str, epoch: str) -> TopologyError:
    """Return the error for a data directory with an unknown topology. The directory contains only the epoch of its
    topology (``begun``), and not the text. The server's topology file has another epoch (``epoch``)."""
    return TopologyError(
        f"the data directory of server {server} was begun under topology epoch {begun}, but the file has {epoch}: "
        "start once with the previous topology file, then run: antecede topology apply"
    )


def state_of(
    snapshot: bytes, server: str, incarnation: int, epoch: str | None
) -> tuple[State, SavedChannel, SavedEngine, Timers]:
    """Return the state in a snapshot, and the parts of this state that contain letters: the channel, the engine and the
    timers. Raise an error if the snapshot does not belong to this server. ``epoch``: the epoch that the topology must
    have, or None to accept every epoch. The epoch is checked only if the snapshot does not contain the text of the
    topology."""
    try:
        state = decode_state(snapshot)
        parts = unpacked(state)
    except SnapshotError as error:
        raise SnapshotError(f"unreadable snapshot of server {server}: {error}") from None
    check_server(server, state.server)
    if epoch is not None and not state.organisation.topology and state.epoch != epoch:
        raise unknown_topology(server, state.epoch, epoch)
    if state.incarnation != incarnation:
        raise SnapshotError(
            f"snapshot of server {server} has incarnation {state.incarnation:016x}: expected {incarnation:016x}"
        )
    return state, *parts


def packed(channel: SavedChannel, engine: SavedEngine, timers: Timers, /, **others: Any) -> State:
    """Return a state that stores each letter only once. ``others``: the fields of the state that do not come from the
    channel, the engine or the timers."""
    table = LetterTable()
    number = table.position
    returns = channel.returns
    return State(
        **others,
        consumers=channel.consumers,
        left=returns.left,
        away_domain=returns.domain,
        away=[(place, number(letter)) for place, letter in returns.away.values()],
        waiting=[(last, stays, number(letter)) for last, stays, letter in returns.waiting],
        mailboxes={agent: list(table.positions(letters)) for agent, letters in engine.mailboxes.items()},
        states=engine.states,
        born=engine.born,
        dead=[(dead.agent, number(dead.letter), dead.reason) for dead in engine.dead.values()],
        asks=engine.asks,
        timers=[(place, when, agent, number(letter)) for place, (when, agent, letter) in timers.items()],
        deaths=engine.deaths,
        died=[(dead.number, dead.since_ms) for dead in engine.dead.values()],
        clock_ms=engine.clock_ms,
        ages=engine.ages,
        holding=engine.following.agents,
        pasts=engine.following.pasts,
        numbers_held=engine.following.numbers,
        newest_held=engine.following.newest,
        since_held=engine.following.since,
        blocks=engine.following.blocks,
        held={agent: list(table.positions(letters)) for agent, letters in engine.following.held.items()},
        tries=engine.tries,
        tried_life=engine.tried_life,
        careful=engine.careful,
        read=engine.read,
        # The table is made last, when all letters have their numbers.
        letters=table.saved(),
    )


encode_state = msgspec.msgpack.Encoder().encode
"""Return the bytes of a snapshot that stores this :class:`State`."""


def decode_state(data: bytes) -> State:
    """Return the state of a snapshot."""
    try:
        return msgspec.msgpack.decode(data, type=State)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotError(str(error)) from None


def unpacked(state: State) -> tuple[SavedChannel, SavedEngine, Timers]:
    """Return the parts of a state that contain letters: the channel, the engine and the timers. In these parts, each
    position is replaced by the letter at this position."""
    letters = state.letters.letters()
    if len(state.died) != len(state.dead):
        raise SnapshotError(f"the snapshot has {len(state.dead)} dead letters, but {len(state.died)} numbers of them")
    try:
        away = [(place, letters[position]) for place, position in state.away]
        waiting = [(last, stays, letters[position]) for last, stays, position in state.waiting]
        timers = {place: (when, agent, letters[position]) for place, when, agent, position in state.timers}
        mailboxes = {agent: list(map(letters.__getitem__, positions)) for agent, positions in state.mailboxes.items()}
        held = {agent: list(map(letters.__getitem__, positions)) for agent, positions in state.held.items()}
        dead = [
            Dead(agent, letters[position], reason, *when)
            for (agent, position, reason), when in zip(state.dead, state.died, strict=True)
        ]
    except IndexError:
        raise SnapshotError("the position of a letter is outside of the table of letters") from None
    kept = {one.key: one for one in dead}
    if not all(key in kept for keys in state.blocks.values() for key in keys):
        raise SnapshotError("letters are held because of a dead letter that the snapshot does not contain")
    numbers = (state.numbers_held, state.newest_held, state.since_held)
    following = SavedFollowing(state.holding, state.pasts, state.blocks, held, *numbers)
    returns = SavedReturns(state.left, state.away_domain, {one.id: (place, one) for place, one in away}, waiting)
    engine = SavedEngine(
        *(mailboxes, state.states, state.born, kept, state.asks),
        *(state.deaths, state.clock_ms, state.ages, following),
        *(state.tries, state.tried_life, state.careful, state.read),
    )
    return SavedChannel(state.consumers, returns), engine, timers


# Check that the snapshots of all servers fit together, and make snapshots for a new system from them.
#
# A **restored system** is a new system. Each of its servers has a new incarnation, and knows the new incarnations of
# its peers. So a server of the old system and a server of the restored system refuse each other before one of them
# accepts anything. New letters get ids that the old system never used. These parts are kept: agents, mailboxes, clients
# and their numbers, timers, orders, and the frames in transit, which are still stored in the senders' links. No link of
# the new system is stopped.
#
# **The check.** The snapshots must not contradict each other. For each pair of servers in a domain, the following four
# statements must be true. Every frame that one server has accepted was sent by the other server. Every frame that was
# sent and not accepted is still stored at the sender, which can send it again. A server that has met the other server
# remembers the present incarnation of the other server. Both servers have reset the domain the same number of times.
# Copies of directories that were made at different moments fail this check.


def faults_of(snapshots: Mapping[str, bytes]) -> Iterator[str]:
    """Yield the contradictions between the snapshots of all servers. Yield nothing if the snapshots fit together.
    ``snapshots``: server → snapshot."""
    states = {server: decode_state(snapshot) for server, snapshot in snapshots.items()}
    links = {server: dict(_links(state)) for server, state in states.items()}
    for server, own in links.items():
        for (domain, peer), link in own.items():
            other = links.get(peer, {}).get((domain, server))
            if other is None:
                yield f"{server} shares domain {domain} with {peer}, whose state is missing"
            else:
                yield from _misfits(f"{server} and {peer} in domain {domain}", peer, link, other)
            generations = [states[one].consumers[domain].generation for one in (server, peer) if one in states]
            if server < peer and len(set(generations)) > 1:
                yield f"domain {domain} was reset {generations[0]} times at {server} and {generations[1]} at {peer}"


def _misfits(where: str, peer: str, link: SavedLink, other: SavedLink) -> Iterator[str]:
    """Yield the contradictions between the two ends of a link. There are three kinds. (1) The accepting end remembers a
    wrong incarnation of the sending end. (2) The accepting end has accepted frames that were never sent. (3) Frames are
    lost: the accepting end has not accepted them, and the sending end has not kept them. ``link``: the sending end.
    ``other``: the accepting end, at server ``peer``."""
    if other.peer not in (0, link.incarnation):
        yield f"{where}: {peer} remembers incarnation {other.peer:016x}, not {link.incarnation:016x}"
        return
    if other.accepted.largest > link.sent:
        yield f"{where}: {peer} has accepted frame {other.accepted.largest}, but only {link.sent} were sent"
    lost = [
        number
        for number in range(other.accepted.upto + 1, link.sent + 1)
        if number not in other.accepted and number not in link.bodies
    ]
    if lost:
        yield f"{where}: {len(lost)} frames from {lost[0]} on are lost: not kept by the sender, nor accepted by {peer}"


def renewed(snapshot: bytes, server: str, incarnations: Mapping[str, int], epoch: str, topology: str = "") -> bytes:
    """Return the snapshot of a server, changed for a new system. ``incarnations``: the incarnations of all servers of
    the new system. ``epoch``, ``topology``: the epoch and the text of the new system's topology. If the snapshot has
    the text of a topology and ``topology`` is not empty, ``topology`` replaces this text."""
    state = decode_state(snapshot)
    mine = incarnations[server]
    consumers = {}
    for domain, consumer in state.consumers.items():
        own = _read(consumer.own)
        links = {peer: _read(link).under(mine, incarnations[peer]) for peer, link in consumer.links.items()}
        consumers[domain] = replace(
            consumer, own=own.under(mine, mine if own.peer else 0), links=links, lives=dict.fromkeys(links, 0)
        )
    organisation = state.organisation
    if organisation.topology and topology:
        # A restored system must not connect to the one from which the backup was taken.
        system = f"{min(incarnations.values()):016x}" if organisation.system else ""
        organisation = replace(organisation, topology=topology, system=system)
    renewal = {"incarnation": mine, "epoch": epoch, "consumers": consumers, "stopped": [], "organisation": organisation}
    return encode_state(replace(state, **renewal))


def _links(state: State) -> Iterator[tuple[tuple[str, str], SavedLink]]:
    for domain, consumer in state.consumers.items():
        for peer, link in consumer.links.items():
            yield (domain, peer), _read(link)


def _read(link: bytes) -> SavedLink:
    try:
        return SavedLink.read(link)
    except msgspec.MsgspecError as error:
        raise SnapshotError(f"unreadable saved link: {error}") from None
