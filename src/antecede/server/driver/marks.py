"""High-water marks: bounds for the data that waits in a server. Above a mark, new messages are refused where they enter
the system.

Above a mark, publishes of clients are refused with an :class:`antecede.errors.OverloadError`. Messages of agents and
routers are always accepted. Above the mark for letters, nothing more is read from peers. So letters wait at the peers,
and the peers reach their marks and refuse publishes, too. Dead letters do not count, because they have a separate
bound. If the disk has no space for the next segment of the log, publishes are refused as well: the remaining space is
for messages that were already accepted.
"""

from collections.abc import Callable
from typing import Protocol

from msgspec.structs import asdict

from antecede import limits
from antecede.server import CATCHING_UP, AgentServer
from antecede.server.backlog import Backlog
from antecede.server.inputs import Log


class LogView(Protocol):
    """The part of a :class:`antecede.store.contract.Store` that the classes of a server use."""

    @property
    def pending_bytes(self) -> int: ...

    @property
    def log_bytes(self) -> int: ...

    def shortage(self) -> str: ...

    @property
    def last(self) -> int: ...

    @property
    def durable(self) -> int: ...

    @property
    def unvouched(self) -> bool: ...

    def vouch(self) -> None: ...

    def forget_cuts(self) -> None: ...


class Marks:
    """Checks the data that waits in one server against the high-water marks."""

    def __init__(self, machine: AgentServer, store: LogView, hold_peers: Callable[[bool], None], log: Log) -> None:
        """``hold_peers``: a function that stops reading from all peers (True), or continues to read (False)."""
        self._machine = machine
        self._store = store
        self._hold_peers = hold_peers
        self._log = log
        self.held = False
        """Whether reading from peers is stopped."""
        self.unwatched_bytes = 0
        """Bytes written to the log since the last check."""
        self._uncounted_bytes = 0
        self._rough = 0
        """Number of checks in a row that did not count the letters."""
        self.shortage = ""
        """The reason why there may soon be no space for more records. It is empty if there is enough space."""

    def watch(self, stopping: bool) -> None:
        """Check all queues and the log against their marks. Refuse publishes if a mark is exceeded or the server is
        ``stopping``. Call this method from time to time, and after much input."""
        machine, store = self._machine, self._store
        machine.engine.came = 0
        backlog = self._backlog()
        load = max(backlog.letters / limits.backlog_letters_max, backlog.letter_bytes / limits.backlog_letter_bytes_max)
        # While letters must arrive for a change of the topology, everything is read.
        if not machine.organisation.paused and ((load > 1) if not self.held else (load > 0.5)):
            self._hold(peers=True)
        elif self.held:
            self._hold(peers=False)
        self.watch_room()
        if not self.shortage:
            machine.overload = CATCHING_UP
        overloaded = (
            stopping
            or bool(self.shortage)
            or load > 1
            or backlog.frames > limits.backlog_frames_max
            or backlog.frame_bytes > limits.backlog_bytes_max
            or store.pending_bytes > limits.store_pending_bytes_max // 2
            or store.log_bytes > limits.store_log_bytes_max * 3 // 4
        )
        if overloaded != machine.overloaded:
            machine.overloaded = overloaded
            if not stopping:
                fields = {**asdict(backlog), "pending_bytes": store.pending_bytes, "log_bytes": store.log_bytes}
                self._log.warning("overloaded" if overloaded else "caught-up", **fields)

    def _backlog(self) -> Backlog:
        """Return how much data waits. An exact count takes time for each new letter. So this method makes an exact
        count only from time to time, and whenever the size of the letters may be near the bound. Between two exact
        counts, it assumes that this size grows by at most the number of bytes written to the log."""
        self._uncounted_bytes += self.unwatched_bytes
        self.unwatched_bytes = 0
        backlog = self._machine.backlog(exact=False)
        most = backlog.letter_bytes + self._uncounted_bytes + _letter_bytes * backlog.letters
        if self._rough < _rough_max and self._machine.kept and 2 * most < limits.backlog_letter_bytes_max:
            self._rough += 1
            return backlog
        self._rough = self._uncounted_bytes = 0
        return self._machine.backlog()

    def watch_room(self) -> None:
        """Check whether there is space for the next segment of the log. If there is none, refuse publishes
        immediately."""
        shortage = self._store.shortage()
        if shortage == self.shortage:
            return
        if bool(shortage) != bool(self.shortage):
            if shortage:
                self._log.error("disk-full", reason=shortage)
            else:
                self._log.info("room-again")
        self.shortage = shortage
        self._machine.overload = f"{shortage}: try again later" if shortage else CATCHING_UP
        if shortage:
            # Refuse at once, not at the next check: the rest of a segment is soon full.
            self._machine.overloaded = True

    def _hold(self, *, peers: bool) -> None:
        """Stop reading from peers if ``peers`` is true. If ``peers`` is false, continue to read. While reading is
        stopped, reactions still run, so the mailboxes become shorter."""
        if peers != self.held:
            self.held = peers
            self._log.warning("peers-held" if peers else "peers-read-again")
        self._hold_peers(peers)


_letter_bytes = 600
"""The bytes of memory that a letter needs in addition to its body."""
_rough_max = 9
"""The largest number of checks in a row that do not count the letters. Because of this limit, the letters are counted
about once per second. They must not be counted less often, because some letters reach a mailbox long after they were
logged."""
