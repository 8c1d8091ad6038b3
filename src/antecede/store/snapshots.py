"""Snapshots. A snapshot is the state of the log's owner (the server) after a certain record, so recovery need not begin
at the first record.

A snapshot is written under a temporary name, synced and renamed to its final name; then the directory is synced. So a
file with a final name was written completely, though the disk may have damaged it later. A snapshot is a sequence of
*parts*. Each part is read exactly as it was written::

    magic 8 · seal u64 · format u16 · 0 u16 · upto u64 · (length u32 · part) … · end u32 · parts u64 · checksum u32

``end`` is the number 2^32-1 instead of a length. ``parts`` is the number of parts. The checksum is the CRC-32 of
everything before it. The two newest snapshots are kept. Recovery uses the newest readable snapshot, if the log still
has all records after it.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from zlib import crc32

import msgspec

from antecede.errors import CorruptLogError, DiskFullError, NoDescriptorError, StoreError, StoreFullError
from antecede.limits import (
    store_snapshot_bytes_max,
    store_snapshot_part_bytes_max,
    store_snapshot_part_bytes_wanted,
)
from antecede.store.directory import FORMAT, TEMPORARY, snapshot_name
from antecede.store.files import NO_DESCRIPTOR, NO_ROOM, Files

_head = struct.Struct("<8sQHxxQ")
_magic = b"antesnap"
_end = 2**32 - 1
_piece_bytes = 1 << 20


class Snapshot(msgspec.Struct, frozen=True):
    """A snapshot that was read completely and is intact."""

    files: Files
    path: str
    seal: int
    upto: int
    """The snapshot covers all records up to this number."""

    def parts(self) -> Iterator[bytes]:
        """Return an iterator over the parts, exactly as they were written. Only one part is in memory at a time."""
        return _read(self.files, self.path, self.seal, self.upto)

    def data(self) -> bytes:
        """Return all parts joined."""
        return b"".join(self.parts())


def write_snapshot(files: Files, directory: str, seal: int, upto: int, state: bytes | Iterable[bytes]) -> None:
    """Write a snapshot and make it durable under its final name. If writing fails, remove the unfinished file.
    ``state``: the parts of the snapshot, or all data in one piece, which is then cut into parts."""
    path = f"{directory}/{snapshot_name(upto)}"
    _carefully(files, path, path + TEMPORARY, lambda: _write_file(files, path + TEMPORARY, seal, upto, state))
    _name(files, directory, upto, path + TEMPORARY)


def draft_snapshot(files: Files, directory: str, seal: int, upto: int, state: bytes, mark: str) -> str:
    """Write a snapshot and make it durable under a temporary name that contains ``mark``; return its path. Another
    process renames the file to its final name later (:func:`adopt_draft`)."""
    path = draft_path(directory, upto, mark)
    _carefully(files, path, path, lambda: _write_file(files, path, seal, upto, state))
    return path


def draft_path(directory: str, upto: int, mark: str) -> str:
    """Return the temporary path of a snapshot. If such a file still exists at the next start, it is removed."""
    return f"{directory}/{snapshot_name(upto)}.{mark}{TEMPORARY}"


def adopt_draft(files: Files, directory: str, seal: int, upto: int, draft: str) -> None:
    """Check a snapshot that another process has written, and rename it to its final name. If it is damaged, remove it
    and raise CorruptLogError."""
    try:
        for _ in _read(files, draft, seal, upto):
            pass
    except CorruptLogError:
        with suppress(OSError):
            files.unlink(draft)
        raise
    _name(files, directory, upto, draft)


def _name(files: Files, directory: str, upto: int, draft: str) -> None:
    """Rename a durable snapshot to its final name."""
    path = f"{directory}/{snapshot_name(upto)}"

    def name() -> None:
        files.rename(draft, path)
        files.sync_directory(directory)

    _carefully(files, path, draft, name)


def _write_file(files: Files, path: str, seal: int, upto: int, state: bytes | Iterable[bytes]) -> None:
    file = files.create(path)
    try:
        _write(files, file, seal, upto, _parts_of(state) if isinstance(state, bytes) else state)
        files.fsync(file)
    finally:
        files.close(file)


def _carefully(files: Files, path: str, draft: str, do: Callable[[], None]) -> None:
    """Call ``do``. If it fails, remove the file ``draft`` and raise a StoreError that names ``path``."""
    try:
        do()
    except (OSError, StoreError) as error:
        with suppress(OSError):
            files.unlink(draft)
        if not isinstance(error, OSError):
            raise
        if error.errno in NO_ROOM:
            raise DiskFullError(f"{path}: no space for a snapshot: {error.strerror}") from error
        if error.errno in NO_DESCRIPTOR:
            raise NoDescriptorError(f"{path}: no file descriptor for a snapshot: {error.strerror}") from error
        raise StoreError(f"{path}: the snapshot could not be written: {error.strerror}") from error


def check_snapshot(files: Files, directory: str, seal: int, upto: int) -> Snapshot:
    """Read and check the snapshot up to record ``upto``; raise CorruptLogError if it is damaged."""
    path = f"{directory}/{snapshot_name(upto)}"
    for _ in _read(files, path, seal, upto):
        pass
    return Snapshot(files, path, seal, upto)


def _parts_of(state: bytes) -> Iterator[bytes]:
    # An empty state is one empty part.
    for start in range(0, len(state) or 1, store_snapshot_part_bytes_wanted):
        yield state[start : start + store_snapshot_part_bytes_wanted]


def _write(files: Files, file: int, seal: int, upto: int, parts: Iterable[bytes]) -> None:
    offset = checksum = count = 0
    waiting: list[bytes] = []
    held = 0

    def flush() -> None:
        nonlocal offset, checksum, held
        data = b"".join(waiting)
        checksum = crc32(data, checksum)
        files.write(file, [data], offset)
        offset += len(data)
        waiting.clear()
        held = 0

    waiting.append(_head.pack(_magic, seal, FORMAT, upto))
    for part in parts:
        if len(part) > store_snapshot_part_bytes_max:
            raise StoreFullError(
                f"a part of the snapshot has {len(part)} bytes: expected at most {store_snapshot_part_bytes_max}"
            )
        waiting += (len(part).to_bytes(4, "little"), part)
        held += len(part) + 4
        count += 1
        if offset + held > store_snapshot_bytes_max:
            raise StoreFullError(f"the snapshot is too large: more than {store_snapshot_bytes_max} bytes")
        if held >= _piece_bytes:
            flush()
    waiting.append(_end.to_bytes(4, "little") + count.to_bytes(8, "little"))
    flush()
    files.write(file, [checksum.to_bytes(4, "little")], offset)


def _read(files: Files, path: str, seal: int, upto: int) -> Iterator[bytes]:
    """Yield the parts of a snapshot. Raise CorruptLogError if the header is wrong, a part does not fit into the file,
    or the checksum at the end does not match."""
    with files.opened(path) as file:
        size = files.size(file)
        head = files.read(file, _head.size, 0)
        if len(head) < _head.size or head[:8] != _magic:
            raise CorruptLogError(path, 0, "not a snapshot")
        _, sealed, form, covered = _head.unpack(head)
        if (sealed, covered) != (seal, upto) or form != FORMAT:
            raise CorruptLogError(
                path, 0, "the snapshot belongs to another directory or record, or has an unknown format"
            )
        checksum, offset, count = crc32(head), _head.size, 0
        while True:
            prefix = files.read(file, 4, offset)
            checksum = crc32(prefix, checksum)
            offset += len(prefix)
            length = int.from_bytes(prefix, "little")
            if length == _end or len(prefix) < 4:
                break
            # After the last part there are 16 bytes, so a length that leaves fewer is wrong.
            if length > min(size - offset - 16, store_snapshot_part_bytes_max):
                raise CorruptLogError(path, offset - 4, f"a part of {length} bytes does not fit into the snapshot")
            part = files.read(file, length, offset)
            checksum = crc32(part, checksum)
            offset += length
            count += 1
            yield part
        trailer = files.read(file, 13, offset)
        checksum = crc32(trailer[:8], checksum)
        if trailer != count.to_bytes(8, "little") + checksum.to_bytes(4, "little"):
            raise CorruptLogError(path, offset, "the snapshot does not match its checksum")
