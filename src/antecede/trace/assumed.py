"""What a trace proves although an import had to assume the positions of some of its rows.

A foreign record may say that a message was sent by a process without saying when. The import then chooses a position
in the process's line and marks the row ``assumed``. Its order relative to the other rows of its process is unknown; the
edge from a send to its deliveries is known as ever.

:func:`certain` is the trace in which each assumed row stands alone, outside the line of its process: what is late there
is late wherever the assumed rows really were. What is late in the trace as placed, and not there, is *undecided*.
Edges are only taken away, so every delivery that is late in the certain trace is late as placed, too. Total and
synchronous order are about sequences of rows, and leave the assumed ones out.

An assumed row that stands alone often makes nothing late, and is then left out:

* an assumed delivery brings nothing to later rows of its process, and nothing was certainly delivered before it;
* an assumed send carries no knowledge but of itself. That matters only to a second delivery of the same message, so a
  send with two certain deliveries or more gets a line of its own, and with fewer its message is left out.
"""

from collections import Counter

from antecede.trace.matched import Matched, of_lines
from antecede.trace.schema import DELIVER, SEND, Event


def certain(trace: Matched) -> Matched:
    """The trace without the edges that rest on an assumed position, for FIFO and causal order; the same trace if no
    position is assumed."""
    if not any(event.assumed for line in trace.lines for event in line):
        return trace
    left = Counter(
        event.message or "" for line in trace.lines for event in line if event.kind == DELIVER and not event.assumed
    )
    lines: list[list[Event]] = []
    alone: list[Event] = []
    for line in trace.lines:
        kept: list[Event] = []
        for event in line:
            if event.kind == SEND and event.assumed:
                if left[event.message or ""] > 1:
                    alone.append(event)
            elif event.kind != DELIVER or _counts(trace, event, left):
                kept.append(event)
        lines.append(kept)
    mark = "assumed"
    while any(name.startswith(mark) for name in trace.names):
        mark += " "
    names = trace.names + [f"{mark}:{event.message}" for event in alone]
    lines += [[event] for event in alone]
    return of_lines(names, lines)


def _counts(trace: Matched, event: Event, left: Counter[str]) -> bool:
    """Whether a delivery can be late, or make another one late, for certain."""
    message = event.message or ""
    return not event.assumed and (left[message] > 1 or not trace.sent(message).assumed)
