"""A whole server without its sockets, its disk and its clock: driver, peers, clients and operators, wired together.

The adapters (:mod:`antecede.live` with asyncio, :mod:`antecede.simulator.servers` in virtual time) create one of
these per life of a server, hand it what connections bring, and take its turns; see :mod:`antecede.server.driver`.
"""

from collections.abc import Callable
from typing import Protocol

from antecede.engine import React
from antecede.server import AgentServer
from antecede.server.admission import Admission
from antecede.server.connections import Receiver
from antecede.server.driver import Driver
from antecede.server.entry import Entry, Operate, keep_alive
from antecede.server.marks import LogState, Marks
from antecede.server.peering import Peering
from antecede.server.sessions import Sessions
from antecede.server.words import Log
from antecede.wire import AnyPart


class LogView(LogState, Protocol):
    """The state of the log."""

    @property
    def last(self) -> int: ...

    @property
    def durable(self) -> int: ...


class ServerCore:
    """One life of a server."""

    def __init__(
        self,
        machine: AgentServer,
        lives: Callable[[str], bool],
        wake: Callable[[], None],
        store: LogView,
        log: Log,
        random: Callable[[], float],
        *,
        epoch: str = "",
        token: str = "",
        operate: Operate | None = None,
        admission: Admission | None = None,
        now: float = 0.0,
    ) -> None:
        self.machine = machine
        self.peering = Peering(machine, epoch, token, log, random)
        self.sessions = Sessions(machine, log)
        self.entry = Entry(token, self.peering, self.sessions, operate or _no_operator, log, admission or Admission())
        self.marks = Marks(machine, store, self.peering.hold, log)
        self.send = self.peering.send
        self.reply = self.sessions.reply
        self.driver = Driver(machine, lives, self, wake, log, store.last, store.durable)
        self.peering.attach(self.driver)
        self.sessions.attach(self.driver, now)

    # What the adapter calls.

    def received(self, receiver: Receiver, parts: list[AnyPart], now: float) -> bool:
        """Take what a connection brings. Return True if a turn should be taken at once. A
        :class:`antecede.errors.WireError` must close the connection."""
        driver = self.driver
        driver.now = now
        if driver.awake:
            receiver.received(parts)
            return False
        # Inputs that come together wait for each other.
        driver.awake = True
        try:
            receiver.received(parts)
        except BaseException:
            driver.ungather()
            raise
        return driver.gathered(now)

    def watch(self, now: float) -> None:
        """Do the periodic work, about once per second: send a ping if nothing was sent for a while, close connections
        that are silent for too long, forget temporary clients that are gone."""
        self.driver.now = now
        self.sessions.sweep(now)
        self.entry.watch(now)
        for peer in self.peering.peers.values():
            if peer.ours_to_dial and peer.connection is not None:
                keep_alive(peer.connection, now)

    def deadline(self, now: float, clock_ms: int) -> float | None:
        """The time of the next work: a turn, or a peer to be dialed."""
        turn, dial = self.driver.deadline(now, clock_ms), self.peering.deadline()
        return turn if dial is None or (turn is not None and turn < dial) else dial

    # Called by the driver, besides ``send`` and ``reply``.

    def deliver(self, due: React) -> None:
        """Hand letters to a client."""
        self.sessions.deliver(due)

    def fault(self, domain: str, peer: str, reason: str) -> None:
        """Report that a peer did something wrong."""
        self.peering.fault(domain, peer, reason)

    def hold(self, held: bool) -> None:
        """Stop reading from all connections, or continue."""
        self.entry.hold(held)
        self.peering.hold(held or self.marks.held)


def _no_operator(command: str, arguments: list[str]) -> tuple[bool, bytes]:
    return False, b'"this server takes no commands"'
