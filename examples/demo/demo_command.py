"""``antecede demo``: show in one minute what ordering is, what it costs, how a violation looks, and that no message is
lost if a server is killed."""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer

from antecede.cli.options import JSON
from antecede.cli.wording import counted

_orders = ("none", "fifo", "pruned", "lamport")


def register(app: typer.Typer) -> None:
    @app.command()
    def demo(
        seed: int = typer.Option(7, help="Seed of the run. Each seed gives another run."),
        keep: str | None = typer.Option(None, metavar="DIR", help="Keep the recorded traces in this folder."),
        live: bool = typer.Option(True, help="Also run live servers and kill one."),
        spark: bool = typer.Option(True, help="Verify the servers' trace with Spark."),
        as_json: bool = JSON,
    ) -> int:
        """Show what ordering is, what it costs, and that messages stay in order even if a server is killed.

        First, eight simulated processes exchange messages four times: without order, and under FIFO, causal and total
        order. Then three live servers exchange messages. One of these servers is killed and started again. At the end,
        Spark verifies the trace of the servers.
        """
        runs = [_run(name, seed, None if keep is None else Path(keep)) for name in _orders]
        # On FIFO links a message can be overtaken only by a chain of messages, and causal order prevents this.
        broken = next((run for run in runs if run["name"] == "fifo" and run["verdict"].causal), None)
        if not as_json:
            _tell(runs, broken)
        result = _live(keep, spark, quiet=as_json) if live else None
        if as_json:
            judged = result["verdict"] if result is not None and result["verdict"]["engine"] == "spark" else None
            document = {"seed": seed, "runs": [run["report"] for run in runs], "live": result, "spark": judged}
            print(json.dumps(document, indent=2))
        kept = all(not run["broken"] for run in runs)
        well = result is None or (not result["found"] and _is_spotless(result["verdict"]))
        return 0 if kept and well else 1


def _live(keep: str | None, spark: bool, quiet: bool) -> dict[str, Any]:
    """Run three servers, kill one of them, and verify the trace of all three servers. Return the result and the
    verdict."""
    from demo_live import run_live

    from antecede.pipeline import missing
    from antecede.recording.segments import gathered

    def show(text: str) -> None:
        if not quiet:
            print(text, flush=True)

    if spark and missing():
        print("\nThe verdict from Spark needs the pipeline: pip install 'antecede[spark]'", file=sys.stderr)
        spark = False
    show("\nNow live: three servers, s1 –A– s2 –B– s3, causal order in both domains.\n")
    with TemporaryDirectory(prefix="antecede-demo-") as scratch:
        folder = (Path(scratch) if keep is None else Path(keep)) / "live"
        result = run_live(folder, show)
        for line in result["found"]:
            show(f"wrong: {line}")
        show(f"\nThe events are in the servers' logs. Verifying them with {'Spark' if spark else 'the plain engine'} …")
        with gathered([str(folder)]) as paths:
            report = _judged(paths, spark)
    fifo, causal = report["orders"]["fifo"], report["orders"]["causal"]
    show(
        f"{report['messages']:,} messages, {report['deliveries']:,} deliveries: {report['undelivered']:,} lost, "
        f"{report['quarantined'].get('duplicate_delivery', 0):,} twice; fifo {_word(fifo)}, causal {_word(causal)} "
        f"({report['seconds']:.0f} s)."
    )
    return {**result, "verdict": report}


def _judged(paths: list[str], spark: bool) -> dict[str, Any]:
    if spark:
        from antecede.pipeline import verify_files

        return verify_files(paths)
    from antecede.trace import verify

    return verify(paths)


def _is_spotless(report: dict[str, Any]) -> bool:
    held = all(order["holds"] for order in report["orders"].values())
    return bool(held and report["complete"] and not report["undelivered"])


def _word(verdict: dict[str, Any]) -> str:
    return "kept" if verdict["holds"] else f"broken ({verdict['late']} late)"


def _run(name: str, seed: int, keep: Path | None) -> dict[str, Any]:
    from antecede.orders import parse
    from antecede.simulator.run import Setup, simulate
    from antecede.trace import Event, Metadata, judge, write_trace

    spec = parse(name)
    rows: list[Event] = []
    figures = simulate(Setup(spec, 8, 400, "multicast", gap="exponential:1.2", seed=seed), rows.append)
    verdict = judge(rows)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        write_trace(keep / f"{name}.jsonl", rows, Metadata(order=name, recorded_by="antecede demo"))
    promised = spec.guarantees()
    broken = [order for order in sorted(promised) if not verdict.holds(order)]
    report = {**figures, "orders": verdict.as_json(), "guarantees": sorted(promised), "broken": broken}
    return {"name": name, "rows": rows, "verdict": verdict, "figures": figures, "broken": broken, "report": report}


def _tell(runs: list[dict[str, Any]], broken: dict[str, Any] | None) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    deliveries = runs[0]["figures"]["deliveries"]
    console.print(f"\n[bold]8 processes, 400 multicasts, {deliveries:,} deliveries[/] over links that reorder:\n")
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("order", "FIFO", "causal", "total", "held back", "latency", "stamp"):
        table.add_column(column, justify="left" if column == "order" else "right")
    for run in runs:
        verdict, figures = run["verdict"], run["figures"]
        table.add_row(
            run["name"],
            _verdict(verdict.holds("fifo"), len(verdict.fifo)),
            _verdict(verdict.holds("causal"), len(verdict.causal)),
            _verdict(verdict.holds("total"), None),
            f"{figures['held']:.0%}",
            f"{figures['latency']['mean']:.2f} s",
            counted(round(figures["stamp"]["bytes_mean"]), "byte"),
        )
    console.print(table)
    console.print(
        "\nkept: the recorded trace shows it; late: deliveries that came after a message that depends on theirs."
    )
    if broken is not None:
        _show_overtaking(console, broken)


def _verdict(holds: bool | None, late: int | None) -> str:
    if holds:
        return "[green]kept[/]"
    return f"[red]{late} late[/]" if late is not None else "[red]broken[/]"


def _show_overtaking(console: Any, run: dict[str, Any]) -> None:
    """Print the first late delivery of a run, and draw a diagram. The diagram shows only the late message and the chain
    of messages that overtook this message."""

    from antecede.cli.terminal import print_diagram
    from antecede.diagram import from_events
    from antecede.trace import match
    from antecede.trace.explain import Chains, overtaking, rows_of

    late = min(run["verdict"].causal, key=lambda late: (late.source == late.to, late.deliver_index, late.to))
    chain = Chains(match(run["rows"])).shortest(late)
    links = ", then ".join(f"{link.message} from {link.source} to {link.to}" for link in chain)
    console.print(
        f"\n[bold]The first overtaking[/] under {run['name']}: {late.message} from {late.source} to {late.to}"
    )
    console.print(f"is overtaken by {links}.\n")
    rows = rows_of(overtaking(late, chain))
    involved = sorted({row.process for row in rows})
    drawing = from_events(rows, processes=involved, late={(late.message, late.to)})
    print_diagram(drawing, sys.stdout)
