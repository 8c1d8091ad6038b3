"""The bytes of a data directory: identity, commit groups, names. ``docs/design/log.md`` describes these bytes in prose.

All numbers are little-endian. A **group** is a header and a body. The body contains the lengths of all records, then
all records::

    header   magic 8 · seal u64 · format u16 · flags u16 · records u32 · segment u32 · allocated u32 · group u64
             · first u64 · bytes u32 · previous u32 · checksum u32
    body     length u32 x records · the records

``checksum`` is the CRC-32 of the header up to this field, and of the body. ``previous`` is the checksum of the previous
group. A group is good only if the previous group still has this checksum. The flag ``VOUCHES`` says that all earlier
groups were synced before this group was written. If a group has this flag and an earlier group is bad, the log is
corrupt: the bad group is not a torn write.

``allocated`` is the length of the segment, in units of 64 bytes. The segment got this length before its first group was
written. If the segment is shorter now, it has lost bytes that were durable.

The **seal** is a random number that never leaves the directory. A client can send bytes that look like a group and
become part of a record. But the client does not know the seal. So recovery never mistakes such bytes for a group when
it searches the bytes after a bad group.
"""

import re
import struct
from array import array
from collections.abc import Iterator, Sequence
from sys import byteorder
from typing import Final
from zlib import crc32

import msgspec

from antecede.errors import CorruptLogError, StoreFormatError

FORMAT: Final = 4
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
