"""A mapping describes the records of a user's own log: which fields contain the process, the kind and the message.

A record is a JSON object, a row of a table, or a line of text split into named groups. For each column of the trace,
the mapping says where the record contains the value:

* a **path** such as ``event.msg.id``: keys joined by dots. In a list, the key of an item is its position. A key may
  itself contain dots.
* a **template** such as ``{topic}-{partition}-{offset}``: text with paths in braces, for ids made of several fields. If
  one of the fields is missing, the value is missing.

If sends and deliveries use different fields, the name of a column may begin with ``send.`` or ``deliver.``. Then the
path applies only to sends or only to deliveries (``deliver.process=dst``). If each process has its own log file, the
records need not name the process. Then a regular expression extracts the process name from the path of the file. The
groups of this expression become fields of all records of the file. Two regular expressions on the value of ``kind``
decide which records are sends and which are deliveries. A mapping can be saved as a TOML file. This module only
describes the mapping; other modules read the records and write the trace.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator
from collections.abc import Mapping as Entries
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from itertools import islice
from typing import Any, Final

import msgspec

from antecede import limits
from antecede.documents import read_text
from antecede.errors import TraceError, UsageError
from antecede.trace.schema import COLUMNS, INT64_MAX
from antecede.trace.sources import shown

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
    """A regular expression, with a name, that finds the events of a log.

    Patterns for log lines. A pattern is a regular expression with the named groups ``event``, ``host`` and ``clock``.

    ShiViz reads any log with such a pattern. A pattern may span several lines. It may have further named groups
    (``timestamp``, ``date``, …), and their texts are kept. The presets are built-in patterns for the formats of logging
    libraries (GoVector, JVector, TSViz, Akka). Each preset matches only from the beginning of a line, and takes time
    linear in the length of the line.

    **Choosing.** Every preset reads the beginning of a file. The preset with the fewest unreadable lines is chosen. If
    several presets have the same number, the preset whose first unreadable line comes latest is chosen. If several
    presets are still equal, the preset that finds the most events is chosen. Two formats may write the same two lines
    for each event, but in opposite order. Then the preset for the wrong format cannot read the first line of the file,
    and begins with the second line. So the two formats are distinguished, even if the end of the log is missing.

    A pattern given by a user may be in the syntax of JavaScript, as in ShiViz's own pages: ``(?<host>…)``. The user is
    responsible for the speed of this pattern.
    """

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
    groups: Entries[str, str | None] = found.groupdict()
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


UNITS: Final = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
"""The units in which a log may write a time as a number. The values are the lengths of the units in nanoseconds."""

_epoch = datetime(1970, 1, 1, tzinfo=UTC)
_number = re.compile(r"[+-]?[0-9]{1,30}(?:\.[0-9]{0,30})?")
_date = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9})\d*)?)?"
    r"\s*(?:(Z|z|UTC|GMT)|([+-])(\d\d):?(\d\d)?)?",
    re.ASCII,
)


def unit_of(number: int | Decimal) -> int:
    """Guess the unit of a time from the size of its number, so that the time is near the present. Return the length of
    the unit in nanoseconds."""
    size = number if number >= 0 else -number
    return next((unit for bound, unit in ((10**17, 1), (10**14, 1_000), (10**11, 10**6)) if size >= bound), 10**9)


def nanoseconds(value: Any, form: str = "auto") -> int | None:
    """Return a time in nanoseconds, or ``None`` if the value is not a time.

    ``form`` is ``auto``, one of :data:`UNITS`, or a format of ``strptime`` for dates in other forms.

    Convert the times in logs, which are numbers or dates, to nanoseconds since 1970.

    If a number has no unit, the unit is chosen so that the time is near the present. So 1,700,000,000 is in seconds,
    1,700,000,000,000 is in milliseconds, and so on. A date is in ISO 8601 or a similar form. It may have a space
    instead of the T, slashes instead of dashes, and a comma before the fraction. A date without an offset is in UTC.
    Digits beyond nanoseconds are dropped, and nothing is rounded.
    """
    if type(value) is str:
        text = value.strip()
        if form != "auto" and form not in UNITS:
            return _formatted(text, form)
        if not _number.fullmatch(text):
            return _written(text)
        value = text
    elif type(value) not in (int, float):
        return None
    try:
        number = value if type(value) is int else Decimal(str(value))
        if not isinstance(number, int) and not number.is_finite():
            return None
        return _bounded(int(number * UNITS.get(form, 0) or number * unit_of(number)))
    except (InvalidOperation, OverflowError, ValueError):
        return None


def _written(text: str) -> int | None:
    found = _date.fullmatch(text)
    if found is None:
        return None
    *parts, fraction, _, sign, hours, minutes = found.groups()
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0)) * (-1 if sign == "-" else 1)
    try:
        moment = datetime(*(int(part or 0) for part in parts), tzinfo=timezone(offset))  # type: ignore[misc,arg-type]
    except ValueError:
        return None
    return _bounded((moment - _epoch) // timedelta(seconds=1) * 10**9 + int((fraction or "0").ljust(9, "0")))


def _formatted(text: str, form: str) -> int | None:
    try:
        return since_1970(datetime.strptime(text, form))
    except ValueError:
        return None


def since_1970(moment: datetime) -> int | None:
    """Return a moment in nanoseconds since 1970. If the result does not fit into 64 bits, return ``None``. A moment
    without an offset is in UTC."""
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return _bounded((moment - _epoch) // timedelta(microseconds=1) * 1_000)


def _bounded(time: int) -> int | None:
    return time if abs(time) <= INT64_MAX else None


RECORDS: Final = ("json", "csv", "parquet", "text")
"""The formats that a file of records may have."""

OTHERS: Final = ("local", "skip")
"""The ways to treat a record that is neither a send nor a delivery: make it a local event, or skip it."""

_columns = ("process", "kind", "message", "to", "time")
_texts = ("domain", "instance", "operation", "parent", "type", "replays")
_such = {"process": "node", "message": "id"}
_never = tuple(name for name in COLUMNS if name not in _columns + _texts)
_prefixes = ("send.", "deliver.")
_next_name = re.compile(r",(?=\s*[A-Za-z_][\w.]*\s*=)", re.ASCII)
_braced = re.compile(r"\{([^{}]*)\}")


class Mapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A mapping as the user writes it, before any check."""

    format: str = "auto"
    """One of :data:`RECORDS`, or ``auto``."""
    pattern: list[str] | str = []
    """For lines of text: regular expressions with named groups. The first expression that matches a line splits this
    line into fields."""
    file_pattern: str | None = None
    """A regular expression that is applied to the path of each file. Its named groups become fields of all records of
    this file."""
    send: str | None = None
    deliver: str | None = None
    separator: str = ","
    """The text between two names in the column ``to``, the destinations of a message."""
    others: str = "local"
    index: str = "file"
    """The sort key of the events of one process: ``file`` (by files and lines), ``time``, or the path of a number in
    the record."""
    time: str = "auto"
    """The format of times: ``auto``, one of ``ns us ms s``, or a format of ``strptime``."""
    map: dict[str, str] = {}

    @property
    def patterns(self) -> list[str]:
        return [self.pattern] if isinstance(self.pattern, str) else self.pattern


def pairs_of(given: list[str]) -> dict[str, str]:
    """Return the pairs in texts such as ``NAME=PATH,NAME=PATH``. A path may contain commas: only a comma before the
    next ``NAME=`` ends the path."""
    pairs: dict[str, str] = {}
    for text in given:
        for pair in _next_name.split(text):
            name, equals, path = (part.strip() for part in pair.partition("="))
            if not equals or not name or not path:
                raise UsageError(f"--map: expected NAME=PATH, such as process=node, not {pair.strip()!r}")
            if name in pairs:
                raise UsageError(f"--map: {name} is given twice")
            pairs[name] = path
    return pairs


def read_mapping(path: str) -> Mapping:
    """Read a mapping file."""
    text = read_text(path, limits.mapping_bytes_max, TraceError)
    try:
        return msgspec.convert(tomllib.loads(text), Mapping)
    except (ValueError, msgspec.ValidationError, RecursionError) as error:
        raise TraceError(f"{shown(path)}: not a mapping: {error}") from None


def write_mapping(mapping: Mapping, path: str) -> None:
    """Write a mapping to a file, so that :func:`read_mapping` returns the same mapping."""
    plain = msgspec.to_builtins(mapping)
    table = plain.pop("map", {})
    lines = ["# A mapping for: antecede import LOG --mapping FILE"]
    lines += [f"{key} = {_toml(value)}" for key, value in plain.items()]
    if table:
        lines += ["", "[map]"]
    lines += [f"{_toml(name) if '.' in name else name} = {_toml(path)}" for name, path in table.items()]
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    except OSError as error:
        raise TraceError(f"{shown(path)}: cannot be written: {error.strerror}") from None


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    # A JSON text is also a TOML text, except for one character.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


class Value:
    """A path or a template that finds the value of one column in a record."""

    def __init__(self, name: str, text: str) -> None:
        self.text = text
        pieces = _braced.split(text)
        if any("{" in part or "}" in part for part in pieces[::2]):
            raise UsageError(f"--map: {name}={text}: a brace is missing: expected pairs such as {{topic}}")
        is_template = len(pieces) > 1
        self.paths = pieces[1::2] if is_template else [text]
        self._between = pieces[::2] if is_template else None
        if is_template and not all(self.paths):
            raise UsageError(f"--map: {name}={text}: nothing between the braces; expected the path of a field")

    def of(self, record: Any) -> Any:
        """Return the value of the column for a record. If the record lacks one of the needed fields, return
        ``None``."""
        if self._between is None:
            return field(record, self.text)
        found = [text_of(field(record, path)) for path in self.paths]
        if None in found:
            return None
        return self._between[0] + "".join(
            f"{value}{text}" for value, text in zip(found, self._between[1:], strict=True)
        )


def field(record: Any, path: str) -> Any:
    """Return the value at a path in a record. If there is no value at this path, or the value is null, return
    ``None``."""
    if isinstance(record, dict):
        if path in record:
            return record[path]
        at = path.find(".")
        while at >= 0:
            if path[:at] in record and (found := field(record[path[:at]], path[at + 1 :])) is not None:
                return found
            at = path.find(".", at + 1)
        return None
    if isinstance(record, list):
        head, _, rest = path.partition(".")
        if head.isascii() and head.isdigit() and len(head) < 10 and int(head) < len(record):
            return field(record[int(head)], rest) if rest else record[int(head)]
    return None


def text_of(value: Any) -> str | None:
    """Return a single value as text. A number becomes a text, because it may be an id. Return None for lists, objects,
    null and an empty text."""
    if type(value) is str:
        return value or None
    if type(value) is bool:
        return "true" if value else "false"
    return str(value) if type(value) in (int, float) else None


class Plan:
    """A mapping that was checked and is ready to be used."""

    def __init__(self, mapping: Mapping) -> None:
        self.mapping = mapping
        _one_of("--format", mapping.format, ("auto", *RECORDS))
        _one_of("--others", mapping.others, OTHERS)
        if not mapping.separator:
            raise UsageError("--separator: expected the text between the names in 'to', such as '+' or ';'")
        self.patterns = [_pattern("--pattern", text) for text in mapping.patterns]
        self.file = _pattern("--file-pattern", mapping.file_pattern) if mapping.file_pattern is not None else None
        searched = [*self.patterns, self.file] if self.file is not None else self.patterns
        groups = [name for pattern in searched for name in pattern.groupindex]
        if self.patterns and mapping.format not in ("auto", "text"):
            raise UsageError(f"--pattern is for lines of text, not for --format {mapping.format}")
        if mapping.time not in ("auto", *UNITS) and "%" not in mapping.time:
            raise UsageError(f"--time: expected auto, {', '.join(UNITS)} or a format such as %d.%m.%Y %H:%M:%S")
        # A group with the name of a column stands for that column.
        named = {name: name for name in groups if name in _columns + _texts} | mapping.map
        self.values = {kind: _values(named, kind) for kind in ("send.", "deliver.", "")}
        self._check(named)
        self.send = _pattern("--send", mapping.send)
        self.deliver = _pattern("--deliver", mapping.deliver)
        self.kind = Value("kind", named["kind"]) if "kind" in named else None
        self.index = None if mapping.index in ("file", "time") else Value("index", mapping.index)

    def _check(self, named: dict[str, str]) -> None:
        for name in named:
            plain = next((name[len(prefix) :] for prefix in _prefixes if name.startswith(prefix)), name)
            if plain in _never or "." in plain:
                known = ", ".join((*_columns, *_texts))
                raise UsageError(
                    f"--map: {name} cannot be mapped: expected one of {known}, or a new name without a dot, for an "
                    "extra column"
                )
        for column in ("process", "message"):
            if any(column not in self.values[kind] for kind in _prefixes):
                example = f", such as {column}={_such[column]}"
                if self.patterns:
                    example = f", or a group {column} in --pattern"
                elif not self.mapping.map:
                    example += "; for lines of text give --pattern"
                raise UsageError(
                    f"the mapping lacks column {column}: {_misspelled(column, named)}give --map {column}=PATH{example}"
                )
        if "kind" not in named and not self.patterns:
            raise UsageError(
                f"the mapping lacks column kind: {_misspelled('kind', named)}give --map kind=PATH "
                "with the field that --send and --deliver must match"
            )
        if self.mapping.index == "time" and any("time" not in self.values[kind] for kind in _prefixes):
            raise UsageError("--index time needs the time of each record: give --map time=PATH")
        for option, text in (("--send", self.mapping.send), ("--deliver", self.mapping.deliver)):
            if text is None:
                raise UsageError(
                    f"the mapping lacks {option}: give both --send and --deliver, regular expressions that match the "
                    "records of sends and of deliveries"
                )

    def paths(self) -> set[str]:
        """Return the paths of all fields that the mapping uses."""
        found = {path for values in self.values.values() for value in values.values() for path in value.paths}
        return found | set(self.kind.paths if self.kind else ()) | set(self.index.paths if self.index else ())

    def in_name(self, name: str) -> dict[str, str]:
        """Return the fields that ``--file-pattern`` extracts from the path of a file, for all records of this file."""
        if self.file is None:
            return {}
        found = self.file.search(name)
        if found is None:
            raise TraceError(f"{name}: --file-pattern does not match the path of this file: {self.file.pattern}")
        return {group: text for group, text in found.groupdict().items() if text is not None}

    def kind_of(self, kind_text: str) -> tuple[str, dict[str, str]]:
        """Find out whether a record is a send or a delivery. Return ``send.`` or ``deliver.``, and the named groups of
        the regular expression that matched ``kind_text``, with their texts. If neither expression matches, return an
        empty text and no groups. ``kind_text`` is the value of the mapped field ``kind``. If the mapping has no field
        for ``kind``, ``kind_text`` is the whole line of text."""
        for prefix, pattern in (("send.", self.send), ("deliver.", self.deliver)):
            # The value of a field must match as a whole; in a line of text, a match anywhere is enough.
            found = pattern.fullmatch(kind_text) if self.kind else pattern.search(kind_text)
            if found is not None:
                return prefix, {name: text for name, text in found.groupdict().items() if text is not None}
        return "", {}


def _misspelled(column: str, named: dict[str, str]) -> str:
    """Return a hint for the error message about a missing ``column``. The hint shows a name in the mapping that may be
    a misspelling of ``column``. If there is no such name, return an empty text."""
    own = [name for name in named if name not in _columns + _texts and not name.startswith(_prefixes)]
    found = get_close_matches(column, own, 1)
    return f"{found[0]} would be an extra column, did you mean {column}? If not, " if found else ""


def _values(named: dict[str, str], prefix: str) -> dict[str, Value]:
    common = {name: text for name, text in named.items() if not name.startswith(_prefixes)}
    own = {name[len(prefix) :]: text for name, text in named.items() if prefix and name.startswith(prefix)}
    return {name: Value(name, text) for name, text in (common | own).items() if name != "kind"}


def _one_of(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{option} must be one of {', '.join(known)}, not {value!r}")


def _pattern(option: str, text: str | None) -> re.Pattern[str]:
    return compiled(text or "", option, re.NOFLAG)
