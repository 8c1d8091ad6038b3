"""The classes of the errors that the outside world can cause.

An error's text is one line for the person who has to act on it: what was wrong, where, and what was expected.
The command line prints that line and exits with 2. Our own mistakes are assertions, not errors of this module.
"""

from collections.abc import Iterable
from copy import copy
from difflib import get_close_matches


class AntecedeError(Exception):
    """Something from outside was wrong; ``str()`` is the one line to show, ``code`` names the kind for programs."""

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
    """An exhaustive exploration that reaches more states than its limit allows."""


class TraceError(AntecedeError):
    """A trace that cannot be read at all (single bad rows are quarantined instead)."""


class TopologyError(AntecedeError):
    """A topology that cannot be used."""


class DecidedError(TopologyError):
    """A change of the topology that cannot be abandoned, because it has been made already."""

    code = "decided"


class AccessError(AntecedeError):
    """An access file, or credentials, that cannot be used."""

    code = "access"


class OrderError(AntecedeError):
    """An ordering protocol does not support the request."""


class UnknownOrderError(OrderError):
    """No ordering protocol has that name."""


class BroadcastOnlyError(OrderError):
    """A multicast to some of the members was given to an order that supports only broadcasts."""


class StampError(AntecedeError):
    """A stamp from the wire that no correct peer can have sent."""


class SnapshotError(AntecedeError):
    """A saved protocol state that cannot be restored."""


class LinkError(AntecedeError):
    """A frame or an acknowledgement that no correct peer can have sent."""


class DiagramError(AntecedeError):
    """A computation that cannot be drawn."""


class WireError(AntecedeError):
    """Bytes from the network that no correct peer can have sent. ``code`` names the rule that they break."""

    def __init__(self, reason: str, code: str = "malformed") -> None:
        super().__init__(reason)
        self.code = code


class UnknownAgentError(UsageError):
    """A letter to an agent that does not exist."""

    code = "unknown-agent"


class NoRouteError(UsageError):
    """A letter to an agent without a route: no chain of domains leads to its server."""

    code = "no-route"


class NotAllowedError(UsageError):
    """An identity tried something that the access file of the servers does not allow it to do."""

    code = "not-allowed"


class OverloadError(AntecedeError):
    """The server accepts no more input from outside until it has caught up."""

    code = "overloaded"


class MailboxFullError(UsageError):
    """A publish to a mailbox that is full; other publishes are not affected. Try again later."""

    code = "mailbox-full"


class ClosedError(AntecedeError):
    """A bus or a server that is closed, or that does not answer."""


class RefusedError(AntecedeError):
    """The other end refuses the connection; the text gives the reason, ``code`` names it for programs."""

    def __init__(self, reason: str, code: str = "refused") -> None:
        super().__init__(reason)
        self.code = code


class AgentError(AntecedeError):
    """An agent's class, handler or state that cannot be used."""


class UnansweredError(AgentError):
    """The agent could not react to a question; the text gives the reason."""


class ObjectError(AntecedeError):
    """An object's class, operation or relation of conflicts that cannot be used."""


class OperationError(AntecedeError):
    """A called operation of a replicated object failed, for the given reason; all its effects are undone."""


class CallTimeoutError(OperationError, TimeoutError):
    """A call of a replicated object did not finish in time."""


class StoreError(AntecedeError):
    """A log or a snapshot that cannot be read, or a disk that can no longer be written."""


class StoreLockedError(StoreError):
    """A data directory that another process has open."""


class StoreFormatError(StoreError):
    """A data directory in a format that this version does not read."""


class StoreFailedError(StoreError):
    """A write or a sync failed: nothing more is acknowledged; opening the log again shows what is durable."""


class BrokenStepError(AntecedeError):
    """A server could not complete a step: it must stop, and can continue from its log."""


class CorruptLogError(StoreError):
    """Durable bytes that differ from what was written. A crash cannot cause this, so nothing is repaired."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(f"{file}: byte {offset}: {reason}")
        self.file = file
        self.offset = offset
        self.reason = reason


class StoreFullError(StoreError):
    """There is no space for this record now; records accepted before are not affected."""


class DiskFullError(StoreFullError):
    """The file system has no space for the next segment of the log."""


class NoDescriptorError(StoreFullError):
    """The process has no file descriptor left for a file of the log; as with a full disk, try again later."""


class SparkError(AntecedeError):
    """Spark could not be started, or failed."""


def again(error: AntecedeError, where: str = "") -> AntecedeError:
    """Return a copy of an error, with ``where`` before its text. (One object that is raised in several places would
    collect the tracebacks of all these places.)"""
    twin = copy(error)
    if where:
        twin.args = (f"{where}: {error}",)
    return twin


def similar(given: str, known: Iterable[str]) -> str:
    """Return a question for the end of an error's text, with the known name that was probably meant; empty if no name
    is similar."""
    near = get_close_matches(given[:100], list(known), 1, 0.6)
    return f"; did you mean {near[0]}?" if near else ""
