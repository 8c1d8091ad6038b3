"""``antecede export``: write a trace in the format of a viewer."""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import typer

from antecede.cli.engines import trace_inputs
from antecede.cli.options import PROCESSES, SINCE, TRACES, UNTIL
from antecede.cli.terminal import status, write_whole
from antecede.cli.verify import cut_of
from antecede.cli.wording import counted
from antecede.crashes import print_error
from antecede.errors import UsageError
from antecede.trace.exporting import FORMATS, View, view_of

_next = {
    "perfetto": "open it at ui.perfetto.dev, or in chrome://tracing",
    "otlp": "load it in Jaeger's search page (JSON File), or send it to a collector: POST /v1/traces",
    "shiviz": "open it in ShiViz; its first line is the expression that ShiViz needs",
    "dot": "draw it: dot -Tsvg {} -o trace.svg",
    "mermaid": "put it into a ```mermaid block of a Markdown file",
}


def register(app: typer.Typer) -> None:
    @app.command()
    def export(
        trace: list[str] = TRACES,
        to: str = typer.Option(..., metavar="FORMAT", help=f"Format to write: {', '.join(FORMATS)}."),
        output: str = typer.Option("-", "--output", "-o", metavar="FILE", help="File to write; - is standard output."),
        since: str | None = SINCE,
        until: str | None = UNTIL,
        processes: str | None = PROCESSES,
        logical: bool = typer.Option(
            False, "--logical", help="Ignore recorded times, and let each event take one millisecond."
        ),
        as_json: bool = typer.Option(False, "--json", help="Print one JSON document. This option needs -o FILE."),
    ) -> None:
        """Write a trace in the format of a viewer, such as Perfetto or Graphviz. Late deliveries are marked.

        These are the formats:
        perfetto: a timeline with arrows, for ui.perfetto.dev and chrome://tracing
        otlp: spans of OpenTelemetry, for collectors, Jaeger and Tempo
        shiviz: a log with vector clocks, for ShiViz and GoVector's tools
        dot: a graph, for Graphviz
        mermaid: a sequence diagram, for GitHub, GitLab and wikis

        Exit codes:
        0: The trace was written.
        2: Nothing could be read, or the trace has more events than the viewer can show.
        """
        if to not in FORMATS:
            raise UsageError(f"--to must be one of {', '.join(FORMATS)}, not {to!r}")
        if as_json and output == "-":
            raise UsageError(
                "--json needs -o FILE: otherwise the trace and the JSON document would both be on standard output"
            )
        cut = cut_of(since, until, processes)
        with trace_inputs(trace) as paths, status("reading the trace"):
            view = view_of(paths, to, cut.keeps if cut else None, logical)
            pieces = FORMATS[to](view)
            if output == "-":
                sys.stdout.writelines(pieces)
            else:
                write_whole(output, pieces)
        _warn(view)
        if output != "-":
            report = _report(view, to, output)
            print(json.dumps(report, indent=2) if as_json else "\n".join(_lines(report)))


def _warn(view: View) -> None:
    aside = {reason: count for reason, count in view.aside.items() if count and reason != "index_gap"}
    if aside:
        print_error(f"warning: {counted(sum(aside.values()), 'row was|rows were')} set aside ({', '.join(aside)})")
    back = view.backwards()
    if back:
        print_error(
            f"warning: by the recorded times {counted(back, 'message arrives|messages arrive')} before being sent: "
            "the clocks differ; --logical avoids this"
        )


def _report(view: View, to: str, output: str) -> dict[str, Any]:
    return {
        "format": to,
        "to": output,
        "bytes": os.path.getsize(output),
        "processes": len(view.trace.names),
        "events": view.events,
        "messages": len(view.trace.sends),
        "deliveries": view.trace.deliveries,
        "late": len(view.late),
        "times": "recorded" if view.recorded else "logical",
        "backwards": view.backwards(),
        "quarantined": {reason: count for reason, count in view.aside.items() if count},
    }


def _lines(report: dict[str, Any]) -> Iterator[str]:
    late = f", {counted(report['late'], 'of them late|of them late')}" if report["late"] else ""
    yield (
        f"{report['to']}: {counted(report['events'], 'event')} of {counted(report['processes'], 'process|processes')}, "
        f"{counted(report['messages'], 'message')}, {counted(report['deliveries'], 'delivery|deliveries')}{late}; "
        f"{report['times']} times"
    )
    yield _next[report["format"]].format(report["to"])
