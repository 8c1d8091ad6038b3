"""Compare the sends and the deliveries of an imported log, and find the deliveries that ``verify`` cannot check.

``verify`` sets a delivery aside (does not judge it) in two cases: its message has no send, or the send names only other
destinations. With a new mapping, the usual reason is a mistake. For example, a file is missing, or the names in ``to``
are not the names of processes. Or the mapping expects the wrong character between these names. So the import counts
such deliveries and shows the first few.

This module knows events with their ids and processes. It does not know the records from which the events were made.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from antecede.trace.schema import DELIVER, SEND

_shown_max = 5
_names_max = 10
_separators = ("+", ";", "|", "/", "&", " ")


class Row(msgspec.Struct, gc=False):
    """An event of an imported log, before its index in the trace is known."""

    process: str
    place: int
    """The sort key of the event among the events of its process."""
    file: str
    line: int
    kind: str
    message: str | None
    to: tuple[str, ...] | None
    time: int | None
    texts: dict[str, str] | None
    extra: dict[str, Any] | None
    assumed: bool = False
    """True if other events have the same ``place``, and the order of these events is not known."""

    @property
    def source(self) -> str:
        """The position of the event in the log: its file and line."""
        return f"{self.file}:{self.line}"


class Ends:
    """Compares the sends and the deliveries of one import."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._sends: dict[str, Row] = {}
        self._deliveries: list[Row] = []
        self._sent_again: set[str] = set()
        for row in rows:
            if row.kind == DELIVER:
                self._deliveries.append(row)
            elif row.kind == SEND and row.message is not None and self._sends.setdefault(row.message, row) is not row:
                self._sent_again.add(row.message)
        self._receivers = {row.process for row in self._deliveries}

    def report(self) -> dict[str, Any]:
        """Return the part of the report that says how many deliveries have a send, and which sends and deliveries do
        not fit together."""
        orphans = [row for row in self._deliveries if row.message not in self._sends]
        not_addressed = [row for row in self._deliveries if self._is_not_addressed(row)]
        # Destinations at which nothing is delivered, with the number of sends that name them.
        named = (name for send in self._sends.values() for name in send.to or ())
        unknown = Counter(name for name in named if name not in self._receivers)
        return {
            "matched": len(self._deliveries) - len(orphans),
            "sent_again": len(self._sent_again),
            "orphans": len(orphans),
            "orphans_first": [f"{row.source}: {row.process} delivers {row.message}" for row in orphans[:_shown_max]],
            "not_addressed": len(not_addressed),
            "not_addressed_first": [self._described(row) for row in not_addressed[:_shown_max]],
            "unknown_to": dict(unknown.most_common(_names_max)),
            "separator": self._separator(unknown),
        }

    def _is_not_addressed(self, row: Row) -> bool:
        """Return ``True`` if a message was delivered at a process that is not one of the destinations in its send.
        Return ``False`` if the message has no send or several sends, or if the destinations are unknown."""
        send = self._sends.get(row.message or "")
        if send is None or send.to is None or row.message in self._sent_again:
            return False
        return row.process not in send.to

    def _described(self, row: Row) -> str:
        send = self._sends[row.message or ""]
        named = ", ".join((send.to or ())[:_shown_max]) or "nobody"
        return f"{row.source}: {row.process} delivers {row.message}, which was sent to {named} ({send.source})"

    def _separator(self, unknown: Counter[str]) -> str | None:
        """Return the character that joins several process names in one destination of ``unknown``, such as ``+`` in
        ``p1+p2``. If there is no such destination, return ``None``. ``unknown``: the destinations at which no message
        is delivered."""
        for mark in _separators:
            if any(mark in name and self._receivers.issuperset(map(str.strip, name.split(mark))) for name in unknown):
                return mark
        return None
