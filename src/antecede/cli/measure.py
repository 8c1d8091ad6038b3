"""``antecede measure``: measure the cost of order in a recorded trace."""

from typing import Any

import typer

from antecede.cli.engines import chosen_engine, spark_settings, trace_inputs
from antecede.cli.options import CONF, CONFLICTS, ENGINE, JSON, MASTER, TRACES
from antecede.cli.terminal import status, tell
from antecede.cli.wording import counted, exit_code, rounded, set_aside, shown_name, warn_of_unread
from antecede.trace.conflicts import read_conflicts
from antecede.trace.measure import measure as measure_here

_busiest = 5
"""The number of rows in two lists of the printed report: the pairs of processes that exchanged the most messages, and
the processes that sent the most messages. The JSON document and the tables list all pairs and all processes."""


def register(app: typer.Typer) -> None:
    @app.command()
    def measure(
        trace: list[str] = TRACES,
        tables: str | None = typer.Option(
            None,
            metavar="DIR",
            help="Also write the tables traffic, delay, rates, held and hops to DIR, as Parquet files.",
        ),
        engine: str = ENGINE,
        master: str | None = MASTER,
        conflicts: str | None = CONFLICTS,
        conf: list[str] | None = CONF,
        as_json: bool = JSON,
    ) -> int:
        """Measure a recorded trace: which processes exchange messages, and what it cost to keep the messages in order.

        The report has these figures:
        traffic: for each sender and destination, the number of copies. A message has one copy for each destination. If
        the rows of sends have a column "bytes" or "size", the report also shows the bytes of the copies.
        stamp: the size of the order's control information on each copy.
        delay: the time from send to delivery, by the processes' own clocks.
        held: the share of arrivals that had to wait.
        hops: if routers forward messages, the mean number of packets per copy, and the largest number of hops.
        concurrency: the share of concurrent pairs among all pairs of messages. Two messages are concurrent if neither
        depends on the other.
        significance: how many pairs of deliveries have a fixed sequence under causal order, and how many of these pairs
        have a fixed sequence under significant order. This figure needs the columns "instance" and "operation" in the
        trace, and a table of conflicts.

        A figure that the trace does not record is shown as "not recorded" (in JSON: null), never as 0.

        Exit codes:
        0: The trace was measured.
        2: Nothing could be measured.
        """
        settings = spark_settings(conf)
        table = read_conflicts(conflicts) if conflicts is not None else None
        with trace_inputs(trace) as paths:
            chosen = chosen_engine(engine, master, conf, paths)
            with status("reading and measuring the trace") as report_status:
                if chosen == "spark":
                    from antecede.pipeline.measuring import measure_files

                    report = measure_files(
                        paths, tables, master=master, conf=settings, conflicts=table, report_status=report_status
                    )
                else:
                    report = measure_here(paths, tables, table)
            tell(report, as_json, _lines)
            if report["messages"]:
                warn_of_unread(report)
            return exit_code(report, report["messages"], "measured", paths, "send")


def _lines(report: dict[str, Any]) -> list[str]:
    lines = [
        f"{counted(report['events'], 'event')} of {counted(report['processes'], 'process|processes')}: "
        f"{counted(report['messages'], 'message')}, "
        f"{counted(report['deliveries'], 'delivery|deliveries')}"
    ]
    for figure, texts in (
        ("traffic", _traffic(report["traffic"])),
        ("stamp", _stamp(report["stamp"])),
        ("delay", _delay(report["delay"])),
        ("held", _held(report)),
        ("hops", _hops(report["hops"])),
        ("concurrency", _concurrency(report)),
        ("significance", _significance(report["significance"])),
        ("rates", _rates(report["rates"])),
    ):
        for number, line in enumerate(texts or ["not recorded"]):
            lines.append(f"{'' if number else figure:<12} {line}")
    return lines + set_aside(report, "the figures describe the remaining rows")


def _traffic(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    copies = sum(row["messages"] for row in rows)
    known = [row["bytes"] for row in rows if row["bytes"] is not None]
    size = f", {sum(known):,} bytes" if len(known) == len(rows) else ""
    between = f"between {counted(len(rows), 'pair')} of processes; the busiest pairs:"
    lines = [f"{counted(copies, 'copy|copies')}{size} {between}"]
    busiest = sorted(rows, key=lambda row: (-row["messages"], row["from"], row["to"]))[:_busiest]
    pairs = [f"{shown_name(row['from'])} → {shown_name(row['to'])}" for row in busiest]
    width = max(map(len, pairs))
    for pair, row in zip(pairs, busiest, strict=True):
        size = "" if row["bytes"] is None else f"  {row['bytes']:>12,} bytes"
        lines.append(f"  {pair:<{width}}  {row['messages']:>9,}{size}")
    return lines


def _stamp(stamp: dict[str, Any]) -> list[str]:
    if stamp["copies"] is None:
        return []
    of = counted(stamp["copies"], "copy|copies")
    return [f"mean {stamp['bytes_mean']:,.1f} bytes per copy, at most {stamp['bytes_max']:,} ({of})"]


def _delay(delay: dict[str, Any]) -> list[str]:
    if delay["unit"] is None:
        return []
    unit = delay["unit"]
    figures = ", ".join(f"{name} {rounded(delay[name])} {unit}" for name in ("mean", "p50", "p99", "min", "max"))
    lines = [figures]
    if delay["negative"]:
        lines.append(
            f"{delay['negative']:,} of {counted(delay['deliveries'], 'delivery|deliveries')} "
            f"{'comes before its' if delay['negative'] == 1 else 'come before their'} send by the clocks: "
            "the clocks disagree"
        )
    return lines


def _held(report: dict[str, Any]) -> list[str]:
    if report["held"] is None:
        return []
    return [f"{report['held']:.1%} of {report['arrivals']:,} arrivals had to wait"]


def _hops(hops: dict[str, Any]) -> list[str]:
    if hops["mean"] is None:
        return []
    return [
        f"{hops['mean']:.2f} packets per copy" + (f", at most {hops['max']} hops" if hops["max"] is not None else "")
    ]


def _concurrency(report: dict[str, Any]) -> list[str]:
    share, compared = report["concurrency"], report["concurrency_messages"]
    if share is None:
        return ["fewer than two messages"]
    sample = "" if compared == report["messages"] else f", by a sample of {counted(compared, 'message')}"
    return [f"{share:.1%} of pairs of messages are concurrent{sample}"]


def _significance(figures: dict[str, Any] | None) -> list[str]:
    if figures is None:
        return []
    share = f" ({figures['spared'] / figures['causal']:.1%})" if figures["causal"] else ""
    return [
        f"causal order fixes the sequence of {counted(figures['causal'], 'pair')} of deliveries; "
        f"significant order fixes {figures['significant']:,} of these pairs, and not the other "
        f"{figures['spared']:,}{share}"
    ]


def _rates(rates: dict[str, Any] | None) -> list[str]:
    if rates is None:
        return []
    lines = [f"{_rate(rates)}; {rounded(rates['seconds'])} s in total; the busiest processes:"]
    busiest = sorted(rates["processes"], key=lambda row: (-row["messages"], row["process"]))[:_busiest]
    width = max(len(shown_name(row["process"])) for row in busiest)
    return lines + [f"  {shown_name(row['process']):<{width}}  {_rate(row)}" for row in busiest]


def _rate(row: dict[str, Any]) -> str:
    mean = "" if row["mean"] is None else f"{rounded(row['mean'])} messages/s, "
    return f"{mean}{row['peak']:,} in the busiest second"
