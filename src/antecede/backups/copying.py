"""Copy the files of one server into a backup, page by page. The caller reads the pages from a running server or from a
data directory.

The log is copied only up to the cut, that is, up to the last record that belongs to the backup. The log consists of
files (*segments*). A segment contains *groups*, and each group contains the records of one write. While the bytes of a
segment arrive, the checksums of its groups are checked. The copy ends after the group that contains the last record of
the cut.
"""

import os
from collections.abc import Iterator

import msgspec

from antecede.backups.folder import IDENTITY, SavedFile, SavedServer, digest_of
from antecede.errors import StoreError
from antecede.store.directory import HEADER_BYTES, decode_identity, named, numbered, segment_name
from antecede.store.directory import IDENTITY as OWN_IDENTITY
from antecede.store.files import Files
from antecede.store.recovery import read_group


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
        others = [name for name in files if name not in segments and name != OWN_IDENTITY]
        for name in (OWN_IDENTITY, *others, *segments):
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
        kept = IDENTITY if name == OWN_IDENTITY else name
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
        if name == OWN_IDENTITY:
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
