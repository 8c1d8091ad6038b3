"""The operator's part in a consistent cut. It has two rounds. In the first round, the operator *holds* every server. In
the second round, the operator *cuts* every server.

A held server accepts nothing from its peers. When a server is cut, it chooses a position in its log. The records up to
this position belong to the backup. No server is cut before all servers are held.
:mod:`antecede.server.operations.backups` explains why two rounds are needed. If one server refuses or does not answer,
the cut has failed, and the other servers are released. The class :class:`Cutting` does no I/O. The code that uses it
sends the ``requests``, and reports each answer with ``answered``.
"""

from collections.abc import Iterable
from typing import Any

from antecede.errors import AntecedeError


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
