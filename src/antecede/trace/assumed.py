"""The certain verdicts on an imported trace. They are true even if the import assumed wrong positions for some rows.

A foreign record may show that a process sent a message, but not when. The import then chooses a position among the rows
of the process and marks the row ``assumed``. It is not known which other rows of the process really come before this
row. It is still known that the send comes before its deliveries.

:func:`certain` returns the *certain trace*. In it, each assumed send or delivery is left out, or is moved to a separate
process. So the certain trace contains only those happened-before relations of the imported trace that do not depend on
an assumed position. If a delivery is late in the certain trace, it is late for every possible position of the assumed
rows. So it is also late in the imported trace. A delivery that is late in the imported trace, but not in the certain
trace, is *undecided*. Total and synchronous order are about sequences of rows, and are judged without the assumed rows.

Two kinds of rows are left out of the certain trace, because they could not change any verdict there:

* every assumed delivery. It is not certain which rows of its process come after it, or which deliveries come before it.
* an assumed send with its deliveries, if at most one of these deliveries has a known position. It is not certain which
  rows come before the send, so its message cannot make another delivery late. Its own delivery can be late only if
  another process delivered the message first. This requires two deliveries with known positions.

If two or more deliveries of an assumed send have known positions, the send becomes the only row of a separate process.
"""

from collections import Counter

from antecede.trace.matched import Matched, of_lines
from antecede.trace.schema import DELIVER, SEND, Event


def certain(trace: Matched) -> Matched:
    """Return the certain trace: the given trace without the happened-before relations that depend on an assumed
    position. FIFO and causal order are judged on the certain trace. If no position is assumed, return the given trace
    itself."""
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
    """Return whether a delivery stays in the certain trace. It stays if it can be late there, or if it can make another
    delivery late. ``left``: for each message, the number of its deliveries that are not assumed."""
    message = event.message or ""
    return not event.assumed and (left[message] > 1 or not trace.sent(message).assumed)
