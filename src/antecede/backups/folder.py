"""The folder of a backup, and its manifest.

::

    BACKUP/backup.json             the manifest: a description of the cut, and the length and SHA-256 of every file
    BACKUP/topology.toml           the topology of the system
    BACKUP/s1/identity.backup      the identity of s1's data directory, renamed so that no server starts here
    BACKUP/s1/snapshot-….state     the newest snapshot of s1 at the cut
    BACKUP/s1/segment-….log …      the log of s1, up to the cut
    BACKUP/s1/trace/…              the part of s1's trace that is already in Parquet files, if s1 records a trace

While a backup is made, its folder has the name ``BACKUP.partial``. The manifest is the last file that is written. When
all files in the folder are durable, the folder is renamed to its final name. So an interrupted backup never looks
complete.

While ``backup`` or ``restore`` makes a folder, the folder is locked and contains a marker file. If the command is
interrupted, the next command for the same folder first removes all files in the folder. It does this only if the folder
contains the marker and no other command holds the lock. It removes the marker after all other files.
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
SAVED_TOPOLOGY = "topology.toml"
SAVED_IDENTITY = "identity.backup"
PARTIAL = ".partial"
MARKER = ".unfinished"
"""The name of the marker file: a folder contains it while ``backup`` or ``restore`` makes the folder."""
FORMAT = 1


class SavedFile(msgspec.Struct, frozen=True):
    """The name, the length and the checksum of one file in a backup."""

    name: str
    bytes: int
    sha256: str


class SavedServer(msgspec.Struct, frozen=True):
    """The manifest's description of one server in a backup."""

    incarnation: str
    position: int
    """The number of the last record that is part of the backup."""
    files: list[SavedFile]

    @property
    def bytes(self) -> int:
        """The sum of the lengths of the server's files, in bytes."""
        return sum(file.bytes for file in self.files)


class Manifest(msgspec.Struct, frozen=True):
    """The content of the file ``backup.json``, which describes a backup."""

    format: int
    version: str
    """The version of Antecede that made the backup."""
    made: str
    """The time at which the files of all servers had been copied, in UTC. The state in the backup is older than this
    time."""
    epoch: str
    servers: dict[str, SavedServer]
    topology: SavedFile
    checksum: str = ""
    """The SHA-256 of the manifest. It is computed while this field is empty."""

    def sealed(self) -> "Manifest":
        """Return a copy of the manifest in which the field ``checksum`` is filled in."""
        plain = msgspec.structs.replace(self, checksum="")
        digest = hashlib.sha256(msgspec.json.encode(plain)).hexdigest()
        return msgspec.structs.replace(self, checksum=digest)


class Backup(msgspec.Struct, frozen=True):
    """A complete backup: the path of its folder, and its manifest."""

    path: str
    manifest: Manifest

    def folder(self, server: str) -> str:
        """Return the path of a server's folder in the backup."""
        return os.path.join(self.path, server)

    def topology_text(self) -> str:
        """Return the text of the system's topology file."""
        path = os.path.join(self.path, SAVED_TOPOLOGY)
        with named(path):
            return Path(path).read_text(encoding="utf-8")


def is_backup(path: str) -> bool:
    """Return whether ``path`` is the folder of a backup, which may be complete or interrupted."""
    return os.path.isfile(os.path.join(path, MANIFEST)) or (os.path.isdir(path) and path.rstrip("/").endswith(PARTIAL))


def open_backup(path: str) -> Backup:
    """Read the manifest of a backup. Raise StoreError if ``path`` is not the folder of a complete backup."""
    file = os.path.join(path, MANIFEST)
    try:
        with open(Files().open(file), "rb") as manifest_file:
            data = manifest_file.read(limits.frame_bytes_max + 1)
    except FileNotFoundError:
        if not os.path.isdir(path):
            raise StoreError(f"{path}: no such folder: expected a backup (made by: antecede backup)") from None
        reason = "an interrupted backup" if path.rstrip("/").endswith(PARTIAL) else "not a backup"
        raise StoreError(f"{path}: {reason}: it has no {MANIFEST}") from None
    except OSError as error:
        raise StoreError(f"{file}: {error.strerror}") from None
    if len(data) > limits.frame_bytes_max:
        raise StoreError(f"{file}: the manifest is too long: expected at most {limits.frame_bytes_max} bytes")
    try:
        form = msgspec.json.decode(data, type=_Form).format
        if form != FORMAT:
            raise StoreError(
                f"{file}: the backup has format {form}, but this version of antecede reads only format {FORMAT}"
            )
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
    """Makes a new folder in a ``with`` block. Until ``finish`` is called, the folder has a temporary name. If the block
    ends before ``finish`` was called, the folder is removed."""

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
        """Lock the folder, so that no other command makes the same folder at the same time. Return the descriptor of
        the lock. The lock is released when this process ends, even if it is killed."""
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
        """Remove the files of an interrupted attempt. Raise UsageError if the folder contains other files."""
        found = os.listdir(self.partial)
        if found and MARKER not in found:
            raise UsageError(
                f"{self.partial}: exists, but was not made by an interrupted backup or restore: move it away"
            )
        self._empty()

    def _empty(self) -> None:
        """Remove everything in the folder. The marker is removed last. So if this process is killed before the end, the
        next attempt can remove the remaining files."""
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
        """Sync the folder and its subfolders, as ``sync`` does, and rename the folder to its final name. If an empty
        folder already has this name, replace the empty folder."""
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
        """Sync the folder and its subfolders to disk, so that no file name is lost if the machine crashes. The contents
        of the files must already be on disk."""
        with named(self.partial):
            for folder, _, _ in os.walk(self.partial):
                Files().sync_directory(folder)


class NewBackup(NewFolder):
    """Makes the folder of a new backup in a ``with`` block. The method ``complete`` finishes the backup."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        if os.path.lexists(self.path):
            raise UsageError(f"{path}: exists already: expected the name of a new folder")

    def folder(self, server: str) -> str:
        """Make the folder of a server in the backup, and return its path."""
        path = os.path.join(self.partial, server)
        with named(path):
            os.makedirs(path, mode=0o700)
        return path

    def complete(self, manifest: Manifest, topology: str) -> Backup:
        """Write the topology file and then the manifest, and rename the folder to the final name of the backup."""
        text = topology.encode()
        saved = SavedFile(SAVED_TOPOLOGY, len(text), hashlib.sha256(text).hexdigest())
        manifest = msgspec.structs.replace(manifest, topology=saved).sealed()
        with named(self.partial):
            write_new(os.path.join(self.partial, SAVED_TOPOLOGY), text)
            self.sync()
            write_new(os.path.join(self.partial, MANIFEST), msgspec.json.format(msgspec.json.encode(manifest)))
        self.finish()
        return Backup(self.path, manifest)


def digest_of(path: str) -> SavedFile:
    """Return the name, the length and the checksum of a file. The name is the last part of the path."""
    sha, size = hashlib.sha256(), 0
    with open(Files().open(path), "rb") as file:
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


# The id of a restored system. Each data directory of the system contains the id in a small file.
#
# A server sends the id at the start of each connection, as a part of its epoch (the value by which servers compare
# their topologies). So a server of the old system and a server of the restored system refuse each other, like servers
# with different topologies. The state of their links does not change. The two servers also have different
# incarnations (the numbers that identify data directories). If only these numbers were different, the links would
# stop, and an operator would have to reset the domain.
#
# In a restored system, a server may start without data: the server was added later, or it starts again with an empty
# directory. ``antecede topology apply`` sends the id to such a server (:mod:`antecede.server.change`).


SYSTEM = "system"
_id_chars_max = 64


def write_system(directory: str, system: str) -> None:
    """Write the id of a restored system into a data directory that does not contain an id yet."""
    path = os.path.join(directory, SYSTEM)
    with named(path):
        write_new(path, f"{system}\n".encode())
        Files().sync_directory(directory)


def system_in(directory: str) -> str:
    """Return the id of the restored system that a data directory belongs to. If the system was not restored, return
    ""."""
    path = Path(directory, SYSTEM)
    try:
        text = path.read_text(encoding="ascii")[: _id_chars_max + 1].strip()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: cannot be read: {error}") from None
    if not text.isalnum():
        raise StoreError(f"{path}: expected the id of a system, with only letters and digits")
    return text


def system_epoch(epoch: str, directory: str | None) -> str:
    """Return the epoch that a server sends at the start of a connection. Servers compare their topologies by this
    value. In a restored system, the result is ``epoch`` together with the id of the system. In other systems, it is
    ``epoch`` alone. ``directory``: the server's data directory, if the server has one."""
    system = "" if directory is None else system_in(directory)
    return f"{epoch}~{system}" if system else epoch
