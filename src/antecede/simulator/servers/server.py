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
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from antecede import wire
from antecede.engine import React
from antecede.engine.agents import Agent
from antecede.engine.host import Host, Outcome
from antecede.errors import AgentError, StoreError, StoreFailedError, StoreFullError, WireError
from antecede.interrupts import is_ctrl_c
from antecede.server import AgentServer, Plan
from antecede.server.connections import break_off
from antecede.server.driver.turns import Commit
from antecede.server.items import FORMAT_OLDEST, LOG_FORMAT, joined
from antecede.server.recovery import recover
from antecede.server.truncations import truncated
from antecede.simulator.servers.copied import Copied, copy_of
from antecede.simulator.servers.network import End
from antecede.simulator.servers.oversight import Oversight
from antecede.simulator.servers.shared import SharedMemory
from antecede.simulator.servers.snapshots import take_snapshot
from antecede.simulator.servers.watched import WatchedCore, WatchedLog, WorldLog, react_at_once, unreadable
from antecede.store import Sizes, open_log, read_records
from antecede.store.simulated import PowerCut, SimulatedDisk

if TYPE_CHECKING:
    from antecede.simulator.servers.world import ServerWorld

SIZES: Final = Sizes(segment_bytes=65_536, group_bytes_max=16_384, pending_bytes_max=32_768, log_bytes_max=1 << 24)
"""Small sizes, so that even a short schedule fills several segments and groups."""
DIRECTORY = _directory = "data"
_store_log = logging.getLogger("antecede.store")
_snapshot_bytes = 0
"""Regular work takes a snapshot when the log has grown by more than this number of bytes."""


class SimulatedServer:
    """A simulated server and its disk. The same object is used through all restarts; each start begins a new *life*."""

    machine_class: type[AgentServer] = AgentServer
    copied: Copied | None = None
    host_class: type[Host] = Host
    vouches = True
    """Whether regular work is frequent enough to write an empty group soon after the last record. An empty group proves
    that the last group with records was durable."""

    def __init__(
        self, world: "ServerWorld", name: str, plan: Plan, agents: dict[str, type[Agent]], durability: str = "disk"
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
        self.newest_version = wire.VERSION
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

    def start(self) -> None:
        """Recover from the disk and continue."""
        self.life += 1
        self.up = True
        self.guard(self.life, self._recover)

    def _recover(self) -> None:
        world = self.world
        self.store = open_log(
            _directory,
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
        # A server with an old wire version begins its log by the old rules, too.
        self.newest_version = world.version()
        newest = LOG_FORMAT if self.newest_version == wire.VERSION else FORMAT_OLDEST
        stored = (record for _, record in found.records())
        cuts = truncated(found.cuts, self.clock_ms)
        epoch = "" if self.plan.file is None else self.plan.file.epoch
        first = recover(machine, snapshot, stored, epoch, world.now, newest, self.shared.ended(), self.clock_ms, cuts)
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
            newest_version=self.newest_version,
            cuts=bool(cuts) and newest == LOG_FORMAT,
            covers=self.store.last - self.store.figures.snapshot_upto,
            **({} if world.identities is None else world.identities.of_server(self.name)),
        )
        self.oversight.started(found)
        core.handed_out = world.handed_out
        core.operations.backups.freeze = lambda: copy_of(self)
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
            self.newest_version,
            self._leaves,
        )
        self.ends[end] = None
        return end

    def _leaves(self, end: End, part: wire.Part) -> None:
        if unreadable(part, end.version):
            self.world.report_error(self.name, f"sent a train with lists to {end.remote}, which cannot read it")

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
            take_snapshot(self, due)
        self.oversight.acknowledge()
        self.oversight.looked()
        self._set_alarm()

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
        return read_records(_directory, after, upto, self.disk)
