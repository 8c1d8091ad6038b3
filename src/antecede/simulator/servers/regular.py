"""The regular work of a simulated world: the work that servers and clients do every few seconds.

Only regular work closes silent connections, forgets temporary clients that are gone, lets letters above a quota expire,
and tries a failed snapshot again. In a calm world (when all faults are over), regular work stops when none of these
tasks is left. If regular work continued, the world would never become idle.
"""

from typing import TYPE_CHECKING

from antecede.simulator.servers.network import End
from antecede.simulator.servers.server import SimulatedServer, over_quota
from antecede.wire import is_temporary

if TYPE_CHECKING:
    from antecede.simulator.servers.world import ServerWorld

LOOK_SECONDS = 4.0
"""The number of seconds between two rounds of regular work in a calm world. This interval is shorter than the interval
of heartbeats."""
_rounds_max = 200
"""The largest number of rounds of regular work in a calm world. If regular work still has a task after these rounds,
the world reports an error. The task that needs the most rounds is to forget a temporary client."""


def unsettled_work(server: SimulatedServer) -> str:
    """Return a text about a task of this server that only regular work can do. Return an empty text if there is no such
    task."""
    if server.core.upkeep.failures:
        return "a failed snapshot was not tried again"
    machine, sessions = server.machine, server.core.sessions
    temporary = [f"{client}@{server.name}" for client in machine.clients if is_temporary(client)]
    for address in (*temporary, *filter(is_temporary, machine.engine.mailboxes)):
        if sessions.is_away(address):
            return f"temporary client {address} is gone, but was not forgotten"
    return over_quota(machine.engine, machine.clock.at(server.world.now, server.clock_ms))


class RegularWork:
    """The scheduler of the regular work in one world."""

    def __init__(self, world: "ServerWorld") -> None:
        self._world = world
        self.mute: list[End] = []
        """The mute connections: everything that is sent on them is lost."""
        self._planned = False

    def look_at(self, name: str) -> None:
        """Let one server do its regular work."""
        server = self._world.servers[name]
        server.guard(server.life, server.look)

    def look(self) -> None:
        """Let all servers and clients do their regular work."""
        for name in self._world.servers:
            self.look_at(name)
        for client in self._world.clients.values():
            if not client.over:
                client.watch()

    def go_on(self) -> None:
        """Schedule a round of regular work if there is a task that only regular work can do."""
        if not self._planned and self._unsettled():
            self._plan(0)

    def _unsettled(self) -> str:
        self.mute = [end for end in self.mute if end.lingers]
        if self.mute:
            return f"a connection to {self.mute[0].remote} is silent, but was not closed"
        for server in self._world.servers.values():
            if server.up and (work := unsettled_work(server)):
                return f"{server.name}: {work}"
        return ""

    def _plan(self, rounds: int) -> None:
        self._planned = True
        if not rounds:
            self._world.attended = self._world.now
        self._world.later(LOOK_SECONDS, self._round, rounds)

    def _round(self, rounds: int) -> None:
        self._planned = False
        unsettled = self._unsettled()
        if unsettled and rounds >= _rounds_max:
            self._world.report_error("regular work", unsettled)
            for end in self.mute:
                end.disconnect()
        elif unsettled:
            self.look()
            self._plan(rounds + 1)
