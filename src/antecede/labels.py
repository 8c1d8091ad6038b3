"""The label of a notification: a short text for people, from a method ``label()`` of its class.

    class Said(Notification):
        text: str

        def label(self) -> str:
            return self.text

A label is shown beside the class in traces, explanations, pictures, ``status`` and ``dead``. No decision uses it, so an
error in ``label()`` must not disturb a send: an exception, or a value that is not a string, gives no label, and is
logged once per class. The label is computed when the notification is sent, because only the sender certainly has the
class. It then travels in the context of the letter, behind the trace context: ``TRACE CONTEXT\\nLABEL``. Both parts may
be empty; a context without a label is the trace context alone, as in letters of earlier versions.

A class without ``label()`` costs nothing: callers keep such classes in a table and do not call this module.
"""

import logging

from antecede.interrupts import is_ctrl_c
from antecede.limits import notification_label_chars_max as label_chars_max

_logger = logging.getLogger("antecede.labels")
_failed: set[type] = set()
"""The classes whose errors were logged."""


def has_label(kind: type) -> bool:
    """Return whether the notifications of a class have labels, that is, a method ``label``; a field does not count."""
    return callable(getattr(kind, "label", None))


def tail_of(notification: object) -> str:
    """Return the part of a letter's context that has the label of a notification; empty if there is no label."""
    if not has_label(type(notification)):
        return ""
    try:
        text = notification.label()  # type: ignore[attr-defined]
        if not isinstance(text, str):
            raise TypeError(f"it returned {type(text).__name__}, expected str")
        text = clean(text)
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        kind = type(notification)
        if kind not in _failed:
            _failed.add(kind)
            _logger.warning(
                "%s.label() failed, so messages of this class have no label: %s: %s",
                kind.__qualname__,
                type(error).__name__,
                clean(str(error)),
            )
        return ""
    return f"\n{text}" if text else ""


def clean(text: str) -> str:
    """Return a label as one line of printable characters, shortened if it is too long."""
    # A label may be very long: its beginning is enough, even if it begins with some white space.
    words = " ".join(str.__getitem__(text, slice(0, 8 * label_chars_max)).split())
    short = words if len(words) <= label_chars_max else words[: label_chars_max - 1] + "…"
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in short)


def tail_in(context: str) -> str:
    """Return the part of a context that has the label, with the separator before it; empty if there is no label."""
    at = context.find("\n")
    return context[at:] if at >= 0 else ""


def label_in(context: str) -> str | None:
    """Return the label in the context of a letter, cleaned, because the letter may come from outside; None if there is
    no label."""
    return clean(context.partition("\n")[2]) or None


def trace_in(context: str) -> str:
    """Return the trace context in the context of a letter."""
    return context.partition("\n")[0]
