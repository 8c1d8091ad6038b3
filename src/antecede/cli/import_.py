"""``antecede import``: make a trace of what others recorded."""

import json
import sys
from typing import Annotated, Any

import typer

from antecede.cli.wording import counted

_formats = "auto, shiviz, govector, zipkin, otlp, jaeger, spans, editing"


def register(app: typer.Typer) -> None:
    @app.command("import")
    def import_(
        source: Annotated[
            list[str], typer.Argument(metavar="SRC…", help="Files, directories or patterns; - is standard input.")
        ],
        to: str | None = typer.Option(
            None,
            "--to",
            metavar="OUT",
            help="The trace to write: .jsonl, .jsonl.gz or .parquet; without: look only.",
        ),
        form: str = typer.Option("auto", "--format", help=f"One of {_formats}."),
        pattern: str | None = typer.Option(
            None, "--pattern", metavar="RE", help="For logs: a regular expression with groups event, host, clock."
        ),
        instances: bool = typer.Option(
            False, "--instances", help="Each instance of a service (pod, address) is a process of its own."
        ),
        delimiter: str | None = typer.Option(
            None, "--delimiter", metavar="RE", help="For logs: what separates executions; a group trace names them."
        ),
        execution: str | None = typer.Option(
            None, "--execution", metavar="NAME", help="For logs of several executions: the one to import."
        ),
        as_json: bool = typer.Option(False, "--json", help="One JSON document on standard output."),
    ) -> None:
        """Make a trace of ShiViz or GoVector logs, Zipkin, OpenTelemetry or Jaeger spans, or editing sessions.

        All sources together make one trace; logs of several executions make one for each, numbered: OUT-1, OUT-2 …
        Exit 0: done. 2: nothing could be read.
        """
        report = _convert(source, to, form, pattern, instances, delimiter, execution)
        if as_json:
            print(json.dumps(report, indent=2))
        else:
            print("\n".join(_lines(report)))


def _convert(
    source: list[str],
    to: str | None,
    form: str,
    pattern: str | None,
    instances: bool,
    delimiter: str | None,
    execution: str | None,
) -> dict[str, Any]:
    from antecede.trace.foreign import convert

    if not sys.stderr.isatty():
        return convert(source, to, form, pattern, instances, delimiter, execution)
    from rich.console import Console

    with Console(stderr=True).status("reading") as status:

        def say(text: str) -> None:
            status.update(_shown(text))

        return convert(source, to, form, pattern, instances, delimiter, execution, say)


def _lines(report: dict[str, Any]) -> list[str]:
    lines = []
    for file in report["files"]:
        by = f" by the pattern {file['pattern']}" if file["pattern"] else ""
        lines.append(f"{_shown(file['file'])}: read as {file['format']}{by}, {counted(file['events'], 'event')}")
    lines.append(
        f"{counted(report['events'], 'event')} of {counted(report['processes'], 'process|processes')}, "
        f"{counted(report['messages'], 'message')}"
    )
    for key, said in _remarks.items():
        if report[key]:
            lines.append(f"  {counted(report[key], said)}")
    lines += [f"    {_shown(where)}" for where in report["unreadable_first"]]
    if report["assumed"]:
        rows = counted(sum(report["assumed"].values()), "row")
        lines.append(f"  {rows} at assumed positions: a delivery that is late only because of them is undecided")
    read = {file["format"] for file in report["files"]}
    lines += [f"  {said}" for formats, said in _caveats.items() if read.intersection(formats)]
    for trace in report["executions"] or ():
        where = f", written to {_shown(trace['to'])}" if trace["to"] else ""
        lines.append(f"  execution {_shown(trace['execution'])}: {counted(trace['messages'], 'message')}{where}")
    if report["to"] is None:
        lines.append(f"{counted(report['rows'], 'row')}, not written: give --to")
    else:
        where = "several traces" if report["executions"] else _shown(report["to"])
        lines.append(f"{counted(report['rows'], 'row')} written to {where}")
    return lines


_remarks = {
    "merges": "transaction merges several parents|transactions merge several parents",
    "early_children": "span begins before its parent, by the wall clocks|"
    "spans begin before their parent, by the wall clocks",
    "early_messages": "message is received before it is sent, by the wall clocks|"
    "messages are received before they are sent, by the wall clocks",
    "without_parent": "parent or link leads to a span that is not there|"
    "parents or links lead to a span that is not there",
    "duplicates": "span was recorded again|spans were recorded again",
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
    ): "clocks cannot show a late delivery: verify will check the clocks, and find no order violated",
    ("zipkin", "otlp", "jaeger", "spans"): "a service is taken as one process, in the order of its wall clock",
}
"""What a verdict on such a trace is worth, said before anybody builds on it."""


def _shown(text: str) -> str:
    """Text from outside, safe to show on a terminal."""
    return text if text.isprintable() else repr(text)
