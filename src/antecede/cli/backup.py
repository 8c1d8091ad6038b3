"""``antecede backup`` copies a whole system, running or stopped: the copies of all servers fit together. ``antecede
restore`` makes a new system from a backup."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from time import gmtime, monotonic, strftime
from typing import TYPE_CHECKING, Any

import typer

from antecede.cli.options import JSON, KEYS, Keys
from antecede.cli.servers import Access, usable_topology
from antecede.cli.terminal import bar
from antecede.topology import TopologyFile

if TYPE_CHECKING:
    from antecede.backups import Backup, NewBackup
    from antecede.backups.folder import SavedServer
    from antecede.backups.restoring import Checked


def register(app: typer.Typer) -> None:
    @app.command("backup")
    def backup(
        topology: str = typer.Argument(..., metavar="TOPOLOGY", help="Topology file of the system."),
        folder: str = typer.Argument(..., metavar="BACKUP", help="New folder for the backup."),
        data: str | None = typer.Option(
            None,
            metavar="DIR",
            help="For stopped servers: the folder with the servers' data directories.",
        ),
        check: bool = typer.Option(
            True,
            "--check/--no-check",
            help="Test the backup afterwards: recover every server from the backup, in memory.",
        ),
        keys: Keys = KEYS,
        as_json: bool = JSON,
    ) -> int:
        """Back up a whole system, running or stopped, so that the copies of all its servers fit together.

        In a running system, servers accept no messages from each other for some milliseconds; agents and clients
        continue. Do not copy the directories of running servers by hand, because copies from different moments do not
        fit together.

        Exit codes:
        0: The backup was made. Its check passed, or was left out (--no-check).
        1: The backup was made, but its check failed.
        2: The backup could not be made. No files are left.
        """
        from antecede import __version__, limits
        from antecede.backups import NewBackup
        from antecede.backups.folder import FORMAT, SAVED_TOPOLOGY, Manifest, SavedFile
        from antecede.documents import read_text

        file = usable_topology(topology)
        begun = monotonic()
        with NewBackup(folder) as new:
            held = None
            if data is not None:
                saved = _stopped(data, file, new)
            else:
                saved, held = _running(file, Access(topology, "operator", *keys), new)
            now = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime())
            manifest = Manifest(FORMAT, __version__, now, file.epoch, saved, SavedFile(SAVED_TOPOLOGY, 0, ""))
            made = new.complete(manifest, read_text(topology, limits.topology_bytes_max))
        seconds = monotonic() - begun
        checked = check_made(made, topology) if check else None
        report = {
            "backup": made.path,
            "servers": {name: {"position": one.position, "bytes": one.bytes} for name, one in saved.items()},
            "bytes": sum(one.bytes for one in saved.values()),
            "held_seconds": held,
            "seconds": seconds,
            **verdict(checked),
        }
        held_ms = "" if held is None else f", the servers waited for {held * 1000:.0f} ms"
        text = f"{made.path}: {len(saved)} servers, {report['bytes']:,} bytes in {seconds:.1f} s{held_ms}"
        print(json.dumps(report, indent=2) if as_json else "\n".join([text, *complaints(checked)]))
        return 0 if checked is None or checked.sound else 1

    _register_restore(app)


def _running(file: TopologyFile, access: Access, new: "NewBackup") -> "tuple[dict[str, SavedServer], float]":
    from antecede.live.client.operator import Remote

    async def main() -> "tuple[dict[str, SavedServer], float]":
        remote = Remote(file.servers, access.token, access.tls, access.keyring)
        with bar("copying") as (_, report_progress):
            try:
                cuts = await remote.cut()
                return await remote.copy(cuts, new, report_progress), remote.held_seconds
            finally:
                await remote.end()

    return asyncio.run(main())


def _stopped(data: str, file: TopologyFile, new: "NewBackup") -> "dict[str, SavedServer]":
    """Copy the directories of stopped servers. All directories are locked until the last one is copied, so that the
    copies fit together."""
    from antecede.backups.copying import copied, locked

    with ExitStack() as stack, bar("copying") as (_, report_progress):
        for server in file.servers:
            stack.enter_context(locked(os.path.join(data, server)))
        return {
            server: copied(os.path.join(data, server), server, new.folder(server), report_progress)
            for server in file.servers
        }


def check_made(made: "Backup", topology: str) -> "Checked":
    """Check a backup. The classes of the application are imported from the folder of the topology file ``topology``."""
    from antecede.backups import check_backup
    from antecede.cli.terminal import status
    from antecede.live.application import find_beside, plan_of

    file, _ = topology_of(made, None)
    find_beside(topology)
    with status(f"checking {made.path}") as report_status:
        return check_backup(made, plan_of(file), report_status)


def topology_of(source: "Backup", given: str | None) -> "tuple[TopologyFile, str]":
    """Return the topology of a restored system, and the path of its file. ``given``: the path of a topology file, or
    None for the topology file in the backup."""
    from antecede.backups.folder import SAVED_TOPOLOGY
    from antecede.cli.servers import usable_topology
    from antecede.topology import parse_topology

    if given is not None:
        return usable_topology(given), given
    path = os.path.join(source.path, SAVED_TOPOLOGY)
    return parse_topology(source.topology_text(), path), path


def verdict(checked: "Checked | None") -> dict[str, Any]:
    """Return the result of a check as fields of a JSON report. If there was no check (None), all values are None."""
    if checked is None:
        return {"sound": None, "damage": None, "faults": None}
    return {"sound": checked.sound, "damage": checked.damage, "faults": checked.faults}


def complaints(checked: "Checked | None") -> Iterator[str]:
    """Yield the result of a check as lines of text: one line per problem, or one line if the backup is sound. If there
    was no check (None), yield nothing."""
    if checked is None:
        return
    for found in checked.damage.values():
        yield from (f"DAMAGED: {line}" for line in found)
    yield from (f"NOT A CONSISTENT CUT: {line}" for line in checked.faults)
    if checked.sound:
        yield "every file matches its checksum, every server can be recovered, and they fit together"


def inspect_backup(path: str, verify: bool, as_json: bool) -> int:
    """Print the contents of a backup. With ``verify``, also check the backup. Return the exit code."""
    from antecede.backups import open_backup

    source = open_backup(path)
    manifest = source.manifest
    checked = check_made(source, os.path.join(path, "topology.toml")) if verify else None
    report: dict[str, Any] = {
        "backup": path,
        "format": manifest.format,
        "version": manifest.version,
        "made": manifest.made,
        "epoch": manifest.epoch,
        "servers": {
            name: {
                "incarnation": one.incarnation,
                "position": one.position,
                "bytes": one.bytes,
                "files": [{"name": file.name, "bytes": file.bytes} for file in one.files],
            }
            for name, one in manifest.servers.items()
        },
        **verdict(checked),
    }
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        count = len(manifest.servers)
        print(f"{path}: a backup of {count} servers, made {manifest.made} by antecede {manifest.version}")
        print(f"topology epoch {manifest.epoch}")
        for name, one in manifest.servers.items():
            print(f"  {name}: up to record {one.position:,}, {one.bytes:,} bytes in {len(one.files)} files")
        print("".join(f"{line}\n" for line in complaints(checked)), end="")
        if checked is None:
            print("not checked (--verify)", file=sys.stderr)
    return 0 if checked is None or checked.sound else 1


def _register_restore(app: typer.Typer) -> None:
    @app.command("restore")
    def restore(
        folder: str = typer.Argument(..., metavar="BACKUP", help="Folder that `antecede backup` made."),
        data: str = typer.Argument(..., metavar="DIR", help="New or empty folder for the data directories."),
        topology: str | None = typer.Option(
            None,
            metavar="FILE",
            help="Topology file that differs from the backup's topology only in addresses. Default: the backup's "
            "topology.",
        ),
        as_json: bool = JSON,
    ) -> int:
        """Make a new system from a backup: one data directory per server, in DIR.

        Start the new system with `antecede up TOPOLOGY --data DIR`.

        Agents, mailboxes, clients, timers and messages in transit are as they were in the backup. A server of the
        new system and a server of the old system never connect to each other.

        Exit codes:
        0: The new system was made.
        2: The new system could not be made. No files are left.
        """
        from antecede.backups import open_backup
        from antecede.backups import restore as restored
        from antecede.cli.terminal import status
        from antecede.live.application import find_beside, plan_of

        begun = monotonic()
        source = open_backup(folder)
        file, where = topology_of(source, topology)
        find_beside(where)
        with status(f"reading {folder}") as report_status:
            servers = restored(source, data, plan_of(file), file, report_status)
        report = {
            "directory": data,
            "epoch": file.epoch,
            "servers": {
                name: {"incarnation": one.incarnation, "records": one.records} for name, one in servers.items()
            },
            "seconds": monotonic() - begun,
        }
        if as_json:
            print(json.dumps(report, indent=2))
        else:
            print(f"{data}: {len(servers)} servers, restored in {report['seconds']:.1f} s; to start all of them here:")
            print(f"antecede up {where} --data {data}")
            print("(or with a copy of that file in the folder of your agents' classes, if they cannot be imported)")
        return 0
