"""``antecede import``: make a trace from the records of other systems."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import typer

from antecede.cli.options import JSON
from antecede.cli.terminal import status
from antecede.cli.wording import assumed_rows, counted, shown_name, shown_text
from antecede.errors import TraceError, UsageError
from antecede.trace import foreign
from antecede.trace.foreign import Mapping, Plan

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
    lines += _mapped_remarks(report)
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


def _mapped_remarks(report: dict[str, Any]) -> Iterator[str]:
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


_formats = (
    "auto, shiviz, govector, zipkin, otlp, jaeger, spans, chrome, temporal, editing, cloudevents. "
    "With a mapping: auto, json, csv, parquet or text"
)


def register(app: typer.Typer) -> None:
    @app.command("import")
    def import_(
        source: Annotated[
            list[str],
            typer.Argument(metavar="SRC", help="Sources: files, directories or patterns; - is standard input."),
        ],
        to: str | None = typer.Option(
            None,
            metavar="OUT",
            help="Trace to write: .jsonl, .jsonl.gz or .parquet. Default: write no trace, only print a report.",
        ),
        form: str = typer.Option("auto", "--format", help=f"Format of the sources: {_formats}."),
        pattern: Annotated[
            list[str] | None,
            typer.Option(
                "--pattern",
                metavar="RE",
                help="For lines of text: regular expression with named groups. In logs with vector clocks, the groups "
                "are event, host and clock. With a mapping, the option may be repeated; the first pattern that matches "
                "is used.",
            ),
        ] = None,
        instances: bool = typer.Option(
            False,
            "--instances",
            help="For spans: each instance of a service (pod or address) becomes a process. Default: each service is "
            "one process.",
        ),
        delimiter: str | None = typer.Option(
            None,
            metavar="RE",
            help="For logs with vector clocks: regular expression for the lines between executions. If it has a group "
            "named trace, the text of this group becomes the name of the next execution.",
        ),
        execution: str | None = typer.Option(None, metavar="NAME", help="Import only this execution."),
        pairs: Annotated[
            list[str] | None,
            typer.Option(
                "--map",
                metavar="NAME=PATH,…",
                help="For each of 'process', 'kind', 'message', 'to' and 'time': the path of its field in a record, "
                "such as message=event.id.",
            ),
        ] = None,
        file_pattern: str | None = typer.Option(
            None,
            metavar="RE",
            help=r"With a mapping: regular expression with named groups for the path of each file, such as "
            r"(?P<process>\w+).log",
        ),
        send: str | None = typer.Option(
            None, metavar="RE", help="Regular expression for the kinds of records that are sends."
        ),
        deliver: str | None = typer.Option(
            None, metavar="RE", help="Regular expression for the kinds of records that are deliveries."
        ),
        index: str | None = typer.Option(
            None,
            metavar="file|time|PATH",
            help="Order of a process's events: by line (file), by time, or by the number in the field PATH of a "
            "record.",
        ),
        separator: str | None = typer.Option(
            None, metavar="TEXT", help="Text between the names in 'to'. Default: a comma."
        ),
        others: str | None = typer.Option(
            None,
            metavar="local|skip",
            help="Treatment of records that are neither sends nor deliveries. local: they become local events. skip: "
            "they are left out. Default: local.",
        ),
        clock: str | None = typer.Option(
            None, "--time", metavar="FORM", help="Format of times: ns, us, ms, s, or a format such as %d.%m.%Y."
        ),
        mapping: str | None = typer.Option(
            None, metavar="FILE", help="Read the mapping from this TOML file. Other options override the file."
        ),
        save_mapping: str | None = typer.Option(
            None, metavar="FILE", help="Save the mapping in this file, for --mapping."
        ),
        preview: bool = typer.Option(
            False,
            "--preview",
            help="With a mapping: show the first events and the unmatched lines; write nothing.",
        ),
        skip_unknown: bool = typer.Option(
            False, "--skip-unknown", help="For folders: leave out files of unknown format, and list these files."
        ),
        as_json: bool = JSON,
    ) -> None:
        """Make a trace from logs and spans of other systems.

        Known formats: logs with vector clocks (shiviz, govector), spans (zipkin, otlp, jaeger), tables of spans as CSV
        or Parquet (spans), flow events of Chrome and Perfetto (chrome), histories of Temporal (temporal), recorded
        sessions of people who edit one text (editing), CloudEvents with causationid (cloudevents).

        Any other log needs a mapping. The mapping says where a record has the process, the kind, the message, the
        destinations (to) and the time of an event. For JSON, CSV and Parquet, give the mapping with --map. For lines of
        text, give the mapping as named groups of --pattern. The options --send and --deliver choose the kinds of
        records that are sends and deliveries. The option --save-mapping saves the mapping in a file, and --mapping
        reads this file.

        All sources together make one trace. There is one exception: each execution in a log with vector clocks becomes
        a separate trace, such as run-1.jsonl and run-2.jsonl.

        Exit codes:
        0: The sources were read.
        2: Nothing could be read.
        """
        with _old_trace_named(None if preview else to), status("reading") as show_status:

            def report_status(text: str) -> None:
                show_status(shown_text(text))

            given = {"send": send, "deliver": deliver, "index": index, "others": others, "time": clock}
            given |= {"file_pattern": file_pattern, "separator": separator}
            if pairs or mapping is not None or any(value is not None for value in given.values()):
                if instances:
                    raise UsageError(
                        "--instances is for spans; a mapping names the process of each record: remove --instances"
                    )
                if delimiter is not None or execution is not None:
                    raise UsageError("--delimiter and --execution are for logs with vector clocks, not for mappings")
                chosen = _mapping(mapping, pairs, given | {"format": form if form != "auto" else None}, pattern)
                if save_mapping is not None:
                    # A mapping that cannot be used is not saved.
                    Plan(chosen)
                    foreign.write_mapping(chosen, save_mapping)
                report = foreign.convert_mapped(source, chosen, to, preview, report_status)
                lines = mapped_lines(report, preview)
            else:
                if preview or save_mapping is not None:
                    raise UsageError(
                        "--preview and --save-mapping are for mappings: give --mapping FILE, or --send, --deliver and "
                        "--map (for lines of text --pattern instead of --map)"
                    )
                if len(pattern or ()) > 1:
                    raise UsageError(
                        "--pattern may be repeated only in a mapping: add --send and --deliver, or --mapping FILE; "
                        "otherwise give --pattern once"
                    )
                one = pattern[0] if pattern else None
                report = foreign.convert(
                    source, to, form, one, instances, delimiter, execution, report_status, skip_unknown=skip_unknown
                )
                lines = _lines(report)
        print(json.dumps(report, indent=2) if as_json else "\n".join(lines))
        if preview and report["advice"] is not None:
            raise TraceError(report["advice"])


@contextmanager
def _old_trace_named(to: str | None) -> Iterator[None]:
    """Add a hint to an error that is raised inside the context, if the output file exists. The hint says that the
    import did not write this file, so the file still has its earlier content. Without this hint, the user might think
    that the old trace is the new one."""
    try:
        yield
    except (TraceError, UsageError) as error:
        if to is None or not os.path.exists(to):
            raise
        raise type(error)(f"{error}; {shown_text(to)} was not written and still has its earlier content") from None


def _mapping(
    path: str | None, pairs: list[str] | None, given: dict[str, str | None], pattern: list[str] | None
) -> Mapping:
    """Return the mapping for the import. If the file ``path`` is given, read the mapping from this file. Settings that
    are given as options override the settings in the file."""
    kept = foreign.read_mapping(path) if path is not None else Mapping()
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if pattern:
        changes["pattern"] = pattern
    if pairs:
        changes["map"] = kept.map | foreign.pairs_of(pairs)
    return msgspec.structs.replace(kept, **changes)


def _lines(report: dict[str, Any]) -> list[str]:
    lines = []
    for file in report["files"]:
        by = f" by the pattern {file['pattern']}" if file["pattern"] else ""
        lines.append(f"{shown_text(file['file'])}: read as {file['format']}{by}, {counted(file['events'], 'event')}")
    lines.append(
        f"{counted(report['events'], 'event')} of {counted(report['processes'], 'process|processes')}, "
        f"{counted(report['messages'], 'message')}"
    )
    for key, wording in _remarks.items():
        if report[key]:
            lines.append(f"  {counted(report[key], wording)}")
    lines += [f"    {shown_text(where)}" for where in report["unreadable_first"]]
    lines += assumed_rows(report)
    if report["skipped"]:
        lines.append(f"  {counted(len(report['skipped']), 'file')} left out:")
        lines += [f"    {shown_text(why)}" for why in report["skipped"]]
    read = {file["format"] for file in report["files"]}
    lines += [f"  {wording}" for formats, wording in _caveats.items() if read.intersection(formats)]
    for trace in report["executions"] or ():
        where = f", written to {shown_text(trace['to'])}" if trace["to"] else ""
        lines.append(f"  execution {shown_text(trace['execution'])}: {counted(trace['messages'], 'message')}{where}")
    if report["to"] is None:
        lines.append(f"{counted(report['rows'], 'row')}, not written: give --to")
    else:
        where = counted(len(report["executions"]), "trace") if report["executions"] else shown_text(report["to"])
        lines.append(f"{counted(report['rows'], 'row')} written to {where}")
    return lines


_remarks = {
    "merges": "transaction merges several parents|transactions merge several parents",
    "early_children": "span begins before its parent, by the wall clocks|"
    "spans begin before their parent, by the wall clocks",
    "early_messages": "message is received before it is sent, by the wall clocks|"
    "messages are received before they are sent, by the wall clocks",
    "without_parent": "parent, link or cause is not there|parents, links or causes are not there",
    "duplicates": "span or event was recorded again|spans or events were recorded again",
    "unlogged": "clock entry names an event that is not logged|clock entries name an event that is not logged",
    "before_send": "message of a process to itself is received before it is sent: verify will set it aside|"
    "messages of a process to itself are received before they are sent: verify will set them aside",
    "cycle": "delivery lies on a cycle with its send: verify will set it aside|"
    "deliveries lie on a cycle with their send: verify will set them aside",
    "unreadable": "line or span could not be read:|lines or spans could not be read; the first:",
}

_caveats = {
    (
        "shiviz",
        "govector",
    ): "vector clocks cannot show a late delivery: verify will check the clocks, and find no violation",
    ("editing",): "an editing session cannot show a late delivery: verify will find no violation",
    ("cloudevents",): "when a cause was delivered is not recorded: it is placed before its first effect, and assumed",
    ("zipkin", "otlp", "jaeger", "spans"): "a service counts as one process, in the order of its wall clock",
}
"""Warnings for the report of an import. Each key contains the formats to which the warning applies. A warning says why
``antecede verify`` cannot find all violations in a trace from these formats, or which assumptions the import made."""
