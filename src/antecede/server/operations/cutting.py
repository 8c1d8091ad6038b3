"""The operator's part in a consistent cut: first hold all servers, and only when all are held, cut each of them.

See :mod:`antecede.server.operations.backups` for the reason. If one server does not answer, or refuses, the others are
released, and the cut has failed. This class does no I/O: an adapter sends the ``requests`` that are due, and reports
each answer.
"""

from collections.abc import Iterable
from typing import Any

from antecede.errors import AntecedeError


class Cutting:
    """One cut of several servers."""

    def __init__(self, servers: Iterable[str], id_: str) -> None:
        """``id_``: a name that no other backup has."""
        self._servers = list(servers)
        self._id = id_
        self._phase = _phases[0]
        self._asked: set[str] = set()
        self._held: set[str] = set()
        self.cuts: dict[str, dict[str, Any]] = {}
        """The answer of each server that was cut."""
        self.failure: tuple[str, AntecedeError] | None = None
        """The first server that refused or did not answer, with the error."""

    @property
    def done(self) -> bool:
        """Whether all servers were cut."""
        return self.failure is None and len(self.cuts) == len(self._servers)

    @property
    def over(self) -> bool:
        """Whether the cut has ended: it is done, or it has failed and no answer is missing."""
        return self.done or (self.failure is not None and not self._asked)

    def requests(self) -> list[tuple[str, str, list[str]]]:
        """Return the requests to send now, all at once: server, command, arguments. There are none while answers are
        missing, and after a failure."""
        if self._asked or self.failure is not None:
            return []
        if self._phase == _phases[0] and len(self._held) == len(self._servers):
            self._phase = _phases[1]
        due = [server for server in self._servers if self._phase == _phases[0] or server not in self.cuts]
        self._asked = set(due)
        return [(server, self._phase, [self._id]) for server in due]

    def answered(self, server: str, document: Any, error: AntecedeError | None) -> None:
        """Take the answer of a server: a document, or the error."""
        self._asked.discard(server)
        if error is not None:
            self.failure = self.failure or (server, error)
        elif self._phase == _phases[0]:
            self._held.add(server)
        else:
            self.cuts[server] = document

    def releases(self) -> list[tuple[str, str, list[str]]]:
        """Return the requests that end the backup at all servers, after its files were read or when it failed. A server
        that does not get its request gives up the backup by itself."""
        return [(server, "backup-end", [self._id]) for server in self._servers]


_phases = ("backup", "backup-cut")
