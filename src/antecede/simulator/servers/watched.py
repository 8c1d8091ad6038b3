"""Classes and functions with which a world observes a simulated server: its warnings, its log, and its deliveries."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from antecede import limits, wire
from antecede.channel.letters import unshared
from antecede.channel.packets import unshared_packet
from antecede.engine import Engine, React
from antecede.engine.host import Host, Outcome
from antecede.errors import AgentError
from antecede.server.core import ServerCore

if TYPE_CHECKING:
    from antecede.simulator.servers.server import SimulatedServer


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


def unreadable(part: wire.Part, version: int) -> bool:
    """Return whether an end of a connection with this wire version cannot read a part. This is the case if the part has
    a train (several letters encoded together) in a newer form."""
    if version >= wire.LISTS:
        return False
    if isinstance(part, wire.Deliver):
        return unshared(part.train) != part.train
    return isinstance(part, wire.PeerFrames) and any(unshared_packet(body) != body for body in part.bodies)


def over_quota(engine: Engine, clock_ms: int) -> str:
    """Return an error if a mailbox is above its quota (for letters, bytes or waiting time), or if the server has not
    recorded when the letters began to wait. Return an empty text if there is no error."""
    quotas, mailboxes = engine.quotas, engine.mailboxes
    held, since = engine.following.held, engine.following.since
    over = [one.agent for one in quotas.look(mailboxes, lambda agent: False, clock_ms, 0)]
    for agent, letters in held.items():
        if 0 < quotas.of(agent).letters < len(letters) + len(mailboxes.get(agent, ())):
            over.append(agent)
    over += quotas.unseen_held(held, since)
    places = over or list(quotas.crowded) or quotas.unseen(mailboxes, clock_ms + 1_000)
    return f"the mailbox of {places[0]} is above its quota, but nothing expired" if places else ""


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
