"""What one consumer holds: the rule that decides when a handler may start.

**Rule.** A service starts m when, in every lane that it reads, it has *finished* everything up to m's frontier. Order
after redelivery and order per key are the same rule for m's own lane.

**Safe**, because a frontier dominates everything in m's past (see ``frontier``). **Live**, because every position in a
header is older than its message: whatever m waits for is older than m, hence nothing waits in a circle. For this, the
program around the box must keep two promises. Flow control is per lane: a lane that is full must not keep messages of
another lane away. And a lane holds as many messages as the broker has in flight for it.

*Finished* is a statement about one **reader**: a durable on a lane. If several readers of a service share a lane (two
filters on one stream), a cause is finished when all of them have finished it. What a box knows of a reader:

- ``floor``: the broker says that everything up to there is finished for the durable, by whomever.
- ``reach``: up to there this process knows of every message that is not finished. For a *sole* reader this is what has
  been delivered first, because a broker delivers in sequence. A *shared* reader knows nothing that its floor does not
  say. Nothing is assumed: if deliveries were lost (a gap in the consumer's own numbers, or deliveries to another
  process before the reader was opened), the reach ends below the *hole* until the floor has passed it.
- ``outstanding``: the positions that were delivered here and are not finished.

Everything up to p is finished if the floor is at p, or if the reach is and nothing up to p is outstanding.

*Nothing is acknowledged that this reader did not finish.* A delivery is a repeat only if this reader saw it done, or if
the broker's floor covers it now, that is, in an answer to a question asked after the delivery. A *first* delivery at or
below what was seen means that the lane went back (it was made again, restored from a copy, or the durable was rewound).
Then the reader is closed and opened again. While it is closed, whatever waits for the lane keeps waiting. It is opened
only when none of its handlers runs, and ``done`` names an arrival, not a position: a handler of the old lane finishes
nothing in the new one.

*Nothing waits for what will not come.* Every message that waits has its questions in ``wanted``, also about sole lanes:
a broker gives up messages silently, trims lanes, and takes late acknowledgements. Its floor counts even while messages
below it are held or missing here. A position at or above the message's own, or beyond the end of its lane, cannot be a
cause and is dropped. The end must have been read from the leader after the arrival. This is also required of lanes that
nobody here reads, because the causes will be merged into a context: otherwise one forged position would hide all true
ones. If, nevertheless, messages held here wait in a circle, one of their headers is forged, and the circle is cut.

*Bounded.* The box keeps what is outstanding and waits, and the last ``REMEMBERED`` finished positions of each reader.
About an older repeat it asks; in the worst case a handler runs again.

The program opens all lanes before its first subscription starts. It calls ``arrive`` for each delivery, ``done`` or
``failed`` after each handler, ``wanted`` from time to time while anything is held, and answers with ``floor``,
``quiet``, ``end`` or ``open``. Each call returns the arrivals that are decided now; the ``verdict`` says what to do
with them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Any, Literal

from antecede.lanes.frontier import LanesError, coarse, lane_of, name_of

REMEMBERED = 4096

Within = Literal["lane", "key", "none"]


class Verdict(Enum):
    HELD = "held"
    START = "start"
    """Call the handler; then ``done`` and acknowledge, or ``failed`` and give the message back."""
    REPEAT = "repeat"
    """Acknowledge it again, and do not call the handler."""
    IGNORE = "ignore"
    """Neither acknowledge nor give back: the same message is held or runs here."""
    RETURN = "return"
    """Give it back to the broker, unhandled. It will come again."""


@dataclass(slots=True, eq=False)
class Arrival:
    """One delivery of one message."""

    reader: str
    position: int
    causes: dict[str, int]
    """Positions by name, as in ``Stamp``. The box removes impossible ones; what remains is for ``Context.saw``."""
    track: int | None = None
    redelivered: bool = False
    """Whether the broker says that it has delivered the message before, to anyone."""
    sequence: int | None = None
    """The consumer's own number of this delivery, if the broker counts deliveries without gaps (JetStream)."""
    time: float = 0.0
    """When the broker stored the message, by its clock: tells a message from one that had its position before the lane
    was made again, and which header of a circle is forged."""
    tag: Any = None
    """The caller's."""
    verdict: Verdict = Verdict.HELD
    dropped: list[tuple[str, int]] = field(default_factory=list)
    """Impossible causes that were removed: names and positions."""
    _number: int = 0
    _home: "_Reader | None" = None
    _unclear: bool = False
    _needs: list["_Need"] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class Question:
    """Something that the broker must be asked, from now on (an answer that was on its way is too old).

    The answers are ``end`` and, about a reader, ``floor``; of a sole reader also ``quiet``. With ``reopen`` it is
    ``open``."""

    lane: str
    reader: str | None
    """None: only the end of the lane is wanted."""
    position: int
    """The highest position that somebody waits for."""
    reopen: bool = False
    """The answer must be ``open``: the reader was closed, and none of its handlers runs."""
    _asked: int = 0
    _home: "_Reader | None" = None
    _opened: int = 0
    _seen: int = -1


_BEYOND = -1
_NO_KEY = -1
_ALL = -2


class _Reader:
    """What is known of a durable on a lane."""

    def __init__(self, name: str, lane: str) -> None:
        self.name, self.lane = name, lane
        self.opened = 0
        self.running: set[Arrival] = set()
        self.queued: list[Arrival] = []
        # Who waits here: for an outstanding position, or for the reach to get to a position.
        self.waiting: dict[int, list[Arrival]] = {}
        self.beyond: list[tuple[int, int, Arrival]] = []
        self.reset()

    def reset(self) -> None:
        """Forget everything that the broker or its deliveries have said."""
        self.closed = True
        self.sole = False
        self.floor = self.seen = self.reach = -1
        self.hole: tuple[int, int] | None = None
        self.sequence: int | None = None
        # None: it went back to the broker, and is to come again.
        self.outstanding: dict[int, Arrival | None] = {}
        # With the times of the messages: another message at the same position is of another lane.
        self.done: dict[int, float] = {}
        # Positions by track, with all of them under _ALL. Finished positions leave a heap when they reach its top.
        self.heaps: dict[int, list[int]] = {_ALL: [], _NO_KEY: []}
        self.latest: dict[int, int] = {}
        # The first message that is not finished, and its causes, as far as anybody has told.
        self.head: tuple[int, dict[str, int], float] | None = None

    def lowest(self, track: int | None) -> int | None:
        """The lowest outstanding position that counts for a track. A message without a key counts for all."""
        found = None
        for key in (_ALL,) if track is None else (track, _NO_KEY):
            heap = self.heaps.get(key)
            while heap and heap[0] not in self.outstanding:
                heappop(heap)
            if heap and (found is None or heap[0] < found):
                found = heap[0]
        return found

    def add(self, arrival: Arrival) -> None:
        position = arrival.position
        if position not in self.outstanding:
            key = _NO_KEY if arrival.track is None else arrival.track
            for one in (_ALL, key):
                heap = self.heaps.setdefault(one, [])
                heappush(heap, position)
                if len(heap) > 2 * len(self.outstanding) + 64:
                    heap[:] = {p for p in heap if p in self.outstanding or p == position}
                    heapify(heap)
                self.latest[one] = position
        self.outstanding[position] = arrival

    def blocker(self, need: "_Need") -> int | None:
        """None if the need is met; else the outstanding position to wait for, or _BEYOND."""
        position = need.position
        if position <= self.floor:
            return None
        if position > self.reach and not need.local:
            return _BEYOND
        lowest = self.lowest(need.track)
        if lowest is None or lowest > position:
            return None
        # Wait for the last one before, if possible: then a queue of messages moves on one by one.
        last = self.latest.get(_ALL if need.track is None else need.track, -1)
        return last if last <= position and last in self.outstanding else lowest

    def measure(self) -> None:
        """Compute the reach again."""
        if self.hole is not None and self.floor >= self.hole[1]:
            self.hole = None
        self.reach = self.floor
        if self.sole:
            self.reach = max(self.floor, self.seen if self.hole is None else min(self.seen, self.hole[0]))

    def lost(self, below: int, upto: int) -> None:
        """Deliveries between these positions did not arrive here."""
        low, high = self.hole or (below, upto)
        self.hole = (min(low, below), max(high, upto))


@dataclass(slots=True)
class _Need:
    name: str
    position: int
    reader: _Reader | None
    track: int | None = None
    local: bool = False
    """Only what this process knows counts."""


class Box:
    """The readers of one consumer, and the arrivals that it holds.

    ``within`` is the order in each lane of its own: ``lane`` (in sequence), ``key`` (messages with the same key in
    sequence; over a shared durable only as far as they come to the same process), ``none`` (only causal order).
    ``trust``: causes in lanes that nobody here reads need not be proven to exist."""

    def __init__(self, within: Within = "lane", *, trust: bool = False) -> None:
        if within not in ("lane", "key", "none"):
            raise LanesError("within", f"The order within a lane is 'lane', 'key' or 'none', not {within!r}.")
        self.within, self.trust = within, trust
        self._readers: dict[str, _Reader] = {}
        self._lanes: dict[str, list[_Reader]] = {}
        self._gates: dict[str, tuple[list[_Reader], int | None]] = {}
        self._ends: dict[str, int] = {}
        self._held: dict[Arrival, None] = {}
        self._count = 0
        self._asking = False

    # -- readers --------------------------------------------------------------------------------------------------

    def open(
        self,
        reader: str,
        lane: str,
        floor: int,
        *,
        delivered: int | None = None,
        sequence: int | None = None,
        sole: bool = True,
    ) -> list[Arrival]:
        """Begin to read a lane, or read it again after ``close``. All lanes of the service must be open before the
        first delivery of any of them: nothing waits for a lane that the box does not know.

        ``floor``: everything up to there is finished for the durable, or older than its start. ``delivered``: the
        broker has delivered nothing above it. What lies between may be outstanding with anybody. ``sequence``: the
        consumer's own number of the last delivery so far. A *sole* reader gets every message of its durable and in
        sequence; otherwise, and if this process reads nothing of the lane while other members of its group do, the
        reader is shared."""
        decided: list[Arrival] = []
        one = self._readers.get(reader)
        if one is None:
            one = self._readers[reader] = _Reader(reader, lane)
            self._lanes.setdefault(name_of(lane), []).append(one)
            self._gates.clear()
        if not one.closed or one.running or one.lane != lane:
            raise LanesError("open", f"Reader {reader!r} is open, its handlers run, or it reads another lane.")
        one.closed, one.sole, one.sequence = False, sole, sequence
        one.opened += 1
        one.floor = one.seen = floor
        if delivered is not None and delivered > floor:
            one.seen = delivered
            one.lost(floor, delivered)
        one.measure()
        waiting, one.beyond = one.beyond, []
        for _, _, arrival in waiting:
            self._advance(arrival, decided)
        queued, one.queued = one.queued, []
        for arrival in queued:
            if arrival.position <= floor or self._went_back(one, arrival):
                # It seems to be of an earlier lane. If it is not, it comes again.
                self._decide(arrival, Verdict.RETURN, decided)
            else:
                del self._held[arrival]
                decided += self.arrive(arrival)
        return decided

    def close(self, reader: str) -> list[Arrival]:
        """Believe nothing of this reader any more: the connection was lost, the lane went back, or it goes to another
        member. What it holds is returned to the broker; whatever waits for the lane waits until it is open again."""
        decided: list[Arrival] = []
        self._close(self._readers[reader], decided)
        return decided

    def _close(self, reader: _Reader, decided: list[Arrival]) -> None:
        held = [arrival for arrival in reader.outstanding.values() if arrival is not None]
        waiting = [arrival for several in reader.waiting.values() for arrival in several]
        waiting += [arrival for _, _, arrival in reader.beyond]
        reader.reset()
        for arrival in held:
            if arrival.verdict is Verdict.HELD:
                self._decide(arrival, Verdict.RETURN, decided)
        reader.waiting = {}
        reader.beyond = [(0, arrival._number, arrival) for arrival in dict.fromkeys(waiting) if arrival in self._held]

    # -- arrivals -------------------------------------------------------------------------------------------------

    def arrive(self, arrival: Arrival) -> list[Arrival]:
        """A delivery has come."""
        reader = self._readers.get(arrival.reader)
        if reader is None:
            raise LanesError("closed", f"Open reader {arrival.reader!r} before its subscription starts.")
        decided: list[Arrival] = []
        self._count += 1
        arrival._number = self._count
        if not reader.closed and self._went_back(reader, arrival):
            self._close(reader, decided)
        if reader.closed:
            # It belongs to the lane as it is now, which the box does not know yet.
            reader.queued.append(arrival)
            self._held[arrival] = None
            return decided
        arrival._home = reader
        position = arrival.position
        known = position in reader.outstanding
        moved = self._delivered(reader, arrival)
        if known and reader.outstanding[position] is not None:
            self._decide(arrival, Verdict.IGNORE, decided)
        elif position in reader.done:
            self._decide(arrival, Verdict.REPEAT, decided)
        else:
            # Nobody here saw it done, although all that is known says that it is finished: ask.
            arrival._unclear = not known and (position <= reader.floor or (position <= reader.reach and not moved))
            self._held[arrival] = None
            arrival._needs = self._needs(reader, arrival)
            self._advance(arrival, decided)
            reader.add(arrival)
        if moved:
            self._moved(reader, decided)
        return decided

    def _went_back(self, reader: _Reader, arrival: Arrival) -> bool:
        """Whether this is a first delivery of what was delivered before. A delivery that was on its way when the
        reader was opened lies in the hole."""
        position, number = arrival.position, arrival.sequence
        if position > max(reader.seen, reader.floor):
            # The numbers of deliveries begin again only with a new durable.
            return number is not None and reader.sequence is not None and number <= reader.sequence
        if arrival.redelivered:
            # Another message at a position that is known here.
            known = reader.outstanding.get(position)
            time = reader.done.get(position, arrival.time) if known is None else known.time
            return time != arrival.time
        fills = reader.hole is not None and reader.hole[0] < position <= reader.hole[1]
        return not fills or position in reader.done or position in reader.outstanding

    def _delivered(self, reader: _Reader, arrival: Arrival) -> bool:
        """Take note of the delivery itself; whether the reach has changed."""
        position, before, number = arrival.position, reader.seen, arrival.sequence
        if number is not None:
            due = number if reader.sequence is None else reader.sequence + 1
            if number > due:
                reader.lost(before, max(before, position))
            # After a gap, only the next first delivery shows how far the lost ones reach.
            if number == due or (number > due and not arrival.redelivered):
                reader.sequence = number
        if position <= before:
            return False
        reader.seen = position
        reader.measure()
        return True

    def _needs(self, reader: _Reader, arrival: Arrival) -> list[_Need]:
        """What must be finished before; the last one is looked at first."""
        needs = []
        for name, position in list(arrival.causes.items()):
            gate = self._gates.get(name) or self._gate(name)
            if gate is None:
                if not self.trust and position > self._ends.get(name.partition("#")[0], -1):
                    needs.append(_Need(name, position, None))
                continue
            readers, track = gate
            if reader in readers and position >= arrival.position:
                self._drop(arrival, name)
                continue
            for one in readers:
                # Most causes finished long ago.
                if position > one.floor and (position > one.reach or one.outstanding):
                    needs.append(_Need(name, position, one, track))
        if self.within != "none" and arrival.position - 1 > reader.floor:
            by_key = self.within == "key"
            track = arrival.track if by_key else None
            needs.append(_Need("", arrival.position - 1, reader, track, by_key and not reader.sole))
        return needs

    def _gate(self, name: str) -> tuple[list[_Reader], int | None] | None:
        lane, _, track = name.partition("#")
        readers = self._lanes.get(lane)
        if readers is None:
            return None
        gate = self._gates[name] = (readers, int(track) if track else None)
        return gate

    def _advance(self, arrival: Arrival, decided: list[Arrival]) -> None:
        """Let the arrival start, or let it wait at the first need that is not met."""
        if arrival.verdict is not Verdict.HELD or arrival._unclear or arrival._home is None:
            return
        needs = arrival._needs
        while needs:
            need = needs[-1]
            reader = need.reader
            if reader is None:
                lane = need.name.partition("#")[0]
                if need.position > self._ends.get(lane, -1):
                    return
            else:
                blocker = _BEYOND if reader.closed else reader.blocker(need)
                # Whoever was decided otherwise may still be listed; not for ever.
                most = 2 * len(self._held) + 64
                if blocker == _BEYOND:
                    heappush(reader.beyond, (need.position, arrival._number, arrival))
                    if len(reader.beyond) > most:
                        reader.beyond = [entry for entry in reader.beyond if entry[2] in self._held]
                        heapify(reader.beyond)
                    return
                if blocker is not None:
                    waiting = reader.waiting.setdefault(blocker, [])
                    waiting.append(arrival)
                    if len(waiting) > most:
                        waiting[:] = [one for one in waiting if one in self._held]
                    return
            needs.pop()
        self._decide(arrival, Verdict.START, decided)

    def _decide(self, arrival: Arrival, verdict: Verdict, decided: list[Arrival]) -> None:
        self._held.pop(arrival, None)
        arrival.verdict = verdict
        if verdict is Verdict.START and arrival._home is not None:
            arrival._home.running.add(arrival)
        decided.append(arrival)

    def _moved(self, reader: _Reader, decided: list[Arrival]) -> None:
        """The reach or the floor has changed."""
        while reader.beyond and reader.beyond[0][0] <= reader.reach:
            self._advance(heappop(reader.beyond)[2], decided)

    def _finish(self, reader: _Reader, position: int, decided: list[Arrival]) -> None:
        reader.outstanding.pop(position, None)
        for arrival in reader.waiting.pop(position, ()):
            self._advance(arrival, decided)

    # -- handlers -------------------------------------------------------------------------------------------------

    def done(self, arrival: Arrival) -> list[Arrival]:
        """The handler has succeeded, or the message was put aside for good (a dead letter); acknowledge it now."""
        decided: list[Arrival] = []
        reader = self._left(arrival)
        if reader is not None:
            reader.done[arrival.position] = arrival.time
            if len(reader.done) > REMEMBERED:
                del reader.done[next(iter(reader.done))]
            # Another delivery of it may be held by now, about which the broker is asked.
            if reader.outstanding.get(arrival.position) in (None, arrival):
                self._finish(reader, arrival.position, decided)
        return decided

    def failed(self, arrival: Arrival) -> list[Arrival]:
        """The handler has failed, and the message goes back to the broker: it is outstanding until it comes again, or
        until the broker's floor says that it will not."""
        reader = self._left(arrival)
        if reader is not None and reader.outstanding.get(arrival.position) is arrival:
            reader.outstanding[arrival.position] = None
        return []

    def _left(self, arrival: Arrival) -> _Reader | None:
        """The arrival leaves the box. Its reader, unless it was closed meanwhile: the broker's floor will tell."""
        reader = arrival._home
        if arrival.verdict is Verdict.HELD:
            if self._held.pop(arrival, arrival) is arrival:
                raise LanesError("unknown", "This arrival was not given to the box.")
            arrival.verdict = Verdict.RETURN
        if reader is None:
            self._readers[arrival.reader].queued.remove(arrival)
            return None
        reader.running.discard(arrival)
        return None if reader.closed else reader

    def give_up(self, arrival: Arrival) -> list[Arrival]:
        """Start it although something is ``missing``. No order is promised from here on."""
        decided: list[Arrival] = []
        if arrival.verdict is Verdict.HELD and arrival._home is not None:
            self._decide(arrival, Verdict.START, decided)
        return decided

    def missing(self, arrival: Arrival) -> list[tuple[str, int]]:
        """What an arrival waits for: lanes and positions."""
        found: dict[str, int] = {}
        for need in arrival._needs:
            if need.reader is None:
                lane, waits = lane_of(need.name), need.position > self._ends.get(need.name.partition("#")[0], -1)
            else:
                lane, waits = need.reader.lane, need.reader.closed or need.reader.blocker(need) is not None
            if waits:
                found[lane] = max(need.position, found.get(lane, -1))
        return list(found.items())

    @property
    def held(self) -> list[Arrival]:
        """Everything that waits here."""
        return list(self._held)

    def finished(self, reader: str) -> int:
        """Everything up to this position is finished: what Kafka may be told as the committed offset minus 1."""
        one = self._readers[reader]
        lowest = one.lowest(None)
        return one.reach if lowest is None else max(one.floor, min(one.reach, lowest - 1))

    # -- questions and answers ------------------------------------------------------------------------------------

    def wanted(self, overdue: bool = False) -> list[Question]:
        """What to ask the broker now. Call it again after some time, as long as anything is held.

        ``overdue``: something has waited so long that its causes are suspect; then all readers are asked about."""
        ends: dict[str, int] = {}
        floors: dict[_Reader, int] = dict.fromkeys(self._readers.values(), 0) if overdue else {}
        for arrival in self._held:
            if arrival._unclear and arrival._home is not None:
                floors[arrival._home] = max(arrival.position, floors.get(arrival._home, -1))
            for need in arrival._needs:
                if need.reader is None:
                    lane = need.name.partition("#")[0]
                    ends[lane] = max(need.position, ends.get(lane, -1))
                elif need.position > need.reader.floor:
                    floors[need.reader] = max(need.position, floors.get(need.reader, -1))
        asked, self._asking = self._count, True
        questions = [Question(lane_of(lane), None, position, False, asked) for lane, position in ends.items()]
        for one, position in floors.items():
            if not one.closed:
                questions.append(Question(one.lane, one.name, position, False, asked, one, one.opened, one.seen))
        closed = [one for one in self._readers.values() if one.closed and not one.running]
        return questions + [Question(one.lane, one.name, 0, True, asked) for one in closed]

    def floor(self, question: Question, position: int) -> list[Arrival]:
        """Everything up to this position is finished for the durable, as the broker says: acknowledged, given up after
        too many attempts, or trimmed. It counts whatever is held here."""
        decided: list[Arrival] = []
        reader = self._asked(question)
        if reader is None:
            return decided
        if position > reader.floor:
            reader.floor = position
            reader.measure()
        for one in sorted(p for p, a in reader.outstanding.items() if p <= position and _covered(a, question)):
            arrival = reader.outstanding[one]
            if arrival is not None and arrival.verdict is Verdict.HELD:
                self._decide(arrival, Verdict.REPEAT, decided)
            self._finish(reader, one, decided)
        for arrival in list(reader.outstanding.values()):
            if arrival is not None and arrival._unclear and arrival._number <= question._asked:
                arrival._unclear = False
                self._advance(arrival, decided)
        self._moved(reader, decided)
        if self._asking:
            self._asking = False
            self._cut(decided)
        return decided

    def head(self, question: Question, position: int, causes: dict[str, int], time: float = 0.0) -> None:
        """The first message that is not finished for the durable, its causes, and when the broker stored it. Look it up
        when something is overdue: without it, a forged header can make two processes wait for each other."""
        reader = self._asked(question)
        if reader is not None:
            reader.head = (position, causes, time)

    def quiet(self, question: Question, position: int, sequence: int | None = None) -> list[Arrival]:
        """A sole reader has been delivered everything up to this position that concerns it. ``sequence``: the
        consumer's own number of its last delivery; the answer does not count while that delivery is on its way."""
        decided: list[Arrival] = []
        reader = self._asked(question)
        if reader is None or (sequence is not None and (reader.sequence is None or reader.sequence < sequence)):
            return decided
        reader.seen = max(reader.seen, position)
        reader.measure()
        self._moved(reader, decided)
        return decided

    def end(self, question: Question, position: int) -> list[Arrival]:
        """The last position of the lane, as its leader says; -1 if there is no such lane. For a lane that nobody here
        can check, answer ``frontier.LARGEST``."""
        decided: list[Arrival] = []
        name = name_of(question.lane)
        reader = self._asked(question)
        if reader is not None and position < question._seen:
            # Messages have gone that were there before.
            self._close(reader, decided)
        if position >= 0:
            if len(self._ends) > REMEMBERED:
                self._ends.clear()
            self._ends[name] = position
        affected = []
        for arrival in self._held:
            if arrival._number <= question._asked:
                beyond = [n for n, p in arrival.causes.items() if p > position and n.partition("#")[0] == name]
                for one in beyond:
                    self._drop(arrival, one)
            else:
                beyond = []
            if beyond or any(need.reader is None for need in arrival._needs):
                affected.append(arrival)
        self._again(affected, decided)
        return decided

    def _asked(self, question: Question) -> _Reader | None:
        """The reader of a question, unless it was closed since."""
        reader = question._home
        return None if reader is None or reader.closed or reader.opened != question._opened else reader

    def _drop(self, arrival: Arrival, name: str) -> None:
        """Remove an impossible cause."""
        arrival.dropped.append((name, arrival.causes.pop(name)))
        arrival._needs = [need for need in arrival._needs if need.name != name]

    def _again(self, arrivals: Iterable[Arrival], decided: list[Arrival]) -> None:
        """Look at arrivals again that lost a need, and forget where they waited."""
        again = dict.fromkeys(arrivals)
        for reader in self._readers.values():
            reader.beyond = [entry for entry in reader.beyond if entry[2] not in again]
            heapify(reader.beyond)
        for arrival in again:
            self._advance(arrival, decided)

    def _cut(self, decided: list[Arrival]) -> None:
        """Let nothing wait in a circle.

        If a message names a position, everything up to there in that lane is older; so any unfinished message may stand
        for its lane, and among true causes there is no circle. If there is one, a header in it is forged, or older than
        a lane that was made again. It is cut where a message waits for the one that is younger by most."""
        heads: dict[tuple[str, int], tuple[dict[str, int], float, Arrival | None]] = {}
        for reader in self._readers.values():
            lowest = reader.lowest(None)
            if reader.head is not None:
                heads[name_of(reader.lane), reader.head[0]] = reader.head[1], reader.head[2], None
            mine = None if lowest is None else reader.outstanding[lowest]
            if mine is not None and mine.verdict is Verdict.HELD:
                heads[name_of(reader.lane), mine.position] = mine.causes, mine.time, mine
        waits = {}
        for head, (causes, _, _) in heads.items():
            lanes = coarse(causes)
            waits[head] = {other for other in heads if other[1] <= lanes.get(other[0], -1)}
        again = []
        while waits:
            while ends := [one for one in waits if not waits[one] or not any(one in more for more in waits.values())]:
                for head in ends:
                    del waits[head]
                for more in waits.values():
                    more.difference_update(ends)
            edges = [(heads[b][1] - heads[a][1], a, b) for a, others in waits.items() for b in others]
            if edges:
                # Everybody finds the same edges. Whoever holds the message cuts.
                _, source, (lane, position) = max(edges)
                waits[source].discard((lane, position))
                arrival = heads[source][2]
                if arrival is not None:
                    again.append(arrival)
                    for name in [n for n, p in arrival.causes.items() if p >= position and n.partition("#")[0] == lane]:
                        self._drop(arrival, name)
        if again:
            self._again(again, decided)


def _covered(arrival: Arrival | None, question: Question) -> bool:
    return arrival is None or not arrival._unclear or arrival._number <= question._asked
