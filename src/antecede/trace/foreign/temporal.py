"""Histories of Temporal (and of its predecessor Cadence): which workflow asked which worker to run which activity.

A history is a document ``{"events": […]}``, or the list alone, as ``temporal workflow show --output json`` prints it.
The workflow is a process. Its name is the id of the workflow. If the history contains no such id, the name of the file
is used. Every worker is a process, too. Its name is the identity of the worker. When the workflow schedules an
activity, it sends a message. When a worker starts the activity, this message is delivered. The end of the activity
(completed, failed, cancelled) is a message from the worker back to the workflow. All other events are local events of
the workflow. A timeout of an activity is a local event, too, because the server records it, not the worker.

**Order.** The events of a workflow are in the order of its history. The events of a worker are in the order of the
server's times. (The history is not used here, because a start is written into it only when the activity ends.) Several
histories make one trace and share the workers. The position of an event in its process is marked as assumed in these
cases:

* the end of an activity at its worker, if the worker started or ended another activity between the start and this end.
  The server records when the message about the end came to the server, not when the worker sent it.
* the start of an activity that was tried again. Only its last start is recorded.
* an event of a worker that has no time, or the same time as another event of the worker.
"""

import os
from collections import Counter
from typing import Any, Final

import msgspec

from antecede import limits
from antecede.errors import TraceError
from antecede.trace.foreign.files import JSON_ERRORS, ForeignFile
from antecede.trace.foreign.mapping import text_of
from antecede.trace.foreign.moments import SEND_POSITION, TIED_START, ConvertedTrace, Moment, RecordedColumns, mark_ties
from antecede.trace.foreign.times import nanoseconds

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
    """Collects the histories of one or several workflows."""

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
