"""``antecede races``: which messages were delivered in order only because of their timing?"""

from collections.abc import Iterator, Sequence
from typing import Any

import typer

from antecede.cli.engines import chosen_engine, spark_settings, trace_inputs
from antecede.cli.options import CONF, ENGINE, JSON, MASTER, TRACES
from antecede.cli.terminal import status, tell
from antecede.cli.wording import counted, exit_code, set_aside, shown_name
from antecede.errors import OrderError, TopologyError, UsageError
from antecede.orders import parse
from antecede.topology import Domain, Topology
from antecede.trace.epochs import epochs_in
from antecede.trace.races import Declared, Wanted, assumed, declared_orders
from antecede.trace.races import races as races_here
from antecede.trace.schema import Metadata
from antecede.trace.titles import Titles, messages_in, named


def register(app: typer.Typer) -> None:
    @app.command()
    def races(
        trace: list[str] = TRACES,
        assume: str | None = typer.Option(
            None,
            metavar="GUARANTEE",
            help="Guarantee of the system: none, fifo or causal. Default: the guarantee in the trace's metadata, "
            "otherwise fifo.",
        ),
        within: float | None = typer.Option(
            None, metavar="SECONDS", help="Report only races whose slack is at most SECONDS."
        ),
        first: int = typer.Option(10, metavar="N", help="Show the N races with the least slack."),
        every: bool = typer.Option(
            False,
            "--all",
            help="Count all races. By default, if several messages from one sender race with the same message B, only "
            "the one that was delivered last is counted.",
        ),
        engine: str = ENGINE,
        master: str | None = MASTER,
        conf: list[str] | None = CONF,
        as_json: bool = JSON,
    ) -> int:
        """Find races: pairs of messages that were delivered in order only because of their timing.

        The second message of such a pair depends on the first message, but nothing made the second message wait. The
        slack of a race is the additional time that the first message could have taken without being late. Pairs that
        the system itself keeps in order are not races. For example, with --assume fifo, two messages from the same
        sender are not a race.

        Exit codes:
        0: The trace was searched.
        2: Nothing could be read, or the trace has no valid delivery.
        """
        limit = None if within is None else _nanoseconds(within)
        wanted = Wanted(first, limit, every)
        wanted.check()
        declare = assumed(assume) if assume is not None else _declaring
        settings = spark_settings(conf)
        with trace_inputs(trace) as paths:
            chosen = chosen_engine(engine, master, conf, paths)
            with status("reading the trace and looking for races") as report_status:
                if chosen == "spark":
                    from antecede.pipeline.races import races_files

                    report = races_files(
                        paths, declare, wanted, master=master, conf=settings, report_status=report_status
                    )
                else:
                    report = races_here(paths, declare, wanted)
                report["named"] = named(messages_in(report["races"]), paths)
            tell(report, as_json, _lines)
            return exit_code(report, report["deliveries"], "searched", paths)


def _nanoseconds(seconds: float) -> int:
    if not 0 <= seconds <= 9e9:
        raise UsageError(f"--within {seconds}: expected seconds from 0 to 9,000,000,000")
    return round(seconds * 1e9)


def _declaring(metadata: Sequence[Metadata]) -> Declared:
    """Return the guarantee that the metadata of a trace declares. This is the weakest guarantee of all orders in the
    metadata, because a message may pass several domains.

    An order that is not installed here guarantees nothing. Domains that form a cycle also guarantee nothing.

    If the metadata names no order, return the weakest guarantee of all epochs in the metadata. An *epoch* is a topology
    that was in force. If no file has epochs, return the default guarantee (FIFO). Also return the default guarantee if
    a file has no epochs and was not recorded by a server.
    """
    from antecede.recording.segments import RECORDED_BY

    named = declared_orders(metadata)
    if not named:
        given = {epoch.guarantee for one in metadata if one.epochs for epoch in epochs_in(one.epochs, "metadata")}
        # A server whose agents and clients have no rows yet lists no epochs.
        silent = [one for one in metadata if not one.epochs and not str(one.recorded_by).startswith(RECORDED_BY)]
        if silent or not given:
            return Declared()
        return Declared(next(one for one in ("none", "fifo", "causal") if one in given), "metadata")
    kept = {"fifo", "causal"}
    for name in named:
        try:
            kept &= parse(name).guarantees()
        except OrderError:
            kept = set()
    if any(_is_cyclic(one.topology) for one in metadata):
        kept = set()
    return Declared("causal" if "causal" in kept else "fifo" if "fifo" in kept else "none", "metadata")


def _is_cyclic(topology: Any) -> bool:
    """Return whether the domains of a topology in the metadata form a cycle. If they do, they guarantee nothing end to
    end."""
    domains = topology.get("domains") if isinstance(topology, dict) else None
    if not isinstance(domains, dict):
        return False
    try:
        return (
            Topology([Domain(name, tuple(map(str, fields[0]))) for name, fields in domains.items()]).cycle is not None
        )
    except (TypeError, IndexError, KeyError, TopologyError):
        return False


_sources = {
    "metadata": "declared by the trace's metadata",
    "assume": "given by --assume",
    "default": "assumed, because the trace declares none; see --assume",
}


def _lines(report: dict[str, Any]) -> Iterator[str]:
    titles = Titles(report["named"])
    guarantee = report["guarantee"]
    yield f"guarantee: {guarantee} ({_sources[report['declared_by']]})"
    if guarantee == "causal":
        yield "no races: causal order makes every message wait for those that it depends on"
    else:
        yield counted(
            report["pairs"],
            "pair of messages was delivered in order only because of its timing|"
            "pairs of messages were delivered in order only because of their timing",
        )
        if report["late"]:
            yield f"{counted(report['late'], 'delivery|deliveries')} came late: see antecede explain"
        yield _clock(report)
        if report["shown"] and report["shown"] < report["pairs"]:
            shown = "race" if report["shown"] == 1 else f"{report['shown']} races"
            yield f"the {shown} with the least slack:"
        for number, race in enumerate(report["races"], 1):
            yield ""
            yield from _race(number, race, titles)
    aside = set_aside(report, "every race is real, but there may be more")
    if aside:
        yield ""
        yield from aside


def _clock(report: dict[str, Any]) -> str:
    resolution = report["resolution_seconds"]
    if resolution is None:
        return "clocks: no times were recorded, so the slack is unknown"
    untimed = f"; {report['untimed']:,} pairs lack a time" if report["untimed"] else ""
    return f"clocks: times are multiples of {_duration(resolution)}{untimed}"


def _race(number: int, race: dict[str, Any], titles: Titles) -> Iterator[str]:
    first, second = (shown_name(titles(race[key])) for key in ("first", "second"))
    at, source = shown_name(race["at"]), shown_name(race["from"])
    slack = race["slack_seconds"]
    earlier = "" if slack is None or slack < 0 else f" {_duration(slack)}"
    yield f"{number:>3}  {at} delivers {first} from {source} (index {race['first_index']}){earlier} before {second}:"
    for link in race["chain"]:
        yield (
            f"       {shown_name(link['from'])} sends {shown_name(titles(link['message']))} "
            f"(index {link['send_index']}), "
            f"{shown_name(link['to'])} delivers it (index {link['deliver_index']})"
        )
    if slack is None:
        yield f"     a longer delay on {source} → {at} breaks the order; the trace does not show how much longer"
    elif slack < 0:
        yield f"     {first} arrived {_duration(-slack)} after {second}: the system kept more order than assumed"
    else:
        yield f"     an additional delay of more than {_duration(slack)} on {source} → {at} breaks the order"


def _duration(seconds: float) -> str:
    """Format a time with three significant digits, in a suitable unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
