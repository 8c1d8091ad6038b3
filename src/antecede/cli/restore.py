"""``antecede restore``: make a new system from a backup."""

import json
from time import monotonic

import typer

from antecede.cli.options import JSON


def register(app: typer.Typer) -> None:
    @app.command("restore")
    def restore(
        folder: str = typer.Argument(..., metavar="BACKUP", help="A folder that antecede backup made."),
        data: str = typer.Argument(
            ..., metavar="DIR", help="The folder of the new data directories: a new or empty folder."
        ),
        topology: str | None = typer.Option(
            None,
            metavar="FILE",
            help="A topology that differs from that of the backup only in addresses. Default: that of the backup.",
        ),
        as_json: bool = JSON,
    ) -> int:
        """Make a new system from a backup: a data directory for each server, for antecede up --data DIR.

        Agents, mailboxes, clients, timers and messages in transit are as they were at the cut. The servers of the new
        system and those of the old one do not connect to each other.

        Exit 0: done. 2: it could not be done; no files are left.
        """
        from antecede.backups import open_backup
        from antecede.backups import restore as restored
        from antecede.cli.backup_checks import topology_of
        from antecede.cli.progress import status
        from antecede.live.application import find_beside, plan_of

        begun = monotonic()
        source = open_backup(folder)
        file, where = topology_of(source, topology)
        find_beside(where)
        with status(f"reading {folder}") as say:
            servers = restored(source, data, plan_of(file), file.epoch, file.text(), say)
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
            print("(or with a copy of that file beside the classes of your agents, if they cannot be imported)")
        return 0
