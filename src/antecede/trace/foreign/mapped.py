"""``import --map``: make a trace from any log whose records name processes and messages.

A mapping says where these names are in the records. The send and the delivery of a message must have the same message
id. The ids show which delivery belongs to which send. So, unlike clocks and spans, such a log can *prove* that a
delivery was late. Each record becomes at most one event:

* A record becomes a **send** or a **delivery** if its kind matches ``--send`` or ``--deliver``, and if it names a
  process and a message. If only the message is missing, the record becomes a local event and is counted.
* A record becomes a **local** event if it names a process and its kind matches neither of these options.
* A record does not become an event if no pattern matches its line, or if it names no process. The same is true if it
  lacks the time or number that decides its position, or if ``--others skip`` leaves it out. Such records are counted by
  reason. For the first few of them, the file and line are kept.

**Index.** The events of a process are sorted by files and lines (``file``), by times (``time``), or by a number. Events
with equal times or numbers are in the order of the files and their lines, and are counted. If all of these events are
in one sorted file, this order is certain. Otherwise it is *assumed*. A file is sorted if its lines are in the order of
the requested time or number. (An unsorted file may have been exported with the newest line first.)

This module only reads the records and reports about them. The command ``verify`` judges the deliveries.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice, pairwise
from typing import Any

import msgspec

from antecede import __version__, limits
from antecede.errors import TraceError
from antecede.trace.files import write_trace
from antecede.trace.foreign.mapping import Mapping, Plan, Value, field, nanoseconds, text_of
from antecede.trace.foreign.records import ForeignFile, Guard, Record, Unreadable, files_of, form_of, opened, records_of
from antecede.trace.schema import DELIVER, LOCAL, SEND, Event, Metadata

_ends_shown_max = 5
_names_max = 10
_separators = ("+", ";", "|", "/", "&", " ")


class Row(msgspec.Struct, gc=False):
    """An event of an imported log, before its index in the trace is known."""

    process: str
    place: int
    """The sort key of the event among the events of its process."""
    file: str
    line: int
    kind: str
    message: str | None
    to: tuple[str, ...] | None
    time: int | None
    texts: dict[str, str] | None
    extra: dict[str, Any] | None
    assumed: bool = False
    """True if other events have the same ``place``, and the order of these events is not known."""

    @property
    def source(self) -> str:
        """The position of the event in the log: its file and line."""
        return f"{self.file}:{self.line}"


class Ends:
    """Compare the sends and the deliveries of an imported log, and find the deliveries that ``verify`` cannot check.

    ``verify`` sets a delivery aside (does not judge it) in two cases: its message has no send, or the send names only
    other destinations. With a new mapping, the usual reason is a mistake. For example, a file is missing, or the names
    in ``to`` are not the names of processes. Or the mapping expects the wrong character between these names. So the
    import counts such deliveries and shows the first few.

    This module knows events with their ids and processes. It does not know the records from which the events were made.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._sends: dict[str, Row] = {}
        self._deliveries: list[Row] = []
        self._sent_again: set[str] = set()
        for row in rows:
            if row.kind == DELIVER:
                self._deliveries.append(row)
            elif row.kind == SEND and row.message is not None and self._sends.setdefault(row.message, row) is not row:
                self._sent_again.add(row.message)
        self._receivers = {row.process for row in self._deliveries}

    def report(self) -> dict[str, Any]:
        """Return the part of the report that says how many deliveries have a send, and which sends and deliveries do
        not fit together."""
        orphans = [row for row in self._deliveries if row.message not in self._sends]
        not_addressed = [row for row in self._deliveries if self._is_not_addressed(row)]
        # Destinations at which nothing is delivered, with the number of sends that name them.
        named = (name for send in self._sends.values() for name in send.to or ())
        unknown = Counter(name for name in named if name not in self._receivers)
        return {
            "matched": len(self._deliveries) - len(orphans),
            "sent_again": len(self._sent_again),
            "orphans": len(orphans),
            "orphans_first": [
                f"{row.source}: {row.process} delivers {row.message}" for row in orphans[:_ends_shown_max]
            ],
            "not_addressed": len(not_addressed),
            "not_addressed_first": [self._described(row) for row in not_addressed[:_ends_shown_max]],
            "unknown_to": dict(unknown.most_common(_names_max)),
            "separator": self._separator(unknown),
        }

    def _is_not_addressed(self, row: Row) -> bool:
        """Return ``True`` if a message was delivered at a process that is not one of the destinations in its send.
        Return ``False`` if the message has no send or several sends, or if the destinations are unknown."""
        send = self._sends.get(row.message or "")
        if send is None or send.to is None or row.message in self._sent_again:
            return False
        return row.process not in send.to

    def _described(self, row: Row) -> str:
        send = self._sends[row.message or ""]
        named = ", ".join((send.to or ())[:_ends_shown_max]) or "nobody"
        return f"{row.source}: {row.process} delivers {row.message}, which was sent to {named} ({send.source})"

    def _separator(self, unknown: Counter[str]) -> str | None:
        """Return the character that joins several process names in one destination of ``unknown``, such as ``+`` in
        ``p1+p2``. If there is no such destination, return ``None``. ``unknown``: the destinations at which no message
        is delivered."""
        for mark in _separators:
            if any(mark in name and self._receivers.issuperset(map(str.strip, name.split(mark))) for name in unknown):
                return mark
        return None


_kinds = {"send.": SEND, "deliver.": DELIVER, "": LOCAL}
_shown_max = 5
_previewed = 20
_previewed_alike = 2
_fields_shown = 20
_looked_at = 100
_kinds_shown = 10
_chars_shown = 120


class Skipped:
    """Counts, by reason, the records that did not become events. Also counts the records with a missing or wrong
    value."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, list[str]] = {}

    def add(self, reason: str, where: str, detail: str = "") -> None:
        """Count one record. For each reason, keep the positions (``where``) of the first few records."""
        self.counts[reason] += 1
        places = self.first.setdefault(reason, [])
        if len(places) < _shown_max:
            places.append(f"{where}: {detail}" if detail else where)


class Mapped:
    """Collects the events of all records of one import."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.lines: dict[str, list[Row]] = {}
        self.skipped = Skipped()
        self.kinds: dict[str, Counter[str]] = {SEND: Counter(), DELIVER: Counter(), LOCAL: Counter()}
        """The values of the mapped field ``kind`` and how often each value occurs, separately for sends, deliveries and
        local records. Records that are skipped are counted, too, except lines that no pattern matches. The number of
        different values is limited."""
        self.records = self.events = 0
        self.preview: list[dict[str, Any]] = []
        """The first few events of each kind at each process, to be shown to the user."""
        self._previewed: Counter[tuple[str, str]] = Counter()
        self.fields: dict[str, None] = {}
        """The paths of the fields in the first records, to be shown to the user."""

    def read(self, file: ForeignFile, form: str, guard: Guard, most: int | None = None) -> None:
        """Read the records of one file. If ``most`` is given, read at most this number of records."""
        with guard.on(file.name, 0):
            named = self.plan.in_name(file.name)
        for record in islice(records_of(file, form, self.plan, guard), most):
            self.records += 1
            where = f"{file.name}:{record.number}"
            if record.fields is None:
                self.skipped.add("no_match", where, record.text[:_chars_shown])
                continue
            fields = named | record.fields if named else record.fields
            if self.records <= _looked_at:
                self.fields.update(dict.fromkeys(islice(_paths(fields), _fields_shown)))
            self._take(record, fields, where, file.name, guard)

    def _take(self, record: Record, fields: dict[str, Any], where: str, file: str, guard: Guard) -> None:
        kind_text = text_of(self.plan.kind.of(fields)) or "" if self.plan.kind else record.text
        with guard.on(file, record.number):
            found, groups = self.plan.kind_of(kind_text)
        fields = fields | groups if groups else fields
        kind, values = _kinds[found], self.plan.values[found]
        self._count_kind(kind, kind_text)
        process = text_of(values["process"].of(fields)) if "process" in values else None
        if kind == LOCAL and self.plan.mapping.others == "skip":
            self.skipped.add("others", where, kind_text[:_chars_shown])
            return
        if process is None:
            self.skipped.add("no_process", where, _why_missing("process", values, fields))
            return
        at = nanoseconds(values["time"].of(fields), self.plan.mapping.time) if "time" in values else None
        if "time" in values and at is None and values["time"].of(fields) is not None:
            self.skipped.add("bad_time", where, f"{values['time'].of(fields)!r:.{_chars_shown}} is not a time")
        place = self._place(fields, at)
        if place is None:
            self.skipped.add("no_index", where, self._unplaced(values, fields))
            return
        message = text_of(values["message"].of(fields)) if kind != LOCAL else None
        if kind != LOCAL and message is None:
            self.skipped.add("no_message", where, _why_missing("message", values, fields))
            kind = LOCAL
        to = None
        if kind == SEND and "to" in values:
            to = _destinations(values["to"].of(fields), self.plan.mapping.separator)
            if to is None:
                self.skipped.add("no_to", where, _why_missing("to", values, fields))
        texts, extra = self._more(fields, found)
        self._add(Row(process, place, file, record.number, kind, message, to, at, texts, extra))

    def _count_kind(self, kind: str, kind_text: str) -> None:
        counts, kind_text = self.kinds[kind], kind_text[:_chars_shown]
        if self.plan.kind and (kind_text in counts or len(counts) < limits.mapped_kinds_max):
            counts[kind_text] += 1

    def _place(self, fields: dict[str, Any], at: int | None) -> int | None:
        if self.plan.index is not None:
            number = self.plan.index.of(fields)
            if type(number) is str and number.strip().lstrip("-").isdecimal() and len(number) < 30:
                number = int(number)
            return number if type(number) is int else None
        return at if self.plan.mapping.index == "time" else self.events

    def _unplaced(self, values: dict[str, Value], fields: dict[str, Any]) -> str:
        """Return the reason why a record cannot be sorted among the events of its process."""
        if self.plan.index is not None:
            return f"--index: {_why_missing('number', {'number': self.plan.index}, fields)}"
        if values["time"].of(fields) is None:
            return f"--index time: {_why_missing('time', values, fields)}"
        return f"--index time: the value of {values['time'].text} is not a time; give --time FORM"

    def _more(self, fields: dict[str, Any], found: str) -> tuple[dict[str, str] | None, dict[str, Any] | None]:
        """Return two dictionaries for a record. The first has the values of optional text columns of the schema, such
        as ``operation``. The second has the values of the extra columns that the user named. Return ``None`` instead of
        an empty dictionary."""
        texts: dict[str, str] = {}
        extra: dict[str, Any] = {}
        for name, value in self.plan.values[found].items():
            if name in ("process", "message", "to", "time"):
                continue
            content = value.of(fields)
            if content is None:
                continue
            if name not in Event.__struct_fields__:
                extra[name] = content
            elif (text := text_of(content)) is not None:
                texts[name] = text
        return texts or None, extra or None

    def _add(self, row: Row) -> None:
        if self.events == limits.foreign_events_max:
            raise TraceError(
                f"{row.source}: one import holds at most {limits.foreign_events_max:,} events: import a part of the log"
            )
        self.events += 1
        self.lines.setdefault(row.process, []).append(row)
        if len(self.preview) < _previewed and self._previewed[row.process, row.kind] < _previewed_alike:
            self._previewed[row.process, row.kind] += 1
            shown = {"at": row.source, "process": row.process, "kind": row.kind, "message": row.message}
            self.preview.append(shown | {"to": None if row.to is None else list(row.to), "time": row.time})

    def sort(self) -> int:
        """Sort the events of each process by their sort key ``place``. The sort key is the number of the event in the
        sequence of files and lines, the event's time, or a number from the record. Return the number of events that
        have the same ``place`` as the event before them."""
        tied = 0
        for rows in self.lines.values():
            unsorted = {b.file for a, b in pairwise(rows) if a.file == b.file and a.place > b.place}
            rows.sort(key=lambda row: row.place)
            ties = sum(a.place == b.place for a, b in pairwise(rows))
            tied += ties
            if ties:
                _mark_ties(rows, unsorted)
        return tied

    def assumed(self) -> dict[str, int]:
        """Return, for each reason, the number of rows whose position in their process is assumed (not recorded)."""
        count = sum(row.assumed for rows in self.lines.values() for row in rows)
        return {"tied_place": count} if count else {}

    def rows(self) -> Iterator[Event]:
        """Yield the rows of the trace, process by process."""
        for process, rows in sorted(self.lines.items()):
            for index, row in enumerate(rows):
                more = row.texts or {}
                extra = {"source": row.source} | (row.extra or {})
                event = Event(process, index, row.kind, row.message, row.to, row.time, extra=extra, **more)  # type: ignore[arg-type]
                yield msgspec.structs.replace(event, assumed=True) if row.assumed else event

    def report(self, files: list[dict[str, Any]], unreadable: Unreadable, tied: int) -> dict[str, Any]:
        by_kind = Counter(row.kind for rows in self.lines.values() for row in rows)
        return {
            "version": __version__,
            "files": files,
            "records": self.records,
            "processes": len(self.lines),
            "events": self.events,
            "sends": by_kind[SEND],
            "deliveries": by_kind[DELIVER],
            "locals": by_kind[LOCAL],
            "skipped": dict(self.skipped.counts),
            "skipped_first": self.skipped.first,
            "kinds": {kind: dict(counts.most_common(_kinds_shown)) for kind, counts in self.kinds.items()},
            **Ends(row for rows in self.lines.values() for row in rows).report(),
            "fields": list(islice(self.fields, _fields_shown)),
            "tied": tied if self.plan.mapping.index != "file" else 0,
            "assumed": self.assumed(),
            "unreadable": unreadable.count,
            "unreadable_first": unreadable.first,
            "preview": self.preview,
            "to": None,
        }

    def advice(self, report: dict[str, Any], unreadable: Unreadable) -> str | None:
        """Return advice for the user if the mapping finds no sends, or no deliveries, or if no delivery has the message
        id of a send. Otherwise return ``None``."""
        if not self.records:
            first = f" ({unreadable.first[0]})" if unreadable.first else ""
            return f"no record could be read{first}"
        skipped = self.skipped
        if skipped.counts["no_match"] == self.records:
            return f"no line matches the pattern; the first of {self.records:,}: {skipped.first['no_match'][0]}"
        mapping = self.plan.mapping
        for option, kind, text in (("--send", SEND, mapping.send), ("--deliver", DELIVER, mapping.deliver)):
            if not self.kinds[kind] and self.plan.kind is not None:
                seen = self._seen()
                return f"{option} {text!r} matches no {self.plan.kind.text}{seen or f'; fields: {self._fields()}'}"
        if not self.events:
            reason, count = skipped.counts.most_common(1)[0]
            first = f"the first of {count:,} skipped records: {skipped.first[reason][0]}"
            return f"no record could become an event; {first}; fields: {self._fields()}"
        for option, kind in (("--send", "sends"), ("--deliver", "deliveries")):
            if not report[kind]:
                place = next(iter(skipped.first.get("no_message", [])), "")
                return f"no {kind}: {place or f'{option} matches no line'}; fields: {self._fields()}"
        if not report["matched"]:
            ids = {kind: self._first_id(kind) for kind in (SEND, DELIVER)}
            return (
                "no delivery has the id of a send, so nothing can be judged: the first send has the id "
                f"{ids[SEND]!r}, the first delivery has the id {ids[DELIVER]!r}"
            )
        return None

    def _seen(self) -> str:
        counts: Counter[str] = sum(self.kinds.values(), Counter())
        shown = [f"{value!r} ({count:,})" for value, count in counts.most_common(_kinds_shown) if value]
        return f": found {', '.join(shown)}" if shown else ""

    def _first_id(self, kind: str) -> str | None:
        return next((row.message for rows in self.lines.values() for row in rows if row.kind == kind), None)

    def _fields(self) -> str:
        more = ", …" if len(self.fields) > _fields_shown else ""
        return ", ".join(islice(self.fields, _fields_shown)) + more if self.fields else "none"


def _mark_ties(rows: list[Row], unsorted: set[str]) -> None:
    """Set ``assumed`` for sends and deliveries with the same sort key ``place``, because their sequence is not known.
    There is one exception: if all sends and deliveries with this ``place`` are in one sorted file, the file shows their
    sequence. ``rows``: the events of one process. ``unsorted``: the files with lines that are not sorted by
    ``place``."""
    for _, group in groupby((row for row in rows if row.kind != LOCAL), key=lambda row: row.place):
        tied = list(group)
        files = {row.file for row in tied}
        if len(tied) > 1 and (len(files) > 1 or files & unsorted):
            for row in tied:
                row.assumed = True


def convert_mapped(
    paths: Sequence[str | os.PathLike[str]],
    mapping: Mapping,
    to: str | os.PathLike[str] | None = None,
    preview: bool = False,
    report_status: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Use a mapping to convert logs to one trace, write the trace to the file ``to``, and return the report. Without
    ``to``, nothing is written.

    With ``preview``, only the first records are read, and nothing is written. ``report_status`` is called with texts
    about the progress.
    """
    started = time.perf_counter()
    mapped = Mapped(Plan(mapping))
    unreadable = Unreadable()
    files: list[dict[str, Any]] = []
    with Guard() as guard:
        sources = files_of(paths, to)
        for number, path in enumerate(sources):
            # A preview reads the beginning of each file.
            left = -((mapped.records - limits.preview_records_max) // (len(sources) - number)) if preview else None
            if left == 0:
                break
            with opened(path, unreadable) as file:
                report_status(f"reading {file.name}")
                before = mapped.events
                if not file.head:
                    raise TraceError(f"{file.name}: the file is empty")
                form = form_of(file, mapped.plan)
                mapped.read(file, form, guard, left)
                files.append({"file": file.name, "format": form, "events": mapped.events - before})
    tied = mapped.sort()
    report = mapped.report(files, unreadable, tied)
    report["advice"] = mapped.advice(report, unreadable)
    if not preview and report["advice"] is not None and not (report["sends"] and report["deliveries"]):
        raise TraceError(f"{files[0]['file']}: {report['advice']}")
    if to is not None and not preview:
        recorded_by = f"antecede {__version__} import by a mapping"
        write_trace(
            to, mapped.rows(), Metadata(recorded_by=recorded_by, assumed=mapped.assumed() or None), report_status
        )
        report["to"] = os.fsdecode(to)
    return report | {"seconds": round(time.perf_counter() - started, 3)}


def _why_missing(column: str, values: dict[str, Value], fields: dict[str, Any]) -> str:
    value = values.get(column)
    if value is None:
        return f"no {column} is mapped"
    path = next((path for path in value.paths if text_of(field(fields, path)) is None), value.text)
    found = field(fields, path)
    if found is None:
        return f"no {column}: the record has no {path}"
    wanted = {"to": "a list of names", "number": "a whole number"}.get(column, "a text or a number")
    return f"no {column}: {path} is {'empty' if found == '' else f'not {wanted}'}"


def _destinations(given: Any, separator: str) -> tuple[str, ...] | None:
    """Return the destinations of a message, from the value of a field. The value is a list of names, or one text that
    contains the names with ``separator`` between them. ``None`` means that the destinations are unknown."""
    if type(given) is str:
        given = given.strip()
        if given.startswith("["):
            try:
                given = msgspec.json.decode(given)
            except (msgspec.MsgspecError, RecursionError):
                given = given.strip("[]")
    if type(given) is str:
        given = [name.strip() for name in given.split(separator) if name.strip()] or None
    if type(given) is not list:
        text = text_of(given)
        return None if text is None else (text,)
    names = [text_of(name) for name in given]
    # One destination without a name makes the whole set unknown, because deliveries outside a smaller set would be
    # wrong.
    return None if None in names else tuple(sorted({name for name in names if name is not None}))


def _paths(fields: dict[str, Any], before: str = "", depth: int = 3) -> Iterator[str]:
    for name, value in fields.items():
        if isinstance(value, dict) and depth > 1:
            yield from _paths(value, f"{before}{name}.", depth - 1)
        else:
            yield before + name
