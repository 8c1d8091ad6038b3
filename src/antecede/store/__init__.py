"""The store: the durable data of a server, and the thread that writes it.

:func:`open_store` opens a :class:`Store` with one of three durabilities: ``disk``, ``os`` or ``memory``. With ``disk``
and ``os``, the store uses files and one thread. With ``memory``, it uses neither. A store does not know servers, orders
or event loops; a record is just bytes. ``docs/design/log.md`` describes the bytes on the disk.
"""

from collections.abc import Iterator
from contextlib import suppress

from antecede.errors import CorruptLogError, UsageError
from antecede.store.contract import MemoryStore, OnDurable, OnFailed, Store
from antecede.store.directory import (
    FORMAT,
    HEADER_BYTES,
    LOCK,
    TEMPORARY,
    identity_of,
    named,
    numbered,
    segment_numbers,
    snapshot_name,
)
from antecede.store.files import Files
from antecede.store.log import LogStore, Segments, Sizes, open_log, write_directory
from antecede.store.recovery import Judged, Recovered, Walk, first_record, read_group, records_after, repair
from antecede.store.simulated import Inode, PowerCut, SimulatedDisk
from antecede.store.snapshots import Snapshot, check_snapshot, draft_path, draft_snapshot

__all__ = [
    "FORMAT",
    "HEADER_BYTES",
    "LOCK",
    "TEMPORARY",
    "Files",
    "Inode",
    "Judged",
    "LogStore",
    "MemoryStore",
    "OnDurable",
    "OnFailed",
    "PowerCut",
    "Recovered",
    "Segments",
    "SimulatedDisk",
    "Sizes",
    "Snapshot",
    "Store",
    "Walk",
    "closed_segments",
    "draft_path",
    "open_log",
    "open_store",
    "read_group",
    "read_records",
    "read_state",
    "repair",
    "snapshot_name",
    "write_directory",
    "write_draft",
]

durabilities = ("disk", "os", "memory")


def open_store(
    directory: str | None = None,
    *,
    durability: str = "disk",
    sizes: Sizes | None = None,
    on_durable: OnDurable | None = None,
    on_failed: OnFailed | None = None,
    files: Files | None = None,
) -> Store:
    """Open a store. With durability ``disk``, its records survive a power cut. With ``os``, its records survive a kill
    of the process, but a power cut can destroy them. With ``memory``, its records are lost when the process ends."""
    if durability not in durabilities:
        raise UsageError(f"durability {durability!r} is not one of {', '.join(durabilities)}")
    if durability == "memory":
        return MemoryStore()
    if directory is None:
        raise UsageError(f"durability {durability!r} needs a data directory")
    return open_log(
        directory, durability=durability, sizes=sizes, on_durable=on_durable, on_failed=on_failed, files=files
    )


def read_records(
    directory: str, after: int = 0, upto: int | None = None, files: Files | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each record after record ``after``, up to record ``upto``. If ``upto`` is None,
    continue up to the end of the log. Nothing is changed. A server may have the log open at the same time.

    Records that the server is writing right now may be missing at the end.
    """
    files = files or Files()
    with named(directory):
        identity = identity_of(files, directory)
        numbers = segment_numbers(files, directory)
        walk = Walk(files, directory, identity.seal, _from_record(files, directory, identity.seal, numbers, after + 1))
        yield from records_after(walk, after, upto)


def read_state(
    directory: str, upto: int, files: Files | None = None
) -> tuple[int, bytes | None, Iterator[tuple[int, bytes]]]:
    """Return the incarnation of a data directory (the random number that identifies it), a snapshot, and the records
    after this snapshot, up to record ``upto``. The snapshot is the newest readable snapshot that covers no record after
    ``upto``. If there is no such snapshot, return None instead of it, and all records up to ``upto``. Nothing is
    changed. A server may have the directory open at the same time."""
    files = files or Files()
    with named(directory):
        identity = identity_of(files, directory)
        for covered in reversed(numbered(files.names(directory), "snapshot")):
            if covered > upto:
                continue
            with suppress(CorruptLogError):
                state = check_snapshot(files, directory, identity.seal, covered).data()
                return identity.incarnation, state, read_records(directory, covered, upto, files)
    return identity.incarnation, None, read_records(directory, 0, upto, files)


def write_draft(directory: str, upto: int, state: bytes, mark: str, files: Files | None = None) -> str:
    """Write a snapshot to a file with a temporary name that contains ``mark``; return the path of this file. Later, the
    process that has opened the directory gives the file its final name (``adopt_snapshot``)."""
    files = files or Files()
    with named(directory):
        return draft_snapshot(files, directory, identity_of(files, directory).seal, upto, state, mark)


def closed_segments(directory: str, files: Files | None = None) -> list[int]:
    """Return the number of the last record of each complete segment, oldest first. Complete segments are durable.

    A segment is synced before the first group of the next segment is written. So a good group in a segment proves that
    the segment before it is complete.
    """
    files = files or Files()
    with named(directory):
        identity = identity_of(files, directory)
        later = segment_numbers(files, directory)[1:]
        starts = [first_record(files, directory, identity.seal, number) for number in later]
        return [start - 1 for start in starts if start is not None]


def _from_record(files: Files, directory: str, seal: int, numbers: list[int], record: int) -> list[int]:
    """Return the numbers of the segments that can contain this record or later records. If the record is older than the
    oldest segment, return the numbers of all segments."""
    begin = 0
    for at, number in enumerate(numbers[1:], 1):
        first = first_record(files, directory, seal, number)
        # If it begins after the record, or has no good group, the record is in an earlier segment.
        if first is None or first > record:
            break
        begin = at
    return numbers[begin:]
