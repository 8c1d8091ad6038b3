"""A whole server without sockets, disk and clock: its driver, and the classes for peers, clients and operators.

The adapters (:mod:`antecede.live` with asyncio, :mod:`antecede.simulator.servers` in virtual time) create one
:class:`ServerCore` for each start of a server. They give it the parts (messages of the wire protocol) that arrive on
connections. They also call its driver, which processes the inputs in steps (:mod:`antecede.server.driver`).
"""

from collections.abc import Callable

from antecede import limits
from antecede.access import Access, Authoriser, Who
from antecede.access.audit import Audit
from antecede.access.model import SERVER
from antecede.access.proof import Keyring
from antecede.engine import React
from antecede.server import AgentServer
from antecede.server.admission import Admission, Guard
from antecede.server.change.reorganising import Reorganising
from antecede.server.connections import Receiver
from antecede.server.driver import Driver
from antecede.server.driver.marks import LogView, Marks
from antecede.server.entry import Entry
from antecede.server.inputs import Log
from antecede.server.operations import Operations
from antecede.server.peering import Peering
from antecede.server.quiet_log import QuietLog
from antecede.server.sessions import Sessions
from antecede.server.upkeep import Upkeep
from antecede.wire import AnyPart


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
