"""The label of a notification: a short text for people, which the method ``label()`` of its class returns.

    class Said(Notification):
        text: str

        def label(self) -> str:
            return self.text

A label is shown next to the class in traces, explanations, pictures, ``status`` and ``dead``. No decision uses a label,
so an error in ``label()`` must not disturb a send. If ``label()`` raises an exception, or returns a value that is not a
string, the notification has no label, and the error is logged once per class. The sender computes the label, because
only the sender certainly has the class. The label is sent in the *context* of the letter. The context is a text with
two parts, ``TRACE CONTEXT\\nLABEL``: the trace context and the label. Both parts may be empty. If there is no label,
the context is only the trace context, as in letters of earlier versions.

A class without ``label()`` costs nothing: callers remember such classes in a table and then do not call this module.
"""

import logging

from antecede.failures import is_ctrl_c
from antecede.limits import notification_label_chars_max as label_chars_max

_logger = logging.getLogger("antecede.labels")
_failed: set[type] = set()
"""The classes for which an error in ``label()`` was logged."""


def has_label(kind: type) -> bool:
    """Return whether a class of notifications has a method ``label``. A field with this name is not enough."""
    return callable(getattr(kind, "label", None))


def tail_of(notification: object) -> str:
    """Return a newline and the label of a notification. A letter with this notification has this text at the end of its
    context. Return an empty text if the notification has no label."""
    if not has_label(type(notification)):
        return ""
    try:
        text = notification.label()  # type: ignore[attr-defined]
        if not isinstance(text, str):
            raise TypeError(f"label() returned a value of type {type(text).__name__}: expected str")
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
    """Return the end of a letter's context: the newline and the label. Return an empty text if the context has no
    label."""
    at = context.find("\n")
    return context[at:] if at >= 0 else ""


def label_in(context: str) -> str | None:
    """Return the label in the context of a letter; None if there is no label. The label is cleaned with ``clean``,
    because the letter may come from outside."""
    return clean(context.partition("\n")[2]) or None


def trace_in(context: str) -> str:
    """Return the first part of a letter's context: the trace context, without the label."""
    return context.partition("\n")[0]
