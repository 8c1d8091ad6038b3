"""Check a backup: the length and the checksum of every file, every group and snapshot, and whether the cut is
consistent.

For the last check, every server is recovered from its part, as a restore would do, and the links between them are
compared (:func:`antecede.server.change.renewal.faults_of`). If all servers recover here, their links fit together, and
the topology file is the one in force, the backup can be restored.
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
from antecede.store.directory import named
from antecede.store.files import Files
from antecede.store.format import decode_identity, numbered
from antecede.store.recovery import Recovered, judge
from antecede.topology import TopologyFile, parse_topology

Tell = Callable[[str], None]
"""Reports what is done now."""


class TrimmedFiles(Files):
    """The files of a backup. Its segments end after the last record, but readers of a log expect their original
    length."""

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
    """The defects of a backup."""

    damage: dict[str, list[str]]
    """For each server (empty: the topology), its missing and damaged files, or the reason why it cannot be
    recovered."""
    faults: list[str]
    """The contradictions between servers, if every server can be recovered."""

    @property
    def sound(self) -> bool:
        """Whether the backup can be restored."""
        return not self.faults and not any(self.damage.values())


def check_backup(backup: Backup, plan: Plan, tell: Tell = lambda _: None) -> Checked:
    """Check the files of a backup, recover every server from it, and check that the states are a consistent cut."""
    checked = Checked({"": list(damaged(backup))}, [])
    snapshots: dict[str, bytes] = {}
    for server in backup.manifest.servers:
        tell(f"checking {server}")
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
    """Return why a system with these states cannot have this topology file; empty: it can. The file may have other
    addresses than the topology in force. A server that has missed a change has an older topology, so the one with the
    newest change counts."""
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
    """Return what a server would find in its part of the backup, and its incarnation."""
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
        raise StoreError(f"{folder}: the log ends with record {found.last}, not with {saved.position}")
    return found, identity.incarnation


def recovered_state(
    found: Recovered, server: str, plan: Plan, incarnation: int, epoch: str
) -> tuple[bytes, list[Item]]:
    """Return the state after the last recovered record, as a snapshot. Also return the items of the next record. The
    log must get this record, because the state already contains its items."""
    machine = AgentServer(server, plan, incarnation)
    snapshot = None if found.snapshot is None else found.snapshot.data()
    first = recover(machine, snapshot, (record for _, record in found.records()), epoch, 0.0)
    return machine.snapshot(), decode_record(first)


def damaged(backup: Backup, server: str = "") -> Iterator[str]:
    """Yield the files of a server (empty: the topology) that are missing or do not match the manifest."""
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
"""A length that is larger than that of every segment. The manifest has the true length of each file, and its
checksum."""
