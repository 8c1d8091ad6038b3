"""A whole server without sockets, disk and clock: its driver, and the classes for peers, clients and operators.

The adapters (:mod:`antecede.live` with asyncio, :mod:`antecede.simulator.servers` in virtual time) create one
:class:`ServerCore` for each start of a server. They give it the parts (messages of the wire protocol) that arrive on
connections. They also call its driver, which processes the inputs in steps (:mod:`antecede.server.driver`).
"""

from collections.abc import Callable
from typing import Any

from antecede import limits
from antecede.access import Access, Authoriser, Who
from antecede.access.audit import Audit
from antecede.access.model import SERVER
from antecede.access.proof import Keyring
from antecede.access.rates import Bucket
from antecede.engine import React
from antecede.server.admission import Admission, Guard
from antecede.server.connections import Receiver
from antecede.server.driver import Driver
from antecede.server.entry import Entry
from antecede.server.inputs import Log
from antecede.server.node import AgentServer
from antecede.server.operations import Operations
from antecede.server.participation import Reorganising
from antecede.server.peering import Peering
from antecede.server.sessions import Sessions
from antecede.server.upkeep import LogView, Marks, Snapshot, Upkeep
from antecede.wire import AnyPart

# Limits the log messages that a server writes for operators. Clients, peers and unknown programs cannot cause more
# messages than the limit.
#
# Every kind of event has its own budget of lines, so that many lines about one kind do not hide another kind. A line
# above the budget is counted and not written. The next line about that kind of event, or a summary, contains the count.
# A long text in a line is cut, because other processes can send texts of any length.


class QuietLog:
    """A log for operators that limits the number of lines for each kind of event. It counts the lines that it leaves
    out."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.clock: Callable[[], float] = lambda: 0.0
        self._budgets: dict[str, Bucket] = {}
        self._left_out: dict[str, int] = {}
        self._report_at = 0.0

    def info(self, event: str, **fields: Any) -> None:
        """Log something that an operator may want to know, unless the budget for this kind of event is used up."""
        if self._allowed(event, fields):
            self._log.info(event, **fields)

    def warning(self, event: str, *, raised: BaseException | None = None, **fields: Any) -> None:
        """Log something that an operator should look at, unless the budget for this kind of event is used up.
        ``raised``: an exception to log with its traceback."""
        if self._allowed(event, fields):
            self._log.warning(event, raised=raised, **fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log an error that prevents the server from doing its work, unless the budget for this kind of event is used
        up."""
        if self._allowed(event, fields):
            self._log.error(event, **fields)

    def report(self, now: float) -> None:
        """Write how many lines were left out, at most once per ``log_report_seconds``. Call this method about once per
        second."""
        if self._left_out and now >= self._report_at:
            self._report_at = now + limits.log_report_seconds
            counts, self._left_out = self._left_out, {}
            fields: dict[str, Any] = {event.replace("-", "_"): count for event, count in counts.items()}
            self._log.warning("lines-left-out", **fields)

    def _allowed(self, event: str, fields: dict[str, Any]) -> bool:
        budget = self._budgets.get(event)
        if budget is None:
            budget = self._budgets[event] = Bucket(limits.log_lines_per_second)
        if not budget.holds(self.clock()):
            self._left_out[event] = self._left_out.get(event, 0) + 1
            return False
        budget.take(1)
        for key, value in fields.items():
            if isinstance(value, str) and len(value) > limits.log_text_chars_max:
                fields[key] = value[: limits.log_text_chars_max] + "…"
        if left_out := self._left_out.pop(event, 0):
            fields["left_out"] = left_out
        return True


class ServerCore:
    """A server during one *life*: from one start of the server to its end."""

    def __init__(
        self,
        machine: AgentServer,
        lives: Callable[[str], bool],
        wake: Callable[[], None],
        store: LogView,
        log: Log,
        random: Callable[[], float],
        first: bytes,
        *,
        epoch: str = "",
        token: str = "",
        authoriser: Authoriser | None = None,
        keyring: Keyring | None = None,
        audit: Audit | None = None,
        admission: Admission | None = None,
        now: float = 0.0,
        cuts: bool = False,
        covers: int = 0,
    ) -> None:
        """``first``: the first record of this run of the server. ``cuts``: whether this record reports that torn
        (incomplete) writes were removed from the log. ``token``: the token that all processes share if there is no
        access file. ``authoriser``: if None, only this token is checked. ``keyring``: the server's identity, if there
        is an access file. ``covers``: the number of records
        in the log after the newest snapshot."""
        self.machine = machine
        self.log = log = QuietLog(log)
        self.guard = guard = Guard(authoriser or Authoriser(token=token), keyring, audit, log)
        self.peering = Peering(machine, epoch, token, guard, log, random)
        self.sessions = Sessions(machine, guard.authoriser, log)
        self.marks = Marks(machine, store, self.peering.hold, log)
        self.send, self.fault = self.peering.send, self.peering.fault
        self.reply = self.sessions.reply
        self.driver = driver = Driver(machine, lives, self, wake, log, first, store.last, store.durable)
        self.changes = Reorganising(machine, driver, self.peering, self.sessions, lives, log)
        self.organised: Callable[[list[React]], None] = self.changes.organised
        self.operations = Operations(
            *(machine, store, driver, self.peering, self.sessions, guard, self.changes, epoch, lives),
            lambda: self.trouble,
        )
        self.entry = Entry(
            *(guard, self.peering, self.sessions, self.operations.request, log),
            admission or Admission(),
        )
        access = guard.authoriser.access
        if access is not None:
            self.entry.admission.limit_addresses(access.addresses)
        self.upkeep = Upkeep(machine, store, driver, self.marks, self.watch, log, covers)
        self._forgotten = 0
        self.adapter_trouble: Callable[[], str] = lambda: ""
        """A function that returns what the adapter cannot do, for example end a handler; empty if there is nothing."""
        self.failure = ""
        """The reason why the server must end (see ``fail``). The text is empty if there is no such reason."""
        if cuts:
            driver.when_durable(store.forget_cuts)
        log.clock = lambda: driver.now
        self.peering.attach(self.driver)
        self.sessions.attach(self.driver, now)
        self._report_own_key()

    # What the adapter calls.

    def received(self, receiver: Receiver, parts: list[AnyPart], now: float) -> bool:
        """Give parts that have arrived on a connection to the receiver of this connection. Return True if the caller
        must now let the driver process its inputs (``Driver.turn``). If this method raises a
        :class:`antecede.errors.WireError`, the caller must call :func:`antecede.server.connections.break_off`."""
        driver = self.driver
        driver.now = now
        if driver.awake:
            receiver.received(parts)
            return False
        # Inputs that come together are taken in one step.
        driver.awake = True
        try:
            receiver.received(parts)
        except BaseException:
            driver.ungather()
            raise
        return driver.gathered(now)

    def watch(self, now: float) -> None:
        """Do the periodic work. For example, send a ping on a connection on which nothing was sent for a while, close
        connections that are silent for too long, and forget temporary clients that are gone. Call this method about
        once per second."""
        self.driver.now = now
        self.log.report(now)
        self._report_expired()
        self.sessions.sweep(now)
        self.entry.watch(now)
        self.peering.watch(now)
        self.operations.backups.watch(now)
        self.changes.watch(now)
        self.review()

    def review(self) -> None:
        """End the connections of identities whose keys were revoked or have expired."""
        if self.guard.authoriser.access is not None:
            self.entry.review()
            self.peering.review()

    def reload(self, access: Access) -> None:
        """Use another access file from now on. Its permissions apply immediately, and sessions of revoked keys end."""
        before = self.guard.authoriser.access
        self.guard.authoriser.replace(access)
        self.entry.admission.limit_addresses(access.addresses)
        self.sessions.review()
        self.review()
        self.log.info("access-reloaded", digest=access.digest, before=None if before is None else before.digest)
        self.guard.note("reloaded", None, "", digest=access.digest)
        self._report_own_key()

    def keep_access(self, reason: str) -> None:
        """Continue with the previous content of the access file, because the new content cannot be used. Log the
        reason."""
        self.guard.authoriser.error = reason
        self.log.error("access-kept", reason=reason)
        self.guard.note("reload-failed", None, "", reason=reason)

    def _report_own_key(self) -> None:
        """Log an error if all keys of this server have expired. In this case, no other server will accept this
        server."""
        authoriser, name = self.guard.authoriser, self.machine.name
        own = authoriser.identity(SERVER, name)
        if own is not None and own.keys and all(authoriser.lapse(Who(SERVER, name, key.public)) for key in own.keys):
            self.log.error("key-expired", reason=f"the key of server {name} has expired: antecede credentials rotate")

    def _report_expired(self) -> None:
        """Log the mailboxes in which the most letters have expired since the last call, with one log entry per mailbox.
        Log the number of dead letters that were dropped since the last call, too."""
        expired = self.machine.engine.quotas.expired
        for address in sorted(expired, key=lambda one: -expired[one])[:_reported_max]:
            self.log.warning("letters-expired", mailbox=address, letters=expired[address], mailboxes=len(expired))
        expired.clear()
        forgotten = self.machine.engine.forgotten
        if forgotten > self._forgotten:
            self.log.warning(
                "dead-letters-dropped",
                letters=forgotten - self._forgotten,
                reason="more dead letters than a server keeps",
            )
            self._forgotten = forgotten

    @property
    def trouble(self) -> str:
        """The reason why no steps can be taken, or the problem with the disk. The text is empty if there is neither."""
        return self.failure or self.driver.trouble or self.marks.shortage or self.adapter_trouble()

    def stop(self, reason: str) -> None:
        """Accept no more publishes and no more connections. Work that is in progress continues."""
        self.operations.stopping = self.upkeep.stopping = True
        self.machine.overloaded = True
        self.entry.closed = reason

    def leave(self, reason: str) -> None:
        """Start no more reactions, close all connections, and open no new ones. The outcomes of reactions in progress
        are ignored, and these reactions run again after the next start."""
        self.driver.stopping = True
        self.entry.closed = reason
        self.sessions.end(reason)
        self.peering.stop(reason)

    def fail(self, reason: str) -> None:
        """Record the reason why the server must end: it cannot take steps, or cannot make records durable."""
        self.failure = reason
        self.upkeep.failed = True

    def appended(self, count: int, size: int, reason: str = "") -> None:
        """Report how many records of a turn (see ``Driver.turn``) were appended to the log. ``size``: the total size of
        the appended records in bytes. ``reason``: why the other records were not appended."""
        if count:
            self.upkeep.logged(count, size, self.driver.now)
        self.marks.unwatched_bytes += size
        self.driver.appended(count, reason)
        if self.marks.unwatched_bytes > limits.backlog_unwatched_bytes_max:
            self.check_marks()

    def deadline(self, now: float, clock_ms: int) -> float | None:
        """Return the earlier of two times: the time to call the driver (``Driver.alarm``), and the time to open a
        connection to a peer. Return None if neither is planned."""
        turn, dial = self.driver.deadline(now, clock_ms), self.peering.deadline()
        return turn if dial is None or (turn is not None and turn < dial) else dial

    # Called by the driver, besides the methods of others that ``__init__`` takes over.

    def deliver(self, due: React) -> None:
        """Hand letters to a client."""
        self.sessions.deliver(due)

    def check_marks(self) -> None:
        """Check the high-water marks now, not only at the next regular check."""
        self.marks.watch(self.upkeep.stopping)

    def hold(self, held: bool) -> None:
        """Stop reading from all connections if ``held`` is true. Read again if ``held`` is false. Exception: while too
        many letters wait (``marks.held``), nothing is read from peers."""
        self.entry.hold(held)
        self.peering.hold(held or self.marks.held)


_reported_max = 10


# The graceful stop of a server, in four parts.
#
# 1. Accept no more publishes and no more connections.
# 2. Wait until the work in progress has ended, but not longer than allowed.
# 3. Close all connections, and process the inputs that are left (the last steps of the driver).
# 4. Write a snapshot, so that the next start has nothing to replay.
#
# No guarantee depends on a graceful stop. If the stop interrupts some work, the result is the same as when the process
# is killed: the work is in the log, or it was not accepted.


class Shutdown:
    """One graceful stop. The code that runs the server calls the methods in the order in which they are written
    here."""

    def __init__(self, core: ServerCore, reason: str, until: float) -> None:
        """Accept no more publishes and no more connections. Work in progress may continue until the time ``until``."""
        self._core = core
        self._reason = reason
        self._until = until
        core.stop(reason)

    def waits(self, now: float) -> bool:
        """Return whether to wait for work in progress. During this wait, the driver continues to take steps."""
        core = self._core
        return core.driver.busy and now < self._until and not core.failure

    def leave(self) -> None:
        """Close all connections. Ignore the results of reactions that are still in progress: these reactions run again
        after the next start."""
        self._core.leave(self._reason)

    @property
    def steps_left(self) -> bool:
        """True if the driver must take another step before the snapshot, because some inputs are not processed yet."""
        driver = self._core.driver
        return bool(driver.inputs) and driver.can_step and not self._core.failure

    def snapshot(self) -> Snapshot | None:
        """Return a snapshot of the state after the last step. Return None if the server has failed, or if the log does
        not contain all steps because the disk is full."""
        core = self._core
        return None if core.driver.behind or core.failure else core.upkeep.final()
