"""``antecede topology``: check, show or generate a topology (servers grouped into domains)."""

import json
import sys
from typing import Any

import typer

from antecede.cli import topology_change
from antecede.cli.options import JSON, KEYS, Keys
from antecede.cli.organisation import check_topology, read_topology
from antecede.cli.terminal import rich_console
from antecede.cli.writing import write_text
from antecede.errors import UsageError
from antecede.topology import Check, TopologyFile, cost_max, cost_mean, shown
from antecede.topology import make as made
from antecede.topology.graph import hops_mean
from antecede.topology.guarantees import strength

_pairs_shown_max = 400
"""The largest number of pairs of domains that the report lists one by one. If there are more pairs, the report has
one line per guarantee, with the number of pairs that have this guarantee. The output of ``--json`` always has all
pairs."""


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, help="Check, show, generate or change a topology: servers grouped into domains."
    )
    app.add_typer(group, name="topology")
    topology_change.add_to(group)

    @group.command("check")
    def check(
        file: str = typer.Argument(..., metavar="FILE", help="Topology file (TOML)."),
        classes: bool = typer.Option(False, "--classes", help="Also import the classes of agents and objects."),
        as_json: bool = JSON,
    ) -> int:
        """Check that a topology is a forest (has no cycle), and print which order is kept between each pair of domains.

        Exit codes:
        0: The topology can be used.
        1: The topology must not be used.
        2: The file cannot be read, or --classes is given and a class cannot be imported.

        There are five reasons why a topology must not be used:
        cycle: The domains form a cycle.
        guarantee: The file has several domains, and the order of a domain is weaker than the file's "guarantee"
        (default: causal).
        domains: The file has several domains, but the order of a domain supports only a single domain.
        timers: An order needs timers, which servers do not have.
        objects: The servers of a replicated object are not all in one domain with the order "objects".
        """
        topology = read_topology(file)
        verdict = check_topology(topology)
        loaded = _classes(topology, file) if classes else None
        if as_json:
            print(json.dumps({**_document(topology, verdict), "classes": loaded}, indent=2))
        else:
            _report(topology, verdict)
            for name, kind in (loaded or {}).items():
                print(f"class of {name}: {kind['class']}, handles {', '.join(kind['handles']) or 'nothing'}")
        return 0 if verdict.holds else 1

    @group.command("show")
    def show(
        file: str = typer.Argument(..., metavar="FILE", help="Topology file (TOML)."),
        svg: str | None = typer.Option(
            None, metavar="FILE", help="Draw the domains into this SVG file, not in the terminal."
        ),
        as_json: bool = JSON,
    ) -> None:
        """Draw the domains as a tree. An asterisk marks a router: a server that is in several domains."""
        from antecede.topology.svg import draw, outline

        topology = read_topology(file)
        cycle = topology.organisation.cycle
        if cycle is not None:
            print(f"antecede: not a forest: {shown(cycle)}", file=sys.stderr)
        if svg is not None:
            write_text(svg, draw(topology))
        if as_json:
            print(json.dumps({**_layout(topology), "svg": svg}, indent=2))
        elif svg is None:
            unicode = "utf" in (sys.stdout.encoding or "ascii").lower()
            print(outline(topology, unicode=unicode), end="")

    @group.command("forget")
    def forget(
        file: str = typer.Argument(..., metavar="FILE", help="Topology file of running servers."),
        domain: str = typer.Argument(..., metavar="DOMAIN", help="The domain to reset."),
        keys: Keys = KEYS,
    ) -> None:
        """Reset a domain after one of its servers has lost its data, and accept the loss.

        All members of the domain must be running. Unacknowledged messages are sent again, so a server may get a message
        twice. The command is refused (exit code 2) if there is no sign of a loss of data. There are two signs: a link
        of the domain is stopped (see `antecede status`), or an earlier reset has reached only some of the members.

        A domain with replicated objects cannot be reset. If a server of such a domain has lost its data, restore the
        system from a backup.
        """
        from antecede.cli.live import Access, ask_server
        from antecede.server.operations.resetting import next_generation

        topology = read_topology(file)
        if domain not in topology.organisation.domains:
            raise UsageError(f"{file} has no domain {domain}")
        members = {server: topology.servers[server] for server in topology.domain(domain).servers}
        access = Access(file, "operator", *keys)
        generation = next_generation(domain, {name: ask_server(at, access, "status") for name, at in members.items()})
        for address in members.values():
            print(json.dumps(ask_server(address, access, "forget", domain, str(generation))))

    @group.command("make")
    def make(
        shape: str = typer.Argument(
            ..., metavar="SHAPE", help="Shape of the topology: bus, daisy, tree, star or flat."
        ),
        servers: int = typer.Option(..., help="Number of servers."),
        size: int | None = typer.Option(
            None,
            help="Number of servers per domain. Default for n servers: bus 0.84·√n (the cheapest size), daisy √n, "
            "tree 4, star 2.",
        ),
        branches: int | None = typer.Option(
            None, help="Number of domains below each domain of a tree. Default: size minus one."
        ),
        order: str = typer.Option("pruned", help="Order of every domain: NAME or NAME:option=value,…"),
        host: str = typer.Option("127.0.0.1", help="Host of the servers."),
        port: int = typer.Option(7101, help="Port of the first server. The other servers get the next ports."),
        output: str | None = typer.Option(
            None, "-o", "--output", metavar="FILE", help="File to write. Default: standard output."
        ),
        as_json: bool = JSON,
    ) -> None:
        """Write a topology file: a bus, a daisy (a chain), a tree or a star of domains, or one flat domain."""
        topology = made(shape, servers, size, order, host, port, branches)
        refusals = check_topology(topology).refusals
        if refusals:
            raise UsageError(refusals[0])
        if output is not None:
            write_text(output, topology.text())
        if as_json:
            text = topology.text() if output is None else None
            print(json.dumps({**_layout(topology), "file": output, "text": text}, indent=2))
        elif output is None:
            print(topology.text(), end="")


def _classes(topology: TopologyFile, path: str) -> dict[str, dict[str, Any]]:
    """Import the classes of agents and objects, as the servers do. Return the class of each agent and each object, and
    the notifications that it handles (an empty list for objects)."""
    from antecede.engine.agents import handlers_of
    from antecede.live.application import agents_of, find_beside, plan_of

    find_beside(path)
    found: dict[str, dict[str, Any]] = {}
    for server in topology.servers:
        for name, kind in agents_of(topology, server).items():
            found[name] = {"class": f"{kind.__module__}:{kind.__qualname__}", "handles": [*handlers_of(kind)]}
    plan_of(topology)
    for one in topology.objects:
        found[one.name] = {"class": one.kind, "handles": []}
    return found


def _layout(topology: TopologyFile) -> dict[str, Any]:
    """Return the servers and domains of a topology for a JSON document, without the result of a check."""
    organisation = topology.organisation
    cycle = organisation.cycle
    return {
        "file": topology.name,
        "epoch": topology.epoch,
        "cycle": None if cycle is None else shown(cycle),
        "trees": len(organisation.trees),
        "servers": {name: str(address) for name, address in topology.servers.items()},
        "routers": [name for name in topology.servers if organisation.is_router(name)],
        "domains": [
            {"name": domain.name, "order": domain.order, "servers": list(domain.servers)} for domain in topology.domains
        ],
    }


def _document(topology: TopologyFile, verdict: Check) -> dict[str, Any]:
    organisation = topology.organisation
    return {
        "file": topology.name,
        "epoch": topology.epoch,
        "forest": verdict.cycle is None,
        "cycle": None if verdict.cycle is None else shown(verdict.cycle),
        "refused": list(verdict.refusals),
        "promised": topology.guarantee,
        "trees": len(organisation.trees),
        "servers": [
            {"name": name, "address": str(address), "domains": list(organisation.domains_of(name))}
            for name, address in topology.servers.items()
        ],
        "domains": [
            {
                "name": domain.name,
                "order": domain.order,
                "guarantees": sorted(verdict.facts[domain.name].guarantees),
                "servers": list(domain.servers),
                "routers": [server for server in domain.servers if organisation.is_router(server)],
            }
            for domain in topology.domains
        ],
        "pairs": [
            {
                "from": pair.source,
                "to": pair.target,
                "route": list(pair.route) or None,
                "guarantee": strength(pair.guarantees),
                "guarantees": sorted(pair.guarantees),
            }
            for pair in verdict.pairs
        ],
        "cost": _cost(topology) if verdict.cycle is None else None,
    }


def _cost(topology: TopologyFile) -> dict[str, float]:
    organisation = topology.organisation
    return {
        "mean": round(cost_mean(organisation), 3),
        "max": cost_max(organisation),
        "flat": float(len(topology.servers) ** 2),
        "hops_mean": round(hops_mean(organisation), 3),
    }


def _report(topology: TopologyFile, verdict: Check) -> None:
    from rich.table import Table

    organisation = topology.organisation
    trees = len(organisation.trees)
    print(
        f"{topology.name}: {_count(len(topology.servers), 'server')}, {_count(len(topology.domains), 'domain')}, "
        f"{_count(trees, 'part' if verdict.cycle else 'tree')}; epoch {topology.epoch}"
    )
    console = rich_console(soft_wrap=True)
    if verdict.pairs:
        routers = {name for name in topology.servers if organisation.is_router(name)}
        domains = _table(Table, "domain", "order", "keeps", "servers (* routers)")
        for domain in topology.domains:
            members = " ".join(f"{name}*" if name in routers else name for name in domain.servers)
            domains.add_row(domain.name, domain.order, strength(verdict.facts[domain.name].guarantees), members)
        console.print(domains)
        if len(verdict.pairs) <= _pairs_shown_max:
            pairs = _table(Table, "from", "to", "route", "end to end")
            for pair in verdict.pairs:
                route = " – ".join(pair.route) or "no route"
                pairs.add_row(pair.source, pair.target, route, strength(pair.guarantees))
            console.print(pairs)
        else:
            kept: dict[str, int] = {}
            for pair in verdict.pairs:
                description = strength(pair.guarantees) if pair.route else "no route"
                kept[description] = kept.get(description, 0) + 1
            for description, count in kept.items():
                print(f"{count} pairs of domains: {description}")
        cost = _cost(topology)
        print(
            f"cost of a message (s² in a domain of s): mean {cost['mean']:.1f}, at most {cost['max']:.0f}, "
            f"in one flat domain {cost['flat']:.0f}; {cost['hops_mean']:.2f} hops"
        )
    for refusal in verdict.refusals:
        print(f"refused: {refusal}")
    if verdict.holds:
        unseen = topology.agents or topology.objects
        print("ok; classes were not checked: servers import them when they start" if unseen else "ok")


def _table(kind: Any, *columns: str) -> Any:
    table = kind(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
