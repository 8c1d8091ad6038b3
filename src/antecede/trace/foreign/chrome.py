"""Flow events of Chrome and Perfetto, in JSON: arrows between slices of different threads.

A document is ``{"traceEvents": […]}``, or the list alone. An event has a phase ``ph``, a process ``pid``, a thread
``tid`` and a time ``ts`` in microseconds. The first event of a flow has the phase ``s``, the last event has ``f``, and
the events between them have ``t``. All events of a flow have the same category, name and id. There is an arrow from
each event of a flow to the next one. Each arrow becomes a message.

Each thread becomes a process of the trace. Only the flow events of the thread become events of this process, sorted by
time. If several flow events of a thread have the same time, they stay in the order of the file, and this order is only
assumed. Names of threads and processes come from the metadata events (``M``). If several threads have the same name,
the numbers of process and thread are appended to each of these names.
"""

from collections import Counter
from typing import Any

import msgspec

from antecede import limits
from antecede.errors import TraceError
from antecede.trace.foreign.files import JSON_ERRORS, ForeignFile
from antecede.trace.foreign.moments import ConvertedTrace, Moment, RecordedColumns, mark_ties
from antecede.trace.foreign.times import nanoseconds


class _Document(msgspec.Struct, frozen=True):
    trace_events: list[msgspec.Raw] = msgspec.field(name="traceEvents")


class _Event(msgspec.Struct, frozen=True):
    ph: str
    pid: int | str = 0
    tid: int | str = 0
    ts: int | float = 0
    name: str = ""
    cat: str = ""
    id: int | str | None = None
    args: dict[str, Any] = {}


class Flows:
    """Collects the flow events of one or several documents."""

    def __init__(self) -> None:
        self.events = 0
        self._found: list[tuple[int, _Event]] = []
        self._names: dict[tuple[str, Any, Any], str] = {}

    def read(self, file: ForeignFile) -> None:
        """Read one document."""
        data = file.document()
        try:
            if data.lstrip()[:1] == b"[":
                listed = msgspec.json.decode(data, type=list[msgspec.Raw])
            else:
                listed = msgspec.json.decode(data, type=_Document).trace_events
        except JSON_ERRORS as error:
            raise TraceError(f"{file.name}: not a document of trace events: {error}") from None
        for number, raw in enumerate(listed, 1):
            try:
                self._take(msgspec.json.decode(raw, type=_Event), file, number)
            except JSON_ERRORS as error:
                file.unreadable(None, f"event {number}: {error}")

    def _take(self, event: _Event, file: ForeignFile, number: int) -> None:
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
