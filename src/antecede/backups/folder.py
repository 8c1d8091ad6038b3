"""The folder of a backup, and its manifest.

::

    BACKUP/backup.json             the manifest: what the cut is, and every file with its length and SHA-256
    BACKUP/topology.toml           the topology of the system
    BACKUP/s1/identity.backup      the identity of s1's data directory; no server starts on a folder of this form
    BACKUP/s1/snapshot-….state     its newest snapshot at the cut
    BACKUP/s1/segment-….log …      its log, up to the cut
    BACKUP/s1/trace/…              the converted part of its trace, if it records

A backup is made under the name ``BACKUP.partial``. The manifest is written as its last file. When everything in it is
durable, it is renamed to its final name. So an interrupted backup never looks complete. While it is made, the folder is
locked and has a marker: only a folder with the marker is cleared, and only if no other command holds the lock. The
marker is the last file that is removed.
"""

import fcntl
import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec

from antecede import limits
from antecede.errors import StoreError, UsageError
from antecede.store.directory import make_parents, named
from antecede.store.files import Files

MANIFEST = "backup.json"
TOPOLOGY = "topology.toml"
IDENTITY = "identity.backup"
PARTIAL = ".partial"
MARKER = ".unfinished"
"""A file in a folder that ``backup`` or ``restore`` is making."""
FORMAT = 1


class SavedFile(msgspec.Struct, frozen=True):
    """One file of a server in a backup."""

    name: str
    bytes: int
    sha256: str


class SavedServer(msgspec.Struct, frozen=True):
    """One server in a backup."""

    incarnation: str
    position: int
    """The number of the last record that is part of the backup."""
    files: list[SavedFile]

    @property
    def bytes(self) -> int:
        """The length of all its files."""
        return sum(file.bytes for file in self.files)


class Manifest(msgspec.Struct, frozen=True):
    """The content of a backup."""

    format: int
    version: str
    """The version of Antecede that made it."""
    made: str
    """The time of the cut, in UTC."""
    epoch: str
    servers: dict[str, SavedServer]
    topology: SavedFile
    checksum: str = ""
    """SHA-256 of the manifest with an empty checksum."""

    def sealed(self) -> "Manifest":
        """Return the manifest with its checksum."""
        plain = msgspec.structs.replace(self, checksum="")
        digest = hashlib.sha256(msgspec.json.encode(plain)).hexdigest()
        return msgspec.structs.replace(self, checksum=digest)


class Backup(msgspec.Struct, frozen=True):
    """A complete backup."""

    path: str
    manifest: Manifest

    def folder(self, server: str) -> str:
        """Return the folder of a server."""
        return os.path.join(self.path, server)

    def topology_text(self) -> str:
        """Return the text of the system's topology file."""
        path = os.path.join(self.path, TOPOLOGY)
        with named(path):
            return Path(path).read_text(encoding="utf-8")


def is_backup(path: str) -> bool:
    """Return whether this is the folder of a backup, complete or not."""
    return os.path.isfile(os.path.join(path, MANIFEST)) or (os.path.isdir(path) and path.rstrip("/").endswith(PARTIAL))


def open_backup(path: str) -> Backup:
    """Read the manifest of a backup; raise StoreError if it is not a complete one."""
    file = os.path.join(path, MANIFEST)
    try:
        data = Path(file).read_bytes()
    except FileNotFoundError:
        if not os.path.isdir(path):
            raise StoreError(f"{path}: no such folder: expected one that antecede backup made") from None
        reason = "an interrupted backup" if path.rstrip("/").endswith(PARTIAL) else "not a backup"
        raise StoreError(f"{path}: {reason}: it has no {MANIFEST}") from None
    except OSError as error:
        raise StoreError(f"{file}: {error.strerror}") from None
    if len(data) > limits.frame_bytes_max:
        raise StoreError(f"{file}: {len(data)} bytes are too many for the manifest of a backup")
    try:
        form = msgspec.json.decode(data, type=_Form).format
        if form != FORMAT:
            raise StoreError(f"{file}: a backup of format {form}; this version reads format {FORMAT}")
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError(f"{file}: not the manifest of a backup: {error}") from None
    if manifest.sealed().checksum != manifest.checksum:
        raise StoreError(f"{file}: the manifest does not match its checksum")
    names = [name for saved in manifest.servers.values() for name in (file.name for file in saved.files)]
    if any(name.startswith("/") or ".." in Path(name).parts for name in (*manifest.servers, *names)):
        raise StoreError(f"{file}: the manifest names a file outside of the backup")
    return Backup(path, manifest)


class _Form(msgspec.Struct):
    format: int


class NewFolder:
    """A folder that is being made, under a temporary name; used with ``with``. Unless ``finish`` is called, nothing is
    left of it."""

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/")
        self.partial = self.path + PARTIAL
        self._kept = False
        self._lock = -1

    def __enter__(self) -> Self:
        with named(self.partial):
            make_parents(self.partial)
            made = not os.path.isdir(self.partial)
            with suppress(FileExistsError):
                os.mkdir(self.partial, 0o700)
            self._lock = self._locked()
            try:
                self._clear()
                write_new(os.path.join(self.partial, MARKER), b"antecede backup or restore is making this folder\n")
            except BaseException:
                if made:
                    shutil.rmtree(self.partial, ignore_errors=True)
                os.close(self._lock)
                raise
        return self

    def _locked(self) -> int:
        """Lock the folder, so that no other command makes it at the same time. A kill releases the lock."""
        lock = os.open(self.partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Otherwise another command has finished it, or removed it, since it was opened.
            if os.path.samestat(os.fstat(lock), os.stat(self.partial)):
                return lock
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
        raise UsageError(f"{self.path}: another command is making this folder")

    def _clear(self) -> None:
        """Remove the files that an interrupted attempt has left. Raise UsageError if the folder has other content."""
        found = os.listdir(self.partial)
        if found and MARKER not in found:
            raise UsageError(f"{self.partial}: exists, but not from an interrupted backup or restore: move it away")
        self._empty()

    def _empty(self) -> None:
        """Remove everything in the folder, the marker last: after a kill in between, the next attempt continues."""
        for name in sorted(os.listdir(self.partial), key=lambda one: one == MARKER):
            path = os.path.join(self.partial, name)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)

    def __exit__(self, *_: object) -> None:
        if not self._kept:
            with suppress(OSError):
                self._empty()
                os.rmdir(self.partial)
        os.close(self._lock)

    def finish(self) -> None:
        """Make all names in the folder durable, then give it its name; an empty folder of that name is replaced."""
        self.sync()
        with named(self.path):
            if os.path.isdir(self.path):
                os.rmdir(self.path)
            os.rename(self.partial, self.path)
            self._kept = True
            os.unlink(os.path.join(self.path, MARKER))
            for folder in (self.path, os.path.dirname(os.path.abspath(self.path))):
                Files().sync_directory(folder)

    def sync(self) -> None:
        """Make all names in the folder durable. The contents of the files must already be durable."""
        with named(self.partial):
            for folder, _, _ in os.walk(self.partial):
                Files().sync_directory(folder)


class NewBackup(NewFolder):
    """A backup that is being made; ``complete`` finishes it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        if os.path.lexists(self.path):
            raise UsageError(f"{path}: exists already: expected the name of a new folder")

    def folder(self, server: str) -> str:
        """Make the folder of a server."""
        path = os.path.join(self.partial, server)
        with named(path):
            os.makedirs(path, mode=0o700)
        return path

    def complete(self, manifest: Manifest, topology: str) -> Backup:
        """Write topology and manifest, and give the backup its name."""
        text = topology.encode()
        saved = SavedFile(TOPOLOGY, len(text), hashlib.sha256(text).hexdigest())
        manifest = msgspec.structs.replace(manifest, topology=saved).sealed()
        with named(self.partial):
            write_new(os.path.join(self.partial, TOPOLOGY), text)
            self.sync()
            write_new(os.path.join(self.partial, MANIFEST), msgspec.json.format(msgspec.json.encode(manifest)))
        self.finish()
        return Backup(self.path, manifest)


def digest_of(path: str) -> SavedFile:
    """Return the length and the checksum of a file, with the last part of its path as its name."""
    sha, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            sha.update(piece)
            size += len(piece)
    return SavedFile(os.path.basename(path), size, sha.hexdigest())


def write_new(path: str, data: bytes) -> None:
    """Write a new file that only its owner may read, and make it durable."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
