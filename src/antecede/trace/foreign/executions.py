"""Read several executions from logs with vector clocks. Each execution becomes a trace.

ShiViz keeps several executions in one log. A *delimiter* is a regular expression that matches the lines between two
executions. If the delimiter has a group ``trace``, the text of this group is the name of the next execution. Executions
without a name are numbered from 1. Executions with the same name in several files become one trace. A log may contain
its own pattern and delimiter: the pattern in its first line, the delimiter in its second line. Either of these two
lines may be blank.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice

from antecede import limits
from antecede.errors import TraceError, UsageError
from antecede.trace.foreign.files import ForeignFile
from antecede.trace.foreign.moments import ConvertedTrace
from antecede.trace.foreign.patterns import NEEDED, LoggedEvent, Pattern, compiled, preset
from antecede.trace.foreign.vectors import ClockedLog

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
    """Collects the events of logs with vector clocks, separately for each execution."""

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
