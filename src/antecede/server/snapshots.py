"""A server's durable state as bytes: a map with named fields. It has one table of letters
(:mod:`antecede.channel.letter_table`); mailboxes, timers and so on store only the position of a letter in this table.
"""

from typing import Any

import msgspec

from antecede.channel import SavedChannel
from antecede.channel.consumer import SavedConsumer
from antecede.channel.letter_table import LetterTable, Position, SavedLetters
from antecede.channel.letters import Letter, Past
from antecede.channel.returns import SavedReturns
from antecede.engine import Dead, Question, SavedEngine
from antecede.engine.dead import SavedFollowing
from antecede.errors import SnapshotError, StoreError, TopologyError
from antecede.server.clock import Times
from antecede.server.items import Truncated
from antecede.server.organisation import SavedOrganisation

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
