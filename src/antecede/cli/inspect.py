"""``antecede inspect``: show the log of a server, and whether it is intact."""

import json
import os
from collections.abc import Callable, Iterator
from glob import escape, glob
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer

from antecede.cli.options import JSON
from antecede.errors import UsageError

if TYPE_CHECKING:
    from antecede.store.directory import Group

Decode = Callable[[bytes], object]


def register(app: typer.Typer) -> None:
    @app.command()
    def inspect(
        log: str = typer.Argument(metavar="LOG|BACKUP", help="Data directory of a server, or a backup."),
        verify: bool = typer.Option(
            False,
            "--verify",
            help="For a backup: check its files, recover every server in memory, and check that the states of all "
            "servers fit together.",
        ),
        groups: bool = typer.Option(False, "--groups", help="Also list the groups."),
        records: bool = typer.Option(False, "--records", help="Also list the records."),
        after: int = typer.Option(0, min=0, metavar="N", help="Show only groups and records after record N."),
        first: int = typer.Option(100, min=1, metavar="N", help="Show at most N groups and N records."),
        decoder: str = typer.Option(
            "hex",
            "--as",
            metavar="HOW",
            help="Form of the records: hex, text, msgpack, or MODULE:FUNCTION. The function gets the bytes of a "
            "record, and its result is shown.",
        ),
        as_json: bool = JSON,
    ) -> int:
        """Show the log of a server: segments, groups, records and snapshots. The command checks all checksums of the
        log, and changes nothing.

        A segment is one file of the log. A group consists of the records of one write. A torn end is an incomplete
        write at the end of the log. A crash can cause a torn end, and the command reports it. A backup is checked only
        with --verify.

        Exit codes: 0: No damage was found. A torn end is not damage, because the server will remove it. 1: The log or
        backup is damaged. 2: The folder is neither a log nor a backup.
        """
        from antecede.backups.folder import is_backup
        from antecede.store.recovery import inspect_log

        if is_backup(log):
            from antecede.cli.backup import inspect_backup

            return inspect_backup(log, verify, as_json)

        _check_is_no_folder_of_them(log)
        listed = _Listed(groups, records, after, first, _decoder(decoder))
        report = inspect_log(log, listed.visit)
        report |= {"listed_groups": listed.groups} if groups else {}
        report |= {"listed_records": listed.records} if records else {}
        print(json.dumps(report, indent=2) if as_json else "\n".join(_lines(report)))
        return 1 if report["corrupt"] or any(row["damage"] for row in report["snapshots"]) else 0


def _check_is_no_folder_of_them(path: str) -> None:
    """Raise an error if the path is a folder that contains data directories, but is not a data directory itself.
    ``antecede up --data`` makes such a folder."""
    within = sorted(glob(f"{escape(path)}/*/identity"))
    if within and not os.path.exists(f"{path}/identity"):
        names = ", ".join(os.path.dirname(one) for one in within[:3])
        raise UsageError(f"{path}: not a data directory; choose one inside it: {names}{', …' * (len(within) > 3)}")


class _Listed:
    """A list of groups and records of a log, in the sequence of the log. The options of the command select these groups
    and records."""

    def __init__(self, groups: bool, records: bool, after: int, first: int, decode: Decode) -> None:
        self.groups: list[dict[str, Any]] = []
        self.records: list[dict[str, Any]] = []
        self._wanted = groups, records
        self._after = after
        self._first = first
        self._decode = decode

    def visit(self, offset: int, group: "Group", records: Iterator[bytes]) -> None:
        if group.last < self._after or (group.records and group.last == self._after):
            return
        if self._wanted[0] and len(self.groups) < self._first:
            self.groups.append(
                {
                    "segment": group.segment,
                    "offset": offset,
                    "group": group.number,
                    "first": group.first,
                    "records": group.records,
                    "bytes": group.bytes,
                    "checksum": f"{group.checksum:08x}",
                    "previous": f"{group.previous:08x}",
                    "vouches": group.vouches,
                }
            )
        if self._wanted[1] and len(self.records) < self._first:
            for number, record in enumerate(records, group.first):
                if number > self._after and len(self.records) < self._first:
                    self.records.append(
                        {"record": number, "group": group.number, "bytes": len(record), "value": self._shown(record)}
                    )

    def _shown(self, record: bytes) -> str:
        try:
            return str(self._decode(record))
        except Exception as error:
            # A decoder may know only some of the records, or be wrong altogether; the bytes are still useful.
            return f"{record.hex()} (not decoded: {type(error).__name__}: {error})"


def _decoder(name: str) -> Decode:
    if name == "hex":
        return bytes.hex
    if name == "text":
        return lambda record: record.decode("utf-8", "backslashreplace")
    if name == "msgpack":
        import msgspec

        return msgspec.msgpack.decode
    module, colon, function = name.partition(":")
    if not colon:
        raise UsageError(f"--as must be hex, text, msgpack or MODULE:FUNCTION, not {name!r}")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"--as {name}: {error}") from error
    if not callable(found):
        raise UsageError(f"--as {name}: not a function")
    decode: Decode = found
    return decode


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"{report['directory']}: log format {report['format']}, incarnation {report['incarnation']}"
    span = f" ({report['first']:,} to {report['last']:,})" if report["records"] else ""
    yield f"{report['records']:,} records{span}, {report['record_bytes']:,} bytes in {report['groups']:,} groups"
    for row in report["segments"]:
        contents = (
            f"{row['used_bytes']:,} of {row['bytes']:,} bytes, {row['groups']:,} groups, {row['records']:,} records"
        )
        span = f" ({row['first']:,} to {row['last']:,})" if row["records"] else ""
        yield f"  {row['file']}  {contents}{span}"
    for row in report["snapshots"]:
        state = f"damaged: {row['damage']}" if row["damage"] else f"{row['bytes']:,} bytes in {row['parts']:,} parts"
        yield f"  {row['file']}  up to record {row['upto']:,}: {state}"
    for row in report.get("listed_groups", ()):
        vouches = "" if row["vouches"] else ", does not prove that earlier groups were on disk"
        sums = f"checksum {row['checksum']} after {row['previous']}{vouches}"
        held = f"{row['records']:,} records from {row['first']:,}, {row['bytes']:,} bytes"
        yield f"  group {row['group']:,} at byte {row['offset']:,} of segment {row['segment']}: {held}, {sums}"
    for row in report.get("listed_records", ()):
        yield f"  record {row['record']:,} ({row['bytes']:,} bytes): {row['value']}"
    if torn := report["torn"]:
        more = f", and {torn['segments']} later segments" if torn["segments"] else ""
        place = f"{torn['file']}: byte {torn['offset']}"
        yield f"torn: {place}: {torn['bytes']} bytes{more} will be removed: {torn['reason']}"
    if corrupt := report["corrupt"]:
        yield f"CORRUPT: {corrupt['file']}: byte {corrupt['offset']}: {corrupt['reason']}"
    elif not torn:
        yield "every checksum is correct"
