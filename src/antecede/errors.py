"""Every error that the outside world can cause, by name.

An error's text is one line for the person who has to act on it: what was wrong, where, and what was expected.
The command line prints that line and exits with 2. Our own mistakes are assertions, not errors of this module.
"""


class AntecedeError(Exception):
    """Something from outside was wrong; ``str()`` is the one line to show."""


class UsageError(AntecedeError):
    """An option or an argument that cannot be meant."""


class ScenarioError(AntecedeError):
    """A scenario file that cannot be read or played."""

    def __init__(self, file: str, line: int, reason: str) -> None:
        super().__init__(f"{file}:{line}: {reason}")
        self.file = file
        self.line = line
        self.reason = reason


class ScopeTooLargeError(AntecedeError):
    """An exhaustive exploration that reaches more states than it may."""


class TraceError(AntecedeError):
    """A trace that cannot be read at all (single bad rows are quarantined instead)."""


class TopologyError(AntecedeError):
    """An organisation of servers and domains that cannot be used."""


class OrderError(AntecedeError):
    """An ordering protocol was asked for something that it does not do."""


class UnknownOrderError(OrderError):
    """No ordering protocol has that name."""


class BroadcastOnlyError(OrderError):
    """A subset multicast was given to an order that serves broadcasts only."""


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


class NoRouteError(UsageError):
    """A letter to an agent whose server no chain of domains reaches."""


class OverloadError(AntecedeError):
    """The server takes no more from outside until it has caught up."""


class ClosedError(AntecedeError):
    """A bus or a server that is closed, or that nobody answers."""


class RefusedError(AntecedeError):
    """The other end does not talk to us, and says why."""


class AgentError(AntecedeError):
    """An agent's class, handler or state that cannot be used."""


class UnansweredError(AgentError):
    """A question that the one who was asked could not react to, and why."""


class ObjectError(AntecedeError):
    """An object's class, operation or relation of conflicts that cannot be used."""


class OperationError(AntecedeError):
    """A called operation of a replicated object failed, and why; nothing of it is left."""


class CallTimeoutError(OperationError, TimeoutError):
    """A call of a replicated object that did not come to its end in time."""


class StoreError(AntecedeError):
    """A log or a snapshot that cannot be read, or a disk that no longer takes writes."""


class StoreLockedError(StoreError):
    """A data directory that another process has open."""


class StoreFormatError(StoreError):
    """A data directory in a format that this version does not read."""


class StoreFailedError(StoreError):
    """A write or a sync failed: nothing more is acknowledged; what is durable is found by opening again."""


class BrokenStepError(AntecedeError):
    """A step of a server could not be taken to its end: the server must end, and go on from its log."""


class CorruptLogError(StoreError):
    """Bytes that were durable and are not what was written. No crash does that, so nothing is repaired."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(f"{file}: byte {offset}: {reason}")
        self.file = file
        self.offset = offset
        self.reason = reason


class StoreFullError(StoreError):
    """No room for this record now; what was accepted before is not touched."""


class DiskFullError(StoreFullError):
    """The file system has no room for the next segment of the log."""


class NoDescriptorError(StoreFullError):
    """The process has no file descriptor left for a file of the log: like a full disk, try again."""


class SparkError(AntecedeError):
    """Spark could not be started, or gave up."""
