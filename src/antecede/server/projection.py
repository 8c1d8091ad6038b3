"""The trace as a projection of the log: its rows are computed from the records of the log, and are not recorded
separately.

Committed records are the only source. A ``Reacted`` or ``Handled`` item gives a ``deliver`` row for each letter that
the agent or client has handled. Directly after this row come the ``send`` rows of the reaction's messages. A reaction
that ran twice but was committed once gives its rows only once. A client's publishes are its ``send`` rows. A client may
publish while it handles a letter. Then the letter's ``deliver`` row must come before the publish, so the projection
takes this row from the record of the publish (:mod:`antecede.server`). If the letter later becomes a dead letter,
a ``local`` row shows this. A packet that a router forwarded gives ``hop`` rows, which are numbered separately. In all
other rows, the process is an agent or a client (its address) or a replica of an object, never a server.

**Ids are counted, not stored.** The server's state machine numbers letters when it applies items. A projection that
begins with the first record counts in the same way, and gets the same ids. A projection can also begin at a later
record: it loads the result of ``save``, which is small (mainly the count and the next index of each process).
``tests/simulation`` compares the ids with those that servers really used.

**Texts for people.** A ``send`` row has the class and the label of its notification. The log stores the label next to
the body (:mod:`antecede.labels`). The record of a reaction contains only the id of the letter. So the projection takes
the letter's columns from an earlier record, in which this server sent or received the letter. The projection keeps
these columns until all destinations on this server have handled the letter (:class:`_Known`). The record of an arrival
also contains the size of the letter's stamp, and whether the letter's packet was held.

**Timers are not messages.** A timer is a notification that an agent sends to itself at a certain time, or the timeout
of its question. Ordering protocols do not apply to timers. If a timer had a ``send`` row, its delivery would look like
an ordering error. So the reaction to a timer gives a ``local`` row, with the timer's id as an extra column.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from antecede.channel.consumer import Taken, copy_of
from antecede.channel.letters import decode_train
from antecede.channel.routes import first_hops
from antecede.engine import Belongings, Outbound
from antecede.errors import AntecedeError, StoreError, WireError
from antecede.labels import label_in
from antecede.limits import trace_pending_letters_max
from antecede.objects.calls import is_call
from antecede.server.items import (
    Abandoned,
    Began,
    Clocked,
    Committed,
    Enacted,
    Handled,
    Learned,
    Organised,
    Organising,
    Published,
    PublishedMany,
    Reacted,
    Received,
    Related,
    Restored,
    Resumed,
    Staged,
    decode_record,
    joined,
)
from antecede.server.organisation import first_epoch, learned_epochs, next_epoch
from antecede.topology import Topology, TopologyFile, parse_topology
from antecede.trace import DELIVER, HOP, LOCAL, SEND, Event
from antecede.trace.epochs import Epoch

_Sent = Published | PublishedMany | Outbound
_ms = 1_000_000
"""The number of nanoseconds in one millisecond."""


class _Known(msgspec.Struct, array_like=True, gc=False):
    """The columns of a ``deliver`` row that come from the letter itself."""

    notification: str
    label: str | None
    stamp_bytes: int | None
    held: bool | None
    left: int
    """The number of mailboxes of this server that still have the letter."""


class _Organisation(msgspec.Struct, array_like=True):
    """The topology in force, and the change that is staged."""

    topology: str = ""
    """The text of the topology in force, or an empty string if the log contains none."""
    staged: Staged | None = None
    came: list[Belongings] = []
    adopted: dict[str, str] = {}
    """The clients that came from a removed server: client name → address. A client keeps the address that it had at the
    removed server."""
    epochs: list[Epoch] = []
    """The topologies so far, oldest first, for the metadata of the trace."""


class Projection:
    """Computes the rows of the trace from one server's log, record by record."""

    def __init__(
        self, server: str, incarnation: int, topology: Topology | None = None, homes: dict[str, str] | None = None
    ) -> None:
        """``topology``: the topology to use until a record of the log contains one. Without any topology there are no
        ``hop`` rows."""
        self.server = server
        self.prefix = f"{server}.{incarnation & 0xFFFFFF:06x}."
        self.numbers = 0
        self.indices: dict[str, int] = {}
        self.hops = 0
        self.ahead_ms = 0
        """The number of milliseconds by which the wall clock is ahead of server time. Items contain server time, but
        rows contain the time of the wall clock."""
        self.conflicts: _Conflicts | None = None
        """For each replica of an object: the pairs of operations that conflict. None if the log contains no such
        pairs."""
        self._organisation = _Organisation()
        self._moved: dict[str, str] = {}
        self._onward: dict[tuple[str, str, tuple[str, ...]], tuple[int, tuple[str, ...]]] = {}
        self._here: dict[tuple[str, ...], int] = {}
        """A cache: list of destinations → how many of them are on this server."""
        self._organise(topology, homes or {})
        self._read: dict[str, list[str]] = {}
        """For each client: the letters that already have a ``deliver`` row, although the client has not yet reported
        them as handled."""
        self._letters: dict[str, _Known] = {}
        """Columns of letters that at least one destination on this server has not handled yet, by the letter's id. The
        oldest letter comes first. If there are too many letters, the oldest is removed."""

    def _organise(self, topology: Topology | None, homes: dict[str, str], moved: dict[str, str] | None = None) -> None:
        self._topology, self._homes, self._moved = topology, homes, moved or {}
        known = topology is not None and self.server in topology.servers
        self._first = first_hops(topology, self.server) if topology is not None and known else {}
        self._onward.clear()
        self._here.clear()

    def rows(self, record: bytes) -> list[Event]:
        """Return the rows of the next record. If the log contains the record in several pieces, the caller must first
        join the pieces with :func:`antecede.server.items.joined`."""
        rows: list[Event] = []
        for item in decode_record(record):
            if isinstance(item, Reacted | Handled):
                self._reacted(item, rows)
            elif isinstance(item, Published):
                if item.begun:
                    self._begun(item, 0, rows)
                if is_call(item.to):
                    self.numbers += 1
                else:
                    self._sent(rows, self._client(item.client), item, replays=item.replays or None)
            elif isinstance(item, PublishedMany):
                for place in range(len(item.bodies)):
                    if item.begun:
                        self._begun(item, place, rows)
                    self._sent(rows, self._client(item.client), item)
            elif isinstance(item, Enacted):
                self._enacted(item, rows)
            elif isinstance(item, Related):
                self.conflicts = item.conflicts
            elif isinstance(item, Clocked):
                self.ahead_ms = item.wall_ms - item.clock_ms
            elif isinstance(item, Resumed):
                self.numbers = item.numbers_after(self.numbers)
            elif isinstance(item, Taken):
                self._taken(item, rows)
            elif isinstance(item, Restored) or (isinstance(item, Began) and item.incarnation):
                self.prefix = f"{self.server}.{item.incarnation & 0xFFFFFF:06x}."
            elif isinstance(item, Organising):
                self._organised(item)
        return rows

    def _client(self, client: str) -> str:
        return self._organisation.adopted.get(client) or f"{client}@{self.server}"

    def _organised(self, item: Organising) -> None:
        """Apply an item about a change of the topology. If a process moves to this server, the indices of its rows
        continue where they ended on its old server."""
        now = self._organisation
        if isinstance(item, Organised):
            now.topology = item.topology
            now.epochs = first_epoch(self._follow())
        elif isinstance(item, Learned):
            now.topology = item.topology
            now.epochs = learned_epochs(now.epochs, self._follow(), item.change, item.history, self.indices)
        elif isinstance(item, Staged):
            now.staged, now.came = item, []
        elif now.staged is None or item.change != now.staged.change:
            return
        elif isinstance(item, Received):
            known = {one.address for one in item.belongings}
            now.came = [one for one in now.came if one.address not in known] + item.belongings
        elif isinstance(item, Abandoned):
            now.staged, now.came = None, []
        elif isinstance(item, Committed):
            now.topology = now.staged.topology
            file = self._follow()
            for one in now.came:
                self.indices[one.address] = max(self.indices.get(one.address, 0), one.index)
                if one.client:
                    now.adopted[one.client] = one.address
                ids = [letter.id for letter in one.letters]
                if one.read in ids:
                    self._read[one.address] = ids[: ids.index(one.read) + 1]
                for letter in one.letters:
                    self._letters[letter.id] = _Known(letter.type, label_in(letter.context), None, None, 1)
            now.epochs = next_epoch(now.epochs, file, item.change, self.indices, item.clock_ms)
            now.staged, now.came = None, []

    def _follow(self) -> TopologyFile:
        file = parse_topology(self._organisation.topology, "the topology in the log")
        self._organise(file.organisation, {agent.name: agent.server for agent in file.agents}, file.moved)
        return file

    @property
    def file(self) -> TopologyFile | None:
        """The topology in force; None if the log contains none."""
        text = self._organisation.topology
        return parse_topology(text, "the topology in the log") if text else None

    @property
    def epochs(self) -> list[Epoch]:
        """The topologies so far, for the metadata of the trace. The list is empty if no agent, client or object
        of this server has rows. Perhaps such a server is not part of the system yet."""
        return self._organisation.epochs if self.indices else []

    def save(self) -> bytes:
        """Return the state of this projection after the last record, as bytes. A projection that loads this state with
        ``load`` continues with the next record."""
        head = (self.prefix, self.numbers, self.hops, self.indices, self.conflicts, self._letters)
        place = (*head, self.ahead_ms, self._organisation, self._read)
        return msgspec.msgpack.encode(place)

    def load(self, saved: bytes) -> None:
        """Load a state that ``save`` returned, and continue with the next record. Raise StoreError if the state cannot
        be read, or if it belongs to the trace of another server."""
        try:
            # A place that was saved before objects recorded their conflicts has four values, and one that was saved
            # before rows had texts for people has five; one that was saved before server time existed has six, and one
            # that was saved before topologies could change has seven; one without letters that were only read, eight.
            prefix, *rest = msgspec.msgpack.decode(saved, type=list[Any])
            rest += [None] * (8 - len(rest))
            values = msgspec.convert(rest, _Saved)
            self.numbers, self.hops, self.indices, self.conflicts, letters, ahead, organisation, read = values
            self._letters, self.ahead_ms, self._read = letters or {}, ahead or 0, read or {}
            if organisation is not None and organisation.topology:
                self._organisation = organisation
                self._follow()
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise StoreError(f"the saved position in the trace of {self.server} cannot be read: {error}") from None
        # A restored server has another incarnation than the part of its trace that comes from the backup.
        if str(prefix).rpartition(".")[0].rpartition(".")[0] != self.server:
            raise StoreError(
                f"the saved position belongs to another server's trace: its ids begin with {prefix}, not {self.prefix}"
            )
        self.prefix = str(prefix)

    def _reacted(self, item: Reacted | Handled, rows: list[Event]) -> None:
        agent, time = item.agent, (item.clock_ms + self.ahead_ms) * _ms
        for reaction in item.reactions:
            letter = reaction.letter
            if not self._read or not self._was_read(agent, letter):
                rows.append(self._delivered(agent, letter, time, bool(reaction.dead)))
            elif reaction.dead:
                rows.append(Event(agent, self._next(agent), LOCAL, time=time, dead=True, extra={"letter": letter}))
            for outbound in reaction.outbound:
                if is_call(outbound.to):
                    self.numbers += 1
                else:
                    self._sent(rows, agent, outbound, time)
                if outbound.reply:
                    self.numbers += 1
            self.numbers += len(reaction.alarms)

    def _begun(self, item: Published | PublishedMany, place: int, rows: list[Event]) -> None:
        """Add the ``deliver`` rows of letters that a client had begun to handle before it sent a publish. ``place``:
        the position of this publish in the batch ``item`` (0 if ``item`` is a single publish)."""
        client = self._client(item.client)
        for begun in item.begun:
            if begun.at == place:
                time = (begun.clock_ms + self.ahead_ms) * _ms
                rows += [self._delivered(client, letter, time, dead=False) for letter in begun.letters]
                self._read.setdefault(client, []).extend(begun.letters)

    def _was_read(self, client: str, letter: str) -> bool:
        """Return True if a letter already has a ``deliver`` row, and remove the letter from ``_read``. Call this method
        when the client reports the letter as handled."""
        read = self._read.get(client, ())
        if letter not in read:
            return False
        self._read[client] = rest = [one for one in read if one != letter]
        if not rest:
            del self._read[client]
        return True

    def _delivered(self, agent: str, letter: str, time: int, dead: bool) -> Event:
        sort = _no_messages.get(letter.rpartition(".")[2][:1])
        if sort is not None:
            return Event(agent, self._next(agent), LOCAL, time=time, extra={sort: letter})
        row = Event(agent, self._next(agent), DELIVER, letter, time=time, dead=dead or None)
        known = self._letters.get(letter)
        if known is None:
            return row
        known.left -= 1
        if known.left <= 0:
            del self._letters[letter]
        notification, label = known.notification, known.label
        return replace(row, notification=notification, label=label, stamp_bytes=known.stamp_bytes, held=known.held)

    def _sent(
        self, rows: list[Event], process: str, sent: _Sent, time: int | None = None, replays: str | None = None
    ) -> None:
        self.numbers += 1
        to = tuple(sorted(set(sent.to))) if len(sent.to) > 1 else sent.to
        id_, label = f"{self.prefix}{self.numbers}", label_in(sent.context)
        row = Event(process, self._next(process), SEND, id_, to, time, replays=replays)
        rows.append(replace(row, notification=sent.type, label=label))
        self._remember(id_, sent.to, sent.type, label)

    def _remember(
        self,
        letter: str,
        to: tuple[str, ...],
        notification: str,
        label: str | None,
        stamp_bytes: int | None = None,
        held: bool | None = None,
    ) -> None:
        """Keep the columns of a letter until all its destinations on this server have handled it. Keep nothing if no
        destination is on this server. If too many letters are kept, drop the oldest one first."""
        here = self._here.get(to)
        if here is None:
            here = sum(map(self._is_here, to))
            if len(self._here) > _ways_max:
                self._here.clear()
            self._here[to] = here
        if here:
            if len(self._letters) >= trace_pending_letters_max:
                del self._letters[next(iter(self._letters))]
            self._letters[letter] = _Known(notification, label, stamp_bytes, held, here)

    def _is_here(self, address: str) -> bool:
        # Without a topology it is not known where agents are; then all of them might be here.
        return self._home(address) == self.server or (self._topology is None and "@" not in address)

    def _next(self, process: str) -> int:
        index = self.indices.get(process, 0)
        self.indices[process] = index + 1
        return index

    def _enacted(self, item: Enacted, rows: list[Event]) -> None:
        """Add the rows of the actions of objects. In these rows, each replica and each caller is a process."""
        for row in item.rows:
            instance = row.instance or None
            parent = row.instance.rpartition("/")[0] or None
            event = Event(
                row.process,
                self._next(row.process),
                row.kind,
                row.message or None,
                row.to if row.kind == SEND else None,
                (item.clock_ms + self.ahead_ms) * _ms,
                instance=instance,
                # A root belongs to its caller, who called it; it is not a declared operation.
                operation=(row.operation or None) if parent else None,
                parent=parent,
                type=row.type,
            )
            rows.append(event)

    # The packets that a router forwards.

    def _taken(self, item: Taken, rows: list[Event]) -> None:
        copy = None if item.repeat else copy_of(item.packet)
        if copy is None:
            return
        if self._topology is not None and item.domain in self._topology.domains:
            me = self._topology.domains[item.domain].servers.index(self.server)
            if copy.source == me or not copy.to >> me & 1:
                return
        try:
            letters = decode_train(copy.payload)
        except WireError:
            # A forged packet: the server took it, but found nothing in it to forward.
            return
        for letter in letters:
            label = label_in(letter.context)
            self._remember(letter.id, letter.to, letter.type, label, copy.stamp_bytes, item.held)
            if self._topology is None:
                continue
            behind, onward = self._way(item.domain, letter.source, letter.to)
            for domain in onward:
                row = Event(self.server, self.hops, HOP, letter.id, stamp_bytes=copy.stamp_bytes)
                rows.append(replace(row, domain=domain, hop=behind, held=item.held))
                self.hops += 1

    def _way(self, from_domain: str, source: str, to: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
        """Return two facts about a letter that has arrived through ``from_domain``: how many hops it has made, and the
        domains into which this server forwards it."""
        known = self._onward.get((from_domain, source, to))
        if known is None:
            assert self._topology is not None
            domains = [self._first[home][0] for home in map(self._home, to) if home in self._first]
            onward = tuple(dict.fromkeys(domain for domain in domains if domain != from_domain))
            try:
                behind = len(self._topology.route(self._home(source), self.server)) - 1
            except AntecedeError:
                behind = 1
            if len(self._onward) > _ways_max:
                self._onward.clear()
            known = self._onward[(from_domain, source, to)] = behind, onward
        return known

    def _home(self, address: str) -> str:
        home = self._homes.get(address) or address.rpartition("@")[2]
        return self._moved.get(home, home)


def project(
    records: Iterable[bytes],
    server: str,
    incarnation: int,
    topology: Topology | None = None,
    homes: dict[str, str] | None = None,
) -> Iterator[Event]:
    """Yield the rows of the trace from a server's whole log: all its records, from the first one on."""
    projection = Projection(server, incarnation, topology, homes)
    for record in joined(records):
        yield from projection.rows(record)


_Conflicts = dict[str, list[list[str]]]
_Saved = tuple[
    int,
    int,
    dict[str, int],
    _Conflicts | None,
    dict[str, _Known] | None,
    int | None,
    _Organisation | None,
    dict[str, list[str]] | None,
]
_no_messages = {"t": "timer", "c": "call"}
"""Some letters are not messages: they come from a timer or a call. The key is the first character after the last dot in
the id of such a letter. The value says where the letter comes from."""
_ways_max = 65_536
