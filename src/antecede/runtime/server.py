"""One server's life: recover, open the door, tick, stop; see :mod:`antecede.runtime`."""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from secrets import randbits
from time import monotonic, time

from antecede import limits
from antecede.channel import Outgoing
from antecede.client import Bus
from antecede.engine.host import Host
from antecede.errors import AntecedeError, BrokenStepError, StoreError, StoreFailedError, StoreFullError
from antecede.interrupts import is_ctrl_c
from antecede.runtime.application import Classes, load_class, run_by
from antecede.runtime.descriptors import connections_possible
from antecede.runtime.door import Door
from antecede.runtime.housekeeping import Housekeeping
from antecede.runtime.intake import take_inputs
from antecede.runtime.logs import ServerLog
from antecede.runtime.marks import Marks
from antecede.runtime.operations import Operations
from antecede.runtime.peers import Peers
from antecede.runtime.pulse import Pulse
from antecede.runtime.reactions import Reactions
from antecede.runtime.recorder import recorder_for
from antecede.runtime.recovery import recover
from antecede.runtime.sessions import LocalSession, Sessions
from antecede.server import Accepted, AgentServer, Input, Refused
from antecede.server.items import pieces_of
from antecede.store import Files, Sizes, open_store
from antecede.topology import TopologyFile
from antecede.transports.admission import Admission
from antecede.transports.tcp import Listener, listen
from antecede.whereabouts import text_of

_Waiting = tuple[int, list[Outgoing], list[Accepted | Refused], Callable[[], None] | None]


class ServerRuntime:
    """A server that runs in this event loop."""

    def __init__(
        self,
        topology: TopologyFile,
        server: str,
        data: str | None = None,
        *,
        durability: str = "disk",
        token: str = "",
        host: str | None = None,
        tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
        agents: Classes | None = None,
        trace: bool = False,
        files: Files | None = None,
        sizes: Sizes | None = None,
    ) -> None:
        """``host``: where to listen, if not where the topology says. ``tls``: the contexts to listen and to dial with.
        ``agents``: the classes of this server's agents, and of all objects, if they are not to be imported.
        ``trace``: record; a directory with a trace is recorded in any case, for one with a hole could not be gone on
        with. ``files``: what the log is written with, if not with the operating system's files; ``sizes``: of the log.
        """
        self.name = server
        self.epoch = topology.epoch
        self.log = ServerLog(server)
        self.stopping = False
        self._stuck = ""
        """Why nothing can be stepped."""
        self._born = False
        """Whether the server came to life; what the disk says of one that could not is nobody's business."""
        self._topology = topology
        self._host = host
        self._tls = tls
        plan, classes = run_by(topology, server, agents)
        shared = [plan.topology.domains[domain].servers for domain in plan.topology.domains_of(server)]
        connections = connections_possible(len({member for members in shared for member in members} - {server}))
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[StoreFailedError | BrokenStepError] = self._loop.create_future()
        """Done when the disk has failed, or a step: the server must end."""

        self.store = open_store(
            data,
            durability=durability,
            sizes=sizes,
            on_durable=self._on_durable,
            on_failed=self._on_failed,
            files=files,
        )
        try:
            self.machine = AgentServer(server, plan, self.store.incarnation)
            self.machine.kept = durability != "memory"
            recover(self.machine, self.store, self.epoch, monotonic())
            self.machine.begin_life(randbits(63) + 1)
            host_ = Host(server, self.machine.channel.check)
            for name, kind in classes.items():
                host_.declare(name, kind)
            for address, born in self.machine.engine.born.items():
                host_.declare(address, load_class(born))
            self.recorder = recorder_for(
                data if durability != "memory" else None, trace, topology, self.store, self.log
            )
        except BaseException:
            self.store.close()
            raise
        self._lives = host_.lives
        self._inputs: deque[Input] = deque()
        self._scheduled = False
        self._unstored: list[bytes] = []
        self._waiting: deque[_Waiting] = deque()
        self._durable = self.store.durable
        self.taken = 0
        """Inputs that were stepped."""
        self._stepped: deque[tuple[int, Callable[[], None]]] = deque()
        """What to call when that many inputs have been taken."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        dial_tls = None if tls is None else tls[1]
        self._rested = 0.0
        """When the last step ended."""
        self.peers = Peers(self.machine, topology, token, dial_tls, self, self._when_durable, self.log)
        self.marks = Marks(self.machine, self.store, self.peers, self.log)
        self.sessions = Sessions(self.machine, self, self.poke, self._when_stepped, self._when_durable, self.log)
        self.reactions = Reactions(host_, self.submit, self.log)
        self.operations = Operations(self)
        admission = Admission(connections, len(self.peers.peers))
        self.door = Door(token, self.peers, self.sessions, self.operations, self.log, admission)
        self._listener: Listener | None = None
        self.house = Housekeeping(self)
        self.pulse = Pulse(self)
        self._born = True

    async def start(self) -> None:
        """Open the door and go on where the log ended."""
        address = self._topology.servers[self.name]
        host = self._host or address.host
        try:
            self._listener = await listen(
                *(self.door.opened, host, address.port, self._tls and self._tls[0]),
                admission=self.door.admission,
                tell=self.door.cannot_accept,
            )
        except AntecedeError:
            self.store.close()
            raise
        self.log.info(
            "started",
            address=f"{host}:{address.port}",
            epoch=self.epoch,
            incarnation=f"{self.store.incarnation:016x}",
            records=self.store.last,
            letters=sum(map(len, self.machine.engine.mailboxes.values())),
        )
        self.peers.start()
        self.house.begin()
        self.pulse.begin()
        self.poke()

    async def stop(self, drain_seconds: float = 5.0) -> None:
        """Take nothing more from outside, let what is under way come to an end, keep a snapshot, close."""
        self.stopping = True
        self.machine.overloaded = True
        self.door.shut = "the server stops"
        if self._listener is not None:
            self._listener.close()
        until = self._loop.time() + drain_seconds
        while self._busy() and self._loop.time() < until and not self.failed.done():
            await asyncio.sleep(0.01)
        self.reactions.stop()
        self.sessions.end("the server stops")
        await self.peers.stop()
        self.house.end()
        if self.recorder is not None:
            await self.recorder.stop()
        if self._timer is not None:
            self._timer.cancel()
        while self._inputs and not self._unstored and not self.failed.done():
            self._tick()
        await self.house.settled()
        if not self.failed.done() and not self._unstored:
            try:
                await asyncio.to_thread(self.store.snapshot, self.machine.snapshot(), self.store.last)
            except StoreError as error:
                self.log.error("snapshot-failed", reason=str(error))
        await asyncio.sleep(0)
        self._scheduled = True
        await asyncio.to_thread(self.store.close)
        self.pulse.end()
        self.log.info("stopped", records=self.store.last)

    async def give_up(self, reason: str) -> None:
        """The server has failed: say so to all who are here, and leave the data directory as it is."""
        self.door.shut = reason
        if self._listener is not None:
            self._listener.close()
        self.house.end()
        self.reactions.stop()
        self.sessions.end(reason)
        await self.peers.stop(reason)
        self.pulse.end()
        await asyncio.sleep(0)

    def bus(self, name: str) -> Bus:
        """A client in this very process; to be entered with ``async with``."""
        return Bus(name, lambda bus: LocalSession(self.sessions, bus))

    @property
    def trouble(self) -> str:
        """What is wrong with the disk; empty: nothing."""
        return self._stuck or self.marks.shortage

    @property
    def unstepped(self) -> int:
        """Inputs that wait for a step; none while steps wait for room on the disk."""
        return 0 if self._unstored else len(self._inputs)

    @property
    def behind(self) -> bool:
        """Whether the machine is ahead of the log: for want of room on the disk, or for good."""
        return bool(self._unstored) or self.failed.done()

    def _busy(self) -> bool:
        """Whether something is still on its way to this server's agents or to its disk."""
        mine = any(self._lives(agent) for agent in self.machine.engine.mailboxes)
        return bool(self._inputs or self._waiting or mine)

    # Ticks.

    def submit(self, given: Input) -> None:
        """Something for the next step."""
        self._inputs.append(given)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._tick)

    def poke(self) -> None:
        """Take a step soon, even if there is nothing to take."""
        if self.gather():
            self._loop.call_soon(self._tick)

    def gather(self) -> bool:
        """From now on what is submitted came in one piece, until ``go`` is called. False: somebody gathers already."""
        if self._scheduled:
            return False
        self._scheduled = True
        return True

    def go(self) -> None:
        """All is here. If nothing has been going on it is stepped at once, for there is nothing to wait for; under load
        it waits for what else this turn of the event loop brings."""
        if monotonic() - self._rested > _calm_seconds:
            self._tick()
        else:
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        try:
            self._turn()
        except BaseException as error:
            # Half a step was taken, and no record tells of it: nothing may build on that. The log is good.
            self._scheduled = True
            self._fail(BrokenStepError(f"a step failed: {type(error).__name__}: {text_of(error)}"), "step-failed")
            if is_ctrl_c(error):
                raise
            self._loop.call_exception_handler({"message": "a step failed", "exception": error})

    def _turn(self) -> None:
        if self._unstored and not self._store_again():
            return
        now = monotonic()
        calm = now - self._rested > _calm_seconds
        # What the reactions of a step bring about is stepped at once: it shares the group in the log, and the write.
        self._scheduled = True
        for _ in range(_steps_together):
            self._step(now)
            if not self._inputs or self._unstored:
                break
            now = monotonic()
        self._scheduled = False
        rested = monotonic()
        if calm and not self._inputs:
            self.store.commit_here()
            self._became_durable(self.store.durable)
        else:
            self.store.commit_soon()
            if self._waiting and self._waiting[0][0] <= self._durable:
                self._release()
        if self._inputs or self._unstored:
            self.poke()
        self._set_timer()
        # Without a disk to wait for, the answer to what has just left may be here by now.
        self._rested = rested if calm and not self.machine.kept else monotonic()

    def _step(self, now: float) -> None:
        inputs, acknowledge = take_inputs(self._inputs), self.peers.patience.over
        step = self.machine.step(inputs, now, int(time() * 1000), acknowledge)
        self.taken += len(inputs)
        if acknowledge:
            self.peers.patience.acknowledged()
        if step.record is not None:
            self._append(step.record)
        if step.outgoing or step.replies:
            self._waiting.append((self._last(), step.outgoing, step.replies, None))
        for due in step.due:
            if self._lives(due.agent):
                self.reactions.run(due)
            else:
                self.sessions.due(due)
        while self._stepped and self._stepped[0][0] <= self.taken:
            self._stepped.popleft()[1]()
        for domain, peer, reason in step.faults:
            self.peers.fault(domain, peer, reason)

    def _set_timer(self) -> None:
        """Be woken when a link wants to resend or an agent's timer is due."""
        alarm, now = self.machine.alarm_ms(), self._loop.time()
        due = None if alarm is None else now + max(0.0, alarm / 1000 - time())
        if self._timer is not None:
            # No frame that was sent since wants to be resent before this; so links need not be asked at every step.
            soon = self._timer_at <= now + self.machine.plan.resend_after
            if soon and (due is None or due >= self._timer_at - 0.001):
                return
            self._timer.cancel()
        deadline = self.machine.deadline()
        if deadline is not None:
            resend = now + max(0.001, deadline - monotonic())
            due = resend if due is None else min(due, resend)
        if due is None:
            self._timer = None
        else:
            self._timer_at = due
            self._timer = self._loop.call_at(due, self._alarm)

    def _alarm(self) -> None:
        self._timer = None
        self.poke()

    # Durability.

    def _append(self, record: bytes) -> None:
        self.house.logged_bytes += len(record)
        self.marks.unwatched_bytes += len(record)
        if self.marks.unwatched_bytes > limits.backlog_unwatched_bytes_max:
            self.marks.watch(self.stopping)
        store = self.store
        for piece in pieces_of(record):
            if self._unstored:
                self._unstored.append(piece)
                continue
            try:
                store.append(piece, rouse=False)
            except StoreFullError as error:
                self._unstored.append(piece)
                self._in_trouble(str(error))
            except StoreFailedError as error:
                self._unstored.append(piece)
                self._fail(error)
        self._durable = max(self._durable, store.durable)

    def _last(self) -> int:
        """The number of the newest record, also of one that still waits for room on the disk."""
        return self.store.last + len(self._unstored)

    def _store_again(self) -> bool:
        while self._unstored and not self.failed.done():
            try:
                self.store.append(self._unstored[0])
            except StoreFullError:
                self._scheduled = True
                self._loop.call_later(_full_seconds, self._tick)
                return False
            except StoreFailedError as error:
                self._fail(error)
                return False
            self._unstored.pop(0)
        if not self._unstored and self._stuck:
            self._stuck = ""
            self.door.hold(False)
            self.peers.hold(self.marks.held)
            self.log.info("trouble-over")
        return not self._unstored

    def _in_trouble(self, reason: str) -> None:
        """Nothing more may be stepped until this record has room: stop reading, and try again."""
        if not self._stuck:
            self.log.error("no-room", reason=reason)
        self._stuck = reason
        self.door.hold(True)
        self.peers.hold(True)

    def _on_durable(self, number: int) -> None:
        """From the commit thread."""
        self._loop.call_soon_threadsafe(self._became_durable, number)

    def _on_failed(self, error: StoreFailedError) -> None:
        """From the commit thread."""
        self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: StoreFailedError | BrokenStepError, event: str = "disk-failed") -> None:
        if not self.failed.done():
            self._stuck = str(error)
            self.log.error(event, reason=str(error))
            self.failed.set_result(error)

    def _became_durable(self, number: int) -> None:
        if not self._born:
            return
        if number > self._durable:
            self._durable = number
        if not self.marks.shortage:
            self.marks.watch_room()
        if self._waiting and self._waiting[0][0] <= self._durable:
            self._release()

    def _release(self) -> None:
        """Let everything leave that waited for what is durable now, in that sequence: a connection or a session that a
        call opens gets nothing that was meant for the one before."""
        waiting, durable = self._waiting, self._durable
        if len(waiting) == 1 and waiting[0][0] <= durable:
            # One thing at a time, as it is where little goes on.
            _, frames, told, call = waiting.popleft()
            if call is not None:
                call()
            if told:
                self.sessions.replies(told)
            if frames:
                self.peers.send(frames)
            return
        outgoing: list[Outgoing] = []
        replies: list[Accepted | Refused] = []
        while waiting and waiting[0][0] <= durable:
            _, frames, told, call = waiting.popleft()
            outgoing += frames
            replies += told
            if call is None and waiting and waiting[0][0] <= durable:
                continue
            if replies:
                self.sessions.replies(replies)
            if outgoing:
                self.peers.send(outgoing)
            outgoing, replies = [], []
            if call is not None:
                call()

    def _when_durable(self, call: Callable[[], None]) -> None:
        """Call when everything appended so far is durable, in sequence with all that waits for that."""
        self._waiting.append((self._last(), [], [], call))
        if self._waiting[0][0] <= self._durable:
            self.poke()

    def _when_stepped(self, call: Callable[[], None]) -> None:
        """Call after a step, as soon as all that is here now has been taken; that may take several."""
        self._stepped.append((self.taken + len(self._inputs), call))
        self.poke()


_full_seconds = 0.1
_calm_seconds = 0.00005
"""After so long without a step nothing is going on: what comes need not wait for more."""
_steps_together = 4
"""Steps of one turn of the event loop; others want their turn too."""
