"""``antecede report``: one page with everything about a trace."""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from antecede.cli.engines import ORDERS, asked_orders, chosen_engine, spark_settings, trace_inputs
from antecede.cli.options import CONF, ENGINE, MASTER
from antecede.cli.terminal import status, write_whole
from antecede.cli.wording import nothing_valid
from antecede.errors import UsageError
from antecede.trace import verify
from antecede.trace.conflicts import needed
from antecede.trace.explain import ExplainRequest, explain
from antecede.trace.measure import measure
from antecede.trace.titles import messages_in, named


def register(app: typer.Typer) -> None:
    @app.command()
    def report(
        trace: Annotated[
            list[str],
            typer.Argument(metavar="TRACE", help="The trace: files, folders, patterns or data directories of servers."),
        ],
        output: str = typer.Option("report.html", "-o", "--output", metavar="FILE", help="The page to write."),
        order: str = typer.Option(
            "fifo,causal", metavar="NAMES", help=f"Orders to check, separated by commas: {', '.join(ORDERS)}."
        ),
        first: int = typer.Option(5, metavar="N", help="Draw the first N violations of each order."),
        title: str | None = typer.Option(None, metavar="TEXT", help="The title of the page."),
        engine: str = ENGINE,
        master: str | None = MASTER,
        conf: list[str] | None = CONF,
        as_json: bool = typer.Option(False, "--json", help="Also print the numbers as one JSON document."),
    ) -> int:
        """Write one HTML page about a trace: verdicts, drawings of the first violations, costs, traffic, rates.

        The page has no scripts and loads no other files. A JSON file in the folder of the page has the same numbers.

        Exit codes:
        0: Every order holds.
        1: An order is violated.
        2: Nothing could be judged.
        """
        from antecede.report import page_of

        asked = asked_orders(order)
        if "-" in trace:
            raise UsageError("report reads a trace several times: write standard input to a file first")
        if not 0 <= first <= 100:
            raise UsageError(f"--first {first}: expected 0 to 100")
        page = Path(output)
        _check_writable(page)
        data = page.with_suffix(".json")
        if page == data:
            raise UsageError(
                f"-o {output}: the report writes its numbers to {data.name}: choose a name that does not end in .json"
            )
        settings = spark_settings(conf)
        with trace_inputs(trace) as paths:
            chosen = chosen_engine(engine, master, conf, paths)
            document = _answers(chosen, paths, asked, first, master, settings)
            found = document["verify"]
            if not found["deliveries"]:
                print(f"antecede: nothing to report: {nothing_valid(found, paths)}", file=sys.stderr)
                return 2
        document = {"title": title or f"Order in {_shown(trace)}", "inputs": trace, "json": data.name, **document}
        write_whole(page, page_of(document))
        write_whole(data, json.dumps(document, indent=1) + "\n")
        if as_json:
            print(json.dumps(document, indent=2))
        else:
            print(f"{page} ({page.stat().st_size / 1024:,.0f} KB), {data}")
        return 1 if any(entry["holds"] is False for entry in found["orders"].values()) else 0


def _answers(
    engine: str, paths: list[str], orders: tuple[str, ...], first: int, master: str | None, settings: dict[str, str]
) -> dict[str, Any]:
    """Return the content of the page, computed with this engine: the verdict, the figures, the explanations and the
    number of messages per second."""
    with ExitStack() as stack:
        report_status = stack.enter_context(status("judging the trace"))
        scratch = stack.enter_context(TemporaryDirectory(prefix="antecede-report-"))
        tables = scratch if find_spec("pyarrow") is not None else None
        explain_one: Callable[[ExplainRequest], dict[str, Any]]
        if engine == "spark":
            from antecede.pipeline.explaining import explain_in
            from antecede.pipeline.judge.files import spark_for, verify_in
            from antecede.pipeline.measuring import measure_in

            check = partial(needed, None) if "significant" in orders else None
            # One session answers all questions.
            running, given = stack.enter_context(spark_for(paths, master, settings, report_status, check))
            verdict = verify_in(running, given, orders, report_status=report_status)
            figures = measure_in(running, given, tables, report_status=report_status)
            explain_one = partial(explain_in, running, given, report_status=report_status)
        else:
            verdict = verify(paths, orders)
            report_status("measuring the trace")
            figures = measure(paths, tables)
            explain_one = partial(explain, paths)
        report_status("looking for chains")
        broken = [name for name, entry in verdict["orders"].items() if entry["holds"] is False]
        if "causal" in broken:
            # A delivery that is late under FIFO order is late under causal order as well.
            broken = [name for name in broken if name != "fifo"]
        explained = []
        for name in broken if first else []:
            request = ExplainRequest(name, None, first)
            one = explain_one(request)
            one["named"] = named(messages_in(one["explanations"]), paths)
            explained.append(one)
        return {"verify": verdict, "measure": figures, "explain": explained, "by_second": _by_second(tables)}


def _by_second(tables: str | None) -> list[tuple[int, int]]:
    """Return how many messages were sent in each second, as a list of pairs: (second, number of messages). The numbers
    come from the tables that ``measure`` wrote. If ``tables`` is None, return an empty list: there are no tables,
    because pyarrow is not installed."""
    if tables is None:
        return []
    rows = import_module("pyarrow.parquet").read_table(f"{tables}/rates.parquet", columns=["second", "messages"])
    counts: Counter[int] = Counter()
    for second, messages in zip(rows["second"].to_pylist(), rows["messages"].to_pylist(), strict=True):
        counts[second] += messages
    return sorted(counts.items())


def _shown(trace: list[str]) -> str:
    name = os.path.basename(os.path.abspath(trace[0]))
    return name if len(trace) == 1 else f"{name} and {len(trace) - 1} more"


def _check_writable(page: Path) -> None:
    """Raise an error if the page cannot be written. The command calls this function before it reads the trace."""
    if page.is_dir():
        raise UsageError(f"-o {page}: expected a file, not a directory")
    if not os.access(page.parent, os.W_OK):
        raise UsageError(f"-o {page}: the directory {page.parent} does not exist, or cannot be written to")
