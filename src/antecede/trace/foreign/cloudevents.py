"""CloudEvents in JSON with the extension attribute ``causationid``: which event caused which?

An event has an ``id`` and a ``source``. The attribute ``causationid`` contains the id of another event, the
cause. Each source becomes a process of the trace. The events of a source are sorted by their times. If one event of a
source has no time, all events of this source stay in the order of the file.

If the cause and the effect are events of different sources, the trace gets a message between these sources. The cause
itself is the send of this message. The time of the delivery is not recorded. It is certain only that the delivery came
before the effect. So the delivery is a row directly before the effect, marked ``assumed``. If a cause has several
effects in one source, it is delivered there only once, before the first of them.

Several documents make one trace. A document has one event per line, or is a list of events (a batch). Source and id
together identify an event. If the same event is recorded a second time, the second record is counted and skipped. The
cause of an event is first looked up in the event's own source, then in the other sources. If several other sources have
an event with the id of the cause, the cause is ambiguous, and is treated as missing.
"""

from typing import Final

import msgspec

from antecede import limits
from antecede.errors import TraceError
from antecede.trace.foreign.files import ForeignFile
from antecede.trace.foreign.mapping import text_of
from antecede.trace.foreign.moments import ConvertedTrace, Moment, RecordedColumns
from antecede.trace.foreign.records import json_records
from antecede.trace.foreign.times import nanoseconds

DELIVERED_BEFORE_EFFECT: Final = "delivered_before_effect"


class _Event(msgspec.Struct, gc=False):
    source: str
    id: str
    cause: str | None
    moment: Moment


class CloudEvents:
    """Collects the events of one or several documents."""

    def __init__(self) -> None:
        self.events = 0
        self.duplicates = 0
        """The number of skipped records that repeat an event (the same source and id)."""
        self.without_parent = 0
        """The number of events whose cause is not in the documents, or is ambiguous."""
        self.early_messages = 0
        """The number of messages for which the cause has a later time than the effect."""
        self._lines: dict[str, list[_Event]] = {}
        self._found: dict[str, dict[str, _Event]] = {}
        """For each event id: the events with this id, by source."""

    def read(self, file: ForeignFile) -> None:
        """Read one document."""
        for number, fields, _ in json_records(file):
            document = fields or {}
            id_, source = document.get("id"), document.get("source")
            if type(id_) is not str or type(source) is not str or "specversion" not in document:
                file.unreadable(number, "not a CloudEvent: expected specversion, and texts as id and source")
                continue
            if source in self._found.get(id_, ()):
                self.duplicates += 1
                continue
            if self.events == limits.foreign_events_max:
                raise TraceError(f"{file.name}: more events than one import can hold: import fewer or smaller files")
            self.events += 1
            kept = {"event": id_}
            for name, column in _kept.items():
                if (text := text_of(document.get(name))) is not None:
                    kept[column] = text
            moment = Moment(RecordedColumns(kept), nanoseconds(document.get("time")))
            event = _Event(source, id_, text_of(document.get("causationid")), moment)
            self._found.setdefault(id_, {})[source] = event
            self._lines.setdefault(source, []).append(event)

    def convert(self) -> ConvertedTrace:
        """Return the trace of the events."""
        lines: dict[str, list[Moment]] = {}
        for source, events in self._lines.items():
            if all(event.moment.time is not None for event in events):
                events.sort(key=lambda event: event.moment.time or 0)
            line = lines[source] = []
            known: set[str] = set()
            for event in events:
                cause = self._cause(event)
                if cause is not None and cause.source != source and cause.id not in known:
                    known.add(cause.id)
                    message = cause.id if len(self._found[cause.id]) == 1 else f"{cause.source} {cause.id}"
                    cause.moment.give(message, source)
                    taken = Moment(RecordedColumns({"event": cause.id}), None, assumed=DELIVERED_BEFORE_EFFECT)
                    taken.take(message)
                    line.append(taken)
                    if (cause.moment.time or 0) > (event.moment.time or cause.moment.time or 0):
                        self.early_messages += 1
                line.append(event.moment)
        return ConvertedTrace(lines)

    def _cause(self, event: _Event) -> _Event | None:
        if event.cause is None:
            return None
        found = self._found.get(event.cause, {})
        cause = found.get(event.source) or (next(iter(found.values())) if len(found) == 1 else None)
        self.without_parent += cause is None
        return cause if cause is not event else None


_kept = {"type": "event_type", "subject": "subject", "correlationid": "correlation"}
"""The attributes that become columns of the trace, each with the name of its column. ``type`` is renamed, because a
trace has its own column ``type`` with another meaning."""
