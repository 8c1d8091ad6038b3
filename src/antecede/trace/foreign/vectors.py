"""Logs with a vector clock on every event (ShiViz, GoVector): find the messages that the clocks prove.

V(e) is the vector clock of an event e. The *own entry* of an event is the entry for its own host. Let q be the host of
an event g. Event e *knows* g iff V(e)[q] is at least as large as the own entry of g. Event e *newly* knows g if e knows
g, but no earlier event of e's host knows g. In this case a message carried the knowledge to e's host, from q or from
another host. We add a message for each *cross edge* (an arrow in the pictures of ShiViz). A cross edge leads from f to
e, where f is the last event of q that e newly knows. The edge is left out if e also newly knows an event h of a third
host, and h knows f. Together, the edges and the order of the events at each host have exactly the same information as
the vectors. None of the edges can be derived from the other edges and this order. Clocks that are recomputed from the
edges must equal the recorded clocks. ``verify`` checks this.

An entry may name an event that was not logged, because some loggers skip events. Such an entry is counted, and is
treated as if it named the last event that was logged before the missing one.

Vector clocks alone cannot show a late delivery. A message that was overtaken adds nothing new when it arrives, so it
leaves no edge. In a log with wrong clocks, a delivery may nevertheless seem late. Then the clock of an event has a
smaller entry than the clock of an event in its past. The rows of such events are marked ``assumed``, so it stays
undecided whether the delivery was late. The text of each event is kept for the user.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import Final

from antecede import limits
from antecede.errors import TraceError, UsageError
from antecede.trace.clocks import raise_to
from antecede.trace.foreign.mapping import NEEDED, LoggedEvent, Pattern, compiled, preset
from antecede.trace.foreign.moments import ConvertedTrace, Moment
from antecede.trace.foreign.records import ForeignFile
from antecede.trace.schema import INT64_MAX

CONTRADICTING_CLOCK: Final = "contradicting_clock"


class ClockedLog:
    """Collects logged events and finds the messages between them."""

    def __init__(self) -> None:
        self._hosts: dict[str, dict[int, LoggedEvent]] = {}
        self.events = 0
        self.unlogged = 0
        """The number of clock entries that refer to an event that was not logged."""

    def add(self, event: LoggedEvent) -> bool:
        """Add one event and return True. If its host already has an event with the same value in the host's own clock
        entry, add nothing and return False."""
        own = self._hosts.setdefault(event.host, {})
        new = own.setdefault(event.clock[event.host], event) is event
        self.events += new
        return new

    def convert(self) -> ConvertedTrace:
        """Return one trace, made from all events that were added."""
        owns = {host: sorted(events) for host, events in self._hosts.items()}
        lines = {host: [_moment(self._hosts[host][own]) for own in own_entries] for host, own_entries in owns.items()}
        for host in sorted(lines):
            known: dict[str, int] = {}
            for moment in lines[host]:
                new = self._newly_known(host, moment, known, owns)
                known.update(new)
                for other, count in sorted(new.items()):
                    last = owns[other][count - 1]
                    thirds = (lines[third][position - 1] for third, position in new.items() if third != other)
                    if not any((third.clock or {}).get(other, 0) >= last for third in thirds):
                        message = f"{other}:{last}->{host}"
                        lines[other][count - 1].give(message, host)
                        moment.take(message)
        converted = ConvertedTrace(lines)
        _mark_contradictions(converted)
        return converted

    def _newly_known(
        self, host: str, moment: Moment, known: dict[str, int], owns: dict[str, list[int]]
    ) -> dict[str, int]:
        """Count the logged events of each other host that ``moment`` (an event of ``host``) knows. Return only the
        counts that increased: ``known`` has the counts before ``moment``. ``owns``: for each host, the entries for this
        host in the clocks of its events."""
        new = {}
        assert moment.clock is not None
        for other, entry in moment.clock.items():
            if other == host or not entry:
                continue
            logged = owns.get(other, [])
            count = bisect_right(logged, entry)
            if not count or logged[count - 1] != entry:
                self.unlogged += 1
            if count > known.get(other, 0):
                new[other] = count
        return new


def _mark_contradictions(converted: ConvertedTrace) -> None:
    """Mark each event whose clock contradicts the clock of an event in its past: some entry became smaller. Also mark
    all events that are on a *cycle* (events that would have to come before each other) or come after a cycle.

    These marks make every late delivery undecided. Suppose that the delivery of m at host h is late. Then an earlier
    delivery d at h brought send(m) into h's past. The clock of h at d did not include send(m). Otherwise m would have
    brought nothing new to h, and there would be no message m. So d is marked, and the late delivery of m is undecided.
    """
    floors: dict[str, dict[str, int]] = {host: {} for host in converted.lines}
    carried: dict[str, dict[str, int]] = {}
    # Moments on a cycle, or that follow from one, contradict themselves and are not walked.
    for line in converted.lines.values():
        for moment in line:
            moment.assumed = CONTRADICTING_CLOCK
    for host, moment in converted.in_causal_order():
        moment.assumed = None
        floor = floors[host]
        for message in moment.takes:
            raise_to(floor, carried[message])
        clock = moment.clock or {}
        if any(clock.get(name, 0) < entry for name, entry in floor.items()):
            moment.assumed = CONTRADICTING_CLOCK
        raise_to(floor, clock)
        if moment.gives:
            known = dict(floor)
            carried.update((message, known) for message, _ in moment.gives)


def _moment(event: LoggedEvent) -> Moment:
    stamp = event.more.get("timestamp", "")
    # The format of TSViz and GoVector: nanoseconds by the clock of the host.
    time = int(stamp) if stamp.isascii() and stamp.isdigit() and len(stamp) <= 19 else None
    return Moment(event, time if time is None or time <= INT64_MAX else None, event.clock)


Line = tuple[int, bytes]


class Delimiter:
    """A regular expression that matches the lines between two executions."""

    def __init__(self, text: str) -> None:
        self._compiled = compiled(text, "--delimiter")
        self._named = "trace" in self._compiled.groupindex

    def parted(self, lines: Iterable[Line]) -> Iterator[tuple[str | None, Iterator[Line]]]:
        """Yield the name of each execution (``None`` if it has no name) and its lines. Read all lines of an execution
        before you request the next execution."""
        place: tuple[int, str | None] = 0, None

        def execution(line: Line) -> tuple[int, str | None] | None:
            nonlocal place
            found = self._compiled.search(line[1].decode("utf-8", "backslashreplace"))
            if found is None:
                return place
            name = (found["trace"] or "").strip() if self._named else ""
            place = place[0] + 1, name[: limits.raw_text_bytes_max] or None
            return None

        for key, part in groupby(lines, execution):
            if key is not None:
                yield key[1], part


class Header:
    """The pattern and the delimiter in the first lines of a log."""

    def __init__(self, pattern: Pattern, delimiter: Delimiter | None, lines: int) -> None:
        self.pattern, self.delimiter, self.lines = pattern, delimiter, lines


def header_of(file: ForeignFile) -> Header | None:
    """Return the header of a log; ``None`` if the log has no header."""
    first, _, rest = file.head.partition(b"\n")
    text = first.strip().decode("utf-8", "backslashreplace")
    if not text and (rest.startswith(b"^") or b"(?<trace>" in rest.partition(b"\n")[0]):
        # Only a delimiter: the events have ShiViz's default format.
        pattern = preset("event-first")
    elif not all(f"<{group}>" in text for group in NEEDED):
        return None
    else:
        pattern = _pattern(text, file)
    following = [(number, line.rstrip(b"\r")) for number, line in enumerate(rest.split(b"\n", 20)[:20], 2)]
    begins = next(iter(pattern.read(following)), None)
    if isinstance(begins, LoggedEvent) and begins.line == 2:
        # A log without a line for the delimiter.
        return Header(pattern, None, 1)
    second = following[0][1].strip().decode("utf-8", "backslashreplace") if following else ""
    try:
        return Header(pattern, Delimiter(second) if second else None, 2)
    except UsageError as error:
        raise TraceError(f"{file.name}:2: {str(error).removeprefix('--delimiter: ')}") from None


def _pattern(text: str, file: ForeignFile) -> Pattern:
    try:
        return Pattern("in the first line", text)
    except UsageError as error:
        raise TraceError(f"{file.name}:1: {str(error).removeprefix('--pattern: ')}") from None


class Logs:
    """Collects the events of logs with vector clocks, separately for each execution.

    ShiViz keeps several executions in one log. A *delimiter* is a regular expression that matches the lines between two
    executions. If the delimiter has a group ``trace``, the text of this group is the name of the next execution.
    Executions without a name are numbered from 1. Executions with the same name in several files become one trace. A
    log may contain its own pattern and delimiter: the pattern in its first line, the delimiter in its second line.
    Either of these two lines may be blank.
    """

    def __init__(self) -> None:
        self._executions: dict[str, ClockedLog] = {}
        self.events = 0
        self._entries = 0

    @property
    def unlogged(self) -> int:
        """The number of clock entries that refer to an event that was not logged."""
        return sum(log.unlogged for log in self._executions.values())

    def read(self, file: ForeignFile, pattern: Pattern, delimiter: Delimiter | None, header: int) -> None:
        """Read one log, except its header: the first ``header`` lines are skipped."""
        lines = islice(file.lines(), header, None)
        parts = iter([(None, lines)]) if delimiter is None else delimiter.parted(lines)
        used: set[str] = set()
        for name, part in parts:
            log: ClockedLog | None = None
            for event in pattern.read(part):
                if not isinstance(event, LoggedEvent):
                    file.unreadable(*event)
                    continue
                if log is None:
                    log = self._executions.setdefault(_unused(name, used), ClockedLog())
                self._entries += len(event.clock)
                if not log.add(event):
                    file.unreadable(event.line, f"{event.host[:40]!r} already has an event {event.clock[event.host]}")
                    continue
                self.events += 1
                if self.events > limits.foreign_events_max or self._entries > limits.foreign_clock_entries_max:
                    raise TraceError(
                        f"{file.name}:{event.line}: more events or clock entries than one import holds: split the file"
                    )

    def choose(self, name: str) -> None:
        """Keep only the execution with this name."""
        if name not in self._executions:
            names = list(self._executions)
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            raise UsageError(f"--execution {name}: no such execution; the logs have {', '.join(names[:8])}{more}")
        self._executions = {name: self._executions[name]}
        self.events = self._executions[name].events

    def convert(self) -> dict[str, ConvertedTrace]:
        """Return the traces of the logs, by execution."""
        return {name: log.convert() for name, log in self._executions.items()}


def _unused(name: str | None, used: set[str]) -> str:
    """Return a name for the next execution of a file, and add the name to ``used``. It differs from all names that
    were already in ``used``."""
    found = name or str(len(used) + 1)
    again = 2
    while found in used:
        found, again = f"{name or len(used) + 1} ({again})", again + 1
    used.add(found)
    return found
