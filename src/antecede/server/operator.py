"""An operator's end of the protocol, without I/O: one connection, one request, one JSON document."""

from collections.abc import Callable
from typing import Any

import msgspec

from antecede import wire
from antecede.errors import AntecedeError, ClosedError, MissingError, OverloadError, RefusedError, UsageError
from antecede.server.connections import Connection


class OperatorRequest:
    """One request to a server."""

    def __init__(
        self, connection: Connection, request: wire.Request, answered: Callable[[Any, AntecedeError | None], None]
    ) -> None:
        """``answered``: called once, with the document or with the error."""
        self._connection = connection
        self._answered = answered
        self._done = False
        connection.trust(server=True)
        connection.send([request])

    def received(self, parts: list[wire.AnyPart]) -> None:
        """Take what the server sent."""
        for part in parts:
            if isinstance(part, wire.Answer):
                self._answer(part)
            elif isinstance(part, wire.Bye):
                self._end(None, RefusedError(part.reason, part.code or "refused"))

    def _answer(self, part: wire.Answer) -> None:
        try:
            document = msgspec.json.decode(part.document)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self._end(None, RefusedError(f"unreadable answer: {error}", "unreadable"))
            return
        if part.ok:
            self._end(document, None)
        else:
            self._end(None, _errors.get(part.code, UsageError)(str(document)))
        self._connection.close("done")

    def closed(self, reason: str, now: float) -> None:
        """Process the end of the connection. If it comes before the answer, it is not known whether the command was
        carried out."""
        self._end(None, ClosedError(reason or "the server closed the connection"))

    def writable(self) -> None:
        """Nothing waits to be written."""

    def _end(self, document: Any, error: AntecedeError | None) -> None:
        if not self._done:
            self._done = True
            self._answered(document, error)


_errors = {kind.code: kind for kind in (MissingError, OverloadError)}
