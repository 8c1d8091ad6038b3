"""The copy of a simulated server's disk for a backup."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antecede.simulator.servers.server import SimulatedServer


class Copied:
    """A copy of the files on a simulated disk, made for a backup. It contains the files as they were when it was
    made. This class implements :class:`antecede.server.operations.backups.Frozen`."""

    def __init__(self, position: int, contents: dict[str, bytes], archived: list[bytes], incarnation: int) -> None:
        self.position, self.contents, self.archived, self.incarnation = position, contents, archived, incarnation
        self.files = {path: len(data) for path, data in contents.items()}

    def read(self, name: str, offset: int, count: int) -> bytes:
        return self.contents[name][offset : offset + count]

    def end(self) -> None:
        """Do nothing: there is nothing to remove."""


def copy_of(server: "SimulatedServer") -> Copied:
    """Copy the disk of a server as it is now. The server keeps the copy in ``copied``."""
    incarnation = server.machine.incarnation
    server.copied = Copied(server.store.durable, server.disk.contents(), list(server.archived), incarnation)
    return server.copied
