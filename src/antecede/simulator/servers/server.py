"""One simulated server. It uses the classes of a live server, the real log on a simulated disk that can lose unsynced
data, and the real host of agents.

This module is the second adapter around :class:`antecede.server.core.ServerCore`; the first is :mod:`antecede.live`. It
calls the driver (each call is a *turn*), appends records, commits after a while, and runs reactions, all in virtual
time. A planned crash happens in a call of ``effect``. The server calls ``effect`` at these moments: after each turn,
after each reaction, before each commit, before it sends a frame, and when records have become durable. The disk also
calls ``effect`` before each operation.
"""

import errno
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, Final

import msgspec

from antecede import limits, wire
from antecede.channel import Letter
from antecede.engine import React
from antecede.engine.agents import Agent
from antecede.engine.host import Host, Outcome
from antecede.errors import (
    AgentError,
    AntecedeError,
    CorruptLogError,
    DiskFullError,
    MailboxFullError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    UnknownAgentError,
    WireError,
)
from antecede.failures import is_ctrl_c
from antecede.server import AgentServer, Plan
from antecede.server.connections import NO_HELLO, SILENT, break_off
from antecede.server.core import ServerCore, Shutdown
from antecede.server.driver import Commit
from antecede.server.items import joined
from antecede.server.node import truncated
from antecede.server.progress import Interrupted, Progress, interrupted, size_of
from antecede.server.recovery import Task, build, recover
from antecede.server.upkeep import Snapshot
from antecede.simulator.servers.network import End, Faults, Identities, Network
from antecede.store import Recovered, Sizes, open_log, read_records, read_state, write_draft
from antecede.store.directory import HEADER_BYTES, segment_name
from antecede.store.recovery import inspect_log
from antecede.store.simulated import PowerCut, SimulatedDisk
from antecede.wire import is_temporary

NOBODY = "nobody"
"""The name of an agent that does not exist. A server refuses letters to this agent."""
_wrong_events = ("bad-frame", "link-stopped", "peer-refused", "client-refused", "stranger-gone", "client-gone")
"""Events that servers must not log in a world whose members are all correct."""


class Surroundings(Network, ABC):
    """What simulated servers, clients and operators know of their world: time and network, the faults that happen to
    them, and where they report what must be checked."""

    identities: Identities | None = None

    def __init__(self, random: Random, faults: Faults, sizes: Sizes) -> None:
        super().__init__(random, faults)
        self.sizes = sizes
        self.classes: dict[str, type[Agent]] = {}
        """The classes of the agents that were created at run time. A key is the name of an agent's kind."""
        self.letters: dict[str, Letter] = {}
        """All letters that agents and clients have ever got. A key is the id of a letter."""
        self.raised: BaseException | None = None
        """The last exception that a handler of an agent raised."""
        self.losing = False
        """Whether a server has lost its data. If so, the links between this server and its peers may stop."""
        self._resetting = False
        """Whether a domain reset has begun. Until all members have been reset, they may refuse each other."""
        self._failed: set[str] = set()

    @abstractmethod
    def dial(self, server: "SimulatedServer", peer: str) -> None:
        """Let a server dial a peer."""

    @abstractmethod
    def went(self, server: "SimulatedServer") -> None:
        """Count the crash or stop of a server, and schedule its restart."""

    def snapshot_fails(self) -> bool:
        """Decide at random whether the next snapshot cannot be written."""
        return not self.calm and self.random.random() < self.faults.failed_snapshots

    def logged(self, server: "SimulatedServer", event: str, fields: dict[str, Any]) -> None:
        """Check a warning or an error that a server logged. If the event must not happen, record an error."""
        if fields.get("code") in (SILENT, NO_HELLO):
            return  # The network itself checks whether the connection is silent.
        # A server whose data is older than its messages may also send stamps that contradict them.
        expected = (self.losing and event in ("link-stopped", "bad-frame")) or (
            (self._resetting or self.losing) and event == "peer-refused"
        )
        if event in _wrong_events and not expected:
            self.report_error(server.name, f"{event}: {fields}")

    def born(self, kind: str, agent: type[Agent]) -> None:
        """Remember the class of an agent that was created at run time. Its server needs the class after a restart."""
        self.classes[kind] = agent

    def class_of(self, kind: str) -> type[Agent]:
        """Return the class of the agents of this kind, which were created at run time."""
        return self.classes[kind]

    def handed_out(self, due: React) -> None:
        """Record letters that an agent or a client gets; check that their ids are unique."""
        for letter in due.letters:
            if self.letters.setdefault(letter.id, letter) != letter and not self.losing:
                self.report_error(due.agent, f"two letters have the id {letter.id}")

    def fails(self, due: React) -> bool:
        """Decide at random whether this batch fails. Batches with the same first letter fail at most once."""
        return self._fails(due.letters[0].id)

    def client_fails(self, letter: Letter) -> bool:
        """Decide at random whether a client's handler fails for this letter. It fails at most once for each letter."""
        return self._fails(f"client {letter.id}")

    def _fails(self, what: str) -> bool:
        if self.calm or what in self._failed or self.random.random() >= self.faults.failures:
            return False
        self._failed.add(what)
        return True

    def client_gone(self, address: str, error: AntecedeError) -> None:
        """Record an error: a client cannot continue. But if a server has lost its data, record nothing."""
        if not self.losing:
            self.report_error(address, str(error))

    def may_refuse(self, address: str, to: tuple[str, ...], error: AntecedeError) -> bool:
        """Return whether a server may permanently refuse a publish with these destinations and this error."""
        return isinstance(error, UnknownAgentError if to == (NOBODY,) else MailboxFullError)


# Classes and functions with which a world observes a simulated server: its warnings, its log, and its deliveries.


class WorldLog:
    """The logger of a server. It reports warnings and errors to the world. The world checks whether they are
    expected."""

    def __init__(self, server: "SimulatedServer") -> None:
        self._server = server

    def info(self, event: str, **fields: Any) -> None:
        """Ignore an event that is not a warning."""

    def warning(self, event: str, *, raised: BaseException | None = None, **fields: Any) -> None:
        """Report a warning or an error to the world."""
        self._server.world.logged(self._server, event, fields)

    error = warning


class WatchedLog:
    """A wrapper around a server's log, used by the server's core. A server above its high-water marks refuses
    publishes. When the world wants the server to be above these marks, the wrapper reports too many pending bytes."""

    def __init__(self, server: "SimulatedServer") -> None:
        self._server = server

    @property
    def last(self) -> int:
        return self._server.store.last

    @property
    def durable(self) -> int:
        return self._server.store.durable

    @property
    def pending_bytes(self) -> int:
        return limits.store_pending_bytes_max if self._server.crowded else self._server.store.pending_bytes

    @property
    def log_bytes(self) -> int:
        return self._server.store.log_bytes

    @property
    def unvouched(self) -> bool:
        return self._server.store.unvouched

    def vouch(self) -> None:
        self._server.vouch()

    def forget_cuts(self) -> None:
        self._server.store.forget_cuts()

    def shortage(self) -> str:
        return self._server.store.shortage()


class WatchedCore(ServerCore):
    """The core of a server in a simulation. It works like the core of a live server, and also reports to the world the
    letters that it delivers to clients."""

    handed_out: Callable[[React], None]

    def deliver(self, due: React) -> None:
        self.handed_out(due)
        super().deliver(due)


def react_at_once(host: Host, due: React) -> Outcome:
    """Run a batch, and return its outcome. An ``async`` handler must end without waiting. If it waits, raise
    AgentError."""
    if not host.is_async(due.agent):
        return host.react(due)
    reacting = host.react_async(due)
    try:
        reacting.send(None)
    except StopIteration as done:
        outcome: Outcome = done.value
        return outcome
    reacting.close()
    raise AgentError(f"agent {due.agent} awaits something that does not exist in a simulated world")


# The shared memory of a simulated server. It contains a list of the handler calls in progress.
#
# This memory survives a kill. In the simulation it also survives a power cut, because its file may survive on a real
# disk. But after a power cut the computer has another boot id, so the server ignores the calls in the memory. The
# memory is written by :class:`antecede.server.progress.Progress`, as in a live server. This module also records which
# calls were in progress at each kill. With these records, the simulation checks that the logs count one failed try for
# each such call.


Call = tuple[str, str]


class Ended(BaseException):
    """Raised in a handler to simulate that this handler ends its process."""


class EndOfLife(msgspec.Struct):
    """The end of one life of a server while handler calls were in progress. A *life* is the time from one start of the
    server to the next. Either the server was killed, or one of its handlers ended the process."""

    life: int
    calls: frozenset[Call]
    """The handler calls for which the next life must count a failed try in its log. After a kill, these are all calls
    that were in progress. If a handler ended the process, this is only the call of this handler. A call is a pair: the
    agent, and the letter's id."""
    lost: bool = False
    """Whether a power cut came before the next life could safely record these calls. If so, the log may lack the failed
    tries of these calls."""


class SharedMemory:
    """The shared memory of one server, through all its lives (a life is the time from one start to the next)."""

    def __init__(self) -> None:
        self._content = bytearray()
        self._boot = 1
        self._life = 0
        self.progress: Progress | None = None
        self._calls: dict[int, Call] = {}
        self._struck: tuple[Call, bytes] | None = None
        self._spared: dict[str, str] = {}
        """For each agent, the id of a letter. The agent's handler for this letter has just ended the agent's worker
        process."""
        self.ends: list[EndOfLife] = []
        self.strikes: dict[str, int] = {}
        """The number of times that the handler of a letter ended the process of a server or a worker. A key is
        ``LETTER-ID AGENT``."""

    def ended(self) -> Interrupted:
        """Return the handler calls that were in progress when the server's process ended. The server reads these calls
        from this memory at its next start."""
        return interrupted(bytes(self._content), str(self._boot))

    def begin(self, life: int) -> Progress:
        """Begin a new life of the server (the time from one start to the next). From now on, this memory contains only
        the handler calls of this life."""
        self._content = bytearray(size_of(1))
        self.progress = Progress(self._content, str(self._boot), life, self._grow)
        self._life = life
        return self.progress

    def _grow(self, size: int) -> bytearray:
        self._content += bytes(size - len(self._content))
        return self._content

    def waits(self, due: React, server: "SimulatedServer") -> int:
        """Record that a handler call has begun, and now waits while other calls run. Return the number of the call's
        slot (its place in the memory)."""
        assert self.progress is not None
        suspects = server.machine.engine.tries
        slot, letter = self.progress.begin(due.agent), due.letters[-1].id
        both = [call for call in (*self._calls.values(), (due.agent, letter)) if suspects.is_suspect(*call)]
        if suspects.is_suspect(due.agent, letter) and len(both) > 1:
            server.world.report_error(
                server.name, f"two letters that may have ended a process run at the same time: {both}"
            )
        self.progress.at(slot, letter)
        self._calls[slot] = (due.agent, letter)
        return slot

    def goes_on(self, slot: int) -> None:
        """Record that the handler call in this slot (its place in the memory) has ended."""
        assert self.progress is not None
        self.progress.end(slot)
        del self._calls[slot]

    def strike(self, agent: str, letter: str) -> None:
        """Raise Ended, to simulate that the handler of this letter ends its process now."""
        key = f"{letter} {agent}"
        self.strikes[key] = self.strikes.get(key, 0) + 1
        self._struck = ((agent, letter), bytes(self._content))
        raise Ended

    def survived(self, due: React, outcome: Outcome, server: "SimulatedServer") -> Outcome:
        """Return the outcome of a batch. If a handler of the batch ended the server's process, raise PowerCut instead.
        If a handler ended only a worker process, return an outcome with an error and without any reactions."""
        struck, self._struck = self._struck, None
        if struck is None:
            return outcome
        call, content = struck
        if due.agent not in server.isolated:
            self._content = bytearray(content)
            self._calls = {0: call}
            server.how = "kill"
            raise PowerCut
        server.host.forget(due.agent)
        self._spared[due.agent] = call[1]
        place = [letter.id for letter in due.letters].index(call[1])
        return Outcome(due.agent, [], None, AgentError("the worker process ended"), place)

    def settled(self, agent: str, server: "SimulatedServer") -> None:
        """Check the count of failed tries of an agent, after the outcome of a batch was reported. If the handler of one
        letter in the batch ended the worker process, a failed try may be counted only for this letter. Report an error
        if a failed try was counted for another letter."""
        letter = self._spared.pop(agent, None)
        tried = server.core.driver.retries.tries.get(agent)
        if letter is not None and tried is not None and tried[0] != letter:
            server.world.report_error(
                server.name, f"{letter} ended the worker process of {agent}, but a try was counted for {tried[0]}"
            )

    def gone(self, how: str) -> None:
        """Record the end of the process. ``how``: ``kill``, ``power`` (a power cut), ``sync`` (a failed disk) or
        ``stop`` (graceful)."""
        calls, progress = frozenset(self._calls.values()), self.progress
        self._calls, self._spared, self.progress = {}, {}, None
        if how == "power":
            self._boot += 1
            for end in self.ends if progress is None else ():
                end.lost = True
        elif how == "kill":
            if calls:
                self.ends.append(EndOfLife(self._life, calls))
        elif progress is not None:
            progress.clear()

    def replaced(self) -> None:
        """Empty this memory, because its file is in the data directory, which was replaced."""
        self._content = bytearray()
        self.ends.clear()


# Checks of data that the trace of a simulated server does not show: server time, log, snapshots and truncations.
#
# - Server time advances at the same rate as virtual time, even if the wall clock is changed. A restart does not move
#   server time back. Server time also advances while the server is down.
# - If the last group of records is damaged, the server must recognise the damage, and must not mistake it for a torn
#   write. To make this possible, a server writes one empty group when no records were appended for a while. It must
#   never write two empty groups in a row. The check damages the last group with records in a copy of the log. Opening
#   the copy must fail.
# - A snapshot that is built from the log has exactly the same bytes as a snapshot of the server's state.
# - Every truncation of the log is shown until an operator acknowledges it.


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
        known = self._durable_ms and self._jumped is None
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
        shown = {cut.group for cut in server.machine.truncations.open}
        hidden = {cut for cut in self._cuts if cut > self._acknowledged} - shown
        return [f"{server.name}: truncations {sorted(hidden)} are not shown"] if hidden else []


_error_ms = 6
"""The allowed error of the server time after a restart, in milliseconds. Small errors are normal: the server
time and the wall clock are rounded to milliseconds, and small changes of the difference between the two are not
logged."""


SIZES: Final = Sizes(segment_bytes=65_536, group_bytes_max=16_384, pending_bytes_max=32_768, log_bytes_max=1 << 24)
"""Small sizes, so that even a short schedule fills several segments and groups."""
DIRECTORY: Final = "data"
_store_log = logging.getLogger("antecede.store")
_drain_seconds = 0.2
"""The longest time for which a stopping server waits for work in progress. This time is so short that some servers stop
before all their work has ended."""
_drain_look_seconds = 0.01
_snapshot_bytes = 0
"""Regular work takes a snapshot when the log has grown by more than this number of bytes."""


class Copied:
    """A copy of the files on a simulated disk, made for a backup. It contains the files as they were when it was
    made. This class implements :class:`antecede.server.operations.Frozen`."""

    def __init__(self, position: int, contents: dict[str, bytes], archived: list[bytes], incarnation: int) -> None:
        self.position, self.contents, self.archived, self.incarnation = position, contents, archived, incarnation
        self.files = {path: len(data) for path, data in contents.items()}

    def read(self, name: str, offset: int, count: int) -> bytes:
        return self.contents[name][offset : offset + count]

    def end(self) -> None:
        """Do nothing: there is nothing to remove."""


class SimulatedServer:
    """A simulated server and its disk. The same object is used through all restarts; each start begins a new *life*."""

    machine_class: type[AgentServer] = AgentServer
    copied: Copied | None = None
    host_class: type[Host] = Host
    vouches = True
    """Whether regular work is frequent enough to write an empty group soon after the last record. An empty group proves
    that the last group with records was durable."""

    def __init__(
        self, world: Surroundings, name: str, plan: Plan, agents: dict[str, type[Agent]], durability: str = "disk"
    ) -> None:
        self.world = world
        self.name = name
        self.plan = plan
        self.agents = agents
        self.durability = durability
        self.disk = SimulatedDisk(random=world.random)
        self.disk.script = self._disk_effect
        self.shared, self.isolated = SharedMemory(), set[str]()
        self.up, self.life = False, 0
        self.effects_left = 0
        """The number of calls of ``effect`` until the planned crash. It is 0 if no crash is planned."""
        self.how, self.commit_seconds = "kill", 0.001
        self.clock_offset_ms = 1_700_000_000_000
        self.disk_full = False
        """Whether the log has no space for more records."""
        self.crowded = False
        """Whether the world keeps the server above its high-water mark, as if too many bytes waited for the disk."""
        self.archived: list[bytes] = []
        """Copies of all records up to the newest snapshot; the log may have deleted these records."""
        self.reactions = 0
        """The newest wire version that this server knows. It may change at each restart, as after an upgrade."""
        self._broken = self._failed = False
        self.oversight = Oversight(self)
        self._reset()

    def _reset(self) -> None:
        self.ends: dict[End, None] = {}
        self._ticking = self._committing = False
        self._wake_at: float | None = None

    @property
    def listens(self) -> bool:
        """Whether the server accepts connections: it is up, and is not being stopped."""
        return self.up and not self.core.entry.closed

    @property
    def clock_ms(self) -> int:
        """The time of this server's wall clock, in milliseconds."""
        return self.clock_offset_ms + int(self.world.now * 1000)

    # Crashes.

    def effect(self) -> None:
        """Mark a moment at which the server may crash. If a crash is planned for this moment, raise PowerCut, or let
        the next sync of the disk fail."""
        if self.effects_left:
            self.effects_left -= 1
            if not self.effects_left:
                if self.how == "sync":
                    self._broken = True
                else:
                    raise PowerCut

    def spare(self) -> None:
        """Cancel the planned crash and the planned failure of the disk, if any."""
        self.effects_left = 0
        self._broken = False

    def _disk_effect(self, operation: str, path: str) -> None:
        if self._broken and operation == "sync":
            self._broken, self._failed = False, True
            raise OSError(errno.EIO, "the simulated disk is broken", path)
        self.effect()

    def guard(self, life: int, call: Callable[..., None], *given: Any) -> None:
        """Call a function if ``life`` is the number of the server's present life (the time from one start to the next).
        Otherwise do nothing. The server may crash during the call."""
        if life != self.life or not self.up:
            return
        # The store's log is suppressed: torn groups and failed disks are expected here.
        before, _store_log.disabled = _store_log.disabled, True
        try:
            call(*given)
        except PowerCut:
            self.crash()
        except StoreError:
            # Only a disk that was made to fail may do so; then the server ends.
            if not self._failed:
                raise
            self.crash()
        finally:
            _store_log.disabled = before

    def later(self, seconds: float, call: Callable[..., None], *given: Any) -> None:
        """Call a function after this number of seconds, unless the server crashes or stops before that time."""
        self.world.later(seconds, self.guard, self.life, call, *given)

    def crash(self) -> None:
        """Crash the server: it loses everything that its disk did not keep."""
        self.shared.gone(self.how)
        self._go()
        self.disk.script = None
        if self.how == "power":
            self.disk.power_cut(self.world.random)
        else:
            self.disk.kill(self.world.random)
        self.disk.script = self._disk_effect
        self.world.went(self)

    def _go(self) -> None:
        """End the server's process: close its connections without a message, and add 1 to ``life``."""
        self.oversight.went()
        self.up = False
        self.life += 1
        self.effects_left = 0
        self._broken = self._failed = False
        for end in self.ends:
            end.vanish()
        self._reset()

    def stopped(self) -> None:
        """Close the log and end the server's process: the last step of a graceful stop."""
        self.store.close()
        self.oversight.stopped_at = self.store.last
        self.shared.gone("stop")
        self._go()
        self.world.went(self)

    def stop(self) -> None:
        """Begin a graceful stop, if the server runs. The server may crash at any step of the stop. The world starts it
        again later."""
        if self.listens:
            self.later(0.0, self._stop, Shutdown(self.core, "the server stops", self.world.now + _drain_seconds))

    def _stop(self, shutdown: Shutdown) -> None:
        if shutdown.waits(self.world.now):
            self.later(_drain_look_seconds, self._stop, shutdown)
            return
        shutdown.leave()
        while shutdown.steps_left:
            self.tick()
        snapshot = shutdown.snapshot()
        if snapshot is not None:
            self._keep(snapshot.upto, lambda: self.store.snapshot(snapshot.data, snapshot.upto))
        self.stopped()

    def start(self) -> None:
        """Recover from the disk and continue."""
        self.life += 1
        self.up = True
        self.guard(self.life, self._recover)

    def _recover(self) -> None:
        world = self.world
        self.store = open_log(
            DIRECTORY,
            durability=self.durability,
            sizes=world.sizes,
            files=self.disk,
            threaded=False,
            on_durable=self._became_durable,
            on_failed=self._disk_failed,
        )
        self.machine = machine = self.machine_class(self.name, self.plan, self.store.incarnation)
        found = self.store.recovered
        snapshot = None if found.snapshot is None else found.snapshot.data()
        stored = (record for _, record in found.records())
        cuts = truncated(found.cuts, self.clock_ms)
        epoch = "" if self.plan.file is None else self.plan.file.epoch
        first = recover(machine, snapshot, stored, epoch, world.now, self.shared.ended(), self.clock_ms, cuts)
        machine.begin_life(self.life + 1)
        self.host = self.host_class(self.name, machine.channel.check)
        for agent, kind in self.agents.items():
            self.host.declare(agent, kind)
        for address, born in machine.engine.born.items():
            self.host.declare(address, world.class_of(born))
        draw = world.random.random
        self.core = core = WatchedCore(
            *(machine, self.host.lives, self._request_turn, WatchedLog(self), WorldLog(self), draw, first),
            now=world.now,
            cuts=bool(cuts),
            covers=self.store.last - self.store.figures.snapshot_upto,
            **({} if world.identities is None else world.identities.of_server(self.name)),
        )
        self.oversight.started(found)
        core.handed_out = world.handed_out
        core.operations.backups.freeze = self._copy
        core.upkeep.snapshot_bytes = _snapshot_bytes
        core.marks.watch(stopping=False)
        core.peering.start(world.now + draw() * 0.01)
        core.driver.when_durable(self._name_calls)
        core.driver.request_turn()
        self._set_alarm()

    def _name_calls(self) -> None:
        self.host.progress = self.shared.begin(self.life)

    # Connections.

    def end(self, remote: str) -> End:
        """Create this server's end of a new connection."""
        life = self.life
        end = End(
            self.world,
            remote,
            lambda end, parts: self.guard(life, self._received, end, parts),
            lambda end, reason: self.guard(life, self._closed, end, reason),
            lambda end: self.guard(life, self._writable, end),
            self.effect,
        )
        self.ends[end] = None
        return end

    def accept(self, end: End) -> None:
        """Handle an incoming connection."""
        end.enter(self.core.entry.admission)
        if end.open:
            end.receiver = self.core.entry.opened(end, self.world.now)

    def dialed(self, peer: str, end: End) -> None:
        """Handle the connection to a peer that has answered our dial."""
        end.receiver = self.core.peering.dialed(peer, end)
        self._set_alarm()

    def dial_failed(self, peer: str) -> None:
        """Record that a peer did not answer our dial."""
        self.core.peering.dial_failed(peer, self.world.now)
        self._set_alarm()

    def _received(self, end: End, parts: list[wire.AnyPart]) -> None:
        assert end.receiver is not None
        try:
            if self.core.received(end.receiver, parts, self.world.now):
                self._request_turn()
        except WireError as error:
            break_off(end, error, client=end.slot is not None and end.slot.is_client)

    def _closed(self, end: End, reason: str) -> None:
        assert end.receiver is not None
        self.ends.pop(end, None)
        end.receiver.closed(reason, self.world.now)
        self._set_alarm()

    def _writable(self, end: End) -> None:
        assert end.receiver is not None
        end.receiver.writable()

    # Turns.

    def _request_turn(self) -> None:
        if not self._ticking:
            self._ticking = True
            self.later(self.world.random.random() * 0.0005, self.tick)

    def tick(self) -> None:
        """Call the driver repeatedly (each call is a *turn*), until it has nothing more to do at this moment. After
        each turn, append its records and run its reactions."""
        self._ticking = False
        driver, now = self.core.driver, self.world.now
        while True:
            turn = driver.turn(now, self.clock_ms)
            self.effect()
            self._append(turn.records)
            for due in turn.reactions:
                self.world.handed_out(due)
                self._run(due)
            if not driver.goes_on():
                break
        commit = driver.rest(now)
        if commit is Commit.HERE and self.world.random.random() < 0.5:
            self._commit()
        elif commit is not Commit.LATER and not self._committing and self.store.last > self.store.durable:
            self._committing = True
            self.later(self.world.random.random() * 2 * self.commit_seconds, self._commit)
        driver.durable(self.store.durable)
        self.oversight.durable()
        driver.committed(now)
        self._set_alarm()

    def _append(self, records: list[bytes]) -> None:
        count, size, reason = 0, 0, ""
        for record in records:
            self.oversight.appended_at = self.world.now
            try:
                if self.disk_full:
                    raise StoreFullError("the simulated disk is full")
                self.store.append(record)
            except StoreFullError as error:
                reason = str(error)
                break
            size += len(record)
            count += 1
        self.core.appended(count, size, reason)

    def _commit(self) -> None:
        self._committing = False
        self.effect()
        if self.store.commit() and self.store.last > self.store.durable:
            self._committing = True
            self.later(self.commit_seconds, self._commit)

    def vouch(self) -> None:
        """Let the log write an empty group; in a live server, the log's own thread does this. The empty group proves
        that the last group with records was durable."""
        self.store.vouch()
        self.later(self.world.random.random() * self.commit_seconds, self._commit)

    def _became_durable(self, number: int) -> None:
        self.effect()
        self.core.driver.durable(number)

    def _disk_failed(self, error: StoreFailedError) -> None:
        """Raise PowerCut to end the server: after a failure of its disk, no further record can become durable."""
        raise PowerCut

    def _set_alarm(self) -> None:
        """Schedule the next call of the driver or the next dial."""
        now = self.world.now
        due = self.core.deadline(now, self.clock_ms)
        if due is not None and (self._wake_at is None or due < self._wake_at):
            self._wake_at = due
            self.later(max(0.0005, due - now), self._alarm, due)

    def _alarm(self, due: float) -> None:
        if self._wake_at != due:
            return
        self._wake_at = None
        now = self.world.now
        for peer in self.core.peering.dials(now):
            self.world.dial(self, peer)
        self.core.driver.alarm(now, self.clock_ms)
        self._set_alarm()

    def set_clock(self, milliseconds: int) -> None:
        """Move the wall clock forward by this number of milliseconds, or back if it is negative."""
        before = self.oversight.time_ms
        self.clock_offset_ms += milliseconds
        self.oversight.jumped(before)
        if self.up:
            self._wake_at = None
            self.core.driver.request_turn()

    def crowd(self, crowded: bool) -> None:
        """Keep the server above its high-water mark if ``crowded`` is true, so that it refuses publishes. Otherwise let
        the server use the real number of bytes that wait for the disk."""
        self.crowded = crowded
        if self.up:
            self.core.marks.watch(stopping=False)

    # Reactions.

    def _run(self, due: React) -> None:
        self.reactions += 1
        if self.world.fails(due):
            self.host.forget(due.agent)
            outcome = Outcome(due.agent, [], None, AgentError("this reaction fails at its first try"))
        else:
            try:
                outcome = react_at_once(self.host, due)
            except BaseException as error:
                if is_ctrl_c(error):
                    raise
                self.host.forget(due.agent)
                outcome = Outcome(due.agent, [], None, error)
            outcome = self.shared.survived(due, outcome, self)
            self.world.raised = outcome.failure or self.world.raised
        for reaction in outcome.reactions:
            for birth in reaction.births:
                self.world.born(birth.kind, self.host.kind_of(f"{birth.name}@{self.name}"))
        slot = self.shared.waits(due, self)
        self.effect()
        if self.world.random.random() < 0.3:
            self._reacted(due, outcome, slot)
        else:
            self.later(self.world.random.random() * 0.002, self._reacted, due, outcome, slot)

    def _reacted(self, due: React, outcome: Outcome, slot: int) -> None:
        self.shared.goes_on(slot)
        self.core.driver.reacted(due, outcome, self.world.now, self.clock_ms)
        self.shared.settled(due.agent, self)

    # The log.

    def look(self) -> None:
        """Do the regular work. If it is time for a snapshot, begin to write or build one."""
        due = self.core.upkeep.look(self.world.now)
        if due is not None:
            self._take_snapshot(due)
        self.oversight.acknowledge()
        self.oversight.looked()
        self._set_alarm()

    def attend(self) -> None:
        """Let the server do its regular work, if it is up."""
        self.guard(self.life, self.look)

    def unsettled_work(self) -> str:
        """Return a text about a task of this server that only regular work can do. Return an empty text if there is no
        such task."""
        if self.core.upkeep.failures:
            return "a failed snapshot was not tried again"
        machine, sessions = self.machine, self.core.sessions
        temporary = [f"{client}@{self.name}" for client in machine.clients if is_temporary(client)]
        for address in (*temporary, *filter(is_temporary, machine.engine.mailboxes)):
            if sessions.is_away(address):
                return f"temporary client {address} is gone, but was not forgotten"
        return self._over_quota()

    def _over_quota(self) -> str:
        """Return an error if a mailbox is above its quota, or if the server has not recorded when the letters began to
        wait. Return an empty text if there is no error."""
        engine, clock_ms = self.machine.engine, self.machine.clock.at(self.world.now, self.clock_ms)
        quotas, mailboxes = engine.quotas, engine.mailboxes
        held, since = engine.following.held, engine.following.since
        over = [one.agent for one in quotas.look(mailboxes, lambda agent: False, clock_ms, 0)]
        for agent, letters in held.items():
            if 0 < quotas.of(agent).letters < len(letters) + len(mailboxes.get(agent, ())):
                over.append(agent)
        over += quotas.unseen_held(held, since)
        places = over or list(quotas.crowded) or quotas.unseen(mailboxes, clock_ms + 1_000)
        return f"the mailbox of {places[0]} is above its quota, but nothing expired" if places else ""

    def _take_snapshot(self, due: Snapshot | Task) -> None:
        """Take a snapshot after a short time. ``due``: a snapshot that the server writes itself, or a task for another
        process, which builds the snapshot from the log."""
        draw = self.world.random.random
        if isinstance(due, Task):
            self.oversight.expect(due)
            self.later(draw() * 0.05, self._build, due)
        else:
            self.later(draw() * 0.01, self._keep, due.upto, lambda: self.store.snapshot(due.data, due.upto))

    def _build(self, task: Task) -> None:
        """Do the work of the process that builds a snapshot from the log on the disk, while the server continues. This
        process may be slow. It may be killed after it has written its file. The server may crash before the file gets
        its final name."""
        self.store.wait(task.upto)
        incarnation, before, records = read_state(DIRECTORY, task.upto, self.disk)
        again = self.machine_class(self.name, self.plan, incarnation)
        data = build(again, before, (record for _, record in records), "", task)
        self.oversight.built(task, data)
        draft = write_draft(DIRECTORY, task.upto, data, "1", self.disk)
        adopt = partial(self.store.adopt_snapshot, draft, task.upto)
        self.later(self.world.random.random() * 0.05, self._keep, task.upto, adopt)

    def _keep(self, upto: int, write: Callable[[], None]) -> None:
        """Write a snapshot, copy the records before it to ``archived``, and release the old segments of the log. If the
        snapshot cannot be written, report this to the server; its regular work tries again later."""
        upkeep = self.core.upkeep
        try:
            if self.world.snapshot_fails():
                raise DiskFullError("the simulated disk has no room for a snapshot")
            write()
        except StoreFailedError:
            raise
        except StoreError as error:
            # Nothing is lost: the log has everything that the snapshot would have.
            upkeep.not_kept(str(error), self.world.now)
            return
        self.archived += [record for _, record in self.stored(len(self.archived), upto)]
        self.store.release(upto)
        upkeep.kept()

    def _copy(self) -> Copied:
        """Copy the disk as it is now, for a backup."""
        contents, archived = self.disk.contents(), list(self.archived)
        self.copied = Copied(self.store.durable, contents, archived, self.machine.incarnation)
        return self.copied

    def replace_disk(self, contents: dict[str, bytes]) -> None:
        """Kill the server, replace all its files by ``contents`` (an older copy, or nothing), and start it again."""
        self.how = "kill"
        self.crash()
        self.shared.replaced()
        self.disk.replace(contents)
        self.oversight.reset()
        self.archived = []
        self.start()

    def records(self) -> list[bytes]:
        """Return all records from the first one on: those in ``archived``, and those in the log on the disk."""
        return list(joined(self.archived + [record for _, record in self.stored(len(self.archived))]))

    def stored(self, after: int, upto: int | None = None) -> Iterator[tuple[int, bytes]]:
        return read_records(DIRECTORY, after, upto, self.disk)
