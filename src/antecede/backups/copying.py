"""Copy the files of one server into a backup, page by page. The caller reads the pages from a running server or from a
data directory.

The log is copied only up to the cut, that is, up to the last record that belongs to the backup. The log consists of
files (*segments*). A segment contains *groups*, and each group contains the records of one write. While the bytes of a
segment arrive, the checksums of its groups are checked. The copy ends after the group that contains the last record of
the cut.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec

from antecede import limits
from antecede.backups.folder import SAVED_IDENTITY, SavedFile, SavedServer, digest_of
from antecede.errors import StoreError, StoreLockedError
from antecede.recording.segments import BEGUN, FOLDER, pieces_in
from antecede.store import Store
from antecede.store.directory import (
    HEADER_BYTES,
    IDENTITY,
    decode_identity,
    lock_directory,
    named,
    numbered,
    read_identity,
    segment_name,
    snapshot_name,
)
from antecede.store.files import Files
from antecede.store.recovery import Judged, judge, read_group


class Cut(msgspec.Struct, frozen=True):
    """One server's part of a backup: the number of the last record that belongs to the backup (``position``), and the
    names and lengths of the files to copy. A running server sends a ``Cut`` when a backup is made."""

    server: str
    incarnation: str
    position: int
    files: dict[str, int]


class ServerCopy:
    """Copies the files of one server into a backup. For each *page* (a piece of a file), ``pages`` yields the name of
    the file and the offset of the page. The caller reads the page and passes its bytes to ``take``, which stores
    them."""

    def __init__(self, folder: str, cut: Cut) -> None:
        self._folder = folder
        self._cut = cut
        self._files = Files()
        self._saved: list[SavedFile] = []
        self._file = -1
        self._size = 0
        self._seal = 0
        self._walked = 0
        self._reached = False
        self.bytes = 0
        """The number of bytes that were copied so far."""

    @property
    def total(self) -> int:
        """The sum of the lengths of all files, in bytes. At most this number of bytes is copied."""
        return sum(self._cut.files.values())

    def pages(self) -> Iterator[tuple[str, int]]:
        """Yield one pair for each page (a piece of a file): the name of the file, and the offset of the page. The
        caller must read the page and pass its bytes to ``take`` before it asks for the next page."""
        files = self._cut.files
        segments = [segment_name(number) for number in numbered(list(files), "segment")]
        others = [name for name in files if name not in segments and name != IDENTITY]
        for name in (IDENTITY, *others, *segments):
            if name in segments and self._reached:
                continue
            if name not in files:
                raise StoreError(f"server {self._cut.server}: the file {name} is missing in the cut")
            yield from self._pages_of(name, files[name], name in segments)
        if not self._reached:
            raise StoreError(
                f"server {self._cut.server}: the log ends before record {self._cut.position}, the last one of the cut"
            )

    def take(self, data: bytes) -> None:
        """Store these bytes. The caller has read them from the file and the offset that ``pages`` yielded last."""
        with named(self._folder):
            self._files.write(self._file, [data], self._size)
        self._size += len(data)
        self.bytes += len(data)

    def result(self) -> SavedServer:
        """Return the description of the complete copy, for the manifest of the backup."""
        return SavedServer(self._cut.incarnation, self._cut.position, self._saved)

    def _pages_of(self, name: str, size: int, is_segment: bool) -> Iterator[tuple[str, int]]:
        kept = SAVED_IDENTITY if name == IDENTITY else name
        path = os.path.join(self._folder, kept)
        with named(path):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            self._file = self._files.create(path)
        self._size = self._walked = 0
        try:
            while self._size < size and not (is_segment and self._reached):
                before = self._size
                yield name, before
                if self._size == before:
                    raise StoreError(f"server {self._cut.server}: {name} ends after {before} of {size} bytes")
                if is_segment:
                    self._walk()
            with named(path):
                self._files.fsync(self._file)
        finally:
            self._files.close(self._file)
        with named(path):
            self._saved.append(msgspec.structs.replace(digest_of(path), name=kept))
        if name == IDENTITY:
            with open(path, "rb") as file:
                self._seal = decode_identity(file.read(), path).seal

    def _walk(self) -> None:
        """Read the groups of records that are already complete in the copy of the current segment. If a group contains
        the last record of the cut, truncate the copy after this group."""
        while True:
            found = read_group(self._files, self._file, self._walked, self._seal)
            if isinstance(found, str):
                return
            self._walked += HEADER_BYTES + found[0].bytes
            if found[0].last >= self._cut.position:
                self._reached = True
                self._files.truncate(self._file, self._walked)
                return


# Copy the data directory of a stopped server into a backup.
#
# The caller first locks the data directories of all servers. Then no directory changes, and all copies together
# contain the state of one moment.


def judged_in(directory: str) -> Judged:
    """Check a data directory, and return the result. The directory is not changed."""
    files = Files()
    identity = read_identity(files, directory)
    assert identity is not None, "a data directory has an identity"
    return judge(files, directory, identity)


@contextmanager
def locked(directory: str) -> Iterator[None]:
    """Lock the data directory of a stopped server during a ``with`` block."""
    files = Files()
    if not os.path.isfile(os.path.join(directory, IDENTITY)):
        raise StoreError(f"{directory}: not a data directory: it has no identity")
    with named(directory):
        try:
            lock = lock_directory(files, directory)
        except StoreLockedError as error:
            raise StoreLockedError(
                f"{error}: stop that process, or back up the running system without --data"
            ) from None
    try:
        yield
    finally:
        files.close(lock)


def copied(directory: str, server: str, folder: str, report_progress: Callable[[int, int], None]) -> SavedServer:
    """Copy the data directory of one server into a folder of a backup. Return the description of the copy.
    ``report_progress``: called with two numbers. The first is the number of bytes that are copied so far. The second
    is an upper limit for the number of all bytes that will be copied."""
    with named(directory):
        judged = judged_in(directory)
        found = judged.recovered
        wanted = [IDENTITY, *([] if found.snapshot is None else [snapshot_name(found.snapshot.upto)])]
        wanted += [segment_name(number) for number in judged.segments if number <= judged.tail.segment]
        wanted += [f"{FOLDER}/{os.path.basename(piece.path)}" for piece in pieces_in(directory)]
        if os.path.exists(f"{directory}/{FOLDER}/{BEGUN}"):
            wanted.append(f"{FOLDER}/{BEGUN}")
        sizes = {name: os.stat(f"{directory}/{name}").st_size for name in wanted}
    copy = ServerCopy(folder, Cut(server, f"{found.incarnation:016x}", found.last, sizes))
    for name, offset in copy.pages():
        with named(directory), open(f"{directory}/{name}", "rb") as file:
            copy.take(os.pread(file.fileno(), limits.backup_page_bytes, offset))
        report_progress(copy.bytes, copy.total)
    return copy.result()


# Hard links that keep the files of a server unchanged for a backup, while the server continues to write.
#
# A backup contains the state of the server at one moment, the *cut*. If the server deletes or replaces a file after
# the cut, the old file stays readable under its link. The newest file of the log grows, but the part of this file
# that was durable at the cut does not change. The links are in a folder inside the data directory. This folder is
# removed at the end of the backup, or at the next start.


LINKS = "frozen"
"""The folder in the data directory that contains the hard links."""
_tries = 5


class FrozenFiles:
    """The files of a server as they were at one moment; see :class:`antecede.server.operations.Frozen`."""

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
        if os.path.exists(f"{directory}/{FOLDER}/{BEGUN}"):
            wanted.append(f"{FOLDER}/{BEGUN}")
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
