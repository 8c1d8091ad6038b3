"""``antecede explain``: which messages overtook a late message?"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import typer

from antecede.cli.engines import chosen_engine, spark_settings, trace_inputs
from antecede.cli.options import CONF, CONFLICTS, ENGINE, JSON, MASTER, TRACES
from antecede.cli.terminal import print_diagram, show, status, write_svgs
from antecede.cli.wording import counted, exit_code, set_aside, shown_name, warn_of_unread
from antecede.diagram import of_explanation
from antecede.errors import DiagramError
from antecede.trace.conflicts import read_conflicts
from antecede.trace.explain import ExplainRequest, with_origins
from antecede.trace.explain import explain as explain_here
from antecede.trace.titles import Titles, messages_in, named


def register(app: typer.Typer) -> None:
    @app.command()
    def explain(
        trace: list[str] = TRACES,
        message: str | None = typer.Option(None, metavar="ID", help="Explain every late delivery of this message."),
        first: int = typer.Option(
            10, metavar="N", help="Explain the first N late deliveries, sorted by their index at the receiver."
        ),
        order: str = typer.Option(
            "causal", help="The order that was violated: fifo, causal, total, synchronous or significant."
        ),
        conflicts: str | None = CONFLICTS,
        diagram: bool = typer.Option(
            False,
            "--diagram",
            help="Draw every explanation. Without this option, the command draws only if there is exactly one "
            "explanation.",
        ),
        svg: str | None = typer.Option(None, metavar="FILE", help="Draw the explanations into FILE."),
        engine: str = ENGINE,
        master: str | None = MASTER,
        conf: list[str] | None = CONF,
        as_json: bool = JSON,
    ) -> int:
        """Explain late deliveries: show the shortest chain of messages that overtook each late message.

        The delivery of a message M is late if the receiver has already delivered another message that depends on M. The
        chain begins at the sender of M. It ends with a message that the receiver delivered before M.

        With --order significant, a chain also names the operations that connect its messages. Instead of a chain, an
        explanation may name two objects that received two conflicting requests in different sequences.

        With --order total or synchronous, an explanation is a cycle of messages. Each step names two
        messages of the cycle, and a process that sent or delivered the first one before the second one.

        Exit codes: 0: The late deliveries were explained, or no delivery is late. 2: The trace does not have the
        message of --message, or nothing could be read.
        """
        request = ExplainRequest(order, message, first, read_conflicts(conflicts) if conflicts is not None else None)
        request.check()
        settings = spark_settings(conf)
        with trace_inputs(trace) as paths:
            chosen = chosen_engine(engine, master, conf, paths)
            with status("reading the trace and looking for chains") as report_status:
                if chosen == "spark":
                    from antecede.pipeline.explaining import explain_files

                    report = explain_files(paths, request, master=master, conf=settings, report_status=report_status)
                else:
                    report = explain_here(paths, request)
                report = with_origins(report, paths)
                report["named"] = named(messages_in(report["explanations"]), paths)
            if as_json:
                print(json.dumps(report, indent=2))
            else:
                _show(report, diagram)
            if svg is not None:
                _write(report, svg)
            found = report["deliveries"] or report["message"]
            if found:
                warn_of_unread(report)
            return exit_code(report, found, "explained", paths)


class _Text(StringIO):
    encoding = "utf-8"


def explained(report: dict[str, Any]) -> str:
    """Return the report of ``antecede explain`` as text, with a diagram of each explanation. The assertions in
    :mod:`antecede.testing` show this text when a test fails."""
    with redirect_stdout(_Text()) as out:
        _show(report, True)
    return out.getvalue()


def _show(report: dict[str, Any], each: bool) -> None:
    show(_heading(report))
    at, titles = _Places(report), Titles(report["named"])
    for number, explanation in enumerate(report["explanations"], 1):
        print()
        overtaken = "chain" in explanation
        lines = _overtaking(number, explanation, at, titles)
        show(lines if overtaken else _circle(explanation, report, at, titles))
        if each or report["shown"] == 1:
            print()
            try:
                print_diagram(of_explanation(explanation, titles), sys.stdout)
            except DiagramError as error:
                print(f"     (not drawn: {error})")
    if report["shown"] > 1 and not each:
        print("\n(--diagram draws each explanation)")
    aside = set_aside(report, "every chain is real, but there may be more late deliveries, and shorter chains")
    if aside:
        show(["", *aside])


def _heading(report: dict[str, Any]) -> Iterator[str]:
    order, late, shown = report["order"], report["late"], report["shown"]
    if report["holds"] is None:
        yield f"{order} order: nothing to check, because there is no delivery"
    elif late is None:
        yield f"{order} order is broken: these messages form a cycle:" if shown else f"{order} order holds: no cycle"
    else:
        part = f"{late:,} of {counted(report['deliveries'], 'delivery|deliveries')} {'is' if late == 1 else 'are'} late"
        yield f"{part} under {order} order" if late else f"{order} order holds: no delivery is late"
    about = report["message"]
    if about is not None:
        called = shown_name(about["id"])
        if about["set_aside"]:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in about["reasons"].items())
            yield f"{called}: {counted(about['set_aside'], 'row')} set aside ({reasons})"
        outcome = f"{shown} of its {counted(about['deliveries'], 'delivery|deliveries')} late"
        yield f"{called}: {outcome}" if about["deliveries"] else f"{called}: no valid delivery, so no late one"
    elif late and shown:
        first = "" if shown == late else "the first late delivery, and " if shown == 1 else f"the first {shown}, "
        yield f"{first}{'each with ' if shown > 1 else ''}a shortest chain of messages that overtook the late message:"


class _Places:
    """Returns a text that says where an event is recorded: the event's index in its process. If the trace was imported
    and the place in the original log is known, the text also contains this place."""

    def __init__(self, report: dict[str, Any]) -> None:
        self._sources = {(one["process"], one["index"]): one["source"] for one in report["sources"]}

    def __call__(self, process: str, index: int) -> str:
        source = self._sources.get((process, index))
        return f"index {index}" if source is None else f"index {index}, {shown_name(source)}"


def _overtaking(number: int, late: dict[str, Any], at: _Places, titles: Titles) -> Iterator[str]:
    from antecede.trace.explain import clauses, is_causal_chain

    def title(message: str) -> str:
        return shown_name(titles(message))

    message, source, to = title(late["message"]), shown_name(late["from"]), shown_name(late["to"])
    if is_causal_chain(late):
        steps = clauses(late, title, shown_name, at)
        yield f"{number:>3}  {to} delivered {message} late:"
        yield from (f"       {step}{';' if step is not steps[-1] else ''}" for step in steps)
        return
    sent = at(late["from"], late["send_index"])
    yield f"{number:>3}  {to} delivers {message} late: {source} had sent it at {sent}, but"
    for link in late["chain"]:
        yield from _significant_link(link, late, at, title)
    yield f"     and only then does {to} deliver {message} ({at(late['to'], late['deliver_index'])})"


def _significant_link(
    link: dict[str, Any], late: dict[str, Any], at: _Places, title: Callable[[str], str]
) -> Iterator[str]:
    source, message, after = shown_name(link["from"]), title(link["message"]), link["after"]
    if after is None:
        there = late["elsewhere"]
        here = at(late["to"], link["deliver_index"])
        yield f"       {shown_name(late['to'])} delivered {message} ({here}), which conflicts,"
        yield (
            f"       and {shown_name(there['process'])} delivers it after this one (index {there['index']}, "
            f"then {there['overtaken_by_index']})"
        )
        return
    verb = "sent" if after["kind"] == "send" else "delivered"
    there = at(link["from"], after["index"])
    yield f"       {source} had {verb} it in instance {shown_name(after['instance'])} ({there});"
    then = "the same instance"
    if after["by"] == "conflict":
        then = f"instance {shown_name(after['sender'])}, which conflicts with that one,"
    arrival = ""
    if link["to"] is not None:
        arrival = f", {shown_name(link['to'])} delivers it ({at(link['to'], link['deliver_index'])})"
    yield f"       {then} sends {message} ({at(link['from'], link['send_index'])}){arrival}"


def _circle(explanation: dict[str, Any], report: dict[str, Any], at: _Places, titles: Titles) -> Iterator[str]:
    def title(message: str) -> str:
        return shown_name(titles(message))

    for step in explanation["circle"]:
        first = f"{step['kind']}s {title(step['message'])} ({at(step['process'], step['index'])})"
        then = f"it {step['before_kind']}s " if report["order"] == "synchronous" else ""
        then += f"{title(step['before'])} ({at(step['process'], step['before_index'])})"
        yield f"       {shown_name(step['process'])} {first} before {then}"


def _write(report: dict[str, Any], path: str) -> None:
    if not report["explanations"]:
        print(f"antecede: nothing to draw, {path} is not written", file=sys.stderr)
        return
    titles = Titles(report["named"])
    write_svgs([of_explanation(explanation, titles) for explanation in report["explanations"]], path)
