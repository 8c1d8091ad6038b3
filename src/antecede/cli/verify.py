"""``antecede verify``: checks whether a recorded trace keeps an order, and shows where the order was first broken."""

import json
import os
import sys
import tempfile
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from typing import Any

import typer

from antecede.cli.engines import ORDERS, asked_orders, chosen_engine, spark_settings, trace_inputs
from antecede.cli.options import CONF, CONFLICTS, ENGINE, JSON, MASTER, PROCESSES, SINCE, TRACES, UNTIL
from antecede.cli.terminal import status, tell
from antecede.cli.wording import counted, exit_code, shown_name, silent_names, unread
from antecede.crashes import discard_output, print_error
from antecede.errors import TraceError, UsageError
from antecede.trace.conflicts import read_conflicts
from antecede.trace.quarantine import DELIVERIES, unreadable_rows
from antecede.trace.sources import Cut, shown, trace_files
from antecede.trace.titles import Titles, named

_cycle_shown = 8
"""The largest number of messages to print for one cycle. The other messages of a longer cycle are left out."""
_ways = ("auto", "walk", "chunks")


def register(app: typer.Typer) -> None:
    @app.command()
    def verify(
        trace: list[str] = TRACES,
        order: str = typer.Option("fifo,causal", help=f"Orders to check, separated by commas: {', '.join(ORDERS)}."),
        engine: str = ENGINE,
        master: str | None = MASTER,
        quarantine: str | None = typer.Option(
            None,
            metavar="DIR",
            help="Rows that are certainly wrong are set aside. Write these rows to DIR/quarantine.jsonl.",
        ),
        late: str | None = typer.Option(None, metavar="DIR", help="Write every late delivery to DIR/late.parquet."),
        conflicts: str | None = CONFLICTS,
        conf: list[str] | None = CONF,
        since: str | None = SINCE,
        until: str | None = UNTIL,
        processes: str | None = PROCESSES,
        causal: str = typer.Option(
            "auto", help="How Spark checks FIFO and causal order: walk (one task), chunks (many tasks) or auto."
        ),
        everywhere: bool = typer.Option(
            False,
            "--everywhere",
            help="Check the orders also where the topology did not guarantee them.",
        ),
        dry_run: bool = typer.Option(
            False, "--dry-run", help="Only print which files would be read, and by which engine."
        ),
        strict: bool = typer.Option(
            False,
            "--strict",
            help="Exit with code 1 also if a row was set aside, a message was not delivered to one of its "
            "destinations, or a recorded vector clock is wrong.",
        ),
        lenient: bool = typer.Option(
            False,
            "--lenient",
            help="Exit with code 0, not 2, if no order is violated but more than one row in ten cannot be read.",
        ),
        as_json: bool = JSON,
    ) -> int:
        """Check whether a recorded trace keeps FIFO, causal, total, synchronous or significant order.

        Total order: all processes deliver messages in one common sequence. Synchronous order: the same run would be
        possible if messages took no time. Significant order covers only conflicting operations of objects. The check of
        this order needs rows with the columns "instance" and "operation", and a table of conflicts. The table is in the
        trace's metadata, or in the file that you give with --conflicts. This file has the form
        {"OBJECT or *": [["operation", "operation"], …]}.

        The topology (the servers and their domains) may change during a recording. Then FIFO and causal order are
        checked only in those parts and periods of the trace in which the topology guaranteed them. The option
        --everywhere checks the whole trace.

        Exit codes:
        0: Every requested order holds.
        1: A requested order is violated.
        2: Nothing could be checked. Or no order is violated, but more than one row in ten cannot be read. With
        --lenient, this second case has exit code 0.
        """
        asked = asked_orders(order)
        settings = spark_settings(conf)
        if causal not in _ways:
            raise UsageError(f"--causal must be one of {', '.join(_ways)}, not {causal!r}")
        table = read_conflicts(conflicts) if conflicts is not None else None
        with trace_inputs(trace) as paths:
            chosen = chosen_engine(engine, master, conf, paths)
            cut = cut_of(since, until, processes)
            if dry_run:
                return _dry_run(paths, chosen, as_json)
            for option, folder in (("--quarantine", quarantine), ("--late", late)):
                if folder is not None:
                    _check_writable(option, folder)
            if cut:
                missed = "violations that depend on rows outside are missed"
                if "significant" in asked:
                    missed += ", and significant order may show some that the whole trace does not have"
                print(f"antecede: the trace is cut: {missed}", file=sys.stderr)
            with status("reading and judging the trace") as report_status:
                if chosen == "spark":
                    from antecede.pipeline import verify_files

                    report = verify_files(
                        paths, asked, master=master, conf=settings, quarantine=quarantine, late=late, cut=cut,
                        causal=causal, conflicts=table, everywhere=everywhere, report_status=report_status,
                    )  # fmt: skip
                else:
                    from antecede.pipeline import missing
                    from antecede.trace import verify as verify_here

                    keeps = cut.keeps if cut else None
                    report = verify_here(paths, asked, quarantine, late, keeps, table, everywhere)
                    if late is not None and not {"numba", "numpy", "pyarrow"} & set(missing()):
                        import_module("antecede.pipeline.judge.files").late_to_parquet(late)
            if cut:
                report["cut"] = {"since": cut.since, "until": cut.until, "processes": cut.processes}
            report["named"] = named(_evident(report), paths)
            # Without any event there is nothing to report; one line says so.
            if as_json or report["events"]:
                try:
                    tell(report, as_json, partial(_lines, lenient=lenient))
                    sys.stdout.flush()
                except BrokenPipeError:
                    # A reader of only its beginning (``| head -1``) still gets the verdict as exit code.
                    discard_output()
            return _exit_code(report, strict, lenient, paths)


def _check_writable(option: str, folder: str) -> None:
    """Check that files can be written to a folder, so that a long run does not fail at its end."""
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"{option} {shown(folder)}: cannot be written to: {error.strerror}") from None


def cut_of(since: str | None, until: str | None, processes: str | None) -> Cut:
    """Return the part of a trace that the options --since, --until and --processes select."""
    names = tuple(one for one in processes.split(",") if one) if processes is not None else None
    if names == ():
        raise UsageError("--processes: expected names separated by commas")
    return Cut(_time("--since", since), _time("--until", until), names)


def _time(option: str, text: str | None) -> int | None:
    """Convert the value of an option to nanoseconds since 1970. ``text``: a date and time in ISO 8601 (UTC by default),
    or the number of nanoseconds itself. If ``text`` is None, return None."""
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{option}: expected nanoseconds or a time such as 2026-01-31T12:00:00, not {text!r}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since_epoch = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since_epoch.days * 86_400 + since_epoch.seconds) * 10**9 + since_epoch.microseconds * 1_000


def _dry_run(paths: list[str], engine: str, as_json: bool) -> int:
    rows: dict[str, int | None] = {}
    for path in trace_files([path for path in paths if "://" not in path])[0] if paths else []:
        rows[path] = _rows_of(path)
    listed = [
        {"file": shown(path), "bytes": os.path.getsize(path) if path != "-" else None, "rows": count}
        for path, count in rows.items()
    ]
    listed += [{"file": path, "bytes": None, "rows": None} for path in paths if "://" in path]
    known = [count for count in rows.values() if count is not None]
    report = {"engine": engine, "files": listed, "rows": sum(known) if len(known) == len(listed) else None}
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        for one in listed:
            size = "?" if one["bytes"] is None else f"{one['bytes']:,}"
            count = "rows unknown before reading" if one["rows"] is None else counted(int(one["rows"]), "row")
            print(f"{one['file']}: {size} {'byte' if size == '1' else 'bytes'}, {count}")
        print(f"engine {engine}")
    return 0


def _rows_of(path: str) -> int | None:
    """Return the number of rows that a Parquet file states in its metadata; None for other files."""
    if not path.lower().endswith(".parquet"):
        return None
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        raise TraceError(f"{shown(path)}: Parquet needs pyarrow: install antecede[spark]") from None
    try:
        return int(parquet.read_metadata(path).num_rows)
    except (OSError, ValueError) as error:
        raise TraceError(f"{shown(path)}: not a readable Parquet file: {str(error).splitlines()[0][:200]}") from None


def _exit_code(report: dict[str, Any], strict: bool, lenient: bool, paths: list[str]) -> int:
    if exit_code(report, report["deliveries"], "checked", paths):
        return 2
    if any(entry["holds"] is False for entry in report["orders"].values()):
        return 1
    if strict and (not report["complete"] or report["undelivered"] or report["clocks"]["disagree"]):
        return 1
    if lenient or report["readable"]:
        return 0
    hint = "--lenient checks the other rows, --quarantine DIR lists these"
    print_error(f"no verdict: {unreadable_rows(report)} ({hint})")
    return 2


def _lines(report: dict[str, Any], lenient: bool) -> list[str]:
    doubtful = not report["readable"] and not lenient
    silent = f" (and {report['silent']:,} silent: {silent_names(report)})" if report["silent"] else ""
    lines = [
        f"{counted(report['events'], 'event')} of {counted(report['processes'], 'process|processes')}{silent}: "
        f"{counted(report['messages'], 'message')}, {counted(report['deliveries'], 'delivery|deliveries')}, "
        f"{counted(report['undelivered'], 'copy|copies')} undelivered"
    ]
    lines += unread(report)
    titles = Titles(report["named"])
    for order, entry in report["orders"].items():
        lines.append(f"{order:<12} {_verdict_text(entry, doubtful)}")
        lines += _evidence(entry, titles)
        if entry.get("undecided"):
            late = (
                counted(entry["undecided"], "more delivery is|more deliveries are")
                if entry["late"]
                else counted(entry["undecided"], "delivery is|deliveries are")
            )
            lines.append(f"  undecided: {late} late only if assumed positions are right")
        if entry.get("unlisted"):
            named = ", ".join(map(shown_name, entry["unlisted"][:8]))
            lines.append(f"  not in the conflict table, so treated as compatible with all: {named}")
    lines += _epochs(report)
    for name in ("clocks", "lamport"):
        checked, disagree = report[name]["checked"], report[name]["disagree"]
        if checked:
            found = counted(disagree, "disagrees|disagree")
            lines.append(f"{name:<12} {checked:,} checked, {found} with the events")
    if not report["complete"]:
        lines.append(f"{_unchecked(report)}: every violation is real, but there may be more")
        if not doubtful and any(entry["holds"] for entry in report["orders"].values()):
            others = "delivery" if report["deliveries"] == 1 else f"{report['deliveries']:,} deliveries"
            lines.append(f'  "holds" covers only the other {others}')
    lines.append(f"{_speed(report)}engine {report['engine']}")
    return lines


def _unchecked(report: dict[str, Any]) -> str:
    """Return a text with the number of deliveries that were set aside, and the number of other rows set aside."""
    aside = {reason: count for reason, count in report["quarantined"].items() if reason != "index_gap"}
    deliveries = sum(count for reason, count in aside.items() if reason in DELIVERIES)
    others = sum(aside.values()) - deliveries
    if not deliveries:
        return f"{counted(others, 'row was|rows were')} set aside"
    more = f", and {counted(others, 'other row')}" if others else ""
    total = counted(deliveries + report["deliveries"], "delivery|deliveries")
    return f"{deliveries:,} of {total} {'was' if deliveries == 1 else 'were'} not checked{more}"


def _speed(report: dict[str, Any]) -> str:
    """Return the duration and the speed as text. Return an empty text if the run was too short to measure."""
    return f"{report['seconds']} s, {report['events_per_second']:,} events/s, " if report["seconds"] else ""


def _verdict_text(entry: dict[str, Any], doubtful: bool) -> str:
    if entry["holds"] is None:
        return "not judged: no delivery"
    if entry["holds"]:
        holds = "holds where it was guaranteed" if entry.get("not_guaranteed") else "holds"
        return "not judged: too many rows cannot be read" if doubtful else holds
    if "late" not in entry:
        return "violated"
    return "violated: 1 late delivery" if entry["late"] == 1 else f"violated: {entry['late']:,} late deliveries"


def _epochs(report: dict[str, Any]) -> list[str]:
    """Return one line for each epoch (the time from one change of the topology to the next). If the trace has
    only one epoch, return no line. Exception: return its line if deliveries violate an order that the topology did not
    guarantee."""
    epochs = report.get("epochs", ())
    lines = []
    for one in epochs:
        found = []
        for order, counts in one["orders"].items():
            if counts["late"]:
                found.append(f"{counted(counts['late'], 'delivery|deliveries')} late under {order} order")
            if counts["not_guaranteed"]:
                others = counted(counts["not_guaranteed"], "delivery|deliveries")
                found.append(f"{others} late under {order} order, which was not guaranteed")
        if len(epochs) > 1 or any(counts["not_guaranteed"] for counts in one["orders"].values()):
            place = f"epoch {one['change']}"
            lines.append(f"{place:<12} guarantee {one['guarantee']}: {'; '.join(found) or 'kept'}")
    return lines


def _evident(report: dict[str, Any]) -> set[str]:
    """Return the ids of the messages that the printed report names."""
    found: set[str] = set()
    for entry in report["orders"].values():
        first = entry.get("first")
        found |= {first["message"], first["overtaken_by"]} if first else set()
        found |= set((entry.get("cycle") or entry.get("crown") or [])[:_cycle_shown])
    return found


def _evidence(entry: dict[str, Any], titles: Titles) -> list[str]:
    first = entry.get("first")
    if first:
        message, other = (shown_name(titles(first[key])) for key in ("message", "overtaken_by"))
        source, target = shown_name(first["from"]), shown_name(first["to"])
        last = (
            f"but {message} has to come before {other}"
            if "rule" in first
            else f"which was sent causally after {message}"
        )
        return [
            f"  first: {target} at index {first['deliver_index']} delivers {message}, which {source} sent at index "
            f"{first['send_index']},",
            f"  after {target} had delivered {other}, {last}",
        ]
    circle = entry.get("cycle") or entry.get("crown")
    if not circle:
        return []
    shown = [shown_name(titles(message)) for message in circle[:_cycle_shown]]
    more = f" … ({len(circle)} messages)" if len(circle) > _cycle_shown else ""
    lines = [f"  cycle: {' before '.join(shown)}{more} before {shown[0]}"]
    if "pairwise" in entry:
        agree = "no two processes disagree on a pair" if entry["pairwise"] else "two processes disagree on a pair"
        lines.append(f"  {agree}")
    return lines
