"""Make a new system from a backup: one data directory for each server.

First the backup is checked: the checksum of every file, the recovery of all servers, and the links between the servers.
If this check fails, nothing is written. Then each server gets a directory with a new incarnation (a random number that
identifies the directory) and a snapshot of the server's state in the backup. The Parquet files of the server's trace,
if there are any, are copied. The log records whose rows are not yet in these files are also copied, but only if the
backup contains all of them. If one of them is missing, none is copied, and the trace of the server cannot be continued.
All directories are made in one folder with a temporary name. The last step renames this folder.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from antecede.backups.checking import ReportStatus, damaged, other_topology, recovered_of, recovered_state
from antecede.backups.folder import Backup, NewFolder
from antecede.backups.system import write_system
from antecede.errors import StoreError, TopologyError, UsageError
from antecede.recording.segments import FOLDER, TOPOLOGY, pieces_in
from antecede.server import Plan
from antecede.server.change.renewal import faults_of, renewed
from antecede.server.items import Began, Item, Restored, decode_record, encode_record
from antecede.store.directory import named, segment_numbers
from antecede.store.files import Files
from antecede.store.log import write_directory
from antecede.store.recovery import Recovered, Walk, records_after
from antecede.topology import TopologyFile


class RestoredServer(msgspec.Struct, frozen=True):
    """A server of the new system."""

    incarnation: str
    records: int
    """The number of the last record in the server's log. Later records get the next numbers."""


def restore(
    backup: Backup, target: str, plan: Plan, file: TopologyFile, report_status: ReportStatus = lambda _: None
) -> dict[str, RestoredServer]:
    """Make a new system from a backup, in a new or empty folder. Return the servers by name. ``plan``: the
    configuration of the new servers. ``file``: the topology file of the new system. Apart from addresses, it must be
    equal to the topology that was in force when the backup was made."""
    target = target.rstrip("/")
    if os.path.lexists(target) and not os.path.isdir(target):
        raise UsageError(f"{target}: is a file: expected the name of a new folder")
    if os.path.isdir(target) and os.listdir(target):
        raise UsageError(f"{target}: not empty: expected the name of a new or empty folder")
    found: dict[str, Recovered] = {}
    snapshots: dict[str, bytes] = {}
    former: dict[str, int] = {}
    begins: dict[str, list[Item]] = {}
    _refuse_damage(backup, "")
    for server in backup.manifest.servers:
        report_status(f"checking {server}")
        _refuse_damage(backup, server)
        report_status(f"recovering {server}")
        found[server], former[server] = recovered_of(backup, server)
        given = (found[server], server, plan, former[server], backup.manifest.epoch)
        snapshots[server], begins[server] = recovered_state(*given)
    faults = list(faults_of(snapshots))
    if faults:
        raise StoreError(f"{backup.path}: not a consistent cut: {faults[0]}")
    for reason in other_topology(snapshots, file):
        raise TopologyError(reason)
    files = Files()
    incarnations, system = new_incarnations(files, list(snapshots)), f"{files.random_bits(64):016x}"
    result: dict[str, RestoredServer] = {}
    with NewFolder(target) as new:
        for server, snapshot in snapshots.items():
            report_status(f"writing {server}")
            folder = os.path.join(new.partial, server)
            files.make_directory(folder)
            state = renewed(snapshot, server, incarnations, file.epoch, file.text())
            pieces = pieces_in(backup.folder(server))
            after = pieces[-1].upto if pieces else 0
            begin = encode_record([Restored(incarnations[server]), *begins[server]])
            first, records = history(found[server], after, former[server], begin, bool(pieces))
            last = write_directory(files, folder, incarnations[server], first, records, state)
            result[server] = RestoredServer(f"{incarnations[server]:016x}", last)
            write_system(folder, system)
            _copy_trace(backup.folder(server), folder, file.text())
        new.finish()
    return result


def _refuse_damage(backup: Backup, server: str) -> None:
    """Raise StoreError if a file of the server in the backup is missing or damaged. This check is necessary, because
    recovery does not read every file."""
    for line in damaged(backup, server):
        raise StoreError(f"{line}: the backup is damaged")


def new_incarnations(files: Files, servers: list[str]) -> Mapping[str, int]:
    """Return a new random incarnation (the number that identifies a data directory) for each server."""
    return {server: files.random_bits(64) or 1 for server in servers}


def history(found: Recovered, after: int, former: int, begin: bytes, has_trace: bool) -> tuple[int, Iterator[bytes]]:
    """Return the log of a restored server: the number of its first record, and an iterator over its records. The log
    contains copies of the backup's records with numbers larger than ``after``, and then one new record, ``begin``. If
    one of the records to copy is missing in the backup, the log contains only ``begin``, and the server's trace cannot
    be continued. ``after``: the number of the last record whose rows are in the trace's Parquet files, or 0 if there
    are no such files. ``former``: the incarnation (the number that identifies a data directory) of the log in the
    backup. ``has_trace``: whether the backup contains Parquet files of the trace."""
    last = found.last
    if found.walk is None or found.first > after + 1 or not (has_trace or found.first == 1):
        return last + 1, iter([begin])
    walk = _whole(found)

    def records() -> Iterator[bytes]:
        for number, record in records_after(walk, after, last):
            yield marked(record, former) if number == 1 else record
        yield begin

    return after + 1, records()


def _whole(found: Recovered) -> Walk:
    """Return an iterator over the whole log, from its oldest segment on. (``found.records()`` returns only the records
    after the snapshot.)"""
    walk = found.walk
    assert walk is not None
    numbers = segment_numbers(walk.files, walk.directory)
    return Walk(walk.files, walk.directory, walk.seal, [number for number in numbers if number <= walk.tail.segment])


def marked(record: bytes, former: int) -> bytes:
    """Return a copy of a log's first record. The copy always contains an incarnation (the number that identifies a data
    directory). If the record already contains an incarnation, the copy keeps it. Otherwise the copy gets ``former``,
    the incarnation of the log in the backup."""
    items = decode_record(record)
    marked = [
        msgspec.structs.replace(item, incarnation=item.incarnation or former) if isinstance(item, Began) else item
        for item in items
    ]
    return encode_record(marked)


def _copy_trace(source: str, folder: str, topology: str) -> None:
    """Copy the Parquet files of a server's trace from the backup into a data directory, and write the topology of the
    new system next to them. If the backup does not contain a trace of the server, do nothing."""
    if not os.path.isdir(f"{source}/{FOLDER}"):
        return
    with named(folder):
        os.mkdir(f"{folder}/{FOLDER}", 0o700)
        for piece in pieces_in(source):
            shutil.copyfile(piece.path, f"{folder}/{FOLDER}/{os.path.basename(piece.path)}")
        Path(folder, FOLDER, TOPOLOGY).write_text(topology, encoding="utf-8")
        for name in os.listdir(f"{folder}/{FOLDER}"):
            file = os.open(f"{folder}/{FOLDER}/{name}", os.O_RDONLY)
            try:
                os.fsync(file)
            finally:
                os.close(file)
