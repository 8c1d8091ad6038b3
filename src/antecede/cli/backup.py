"""``antecede backup``: copies a whole system, running or stopped. The copies of all servers fit together."""

import asyncio
import json
import os
from contextlib import ExitStack
from time import gmtime, monotonic, strftime
from typing import TYPE_CHECKING

import typer

from antecede.cli.live import Access
from antecede.cli.options import JSON, KEYS, Keys
from antecede.cli.organisation import usable_topology
from antecede.cli.progress import bar
from antecede.topology import TopologyFile

if TYPE_CHECKING:
    from antecede.backups import NewBackup
    from antecede.backups.folder import SavedServer


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
        from antecede.cli.backup_checks import check_made, complaints, verdict
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
