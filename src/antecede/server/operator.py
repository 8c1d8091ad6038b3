"""The operator's end of a connection to a server, without I/O.

Each connection is for one request. The answer to the request is one JSON document.
"""

from collections.abc import Callable, Iterable, Mapping
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


# The operator's part in a consistent cut. It has two rounds. In the first round, the operator *holds* every server. In
# the second round, the operator *cuts* every server.
#
# A held server accepts nothing from its peers. When a server is cut, it chooses a position in its log. The records up
# to this position belong to the backup. No server is cut before all servers are held. :mod:`antecede.server.operations`
# explains why two rounds are needed. If one server refuses or does not answer, the cut has failed, and the other
# servers are released. The class :class:`Cutting` does no I/O. The code that uses it sends the ``requests``, and
# reports each answer with ``answered``.


class Cutting:
    """One consistent cut of several servers: the requests to send to them, and their answers."""

    def __init__(self, servers: Iterable[str], id_: str) -> None:
        """``id_``: a name that no other backup has."""
        self._servers = list(servers)
        self._id = id_
        self._phase = _phases[0]
        self._asked: set[str] = set()
        self._held: set[str] = set()
        self.cuts: dict[str, dict[str, Any]] = {}
        """Server → its answer to the command ``backup-cut``."""
        self.failure: tuple[str, AntecedeError] | None = None
        """The first server that refused or did not answer, with the error."""

    @property
    def done(self) -> bool:
        """Whether all servers have carried out the command ``backup-cut``."""
        return self.failure is None and len(self.cuts) == len(self._servers)

    @property
    def over(self) -> bool:
        """Whether the cut has ended: it is done, or it has failed and no further answer is expected."""
        return self.done or (self.failure is not None and not self._asked)

    def requests(self) -> list[tuple[str, str, list[str]]]:
        """Return the requests to send now. The caller can send all of them at the same time. Each request is a tuple of
        server, command and arguments. The list is empty while answers are missing, and after a failure."""
        if self._asked or self.failure is not None:
            return []
        if self._phase == _phases[0] and len(self._held) == len(self._servers):
            self._phase = _phases[1]
        due = [server for server in self._servers if self._phase == _phases[0] or server not in self.cuts]
        self._asked = set(due)
        return [(server, self._phase, [self._id]) for server in due]

    def answered(self, server: str, document: Any, error: AntecedeError | None) -> None:
        """Handle the answer of a server: ``document`` if the request succeeded, otherwise ``error``."""
        self._asked.discard(server)
        if error is not None:
            self.failure = self.failure or (server, error)
        elif self._phase == _phases[0]:
            self._held.add(server)
        else:
            self.cuts[server] = document

    def releases(self) -> list[tuple[str, str, list[str]]]:
        """Return the requests that end the backup, one for each server. Send them after the files were read, or when
        the backup has failed. A server that does not get its request gives up the backup by itself after some time."""
        return [(server, "backup-end", [self._id]) for server in self._servers]


_phases = ("backup", "backup-cut")


# The operator's part of a reset of a domain: check that there is a reason, and choose the next generation
# (number of resets).
#
# A reset is for a domain in which a server has lost data. The reset sends all unacknowledged messages again, so some
# messages are received twice. Therefore a reset needs a reason. There are two possible reasons: a link of the domain is
# stopped, or some members have reset the domain more often than others. (The second case occurs if the data of one
# member was replaced by an old copy, or if an earlier reset was interrupted.) The operator's program must read the
# states of all members, because the stopped link may be between any two of them.


class _Link(msgspec.Struct, frozen=True):
    connected: bool


class _Domain(msgspec.Struct, frozen=True):
    generation: int
    links: dict[str, _Link]


class _Stopped(msgspec.Struct, frozen=True):
    domain: str


class _Status(msgspec.Struct, frozen=True):
    """The fields that ``next_generation`` reads in a server's answer to ``status``."""

    domains: dict[str, _Domain]
    stopped: list[_Stopped]


def next_generation(domain: str, statuses: Mapping[str, object]) -> int:
    """Return the generation (number of resets) for the next reset of a domain. It is the largest present generation of
    all members, plus one. Raise an error if there is no reason for a reset. ``statuses``: the answers of all members to
    ``status``."""
    found = {server: _read(server, domain, status) for server, status in statuses.items()}
    generations = {status.domains[domain].generation for status in found.values()}
    stopped = any(one.domain == domain for status in found.values() for one in status.stopped)
    if not stopped and len(generations) == 1:
        apart = [
            f"{server} with {peer}"
            for server, status in found.items()
            for peer, link in status.domains[domain].links.items()
            if server < peer and not link.connected
        ]
        hint = f"; not connected: {', '.join(apart)} (lost data is noticed when servers connect)" if apart else ""
        raise UsageError(f"domain {domain} must not be reset: none of its links is stopped{hint}")
    return max(generations) + 1


def _read(server: str, domain: str, status: object) -> _Status:
    try:
        read = msgspec.convert(status, _Status)
    except msgspec.ValidationError as error:
        raise UsageError(f"unreadable status of server {server}: {error}") from None
    if domain not in read.domains:
        raise UsageError(f"server {server} is not in domain {domain}")
    return read
