"""``antecede plan``: how should servers be split into domains?"""

import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from antecede import limits
from antecede.cli.engines import chosen_engine, spark_settings, trace_inputs
from antecede.cli.options import CONF, JSON
from antecede.cli.servers import check_topology, read_topology
from antecede.cli.terminal import bar, tell, write_whole
from antecede.cli.wording import counted, shown_name
from antecede.documents import read_text
from antecede.errors import TopologyError, TraceError, UsageError
from antecede.topology import Address, AgentHome, DomainEntry, TopologyFile, parse_topology

if TYPE_CHECKING:
    from antecede.pipeline.planning.problem import Pins
    from antecede.pipeline.planning.traffic import Traffic
    from antecede.trace.schema import Metadata


def register(app: typer.Typer) -> None:
    @app.command()
    def plan(
        source: Annotated[
            list[str],
            typer.Argument(
                metavar="TRACE|MATRIX.csv",
                help="A trace, or a CSV table of traffic: from,to,messages.",
            ),
        ],
        order: str | None = typer.Option(
            None,
            help="Order of every domain. Default: the order of the current topology, if all its domains have the same "
            "order, and otherwise pruned.",
        ),
        model: str = typer.Option(
            "cpu",
            help="Model of the costs: cpu (measured CPU time), or paper (a message in a domain of s servers costs s²).",
        ),
        topology: str | None = typer.Option(
            None,
            metavar="FILE",
            help="File of the current topology: servers, addresses, agents and domains.",
        ),
        servers: str | None = typer.Option(
            None, metavar="FILE", help="CSV table with the server of each process: process,server."
        ),
        busiest: int | None = typer.Option(None, metavar="N", min=2, help="Plan only for the N busiest servers."),
        pins: str | None = typer.Option(
            None,
            metavar="FILE",
            help="TOML file with these keys: 'together' (groups of servers that must share a domain), 'apart' (groups "
            "of servers that must not share a domain) and 'never_router' (servers that must not be routers).",
        ),
        allow_disconnected: bool = typer.Option(
            False,
            "--allow-disconnected",
            help="Allow a plan that does not connect two groups of servers, if these groups exchange no messages.",
        ),
        max_domain: int | None = typer.Option(None, metavar="S", help="Largest number of servers in a domain."),
        max_share: float | None = typer.Option(
            None, metavar="F", help="Largest share of all messages that one router may forward."
        ),
        max_hops: int | None = typer.Option(None, metavar="H", help="Largest number of hops between two servers."),
        write: str | None = typer.Option(None, metavar="FILE", help="Write the plan as a topology file."),
        svg: str | None = typer.Option(None, metavar="FILE", help="Draw the current domains and the planned domains."),
        seed: int = typer.Option(1, min=0, max=2**40, help="Seed of the search. The same seed gives the same plan."),
        sample: int = typer.Option(
            20_000,
            min=0,
            help=f"Number of messages to replay in the simulator, at most {limits.plan_sample_messages_max:,}. "
            "With 0, nothing is replayed.",
        ),
        engine: str = typer.Option("auto", help="Engine that reads the trace: auto, plain or spark."),
        master: str | None = typer.Option(
            None, metavar="URL", help="URL of the Spark master. The search for the plan then runs on Spark, too."
        ),
        conf: list[str] | None = CONF,
        as_json: bool = JSON,
    ) -> int:
        """Find the cheapest split of servers into domains for the traffic in a trace or a table.

        A domain is a group of servers that use one order. A server in several domains is a router. With --model cpu, a
        message costs a fixed amount for each domain that it enters, and an amount for each byte of its stamp (the
        order's control information). Often one domain for all servers is cheapest. If the order is causal, causal
        order holds end to end in every plan.

        Exit codes:
        0: A plan was found.
        1: No plan satisfies all limits. The report names the most restrictive limit.
        2: The command line is wrong, or the input cannot be read.
        """
        if find_spec("numba") is None:
            raise UsageError("plan needs numba and numpy: install antecede[plan]")
        from antecede.pipeline.planning.problem import Bounds, Pins
        from antecede.pipeline.planning.report import Settings, make_plan

        if sample > limits.plan_sample_messages_max:
            raise UsageError(f"--sample {sample}: expected at most {limits.plan_sample_messages_max} messages")
        bounds = Bounds(max_domain, max_share, max_hops)
        bounds.check()
        spark_conf = spark_settings(conf)
        for path in (write, svg):
            if path is not None and not os.access(os.path.dirname(path) or ".", os.W_OK):
                raise UsageError(f"{path}: cannot be written: no such directory, or no write permission")
        known = None if topology is None else read_topology(topology)
        if known is not None and known.objects:
            raise UsageError(f"{known.name}: cannot split a domain with replicated objects ({known.objects[0].name})")
        with bar("planning") as (report_status, step):
            report_status("reading the traffic")
            traffic, described = _read(source, known, servers, engine, master, spark_conf)
            known = known or described
            if busiest is not None:
                traffic = traffic.busiest(busiest)
                known = None
            traffic.check_size()
            if traffic.messages <= 0 or len(traffic.servers) < 2:
                raise TraceError(f"{', '.join(source)}: nothing to plan: no message goes from one server to another")
            if svg is not None and len(traffic.servers) > limits.topology_drawn_servers_max:
                most = limits.topology_drawn_servers_max
                raise UsageError(f"--svg: there are {len(traffic.servers)} servers; a drawing can show at most {most}")
            pinned = _pins(pins, traffic) if pins is not None else Pins()
            settings = Settings(order or _usual_order(known), model, bounds, pinned, allow_disconnected, seed, sample)
            before = None if known is None else [domain.servers for domain in known.domains]
            with ExitStack() as stack:
                restarts = None
                if master is not None:
                    from antecede.pipeline.planning.search import on_spark
                    from antecede.pipeline.sessions import session

                    # The restarts of the search run on Spark, not in this process.
                    running = stack.enter_context(session(master, spark_conf, lean=True))
                    restarts = on_spark(running.context)
                report = make_plan(traffic, settings, before, restarts, step, report_status)
        tell(report, as_json, _lines)
        if not report["feasible"]:
            print(
                f"antecede: no plan satisfies all bounds; the most restrictive one is {report['violated']}",
                file=sys.stderr,
            )
            return 1
        _deliver(report, traffic, settings.order, known, write, svg)
        return 0


def _usual_order(known: TopologyFile | None) -> str:
    orders = {domain.order for domain in known.domains} if known is not None else set()
    return orders.pop() if len(orders) == 1 else "pruned"


def _described(metadata: "Sequence[Metadata]") -> TopologyFile | None:
    """Return the newest topology in a trace's metadata. Return None if there is no topology, or if the newest topology
    does not have the canonical form. Servers and ``simulate --topology`` write this form. Raise :class:`UsageError` if
    the topology has replicated objects."""
    named = [one for one in metadata if isinstance(one.topology, dict)]
    if not named:
        return None
    topology = max(named, key=_newest_change).topology
    try:
        addresses = {}
        for name, text in topology["servers"].items():
            host, _, port = str(text).removeprefix("tcp://").rpartition(":")
            addresses[str(name)] = Address(host.strip("[]"), int(port))
        domains = tuple(DomainEntry(name, tuple(own), order) for name, (own, order) in topology["domains"].items())
        agents = tuple(AgentHome(name, home, kind) for name, (home, kind) in topology["agents"].items())
        made = TopologyFile(
            addresses, domains, agents, topology.get("application"), topology["guarantee"], name="metadata"
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    if topology.get("objects"):
        raise UsageError("the topology in the trace's metadata: cannot split a domain with replicated objects")
    return made


def _newest_change(metadata: "Metadata") -> int:
    from antecede.trace.epochs import epochs_in

    return max((epoch.change for epoch in epochs_in(metadata.epochs, "metadata")), default=0) if metadata.epochs else 0


def _text(path: str) -> str:
    return read_text(path, limits.plan_file_bytes_max, TraceError)


def _read(
    source: list[str],
    known: TopologyFile | None,
    servers: str | None,
    engine: str,
    master: str | None,
    settings: dict[str, str],
) -> "tuple[Traffic, TopologyFile | None]":
    """Return the traffic between servers, and the topology in the trace's metadata (None if there is no topology).
    ``known``: the topology of ``--topology``. ``servers``: the file of ``--servers``."""
    from antecede.pipeline.planning import traffic as traffics

    homes = traffics.read_homes(_text(servers), servers) if servers is not None else None
    if len(source) == 1 and source[0].lower().endswith(".csv"):
        rows = traffics.read_matrix(_text(source[0]), source[0])
        return traffics.of_rows(rows, _home(known, homes), known.servers if known else ()), None
    with trace_inputs(source) as paths:
        if chosen_engine(engine, None, None, paths) == "spark":
            from antecede.pipeline.judge.files import open_trace, spark_for
            from antecede.pipeline.measuring import measured_on

            with spark_for(paths, master, settings, lambda _: None, _described) as (running, given):
                opened = open_trace(running, given, figures=True, numbered=True)
                rows = measured_on(opened)[0]["traffic"]
            described = _described(opened.given.metadata)
            file = known or described
            return traffics.of_rows(rows, _home(file, homes), file.servers if file else ()), described
        from antecede.trace.quarantine import sift
        from antecede.trace.sources import load

        loaded = load(paths)
        described = _described(loaded.metadata)
        trace = sift(loaded.events, loaded.placed).trace
        file = known or described
        return traffics.of_trace(trace, _home(file, homes), file.servers if file else ()), described


def _home(known: TopologyFile | None, homes: dict[str, str] | None) -> Callable[[str], str]:
    """Return a function that finds the server of a process. If the option ``--servers`` is given, the function uses the
    table of this option. Otherwise the function uses the topology. If there is neither a table nor a topology, each
    process is treated as a server."""

    def by_file(process: str) -> str:
        if homes is None or process not in homes:
            raise UsageError(f"process {process} has no server: add a row for this process to the file of --servers")
        if known is not None and homes[process] not in known.servers:
            raise UsageError(
                f"process {process} is on server {homes[process]} in --servers, but the topology has no such server"
            )
        return homes[process]

    if homes is not None:
        return by_file
    if known is None:
        return lambda process: process
    agents = {agent.name: agent.server for agent in known.agents}

    def by_topology(process: str) -> str:
        if process in known.servers:
            return process
        server = agents.get(process) or process.rpartition("@")[2]
        if server not in known.servers:
            raise UsageError(f"process {process} has no server in the topology: assign one with --servers FILE")
        return server

    return by_topology


def _pins(path: str, traffic: "Traffic") -> "Pins":
    from antecede.pipeline.planning.problem import Pins

    try:
        found = msgspec.convert(tomllib.loads(_text(path)), Pins)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: {error}: expected the keys 'together', 'apart' (lists of lists) and 'never_router' (a list)"
        ) from None
    known = set(traffic.servers)
    for name in [*found.never_router, *(name for group in (*found.together, *found.apart) for name in group)]:
        if name not in known:
            raise UsageError(f"{path}: server {name} is not in the traffic")
    for group in (*found.together, *found.apart):
        if len(set(group)) < 2:
            raise UsageError(
                f"{path}: each group in 'together' and 'apart' needs at least 2 servers, but one has {len(set(group))}"
            )
    return found


def _deliver(
    report: dict[str, Any],
    traffic: "Traffic",
    order: str,
    known: TopologyFile | None,
    write: str | None,
    svg: str | None,
) -> None:
    """Write the plan as a topology file if ``write`` is given, and draw it if ``svg`` is given."""
    if write is None and svg is None:
        return
    from antecede.pipeline.planning.report import topology_of

    made, called = topology_of(report, traffic.servers, order, known)
    header = "".join(f"# {short} is {json.dumps(name)}\n" for name, short in called.items())
    after = parse_topology(header + made.text(), write or "plan")
    refusals = check_topology(after).refusals
    if refusals:
        raise TopologyError(f"the plan cannot be used with order {order}: {refusals[0]}")
    if write is not None:
        write_whole(write, [header, made.text()])
    if svg is not None:
        flat = {"domains": {"all": list(traffic.servers)}}
        before = known if known is not None else topology_of(flat, traffic.servers, order, None)[0]
        write_whole(svg, _stacked({"before": before, "after": after}))


def _stacked(files: Mapping[str, TopologyFile]) -> str:
    """Draw topologies into one SVG document, one below the other. The keys of ``files`` are the titles of the
    drawings."""
    from antecede.topology import draw

    parts, width, height = [], 0.0, 0.0
    for title, file in files.items():
        drawn = draw(file, title)
        size = re.search(r'width="(\d+)" height="(\d+)"', drawn)
        assert size is not None
        parts.append(drawn.replace("<svg ", f'<svg y="{height:.0f}" ', 1))
        width, height = max(width, float(size[1])), height + float(size[2])
    box = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    about = "<title>domains before and after</title>"
    page = '<rect class="page" width="100%" height="100%"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" class="antecede" {box}>\n{about}\n{page}\n{"".join(parts)}</svg>\n'


_domains_shown = 40


def _lines(report: dict[str, Any]) -> Iterator[str]:
    model, cost = report["model"], report["cost"]
    local = f"; {report['local']:,} stayed within a server" if report["local"] else ""
    yield f"{counted(report['servers'], 'server')}, {counted(report['messages'], 'message')} between them{local}"
    yield from _model_lines(model)
    if not report["feasible"]:
        yield f"no plan satisfies all bounds; the best one breaks {report['violated']}"
        return
    if report["flat"]:
        yield f"stay flat: one domain costs {_amount(cost['after'], model)} per message; no split found costs less"
    else:
        yield (
            f"plan: {counted(len(report['domains']), 'domain')}, {_amount(cost['after'], model)} per message, "
            f"{report['hops_mean']:.2f} hops, at most {report['hops_max']}"
        )
    today = "unknown" if cost["before"] is None else _amount(cost["before"], model)
    yield f"  current domains: {today}; no plan costs less than {_amount(cost['lower_bound'], model)}"
    if cost["simulated_after"] is not None:
        sent = counted(report["replay"]["messages"], "message")
        yield f"  replayed with {sent} under {model['order']}: {_amount(cost['simulated_after'], model)}"
    for name, value in report["references"].items():
        why = report["reference_figures"][name]["violated"]
        yield f"  {name:<7}{_amount(value, model) if value is not None else f'not allowed: {why}'}"
    for router in report["routers"][:3]:
        yield (
            f"  router {shown_name(router['server'])}: forwards {router['share']:.1%} of all messages; "
            f"its failure cuts off {counted(router['cut_off'], 'server')}"
        )
    if not report["flat"]:
        for name, members in list(report["domains"].items())[:_domains_shown]:
            yield f"  {name}: {' '.join(map(shown_name, members))}"
        if len(report["domains"]) > _domains_shown:
            yield f"  … and {len(report['domains']) - _domains_shown} more (--json, --write)"
    yield "front: cost, hops, busiest router, domains"
    for one in report["front"]:
        yield (
            f"  {_amount(one['cost'], model):>14}{one['hops_mean']:>7.2f}{one['busiest_share']:>8.1%}"
            f"{len(one['domains']):>6}"
        )


def _model_lines(model: dict[str, Any]) -> Iterator[str]:
    if model["name"] == "paper":
        yield "model: the paper's, s² for a domain of s servers"
    else:
        yield (
            f"model: {model['alpha'] / 1e3:,.0f} µs for a hop and {model['beta'] / 1e3:.2f} µs for a byte of stamp, "
            f"order {model['order']}"
        )
    even = model["break_even"]
    yield (
        f"  with uniform traffic a bus is cheaper than one domain from {even} servers on"
        if even is not None
        else "  with uniform traffic a bus is not cheaper than one domain, whatever the number of servers"
    )


def _amount(value: float, model: dict[str, Any]) -> str:
    return f"{value:,.1f}" if model["name"] == "paper" else f"{value / 1e3:,.1f} µs"
