"""Check a backup: the lengths and checksums of its files, the groups of records in the logs, and the snapshots. Also
check that the states of all servers together are a consistent cut, that is, that they do not contradict each other. For
example, a server must not have received a message that the sender's state does not contain.

For the last check, every server is recovered from its files in the backup, as ``restore`` would do. Then the links
between the servers are compared (:func:`antecede.server.change.renewal.faults_of`). A backup can be restored under
three conditions. (1) All servers can be recovered. (2) The two ends of each link do not contradict each other. (3)
Apart from addresses, the topology file in the backup contains the topology that was in force when the backup was made.
"""

import os
from collections.abc import Callable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from antecede.backups.folder import IDENTITY, TOPOLOGY, Backup, digest_of
from antecede.errors import AntecedeError, StoreError
from antecede.server import AgentServer, Plan
from antecede.server.change.renewal import faults_of
from antecede.server.items import Item, decode_record
from antecede.server.recovery import recover
from antecede.server.snapshots import decode_state
from antecede.store.directory import decode_identity, named, numbered
from antecede.store.files import Files
from antecede.store.recovery import Recovered, judge
from antecede.topology import TopologyFile, parse_topology

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
            where = os.path.join(backup.path, TOPOLOGY)
            checked.damage[""] += other_topology(snapshots, parse_topology(backup.topology_text(), where))
    return checked


def other_topology(snapshots: Mapping[str, bytes], file: TopologyFile) -> list[str]:
    """Return the reason why a system with these snapshots cannot use this topology file. If the system can use the
    file, the result is empty. The file must be equal to the topology in force, apart from addresses. The topology in
    force is the newest topology in the snapshots. If a server has missed a change, its snapshot contains an older
    topology."""
    newest = max(map(decode_state, snapshots.values()), key=lambda state: state.organisation.change).organisation
    if not newest.topology:
        # The oldest logs do not contain their topology.
        return []
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
    path = f"{folder}/{IDENTITY}"
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
