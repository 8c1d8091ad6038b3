"""Late deliveries with arrays: the same pass as :mod:`antecede.trace.streaming`, for traces of many processes.

With thousands of senders a vector has thousands of entries, and most of the time goes into maxima of vectors. With
numpy a maximum is one operation on 32-bit numbers. Without numpy the vectors are packed into integers: the same answer,
several times slower.

``known[q]`` has, for each sender p, how many of p's events q has learned of through deliveries, also for q itself; so a
message of a process to itself needs no special rule. A process's own position is not in it but is stored with each
message. Therefore a send changes no vector, and messages share the vector of their sender. A delivery changes it in
place, unless a message shares it.
"""

from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from antecede.trace.matched import Matched
from antecede.trace.schema import DELIVER, SEND, Event

_senders_min = 64
"""Below this number of senders a packed integer is as fast as an array."""


def useful_for(trace: Matched) -> bool:
    """Return whether numpy is installed and arrays pay off for this trace."""
    return len(trace.lines) >= _senders_min and find_spec("numpy") is not None


def late_deliveries(trace: Matched) -> list[Event]:
    """Return the deliveries that violate causal order, in the order of the walk."""
    np: Any = import_module("numpy")
    sends = trace.sends
    awaited = Counter(event.message for line in trace.lines for event in line if event.kind == DELIVER)
    senders = sorted({sends[message or ""][0] for message in awaited})
    lane_of = {process: lane for lane, process in enumerate(senders)}
    ends = [len(line) - 1 for line in trace.lines]
    known: list[Any] = [None] * len(trace.lines)
    """By process; None stands for a vector of zeros."""
    shared = [False] * len(trace.lines)
    """Whether a message shares the vector of a process."""
    carried: dict[str, Any] = {}
    late: list[Event] = []
    for process, position, event in trace.in_causal_order():
        message = event.message or ""
        if event.kind == SEND:
            if awaited[message] and known[process] is not None:
                carried[message] = known[process]
                shared[process] = True
        elif event.kind == DELIVER:
            source, sent = sends[message]
            mine, lane = known[process], lane_of[source]
            if mine is not None and mine[lane] > sent:
                late.append(event)
            else:
                brought = carried.get(message) if source != process else None
                if mine is None:
                    mine = np.zeros(len(senders), np.int32) if brought is None else brought.copy()
                elif brought is not None:
                    mine = np.maximum(mine, brought, out=None if shared[process] else mine)
                elif shared[process]:
                    mine = mine.copy()
                mine[lane] = sent + 1
                known[process], shared[process] = mine, False
            awaited[message] -= 1
            if not awaited[message]:
                carried.pop(message, None)
        if position == ends[process]:
            known[process] = None
    return late
