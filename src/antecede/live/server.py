"""Run one server in an event loop: connect :class:`antecede.server.core.ServerCore` with the disk and the network.

This module listens for connections, and opens connections to peers (other servers). The driver
(:mod:`antecede.server.driver`) says when it must be called. After each call, this module appends the new records to the
log, and runs the reactions that the driver requests. All rules of the protocol are in ``ServerCore``.
"""

import asyncio
import os
import resource
import socket
import ssl
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from random import random
from secrets import randbits
from time import monotonic, time

from antecede import limits
from antecede.access import LOCAL
from antecede.access.audit import Audit
from antecede.backups.copying import FrozenFiles, remove_links
from antecede.backups.folder import system_epoch, write_system
from antecede.channel import Letter
from antecede.engine import Belongings
from antecede.engine.host import Host
from antecede.errors import (
    AgentError,
    AntecedeError,
    BrokenStepError,
    RefusedError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    TopologyError,
    UsageError,
)
from antecede.failures import described, is_ctrl_c, text_of
from antecede.live.apart import build_apart, is_imported, try_apart
from antecede.live.application import Classes, agents_of, load_class, readable, run_by
from antecede.live.background import Background
from antecede.live.client import Bus, Ticket
from antecede.live.isolation import Isolated, isolated_agents
from antecede.live.keys import ServerSecurity, authoriser_of
from antecede.live.logs import AuditFile, ServerLog
from antecede.live.reactions import CallsFile, Reactions
from antecede.live.recorder import KEEP_NEEDED, Keep, Recorder, releasable
from antecede.live.tcp import LINGER_SECONDS, Listener, TcpConnection, dial, listen
from antecede.recording.segments import is_begun, next_indices
from antecede.server import Accepted, AgentServer, Input, Refused
from antecede.server.admission import Admission
from antecede.server.client import refusal_of
from antecede.server.connections import Receiver
from antecede.server.core import ServerCore, Shutdown
from antecede.server.driver import HERE, SOON
from antecede.server.node import truncated
from antecede.server.organisation import topology_in
from antecede.server.participation import Adapter
from antecede.server.recovery import Task, recover
from antecede.server.sessions import STOPPING, Sessions
from antecede.server.upkeep import LOOK_SECONDS, Snapshot
from antecede.store import Files, Sizes, open_store
from antecede.topology import TopologyFile
from antecede.wire import AnyPart


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
                self.recorder = Recorder(kept, self.store, self.log, self.background, keep)
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
            self.core.changes.adapter = changes = LiveChanges(self, agents)
            changes.import_staged()
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
        self.reactions = Reactions(host_, self.driver, self.reaction_limit, self.isolated, self._broken)
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

    def _addresses_of(self, server: str) -> list[tuple[str, int]]:
        """Return the addresses of a server in the topology in force and in the staged topology, if there is one. (A
        staged topology is in the log, but not in force yet.)"""
        staged = self.machine.organisation.staged
        files = [self.topology] if staged is None else [self.topology, topology_in(staged.topology)]
        known = [file.servers[server] for file in files if server in file.servers]
        return list(dict.fromkeys((address.host, address.port) for address in known))

    async def _dial_one(self, peer: str) -> None:
        peering, reason = self.core.peering, "it is not part of the topology"
        tls = None if self._tls is None else self._tls[1]
        for address in self._addresses_of(peer):
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


class Fed:
    """The receiver of one connection. It passes the input to the server's core. If ``core.received`` returns True, the
    receiver calls ``ServerRuntime.tick``, which immediately processes all waiting inputs."""

    __slots__ = ("_receiver", "_runtime")

    def __init__(self, runtime: "ServerRuntime", receiver: Receiver) -> None:
        self._runtime = runtime
        self._receiver = receiver

    def received(self, parts: list[AnyPart]) -> None:
        if self._runtime.core.received(self._receiver, parts, monotonic()):
            self._runtime.tick()

    def closed(self, reason: str, now: float) -> None:
        self._receiver.closed(reason, now)
        self._runtime.set_timer()

    def writable(self) -> None:
        self._receiver.writable()


class Connections:
    """The connections of a server. A connection is removed from here when both of its directions have ended."""

    def __init__(self, runtime: "ServerRuntime") -> None:
        self._runtime = runtime
        self._open: set[TcpConnection] = set()

    def accepted(self, connection: TcpConnection) -> Fed:
        """Register an incoming connection; return its receiver."""
        connection.join(self._open)
        return Fed(self._runtime, self._runtime.core.entry.opened(connection, monotonic()))

    def dialed(self, peer: str, connection: TcpConnection) -> Fed:
        """Register a connection to a peer; return its receiver."""
        connection.join(self._open)
        return Fed(self._runtime, self._runtime.core.peering.dialed(peer, connection))

    def copied(self) -> None:
        """Let this process have no part in the connections: it is a copy of the server's process."""
        for connection in self._open:
            connection.copied()

    async def close(self, reason: str) -> None:
        """Close all connections that are still open. These are the connections of operators, and connections on which
        no hello has arrived yet; the connections of clients and peers were closed before. Then wait for a short time,
        so that clients and servers can read why this server ends and can close their ends. Without this wait, the
        operating system would reset each connection that has unread input, and the reason would be lost."""
        for connection in list(self._open):
            connection.close(reason, code=STOPPING)
        until = monotonic() + LINGER_SECONDS
        while any(connection.lingers for connection in self._open) and monotonic() < until:
            await asyncio.sleep(0.002)


class Housekeeping:
    """Does the periodic work of one server (:class:`antecede.server.upkeep.Upkeep`), and writes its snapshots. Another
    process builds each snapshot, and a separate thread then checks it. If another process cannot be used, or fails
    several times, the server copies its state, and a separate thread writes the copy as a snapshot."""

    def __init__(self, runtime: "ServerRuntime") -> None:
        self._runtime = runtime
        self._upkeep = runtime.core.upkeep
        self._task: asyncio.Task[None] | None = None
        self._snapshotting: asyncio.Future[None] | None = None
        self._building = False
        """True while another process builds a snapshot."""

    def begin(self) -> None:
        """Start the task that does the periodic work."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    def end(self) -> None:
        """Stop the periodic work. If this process is writing a snapshot, the snapshot is completed. If another process
        builds a snapshot, the snapshot is abandoned."""
        if self._task is not None:
            self._task.cancel()
        if self._building:
            self._snapshotting.cancel()  # type: ignore[union-attr]

    async def settled(self) -> None:
        """Wait until no snapshot is being written."""
        if self._snapshotting is not None:
            await asyncio.wait([self._snapshotting])

    async def _keep(self) -> None:
        recorder, background, pruned = self._runtime.recorder, self._runtime.background, 0.0
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                self._look(loop.time())
            except Exception as error:
                background.failed("upkeep", error)
            if recorder is None:
                continue
            try:
                recorder.look()
                if self._runtime.keep.bounds_trace and loop.time() >= pruned + _prune_seconds:
                    pruned = loop.time()
                    await asyncio.to_thread(recorder.prune, time())
            except Exception as error:
                background.failed("recording", error)

    def _look(self, now: float) -> None:
        runtime = self._runtime
        for agent in runtime.reactions.look(now):
            runtime.log.warning("reaction-stuck", agent=agent, reason="its handler goes on although it was cancelled")
        due = self._upkeep.look(now)
        if due is not None:
            self._building = isinstance(due, Task)
            work = self._build(due) if isinstance(due, Task) else self._write(due)
            self._snapshotting = asyncio.ensure_future(work)
            self._snapshotting.add_done_callback(self._written)

    async def _build(self, task: Task) -> None:
        runtime = self._runtime
        # The other process reads only what is durable.
        await asyncio.to_thread(runtime.store.wait, task.upto)
        draft = await build_apart(runtime.data, runtime.name, runtime.topology, task)
        self._building = False
        await asyncio.to_thread(runtime.store.adopt_snapshot, draft, task.upto)
        await asyncio.to_thread(self._release, task.upto)

    async def _write(self, snapshot: Snapshot) -> None:
        await asyncio.to_thread(self._runtime.store.snapshot, snapshot.data, snapshot.upto)
        await asyncio.to_thread(self._release, snapshot.upto)

    def _release(self, upto: int) -> None:
        runtime = self._runtime
        if runtime.recorder is None:
            runtime.store.release(releasable(str(runtime.data), upto, runtime.keep, time()))

    def _written(self, done: "asyncio.Future[None]") -> None:
        self._snapshotting, self._building = None, False
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._upkeep.kept()
        else:
            self._upkeep.not_kept(str(error), asyncio.get_running_loop().time())


_prune_seconds = 60.0
"""The seconds between two checks of the trace's files. A check deletes files that are too old or take too much
space."""


class Pulse:
    """Checks whether a server still works: its event loop runs, and it processes waiting inputs. The event loop records
    the time several times per second. Other threads read this time, and so they notice when a handler blocks the event
    loop. A server that waits for disk space counts as working, because a restart would not help."""

    def __init__(self, runtime: "ServerRuntime") -> None:
        self._runtime = runtime
        self._turned = self._stepped = monotonic()
        """``_turned``: the last time at which the event loop ran. ``_stepped``: the last time at which inputs were
        processed or no input was waiting."""
        self._taken = 0
        self._handle: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Record the time now, and then several times per second."""
        runtime = self._runtime
        self._handle = asyncio.get_running_loop().call_later(_beat_seconds, self.begin)
        self._turned = monotonic()
        if runtime.driver.taken != self._taken or not runtime.unstepped:
            self._taken, self._stepped = runtime.driver.taken, self._turned

    def end(self) -> None:
        """Stop recording the time of the event loop."""
        if self._handle is not None:
            self._handle.cancel()

    def trouble(self) -> str:
        """Return the reason why the server does not work, as one line. Return an empty string if the server works. This
        method may be called from any thread."""
        runtime, now = self._runtime, monotonic()
        if runtime.failed.done():
            return str(runtime.failed.result())
        if now - self._turned > limits.live_seconds_max:
            progress = runtime.reactions.host.progress
            agent = runtime.reactions.reacting or ((progress and progress.running) or ("",))[0]
            blocks = f": a handler of agent {agent} blocks it" if agent else ""
            return f"the event loop has been blocked for {now - self._turned:.0f} s{blocks}"
        if now - self._stepped > limits.live_seconds_max:
            return f"no step for {now - self._stepped:.0f} s, and {runtime.unstepped} inputs wait"
        return runtime.background.trouble()


_beat_seconds = 0.1


class LiveChanges(Adapter):
    """Does the work of a running server for a change of the topology: imports classes, uses new addresses, ends a
    removed server. See :class:`antecede.server.participation.Adapter`. Work that may take long is done by another
    thread."""

    def __init__(self, runtime: "ServerRuntime", given: Classes | None) -> None:
        """``given``: classes, by the name of the agent or object. These classes are used as they are; all other classes
        are imported."""
        self._runtime = runtime
        self._given = given or {}

    def import_staged(self) -> None:
        """Import the classes for a *staged* change of the topology: a change that is in the log, but not in force yet.
        It may come into force at any moment."""
        organisation = self._runtime.machine.organisation
        if organisation.staged is None:
            return
        file = topology_in(organisation.staged.topology)
        try:
            readable(file, self._runtime.name, organisation.came, self._given)
        except AntecedeError as error:
            self._runtime.log.error("change-unprepared", change=organisation.staged.change, reason=str(error))

    def prepare(self, file: TopologyFile, came: list[Belongings]) -> None:
        self._check(file, lambda: readable(file, self._runtime.name, came, self._given))

    def check(self, file: TopologyFile, came: list[Belongings]) -> None:
        name = self._runtime.name
        if self._given or is_imported(file, name):
            self.prepare(file, came)
        else:
            self._check(file, lambda: try_apart(file, name))

    def _check(self, file: TopologyFile, classes: Callable[[], None]) -> None:
        runtime = self._runtime
        if runtime.name not in file.servers:
            return
        try:
            classes()
        except AgentError as error:
            raise AgentError(
                f"server {runtime.name}: {error} (a running server uses the modules that it has imported already: "
                "restart it to use newer files)"
            ) from None
        address = file.servers[runtime.name]
        if address != runtime.topology.servers[runtime.name]:
            _check_free(runtime.host or address.host, address.port, runtime.name)

    def indices(self, addresses: list[str]) -> dict[str, int]:
        runtime = self._runtime
        if not addresses or not runtime.data:
            return {}
        return next_indices(runtime.data, addresses)

    def offload(self, work: Callable[[], None], then: Callable[[AntecedeError | None], None]) -> None:
        async def do() -> None:
            failure: AntecedeError | None = None
            try:
                await asyncio.to_thread(work)
            except AntecedeError as error:
                failure = error
            except Exception as error:
                failure = AgentError(f"server {self._runtime.name}: {described(error)}")
            then(failure)

        self._runtime.background.start("a change of the topology", do())

    async def _listen(self) -> None:
        """Listen on the new address of this server, and make its clients connect to this address."""
        runtime = self._runtime
        address = runtime.topology.servers[runtime.name]
        while True:
            try:
                await runtime.listen_elsewhere()
                break
            except AntecedeError as error:
                runtime.log.error("cannot-listen", reason=str(error))
                await asyncio.sleep(_listen_seconds)
        runtime.log.info("listens", address=str(address))
        runtime.core.sessions.move(str(address))

    def drop_agents(self, agents: list[str]) -> None:
        self._runtime.reactions.drop_agents(agents)

    def organised(self, file: TopologyFile) -> None:
        runtime = self._runtime
        before, runtime.topology, runtime.epoch = runtime.topology, file, file.epoch
        host, reactions, name = runtime.reactions.host, runtime.reactions, runtime.name
        kinds = agents_of(file, name, self._given)
        for agent in before.agents:
            if agent.server == name and agent.name not in kinds:
                host.retire(agent.name)
        for agent_name, kind in kinds.items():
            host.declare(agent_name, kind)
        for address, born in runtime.machine.engine.born.items():
            host.declare(address, load_class(born))
        fresh = isolated_agents(file, host, runtime.log)
        for agent_name, isolated in list(runtime.isolated.items()):
            if agent_name in fresh:
                fresh[agent_name] = isolated.renewed(fresh[agent_name])
            else:
                isolated.close()
        runtime.isolated.clear()
        runtime.isolated.update(fresh)
        reactions.organised()
        if before.servers[name] != file.servers[name]:
            runtime.background.start("listening on the new address", self._listen())
        runtime.set_timer()

    def belong(self, restored: str) -> None:
        if self._runtime.machine.kept:
            write_system(self._runtime.data, restored)

    def removed(self) -> None:
        if not self._runtime.removed.done():
            self._runtime.removed.set_result(None)


def _check_free(host: str, port: int, server: str) -> None:
    """Raise TopologyError if this computer cannot listen on a new address of the server."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        raise TopologyError(f"server {server} cannot listen on {host}:{port}: {error.strerror or error}") from None


_listen_seconds = 1.0
"""The number of seconds before the server tries again to listen on an address."""


class LocalSession:
    """Connects a bus to a server in the same process. This object has two roles: for the server it is a session, and
    for the bus it is the connection to the server (:class:`antecede.live.client.Line`)."""

    def __init__(self, sessions: Sessions, bus: Bus) -> None:
        self.client = bus.name
        self.address = ""
        self.listening = False
        self.handed: list[str] = []
        self.rights = sessions.rights(LOCAL)
        self.forbidden: dict[str, str] = {}
        self._sessions = sessions
        self._bus = bus
        self._welcomed = asyncio.Event()

    async def open(self) -> None:
        refusal = self._sessions.refusal(self.client)
        if refusal is not None:
            raise RefusedError(refusal.reason, refusal.code)
        self._sessions.begin(self)
        try:
            await self._welcomed.wait()
        except BaseException:
            self._sessions.finish(self)
            raise

    def publish(self, ticket: Ticket, last: bool) -> None:
        sent = ticket.number, ticket.to, ticket.kind, ticket.bodies, ticket.ask, ticket.context, ticket.begun
        self._sessions.publish(self, *sent)

    def done(self, letters: list[str], dead: str) -> None:
        self._sessions.done(self, letters, dead)

    def listen(self) -> None:
        self._sessions.listen(self)

    async def close(self) -> None:
        self._sessions.finish(self)

    # From the server.

    def welcome(self, address: str, last: int) -> None:
        self._bus.welcomed(address, last)
        self._welcomed.set()

    def reply(self, reply: Accepted | Refused) -> None:
        if isinstance(reply, Accepted):
            self._bus.accepted(reply.number)
        else:
            self._bus.refused(reply.number, refusal_of(reply.reason, reply.code, reply.retry), reply.retry)

    def deliver(self, letters: list[Letter]) -> None:
        if self._sessions.is_current(self):
            self._bus.delivered(letters)

    def end(self, reason: str, code: str) -> None:
        self._sessions.finish(self)
        self._bus.gone(RefusedError(reason, code))


# Raise the limit of open file descriptors as far as the system allows, and leave some descriptors for the log.
#
# A process begins with a soft limit, often 1,024. The process may raise this limit up to a hard limit. Every
# connection and every open file needs a descriptor. Therefore the number of connections is kept below the limit, so
# that the log can still open files.


def raise_limit() -> None:
    """Raise this process's soft limit to the number of descriptors that a server may need, as far as the hard limit
    allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.descriptors_wanted if hard == resource.RLIM_INFINITY else min(limits.descriptors_wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_possible(dialed: int) -> int:
    """Return how many incoming connections this process may have at the same time. The number is limited, so that
    enough descriptors remain for the log and for ``dialed`` outgoing connections. Raise UsageError if too few
    descriptors remain for incoming connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits.connections_max
    room = soft - limits.descriptors_reserved - dialed
    if room < _connections_min:
        needed = limits.descriptors_reserved + dialed + _connections_min
        raise UsageError(f"this process may open only {soft} files, but needs {needed}: raise the limit (ulimit -n)")
    return min(limits.connections_max, room)


_connections_min = 32
