"""``antecede sweep``: run many simulations as Spark tasks, and write one table of their costs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from antecede.cli.engines import spark_settings
from antecede.cli.options import CONF, JSON
from antecede.cli.terminal import status
from antecede.cli.wording import rounded
from antecede.crashes import print_error
from antecede.errors import UsageError

if TYPE_CHECKING:
    from antecede.pipeline.sweep import Cell


class _Axes(NamedTuple):
    """The options for the axes of a grid. An axis is one setting of the simulations, such as the orders or the delays.
    If the command names a study, each given option replaces the same axis of the study."""

    orders: list[str] | None = typer.Option(
        None, "--order", help="Order: NAME or NAME:option=value,…; may be repeated."
    )
    processes: str | None = typer.Option(None, metavar="N,N…", help="Numbers of processes, separated by commas.")
    workloads: list[str] | None = typer.Option(
        None, "--workload", help="Workload: unicast, multicast, broadcast, clusters, …; may be repeated."
    )
    gaps: list[str] | None = typer.Option(None, "--gap", metavar="SPEC", help="Time between sends; may be repeated.")
    delays: list[str] | None = typer.Option(
        None, "--delay", metavar="SPEC", help="Transit time of a packet; may be repeated."
    )
    shapes: list[str] | None = typer.Option(
        None, "--shape", help="Shape of the domains: flat, bus, daisy (a chain), tree or star; may be repeated."
    )
    size: int | None = typer.Option(
        None, min=2, help="Number of servers per domain. Default: the default size of the shape."
    )
    seeds: int | None = typer.Option(None, help="Number N of runs of each setting, with the seeds 1 … N.")
    receives: float | None = typer.Option(
        None, help="Mean number of messages that a process receives after the warm-up."
    )
    warmup_receives: float | None = typer.Option(
        None,
        help="Mean number of messages that a process receives during the warm-up. The figures do not count these "
        "messages.",
    )


_axes = _Axes()


def register(app: typer.Typer) -> None:
    @app.command()
    def sweep(
        study: Annotated[
            str | None,
            typer.Argument(
                metavar="STUDY|FILE.toml",
                help="A study, or a file with a grid. Default: the options give the grid.",
            ),
        ] = None,
        axes: _Axes = _axes,
        scale: float = typer.Option(1.0, help="Length of each run, as a fraction of its length in the study."),
        out: str | None = typer.Option(
            None,
            metavar="DIR",
            help="Folder of the table and the cells. Default: the folder sweep-STUDY, or the folder sweep if no study "
            "is given.",
        ),
        master: str | None = typer.Option(None, metavar="URL", help="URL of the Spark master. Default: local[*]."),
        conf: list[str] | None = CONF,
        as_json: bool = JSON,
    ) -> int:
        """Run a grid of simulations as Spark tasks: orders × processes × workloads × delays × domains × seeds.

        Each cell of the grid is one simulation. Finished cells are kept in DIR, the folder of --out. After Ctrl-C or a
        failure, run the same command again: it runs only the cells that are not finished. At the end, DIR/table.parquet
        has one row per cell. The report has the mean of each figure over the seeds, with its 95 % confidence interval.

        STUDY is paper000 (domains), paper002 (the buffer protocol), paper003 (pruned stamps), paper004 (conflicts) or
        stamps (stamp sizes for `antecede plan`). An option replaces one axis of the study: for example, --order
        replaces the orders. In a FILE.toml each axis is a key: orders, processes, workloads, gaps, delays, shapes,
        size, densities (shares of conflicting requests), seeds, receives, warmup_receives.

        SPEC is the distribution of a time in seconds: constant:TIME, exponential:MEAN, uniform:LOWEST,HIGHEST or
        pareto:SHAPE,LOWEST. For example, exponential:0.1 means random times with a mean of 0.1 s.

        Exit codes:
        0: All cells are done.
        1: A cell failed, or left a message undelivered.
        2: The command line is wrong.
        """
        from antecede.pipeline import require

        require()
        from antecede.pipeline.sweep import Failure, Grid, Progress, carry_out, cells_of, results, stamp_table, summary
        from antecede.pipeline.sweep import study as grids_of

        chosen = axes._asdict() | {"processes": None if axes.processes is None else _numbers(axes.processes)}
        replaced = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in chosen.items()
            if value is not None and value != []
        }
        spark_conf = spark_settings(conf)
        cells = cells_of((Grid(),) if study is None else grids_of(study), replaced, scale)
        failures: list[Failure] = []

        def report(failure: Failure) -> None:
            failures.append(failure)
            print_error(f"cell failed: {failure.error}; repeat it with: {failure.command}")

        with results(out or (f"sweep-{Path(study).stem}" if study else "sweep")) as kept:
            left = [cell for cell in cells if cell.key not in kept.rows]
            if left:
                from antecede.pipeline.sessions import session

                with status("starting Spark") as report_status, session(master, spark_conf, lean=True) as running:
                    progress = Progress(left, len(cells) - len(left))
                    carry_out(running.context, left, kept.add, report, progress, report_status, studied)
            kept.join()
            rows = [kept.rows[cell.key] for cell in cells if cell.key in kept.rows]
            document: dict[str, Any] = {
                "study": study,
                "scale": scale,
                "cells": len(cells),
                "done": len(rows),
                "kept": len(cells) - len(left),
                "failed": len(failures),
                "failures": [
                    {"cell": str(failure.cell), "error": failure.error, "command": failure.command}
                    for failure in failures
                ],
                "table": str(kept.table),
                "summary": summary(rows),
            }
            if study == "stamps":
                document["stamp_bytes"] = stamp_table(document["summary"])
        print(json.dumps(document, indent=2) if as_json else "\n".join(_lines(document)))
        undelivered = [row for row in rows if row.undelivered]
        for row in undelivered:
            print_error(f"{row.undelivered} undelivered; repeat it with: {row.command}")
        return 1 if failures or undelivered else 0


def studied(cell: "Cell") -> dict[str, Any]:
    """Run one cell of a study of conflicts, as the command ``antecede objects study`` does. Return the values of the
    cell for its row in the table: the keys are the names of columns."""
    from antecede.simulator.groups import Study

    assert cell.density is not None
    study = Study(cell.processes, cell.messages, cell.warmup, cell.workload, cell.seed)
    report = study.run(cell.order, cell.density)
    found = {
        "undelivered": report["undelivered"],
        "bytes_mean": report["stamp_bytes_mean"],
        "control_packets": report["control_packets_per_message"],
    }
    for kind in ("conflicting", "compatible"):
        if report[kind] is not None:
            found[f"{kind}_held"] = report[kind]["held"]
            found[f"{kind}_latency"] = report[kind]["latency_seconds"]
    return found


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--processes {text}: expected numbers separated by commas, such as 10,20,50") from None


_shown_figures = {
    "dependents_mean": "dependents",
    "paper_bytes_mean": "paper's bytes",
    "bytes_mean": "bytes",
    "held": "held %",
    "latency_mean": "latency ms",
    "hops_mean": "hops",
    "control_packets": "controls",
    "conflicting_latency": "conflicting ms",
    "compatible_latency": "compatible ms",
}
_factors = {"held": 100.0, "latency_mean": 1e3, "conflicting_latency": 1e3, "compatible_latency": 1e3}


def _lines(document: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the report as text. The table has one row per entry of the summary. The first columns
    are the order and the number of processes. The next columns are the settings that are not the same in all entries,
    the number of runs, and the figures. A figure is shown as the mean ± half the width of its confidence interval."""
    entries = document["summary"]
    done, kept = document["done"], document["kept"]
    yield f"{done} of {document['cells']} cells done ({kept} of them by an earlier command): {document['table']}"
    if not entries:
        return
    settings = ["order", "processes"]
    settings += [
        name for name in ("shape", "workload", "gap", "delay", "density") if len({entry[name] for entry in entries}) > 1
    ]
    figures = [name for name in _shown_figures if any(entry["figures"][name] is not None for entry in entries)]
    table = [[*settings, "runs", *(_shown_figures[name] for name in figures)]]
    for entry in entries:
        named = ["–" if entry[name] is None else str(entry[name]) for name in settings]
        table.append([*named, str(entry["runs"]), *(_interval(entry["figures"][name], name) for name in figures)])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield "mean ± half the width of the 95 % confidence interval (Student's t over the runs)"
    for order, by_size in document.get("stamp_bytes", {}).items():
        yield f"{order}: {', '.join(map(str, by_size.values()))} bytes for {', '.join(map(str, by_size))} processes"


def _interval(figure: dict[str, Any] | None, name: str) -> str:
    if figure is None:
        return "–"
    factor = _factors.get(name, 1.0)
    mean = rounded(figure["mean"] * factor)
    if figure["low"] is None:
        return mean
    reach = (figure["high"] - figure["mean"]) * factor
    return f"{mean} ± {reach:.2g}" if reach < 100 else f"{mean} ± {reach:,.0f}"
