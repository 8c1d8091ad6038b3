"""Checks of data that the trace of a simulated server does not show: server time, log, snapshots and truncations.

- Server time advances at the same rate as virtual time, even if the wall clock is changed. A restart does not move
  server time back. Server time also advances while the server is down.
- If the last group of records is damaged, the server must recognise the damage, and must not mistake it for a torn
  write. To make this possible, a server writes one empty group when no records were appended for a while. It must never
  write two empty groups in a row. The check damages the last group with records in a copy of the log. Opening the copy
  must fail.
- A snapshot that is built from the log has exactly the same bytes as a snapshot of the server's state.
- Every truncation of the log is shown until an operator acknowledges it.
"""

from itertools import pairwise
from typing import TYPE_CHECKING

from antecede import limits
from antecede.errors import CorruptLogError
from antecede.server.building import Task
from antecede.server.items import FORMAT_WITH_LISTS
from antecede.store import Recovered, open_log
from antecede.store.directory import HEADER_BYTES, segment_name
from antecede.store.recovery import inspect_log
from antecede.store.simulated import SimulatedDisk

if TYPE_CHECKING:
    from antecede.simulator.servers.server import SimulatedServer

_while_down = 1 << 60
"""A number that is larger than the number of every record."""


class Oversight:
    """The checks of one server. They continue through all lives of the server (a life is the time from one start to the
    next)."""

    def __init__(self, server: "SimulatedServer") -> None:
        self._server = server
        self.reset()

    def reset(self) -> None:
        """Forget everything, because the disk was replaced."""
        self.appended_at = 0.0
        """The virtual time at which the last record was appended, or at which the server started."""
        self._vouched_at = -1.0
        self._vouched_for = (0, 0)
        """The result of the latest checks for empty groups: the number of the log's last record, and how many checks in
        a row have found this number. The checks run only if no records were appended for a while."""
        self._durable_ms = 0
        """The latest server time in the durable part of the log."""
        self._jumped: int | None = None
        """The number of the newest record at the time of the last change of the wall clock. It is None if the wall
        clock was not changed, or if a later record has become durable since the change. If the server was down at the
        change, the value is ``_while_down``. At the next start, it becomes the number of the last record in the log."""
        self._life = 0
        """The number of the latest life of the server in which all appended records were durable at some moment. (A
        life is the time from one start to the next.)"""
        self._before: tuple[float, int] | None = None
        """The virtual time and the server time at the end of the life with the number ``_life``. After the next start,
        both times must have advanced by about the same amount. If the value is None, the times are not checked."""
        self._expected: dict[int, bytes] = {}
        self.stopped_at: int | None = None
        """The number of the last record, if the server has stopped gracefully; None if it crashed or runs."""
        self._cuts: set[int] = set()
        self._acknowledged = 0

    @property
    def _time_ms(self) -> int:
        server = self._server
        return server.machine.clock.at(server.world.now, server.clock_ms)

    # Time.

    def jumped(self, time_ms: int) -> None:
        """Check that a change of the wall clock did not change the server time. ``time_ms``: the server time before the
        change."""
        server = self._server
        if server.up and self._time_ms != time_ms:
            server.world.report_error(server.name, "server time followed the wall clock")
        # Records that wait for space on the disk were made before.
        self._jumped = server.core.driver.gate.last if server.up else _while_down

    @property
    def time_ms(self) -> int:
        """The server time; 0 if the server is down."""
        return self._time_ms if self._server.up else 0

    def durable(self) -> None:
        """Remember the newest server time that the log contains. Do this only if the server's durability is ``disk``
        and all its records are durable."""
        server = self._server
        complete = server.store.durable == server.store.last and not server.core.driver.behind
        if complete and server.durability == "disk":
            self._life, self._before = server.life, None
            self._durable_ms = server.machine.clock.times.logged_ms
            if self._jumped is not None and server.store.durable > self._jumped:
                self._jumped = None

    def went(self) -> None:
        """Record the virtual time and the server time at which the server crashes or stops, for the check after the
        next start."""
        server = self._server
        if self._life != server.life:
            # The log has no record of this life; the next start continues from the last life of which it has records.
            return
        known = self._durable_ms and self._jumped is None and server.machine.log_format >= FORMAT_WITH_LISTS
        self._before = (server.world.now, self._time_ms) if known else None

    def started(self, found: Recovered) -> None:
        """Check the server time and the end of the log after the server has recovered. ``found``: the log as it was at
        the start."""
        server, now = self._server, self._server.world.now
        time_ms = self._time_ms
        if time_ms < self._durable_ms:
            server.world.report_error(server.name, f"server time went back from {self._durable_ms} to {time_ms}")
        if self._before is not None and self._jumped is None:
            then, before = self._before
            passed = time_ms - before - (now - then) * 1000
            if abs(passed) > _error_ms:
                server.world.report_error(server.name, f"server time is wrong by {passed:.0f} ms after a restart")
        if self.stopped_at not in (None, found.last):
            server.world.report_error(
                server.name, f"stopped after record {self.stopped_at}, but the log ends with record {found.last}"
            )
        if self._jumped == _while_down:
            self._jumped = found.last
        self.stopped_at = None
        self.appended_at = now
        self._cuts |= {cut.group for cut in found.cuts}

    # Witnesses.

    def looked(self) -> None:
        """Check a server after its regular work. If no records were appended for a while, the log must soon have an
        empty group, which proves that the last group with records was durable. Without this proof, damage of that group
        would look like a torn write."""
        server, now = self._server, self._server.world.now
        # The last witness may have been written just before the last record, and the next one comes only after a while.
        since = self.appended_at + limits.witness_seconds + 2 * limits.witness_after_seconds
        quiet = server.store.durable == server.store.last and now > since
        if quiet and now - self._vouched_at > 2 * limits.witness_seconds:
            self._vouched_at = now
            server.later(4 * server.commit_seconds, self._vouched, server.store.last)

    def _vouched(self, last: int) -> None:
        server = self._server
        if server.store.last != last or server.store.durable != last:
            return
        # Twice is enough: nothing changes any more, but a second empty group would be wrong.
        looks = self._vouched_for[1] + 1 if self._vouched_for[0] == last else 1
        self._vouched_for = (last, looks)
        if looks > 2:
            return
        groups: list[tuple[int, int, int, int]] = []
        inspect_log(
            "data",
            lambda offset, group, records: groups.append((group.segment, offset, group.records, group.bytes)),
            server.disk,
        )
        if any(not one[2] and not other[2] for one, other in pairwise(groups)):
            server.world.report_error(server.name, "an empty group follows another empty group")
        full = [group for group in groups if group[2]]
        if not full or not server.vouches:
            return
        segment, offset, _, size = full[-1]
        contents = server.disk.contents()
        path = f"data/{segment_name(segment)}"
        data = bytearray(contents[path])
        data[offset + HEADER_BYTES + size - 1] ^= 1
        copy = SimulatedDisk(random=server.disk.random)
        copy.replace({**contents, path: bytes(data)})
        try:
            open_log("data", files=copy, threaded=False)
        except CorruptLogError:
            return
        server.world.report_error(
            server.name, "after a quiet time, the loss of the last group with records was taken for a torn write"
        )

    # Snapshots.

    def expect(self, task: Task) -> None:
        """Remember the server's present state. Another process will build a snapshot, which must be equal to this
        state."""
        self._expected = {task.upto: self._server.machine.snapshot()}

    def built(self, task: Task, data: bytes) -> None:
        """Check that the snapshot ``data``, which another process has built, is equal to the remembered state."""
        if self._expected.pop(task.upto, data) != data:
            self._server.world.report_error(
                self._server.name, "a snapshot that was built from the log differs from the state"
            )

    # Truncations.

    def acknowledge(self) -> None:
        """Act as an operator: if the server shows at least two truncations, acknowledge them."""
        server = self._server
        shown = server.machine.truncations.open
        if len(shown) > 1 and not server.core.driver.behind:
            self._acknowledged = shown[-1].group
            server.core.operations.run("acknowledge", [])

    def findings(self) -> list[str]:
        """Check that the server shows every truncation that came after the last acknowledgement. Return the errors."""
        server = self._server
        if server.machine.log_format < FORMAT_WITH_LISTS:
            return []
        shown = {cut.group for cut in server.machine.truncations.open}
        hidden = {cut for cut in self._cuts if cut > self._acknowledged} - shown
        return [f"{server.name}: truncations {sorted(hidden)} are not shown"] if hidden else []


_error_ms = 6
"""The allowed error of the server time after a restart, in milliseconds. Small errors are normal: the server
time and the wall clock are rounded to milliseconds, and small changes of the difference between the two are not
logged."""
