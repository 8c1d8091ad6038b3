"""A server's durable state as bytes, in two formats.

Format 2, which is written, is a map with named fields and its format number. It has one table of letters
(:mod:`antecede.channel.letter_table`); everything that holds a letter keeps the letter's number there.

Format 1, which is still read, is an array of nine values, with each letter in full wherever it is held: a multicast to
400 mailboxes is there 400 times. Reading it shares equal letters again.
"""

import msgspec

from antecede.channel import Letter, Past, SavedChannel, SavedConsumer, SavedReturns
from antecede.channel.letter_table import LetterTable, Position, SavedLetters
from antecede.channel.letters import Destinations
from antecede.engine import Dead, Question, SavedEngine
from antecede.engine.following import SavedFollowing
from antecede.errors import SnapshotError, StoreError, TopologyError
from antecede.server.clock import Times
from antecede.server.items import FORMAT_OLDEST, Truncated
from antecede.server.organisation import SavedOrganisation


class State(msgspec.Struct, frozen=True):
    """Everything that a server must remember; see the server for the fields."""

    server: str
    incarnation: int
    epoch: str
    numbers: int
    channel: SavedChannel
    engine: SavedEngine
    clients: dict[str, int]
    timers: dict[int, tuple[int, str, Letter]]
    stopped: list[tuple[str, str, str]]
    log_format: int = FORMAT_OLDEST
    times: Times = msgspec.field(default_factory=Times)
    truncations: list[Truncated] = []
    newest_cut: int = 0
    organisation: SavedOrganisation = msgspec.field(default_factory=SavedOrganisation)


class _Snapshot(msgspec.Struct, frozen=True, tag_field="format", tag=2):
    """A snapshot in format 2. A ``Position`` is the position of a letter in ``letters``."""

    server: str
    incarnation: int
    epoch: str
    numbers: int
    consumers: dict[str, SavedConsumer]
    letters: SavedLetters
    left: int
    away_domain: str
    away: list[tuple[int, Position]]
    """This server's own letters that will return: number, letter."""
    waiting: list[tuple[int, bool, Position]]
    """Letters that wait for these: the last number that it waits for, whether it stays on this server, letter."""
    mailboxes: dict[str, list[Position]]
    states: dict[str, bytes]
    born: dict[str, str]
    dead: list[tuple[str, Position, str]]
    """Agent, letter, reason."""
    asks: dict[str, Question]
    clients: dict[str, int]
    timers: list[tuple[int, int, str, Position]]
    """Number, server time in milliseconds, agent, letter."""
    stopped: list[tuple[str, str, str]]
    log_format: int = FORMAT_OLDEST
    deaths: int = 0
    """Letters that ever died here."""
    died: list[tuple[int, int]] = []
    """For each dead letter its number, and the server time of its death. Snapshots before log format 3 lack them."""
    clock_ms: int = 0
    """The server time of the last reactions."""
    ages: dict[str, list[tuple[int, int]]] = {}
    """For mailboxes with a limit of time: server time, letters that were seen then."""
    holding: list[str] = []
    """Agents for which letters that follow from a dead one are held."""
    pasts: dict[str, Past] = {}
    blocks: dict[str, list[str]] = {}
    held: dict[str, list[Position]] = {}
    numbers_held: dict[str, int] = {}
    newest_held: int = 0
    since_held: dict[str, int] = {}
    tries: dict[str, int] = {}
    """How often a process ended while a letter was handled, by letter and agent."""
    tried_life: int = 0
    careful: list[str] = []
    read: dict[str, str] = {}
    """For clients: the last letter that a handler has begun, if a record says so."""
    times: Times = msgspec.field(default_factory=Times)
    truncations: list[Truncated] = []
    """The truncations of the log that no operator has acknowledged, and the newest group number of all."""
    newest_cut: int = 0
    organisation: SavedOrganisation = msgspec.field(default_factory=SavedOrganisation)


def check_server(me: str, server: str) -> None:
    """Refuse a log that belongs to another server."""
    if server != me:
        raise StoreError(f"the data directory belongs to server {server}, not to {me}")


def unknown_topology(server: str, begun: str, epoch: str) -> TopologyError:
    """Return the error for a log that was begun under another topology, and does not contain it."""
    return TopologyError(
        f"the data directory of server {server} was begun under topology epoch {begun}, but the file has {epoch}: "
        "start once with the previous topology file, then use antecede topology apply"
    )


def state_of(snapshot: bytes, server: str, incarnation: int, epoch: str | None) -> State:
    """Return the state of a snapshot, if it belongs to this server. ``epoch``: if the snapshot does not contain its
    topology, it must have this epoch, unless that is None."""
    try:
        state = decode_state(snapshot)
    except SnapshotError as error:
        raise SnapshotError(f"unreadable snapshot of server {server}: {error}") from None
    check_server(server, state.server)
    if epoch is not None and not state.organisation.topology and state.epoch != epoch:
        raise unknown_topology(server, state.epoch, epoch)
    if state.incarnation != incarnation:
        raise SnapshotError(f"snapshot of server {server} ({state.incarnation:016x}): expected {incarnation:016x}")
    return state


def encode_state(state: State) -> bytes:
    """Return the bytes of a snapshot."""
    table = LetterTable()
    number = table.position
    engine, returns = state.engine, state.channel.returns
    snapshot = _Snapshot(
        server=state.server,
        incarnation=state.incarnation,
        epoch=state.epoch,
        numbers=state.numbers,
        consumers=state.channel.consumers,
        left=returns.left,
        away_domain=returns.domain,
        away=[(place, number(letter)) for place, letter in returns.away.values()],
        waiting=[(last, stays, number(letter)) for last, stays, letter in returns.waiting],
        mailboxes={agent: list(table.positions(letters)) for agent, letters in engine.mailboxes.items()},
        states=engine.states,
        born=engine.born,
        dead=[(dead.agent, number(dead.letter), dead.reason) for dead in engine.dead.values()],
        asks=engine.asks,
        clients=state.clients,
        timers=[(place, when, agent, number(letter)) for place, (when, agent, letter) in state.timers.items()],
        stopped=state.stopped,
        log_format=state.log_format,
        organisation=state.organisation,
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
        times=state.times,
        truncations=state.truncations,
        newest_cut=state.newest_cut,
        held={agent: list(table.positions(letters)) for agent, letters in engine.following.held.items()},
        tries=engine.tries,
        tried_life=engine.tried_life,
        careful=engine.careful,
        read=engine.read,
        # The table is written last, when all letters have their numbers.
        letters=table.saved(),
    )
    return msgspec.msgpack.encode(snapshot)


def decode_state(data: bytes) -> State:
    """Return the state of a snapshot of either format."""
    try:
        if data[:1] == _array_of_nine:
            return _decode_format_1(data)
        return _state(msgspec.msgpack.decode(data, type=_Snapshot))
    except IndexError:
        raise SnapshotError("a letter that is not in the table of letters") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotError(str(error)) from None


def _state(saved: _Snapshot) -> State:
    letters = saved.letters.letters()
    away = [(place, letters[position]) for place, position in saved.away]
    died = saved.died or [(number, 0) for number in range(1, len(saved.dead) + 1)]
    if len(died) != len(saved.dead):
        raise SnapshotError(f"{len(saved.dead)} dead letters, and {len(died)} numbers of dead letters")
    dead = [
        Dead(agent, letters[position], reason, *when)
        for (agent, position, reason), when in zip(saved.dead, died, strict=True)
    ]
    deaths = saved.deaths or len(dead)
    kept = {one.key for one in dead}
    if not all(key in kept for keys in saved.blocks.values() for key in keys):
        raise SnapshotError("letters are held for a dead letter that is not there")
    held = {agent: [letters[position] for position in positions] for agent, positions in saved.held.items()}
    numbers = (saved.numbers_held, saved.newest_held, saved.since_held)
    following = SavedFollowing(saved.holding, saved.pasts, saved.blocks, held, *numbers)
    returns = SavedReturns(
        saved.left,
        saved.away_domain,
        {letter.id: (place, letter) for place, letter in away},
        [(last, stays, letters[position]) for last, stays, position in saved.waiting],
    )
    mailboxes = {agent: list(map(letters.__getitem__, positions)) for agent, positions in saved.mailboxes.items()}
    return State(
        saved.server,
        saved.incarnation,
        saved.epoch,
        saved.numbers,
        SavedChannel(saved.consumers, returns),
        SavedEngine(
            *(mailboxes, saved.states, saved.born, {one.key: one for one in dead}, saved.asks),
            *(deaths, saved.clock_ms, saved.ages, following),
            *(saved.tries, saved.tried_life, saved.careful, saved.read),
        ),
        saved.clients,
        {place: (when, agent, letters[position]) for place, when, agent, position in saved.timers},
        saved.stopped,
        saved.log_format,
        *(saved.times, saved.truncations, saved.newest_cut),
        saved.organisation,
    )


_array_of_nine = b"\x99"
_Mailboxes = dict[str, list[msgspec.Raw]]
_Engine = tuple[_Mailboxes, dict[str, bytes], dict[str, str], dict[str, Dead], dict[str, Question]]
_Timers = dict[str, tuple[int, str, Letter]]
_Format1 = tuple[str, int, str, int, SavedChannel, _Engine, dict[str, int], _Timers, list[tuple[str, str, str]]]


def _decode_format_1(data: bytes) -> State:
    server, incarnation, epoch, numbers, channel, engine, clients, timers, stopped = msgspec.msgpack.decode(
        data, type=_Format1
    )
    mailboxes, states, born, dead, asks = engine
    known: dict[bytes, Letter] = {}
    decode = msgspec.msgpack.Decoder(Letter).decode
    destinations = Destinations()

    def letter(raw: msgspec.Raw) -> Letter:
        found = known.get(key := bytes(raw))
        if found is None:
            found = known[key] = decode(raw)
            destinations.share([found])
        return found

    shared = {agent: list(map(letter, letters)) for agent, letters in mailboxes.items()}
    numbered = {int(number): timer for number, timer in timers.items()}
    counted = {key: msgspec.structs.replace(one, number=number) for number, (key, one) in enumerate(dead.items(), 1)}
    saved = SavedEngine(shared, states, born, counted, asks, len(counted))
    return State(server, incarnation, epoch, numbers, channel, saved, clients, numbered, stopped)
