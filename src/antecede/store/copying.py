"""Write the data directory of a restored server: any run of records under their old numbers, and a snapshot.

The directory gets a new identity, as its last file. So an unfinished one is not a data directory. The log may
begin with any record, if the snapshot covers those before it. Records get new groups, because each group carries the
seal of its directory.
"""

from collections.abc import Iterable

from antecede.limits import store_segment_bytes, store_segment_bytes_first
from antecede.store.directory import allocate_segment, named, write_identity
from antecede.store.files import Files
from antecede.store.format import (
    HEADER_BYTES,
    LENGTH_BYTES,
    VOUCHES,
    Group,
    Identity,
    encode_group,
    segment_name,
)
from antecede.store.snapshots import write_snapshot

_group_bytes = 1 << 20
"""Records of a group together; one record alone may be longer."""


def write_directory(
    files: Files,
    directory: str,
    incarnation: int,
    first: int,
    records: Iterable[bytes],
    state: bytes,
    segment_bytes: int = store_segment_bytes,
) -> int:
    """Fill an empty data directory: ``records``, the oldest with the number ``first``, and a snapshot of the state
    after the last of them. Return the number of the last record."""
    with named(directory):
        identity = Identity(incarnation, files.random_bits(64))
        log = _NewLog(files, directory, identity.seal, first, segment_bytes)
        try:
            waiting: list[bytes] = []
            size = 0
            for record in records:
                if waiting and size + len(record) > _group_bytes:
                    log.write(waiting)
                    waiting, size = [], 0
                waiting.append(record)
                size += len(record) + LENGTH_BYTES
            log.write(waiting)
            # The last group has no records and vouches for all others, as after a clean close.
            log.finish()
        finally:
            log.close()
        write_snapshot(files, directory, identity.seal, log.last, state)
        write_identity(files, directory, identity)
        return log.last


class _NewLog:
    """The segments of a log that is being written."""

    def __init__(self, files: Files, directory: str, seal: int, first: int, segment_bytes: int) -> None:
        self._files = files
        self._directory = directory
        self._seal = seal
        self._segment_bytes = segment_bytes
        # Only the very first segment must begin with record 1.
        self._segment = 0 if first == 1 else 1
        self._file = -1
        self._allocated = self._offset = self._group = self._checksum = 0
        self.last = first - 1

    def write(self, records: list[bytes]) -> None:
        """Write the next group."""
        if records:
            self._write(records)

    def finish(self) -> None:
        """Make everything durable, and say so."""
        if self._file >= 0:
            self._files.fdatasync(self._file)
        self._write([], VOUCHES)
        self._files.fsync(self._file)

    def close(self) -> None:
        """Close the file, in any state."""
        if self._file >= 0:
            self._files.close(self._file)
            self._file = -1

    def _write(self, records: list[bytes], flags: int = 0) -> None:
        size = sum(map(len, records)) + LENGTH_BYTES * len(records)
        if self._file < 0 or self._offset + HEADER_BYTES + size > self._allocated:
            self._turn(HEADER_BYTES + size)
            flags = VOUCHES
        number, first, allocated = self._group + 1, self.last + 1, self._allocated
        group = Group(self._segment, number, first, len(records), size, self._checksum, flags, allocated=allocated)
        header, body, self._checksum = encode_group(group, self._seal, records)
        self._files.write(self._file, [header, body], self._offset)
        self._offset += len(header) + len(body)
        self._group, self.last = group.number, group.last

    def _turn(self, needed: int) -> None:
        """Begin the next segment: twice as long as the one before it, up to the full size."""
        if self._file >= 0:
            self._files.fdatasync(self._file)
            self._files.close(self._file)
            self._file = -1
        self._segment += 1
        grown = min(self._segment_bytes, max(store_segment_bytes_first, 2 * self._allocated))
        # A segment is never shorter than the one before it.
        self._allocated = max(needed, grown, self._allocated)
        allocate_segment(self._files, self._directory, self._segment, self._allocated)
        self._file = self._files.open(f"{self._directory}/{segment_name(self._segment)}", write=True)
        self._offset = 0
