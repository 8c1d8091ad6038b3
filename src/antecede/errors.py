"""The classes of the errors that have a cause outside this package: users, applications, files, networks or disks.

The text of an error is one line for the person who must solve the problem: what was wrong, where, and what was
expected. The command line prints that line and exits with 2. If there is a mistake in our own code, an assertion fails;
this module has no errors for such mistakes.
"""

from collections.abc import Iterable
from copy import copy
from difflib import get_close_matches


class AntecedeError(Exception):
    """The base class of all errors of this module. ``str()`` returns the one line to show; ``code`` is a short name of
    the kind of error, for programs."""

    code = "error"


class UsageError(AntecedeError):
    """An option or an argument that is not valid."""

    code = "usage"


class MissingError(UsageError):
    """This server does not have what was requested; another server may have it."""

    code = "missing"


class ScenarioError(AntecedeError):
    """A scenario file that cannot be read or played."""

    def __init__(self, file: str, line: int, reason: str) -> None:
        super().__init__(f"{file}:{line}: {reason}")
        self.file = file
        self.line = line
        self.reason = reason


class ScopeTooLargeError(AntecedeError):
    """An exhaustive exploration reached more states than its limit allows. Its scope (such as the number of processes
    and messages) is too large."""


class TraceError(AntecedeError):
    """A trace that cannot be read at all. (If only single rows are bad, these rows are quarantined, and this error is
    not raised.)"""


class TopologyError(AntecedeError):
    """A topology that cannot be used."""


class DecidedError(TopologyError):
    """An attempt to abandon a change of the topology, although the change is already in force."""

    code = "decided"


class AccessError(AntecedeError):
    """An access file, or credentials, that cannot be used."""

    code = "access"


class OrderError(AntecedeError):
    """A request that the ordering protocol does not support."""


class UnknownOrderError(OrderError):
    """A name that is not the name of an ordering protocol."""


class BroadcastOnlyError(OrderError):
    """A multicast to only some of the members, with an ordering protocol that supports only broadcasts."""


class StampError(AntecedeError):
    """A received stamp (control information of an ordering protocol) that no correct peer can have sent."""


class SnapshotError(AntecedeError):
    """A saved state (of a server, a link or an ordering protocol) that cannot be restored."""


class LinkError(AntecedeError):
    """A frame, an acknowledgement or a hello does not fit the state of this end of the link. Either the peer has an
    error, or one of the two ends lost data or was restored from a backup."""


class DiagramError(AntecedeError):
    """A computation (the events of a run) that cannot be drawn as a diagram."""


class WireError(AntecedeError):
    """Received bytes that no correct peer can have sent. ``code`` names the rule that the bytes break."""

    def __init__(self, reason: str, code: str = "malformed") -> None:
        super().__init__(reason)
        self.code = code


class UnknownAgentError(UsageError):
    """A letter to an agent that does not exist."""

    code = "unknown-agent"


class NoRouteError(UsageError):
    """A letter to an agent that cannot be reached, because no chain of domains leads to the agent's server."""

    code = "no-route"


class NotAllowedError(UsageError):
    """An action for which the caller has no permission in the access file of the servers."""

    code = "not-allowed"


class OverloadError(AntecedeError):
    """The server is overloaded: it accepts no more input from outside until it has caught up."""

    code = "overloaded"


class MailboxFullError(UsageError):
    """A publish to a full mailbox. Try again later; publishes to other mailboxes are not affected."""

    code = "mailbox-full"


class ClosedError(AntecedeError):
    """A bus or a server that is closed, or that does not answer."""


class RefusedError(AntecedeError):
    """The other end refuses the connection. The text gives the reason; ``code`` is a short name of the reason, for
    programs."""

    def __init__(self, reason: str, code: str = "refused") -> None:
        super().__init__(reason)
        self.code = code


class AgentError(AntecedeError):
    """An agent's class, handler or state that cannot be used."""


class UnansweredError(AgentError):
    """A question that an agent could not handle. The text gives the reason."""


class ObjectError(AntecedeError):
    """An object that cannot be used, because its class, an operation or its conflict relation is wrong."""


class OperationError(AntecedeError):
    """An operation of a replicated object was called and failed. The text gives the reason; all effects of the call are
    undone."""


class CallTimeoutError(OperationError, TimeoutError):
    """A call of a replicated object's operation did not finish in time."""


class StoreError(AntecedeError):
    """A log or a snapshot that cannot be read, or a disk that can no longer be written."""


class StoreLockedError(StoreError):
    """A data directory that another process has open."""


class StoreFormatError(StoreError):
    """A data directory in a format that this version does not read."""


class StoreFailedError(StoreError):
    """A write or a sync of the log failed, so no further record is acknowledged. Open the log again to find out which
    records are durable."""


class BrokenStepError(AntecedeError):
    """A server could not complete a step (the handling of some inputs), so the server must stop. After a restart, it
    continues from its log."""


class CorruptLogError(StoreError):
    """Durable bytes in the data directory are not the bytes that were written. A crash cannot cause this, so nothing is
    repaired."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(f"{file}: byte {offset}: {reason}")
        self.file = file
        self.offset = offset
        self.reason = reason


class StoreFullError(StoreError):
    """There is no space for this record now. Records that were accepted earlier are not affected."""


class DiskFullError(StoreFullError):
    """The file system has no space for the next segment of the log."""


class NoDescriptorError(StoreFullError):
    """The process has no free file descriptor for a file of the log. Try again later, as after a
    :class:`DiskFullError`."""


class SparkError(AntecedeError):
    """Spark could not be started, or failed."""


def again(error: AntecedeError, where: str = "") -> AntecedeError:
    """Return a copy of an error, to raise it once more. ``where`` is put before its text. (If one object were raised in
    several places, it would collect the tracebacks of all these places.)"""
    copied = copy(error)
    if where:
        copied.args = (f"{where}: {error}",)
    return copied


def similar(given: str, known: Iterable[str]) -> str:
    """Return ``; did you mean NAME?`` for the end of an error's text, with the known name that is most similar to
    ``given``. Return an empty text if no name is similar."""
    near = get_close_matches(given[:100], list(known), 1, 0.6)
    return f"; did you mean {near[0]}?" if near else ""
