"""Code that the commands about backups share: it checks a backup, and reports the result of the check."""

import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antecede.backups import Backup
    from antecede.backups.restoring import Checked
    from antecede.topology import TopologyFile


def check_made(made: "Backup", topology: str) -> "Checked":
    """Check a backup. The classes of the application are imported from the folder of the topology file ``topology``."""
    from antecede.backups import check_backup
    from antecede.cli.progress import status
    from antecede.live.application import find_beside, plan_of

    file, _ = topology_of(made, None)
    find_beside(topology)
    with status(f"checking {made.path}") as report_status:
        return check_backup(made, plan_of(file), report_status)


def topology_of(source: "Backup", given: str | None) -> "tuple[TopologyFile, str]":
    """Return the topology of a restored system, and the path of its file. ``given``: the path of a topology file, or
    None for the topology file in the backup."""
    from antecede.backups.folder import SAVED_TOPOLOGY
    from antecede.cli.organisation import usable_topology
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
