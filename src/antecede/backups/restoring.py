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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from antecede.backups.folder import SAVED_IDENTITY, SAVED_TOPOLOGY, Backup, NewFolder, digest_of, write_system
from antecede.errors import AntecedeError, StoreError, TopologyError, UsageError
from antecede.recording.segments import BEGUN, FOLDER, pieces_in
from antecede.server import AgentServer, Plan
from antecede.server.items import Began, Item, Restored, decode_record, encode_record
from antecede.server.recovery import recover
from antecede.server.snapshots import decode_state, faults_of, renewed
from antecede.store.directory import decode_identity, named, numbered, segment_numbers
from antecede.store.files import Files
from antecede.store.log import write_directory
from antecede.store.recovery import Recovered, Walk, judge, records_after
from antecede.topology import TopologyFile, parse_topology

# Check a backup: the lengths and checksums of its files, the groups of records in the logs, and the snapshots. Also
# check that the states of all servers together are a consistent cut, that is, that they do not contradict each other.
# For example, a server must not have received a message that the sender's state does not contain.
#
# For the last check, every server is recovered from its files in the backup, as ``restore`` would do. Then the links
# between the servers are compared (:func:`antecede.server.snapshots.faults_of`). A backup can be restored under
# three conditions. (1) All servers can be recovered. (2) The two ends of each link do not contradict each other. (3)
# Apart from addresses, the topology file in the backup contains the topology that was in force when the backup was
# made.


ReportStatus = Callable[[str], None]
"""A function that reports the current step, for example ``checking s1``."""


class TrimmedFiles(Files):
    """Reads the files of a backup. In a backup, a segment (a file of the log) ends directly after the last record. But
    readers of a log expect longer segments, so ``size`` returns a very large length for each segment."""

    def __init__(self) -> None:
        self._segments: set[int] = set()

    def open(self, path: str, write: bool = False) -> int:
        file = super().open(path, write)
        if numbered([os.path.basename(path)], "segment"):
            self._segments.add(file)
        return file

    def close(self, file: int) -> None:
        self._segments.discard(file)
        super().close(file)

    def size(self, file: int) -> int:
        return max(super().size(file), _any_segment_bytes) if file in self._segments else super().size(file)


class Checked(msgspec.Struct):
    """The result of a check: the defects of a backup."""

    damage: dict[str, list[str]]
    """For each server: its missing and damaged files, or the reason why the server cannot be recovered. The entry with
    the empty name is about the topology file."""
    faults: list[str]
    """The contradictions between the states of servers. If a server cannot be recovered, the states are not compared,
    and the list is empty."""

    @property
    def sound(self) -> bool:
        """Whether the backup can be restored."""
        return not self.faults and not any(self.damage.values())


def check_backup(backup: Backup, plan: Plan, report_status: ReportStatus = lambda _: None) -> Checked:
    """Check the files of a backup, recover every server from its files, and check that the states of the servers do not
    contradict each other."""
    checked = Checked({"": list(damaged(backup))}, [])
    snapshots: dict[str, bytes] = {}
    for server in backup.manifest.servers:
        report_status(f"checking {server}")
        found = list(damaged(backup, server))
        if not found:
            try:
                recovered, incarnation = recovered_of(backup, server)
                snapshots[server], _ = recovered_state(recovered, server, plan, incarnation, backup.manifest.epoch)
            except AntecedeError as error:
                found.append(str(error))
        checked.damage[server] = found
    if len(snapshots) == len(backup.manifest.servers):
        checked.faults = list(faults_of(snapshots))
        if not checked.damage[""]:
            where = os.path.join(backup.path, SAVED_TOPOLOGY)
            checked.damage[""] += other_topology(snapshots, parse_topology(backup.topology_text(), where))
    return checked


def other_topology(snapshots: Mapping[str, bytes], file: TopologyFile) -> list[str]:
    """Return the reason why a system with these snapshots cannot use this topology file. If the system can use the
    file, the result is empty. The file must be equal to the topology in force, apart from addresses. The topology in
    force is the newest topology in the snapshots. If a server has missed a change, its snapshot contains an older
    topology."""
    newest = max(map(decode_state, snapshots.values()), key=lambda state: state.organisation.change).organisation
    force = parse_topology(newest.topology, "the topology in force")
    if set(force.servers) == set(file.servers) and replace(file, servers=force.servers).epoch == force.epoch:
        return []
    why = "not the topology that was in force when the backup was made, even apart from addresses"
    return [f"{file.name}: {why}: expected the file of the last change"]


def recovered_of(backup: Backup, server: str) -> tuple[Recovered, int]:
    """Read a server's folder in the backup. Return the snapshot and the log in this folder, and the server's
    incarnation (the random number that identifies its data directory). Raise StoreError if the number of the log's last
    record differs from the number in the manifest."""
    folder, saved, files = backup.folder(server), backup.manifest.servers[server], TrimmedFiles()
    path = f"{folder}/{SAVED_IDENTITY}"
    with named(folder):
        file = files.open(path)
        try:
            identity = decode_identity(files.read(file, 64, 0), path)
        finally:
            files.close(file)
        found = judge(files, folder, identity).recovered
    if found.last != saved.position:
        raise StoreError(f"{folder}: the log ends with record {found.last}, but the manifest says {saved.position}")
    return found, identity.incarnation


def recovered_state(
    found: Recovered, server: str, plan: Plan, incarnation: int, epoch: str
) -> tuple[bytes, list[Item]]:
    """Recover a server from the snapshot and the log in ``found``. The recovery makes one new record. Return a
    snapshot of the state after this record, and the items (the parts) of the record. The record is not written here: a
    caller that makes a new log must write the record to it."""
    machine = AgentServer(server, plan, incarnation)
    snapshot = None if found.snapshot is None else found.snapshot.data()
    first = recover(machine, snapshot, (record for _, record in found.records()), epoch, 0.0)
    return machine.snapshot(), decode_record(first)


def damaged(backup: Backup, server: str = "") -> Iterator[str]:
    """Yield one line of text for each file that is missing or does not match the manifest. ``server``: check the files
    of this server. If ``server`` is empty, check only the topology file."""
    manifest = backup.manifest
    folder, files = (
        (backup.folder(server), manifest.servers[server].files) if server else (backup.path, [manifest.topology])
    )
    for saved in files:
        path = os.path.join(folder, saved.name)
        try:
            found = digest_of(path)
        except OSError as error:
            yield f"{path}: {error.strerror}"
            continue
        if found.bytes != saved.bytes:
            yield f"{path}: {found.bytes} bytes, expected {saved.bytes}"
        elif found.sha256 != saved.sha256:
            yield f"{path}: does not match its checksum"


_any_segment_bytes = 1 << 40
"""The length that is reported for each segment. It is larger than any real segment. The true length of each file, and
its checksum, are in the manifest and are checked separately."""


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
            _copy_trace(backup.folder(server), folder)
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


def _copy_trace(source: str, folder: str) -> None:
    """Copy the Parquet files of a server's trace from the backup into a data directory. If the backup does not contain
    a trace of the server, do nothing."""
    if not os.path.isdir(f"{source}/{FOLDER}"):
        return
    with named(folder):
        os.mkdir(f"{folder}/{FOLDER}", 0o700)
        for piece in pieces_in(source):
            shutil.copyfile(piece.path, f"{folder}/{FOLDER}/{os.path.basename(piece.path)}")
        Path(folder, FOLDER, BEGUN).touch()
        for name in os.listdir(f"{folder}/{FOLDER}"):
            file = os.open(f"{folder}/{FOLDER}/{name}", os.O_RDONLY)
            try:
                os.fsync(file)
            finally:
                os.close(file)
