"""A sequence diagram for Mermaid, which GitHub, GitLab and many wikis draw.

A copy of a message is an arrow from its sender to one receiver. In Mermaid an arrow belongs to one moment, so the arrow
is drawn at the time of the delivery. If other events happen between the send and the deliveries of a message, a note
shows when the message was sent. A copy that is never delivered is an arrow with a cross, at the time of the send.
"""

from collections.abc import Iterator

from antecede.trace.exporting.view import Placed, View, label_of, one_line
from antecede.trace.schema import ARRIVE, DELIVER, SEND, Event


def written(view: View) -> Iterator[str]:
    """Yield the diagram, line by line."""
    yield "sequenceDiagram\n"
    lanes = {name: f"p{process}" for process, name in enumerate(view.trace.names)}
    for name, lane in lanes.items():
        yield f"  participant {lane} as {_text(name)}\n"
    steps = [one for one in view.sequence if one.event.kind != ARRIVE]
    delivered = {(one.event.message, one.event.process) for one in steps if one.event.kind == DELIVER}
    for number, one in enumerate(steps):
        event, lane = one.event, lanes[one.event.process]
        if event.kind == SEND:
            text = _message(view, event)
            if not _at_once(steps, number, delivered):
                yield f"  Note over {lane}: sends {_quoted(view, event)}\n"
            for name in event.to or ():
                if name in lanes and (event.message, name) not in delivered:
                    yield f"  {lane}-x{lanes[name]}: {text} (not delivered)\n"
        elif event.kind == DELIVER:
            late = view.is_late(event)
            source = lanes[view.trace.sent(event.message or "").process]
            yield f"  {source}-){lane}: {_message(view, event)}{' (late)' if late is not None else ''}\n"
            if late is not None:
                overtaker = view.trace.sent(late.overtaken_by)
                yield f"  Note over {lane}: late, after {_quoted(view, overtaker)}\n"
        else:
            yield f"  Note over {lane}: {_text(label_of(event) or event.kind)}\n"


def _at_once(steps: list[Placed], number: int, delivered: set[tuple[str | None, str]]) -> bool:
    """Return whether all deliveries of a message come directly after its send, which is ``steps[number]``."""
    message = steps[number].event.message
    awaited = sum(one == message for one, _ in delivered)
    following = steps[number + 1 : number + 1 + awaited]
    return all(one.event.kind == DELIVER and one.event.message == message for one in following)


def _message(view: View, event: Event) -> str:
    message = event.message or ""
    return _text(label_of(view.trace.sent(message)) or message)


def _quoted(view: View, event: Event) -> str:
    """Return the label of a message in quotation marks. If it has no label, return its id without quotation marks."""
    text = _message(view, event)
    return f'"{text}"' if label_of(view.trace.sent(event.message or "")) else text


_escaped = {"#": "#35;", ";": "#59;", ":": "#58;", "%": "#37;", "<": "#lt;", ">": "#gt;"}


def _text(text: str) -> str:
    """Return a text in which the characters that have a meaning in Mermaid are escaped."""
    return "".join(_escaped.get(char, char) for char in one_line(text)).strip() or "#8203;"
