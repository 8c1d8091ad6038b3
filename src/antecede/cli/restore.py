"""``antecede restore``: make a new system from a backup."""

import json
from time import monotonic

import typer

from antecede.cli.options import JSON


def register(app: typer.Typer) -> None:
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
        from antecede.cli.backup import topology_of
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
