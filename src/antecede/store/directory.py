"""A data directory: its identity, the process that has it open, and its files.

The first segment (file of the log) is written before the file ``identity``. So a directory that has an identity but no
segment is refused. If a directory has segments or snapshots but no identity, there are two cases:

- If there is no snapshot, and all segments are filled with zeros, the creation was interrupted. The log is created
  again.
- If a segment contains data, or if there is a snapshot, the identity was lost. The directory is refused.
"""

import os
import re
import struct
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from sys import byteorder
from typing import Final
from zlib import crc32

import msgspec

from antecede.errors import (
    CorruptLogError,
    DiskFullError,
    NoDescriptorError,
    StoreError,
    StoreFormatError,
    StoreLockedError,
)
from antecede.store.files import NO_DESCRIPTOR, NO_ROOM, Files

# The bytes of a data directory: identity, commit groups, names. ``docs/design/log.md`` describes these bytes in
# prose.
#
# All numbers are little-endian. A **group** is a header and a body. The body contains the lengths of all records,
# then all records::
#
#     header   magic 8 · seal u64 · format u16 · flags u16 · records u32 · segment u32 · allocated u32 · group u64
#              · first u64 · bytes u32 · previous u32 · checksum u32
#     body     length u32 x records · the records
#
# ``checksum`` is the CRC-32 of the header up to this field, and of the body. ``previous`` is the checksum of the
# previous group. A group is good only if the previous group still has this checksum. The flag ``VOUCHES`` says that
# all earlier groups were synced before this group was written. If a group has this flag and an earlier group is bad,
# the log is corrupt: the bad group is not a torn write.
#
# ``allocated`` is the length of the segment, in units of 64 bytes. The segment got this length before its first group
# was written. If the segment is shorter now, it has lost bytes that were durable.
#
# The **seal** is a random number that never leaves the directory. A client can send bytes that look like a group and
# become part of a record. But the client does not know the seal. So recovery never mistakes such bytes for a group
# when it searches the bytes after a bad group.


FORMAT: Final = 5
"""The format of the log, and of the records and snapshots in it. Directories of other formats are refused."""

IDENTITY: Final = "identity"
LOCK: Final = "lock"
TEMPORARY: Final = ".new"
"""The end of the name of an unfinished file; recovery removes such files."""

VOUCHES: Final = 1
"""A flag of a group: all earlier groups were synced before this group was written."""

_identity = struct.Struct("<8sHxxQQI")
_identity_magic = b"ANTECEDE"
_group = struct.Struct("<8sQHHIIIQQIII")
_group_unchecked = struct.Struct("<8sQHHIIIQQII")
_group_start = struct.Struct("<8sQH")
_group_magic = b"antegrp\n"
HEADER_BYTES: Final = _group.size
LENGTH_BYTES: Final = 4
ALLOCATION_UNIT: Final = 64
"""The number of bytes in one unit of the header field ``allocated``. A length is rounded down to full units."""


class Identity(msgspec.Struct, frozen=True):
    """The content of the file ``identity``, which makes a folder a data directory."""

    incarnation: int
    """A random number that is sent to peers, so that they notice a directory that was wiped or replaced."""
    seal: int
    """A secret random number. Every group in the directory contains it, so that no program without the number can
    imitate a group."""


class Group(msgspec.Struct, frozen=True, gc=False):
    """The header of one commit group."""

    segment: int
    number: int
    first: int
    """The number of the group's first record. If the group is empty, this is the number of the next record in the
    log."""
    records: int
    bytes: int
    previous: int
    flags: int = 0
    checksum: int = 0
    allocated: int = 0
    """The length of the group's segment in bytes, rounded down to a multiple of 64."""

    @property
    def last(self) -> int:
        """The number of the group's last record. If the group is empty, this is the number of the last record before
        the group."""
        return self.first + self.records - 1

    @property
    def vouches(self) -> bool:
        """Whether every group before this group was durable when this group was written."""
        return bool(self.flags & VOUCHES)


def encode_identity(identity: Identity) -> bytes:
    """Return the content of the identity file."""
    data = _identity.pack(_identity_magic, FORMAT, identity.incarnation, identity.seal, 0)[:-4]
    return data + crc32(data).to_bytes(4, "little")


def decode_identity(data: bytes, path: str) -> Identity:
    """Decode the content of the identity file ``path``; raise a StoreError with this path if it cannot be decoded."""
    if data[: len(_identity_magic)] != _identity_magic:
        raise CorruptLogError(path, 0, "not the identity of a data directory")
    if len(data) != _identity.size or crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise CorruptLogError(path, 0, "the identity does not match its checksum")
    _, form, incarnation, seal, _ = _identity.unpack(data)
    if form != FORMAT:
        raise StoreFormatError(f"{path}: written in log format {form}; this version reads only format {FORMAT}")
    return Identity(incarnation, seal)


def encode_group(group: Group, seal: int, records: Sequence[bytes]) -> tuple[bytes, bytes, int]:
    """Return the header, the body and the checksum of a group of these records."""
    lengths = array("I", map(len, records))
    if byteorder == "big":
        lengths.byteswap()
    body = b"".join((lengths.tobytes(), *records))
    header = _group_unchecked.pack(
        _group_magic,
        seal,
        FORMAT,
        group.flags,
        group.records,
        group.segment,
        group.allocated // ALLOCATION_UNIT,
        group.number,
        group.first,
        len(body),
        group.previous,
    )
    checksum = crc32(body, crc32(header))
    return header + checksum.to_bytes(4, "little"), body, checksum


def decode_header(data: bytes, seal: int) -> Group | str:
    """Decode the header of a group, without checking its checksum. If it is not a valid header, return the reason."""
    if len(data) < HEADER_BYTES:
        return "the file ends within a header"
    magic, sealed, form = _group_start.unpack_from(data)
    if magic != _group_magic:
        return "no group begins here" if any(data) else "nothing was written here"
    if sealed != seal:
        return "a group of another data directory"
    if form != FORMAT:
        return f"a group of format {form}"
    _, _, _, flags, records, segment, allocated, number, first, size, previous, checksum = _group.unpack(data)
    if records * LENGTH_BYTES > size:
        return f"a group of {records} records cannot have {size} bytes"
    return Group(segment, number, first, records, size, previous, flags, checksum, allocated * ALLOCATION_UNIT)


def checked(header: bytes, body: bytes) -> bool:
    """Return whether the header and the body of a group match the checksum in the header."""
    return crc32(body, crc32(header[:-4])) == int.from_bytes(header[-4:], "little")


def split_records(group: Group, body: bytes) -> Iterator[bytes]:
    """Yield the records in the body of a group. The caller has checked the group's checksum before."""
    lengths = array("I", body[: group.records * LENGTH_BYTES])
    if byteorder == "big":
        lengths.byteswap()
    start = group.records * LENGTH_BYTES
    for length in lengths:
        yield body[start : start + length]
        start += length


def group_pattern(seal: int) -> bytes:
    """Return the bytes at the beginning of every group of this directory."""
    return _group_magic + seal.to_bytes(8, "little")


def segment_name(number: int) -> str:
    """Return the file name of a segment."""
    return f"segment-{number:012d}.log"


def snapshot_name(upto: int) -> str:
    """Return the file name of the snapshot that covers all records up to number ``upto``."""
    return f"snapshot-{upto:020d}.state"


def cut_name(group: int) -> str:
    """Return the file name of the note about a removed torn write. ``group`` is the number of the removed group."""
    return f"cut-{group:020d}.note"


_names = {
    kind: re.compile(pattern)
    for kind, pattern in {
        "segment": r"segment-(\d{12,})\.log",
        "snapshot": r"snapshot-(\d{20,})\.state",
        "cut": r"cut-(\d{20,})\.note",
    }.items()
}


def numbered(names: Sequence[str], kind: str) -> list[int]:
    """Return the numbers in the names of all files of one kind (``segment``, ``snapshot`` or ``cut``), ascending.
    ``names`` may contain other files."""
    pattern = _names[kind]
    return sorted(int(found[1]) for found in map(pattern.fullmatch, names) if found)


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
