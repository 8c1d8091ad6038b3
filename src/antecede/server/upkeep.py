"""The regular work of a server: check the limits of its queues and mailboxes, watch its connections, take snapshots,
and prove that the end of the log is durable.

A new snapshot is needed when the log has grown enough since the last snapshot, in bytes or in records. The adapter (the
code that does the server's I/O) lets another process build the snapshot from the log (:mod:`antecede.server.recovery`).
Meanwhile the server continues. If the build fails, it is tried again after a pause. If it fails several times, or if no
other process can build snapshots, the server itself copies the state of its state machine, and the adapter writes this
copy. No snapshot is taken while records wait for room on the disk, because the snapshot would contain changes that are
not in the log.

A group of the log (records that are written together) may be damaged after it was durable. Recovery can recognise such
damage only if a later group exists. Without a later group, the damage looks like a torn write (a write that a crash
interrupted), and recovery removes the rest of the group. So a server that has nothing to write for a moment adds a
*witness*, an empty group. It does so at most once per ``witness_seconds``, so the cost is small. One witness is enough:
an empty group contains nothing that could be lost, so a witness does not need a second witness. An idle server writes
nothing more.
"""

from collections.abc import Callable
from typing import Final, Protocol

import msgspec
from msgspec.structs import asdict

from antecede import limits
from antecede.server.driver import Driver
from antecede.server.inputs import Log, Look
from antecede.server.node import CATCHING_UP, AgentServer, Backlog
from antecede.server.recovery import Task, task_of

# High-water marks: bounds for the data that waits in a server. Above a mark, new messages are refused where they enter
# the system.
#
# Above a mark, publishes of clients are refused with an :class:`antecede.errors.OverloadError`. Messages of agents and
# routers are always accepted. Above the mark for letters, nothing more is read from peers. So letters wait at the
# peers, and the peers reach their marks and refuse publishes, too. Dead letters do not count, because they have a
# separate bound. If the disk has no space for the next segment of the log, publishes are refused as well: the remaining
# space is for messages that were already accepted.


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


LOOK_SECONDS: Final = 0.1
"""The time between two checks."""


class Snapshot(msgspec.Struct, frozen=True):
    """A state to write as a snapshot."""

    data: bytes
    upto: int
    """The number of the last record that the snapshot covers."""


class Upkeep:
    """The regular work of one server."""

    def __init__(
        self,
        machine: AgentServer,
        store: LogView,
        driver: Driver,
        marks: Marks,
        watch: Callable[[float], None],
        log: Log,
        covers: int = 0,
    ) -> None:
        """``watch``: a function that checks the connections; ``look`` calls it about once per second. ``covers``: the
        number of records in the log that came after the last snapshot."""
        self._machine = machine
        self._store = store
        self._driver = driver
        self._marks = marks
        self._watch = watch
        self._log = log
        self.stopping = False
        self.failed = False
        """True if the server must end because of an error. Then no witness and no snapshot is written any more."""
        self.logged_bytes = 0
        """The bytes that this process has written to the log since it began the last snapshot. If that snapshot
        fails, the earlier bytes are added again."""
        self.snapshot_bytes = limits.snapshot_log_bytes
        """A new snapshot is needed when ``logged_bytes`` exceeds this number."""
        self.logged_records = covers
        """The number of records since the last snapshot."""
        self.direct = False
        """Whether this server must take its snapshots itself, because no other process can build them."""
        self._covered = (0, 0)
        """The values of ``logged_bytes`` and ``logged_records`` when the snapshot in progress was begun."""
        self._keeping = False
        """Whether a snapshot is being written."""
        self.failures = 0
        """The number of failed attempts to write a snapshot since the last success."""
        self._not_before = 0.0
        """After a failure: the earliest time at which the next snapshot may be tried."""
        self._watch_at = 0.0
        self._wrote_at = 0.0
        """The time at which the last record was appended to the log."""
        self._no_witness_before = 0.0

    def logged(self, count: int, size: int, now: float) -> None:
        """Record that this many records with this many bytes were appended to the log."""
        self.logged_records += count
        self.logged_bytes += size
        self._wrote_at = now

    def look(self, now: float) -> Snapshot | Task | None:
        """Do the regular work that is necessary at this time. If a snapshot is needed, return the snapshot or the task
        to build it. The caller must then call ``kept`` or ``not_kept``. If no snapshot is needed, return None."""
        self._marks.watch(self.stopping)
        engine = self._machine.engine
        if engine.mailboxes or engine.following.held or engine.too_many_dead:
            self._driver.feed(Look())
        if now >= self._watch_at:
            self._watch_at = now + _watch_seconds
            self._watch(now)
        if not self.failed and self._witness_is_due(now):
            self._no_witness_before = now + limits.witness_seconds
            self._store.vouch()
        grown = self.logged_bytes > self.snapshot_bytes or self.logged_records > limits.snapshot_records
        if not grown or now < self._not_before or self._keeping or self.failed or self._driver.behind:
            return None
        self._keeping = True
        self._covered = (self.logged_bytes, self.logged_records)
        self.logged_bytes = self.logged_records = 0
        if self.direct or self.failures >= limits.snapshot_builds_max:
            return self.final()
        return task_of(self._machine, self._store.last)

    def _witness_is_due(self, now: float) -> bool:
        """Return whether an empty group must be written now, to prove that the last group of the log was durable."""
        store = self._store
        quiet = store.durable == store.last and now - self._wrote_at >= limits.witness_after_seconds
        return store.unvouched and quiet and now >= self._no_witness_before

    def final(self) -> Snapshot:
        """Return a snapshot of the machine's present state."""
        return Snapshot(self._machine.snapshot(), self._store.last)

    def kept(self) -> None:
        """Record that the snapshot is on the disk."""
        self._keeping = False
        self.failures = 0

    def not_kept(self, reason: str, now: float) -> None:
        """Record that the snapshot could not be written. The next snapshot is then tried after a pause."""
        self._log.error("snapshot-failed", reason=reason, again_seconds=limits.snapshot_retry_seconds)
        self._keeping = False
        self.failures += 1
        self.logged_bytes += self._covered[0]
        self.logged_records += self._covered[1]
        self._not_before = now + limits.snapshot_retry_seconds


_watch_seconds: Final = 1.0


# The watchdog's rule: what to do about a handler that does not return.
#
# A plain handler runs until it returns, and an ``async`` handler runs until it next waits. Meanwhile no other part of
# the server runs. So the watchdog runs in another thread. It checks which call runs, and reads a number that changes
# with each batch of calls. If the watchdog sees the same call with the same number again, the call is still running.
#
# A call that runs too long is logged with its stack: after ``reaction_slow_seconds``, and then each time the duration
# of the call has doubled. When the call exceeds its limit, the process must end, because a thread cannot be stopped
# from outside. The id of the letter that the call handles is in shared memory (:mod:`antecede.server.progress`). So
# after the restart, the server counts one failed try of this letter.
#
# An operation of a replicated object runs within a step of the server, and is watched in the same way. Its failed tries
# are not counted, because another try would give the same result, on this server and on the servers of all other
# replicas.


class Slow(msgspec.Struct, frozen=True):
    """A call that runs too long."""

    name: str
    """The agent or the object."""
    part: str
    """The letter or the operation."""
    seconds: float
    ends: bool
    """Whether the process must end now."""


class Watchdog:
    """Watches the calls of one server."""

    def __init__(self, limit: Callable[[str], float]) -> None:
        """``limit``: a function that gets the name of an agent or object, and returns how many seconds its calls may
        take."""
        self._limit = limit
        self._seen: tuple[int, tuple[str, str] | None] = (-1, None)
        self._since = 0.0
        self._log_at = 0.0

    def look(self, running: tuple[str, str] | None, number: int, now: float) -> Slow | None:
        """Return the running call if it must be logged now, or if it has run so long that the process must end.
        Otherwise return None. ``running``: the agent and letter, or the object and operation, of the running call; None
        if no call runs. ``number``: a number that changes with each batch of calls."""
        if running is None or (number, running) != self._seen:
            self._seen, self._since = (number, running), now
            self._log_at = limits.reaction_slow_seconds
            return None
        seconds = now - self._since
        ends = seconds >= self._limit(running[0])
        if seconds < self._log_at and not ends:
            return None
        while self._log_at <= seconds:
            self._log_at *= 2
        return Slow(*running, seconds, ends)
