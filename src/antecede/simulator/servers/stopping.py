"""The graceful stop of a simulated server. The server starts again afterwards. It may crash at any step of the stop."""

from antecede.server.shutdown import Shutdown
from antecede.simulator.servers.server import SimulatedServer
from antecede.simulator.servers.snapshots import keep

_drain_seconds = 0.2
"""The longest time for which a stopping server waits for work in progress. This time is so short that some servers stop
before all their work has ended."""
_look_seconds = 0.01


def stop(server: SimulatedServer) -> None:
    """Begin the graceful stop of a server, if it runs. The world starts the server again later."""
    if server.listens:
        shutdown = Shutdown(server.core, "the server stops", server.world.now + _drain_seconds)
        server.later(0.0, _wait, server, shutdown)


def _wait(server: SimulatedServer, shutdown: Shutdown) -> None:
    if shutdown.waits(server.world.now):
        server.later(_look_seconds, _wait, server, shutdown)
        return
    shutdown.leave()
    while shutdown.steps_left:
        server.tick()
    snapshot = shutdown.snapshot()
    if snapshot is not None:
        keep(server, snapshot.upto, lambda: server.store.snapshot(snapshot.data, snapshot.upto))
    server.stopped()
