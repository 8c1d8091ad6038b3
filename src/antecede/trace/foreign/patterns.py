"""Patterns for log lines. A pattern is a regular expression with the named groups ``event``, ``host`` and ``clock``.

ShiViz reads any log with such a pattern. A pattern may span several lines. It may have further named groups
(``timestamp``, ``date``, …), and their texts are kept. The presets are built-in patterns for the formats of logging
libraries (GoVector, JVector, TSViz, Akka). Each preset matches only from the beginning of a line, and takes time linear
in the length of the line.

**Choosing.** Every preset reads the beginning of a file. The preset with the fewest unreadable lines is chosen. If
several presets have the same number, the preset whose first unreadable line comes latest is chosen. If several presets
are still equal, the preset that finds the most events is chosen. Two formats may write the same two lines for each
event, but in opposite order. Then the preset for the wrong format cannot read the first line of the file, and begins
with the second line. So the two formats are distinguished, even if the end of the log is missing.

A pattern given by a user may be in the syntax of JavaScript, as in ShiViz's own pages: ``(?<host>…)``. The user is
responsible for the speed of this pattern.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

import msgspec

from antecede import limits
from antecede.errors import UsageError
from antecede.trace.schema import COLUMNS, INT64_MAX

_clock = r"(?P<clock>\{[^{}]*\})"

PRESETS: Final[dict[str, str]] = {
    "akka": rf"^\[(?P<level>[A-Z]+)\] \[(?P<date>[^\]]*)\] \[[^\]]*\] \[akka://[^/\]]*/user/(?P<host>[^\]]+)\] {_clock}"
    r"[ \t](?P<event>.*)$",
    "govector-time": rf"^(?P<timestamp>[0-9]+) (?P<host>\S+) {_clock}[ \t]*\n(?P<event>.*)$",
    "govector": rf"^(?P<host>\S+) {_clock}[ \t]*\n(?P<event>.*)$",
    "tsviz": rf"^(?P<timestamp>[0-9]+) (?P<event>.*)\n(?P<host>\S+) {_clock}[ \t]*$",
    "event-first": rf"^(?P<event>.*)\n(?P<host>\S+) {_clock}[ \t]*$",
    "one-line": rf"^(?P<host>\S+) {_clock}[ \t]+(?P<event>\S.*)$",
}
"""The presets (built-in patterns) by name. The more specific presets come first."""

GOVECTOR: Final = ("govector-time", "govector")
"""The names of the presets for the formats that the library GoVector itself writes."""

NEEDED: Final = ("event", "host", "clock")
"""The groups that a pattern must have."""

_clock_decoder = msgspec.json.Decoder(dict[str, int])


class LoggedEvent(msgspec.Struct, frozen=True, gc=False):
    """One event that a pattern found in a log."""

    line: int
    host: str
    clock: dict[str, int]
    event: str
    more: dict[str, str]

    def columns(self) -> dict[str, Any]:
        """Return a dictionary from column names to texts: the text of the event, and the text of each further group of
        the pattern. The column has the name of the group. If a trace already has a column with this name, ``_`` is
        added to the name."""
        return {"event": self.event} | {
            name + "_" if name in COLUMNS else name: text for name, text in self.more.items()
        }


class Pattern:
    """A regular expression, with a name, that finds the events of a log."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._compiled = compiled(text, "--pattern")
        missing = [group for group in NEEDED if group not in self._compiled.groupindex]
        if missing:
            raise UsageError(
                f"--pattern: no group named {missing[0]}: expected event, host and clock; for a log of sends and "
                "deliveries give --send and --deliver, too"
            )
        # The number of lines read together is the number of line ends in the pattern plus one.
        self._lines = 1 + text.count("\n") + len(re.findall(r"(?<!\\)(?:\\\\)*\\n", text))
        self._anchored = text.startswith("^")

    def read(self, lines: Iterable[tuple[int, bytes]]) -> Iterator[LoggedEvent | tuple[int, str]]:
        """Yield the events. For a line that is not part of an event, yield the number of the line and the error. Blank
        lines between events are ignored."""
        window: list[tuple[int, str]] = []
        source = iter(lines)
        while True:
            for number, line in islice(source, self._lines - len(window)):
                window.append((number, line.decode("utf-8", "backslashreplace")))
            if not window:
                return
            number, first = window[0]
            found = self._find(window, first)
            if found is None:
                if first.strip():
                    yield number, "no event: the pattern does not match"
                del window[0]
                continue
            yield _logged_event(number, found)
            del window[: found.string.count("\n", 0, found.end()) + 1]

    def _find(self, window: list[tuple[int, str]], first: str) -> re.Match[str] | None:
        text = "\n".join(line for _, line in window)
        if self._anchored:
            return self._compiled.match(text)
        found = self._compiled.search(text)
        return found if found is not None and found.start() <= len(first) else None


def compiled(text: str, option: str, flags: re.RegexFlag = re.MULTILINE) -> re.Pattern[str]:
    """Compile a regular expression in the syntax of Python or of JavaScript. ``option`` is the command-line option that
    an error message names."""
    try:
        # Both ways to name a group are in use: (?P<host>…) in Python, (?<host>…) elsewhere.
        return re.compile(re.sub(r"\(\?<(?=[A-Za-z_])", "(?P<", text), flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"{option}: not a regular expression: {error}") from None


def preset(name: str) -> Pattern:
    """Return the preset with this name."""
    return Pattern(name, PRESETS[name])


def choose(sample: list[tuple[int, bytes]], names: Iterable[str] = tuple(PRESETS)) -> Pattern | None:
    """Return the preset that reads the sample best, by the rules in the docstring of this module. Return ``None`` if no
    preset finds an event."""
    best: tuple[tuple[int, int, int], Pattern] | None = None
    for name in names:
        pattern = preset(name)
        found = list(pattern.read(sample))
        unread = [event[0] for event in found if not isinstance(event, LoggedEvent)]
        score = -len(unread), unread[0] if unread else 0, len(found) - len(unread)
        if score[2] and (best is None or score > best[0]):
            best = score, pattern
    return best[1] if best else None


def _logged_event(number: int, found: re.Match[str]) -> LoggedEvent | tuple[int, str]:
    groups: Mapping[str, str | None] = found.groupdict()
    host = groups["host"]
    if not host:
        return number, "no host"
    try:
        clock = _clock_decoder.decode(groups["clock"] or "")
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return number, f"the clock is not a map from host to number: {error}"
    if any(not 0 <= entry <= INT64_MAX for entry in clock.values()):
        return number, "the clock has an entry that is not an int64 from 0"
    if not clock.get(host):
        return number, f"the clock has no entry for its own host {host[:40]!r}"
    event = _short(groups["event"] or "")
    more = {name: _short(text) for name, text in groups.items() if text is not None and name not in NEEDED}
    return LoggedEvent(number, host, clock, event, more)


def _short(text: str) -> str:
    return text[: limits.raw_text_bytes_max]
