"""``antecede topology``: check, show or generate a topology (servers grouped into domains)."""

import json
import sys
from datetime import datetime
from secrets import token_hex
from time import time
from typing import TYPE_CHECKING, Any

import typer

from antecede.cli.options import JSON, KEYS, Keys
from antecede.cli.servers import check_topology, read_topology, usable_topology
from antecede.cli.terminal import rich_console, write_text
from antecede.crashes import print_error
from antecede.errors import ClosedError, RefusedError, UsageError
from antecede.topology import Check, TopologyFile, cost_max, cost_mean, hops_mean, shown, strength
from antecede.topology import make as made

if TYPE_CHECKING:
    from antecede.cli.servers import Access
    from antecede.server.change import ChangeRequest, Outcome, Steps

_RUNNING = typer.Argument(None, metavar="TOPOLOGY", help="Topology file of running servers.")
_STOPPED = typer.Option(
    None, "--data", metavar="DIR", help="Instead of TOPOLOGY: folder with the data directories of stopped servers."
)


def add_to(group: typer.Typer) -> None:
    """Add the commands that change a topology.

    ``antecede topology apply``: change the topology of a system that has data.
    """

    @group.command("apply")
    def apply(
        new: str = typer.Argument(..., metavar="NEW", help="New topology file (TOML)."),
        old: str | None = typer.Option(
            None,
            "--from",
            metavar="OLD",
            help="File of the current topology. If another topology is in force, the change is refused.",
        ),
        data: str | None = typer.Option(
            None, metavar="DIR", help="Change the topology of stopped servers. Their data directories are in DIR."
        ),
        limit: float = typer.Option(
            60.0,
            metavar="SECONDS",
            help="Time to wait for letters in transit. If they take longer, the change is abandoned.",
        ),
        dry_run: bool = typer.Option(False, "--dry-run", help="Only show what would change, pause or be refused."),
        drop: bool = typer.Option(
            False,
            "--drop",
            help="Allow a change that loses data. Waiting and dead letters of removed agents are lost. Clients of a "
            "removed server are forgotten, unless the table [moved] in NEW names another server for them.",
        ),
        keys: Keys = KEYS,
        as_json: bool = JSON,
    ) -> int:
        """Change the topology of a system: add, remove and move agents, servers and domains.

        Agents that you do not remove keep their states, letters, timers and unanswered questions. Start new servers
        first (`antecede serve NEW --server NAME --data DIR`). A new server waits until this command adds it.

        The option --dry-run shows which domains pause, and which servers must run. The other servers may be down; they
        learn of the change later.

        If the command is killed, run it again. If you do not run it again, the servers end the change. They complete
        the change if it was already decided. Otherwise they abandon the change after 15 seconds, and the old topology
        stays in force.

        Exit codes:
        0: The change was made. With --dry-run: the change would not be refused.
        1: The change is refused.
        2: The change could not be made.
        """
        from antecede.cli.servers import Access
        from antecede.live.application import find_beside
        from antecede.live.directories import change_directories
        from antecede.server.change import carry_out

        file = usable_topology(new)
        before = None if old is None else usable_topology(old)
        find_beside(new)
        if not 1 <= limit <= 3_600:
            raise UsageError(f"--limit {limit:g}: expected 1 to 3600 seconds")
        request = _request(
            file, dry=dry_run, drop=drop, limit_seconds=limit, basis="" if before is None else before.epoch
        )
        if data is None:
            access = Access(new, "operator", *keys)
            outcome = _on_servers(carry_out(request), [file, before], access)
        else:
            outcome = change_directories(data, request, _Progress())
        if as_json:
            print(json.dumps(change_document(outcome, file), indent=2))
        else:
            _report_change(outcome, file)
        return 1 if outcome.state == "refused" else 0

    @group.command("history")
    def history(
        topology: str | None = _RUNNING,
        data: str | None = typer.Option(
            None, metavar="DIR", help="Instead of TOPOLOGY: folder with the servers' data directories."
        ),
        keys: Keys = KEYS,
        as_json: bool = JSON,
    ) -> int:
        """Show the topologies that were in force, and any unfinished change.

        Exit codes:
        0: All servers answered.
        1: A server does not answer.
        """
        silent: dict[str, str] = {}
        if data is not None:
            servers = _histories(data)
        else:
            servers, silent = _asked_histories(_given(topology), keys)
        if as_json:
            print(json.dumps({"servers": servers, "silent": silent}, indent=2))
        else:
            for server, one in servers.items():
                epochs = one["epochs"]
                print(f"{server}: " + ", ".join(map(_shown, epochs)))
                if progress := one["in_progress"]:
                    print(f"{server}: change {progress['change']} is {progress['state']} and not finished")
            for server, reason in silent.items():
                print(f"{server}: {reason}")
        return 1 if silent else 0

    @group.command("abort")
    def abort(
        topology: str | None = _RUNNING,
        data: str | None = _STOPPED,
        keys: Keys = KEYS,
        as_json: bool = JSON,
    ) -> None:
        """End a change that is in progress.

        If the change was already decided, the command completes it. If the change was not decided yet, the command
        abandons it, and the old topology stays in force.
        """
        _end("", topology, data, keys, as_json)

    @group.command("resolve")
    def resolve(
        topology: str | None = _RUNNING,
        decision: str = typer.Option(
            ...,
            metavar="WHAT",
            help="The decision: abandon or commit. Choose commit only if you know that the change was decided.",
        ),
        data: str | None = _STOPPED,
        keys: Keys = KEYS,
        as_json: bool = JSON,
    ) -> None:
        """End an unfinished change whose coordinator has lost its data: abandon or commit the change.

        One server is the coordinator of a change. Among the servers that are in both the old and the new topology, the
        coordinator is the server whose name comes first (s2 before s10). Usually only the coordinator's log shows
        whether the change was decided. So if this log is lost, you must decide.

        If another server has already made the change, your decision is ignored, and all other servers make the change,
        too. If you find the coordinator's old data later, never start the coordinator with this data.
        """
        if decision not in ("abandon", "commit"):
            raise UsageError(f"--decision {decision}: expected abandon or commit")
        _end(decision, topology, data, keys, as_json)


def _shown(epoch: dict[str, Any]) -> str:
    """Return a text about one topology of the history: the number of the change that made the topology, the epoch (a
    hash of the topology) and, if known, the time when the topology came into force."""
    since = epoch["since_ms"]
    when = f" ({datetime.fromtimestamp(since / 1000):%Y-%m-%d %H:%M:%S})" if since else ""
    return f"{epoch['change']} {epoch['epoch']}{when}"


def _given(topology: str | None) -> str:
    if topology is None:
        raise UsageError("expected the topology file of running servers, or --data DIR for stopped servers")
    return topology


def _histories(data: str) -> dict[str, dict[str, Any]]:
    from antecede.live.directories import histories

    found = histories(data)
    return {
        server: {
            **state,
            "epochs": [{"change": one.change, "epoch": one.epoch, "since_ms": one.clock_ms or None} for one in epochs],
        }
        for server, (state, epochs) in found.items()
    }


def _asked_histories(topology: str, keys: Keys) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    from antecede.cli.servers import Access, addresses, ask_server

    access = Access(topology, "operator", *keys)
    found: dict[str, dict[str, Any]] = {}
    silent: dict[str, str] = {}
    for name, address in addresses(topology).items():
        try:
            document = ask_server(address, access, "change-history")
        except (ClosedError, RefusedError) as error:
            silent[name] = str(error)
        else:
            found[str(document.pop("server"))] = document
    return found, silent


def _end(decision: str, topology: str | None, data: str | None, keys: Keys, as_json: bool) -> None:
    from antecede.cli.servers import Access
    from antecede.live.directories import finish
    from antecede.server.change import end_change

    if data is not None:
        outcome = finish(data, int(time() * 1000), resolve=decision)
    else:
        file = usable_topology(_given(topology))
        access = Access(_given(topology), "operator", *keys)
        outcome = _on_servers(end_change(_request(file, resolve=decision)), [file], access)
    if as_json:
        ended = [{"change": number, "state": state} for number, state in outcome.ended.items()]
        report = {"change": outcome.number, "epoch": outcome.old.epoch, "ended": ended, "silent": list(outcome.absent)}
        print(json.dumps(report, indent=2))
    else:
        for number, state in outcome.ended.items():
            print(f"{state}: change {number}")
        if not outcome.ended:
            print("nothing to end: no change was in progress")
        for server in outcome.absent:
            print(f"{server} does not answer; if it takes part in a change, it learns the decision from the others")
        print(f"in force: change {outcome.number}, epoch {outcome.old.epoch}")


def _request(new: TopologyFile, **more: Any) -> "ChangeRequest":
    from antecede.server.change import ChangeRequest

    return ChangeRequest(new, tuple(new.servers), token_hex(8), int(time() * 1000), attempt=token_hex(8), **more)


def _on_servers(steps: "Steps", files: list[TopologyFile | None], access: "Access") -> "Outcome":
    import asyncio

    from antecede.live.client.operator import RunningServers

    known = [file for file in files if file is not None]
    progress = _Progress()
    servers = RunningServers(known, access.token, access.tls, access.keyring, progress, progress.slow)
    try:
        return asyncio.run(servers.drive(steps))
    except KeyboardInterrupt:
        if servers.begun:
            print_error(
                f"change {servers.begun} is in progress: run the same command again, or end it: antecede topology abort"
            )
        raise


class _Progress:
    """Prints the progress of a change on a terminal, one line per step. A line that equals the previous line is not
    printed."""

    def __init__(self) -> None:
        self._last = ""
        self._shown = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        if self._shown and text != self._last:
            self._last = text
            print(f"antecede: {text}", file=sys.stderr, flush=True)

    def slow(self, text: str) -> None:
        """Print ``text``, which says that a server does not answer. Print it even if standard error is not a
        terminal."""
        print_error(text)


def change_document(outcome: "Outcome", new: TopologyFile) -> dict[str, Any]:
    """Return the result of ``antecede topology apply`` as a JSON document. ``new``: the requested topology."""
    plan = outcome.change
    done = outcome.state in ("done", "unchanged")
    servers = sorted({server for domain in plan.region for server in outcome.old.organisation.domains[domain].servers})
    return {
        "state": outcome.state,
        "system": outcome.system,
        "change": outcome.number,
        "epoch_before": outcome.old.epoch,
        "epoch_after": new.epoch if done else outcome.old.epoch,
        "changes": [
            {"kind": one.kind, "name": one.name, "before": one.before or None, "after": one.after or None}
            for one in plan.differences
        ],
        "pauses": {"domains": list(plan.region), "servers": servers},
        "moves": [{"agent": address, "letters": letters} for address, letters in sorted(outcome.letters.items())],
        "refused": list(outcome.refusals),
        "needed": list(plan.needed) if plan.differences else [],
        "absent": list(outcome.absent),
    }


def _report_change(outcome: "Outcome", new: TopologyFile) -> None:
    from rich.table import Table

    if outcome.state == "unchanged":
        print(f"nothing to change: {new.name} is in force (change {outcome.number}, epoch {new.epoch})")
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("change", "name", "before", "after"):
        table.add_column(column, overflow="fold")
    for one in outcome.change.differences:
        after = one.after or ("deleted with its state" if one.kind == "agent-removed" else "–")
        table.add_row(one.kind.replace("-", " "), one.name, one.before or "–", after)
    rich_console(soft_wrap=True).print(table)
    waiting = sum(outcome.letters.values())
    if outcome.letters:
        count = len(outcome.letters)
        leave = "1 agent or client leaves its" if count == 1 else f"{count} agents and clients leave their"
        print(f"{leave} server, with {waiting} letter{'' if waiting == 1 else 's'}")
    pauses = ", ".join(outcome.change.region)
    print(f"pauses until its letters have arrived: {pauses}" if pauses else "nothing pauses")
    if outcome.change.needed:
        print(f"must run: {', '.join(outcome.change.needed)}")
    for refusal in outcome.refusals:
        print(f"refused: {refusal}")
    for server in outcome.absent if outcome.state != "refused" else ():
        print(f"{server} is not running; it learns the change when it connects")
    if outcome.state == "done":
        print(f"done: change {outcome.number}, epoch {outcome.old.epoch} → {new.epoch}")
    elif outcome.state == "planned":
        print(f"not changed (--dry-run): epoch {outcome.old.epoch} → {new.epoch}")


_pairs_shown_max = 400
"""The largest number of pairs of domains that the report lists one by one. If there are more pairs, the report has
one line per guarantee, with the number of pairs that have this guarantee. The output of ``--json`` always has all
pairs."""


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, help="Check, show, generate or change a topology: servers grouped into domains."
    )
    app.add_typer(group, name="topology")
    add_to(group)

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
        from antecede.topology import draw, outline

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
        from antecede.cli.servers import Access, ask_server
        from antecede.server.operator import next_generation

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
