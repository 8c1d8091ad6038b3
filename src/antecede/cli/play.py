"""``antecede play``: play a scenario file under one or several orders, and check the results that the file expects."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antecede.cli.options import JSON
from antecede.cli.terminal import print_diagram, rich_console, write_svgs
from antecede.cli.wording import counted
from antecede.errors import AntecedeError, ScenarioError, UsageError

if TYPE_CHECKING:
    from antecede.orders import OrderSpec
    from antecede.simulator.player import Played
    from antecede.simulator.scenario import Scenario

_judged = ("fifo", "causal", "total", "synchronous")


def register(app: typer.Typer) -> None:
    @app.command()
    def play(
        file: Annotated[str, typer.Argument(metavar="FILE", help="A scenario file; - is standard input.")],
        order: Annotated[
            list[str] | None,
            typer.Option(
                "--order",
                metavar="NAME[:OPTION=VALUE,…]",
                help="Orders to play, separated by commas; may be repeated. Default: the order in the file, otherwise "
                "matrix.",
            ),
        ] = None,
        diagram: bool = typer.Option(False, "--diagram", help="Draw the run in the terminal."),
        svg: str | None = typer.Option(None, metavar="FILE", help="Draw the run into an SVG file."),
        trace: str | None = typer.Option(None, metavar="FILE", help="Write the run as a trace."),
        raw: bool = typer.Option(
            False,
            "--raw",
            help="Play without links. A link would drop repeated copies, and send lost copies again.",
        ),
        verbose: bool = typer.Option(False, "--verbose", "-v", help="Print what happens, line by line."),
        as_json: bool = JSON,
    ) -> int:
        """Play a scenario file: sends, arrivals and expected results, for example from a figure of a paper.

        Exit codes:
        0: All expectations hold.
        1: An expectation fails.
        2: The file cannot be played.
        """
        specs = _orders(order or [])
        scenario = _read(file)
        if len(specs) > 1 and (svg or trace):
            raise UsageError("--svg and --trace are for one order: give only one --order")
        plays = [_play(scenario, spec, raw) for spec in specs]
        results = [result for result in plays if not isinstance(result, str)]
        if results and trace:
            from antecede.trace import Metadata, write_trace

            metadata = Metadata(order=results[0].order, recorded_by="antecede play")
            write_trace(trace, results[0].world.record.events, metadata)
        if results and svg:
            write_svgs([results[0].world.record.diagram(_title(results[0]))], svg)
        if as_json:
            print(json.dumps(_document(scenario, specs, plays, raw), indent=2))
        else:
            _report(scenario, specs, plays, diagram, verbose)
        for result in plays:
            if isinstance(result, str):
                print(f"antecede: {result}", file=sys.stderr)
        if len(results) < len(plays):
            return 2
        return 0 if all(result.holds for result in results) else 1


def _read(file: str) -> "Scenario":
    from antecede import limits
    from antecede.simulator.scenario import parse_scenario, read

    if file == "-":
        return parse_scenario(sys.stdin.buffer.read(limits.scenario_bytes_max + 1), "standard input")
    return read(file)


def _orders(given: list[str]) -> "list[OrderSpec | None]":
    """Return the orders in the values of ``--order``. If no order is given, return ``[None]``, which means the order in
    the scenario file. A comma separates two orders, or two options of one order. The text after a comma is a new order
    if this text contains a colon or is the name of an order. Otherwise the text is an option of the previous order."""
    from antecede.orders import names, parse

    pieces: list[str] = []
    for text in given:
        fresh = True
        for piece in text.split(","):
            if fresh or ":" in piece or piece in names():
                pieces.append(piece)
            else:
                pieces[-1] += ("," if ":" in pieces[-1] else ":") + piece
            fresh = False
    if any(len(piece) > 200 for piece in pieces):
        raise UsageError("--order: expected NAME or NAME:OPTION=VALUE,…")
    return [parse(piece) for piece in pieces] or [None]


def _play(scenario: "Scenario", spec: "OrderSpec | None", raw: bool) -> "Played | str":
    """Play the scenario under one order. If ``spec`` is None, use the order in the file. Return the result or, if the
    scenario cannot be played, a text with the reason."""
    from antecede.simulator.player import play

    try:
        return play(scenario, spec, raw=raw)
    except ScenarioError as error:
        return f"{error}" if spec is None else f"{error} (under {spec})"


def _title(result: "Played") -> str:
    return f"{Path(result.world.scenario.file).name} under {result.order}"


def _verdicts(result: "Played") -> dict[str, bool | None]:
    verdict = result.world.record.judge()
    return {name: None if verdict is None else verdict.holds(name) for name in _judged}


def _document(
    scenario: "Scenario", specs: "list[OrderSpec | None]", plays: "list[Played | str]", raw: bool
) -> dict[str, Any]:
    return {
        "file": scenario.file,
        "raw": raw,
        "holds": all(not isinstance(result, str) and result.holds for result in plays),
        "plays": [_entry(spec, result) for spec, result in zip(specs, plays, strict=True)],
    }


def _entry(spec: "OrderSpec | None", result: "Played | str") -> dict[str, Any]:
    if isinstance(result, str):
        return {"order": None if spec is None else str(spec), "error": result}
    world = result.world
    return {
        "order": result.order,
        "guarantees": sorted(world.guarantees),
        "holds": result.holds,
        "checked": result.checked,
        "skipped": result.skipped,
        "failures": [
            {"line": failure.line, "expected": failure.expected, "actual": failure.actual}
            for failure in result.failures
        ],
        "delivered": world.record.delivered,
        "held": {process: held for process in world.scenario.processes if (held := world.held(process))},
        "unposted": world.unposted(),
        "blocked": world.blocked(),
        "stuck": world.stuck(),
        "kept": _verdicts(result),
    }


def _report(
    scenario: "Scenario",
    specs: "list[OrderSpec | None]",
    plays: "list[Played | str]",
    diagram: bool,
    verbose: bool,
) -> None:
    from rich.text import Text

    console = rich_console(highlight=False, soft_wrap=True)
    for result in plays:
        if isinstance(result, str):
            continue
        if verbose:
            _tell(console, result)
        if diagram:
            _draw(result)
        for failure in result.failures:
            at = f"{scenario.file}:{failure.line}"
            message = f"{at}: expected {failure.expected}; actual: {failure.actual} (under {result.order})"
            console.print(Text(message), style="red")
    if len(plays) == 1:
        if not isinstance(plays[0], str):
            console.print(Text(_summary(plays[0])))
        return
    _table(console, specs, plays)


def _summary(result: "Played") -> str:
    skipped = f", {result.skipped} for other orders" if result.skipped else ""
    failed = len(result.failures)
    checked = counted(result.checked, "expectation")
    if failed:
        outcome = f"{failed} of {checked} fail{'s' * (failed == 1)}"
    else:
        outcome = f"{checked} hold{'s' * (result.checked == 1)}" if result.checked else "no expectations"
    return f"{_title(result)}: {outcome}{skipped}"


def _tell(console: Any, result: "Played") -> None:
    from rich.text import Text

    record, scenario = result.world.record, result.world.scenario
    console.print(Text(_title(result)), style="bold")
    sentences: dict[int, list[str]] = {}
    for line, sentence in record.story:
        sentences.setdefault(line, []).append(sentence)
    failures = {failure.line: failure for failure in result.failures}
    for statement in scenario.statements:
        text = scenario.text[statement.line - 1].partition("#")[0].strip()
        console.print(Text(f"{statement.line:>4}  {text}"), style="red" if statement.line in failures else "cyan")
        for sentence in sentences.get(statement.line, []):
            console.print(Text(f"        {sentence}"))


def _draw(result: "Played") -> None:
    try:
        print_diagram(result.world.record.diagram(_title(result)), sys.stdout)
    except AntecedeError as error:
        print(f"no diagram: {error}")


def _table(console: Any, specs: "list[OrderSpec | None]", plays: "list[Played | str]") -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    # Only the names of orders and the sequences of deliveries are folded, even with 60 columns.
    table.add_column("order", overflow="fold")
    for column in ("failed", "fifo", "causal", "total", "sync"):
        table.add_column(column, no_wrap=True)
    table.add_column("delivered", min_width=10, overflow="fold")
    for spec, result in zip(specs, plays, strict=True):
        if isinstance(result, str):
            table.add_row(Text(str(spec)), *"–––––", "cannot be played")
            continue
        kept = [{True: "kept", False: "broken", None: "–"}[held] for held in _verdicts(result).values()]
        delivered = [
            f"{process}: {' '.join(messages)}"
            for process, messages in result.world.record.delivered.items()
            if messages
        ]
        failed = f"{len(result.failures)} of {result.checked}" if result.checked else "–"
        table.add_row(Text(result.order), failed, *kept, Text("; ".join(delivered)))
    console.print(table)
