"""``antecede simulate``: simulate one run of an ordering protocol, and print the cost of the order. The same seed gives
the same run."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import typer

from antecede import limits
from antecede.cli.options import JSON
from antecede.cli.servers import read_topology, usable_topology
from antecede.cli.terminal import print_diagram, watched, write_svgs
from antecede.cli.wording import counted
from antecede.diagram import from_events
from antecede.errors import UsageError
from antecede.orders import parse
from antecede.trace import Event, Metadata, TraceWriter, judge


def register(app: typer.Typer) -> None:
    @app.command()
    def simulate(
        order: str | None = typer.Option(
            None,
            help="The order: NAME or NAME:option=value,… (see `antecede orders`). Default: pruned, or the orders in "
            "the topology.",
        ),
        processes: int | None = typer.Option(
            None, help="Number of processes. Default: 8, or the number of servers in the topology."
        ),
        messages: int = typer.Option(1000, help="Number of sends, over all processes."),
        multicast: bool = typer.Option(False, "--multicast", help="Send each message to a random set of processes."),
        broadcast: bool = typer.Option(False, "--broadcast", help="Send each message to all other processes."),
        workload: str = typer.Option(
            "",
            help="Pattern of the messages: clusters, request-reply or ping-pong. Default: each message goes to one "
            "random process.",
        ),
        gap: str = typer.Option("exponential:0.1", help="Time between a process's sends: SPEC."),
        delay: str = typer.Option("exponential:0.1", help="Transit time of a packet: SPEC."),
        fifo_links: bool = typer.Option(False, "--fifo-links", help="Let links keep the order of packets."),
        loss: float = typer.Option(0.0, help="Share of packets that are lost. The link resends lost packets."),
        duplicate: float = typer.Option(0.0, help="Share of packets that arrive twice."),
        crash: float = typer.Option(
            0.0,
            help="Share of a process's steps (send, arrival, timer) in which it crashes. It restarts later.",
        ),
        partition: float = typer.Option(0.0, help="Probability that a send makes the network split for a while."),
        warmup: int = typer.Option(
            0,
            help="Number of sends before the measurement begins. The figures do not count these sends and their "
            "deliveries, but the trace contains them.",
        ),
        seed: int = typer.Option(1, help="Seed of the run. The same seed gives the same trace, byte for byte."),
        topology: str | None = typer.Option(
            None, metavar="FILE", help="Simulate the servers of this topology, with routers between domains."
        ),
        unchecked: bool = typer.Option(
            False, "--unchecked", help="Also accept a topology that `antecede topology check` refuses."
        ),
        trace: str | None = typer.Option(
            None, metavar="FILE", help="Record the run as a trace: .jsonl, .jsonl.gz or .parquet."
        ),
        diagram: bool = typer.Option(False, "--diagram", help="Draw the run in the terminal. The run must be small."),
        svg: str | None = typer.Option(None, metavar="FILE", help="Draw the run into this SVG file."),
        as_json: bool = JSON,
    ) -> int:
        """Run one ordering protocol in a seeded simulation: virtual time, random delays, and faults if requested.

        SPEC is the distribution of a time in seconds: constant:TIME, exponential:MEAN, uniform:LOWEST,HIGHEST or
        pareto:SHAPE,LOWEST. For example, exponential:0.1 means random times with a mean of 0.1 s.

        Exit codes:
        0: All messages were delivered.
        1: A message was never delivered.
        """
        from antecede.simulator.run import Setup
        from antecede.simulator.run import simulate as run

        if sum((multicast, broadcast, bool(workload))) > 1:
            raise UsageError("--multicast, --broadcast and --workload exclude each other")
        shape = "multicast" if multicast else "broadcast" if broadcast else workload or "unicast"
        if unchecked and topology is None:
            raise UsageError("--unchecked needs --topology")
        file = None if topology is None else read_topology(topology) if unchecked else usable_topology(topology)
        spec = parse(order or "pruned")
        setup = Setup(
            spec,
            processes if processes is not None else 8 if file is None else len(file.servers),
            messages,
            shape,
            gap,
            delay,
            fifo_links,
            loss,
            duplicate,
            crash,
            partition,
            warmup,
            seed,
            None if file is None else file.organisation,
            {} if file is None or order else {domain.name: parse(domain.order) for domain in file.domains},
        )
        setup.check()
        if (diagram or svg is not None) and messages > limits.diagram_events_max:
            raise UsageError(f"a diagram shows at most {limits.diagram_events_max} events: choose fewer messages")
        rows: list[Event] = []
        sinks: list[Callable[[Event], None]] = []
        with ExitStack() as stack:
            if trace is not None:
                described = None if file is None else json.loads(file.canonical())
                metadata = Metadata(order=", ".join(map(str, setup.used())), topology=described)
                sinks.append(stack.enter_context(TraceWriter(trace, metadata)).write)
            if diagram or svg is not None:
                sinks.append(rows.append)
            started = time.perf_counter()
            counters = setup.counters()
            with watched("simulating: messages sent", setup.messages, lambda: counters.seen):
                figures = run(setup, _all(sinks) if sinks else None, counters)
            figures["seconds"] = round(time.perf_counter() - started, 3)
        print(json.dumps(figures, indent=2) if as_json else "\n".join(_lines(figures)))
        if rows:
            _draw(rows, setup.names(), diagram, svg, sys.stderr if as_json else sys.stdout)
        return 1 if figures["undelivered"] else 0


def _all(sinks: list[Callable[[Event], None]]) -> Callable[[Event], None]:
    def put(event: Event) -> None:
        for sink in sinks:
            sink(event)

    return put


def _lines(figures: dict[str, Any]) -> Iterator[str]:
    stamp, latency = figures["stamp"], figures["latency"]
    processes, messages = counted(figures["processes"], "process|processes"), counted(figures["messages"], "message")
    yield f"{figures['order']}: {processes}, {messages}"
    yield f"  deliveries   {figures['deliveries']:,} ({figures['undelivered']:,} undelivered)"
    yield f"  held back    {figures['held']:.1%} of arrivals"
    yield f"  latency      mean {latency['mean']:.3f} s, p99 {latency['p99']:.3f} s (virtual)"
    yield (
        f"  stamp        {stamp['bytes_mean']:.1f} bytes per copy (max {stamp['bytes_max']}); "
        f"as the papers count: {stamp['dependents_mean']:.1f} dependents, {stamp['paper_bytes_mean']:.0f} bytes"
    )
    if "hops" in figures:
        yield f"  hops         {figures['hops']['mean']:.2f} packets per copy; stamps are added over them"
    speed = figures["deliveries"] / max(figures["seconds"], 1e-3)
    yield f"  took         {figures['seconds']} s, {speed:,.0f} deliveries/s"


def _draw(rows: list[Any], names: list[str], diagram: bool, svg: str | None, stream: Any) -> None:
    late = {(late.message, late.to) for late in judge(rows, ("causal",)).causal}
    drawing = from_events(rows, processes=names, late=late)
    if diagram:
        print_diagram(drawing, stream)
    if svg is not None:
        write_svgs([drawing], svg)
