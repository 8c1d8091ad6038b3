"""Convert foreign data to a trace. Each process has a list of moments, and messages connect the moments.

A **moment** is one recorded event in one process: a logged event, the start of a span, a transaction. In the trace it
becomes one ``deliver`` row for each received message, then one ``send`` row for each sent message. A moment without
messages becomes one ``local`` row. The recorded data of the moment is on its *main* row. The main row is the last
delivery. If there is no delivery, it is the first send. If there is no message, it is the local row. In each moment,
all deliveries come before the main row or are the main row. Therefore, the recorded vector clock of the moment is right
for the main row: the clock includes everything that was received in the moment.

**Clocks.** A vector clock has one entry for each process. The *own entry* of a row is the entry for the row's process.
``verify`` tests clocks by one of two rules (:mod:`antecede.trace.clocks`). If the own entry is ``index`` + 1 on most
rows, ``verify`` uses the rule ``exact``: all entries must agree with the indices. Otherwise it uses the rule ``order``,
which tests only the order of the vectors. A correct trace can break the rule ``exact`` in three ways. A moment with a
clock may have several rows. An own entry may differ from ``index`` + 1. A vector may count events that were not logged.
``verify`` must not use ``exact`` for such a trace. Therefore, the import adds a local row at the beginning of each
process. This row increases all later indices by one. Then most own entries are not ``index`` + 1 any more, and
``verify`` uses ``order``.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, Protocol

import msgspec

from antecede.trace.matched import match, merged
from antecede.trace.quarantine import circular_deliveries
from antecede.trace.schema import DELIVER, LOCAL, SEND, Event

SEND_POSITION: Final = "send_position"
"""The reason for an assumed position: the time of a send is not recorded."""
TIED_START: Final = "tied_start"
"""The reason for an assumed position: the event has no time, or another event of its process has the same time."""


class Recorded(Protocol):
    """The recorded data of a moment (one recorded event in one process)."""

    def columns(self) -> dict[str, Any]:
        """Return the data for extra columns of the trace (columns that the schema does not name), by column name."""
        ...


class RecordedColumns(msgspec.Struct, frozen=True, gc=False):
    """Recorded data that is already in the form of columns."""

    recorded: dict[str, Any]

    def columns(self) -> dict[str, Any]:
        return self.recorded


class Moment(msgspec.Struct, gc=False):
    """One recorded event in a process, with the messages that it receives and sends."""

    recorded: Recorded
    time: int | None = None
    clock: dict[str, int] | None = None
    takes: Sequence[str] = ()
    """The ids of the messages that this event receives."""
    gives: Sequence[tuple[str, tuple[str, ...]]] = ()
    """The ids of the messages that this event sends, each with its destinations."""
    assumed: str | None = None
    """The reason why the position of this event in its process is assumed; ``None`` if the position is recorded."""

    @property
    def tied(self) -> bool:
        """True if this event sends or receives a message."""
        return bool(self.takes or self.gives)

    def take(self, message: str) -> None:
        """Add a message that this event receives."""
        # Most moments have no message, and there may be millions: a list only for those that need one.
        if isinstance(self.takes, list):
            self.takes.append(message)
        else:
            self.takes = [message]

    def give(self, message: str, to: str) -> None:
        """Add a message that this event sends. If the message is the same as in the previous call, add only its new
        destination."""
        if not isinstance(self.gives, list):
            self.gives = [(message, (to,))]
        elif self.gives[-1][0] == message:
            self.gives[-1] = message, (*self.gives[-1][1], to)
        else:
            self.gives.append((message, (to,)))


def mark_ties(line: Sequence[Moment]) -> None:
    """Find events that send or receive messages and have the same time. Their sequence is not recorded, so mark their
    positions as assumed. ``line`` has the events of one process, sorted by time."""
    for _, group in groupby((moment for moment in line if moment.tied), key=lambda moment: moment.time):
        tied = list(group)
        if len(tied) > 1:
            for moment in tied:
                moment.assumed = moment.assumed or TIED_START


class ConvertedTrace:
    """A trace made from foreign data: for each process, its moments (recorded events) in their order."""

    def __init__(self, lines: dict[str, list[Moment]]) -> None:
        self.lines = dict(sorted(lines.items()))
        self.opening = self._needs_opening()

    @property
    def messages(self) -> int:
        """The number of messages in the trace."""
        return sum(len(moment.gives) for line in self.lines.values() for moment in line)

    def assumed(self) -> dict[str, int]:
        """Return, for each reason, the number of rows whose position in their process is assumed (not recorded)."""
        found: Counter[str] = Counter()
        for line in self.lines.values():
            for moment in line:
                if moment.assumed:
                    found[moment.assumed] += len(moment.takes) + len(moment.gives)
        return {reason: count for reason, count in sorted(found.items()) if count}

    def events(self) -> Iterator[Event]:
        """Yield the rows of the trace, process by process."""
        for process, line in self.lines.items():
            index = 0
            if self.opening:
                yield Event(process, 0, LOCAL, extra={"event": "(the log begins)"})
                index = 1
            for moment in line:
                for event in _rows(process, index, moment):
                    yield event
                    index += 1

    def impossible(self) -> tuple[int, int]:
        """Count the impossible deliveries, and return two numbers. ``verify`` will set these deliveries aside (not
        judge them). The first number counts the deliveries that come before their send in the same process. The second
        number counts the other deliveries that happened before their own send: a chain of events and messages leads
        from the delivery to its send."""
        sent = self._sent()
        early: set[str] = set()
        for number, line in enumerate(self.lines.values()):
            for position, moment in enumerate(line):
                for message in moment.takes:
                    if sent[message][0] == number and sent[message][1] >= position:
                        early.add(message)
        if sum(1 for _ in self.in_causal_order(early)) == sum(map(len, self.lines.values())):
            return len(early), 0
        kept = (event for event in self.events() if event.kind != DELIVER or event.message not in early)
        return len(early), len(circular_deliveries(match(kept)))

    def in_causal_order(self, ignored: Collection[str] = ()) -> Iterator[tuple[str, Moment]]:
        """Yield each moment (event) with the name of its process. An event comes after the earlier events of its
        process. It also comes after the sends of the messages that it receives, except messages in ``ignored``. Events
        that would have to come before each other (a *cycle*) are left out, and also all events after a cycle."""
        sent = self._sent()
        names, lines = [*self.lines], [*self.lines.values()]

        def needs(line: int, position: int) -> Sequence[tuple[int, int]]:
            return [sent[message] for message in lines[line][position].takes if message not in ignored]

        for line, position in merged([*map(len, lines)], needs):
            yield names[line], lines[line][position]

    def _sent(self) -> dict[str, tuple[int, int]]:
        """Return where each message is sent: the number of the process, and the position of the event in the
        process."""
        return {
            message: (number, position)
            for number, line in enumerate(self.lines.values())
            for position, moment in enumerate(line)
            for message, _ in moment.gives
        }

    def _needs_opening(self) -> bool:
        clocked = equal = 0
        exact = True
        for process, line in self.lines.items():
            index = 0
            for moment in line:
                rows = len(moment.takes) + len(moment.gives) or 1
                if moment.clock is not None:
                    main = index + max(len(moment.takes) - 1, 0)
                    same = moment.clock.get(process) == main + 1
                    clocked += 1
                    equal += same
                    exact = exact and same and rows == 1 and self._all_logged(moment.clock)
                index += rows
        return 2 * equal > clocked and not exact

    def _all_logged(self, clock: dict[str, int]) -> bool:
        """Return whether the log has all events that a clock counts: no entry is larger than the number of logged
        events of its process."""
        return all(name in self.lines and count <= len(self.lines[name]) for name, count in clock.items())


def _rows(process: str, index: int, moment: Moment) -> Iterator[Event]:
    rows: list[tuple[str, str | None, tuple[str, ...] | None]] = [(DELIVER, message, None) for message in moment.takes]
    rows += [(SEND, message, to) for message, to in moment.gives]
    assumed = True if moment.assumed and moment.tied else None
    main = max(len(moment.takes) - 1, 0)
    for row, (kind, message, to) in enumerate(rows or [(LOCAL, None, None)]):
        clock, extra = (moment.clock, moment.recorded.columns()) if row == main else (None, None)
        yield Event(process, index + row, kind, message, to, moment.time, clock=clock, assumed=assumed, extra=extra)
