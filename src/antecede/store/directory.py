"""A data directory: its identity, the process that has it open, and its files.

The first segment (file of the log) is written before the file ``identity``. So a directory that has an identity but no
segment is refused. If a directory has segments or snapshots but no identity, there are two cases:

- If there is no snapshot, and all segments are filled with zeros, the creation was interrupted. The log is created
  again.
- If a segment contains data, or if there is a snapshot, the identity was lost. The directory is refused.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from antecede.errors import CorruptLogError, DiskFullError, NoDescriptorError, StoreError, StoreLockedError
from antecede.store.files import NO_DESCRIPTOR, NO_ROOM, Files
from antecede.store.format import (
    IDENTITY,
    LOCK,
    TEMPORARY,
    Identity,
    decode_identity,
    encode_identity,
    numbered,
    segment_name,
)


@contextmanager
def named(path: str) -> Iterator[None]:
    """Turn an OSError in the body of a ``with`` statement into a StoreError. The text of the StoreError names the file
    of the OSError or, if that is unknown, ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DiskFullError(f"{error.filename or path}: {error.strerror}") from error
        if error.errno in NO_DESCRIPTOR:
            raise NoDescriptorError(f"{error.filename or path}: {error.strerror}") from error
        raise StoreError(f"{error.filename or path}: {error.strerror}") from error


def make_parents(path: str) -> None:
    """Create the missing parent folders of a path, and make them durable, so that a power cut does not lose them."""
    missing, parent = [], os.path.dirname(os.path.abspath(path))
    while not os.path.exists(parent):
        missing.append(parent)
        parent = os.path.dirname(parent)
    with named(path):
        for parent in reversed(missing):
            os.makedirs(parent, mode=0o700, exist_ok=True)
            Files().sync_directory(os.path.dirname(parent))


def lock_directory(files: Files, directory: str) -> int:
    """Lock the directory for this process; create it if it does not exist. Return the descriptor of the lock file."""
    parent = os.path.dirname(os.path.abspath(directory))
    try:
        files.make_directory(directory)
        files.sync_directory(parent)
    except FileExistsError:
        pass
    try:
        return files.lock(f"{directory}/{LOCK}", b"%d\n" % os.getpid())
    except BlockingIOError as error:
        raise StoreLockedError(f"{directory}: in use by process {error.strerror or 'unknown'}") from error


def refuse_foreign(files: Files, directory: str) -> None:
    """Raise StoreError if a folder contains files but is not a data directory; it was probably given by mistake."""
    try:
        names = files.names(directory)
    except FileNotFoundError:
        return
    if IDENTITY in names or numbered(names, "segment") or numbered(names, "snapshot"):
        return
    others = [name for name in names if name not in _allowed and not name.endswith(TEMPORARY) and name[0] != "."]
    if others:
        raise StoreError(
            f"{directory}: not a data directory: it has {min(others)} and no identity file; give an empty folder, or "
            "the data directory of a server"
        )


def read_identity(files: Files, directory: str) -> Identity | None:
    """Return the identity of the directory; None if the identity file does not exist."""
    path = f"{directory}/{IDENTITY}"
    try:
        with files.opened(path) as file:
            return decode_identity(files.read(file, 64, 0), path)
    except FileNotFoundError:
        return None


def identity_of(files: Files, directory: str) -> Identity:
    """Return the identity of a data directory; raise StoreError if the directory has no identity."""
    identity = read_identity(files, directory)
    if identity is None:
        raise StoreError(f"{directory}: not a data directory: it has no identity")
    return identity


def create(files: Files, directory: str, segment_bytes: int) -> Identity:
    """Create a new log: its first segment, then its identity."""
    names = files.names(directory)
    if numbered(names, "snapshot"):
        raise CorruptLogError(f"{directory}/{IDENTITY}", 0, "the file is missing, but the directory has snapshots")
    for number in numbered(names, "segment"):
        if not _unused(files, f"{directory}/{segment_name(number)}"):
            raise CorruptLogError(
                f"{directory}/{IDENTITY}", 0, f"the file is missing, but {segment_name(number)} contains data"
            )
    allocate_segment(files, directory, 1, segment_bytes)
    identity = Identity(files.random_bits(64), files.random_bits(64))
    write_identity(files, directory, identity)
    return identity


def write_identity(files: Files, directory: str, identity: Identity) -> None:
    """Write the identity file. A directory with this file is a data directory."""
    write_file(files, directory, IDENTITY, encode_identity(identity))


def write_file(files: Files, directory: str, name: str, content: bytes) -> None:
    """Write a small file. The file has a temporary name until all its content is durable."""
    path = f"{directory}/{name}"
    file = files.create(path + TEMPORARY)
    try:
        files.write(file, [content], 0)
        files.fsync(file)
    finally:
        files.close(file)
    files.rename(path + TEMPORARY, path)
    files.sync_directory(directory)


def allocate_segment(files: Files, directory: str, number: int, size: int) -> None:
    """Allocate a segment of zeros on the disk. The file has a temporary name until all its content is durable."""
    path = f"{directory}/{segment_name(number)}"
    file = files.create(path + TEMPORARY)
    try:
        files.allocate(file, size)
        files.fsync(file)
    except OSError:
        files.close(file)
        # Otherwise the space that it got before the disk was full would be lost.
        files.unlink(path + TEMPORARY)
        raise
    files.close(file)
    files.rename(path + TEMPORARY, path)
    files.sync_directory(directory)


def segment_numbers(files: Files, directory: str) -> list[int]:
    """Return the numbers of all segments, ascending. Raise CorruptLogError if there is no segment, or if a segment is
    missing although earlier and later segments exist."""
    numbers = numbered(files.names(directory), "segment")
    if not numbers:
        raise CorruptLogError(f"{directory}/{segment_name(1)}", 0, "the directory has an identity but no segment")
    for number, following in pairwise(numbers):
        if following != number + 1:
            raise CorruptLogError(
                f"{directory}/{segment_name(number + 1)}",
                0,
                "the segment is missing, although earlier and later segments exist",
            )
    return numbers


_allowed = (LOCK, "lost+found", "audit.jsonl", "audit.jsonl.1", "calls", "system", "trace")
"""Files that a folder may contain before a server starts there for the first time. They are files of a new file system,
the audit log of a server with durability ``memory``, and files that remain if only the log was removed. (If ``trace``
remains, a server that records a trace refuses to start.)"""


def _unused(files: Files, path: str) -> bool:
    offset = 0
    with files.opened(path) as file:
        while window := files.read(file, 1 << 20, offset):
            if any(window):
                return False
            offset += len(window)
    return True
