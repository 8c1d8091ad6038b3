"""Report what a data directory contains, and whether it is intact. Nothing is changed, and the directory is not locked.

The report is based on all segments and all snapshots, but recovery reads only those that it needs. If a server has the
directory open, the group that the server is writing at this moment may look like a torn group.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from antecede.errors import CorruptLogError
from antecede.store.directory import identity_of, named, segment_numbers
from antecede.store.files import Files
from antecede.store.format import FORMAT, Group, numbered, segment_name, snapshot_name, split_records
from antecede.store.snapshots import check_snapshot
from antecede.store.walk import Walk

Visit = Callable[[int, Group, Iterator[bytes]], None]
"""A function that is called for each good group, with the group's offset in its segment, its header and its records."""


def inspect_log(directory: str, visit: Visit | None = None, files: Files | None = None) -> dict[str, Any]:
    """Return a report on a data directory. Raise StoreError if the directory has no identity or cannot be read."""
    files = files or Files()
    with named(directory):
        names = files.names(directory)
        identity = identity_of(files, directory)
        report: dict[str, Any] = {
            "directory": directory,
            "format": FORMAT,
            "incarnation": f"{identity.incarnation:016x}",
            "segments": [],
            "snapshots": [_snapshot(files, directory, identity.seal, upto) for upto in numbered(names, "snapshot")],
        }
        torn = corrupt = None
        try:
            walk = Walk(files, directory, identity.seal, segment_numbers(files, directory))
            report["segments"] = [_segment(files, directory, number) for number in walk.segments]
            _walk(walk, {row["number"]: row for row in report["segments"]}, visit)
            torn = walk.tail.cut and msgspec.structs.asdict(walk.tail.cut)
        except CorruptLogError as error:
            corrupt = {"file": error.file, "offset": error.offset, "reason": error.reason}
        used = [row for row in report["segments"] if row["groups"]]
        for total in ("groups", "records", "record_bytes"):
            report[total] = sum(row[total] for row in used)
        report["first"] = used[0]["first"] if used else 1
        report["last"] = used[-1]["last"] if used else 0
        report["torn"], report["corrupt"] = torn, corrupt
        return report


def _walk(walk: Walk, rows: dict[int, dict[str, Any]], visit: Visit | None) -> None:
    for offset, group, body in walk:
        row = rows[group.segment]
        if not row["groups"]:
            row["first"] = group.first
        row["groups"] += 1
        row["records"] += group.records
        row["record_bytes"] += group.bytes - 4 * group.records
        row["last"] = group.last
        row["used_bytes"] = walk.tail.offset
        if visit:
            visit(offset, group, split_records(group, body))


def _segment(files: Files, directory: str, number: int) -> dict[str, Any]:
    path = f"{directory}/{segment_name(number)}"
    with files.opened(path) as file:
        size = files.size(file)
    row = dict.fromkeys(("used_bytes", "groups", "records", "record_bytes"), 0)
    return {"file": os.path.basename(path), "number": number, "bytes": size, **row, "first": None, "last": None}


def _snapshot(files: Files, directory: str, seal: int, upto: int) -> dict[str, Any]:
    row: dict[str, Any] = {"file": snapshot_name(upto), "upto": upto, "parts": 0, "bytes": 0, "damage": None}
    try:
        for part in check_snapshot(files, directory, seal, upto).parts():
            row["parts"] += 1
            row["bytes"] += len(part)
    except CorruptLogError as error:
        row["damage"] = f"byte {error.offset}: {error.reason}"
    return row
