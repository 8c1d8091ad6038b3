"""Hard links that keep the files of a server unchanged for a backup, while the server continues to write.

A backup contains the state of the server at one moment, the *cut*. If the server deletes or replaces a file after the
cut, the old file stays readable under its link. The newest file of the log grows, but the part of this file that was
durable at the cut does not change. The links are in a folder inside the data directory. This folder is removed at the
end of the backup, or at the next start.
"""

import os
import shutil
from contextlib import suppress

from antecede.errors import StoreError
from antecede.recording.segments import FOLDER, TOPOLOGY, pieces_in
from antecede.store import Store
from antecede.store.directory import IDENTITY, named, numbered, segment_name, snapshot_name

LINKS = "frozen"
"""The folder in the data directory that contains the hard links."""
_tries = 5


class FrozenFiles:
    """The files of a server as they were at one moment; see :class:`antecede.server.operations.backups.Frozen`."""

    def __init__(self, directory: str, store: Store) -> None:
        """Create links to the files in ``directory``. Call this in the thread of the server's event loop, so that the
        server does not begin a snapshot meanwhile."""
        self._folder = f"{directory}/{LINKS}"
        self.position = store.durable
        self.files: dict[str, int] = {}
        for left in reversed(range(_tries)):
            try:
                self._link(directory)
                return
            except FileNotFoundError as error:
                # Another thread has just deleted a file that is not needed any more.
                if not left:
                    self.end()
                    raise StoreError(f"{error.filename}: {error.strerror}") from None
            except OSError as error:
                self.end()
                raise StoreError(f"{error.filename}: a backup needs hard links: {error.strerror}") from None

    def _link(self, directory: str) -> None:
        remove_links(directory)
        os.makedirs(f"{self._folder}/{FOLDER}", mode=0o700)
        names = os.listdir(directory)
        snapshots = [upto for upto in numbered(names, "snapshot") if upto <= self.position]
        wanted = [IDENTITY, *map(snapshot_name, snapshots[-1:]), *map(segment_name, numbered(names, "segment"))]
        pieces = pieces_in(directory)
        wanted += [f"{FOLDER}/{os.path.basename(piece.path)}" for piece in pieces]
        if os.path.exists(f"{directory}/{FOLDER}/{TOPOLOGY}"):
            wanted.append(f"{FOLDER}/{TOPOLOGY}")
        self.files = {}
        for name in wanted:
            os.link(f"{directory}/{name}", f"{self._folder}/{name}")
            self.files[name] = os.stat(f"{self._folder}/{name}").st_size

    def read(self, name: str, offset: int, count: int) -> bytes:
        path = f"{self._folder}/{name}"
        with named(path), open(path, "rb") as file:
            return os.pread(file.fileno(), count, offset)

    def end(self) -> None:
        with suppress(OSError):
            shutil.rmtree(self._folder)


def remove_links(directory: str) -> None:
    """Remove the hard links that an earlier backup left in the data directory."""
    if os.path.isdir(f"{directory}/{LINKS}"):
        shutil.rmtree(f"{directory}/{LINKS}")
