"""A log with vector clocks, for ShiViz. The first line is the regular expression with which ShiViz reads the other
lines. Each of these lines has a host, a clock and an event::

    ann {"ann":1} send x to cy

A host is a process of the trace. Events are in one possible sequence. Arrivals are left out. In the clock of a host,
the entry of this host is the number of its events so far. At a delivery, the receiver copies each entry of the send's
clock that is larger than its own entry. ShiViz draws only the arrows that follow from the clocks. If a message is late,
its receiver has already learned of the send from other messages. So a late delivery has no arrow in ShiViz, but its
text says that it is late. White space and special characters in names are written as codes such as ``%20``.

Antecede can import this log in two ways. With the format ``shiviz``, only the arrows that ShiViz draws become messages,
so late deliveries are lost. With ``PATTERN``, all messages are imported, late or not.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from antecede import limits
from antecede.errors import TraceError
from antecede.trace.clocks import raise_to
from antecede.trace.exporting.view import View, label_of
from antecede.trace.schema import ARRIVE, DELIVER, SEND, Event
from antecede.trace.verdicts import Late

EXPRESSION: Final = r"(?<host>\S+) (?<clock>\{.*?\}) (?<event>.*)"
"""The first line of the log: the regular expression with which ShiViz reads the other lines."""

PATTERN: Final = (
    r"^(?P<process>\S+) \{.*?\} (?P<kind>send|deliver|local)(?: (?P<message>\S+))?(?: to (?P<to>\S+))?(?: |$)"
)
"""The expression for ``antecede import --pattern … --send send --deliver deliver``."""


def written(view: View) -> Iterator[str]:
    """Yield the log, line by line."""
    encode = msgspec.json.Encoder(order="sorted").encode
    names = [_word(name) for name in view.trace.names]
    clocks: list[dict[str, int]] = [{} for _ in names]
    carried: dict[str, dict[str, int]] = {}
    entries = 0
    yield EXPRESSION + "\n\n"
    for one in view.sequence:
        event, message = one.event, one.event.message or ""
        if event.kind == ARRIVE:
            continue
        clock = clocks[one.process]
        clock[names[one.process]] = clock.get(names[one.process], 0) + 1
        if event.kind == DELIVER:
            raise_to(clock, carried[message])
        elif event.kind == SEND:
            carried[message] = dict(clock)
        entries += len(clock)
        if entries > limits.foreign_clock_entries_max:
            most = limits.foreign_clock_entries_max
            raise TraceError(f"more than {most:,} clock entries: export fewer processes, or a shorter range of time")
        yield f"{names[one.process]} {encode(clock).decode()} {_event_text(event, view.is_late(event))}\n"


def _event_text(event: Event, late: Late | None) -> str:
    text = event.kind
    if event.message is not None:
        text += f" {_word(event.message)}"
    if event.kind == SEND and event.to:
        text += f" to {','.join(map(_word, event.to))}"
    if label := label_of(event):
        text += f" : {label}"
    return f"{text} (late, after {_word(late.overtaken_by)})" if late is not None else text


def _word(name: str) -> str:
    """Return a name in which white space, commas, braces and percent signs are replaced by codes such as ``%20``.
    Different names stay different."""
    plain = "".join(char if _plain(char) else "".join(f"%{byte:02X}" for byte in _bytes(char)) for char in name)
    return plain or "%"


def _plain(char: str) -> bool:
    return char.isprintable() and not char.isspace() and char not in "%,{}"


def _bytes(char: str) -> bytes:
    return char.encode("utf-8", "surrogatepass")
