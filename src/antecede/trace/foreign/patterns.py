"""How a log line says who did what, knowing what: patterns with the groups ``event``, ``host`` and ``clock``.

ShiViz reads any log by a regular expression with these three named groups; a pattern may span several lines, and may
name more groups (``timestamp``, ``date``, …), which are kept. The presets are the shapes that logging libraries write
(GoVector, JVector, TSViz, Akka). Each is anchored and takes time linear in the line, whatever the line.

**Choosing.** Every preset reads the beginning of a file; the one that leaves the fewest lines unexplained is taken, of
several the one that goes wrong last, of those the earlier in the table. A log of two lines an event, read one line off,
leaves its first line unexplained, so even the two mirror images are told apart, also in a log that lost its end.

A pattern given by a person may be in the syntax of JavaScript, as in ShiViz's own pages: ``(?<host>…)``. How long it
takes on a line is up to its author.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
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
"""By name, the more particular first."""

GOVECTOR: Final = ("govector-time", "govector")
"""What GoVector itself writes."""

NEEDED: Final = ("event", "host", "clock")
"""The groups that a pattern must have."""

_clock_decoder = msgspec.json.Decoder(dict[str, int])


class Said(msgspec.Struct, frozen=True, gc=False):
    """What a log says of one event."""

    line: int
    host: str
    clock: dict[str, int]
    event: str
    more: dict[str, str]

    def columns(self) -> dict[str, Any]:
        """The text of the event and the further groups; one that is named like a column of ours gets a mark."""
        return {"event": self.event} | {
            name + "_" if name in COLUMNS else name: text for name, text in self.more.items()
        }


class Pattern:
    """A way to read a log."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._compiled = compiled(text, "--pattern")
        missing = [group for group in NEEDED if group not in self._compiled.groupindex]
        if missing:
            raise UsageError(f"--pattern: no group named {missing[0]}: expected event, host and clock")
        # As many lines are looked at together as the pattern names line ends.
        self._lines = 1 + text.count("\n") + len(re.findall(r"(?<!\\)(?:\\\\)*\\n", text))
        self._anchored = text.startswith("^")

    def read(self, lines: Iterable[tuple[int, bytes]]) -> Iterator[Said | tuple[int, str]]:
        """Events, or the number of a line that is none with what is wrong with it. Blank lines between are nothing."""
        window: list[tuple[int, str]] = []
        source = iter(lines)
        while True:
            while len(window) < self._lines:
                line = next(source, None)
                if line is None:
                    break
                window.append((line[0], line[1].decode("utf-8", "backslashreplace")))
            if not window:
                return
            number, first = window[0]
            found = self._find(window, first)
            if found is None:
                if first.strip():
                    yield number, "no event: the pattern does not match"
                del window[0]
                continue
            yield _said(number, found)
            del window[: found.string.count("\n", 0, found.end()) + 1]

    def _find(self, window: list[tuple[int, str]], first: str) -> re.Match[str] | None:
        text = "\n".join(line for _, line in window)
        if self._anchored:
            return self._compiled.match(text)
        found = self._compiled.search(text)
        return found if found is not None and found.start() <= len(first) else None


def compiled(text: str, option: str) -> re.Pattern[str]:
    """A regular expression in the syntax of Python or of JavaScript; ``option`` names it in the error."""
    try:
        return re.compile(re.sub(r"\(\?<(?=[A-Za-z_])", "(?P<", text), re.MULTILINE)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"{option}: not a regular expression: {error}") from None


def preset(name: str) -> Pattern:
    """The preset of that name."""
    return Pattern(name, PRESETS[name])


def choose(sample: list[tuple[int, bytes]], names: Iterable[str] = tuple(PRESETS)) -> Pattern | None:
    """The preset that explains the most of these lines, or ``None`` if none finds an event."""
    best: tuple[tuple[int, int, int], Pattern] | None = None
    for name in names:
        pattern = preset(name)
        events = 0
        unread = []
        for said in pattern.read(sample):
            if isinstance(said, Said):
                events += 1
            else:
                unread.append(said[0])
        merit = -len(unread), unread[0] if unread else 0, events
        if events and (best is None or merit > best[0]):
            best = merit, pattern
    return best[1] if best else None


def _said(number: int, found: re.Match[str]) -> Said | tuple[int, str]:
    groups: Mapping[str, str | None] = found.groupdict()
    host = groups["host"]
    if not host:
        return number, "no host"
    try:
        clock = _clock_decoder.decode(groups["clock"] or "")
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return number, f"the clock is no map from host to number: {error}"
    if any(not 0 <= entry <= INT64_MAX for entry in clock.values()):
        return number, "the clock has an entry that is no int64 from 0"
    if not clock.get(host):
        return number, f"the clock has no entry for its own host {host[:40]!r}"
    event = _short(groups["event"] or "")
    more = {name: _short(text) for name, text in groups.items() if text is not None and name not in NEEDED}
    return Said(number, host, clock, event, more)


def _short(text: str) -> str:
    return text[: limits.raw_text_bytes_max]
