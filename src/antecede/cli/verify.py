"""``antecede verify``: was order kept in this recorded trace, and where did it break first?"""

import json
import sys
from typing import Annotated, Any

import typer

from antecede.errors import UsageError

_orders = ("fifo", "causal", "total", "synchronous", "significant")
_engines = ("auto", "plain", "spark")


def register(app: typer.Typer) -> None:
    @app.command()
    def verify(
        trace: Annotated[
            list[str], typer.Argument(metavar="TRACE…", help="Files, directories or patterns; - is standard input.")
        ],
        order: str = typer.Option("fifo,causal", "--order", help=f"Which orders to judge: {', '.join(_orders)}."),
        engine: str = typer.Option("auto", "--engine", help="auto, plain (this process) or spark."),
        master: str | None = typer.Option(None, "--master", metavar="URL", help="The Spark master."),
        quarantine: str | None = typer.Option(
            None, "--quarantine", metavar="DIR", help="Write the rows that were set aside to DIR/quarantine.jsonl."
        ),
        late: str | None = typer.Option(
            None, "--late", metavar="DIR", help="Write every late delivery to DIR/late.jsonl."
        ),
        strict: bool = typer.Option(False, "--strict", help="Also exit 1 on a row set aside or an undelivered copy."),
        as_json: bool = typer.Option(False, "--json", help="One JSON document on standard output."),
    ) -> int:
        """Judge whether a recorded trace keeps FIFO, causal, total or synchronous order.

        Exit 0: every order asked for holds. 1: one is violated. 2: nothing could be judged.
        """
        asked = _asked(order)
        if engine not in _engines:
            raise UsageError(f"--engine must be one of {', '.join(_engines)}, not {engine!r}")
        if engine == "spark" or (engine == "auto" and master is not None):
            raise UsageError("the spark engine arrives with the pipeline; use --engine plain")
        if master is not None:
            raise UsageError("--master is for --engine spark")
        report = _judge(trace, asked, quarantine, late)
        if as_json:
            print(json.dumps(report, indent=2))
        else:
            print("\n".join(_lines(report)))
        return _exit_code(report, strict, trace)


def _asked(order: str) -> tuple[str, ...]:
    asked = [name.strip() for name in order.split(",")]
    for name in asked:
        if name not in _orders:
            raise UsageError(f"--order: {name!r} is none of {', '.join(_orders)}")
    return tuple(dict.fromkeys(asked))


def _judge(paths: list[str], orders: tuple[str, ...], quarantine: str | None, late: str | None) -> dict[str, Any]:
    from antecede.trace import verify

    if not sys.stderr.isatty():
        return verify(paths, orders, quarantine, late)
    from rich.console import Console

    with Console(stderr=True).status("reading and judging the trace"):
        return verify(paths, orders, quarantine, late)


def _exit_code(report: dict[str, Any], strict: bool, paths: list[str]) -> int:
    if not report["deliveries"]:
        found = f"no valid delivery among {report['events']} events{_hint(report, paths)}"
        print(f"antecede: nothing could be judged: {found}", file=sys.stderr)
        return 2
    if any(entry["holds"] is False for entry in report["orders"].values()):
        return 1
    return 1 if strict and (not report["complete"] or report["undelivered"]) else 0


def _hint(report: dict[str, Any], paths: list[str]) -> str:
    """What to do with a file that is none of our traces, if we know what it is."""
    from antecede.trace.foreign import recognised

    if report["events"]:
        return ""
    found = next((form for path in paths if path != "-" and (form := recognised(path))), None)
    return f" (this is {found}: make it a trace with antecede import)" if found else ""


def _lines(report: dict[str, Any]) -> list[str]:
    silent = f" (and {report['silent']} silent)" if report["silent"] else ""
    lines = [
        f"{report['events']:,} events of {report['processes']:,} processes{silent}: {report['messages']:,} messages, "
        f"{report['deliveries']:,} deliveries, {report['undelivered']:,} copies undelivered"
    ]
    for reason, count in report["quarantined"].items():
        if reason == "index_gap":
            lines.append(f"  index_gap           {count:,} indices are missing")
        else:
            lines.append(f"  {reason:<19} {count:,} rows set aside")
    for order, entry in report["orders"].items():
        lines.append(f"{order:<12} {_said(entry)}")
        lines += _evidence(entry)
    for name in ("clocks", "lamport"):
        checked, disagree = report[name]["checked"], report[name]["disagree"]
        if checked:
            lines.append(f"{name:<12} {checked:,} checked, {disagree:,} disagree with the events")
    if not report["complete"]:
        lines.append("rows were set aside: every violation is real, but there may be more")
    lines.append(f"{report['seconds']} s, {report['events_per_second']:,} events/s, engine {report['engine']}")
    return lines


def _said(entry: dict[str, Any]) -> str:
    if entry["holds"] is None:
        return "not judged: no delivery"
    if entry["holds"]:
        return "holds"
    return f"violated: {entry['late']:,} late deliveries" if "late" in entry else "violated"


def _evidence(entry: dict[str, Any]) -> list[str]:
    first = entry.get("first")
    if first:
        message, source, target, other = map(
            _name, (first["message"], first["from"], first["to"], first["overtaken_by"])
        )
        return [
            f"  first: {target} at index {first['deliver_index']} delivers {message}, which {source} sent at index "
            f"{first['send_index']},",
            f"  after it delivered {other}, whose send came after that one",
        ]
    circle = entry.get("cycle") or entry.get("crown")
    if not circle:
        return []
    shown = [_name(message) for message in circle[:8]]
    more = f" … ({len(circle)} messages)" if len(circle) > 8 else ""
    lines = [f"  cycle: {' before '.join(shown)}{more} before {shown[0]}"]
    if "pairwise" in entry:
        agree = "no two processes disagree on a pair" if entry["pairwise"] else "two processes disagree on a pair"
        lines.append(f"  {agree}")
    return lines


def _name(text: str) -> str:
    """A name from a trace, safe to show on a terminal."""
    return text if text.isprintable() and text else repr(text)
