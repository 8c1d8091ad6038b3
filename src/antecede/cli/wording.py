"""Texts that several commands print: names that are safe on a terminal, numbers, and rows that were set aside."""

import os
import re
from collections.abc import Mapping
from math import floor, log10
from typing import Any

from antecede.crashes import print_error


def shown_name(text: str) -> str:
    """Return a name from a trace in a form that is safe on a terminal."""
    return text if text.isprintable() and text else repr(text)


def shown_text(text: str) -> str:
    """Return a text, for example a file name, in a form that is safe on a terminal."""
    return text if text.isprintable() else repr(text)


def shown_values(value: Any) -> Any:
    """Return a document of a server in which no text can end a line of a report."""
    if isinstance(value, str):
        return shown_text(value)
    if isinstance(value, dict):
        return {shown_text(key): shown_values(one) for key, one in value.items()}
    return [shown_values(one) for one in value] if isinstance(value, list) else value


def letter_name(one: Mapping[str, Any]) -> str:
    """Return a text that names a letter, for example ``Said "answer to q5?" (s1…2)``. ``one``: the ``id``, the
    ``type`` and the ``label`` of the letter, as a running server sent them. Servers before version 0.2 do not send the
    ``label``."""
    from antecede.trace.titles import Titles

    named = {"message": one["id"], "notification": one["type"], "label": one.get("label")}
    return shown_name(Titles([named])(one["id"]))


def set_aside(report: Mapping[str, Any], consequence: str) -> list[str]:
    """Return the lines of :func:`unread`, which say how many rows were set aside, and why. If rows were set aside, a
    last line states the consequence."""
    lines = unread(report)
    if not report["complete"]:
        lines.append(f"rows were set aside: {consequence}")
    return lines


def warn_of_unread(report: Mapping[str, Any]) -> None:
    """Warn on standard error if too many rows cannot be read; the report covers only the other rows."""
    from antecede.trace.quarantine import unreadable_rows

    too_many = unreadable_rows(report)
    if too_many is not None:
        print_error(f"warning: {too_many}: the report covers only the other rows")


def unread(report: Mapping[str, Any]) -> list[str]:
    """Return lines about rows that were set aside, and about values that were treated as null. There is one line per
    reason for setting rows aside, with the number of these rows. (For the reason ``index_gap``, the line has the number
    of missing indices.) There is also one line per column with values that were treated as null, with the number of
    these values. If the place of the first such row or value is known, the next line names this place."""
    lines = []
    first = report.get("unread_first", {})
    for reason, count in report["quarantined"].items():
        if reason == "index_gap":
            lines.append(f"  {reason:<19} {counted(count, 'index is|indices are')} missing")
            continue
        lines.append(f"  {reason:<19} {counted(count, 'row')} set aside")
        if reason in first:
            lines.append(f"    first: {shown_name(first[reason])}")
    for column, count in report.get("nulled", {}).items():
        lines.append(f"  {column:<19} {counted(count, 'value')} of a wrong type treated as null")
        if column in report["nulled_first"]:
            lines.append(f"    first: {shown_name(report['nulled_first'][column])}")
    return lines


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 row``, ``2 rows``. If the plural of ``noun`` is not formed with "s" alone,
    ``noun`` has both forms: ``delivery|deliveries``."""
    one, _, many = noun.partition("|")
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def rounded(value: float) -> str:
    """Return a measured value as text with three significant digits. A value of 1,000 or more is rounded to an integer.
    The text never has an exponent."""
    places = max(0, 2 - floor(log10(abs(value)))) if value else 0
    return f"{value:,.{places}f}"


def assumed_rows(report: Mapping[str, Any]) -> list[str]:
    """Return a list of one line with the number of rows whose position in their process was assumed. (The import
    assumes a position if the imported log does not contain it.) Return an empty list if there are no such rows."""
    if not report["assumed"]:
        return []
    rows = counted(sum(report["assumed"].values()), "row at an assumed position|rows at assumed positions")
    return [f"  {rows}: a delivery that is late only because of such rows is undecided"]


def nothing_valid(report: Mapping[str, Any], paths: list[str], sought: str = "delivery") -> str:
    """Return an error message: the trace has no valid row of the kind ``sought``. If no row at all is valid, the
    message also says what the file probably is, or why its rows were set aside."""
    found = f"no valid {sought} among {counted(report['events'], 'event')}"
    if report["events"]:
        return found + _unusable_deliveries(report)
    files = [path for path in paths if os.path.isfile(path)]
    hint = next((text for path in files if (text := _file_kind(path))), None)
    if hint is not None:
        return f"{found} ({hint})"
    aside = ", ".join(f"{count:,} {reason}" for reason, count in report["quarantined"].items())
    place = next(iter(report.get("unread_first", {}).values()), None)
    more = f"; the first is {shown_name(place)}" if place else ""
    log = "; antecede import --map converts other logs" if "missing_field" in report["quarantined"] else ""
    return f"{found} (set aside: {aside}{more}; verify --quarantine DIR keeps them{log})" if aside else found


def exit_code(report: Mapping[str, Any], found: object, what: str, paths: list[str], sought: str = "delivery") -> int:
    """Return 0 if ``found`` is true. Otherwise print an error with the reason, and return 2. The error begins
    with ``nothing could be WHAT``, for example "nothing could be measured"."""
    if found:
        return 0
    print_error(f"nothing could be {what}: {nothing_valid(report, paths, sought)}")
    return 2


def _unusable_deliveries(report: Mapping[str, Any]) -> str:
    """Return a text about the deliveries that were set aside: each reason, with its number of deliveries. The text
    also names some processes to which messages were sent, but which have no rows. If no delivery was set aside, the
    text is empty."""
    from antecede.trace.quarantine import DELIVERIES

    aside = [f"{report['quarantined'][reason]:,} {reason}" for reason in DELIVERIES if reason in report["quarantined"]]
    if not aside:
        return ""
    silent = f"; sends name {silent_names(report)}, which no row has as process" if report.get("silent") else ""
    return f" (set aside: {', '.join(aside)}{silent})"


def silent_names(report: Mapping[str, Any]) -> str:
    """Return the names of some processes to which messages were sent, but which have no rows. If there are more such
    processes, the text ends with "…"."""
    names = ", ".join(map(shown_name, report["silent_first"]))
    return names if len(report["silent_first"]) == report["silent"] else f"{names}, …"


def _file_kind(path: str) -> str | None:
    """Return a message about a file that is not a trace. The message says what kind of file it is, and what to do with
    it. Return None if the kind of file is not known."""
    from antecede.trace.foreign import recognised
    from antecede.trace.sources import shown

    folder, name = os.path.split(path)
    if re.fullmatch(r"segment-\d{12,}\.log|snapshot-\d{20,}\.state", name):
        return f"{shown(path)} is part of a server's log: give the server's directory, {shown(folder or '.')}"
    form = recognised(path)
    if form is not None:
        return f"this is {form}: convert it with: antecede import"
    return _no_lines(path) or _other_table(path)


def _other_table(path: str) -> str | None:
    """Return the error message for a Parquet file that is not a trace. Return None if the file may be a trace: one of
    its columns has the name of a trace column, or its columns are not known."""
    from antecede.trace.foreign import columns_of_parquet
    from antecede.trace.sources import shown

    names = columns_of_parquet(path)
    if names is None or {"process", "index", "kind"} & {name.lower() for name in names}:
        return None
    return (
        f"{shown(path)} is Parquet, but not a trace: it has the columns {', '.join(names[:12])}; "
        "convert it with: antecede import --map"
    )


def _no_lines(path: str) -> str | None:
    from antecede.trace.files import read_jsonl as read
    from antecede.trace.schema import Fault
    from antecede.trace.sources import shown

    if path.lower().endswith(".parquet"):
        return None
    try:
        with open(path, "rb") as stream:
            number, _, first = next(read(stream), (0, b"", None))
    except OSError:
        return None
    if not isinstance(first, Fault) or first.reason != "unreadable_line":
        return None
    return (
        f"{shown(path)} is not JSON Lines: line {number}: {first.detail[:120]}; antecede import converts a log, "
        "lines of text with --pattern; verify --quarantine DIR keeps every such line"
    )
