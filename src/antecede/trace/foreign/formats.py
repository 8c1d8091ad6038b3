"""Formats of other systems whose events name their causes: flows of Chrome, CloudEvents, editing sessions and histories
of Temporal. Each class collects the events of one format and finds the messages."""

import os
from collections import Counter
from datetime import datetime
from typing import Any, Final

import msgspec

from antecede import limits
from antecede.errors import TraceError
from antecede.trace.foreign.mapping import nanoseconds, since_1970, text_of
from antecede.trace.foreign.moments import SEND_POSITION, TIED_START, ConvertedTrace, Moment, RecordedColumns, mark_ties
from antecede.trace.foreign.records import JSON_ERRORS, ForeignFile, json_records


class _Trace(msgspec.Struct, frozen=True):
    trace_events: list[msgspec.Raw] = msgspec.field(name="traceEvents")


class _FlowEvent(msgspec.Struct, frozen=True):
    ph: str
    pid: int | str = 0
    tid: int | str = 0
    ts: int | float = 0
    name: str = ""
    cat: str = ""
    id: int | str | None = None
    args: dict[str, Any] = {}


class Flows:
    """Collects the flow events of one or several documents.

    Flow events of Chrome and Perfetto, in JSON: arrows between slices of different threads.

    A document is ``{"traceEvents": […]}``, or the list alone. An event has a phase ``ph``, a process ``pid``, a thread
    ``tid`` and a time ``ts`` in microseconds. The first event of a flow has the phase ``s``, the last event has ``f``,
    and the events between them have ``t``. All events of a flow have the same category, name and id. There is an arrow
    from each event of a flow to the next one. Each arrow becomes a message.

    Each thread becomes a process of the trace. Only the flow events of the thread become events of this process, sorted
    by time. If several flow events of a thread have the same time, they stay in the order of the file, and this order
    is only assumed. Names of threads and processes come from the metadata events (``M``). If several threads have the
    same name, the numbers of process and thread are appended to each of these names.
    """

    def __init__(self) -> None:
        self.events = 0
        self._found: list[tuple[int, _FlowEvent]] = []
        self._names: dict[tuple[str, Any, Any], str] = {}

    def read(self, file: ForeignFile) -> None:
        """Read one document."""
        data = file.document()
        try:
            if data.lstrip()[:1] == b"[":
                listed = msgspec.json.decode(data, type=list[msgspec.Raw])
            else:
                listed = msgspec.json.decode(data, type=_Trace).trace_events
        except JSON_ERRORS as error:
            raise TraceError(f"{file.name}: not a document of trace events: {error}") from None
        for number, raw in enumerate(listed, 1):
            try:
                self._take(msgspec.json.decode(raw, type=_FlowEvent), file, number)
            except JSON_ERRORS as error:
                file.unreadable(None, f"event {number}: {error}")

    def _take(self, event: _FlowEvent, file: ForeignFile, number: int) -> None:
        if (
            event.ph == "M"
            and event.name in ("process_name", "thread_name")
            and isinstance(event.args.get("name"), str)
        ):
            tid = event.tid if event.name == "thread_name" else None
            self._names[event.name, event.pid, tid] = event.args["name"]
        elif event.ph in ("s", "t", "f"):
            at = nanoseconds(event.ts, "us")
            if event.id is None or at is None:
                file.unreadable(None, f"event {number}: a flow event without id or time")
                return
            if self.events == limits.foreign_events_max:
                raise TraceError(
                    f"{file.name}: more flow events than one import can hold: import fewer or smaller files"
                )
            self.events += 1
            self._found.append((at, event))

    def convert(self) -> ConvertedTrace:
        """Return the trace of the flows."""
        lines: dict[str, list[Moment]] = {}
        names = self._threads()
        last: dict[tuple[str, str, str], tuple[Moment, int]] = {}
        numbers: dict[tuple[str, str, str], int] = {}
        for at, event in sorted(self._found, key=lambda found: found[0]):
            thread = names[event.pid, event.tid]
            name = event.name[: limits.raw_text_bytes_max]
            moment = Moment(RecordedColumns({"flow": str(event.id), "phase": event.ph, "name": name}), at)
            lines.setdefault(thread, []).append(moment)
            key = event.cat, event.name, str(event.id)
            before = last.pop(key, None)
            if event.ph != "s" and before is not None:
                source, number = before
                message = f"{':'.join(key)}/{number}"
                source.give(message, thread)
                moment.take(message)
            # An id may be used again after its flow has ended: the numbers continue.
            numbers[key] = numbers.get(key, -1) + 1
            if event.ph != "f":
                last[key] = moment, numbers[key]
        for line in lines.values():
            mark_ties(line)
        return ConvertedTrace(lines)

    def _threads(self) -> dict[tuple[Any, Any], str]:
        """Return a unique name for each thread that has a flow event. In browsers, many processes and threads have the
        same name. If several threads would get the same name, the numbers of process and thread are added to each."""
        names = {(event.pid, event.tid): self._thread(event.pid, event.tid) for _, event in self._found}
        used = Counter(names.values())
        return {(pid, tid): name if used[name] == 1 else f"{name} ({pid}/{tid})" for (pid, tid), name in names.items()}

    def _thread(self, pid: Any, tid: Any) -> str:
        process = self._names.get(("process_name", pid, None), str(pid))
        thread = self._names.get(("thread_name", pid, tid), str(tid))
        return f"{process}/{thread}"


DELIVERED_BEFORE_EFFECT: Final = "delivered_before_effect"


class _CloudEvent(msgspec.Struct, gc=False):
    source: str
    id: str
    cause: str | None
    moment: Moment


class CloudEvents:
    """Collects the events of one or several documents.

    CloudEvents in JSON with the extension attribute ``causationid``: which event caused which?

    An event has an ``id`` and a ``source``. The attribute ``causationid`` contains the id of another event, the cause.
    Each source becomes a process of the trace. The events of a source are sorted by their times. If one event of a
    source has no time, all events of this source stay in the order of the file.

    If the cause and the effect are events of different sources, the trace gets a message between these sources. The
    cause itself is the send of this message. The time of the delivery is not recorded. It is certain only that the
    delivery came before the effect. So the delivery is a row directly before the effect, marked ``assumed``. If a cause
    has several effects in one source, it is delivered there only once, before the first of them.

    Several documents make one trace. A document has one event per line, or is a list of events (a batch). Source and id
    together identify an event. If the same event is recorded a second time, the second record is counted and skipped.
    The cause of an event is first looked up in the event's own source, then in the other sources. If several other
    sources have an event with the id of the cause, the cause is ambiguous, and is treated as missing.
    """

    def __init__(self) -> None:
        self.events = 0
        self.duplicates = 0
        """The number of skipped records that repeat an event (the same source and id)."""
        self.without_parent = 0
        """The number of events whose cause is not in the documents, or is ambiguous."""
        self.early_messages = 0
        """The number of messages for which the cause has a later time than the effect."""
        self._lines: dict[str, list[_CloudEvent]] = {}
        self._found: dict[str, dict[str, _CloudEvent]] = {}
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
            event = _CloudEvent(source, id_, text_of(document.get("causationid")), moment)
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

    def _cause(self, event: _CloudEvent) -> _CloudEvent | None:
        if event.cause is None:
            return None
        found = self._found.get(event.cause, {})
        cause = found.get(event.source) or (next(iter(found.values())) if len(found) == 1 else None)
        self.without_parent += cause is None
        return cause if cause is not event else None


_kept = {"type": "event_type", "subject": "subject", "correlationid": "correlation"}
"""The attributes that become columns of the trace, each with the name of its column. ``type`` is renamed, because a
trace has its own column ``type`` with another meaning."""


class _Recording(msgspec.Struct, frozen=True):
    txns: list[msgspec.Raw]


class _Transaction(msgspec.Struct, frozen=True):
    parents: list[int]
    agent: int | str
    time: str | None = None


class _Place(msgspec.Struct, frozen=True, gc=False):
    transaction: int
    parents: list[int]

    def columns(self) -> dict[str, Any]:
        return {"transaction": self.transaction, "parents": self.parents}


class _Done(msgspec.Struct, frozen=True, gc=False):
    """A transaction that was already read, with the data that is needed to read its children."""

    agent: str
    moment: Moment
    position: int
    """The position of the transaction among all transactions of its agent, from 0."""
    known: dict[str, int]
    """For each other agent B: the number of B's transactions that ``agent`` knew when it made this transaction.
    Successive transactions of an agent may share one dictionary."""

    def knows(self, other: "_Done") -> bool:
        """Return whether the agent of this transaction already knew ``other`` when it made this transaction."""
        if self.agent == other.agent:
            return self.position > other.position
        return self.known.get(other.agent, 0) > other.position


class Editing:
    """Collects the transactions of one recorded editing session, and finds the messages between the agents.

    A document ``{"txns": [{"parents": […], "agent": 0, "time": …}, …]}`` lists transactions. Each transaction names its
    parents by their positions in the list. Parents come before their children in the list. Every agent becomes a
    process, and its transactions become the events of this process. A transaction builds on its parents. So its agent
    certainly received all parents before it made the transaction. If another agent made a parent, the trace contains a
    message with the parent, from the other agent to this agent. There is no such message if this agent already knew the
    parent. This is the case if the parent is an ancestor of an earlier transaction of this agent, or of another parent
    of the same transaction. A transaction with several parents merges concurrent work.

    The transactions of an agent are in the order of the list. In most recordings, each transaction of an agent is an
    ancestor of the agent's next transaction. If an agent works on two branches, some of its transactions are not
    ancestors of its next transaction.

    An editing session never shows a late delivery. The delivery of a message m is *late* if the agent already received
    another message that was sent causally after m. Because of that other message, the agent already knows the
    transaction in m. But the trace contains no message with a transaction that the receiver already knows. So it
    contains no message like m.
    """

    def __init__(self) -> None:
        self._lines: dict[str, list[Moment]] = {}
        self.events = 0
        self.merges = 0
        """The number of transactions with several parents."""
        self._known: dict[str, dict[str, int]] = {}
        """``_known[a][b]`` is the number of transactions of agent b that agent a knows so far."""
        self._entries = 0

    def read(self, file: ForeignFile) -> None:
        """Read a recording. An import may contain only one recording. A second recording is refused, because its agents
        would have the same names as the agents of the first recording."""
        if self._lines:
            raise TraceError(f"{file.name}: expected only one editing recording per import")
        try:
            listed = msgspec.json.decode(file.document(), type=_Recording).txns
        except JSON_ERRORS as error:
            raise TraceError(f"{file.name}: not an editing recording: {error}") from None
        if len(listed) > limits.foreign_events_max:
            raise TraceError(f"{file.name}: more transactions than one import can hold: import a smaller recording")
        done: dict[int, _Done] = {}
        for number, raw in enumerate(listed):
            try:
                decoded = msgspec.json.decode(raw, type=_Transaction)
            except JSON_ERRORS as error:
                file.unreadable(None, f"transaction {number}: {error}")
                continue
            if any(parent not in done for parent in decoded.parents):
                file.unreadable(None, f"transaction {number}: a parent is not an earlier transaction")
                continue
            done[number] = self._added(number, decoded, done)
            if self._entries > limits.foreign_clock_entries_max:
                raise TraceError(
                    f"{file.name}: more messages between agents than one import can hold: import a smaller recording"
                )

    def _added(self, number: int, decoded: _Transaction, done: dict[int, _Done]) -> _Done:
        agent = f"agent-{decoded.agent}" if isinstance(decoded.agent, int) else decoded.agent
        line = self._lines.setdefault(agent, [])
        moment = Moment(_Place(number, decoded.parents), _nanoseconds(decoded.time))
        known = self._known.setdefault(agent, {})
        others = {parent: done[parent] for parent in decoded.parents if done[parent].agent != agent}
        new = {
            parent: one
            for parent, one in others.items()
            if known.get(one.agent, 0) <= one.position and not any(two.knows(one) for two in others.values())
        }
        if new:
            known = self._known[agent] = dict(known)
        for parent, one in new.items():
            message = f"{one.agent}:{parent}->{agent}"
            one.moment.give(message, agent)
            moment.take(message)
            for name, count in (*one.known.items(), (one.agent, one.position + 1)):
                if name != agent:
                    known[name] = max(known.get(name, 0), count)
        self._entries += len(known) if new else 0
        line.append(moment)
        self.events += 1
        self.merges += len(decoded.parents) > 1
        return _Done(agent, moment, len(line) - 1, known)

    def convert(self) -> ConvertedTrace:
        """Return the trace of the recording."""
        return ConvertedTrace(self._lines)


def _nanoseconds(text: str | None) -> int | None:
    """Return the time of a transaction in nanoseconds since 1970. Return ``None`` if the time cannot be read or was not
    recorded. The beginning of 1970 means that no time was recorded."""
    try:
        return (since_1970(datetime.fromisoformat(text)) or None) if text else None
    except (ValueError, OverflowError):
        return None


RETRIED: Final = "retried"
"""The reason for an assumed position: an activity was started several times, and only its last start is recorded."""

_ends = ("Completed", "Failed", "Canceled")


class _Run(msgspec.Struct, gc=False):
    """The state of the reader while it reads one history."""

    workflow: str
    prefix: str
    """The beginning of all message ids of this history. Histories of the same workflow repeat the same event numbers,
    so each history gets its own prefix."""
    last: int = 0
    """The latest time of the workflow's events so far. Each new event of the workflow is sorted by this time, so these
    events stay in the order of the history. A worker's event without a time is sorted by this time, too."""
    scheduled: dict[str, Moment] = {}
    started: dict[str, str] = {}
    """The worker of each activity that has started but not ended. The key is the id of the event that scheduled the
    activity."""


class History:
    """Collects the histories of one or several workflows.

    Histories of Temporal (and of its predecessor Cadence): which workflow asked which worker to run which activity.

    A history is a document ``{"events": […]}``, or the list alone, as ``temporal workflow show --output json`` prints
    it. The workflow is a process. Its name is the id of the workflow. If the history contains no such id, the name of
    the file is used. Every worker is a process, too. Its name is the identity of the worker. When the workflow
    schedules an activity, it sends a message. When a worker starts the activity, this message is delivered. The end of
    the activity (completed, failed, cancelled) is a message from the worker back to the workflow. All other events are
    local events of the workflow. A timeout of an activity is a local event, too, because the server records it, not the
    worker.

    **Order.** The events of a workflow are in the order of its history. The events of a worker are in the order of the
    server's times. (The history is not used here, because a start is written into it only when the activity ends.)
    Several histories make one trace and share the workers. The position of an event in its process is marked as assumed
    in these cases:

    * the end of an activity at its worker, if the worker started or ended another activity between the start and this
      end. The server records when the message about the end came to the server, not when the worker sent it.
    * the start of an activity that was tried again. Only its last start is recorded.
    * an event of a worker that has no time, or the same time as another event of the worker.
    """

    def __init__(self) -> None:
        self.events = 0
        self._workflows: dict[str, list[tuple[int, Moment]]] = {}
        self._workers: dict[str, list[tuple[int, Moment]]] = {}
        self._runs: Counter[str] = Counter()

    def read(self, file: ForeignFile) -> None:
        """Read one history."""
        try:
            document = msgspec.json.decode(file.document())
        except JSON_ERRORS as error:
            raise TraceError(f"{file.name}: not a JSON document: {error}") from None
        listed = document.get("events") if isinstance(document, dict) else document
        if not isinstance(listed, list):
            raise TraceError(f"{file.name}: not a history: expected a list of events")
        workflow = _workflow(listed) or os.path.basename(file.name)
        self._runs[workflow] += 1
        number = self._runs[workflow]
        run = _Run(workflow, workflow if number == 1 else f"{workflow}#{number}")
        for number, event in enumerate(listed, 1):
            kind = text_of(event.get("eventType")) if isinstance(event, dict) else None
            if kind is None or text_of(event.get("eventId")) is None:
                file.unreadable(None, f"event {number}: no eventType or eventId")
                continue
            if self.events == limits.foreign_events_max:
                raise TraceError(f"{file.name}: more events than one import can hold: import fewer or smaller files")
            self.events += 1
            self._take(run, event, _camel(kind))

    def _take(self, run: _Run, event: dict[str, Any], kind: str) -> None:
        number = text_of(event["eventId"]) or ""
        at = nanoseconds(event.get("eventTime") or event.get("timestamp"))
        about = event.get(f"{kind[:1].lower()}{kind[1:]}EventAttributes")
        about = about if isinstance(about, dict) else {}
        asked = text_of(about.get("scheduledEventId")) or ""
        recorded = RecordedColumns({"event": kind, "event_id": number})
        moment = Moment(recorded, at)
        if kind == "ActivityTaskStarted" and asked in run.scheduled:
            worker = run.started[asked] = text_of(about.get("identity")) or "worker"
            message = f"{run.prefix}:{asked}"
            run.scheduled.pop(asked).give(message, worker)
            moment.take(message)
            if (text_of(about.get("attempt")) or "1") not in ("0", "1"):
                moment.assumed = RETRIED
            self._work(worker, moment, run)
            return
        run.last = max(run.last, at or 0)
        if kind.removeprefix("ActivityTask") in _ends and asked in run.started:
            message = f"{run.prefix}:{asked}:{kind.removeprefix('ActivityTask')}"
            sent = Moment(recorded, at)
            sent.give(message, run.workflow)
            self._work(run.started.pop(asked), sent, run)
            moment.take(message)
        elif kind == "ActivityTaskScheduled":
            run.scheduled[number] = moment
        self._workflows.setdefault(run.workflow, []).append((run.last, moment))

    def _work(self, worker: str, moment: Moment, run: _Run) -> None:
        if moment.time is None:
            moment.assumed = moment.assumed or TIED_START
        at = moment.time if moment.time is not None else run.last
        self._workers.setdefault(worker, []).append((at, moment))

    def convert(self) -> ConvertedTrace:
        """Return one trace, made from all histories that were read."""
        lines: dict[str, list[Moment]] = {}
        for worker, timed in self._workers.items():
            lines[worker] = line = _sorted(timed)
            mark_ties(line)
            _mark_ends(line)
        for workflow, timed in self._workflows.items():
            # A name that a worker has, too, is one process, as nothing distinguishes the two.
            lines[workflow] = _sorted([*self._workers.get(workflow, ()), *timed])
        return ConvertedTrace(lines)


def _sorted(timed: list[tuple[int, Moment]]) -> list[Moment]:
    """Return the moments (recorded events) sorted by time. Events with equal times keep their order in ``timed``."""
    return [moment for _, moment in sorted(timed, key=lambda found: found[0])]


def _mark_ends(line: list[Moment]) -> None:
    """Mark the position of an activity's end as assumed if the worker's previous event is not the start of this
    activity. ``line`` has the events of one worker."""
    for before, moment in zip([None, *line[:-1]], line, strict=True):
        if not moment.gives:
            continue
        own = moment.gives[0][0].rpartition(":")[0]
        if before is None or own not in before.takes:
            moment.assumed = moment.assumed or SEND_POSITION


def _workflow(events: list[Any]) -> str | None:
    first = events[0] if events and isinstance(events[0], dict) else {}
    about = first.get("workflowExecutionStartedEventAttributes")
    return text_of(about.get("workflowId")) if isinstance(about, dict) else None


def _camel(kind: str) -> str:
    """Return the type of an event in the older form: ``EVENT_TYPE_ACTIVITY_TASK_STARTED`` becomes
    ``ActivityTaskStarted``."""
    if not kind.startswith("EVENT_TYPE_"):
        return kind
    return "".join(part.capitalize() for part in kind.removeprefix("EVENT_TYPE_").split("_"))
