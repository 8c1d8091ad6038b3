"""Run one server in an event loop: connect :class:`antecede.server.core.ServerCore` with the disk and the network.

This module listens for connections, and opens connections to peers (other servers). The driver
(:mod:`antecede.server.driver`) says when it must be called. After each call, this module appends the new records to the
log, and runs the reactions that the driver requests. All rules of the protocol are in ``ServerCore``.
"""

import asyncio
import os
import ssl
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from random import random
from secrets import randbits
from time import monotonic, time

from antecede.access.audit import Audit
from antecede.backups.copying import FrozenFiles, remove_links
from antecede.backups.folder import system_epoch
from antecede.engine.host import Host
from antecede.errors import AntecedeError, BrokenStepError, StoreError, StoreFailedError, StoreFullError
from antecede.interrupts import is_ctrl_c
from antecede.live.application import Classes, agents_of, load_class, run_by
from antecede.live.audit import AuditFile
from antecede.live.background import Background
from antecede.live.calls import CallsFile
from antecede.live.client import Bus
from antecede.live.descriptors import connections_possible
from antecede.live.fed import Connections
from antecede.live.housekeeping import Housekeeping
from antecede.live.isolation import Isolated, isolated_agents
from antecede.live.local import LocalSession
from antecede.live.logs import ServerLog
from antecede.live.pulse import Pulse
from antecede.live.reactions import Reactions
from antecede.live.recorder import Recorder
from antecede.live.reorganised import LiveChanges, addresses_of, staged_classes
from antecede.live.retention import KEEP_NEEDED, Keep
from antecede.live.security import ServerSecurity, authoriser_of
from antecede.live.tcp import Listener, dial, listen
from antecede.recording.segments import is_begun
from antecede.server import AgentServer, Input
from antecede.server.admission import Admission
from antecede.server.core import ServerCore
from antecede.server.driver.turns import HERE, SOON
from antecede.server.recovery import recover
from antecede.server.shutdown import Shutdown
from antecede.server.truncations import truncated
from antecede.store import Files, Sizes, open_store
from antecede.topology import TopologyFile
from antecede.whereabouts import described, text_of


class ServerRuntime:
    """A server that runs in this event loop."""

    # An object with more than 30 attributes outside of slots has slower methods.
    __slots__ = (
        "__dict__",
        "__weakref__",
        "_dialing",
        "_ended",
        "_listener",
        "_security",
        "_timer",
        "_timer_at",
        "_tls",
        "driver",
    )

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
        security: ServerSecurity | None = None,
        audit: str | None = None,
        agents: Classes | None = None,
        trace: bool = False,
        keep: Keep = KEEP_NEEDED,
        files: Files | None = None,
        sizes: Sizes | None = None,
    ) -> None:
        """``host``: the address to listen on, instead of the one in the topology. ``tls``: the TLS contexts for
        incoming and outgoing connections. ``security``: the access file and this server's credentials; their TLS
        contexts replace ``tls``. ``token``: the only credential if there is no access file. ``audit``: the file for the
        audit log, which needs an access file. ``agents``: the classes of this server's agents and of all objects. If it
        is None, the server imports the classes. ``trace``: record a trace. A server whose directory already has a trace
        always records, because a trace must not have a gap. ``keep``: how long trace and log are kept. ``files``: the
        file operations for the log. If it is None, the operations of the operating system are used. ``sizes``: the
        sizes of the log."""
        self.name = server
        self.epoch = topology.epoch
        self.log = ServerLog(server)
        self.background = Background(self.log)
        self.keep = keep
        self._born = False
        """Whether the constructor has finished; before that, the driver is not notified of durable records."""
        self.topology = topology
        self.data = data or ""
        self.host = host
        self._security = security
        self._tls = tls if security is None else security.credentials.contexts()
        plan, classes = run_by(topology, server, agents)
        shared = [plan.topology.domains[domain].servers for domain in plan.topology.domains_of(server)]
        peers = len({member for members in shared for member in members} - {server})
        connections = connections_possible(peers)
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[StoreFailedError | BrokenStepError] = self._loop.create_future()
        """A future that is done when the disk or a step (processing of inputs) has failed. The server must then end."""
        self.removed: asyncio.Future[None] = self._loop.create_future()
        """A future that is done when a change of the topology has removed this server."""

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
            found = self.store.recovered
            snapshot = None if found.snapshot is None else found.snapshot.data()
            stored = (record for _, record in found.records())
            kept = data if durability != "memory" else None
            self.calls = CallsFile(kept, self.log)
            wall_ms, ended = int(time() * 1000), self.calls.ended()
            first = recover(
                *(self.machine, snapshot, stored, self.epoch, monotonic()),
                ended=ended,
                wall_ms=wall_ms,
                cuts=truncated(found.cuts, wall_ms),
            )
            # The number by which peers recognise a restart; the file of calls has another number of this life.
            self.machine.begin_life(randbits(63) + 1)
            for agent, letter in ended.calls:
                tries = self.machine.engine.tries.of(agent, letter)
                self.log.warning("ended-in-reaction", agent=agent, letter=letter, tries=tries)
            force = self.machine.plan.file
            if force is not None and force.epoch != self.epoch:
                # The file is older than the last change, or that of a change which is staged and not yet in force.
                self.log.warning("other-topology-in-force", file=topology.name, given=self.epoch, force=force.epoch)
                self.topology, self.epoch = force, force.epoch
                classes = agents_of(force, server, agents)
            host_ = Host(server, self.machine.channel.check)
            for name, kind in classes.items():
                host_.declare(name, kind)
            for address, born in self.machine.engine.born.items():
                host_.declare(address, load_class(born))
            self.recorder: Recorder | None = None
            if kept is not None and (trace or is_begun(kept)):
                self.recorder = Recorder(kept, topology, self.store, self.log, self.background, keep)
            self.core = ServerCore(
                *(self.machine, host_.lives, self._wake, self.store, self.log, random, first),
                epoch=system_epoch(self.epoch, data),
                token=token,
                authoriser=authoriser_of(security, token),
                keyring=None if security is None else security.keyring,
                audit=self._audit(audit or (data and f"{data}/{AUDIT}")),
                admission=Admission(connections, peers),
                now=monotonic(),
                cuts=bool(found.cuts),
                covers=self.store.last - self.store.figures.snapshot_upto,
            )
            self.core.changes.adapter = LiveChanges(self, agents)
            staged_classes(self, agents)
            # Another process can import the classes of objects, but not get them from this one.
            self.core.upkeep.direct = bool(topology.objects) and agents is not None
        except BaseException:
            # After any error, the directory must be free for another try.
            self.store.close()
            raise
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._dialing: set[asyncio.Task[None]] = set()
        self.connections = Connections(self)
        self.driver, self.marks, self.operations = self.core.driver, self.core.marks, self.core.operations
        if self.recorder is not None:
            self.operations.trace = self.recorder.status
        if kept is not None:
            remove_links(kept)
            self.operations.backups.freeze = lambda: FrozenFiles(kept, self.store)
        self.isolated: dict[str, Isolated] = isolated_agents(self.topology, host_, self.log)
        self.reactions = Reactions(host_, self.driver, self.reaction_limit, self.isolated)
        self.driver.when_durable(self._name_calls)
        self.core.adapter_trouble = self._trouble
        self._listener: Listener | None = None
        self.unready = "the server is starting"
        """The reason why clients and peers should not connect: the server is starting, stops, or has failed. The text
        is empty while the server is ready. Any thread may read it."""
        self._ended = False
        """Whether the log is closed or is just being closed."""
        self.when_copied: Callable[[], None] = lambda: None
        """A function that is called with ``copied``."""
        self.house = Housekeeping(self)
        self.pulse = Pulse(self)
        self._born = True
        _running.add(self)

    def _name_calls(self) -> None:
        """Empty the file that lists the handler calls in progress. Its old entries are the calls that were in progress
        when the previous process of this server ended. So call this method only when these calls are in the log."""
        self.reactions.host.progress = self.calls.begin(randbits(63) + 1)

    def _trouble(self) -> str:
        stuck = self.reactions.stuck
        if stuck:
            more = f" and {len(stuck) - 1} more" if len(stuck) > 1 else ""
            return f"agent {stuck[0]}{more}: its handler goes on although it was cancelled: restart the server"
        return self.background.trouble()

    def _audit(self, path: str | None) -> Audit | None:
        if self._security is None or path is None:
            return None
        return Audit(AuditFile(path, self.log).write, self.name, time)

    def reload(self) -> None:
        """Read the access file again, if there is one."""
        if self._security is not None:
            self._security.reload(self.core)
        else:
            self.log.warning("reload-ignored", reason="this server has no access file")

    async def start(self) -> None:
        """Listen, and continue where the log ended."""
        # The first record of this life becomes durable before anybody can connect, unless the disk is full.
        self.tick()
        try:
            self._listener = await self._listen()
        except AntecedeError:
            self.store.close()
            raise
        address = self.topology.servers[self.name]
        self.log.info(
            "started",
            address=f"{self.host or address.host}:{address.port}",
            epoch=self.epoch,
            incarnation=f"{self.store.incarnation:016x}",
            records=self.store.last,
            letters=sum(map(len, self.machine.engine.mailboxes.values())),
        )
        self.core.peering.start(monotonic())
        self.house.begin()
        self.pulse.begin()
        self.driver.request_turn()
        self._dial()
        self.unready = ""

    async def _listen(self) -> Listener:
        address, entry = self.topology.servers[self.name], self.core.entry
        return await listen(
            *(self.connections.accepted, self.host or address.host, address.port, self._tls and self._tls[0]),
            admission=entry.admission,
            accept_failed=entry.cannot_accept,
            failed=entry.handshake_failed,
        )

    async def listen_elsewhere(self) -> None:
        """Listen on this server's address in the topology in force, and close the listener on the previous address."""
        before, self._listener = self._listener, await self._listen()
        if before is not None:
            before.close()
        if self._ended:
            self._listener.close()

    async def stop(self, drain_seconds: float = 5.0) -> None:
        """Stop the server: accept nothing more from outside, wait at most ``drain_seconds`` for the work in progress,
        write a snapshot, and close the connections and the log."""
        self.unready = STOPS
        shutdown = Shutdown(self.core, STOPS, monotonic() + drain_seconds)
        if self._listener is not None:
            self._listener.close()
        while shutdown.waits(monotonic()):
            await asyncio.sleep(0.01)
        shutdown.leave()
        self._cancel()
        self.house.end()
        if self.recorder is not None:
            await self.recorder.stop()
        if self._timer is not None:
            self._timer.cancel()
        while shutdown.steps_left:
            self.tick()
        await self.house.settled()
        snapshot = shutdown.snapshot()
        if snapshot is not None:
            try:
                await asyncio.to_thread(self.store.snapshot, snapshot.data, snapshot.upto)
            except StoreError as error:
                self.log.error("snapshot-failed", reason=str(error))
        await self.connections.close(STOPS)
        self._ended = True
        await asyncio.to_thread(self.store.close)
        self.calls.close()
        self.pulse.end()
        self.log.info("stopped", records=self.store.last)

    async def give_up(self, reason: str) -> None:
        """Send the reason of the failure to all connections, and leave the data directory as it is."""
        self.unready = reason
        if self._listener is not None:
            self._listener.close()
        self.house.end()
        self.core.leave(reason)
        self._cancel()
        self.calls.close()
        self.pulse.end()
        await self.connections.close(reason)

    def copied(self) -> None:
        """Called in a copy of the server's process, because a handler has forked. The log, its lock and all sockets
        belong to the server alone. When the handler returns, the copy ends."""
        if self._ended:
            return
        self._ended = self.reactions.copied = True
        self.when_copied()
        self.store.copied()
        self.calls.copied()
        if self._listener is not None:
            self._listener.copied()
        self.connections.copied()
        for isolated in self.isolated.values():
            isolated.copied()

    def _cancel(self) -> None:
        """Cancel the reactions in progress, and the attempts to connect to peers."""
        self.reactions.cancel()
        for task in self._dialing:
            task.cancel()

    def bus(self, name: str) -> Bus:
        """Return a client in this process. Use the client with ``async with``."""
        return Bus(name, lambda bus: LocalSession(self.core.sessions, bus))

    def submit(self, given: Input) -> None:
        """Queue an input for the next step."""
        self.driver.feed(given)

    def reaction_limit(self, agent: str) -> float:
        """Return how many seconds one reaction of an agent may take. The topology in force contains this limit."""
        return self.topology.reactions.limit(agent)

    @property
    def unstepped(self) -> int:
        """The number of inputs that are not processed yet. While the server waits for disk space, the value is 0."""
        return 0 if self.driver.behind else len(self.driver.inputs)

    # Connections.

    def _dial(self) -> None:
        """Connect to the peers that must be dialed now."""
        for peer in self.core.peering.dials(monotonic()):
            task = self.background.start(f"connecting to {peer}", self._dial_one(peer))
            self._dialing.add(task)
            task.add_done_callback(self._dialing.discard)
        self.set_timer()

    async def _dial_one(self, peer: str) -> None:
        peering, reason = self.core.peering, "it is not part of the topology"
        tls = None if self._tls is None else self._tls[1]
        for address in addresses_of(self, peer):
            try:
                await dial(partial(self.connections.dialed, peer), *address, tls)
                return
            except (OSError, TimeoutError) as error:
                reason = f"TLS: {text_of(error)}" if isinstance(error, ssl.SSLError) else text_of(error)
            except Exception as error:
                reason = described(error)
                self.background.failed(f"connecting to {peer}", error)
        peering.dial_failed(peer, monotonic(), reason)
        self.set_timer()

    # Turns.

    def _wake(self) -> None:
        """Let the event loop call ``tick`` soon."""
        self._loop.call_soon(self.tick)

    def tick(self) -> None:
        """Call ``driver.turn`` and do the work that it returns, again and again, until no more work is ready."""
        if self._ended or self.core.failure:
            return
        driver, machine = self.driver, self.machine
        try:
            while True:
                clock_ms = int(time() * 1000.0)
                turn = driver.turn(monotonic(), clock_ms)
                if turn.records:
                    self._append(turn.records)
                    if driver.urgent:
                        self.store.commit_soon()
                for due in turn.reactions:
                    self.reactions.run(due)
                if not driver.goes_on() or self.core.failure:
                    break
            commit = driver.rest(monotonic())
            if machine.kept:
                if commit is HERE:
                    self.store.commit_here()
                elif commit is SOON:
                    self.store.commit_soon()
                self._became_durable(self.store.durable)
                driver.committed(monotonic())
            else:  # Nothing is recorded, so nothing waits for a disk.
                driver.durable(driver.gate.last)
                if not driver.calm:
                    driver.committed(monotonic())
            # If the timer is early enough, it stays: setting it after every turn would cost more than the turn itself.
            late = self._timer is None or self._timer_at > driver.now + _soon_seconds
            if late or ((machine.timers.alarms or machine.calls.site is not None) and self._alarm_is_near(clock_ms)):
                self.set_timer()
        except BaseException as error:
            self._broken(error)

    def _broken(self, error: BaseException) -> None:
        self._fail(BrokenStepError(f"a step failed: {type(error).__name__}: {text_of(error)}"), "step-failed")
        if is_ctrl_c(error):
            raise error
        self._loop.call_exception_handler({"message": "a step failed", "exception": error})

    def _alarm_is_near(self, clock_ms: int) -> bool:
        alarm, server_ms = self.machine.alarm_ms(), self.machine.clock.at(self.driver.now, clock_ms)
        return alarm is not None and alarm - server_ms < 1000 * _soon_seconds

    def set_timer(self) -> None:
        """Set the timer to the next time at which the driver must be called or a peer must be dialed."""
        now = monotonic()
        due = self.core.deadline(now, int(time() * 1000))
        if due is None or self._ended:
            return
        if self._timer is not None:
            if self._timer_at <= due + 0.001:
                return
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_at(self._loop.time() + max(0.001, due - now), self._alarm)

    def _alarm(self) -> None:
        if self.reactions.copied:
            return
        try:
            self._timer, now, dial = None, monotonic(), self.core.peering.deadline()
            self.driver.alarm(now, int(time() * 1000))
            if dial is not None and dial <= now:
                self._dial()
            elif not self.driver.awake:  # Otherwise the turn sets the timer.
                self.set_timer()
        except BaseException as error:
            self._broken(error)

    # Durability.

    def _append(self, records: Sequence[bytes]) -> None:
        """Append these records to the log. Report to ``core`` how many of them the log accepted."""
        count, size, reason, append = 0, 0, "", self.store.append
        try:
            for record in records:
                append(record, wake=False)
                size += len(record)
                count += 1
        except StoreFullError as error:
            reason = str(error)
        except StoreFailedError as error:
            self._fail(error)
            return
        self.core.appended(count, size, reason)

    def _on_durable(self, number: int) -> None:
        """Called in the commit thread when the records up to this number are durable."""
        self._loop.call_soon_threadsafe(self._became_durable, number)

    def _on_failed(self, error: StoreFailedError) -> None:
        """Called when the disk has failed, in the thread that noticed it."""
        self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: StoreFailedError | BrokenStepError, event: str = "disk-failed") -> None:
        if not self.failed.done():
            self.core.fail(str(error))
            self.log.error(event, reason=str(error))
            self.failed.set_result(error)

    def _became_durable(self, number: int) -> None:
        if not self._born:
            return
        if self.store.full is not None and not self.marks.shortage:
            self.marks.watch_room()
        self.driver.durable(number)


_running: "weakref.WeakSet[ServerRuntime]" = weakref.WeakSet()


def _copied() -> None:
    for runtime in list(_running):
        runtime.copied()


os.register_at_fork(after_in_child=_copied)

STOPS = "the server stops"
AUDIT = "audit.jsonl"
"""The audit log in the data directory."""
_soon_seconds = 0.006  # A timer due within this time is early enough for everything except agents' own timers.
