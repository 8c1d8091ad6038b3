"""The operator's end of a connection to a server, without I/O.

Each connection is for one request. The answer to the request is one JSON document.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from antecede import wire
from antecede.access import Refusal
from antecede.access.proof import Dialing, Keyring
from antecede.errors import (
    AntecedeError,
    ClosedError,
    DecidedError,
    MissingError,
    NotAllowedError,
    OverloadError,
    RefusedError,
    UsageError,
)
from antecede.server.connections import CLOSED_AT_ONCE, Connection
from antecede.server.entry import LONG


class OperatorRequest:
    """One request of an operator to a server, on a separate connection."""

    def __init__(
        self,
        connection: Connection,
        request: wire.Request,
        answered: Callable[[Any, AntecedeError | None], None],
        keyring: Keyring | None = None,
        long: bool = False,
    ) -> None:
        """``answered``: called once, with the document or with the error. ``keyring``: the operator's identity, for
        servers with an access file. ``long``: whether the request is too long for the first frame of a connection, or
        the server may need a long time to answer."""
        self._connection = connection
        self._next: list[wire.Request] = []
        if long:
            self._next = [request]
            request = wire.Request(request.token, LONG, [])
        self._request = request
        self._answered = answered
        self._done = False
        self._proof = None if keyring is None else Dialing(keyring, connection)
        if self._proof is not None:
            connection.send([self._proof.introduction])
        else:
            connection.trust(server=True)
            connection.send([request])

    def _prove(self, dialing: Dialing, part: wire.AnyPart) -> None:
        """Check the server's proof of its identity. Then send our proof and the request, or end with an error."""
        proof = dialing.answer(part)
        if isinstance(proof, Refusal):
            self._end(None, RefusedError(proof.reason, proof.code))
            self._connection.close(proof.reason, final=True, code=proof.code)
            return
        self._proof = None
        self._connection.trust(server=True)
        self._connection.send([proof])
        self._connection.send([self._request])

    def received(self, parts: list[wire.AnyPart]) -> None:
        """Handle parts that the server has sent."""
        for part in parts:
            if self._done:
                return
            if self._proof is not None and not isinstance(part, wire.Bye):
                self._prove(self._proof, part)
            elif isinstance(part, wire.Answer) and part.ok and self._next:
                self._connection.send([self._next.pop()])
            elif isinstance(part, wire.Answer):
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
            self._end(None, _kinds.get(part.code, UsageError)(str(document)))
        self._connection.close("done")

    def closed(self, reason: str, now: float) -> None:
        """Record that the connection has ended. If no answer has come, report an error: it is not known whether the
        server has carried out the command."""
        self._end(None, ClosedError(reason or CLOSED_AT_ONCE))

    def writable(self) -> None:
        """Do nothing when the connection has room again, because this class never waits for room."""

    def _end(self, document: Any, error: AntecedeError | None) -> None:
        if not self._done:
            self._done = True
            self._answered(document, error)


_kinds = {kind.code: kind for kind in (MissingError, OverloadError, NotAllowedError, DecidedError)}
