"""A trace as a viewer shows it: all events in one possible sequence, their times, and the late deliveries.

The sequence keeps the order of events in every process and puts each delivery after its send. Among the events that can
come next, the event with the earliest recorded time comes first. Without recorded times, deliveries come first, then
the other events by their positions in their processes.

Times are *recorded* or *logical*. Logical times are one millisecond apart along the sequence, so they never contradict
the sequence. Logical times are used if the caller requests them, or if any row has no recorded time. Recorded times
come from different clocks. If they contradict the sequence, an arrow points back in time. Within a process, times
always rise. If the recorded time of an event is not later than the time at which the previous event is shown, the event
is shown one nanosecond after the previous event.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec

from antecede.trace.matched import Matched, merged
from antecede.trace.schema import ARRIVE, DELIVER, SEND, Event
from antecede.trace.verdicts import Late

_epoch = 946_684_800_000_000_000
"""The first logical time: the beginning of the year 2000, in nanoseconds since 1970."""

_step = 1_000_000
_longest = 500_000
_text_chars_max = 80


class Placed(msgspec.Struct, frozen=True):
    """An event of the sequence, with the time that a viewer shows for it."""

    process: int
    position: int
    """The position of the event in the sequence of its process, from 0."""
    event: Event
    time: int
    """The recorded or logical time, in nanoseconds."""


class View:
    """One trace, prepared for the tool that will show it."""

    def __init__(self, trace: Matched, late: Sequence[Late], aside: Mapping[str, int], logical: bool = False) -> None:
        self.trace = trace
        self.late = {(one.message, one.to): one for one in late}
        """Late deliveries by message and receiver."""
        self.aside = dict(aside)
        """The number of rows that were set aside, by reason."""
        self.recorded = not logical and all(event.time is not None for line in trace.lines for event in line)
        """Whether the view uses the recorded times, not logical times."""

    @property
    def events(self) -> int:
        """The number of events."""
        return sum(map(len, self.trace.lines))

    @cached_property
    def sequence(self) -> list[Placed]:
        """All events in one possible sequence."""
        lines, origins = self.trace.lines, self.trace.origins
        found: list[Placed] = []
        last = [-1] * len(lines)
        lengths = [*map(len, lines)]
        for process, position in merged(lengths, lambda at, to: filter(None, [origins[at][to]]), self._rank):
            event = lines[process][position]
            time = _epoch + len(found) * _step if not self.recorded else event.time or 0
            last[process] = max(time, last[process] + 1)
            found.append(Placed(process, position, event, last[process]))
        assert len(found) == self.events, "an event comes before itself"
        return found

    @cached_property
    def slices(self) -> dict[tuple[int, int], tuple[int, int]]:
        """For each event, the time and the duration that a viewer shows, in nanoseconds. The keys are process and
        position. The duration is half of the time until the next event of the process, but at least 1 nanosecond and
        at most half a millisecond."""
        times = {(one.process, one.position): one.time for one in self.sequence}
        ends = {place: times.get((place[0], place[1] + 1), time + 2 * _longest) for place, time in times.items()}
        return {place: (time, max(1, min(_longest, (ends[place] - time) // 2))) for place, time in times.items()}

    def _rank(self, process: int, position: int) -> int:
        event = self.trace.lines[process][position]
        if self.recorded:
            return event.time or 0
        return -1 if event.kind == DELIVER else position

    def backwards(self) -> int:
        """Return how many deliveries have an earlier recorded time than their send. Such times occur because the clocks
        of processes differ. If the view uses logical times, return 0."""
        if not self.recorded:
            return 0
        lines = self.trace.lines
        pairs = (
            (event.time or 0, lines[origin[0]][origin[1]].time or 0)
            for line, origins in zip(lines, self.trace.origins, strict=True)
            for event, origin in zip(line, origins, strict=True)
            if origin is not None
        )
        return sum(delivered < sent for delivered, sent in pairs)

    def is_late(self, event: Event) -> Late | None:
        """Return the verdict on a late delivery. For all other events return ``None``."""
        return self.late.get((event.message or "", event.process)) if event.kind == DELIVER else None


def label_of(event: Event) -> str:
    """Return the label of a row: a text for human readers. It is empty if the row has no label."""
    label = getattr(event, "label", None) or (event.extra or {}).get("label")
    return one_line(label) if isinstance(label, str) else ""


def one_line(text: str) -> str:
    """Return the text as one line of at most 80 characters. A space replaces each character that is not printable."""
    plain = "".join(char if char.isprintable() else " " for char in text)
    return plain if len(plain) <= _text_chars_max else plain[: _text_chars_max - 1] + "…"


def described(event: Event, late: Late | None = None) -> str:
    """Return an event in words: ``send x to bob``, ``deliver x (late, after z)``."""
    if event.kind not in (SEND, ARRIVE, DELIVER):
        return one_line(label_of(event) or event.kind)
    text = f"{event.kind} {one_line(event.message or '')}"
    if event.kind == SEND and event.to:
        text += f" to {one_line(', '.join(event.to))}"
    if label := label_of(event):
        text += f': "{label}"'
    return f"{text} (late, after {one_line(late.overtaken_by)})" if late is not None else text
