"""Snapshots of a simulated server: those that it writes itself, and those that another process builds from the log."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from antecede.errors import DiskFullError, StoreError, StoreFailedError
from antecede.server.building import Task, build
from antecede.server.upkeep import Snapshot
from antecede.store import read_state, write_draft

if TYPE_CHECKING:
    from antecede.simulator.servers.server import SimulatedServer


def take_snapshot(server: "SimulatedServer", due: Snapshot | Task) -> None:
    """Take a snapshot after a short time. ``due``: a snapshot that the server writes itself, or a task for another
    process, which builds the snapshot from the log."""
    random = server.world.random.random
    if isinstance(due, Task):
        server.oversight.expect(due)
        server.later(random() * 0.05, _build, server, due)
    else:
        server.later(random() * 0.01, keep, server, due.upto, lambda: server.store.snapshot(due.data, due.upto))


def _build(server: "SimulatedServer", task: Task) -> None:
    """Do the work of the process that builds a snapshot from the log on the disk, while the server continues. This
    process may be slow. It may be killed after it has written its file. The server may crash before the file gets its
    final name."""
    server.store.wait(task.upto)
    incarnation, before, records = read_state(_directory, task.upto, server.disk)
    again = server.machine_class(server.name, server.plan, incarnation)
    data = build(again, before, (record for _, record in records), "", task)
    server.oversight.built(task, data)
    draft = write_draft(_directory, task.upto, data, "1", server.disk)
    random = server.world.random.random
    server.later(random() * 0.05, keep, server, task.upto, lambda: server.store.adopt_snapshot(draft, task.upto))


def keep(server: "SimulatedServer", upto: int, write: Callable[[], None]) -> None:
    """Write a snapshot, copy the records before it to ``server.archived``, and release the old segments of the log. If
    the snapshot cannot be written, report this to the server; its regular work tries again later."""
    upkeep = server.core.upkeep
    try:
        if server.world.snapshot_fails():
            raise DiskFullError("the simulated disk has no room for a snapshot")
        write()
    except StoreFailedError:
        raise
    except StoreError as error:
        # Nothing is lost: the log has everything that the snapshot would have.
        upkeep.not_kept(str(error), server.world.now)
        return
    server.archived += [record for _, record in server.stored(len(server.archived), upto)]
    server.store.release(upto)
    upkeep.kept()


_directory = "data"
