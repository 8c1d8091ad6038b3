"""``antecede topology apply``: change the topology of a system that has data."""

import json
import sys
from typing import TYPE_CHECKING, Any

import typer

from antecede.cli.options import AUTHORITY, CREDENTIALS, TOKEN

if TYPE_CHECKING:
    from antecede.server.changing import Outcome
    from antecede.topology import TopologyFile


def add_to(group: typer.Typer) -> None:
    """Add the commands that change a topology."""

    @group.command("apply")
    def apply(
        new: str = typer.Argument(..., metavar="NEW", help="The topology file to put in force (TOML)."),
        old: str | None = typer.Option(
            None, "--from", metavar="OLD", help="The topology in force: needed for data of older versions."
        ),
        data: str | None = typer.Option(
            None, metavar="DIR", help="The folder with the data directories of stopped servers."
        ),
        dry_run: bool = typer.Option(False, "--dry-run", help="Only show what would change, pause or be refused."),
        drop: bool = typer.Option(
            False, "--drop", help="Lose the letters of agents that are removed, and the clients of removed servers."
        ),
        token_file: str | None = TOKEN,
        authority: str | None = AUTHORITY,
        credentials: str | None = CREDENTIALS,
        as_json: bool = typer.Option(False, "--json", help="One JSON document on standard output."),
    ) -> int:
        """Change the topology: add, remove and move agents, servers and domains. Nothing is lost.

        States, letters, timers and questions stay with their agents. A running system cannot be changed yet: stop the
        servers, and give the folder of `antecede up --data` with --data. If the command is killed, run it again: it
        finishes the change, or begins again. Exit code 1 if the change is refused.
        """
        from antecede.cli.organisation import usable_topology
        from antecede.errors import UsageError
        from antecede.live.application import find_beside

        file = usable_topology(new)
        before = None if old is None else usable_topology(old)
        find_beside(new)
        if data is None:
            raise UsageError("a running system cannot be changed yet: stop its servers, then expected --data DIR")
        outcome = _on_directories(data, file, before, dry_run, drop)
        if as_json:
            print(json.dumps(document(outcome, file), indent=2))
        else:
            _report(outcome, file)
        return 1 if outcome.state == "refused" else 0

    @group.command("history")
    def history(
        data: str = typer.Option(..., metavar="DIR", help="The folder with the servers' data directories."),
        old: str | None = typer.Option(
            None, "--from", metavar="OLD", help="The topology in force: needed for data of older versions."
        ),
        as_json: bool = typer.Option(False, "--json", help="One JSON document on standard output."),
    ) -> None:
        """Show the topologies that were in force, and a change that is not finished."""
        from antecede.cli.organisation import usable_topology
        from antecede.live.directories import histories

        found = histories(data, None if old is None else usable_topology(old))
        servers: dict[str, dict[str, Any]] = {
            server: {
                **state,
                "epochs": [
                    {"change": one.change, "epoch": one.epoch, "since_ms": one.clock_ms or None} for one in epochs
                ],
            }
            for server, (state, epochs) in found.items()
        }
        if as_json:
            print(json.dumps({"servers": servers}, indent=2))
            return
        for server, one in servers.items():
            epochs = one["epochs"]
            print(f"{server}: " + ", ".join(f"{each['change']} {each['epoch']}" for each in epochs))
            if one["in_progress"]:
                print(f"{server}: change {one['in_progress']['change']} is not finished: antecede topology abort")

    @group.command("abort")
    def abort(
        data: str = typer.Option(..., metavar="DIR", help="The folder with the data directories of stopped servers."),
        as_json: bool = typer.Option(False, "--json", help="One JSON document on standard output."),
    ) -> None:
        """End a change that was begun and not finished: abandon it, or finish it if it was decided already."""
        from time import time

        from antecede.live.directories import finish

        outcome = finish(data, int(time() * 1000))
        if as_json:
            print(json.dumps({"change": outcome.number, "epoch": outcome.old.epoch}, indent=2))
        else:
            print(f"in force: change {outcome.number}, epoch {outcome.old.epoch}")


def _on_directories(data: str, new: "TopologyFile", old: "TopologyFile | None", dry_run: bool, drop: bool) -> "Outcome":
    from secrets import token_hex
    from time import time

    from antecede.live.directories import change_directories
    from antecede.server.changing import Wish

    wish = Wish(new, (), token_hex(8), int(time() * 1000), dry_run, drop)
    told = sys.stderr.isatty()

    def progress(text: str) -> None:
        if told:
            print(f"antecede: {text}", file=sys.stderr, flush=True)

    return change_directories(data, wish, old, progress)


def document(outcome: "Outcome", new: "TopologyFile") -> dict[str, Any]:
    """Return the result as a JSON document."""
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
    }


def _report(outcome: "Outcome", new: "TopologyFile") -> None:
    from rich.console import Console
    from rich.table import Table

    if outcome.state == "unchanged":
        print(f"nothing to change: {new.name} is in force (change {outcome.number}, epoch {new.epoch})")
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("change", "name", "before", "after"):
        table.add_column(column, overflow="fold")
    for one in outcome.change.differences:
        table.add_row(one.kind.replace("-", " "), one.name, one.before or "–", one.after or "–")
    Console(soft_wrap=True).print(table)
    waiting = sum(outcome.letters.values())
    if outcome.letters:
        count = len(outcome.letters)
        leave = "1 agent or client leaves its" if count == 1 else f"{count} agents and clients leave their"
        print(f"{leave} server, with {waiting} letter{'' if waiting == 1 else 's'}")
    pauses = ", ".join(outcome.change.region)
    print(f"pauses until its letters have arrived: {pauses}" if pauses else "nothing pauses")
    for refusal in outcome.refusals:
        print(f"refused: {refusal}")
    if outcome.state == "done":
        print(f"done: change {outcome.number}, epoch {outcome.old.epoch} → {new.epoch}")
    elif outcome.state == "planned":
        print(f"not changed (--dry-run): epoch {outcome.old.epoch} → {new.epoch}")
