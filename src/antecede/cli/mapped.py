"""The report of ``antecede import --map``: counts, the first events, and the lines that did not match."""

from collections.abc import Iterator
from typing import Any

from antecede.cli.wording import assumed_rows, counted, shown_name, shown_text

_reasons = {
    "no_match": "line matches no pattern: skipped|lines match no pattern: skipped",
    "no_process": "record names no process: skipped|records name no process: skipped",
    "no_index": "record has no place in the order: skipped|records have no place in the order: skipped",
    "no_message": "send or delivery without a message id: local|sends and deliveries without a message id: local",
    "no_to": "send without destinations: unknown|sends without destinations: unknown",
    "bad_time": "time could not be read: left out|times could not be read: left out",
    "others": "record is neither a send nor a delivery: skipped|records are neither sends nor deliveries: skipped",
}


def mapped_lines(report: dict[str, Any], preview: bool) -> list[str]:
    """Return the report of an import as lines of text. ``preview``: also list the first events and the kinds of
    records."""
    lines = [
        f"{shown_text(f['file'])}: read as {f['format']}, {counted(f['events'], 'event')}" for f in report["files"]
    ]
    lines.append(
        f"{counted(report['records'], 'record')}: {counted(report['sends'], 'send')}, "
        f"{counted(report['deliveries'], 'delivery|deliveries')} ({_matched(report)}), "
        f"{counted(report['locals'], 'local event')}; {counted(report['processes'], 'process|processes')}"
    )
    lines += _remarks(report)
    if preview:
        lines += ["first events:", *_first(report["preview"])]
        kinds = list(_kinds(report["kinds"]))
        lines += ["kinds:", *kinds] if kinds else []
    elif report["advice"] is not None:
        lines.append(f"  {shown_text(report['advice'])}")
    if preview:
        lines.append("a preview: nothing written")
    elif report["to"] is None:
        lines.append(f"{counted(report['events'], 'row')}, not written: give --to")
    else:
        lines.append(f"{counted(report['events'], 'row')} written to {shown_text(report['to'])}")
    return lines


def _matched(report: dict[str, Any]) -> str:
    """Say how many of the deliveries have a recorded send."""
    if report["deliveries"] == 1:
        return "with a recorded send" if report["matched"] else "without a recorded send"
    return f"{report['matched']:,} of them with a recorded send"


def _remarks(report: dict[str, Any]) -> Iterator[str]:
    for reason, count in report["skipped"].items():
        yield f"  {counted(count, _reasons[reason])}"
        yield from (f"    {shown_text(place)}" for place in report["skipped_first"][reason])
        if reason == "bad_time":
            yield "    give their format, such as --time '%d/%b/%Y %H:%M:%S.%f'"
    if report["sends"] and report["skipped"].get("no_to") == report["sends"]:
        fields = shown_text(", ".join(report["fields"]))
        yield f"  no send has the field that is mapped to the column to; fields: {fields}"
    yield from _lost(report)
    if report["sent_again"]:
        wording = "id is|ids are"
        yield (
            f"  {counted(report['sent_again'], wording)} sent more than once: verify will set these messages aside; "
            "make the id unique with more fields, such as message='{topic}-{offset}'"
        )
    if report["tied"]:
        wording = counted(report["tied"], "event has the|events have the")
        yield f"  {wording} same position (--index) as the previous one: kept in the order of the lines"
    yield from assumed_rows(report)
    if report["unreadable"]:
        yield f"  {counted(report['unreadable'], 'line')} could not be read:"
        yield from (f"    {shown_text(place)}" for place in report["unreadable_first"])


def _lost(report: dict[str, Any]) -> Iterator[str]:
    """Yield warnings about two kinds of deliveries that ``antecede verify`` will not check: deliveries without a send,
    and deliveries at a process that is not a destination of the send. If the names in a field "to" seem to have a
    separator that the import does not use, also yield a hint."""
    if report["orphans"] and report["matched"]:
        wording = "delivery has no send|deliveries have no send"
        yield f"  {counted(report['orphans'], wording)}: not checked by verify; is a file missing? The first:"
        yield from (f"    {shown_text(place)}" for place in report["orphans_first"])
    if report["not_addressed"]:
        wording = "delivery is|deliveries are"
        yield (
            f"  {counted(report['not_addressed'], wording)} at a process that the send does not name: "
            "not checked by verify. The first:"
        )
        yield from (f"    {shown_text(place)}" for place in report["not_addressed_first"])
        for name, sends in report["unknown_to"].items():
            yield f"    {counted(sends, 'send names|sends name')} {name!r}, and no record is a delivery there"
    if report["separator"] is not None:
        separator = report["separator"]
        yield f"  names in 'to' seem to be separated by {separator!r}: give --separator '{separator}'"


def _first(events: list[dict[str, Any]]) -> Iterator[str]:
    rows = [
        (
            shown_text(event["at"]),
            shown_name(event["process"]),
            event["kind"],
            "" if event["message"] is None else shown_name(event["message"]),
            "" if event["to"] is None else "to " + ",".join(map(shown_name, event["to"])),
            "" if event["time"] is None else str(event["time"]),
        )
        for event in events
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(6)] if rows else []
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _kinds(kinds: dict[str, dict[str, int]]) -> Iterator[str]:
    for kind, counts in kinds.items():
        for value, count in counts.items():
            label = kind if kind != "local" else "neither"
            yield f"  {label:<7} {counted(count, 'record')}: {shown_name(value) if value else 'no kind'}"
