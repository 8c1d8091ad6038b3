"""The audit log: who connected, who was refused, and who changed something with which command.

The log has one JSON document per line. Its file has a limited size (:mod:`antecede.live.logs`). An unknown program can
cause any number of refusals. So the server writes at most a fixed number of refusals per second. If refusals were left
out, the next line gives the number of refusals that were left out. All other lines are about proven identities or about
the server itself. The limits of an identity also limit the number of lines about this identity.
"""

import json
from collections.abc import Callable
from typing import Any

from antecede import limits
from antecede.access.authoriser import Who
from antecede.access.rates import Bucket

REFUSED = "refused"


class Audit:
    """The audit log of one server."""

    def __init__(self, write: Callable[[str], None], server: str, clock: Callable[[], float]) -> None:
        """``write``: appends a line. ``clock``: returns seconds since 1970."""
        self._write = write
        self._server = server
        self._clock = clock
        self._refusals = Bucket(limits.audit_refusals_per_second)
        self._left_out = 0

    def note(self, event: str, who: Who | None, remote: str, **fields: Any) -> None:
        """Write one event. ``who``: the identity of the other end of the connection. If the other end has not proved an
        identity, ``who`` is None, and the caller passes the claimed name in ``fields``."""
        now = self._clock()
        if event == REFUSED:
            if not self._refusals.holds(now):
                self._left_out += 1
                return
            self._refusals.take(1)
        document: dict[str, Any] = {"time": round(now, 3), "server": self._server, "event": event}
        if who is not None:
            document |= {"role": who.role, "name": who.name}
        document["remote"] = remote
        document |= {key: value[:_chars_max] if isinstance(value, str) else value for key, value in fields.items()}
        if self._left_out:
            document["refusals_left_out"] = self._left_out
            self._left_out = 0
        self._write(json.dumps(document, ensure_ascii=True))


_chars_max = 400
