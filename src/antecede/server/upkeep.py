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
from typing import Final

import msgspec

from antecede import limits
from antecede.server import AgentServer
from antecede.server.driver import Driver
from antecede.server.driver.marks import LogView, Marks
from antecede.server.inputs import Log, Look
from antecede.server.recovery import Task, task_of

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
