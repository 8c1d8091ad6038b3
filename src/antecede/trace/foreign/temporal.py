"""Histories of Temporal (and of its predecessor Cadence): which workflow asked which worker to run which activity.

A history is a document ``{"events": […]}``, or the list alone, as ``temporal workflow show --output json`` prints it.
The workflow is a process, named by its id or the file, and so is every worker, named by its identity. Scheduling an
activity is a send of the workflow; its start by a worker is the delivery. Its end (completed, failed, cancelled, timed
out) is a message back. All other events are local events of the workflow.

One history has the order in which the server recorded it, at both ends. Several histories make one trace: they share
the workers, in the order of the recorded times.
"""

import os
from typing import Any

import msgspec

from antecede import limits
from antecede.errors import TraceError
from antecede.trace.foreign.files import ForeignFile
from antecede.trace.foreign.mapping import text_of
from antecede.trace.foreign.times import nanoseconds
from antecede.trace.foreign.weave import Moment, Woven

_errors = (msgspec.MsgspecError, UnicodeError, RecursionError)
_ends = ("Completed", "Failed", "Canceled", "TimedOut")


class _Told(msgspec.Struct, frozen=True, gc=False):
    kind: str
    number: str

    def columns(self) -> dict[str, Any]:
        return {"event": self.kind, "event_id": self.number}


class History:
    """Collects the histories of one or several workflows."""

    def __init__(self) -> None:
        self.events = 0
        self._lines: dict[str, list[Moment]] = {}

    def read(self, file: ForeignFile) -> None:
        """Read one history."""
        try:
            document = msgspec.json.decode(file.document())
        except _errors as error:
            raise TraceError(f"{file.name}: not a JSON document: {error}") from None
        listed = document.get("events") if isinstance(document, dict) else document
        if not isinstance(listed, list):
            raise TraceError(f"{file.name}: not a history: expected a list of events")
        workflow = _workflow(listed) or os.path.basename(file.name)
        scheduled: dict[str, Moment] = {}
        started: dict[str, tuple[str, Moment]] = {}
        for number, event in enumerate(listed, 1):
            kind = text_of(event.get("eventType")) if isinstance(event, dict) else None
            if kind is None or text_of(event.get("eventId")) is None:
                file.unreadable(None, f"event {number}: no eventType or eventId")
                continue
            if self.events == limits.foreign_events_max:
                raise TraceError(f"{file.name}: more events than one import can hold")
            self.events += 1
            self._take(workflow, event, _camel(kind), scheduled, started)

    def _take(
        self,
        workflow: str,
        event: dict[str, Any],
        kind: str,
        scheduled: dict[str, Moment],
        started: dict[str, tuple[str, Moment]],
    ) -> None:
        number = text_of(event["eventId"]) or ""
        at = nanoseconds(event.get("eventTime") or event.get("timestamp"))
        about = event.get(f"{kind[:1].lower()}{kind[1:]}EventAttributes")
        about = about if isinstance(about, dict) else {}
        asked = text_of(about.get("scheduledEventId")) or ""
        moment = Moment(_Told(kind, number), at)
        if kind == "ActivityTaskStarted" and asked in scheduled:
            worker = text_of(about.get("identity")) or "worker"
            message = f"{workflow}:{asked}"
            scheduled[asked].give(message, worker)
            moment.take(message)
            started[asked] = worker, moment
            self._lines.setdefault(worker, []).append(moment)
            return
        if kind.removeprefix("ActivityTask") in _ends and asked in started:
            worker, _ = started.pop(asked)
            message = f"{workflow}:{asked}:{kind.removeprefix('ActivityTask')}"
            said = Moment(_Told(kind, number), at)
            said.give(message, workflow)
            self._lines.setdefault(worker, []).append(said)
            moment.take(message)
        elif kind == "ActivityTaskScheduled":
            scheduled[number] = moment
        self._lines.setdefault(workflow, []).append(moment)

    def weave(self) -> Woven:
        """Return the trace of the histories."""
        for line in self._lines.values():
            # A stable sort, so each history stays in its order; a missing time counts as that of the previous event.
            last = 0
            keys: dict[int, int] = {}
            for moment in line:
                last = keys[id(moment)] = moment.time if moment.time is not None else last
            line.sort(key=lambda moment: keys[id(moment)])
        return Woven(self._lines)


def _workflow(events: list[Any]) -> str | None:
    first = events[0] if events and isinstance(events[0], dict) else {}
    about = first.get("workflowExecutionStartedEventAttributes")
    return text_of(about.get("workflowId")) if isinstance(about, dict) else None


def _camel(kind: str) -> str:
    """Return ``EVENT_TYPE_ACTIVITY_TASK_STARTED``, the newer form, as ``ActivityTaskStarted``."""
    if not kind.startswith("EVENT_TYPE_"):
        return kind
    return "".join(part.capitalize() for part in kind.removeprefix("EVENT_TYPE_").split("_"))
