"""The JSON trace format of Chrome. The viewers ui.perfetto.dev and chrome://tracing can read it.

A process of the trace is a track. An event is a short slice. Each delivered copy of a message is an arrow (a flow) from
the slice of the send to the slice of the delivery. If the arrival of a message was recorded, an asynchronous slice
shows how long the message was held before its delivery. Times are microseconds since the first event.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from antecede.trace.exporting.view import Placed, View, described, label_of
from antecede.trace.schema import ARRIVE, DELIVER, SEND


def written(view: View) -> Iterator[str]:
    """Yield the JSON document that Perfetto reads, in pieces."""
    encode = msgspec.json.Encoder().encode
    begin = min((one.time for one in view.sequence), default=0)
    about = {"source": "antecede export", "times": "recorded" if view.recorded else "logical"}
    about |= {"begin_ns": str(begin)} if view.recorded else {}
    yield f'{{"displayTimeUnit":"ns","otherData":{encode(about).decode()},"traceEvents":[\n'
    for number, one in enumerate(_events(view, begin)):
        yield (",\n" if number else "") + encode(one).decode()
    yield "\n]}\n"


def _events(view: View, begin: int) -> Iterator[dict[str, Any]]:
    for process, name in enumerate(view.trace.names):
        yield {"ph": "M", "name": "process_name", "pid": process + 1, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_name", "pid": process + 1, "tid": 1, "args": {"name": "messages"}}
    copies = _copies(view)
    arrived: dict[tuple[int, str], int] = {}
    for number, one in enumerate(view.sequence):
        event, message = one.event, one.event.message or ""
        if event.kind == ARRIVE:
            arrived.setdefault((one.process, message), one.time)
            continue
        since = arrived.pop((one.process, message), None) if event.kind == DELIVER else None
        if since is not None:
            held = {"name": f"held {message}", "cat": "held", "id": number, "pid": one.process + 1, "tid": 1}
            yield {"ph": "b", **held, "ts": (since - begin) / 1000}
            yield {"ph": "e", **held, "ts": (one.time - begin) / 1000}
        yield _slice(view, one, begin)
        if event.kind == SEND:
            for flow in copies.get((one.process, one.position), ()):
                yield _flow(one, begin, "s", flow)
        elif event.kind == DELIVER:
            yield _flow(one, begin, "f", copies[one.process, one.position][0])


def _copies(view: View) -> dict[tuple[int, int], list[int]]:
    """Return, for each send and delivery, the numbers of the arrows that begin or end there. The keys are process and
    position of the event."""
    copies: dict[tuple[int, int], list[int]] = {}
    number = 0
    for process, origins in enumerate(view.trace.origins):
        for position, origin in enumerate(origins):
            if origin is not None:
                number += 1
                copies[process, position] = [number]
                copies.setdefault(origin, []).append(number)
    return copies


def _slice(view: View, one: Placed, begin: int) -> dict[str, Any]:
    event, late = one.event, view.is_late(one.event)
    _, length = view.slices[one.process, one.position]
    details: dict[str, Any] = {"index": event.index}
    details |= {"message": event.message} if event.message is not None else {}
    details |= {"to": list(event.to)} if event.to is not None else {}
    details |= {"label": label_of(event)} if label_of(event) else {}
    details |= {"late": True, "overtaken_by": late.overtaken_by} if late is not None else {}
    where = {"pid": one.process + 1, "tid": 1, "ts": (one.time - begin) / 1000, "dur": length / 1000}
    return {"ph": "X", "name": described(event, late), "cat": event.kind, **where, "args": details}


def _flow(one: Placed, begin: int, phase: str, number: int) -> dict[str, Any]:
    where = {"pid": one.process + 1, "tid": 1, "ts": (one.time - begin) / 1000}
    named = {"ph": phase, "name": one.event.message or "", "cat": "message", "id": number}
    return {**named, **where, **({"bp": "e"} if phase == "f" else {})}
