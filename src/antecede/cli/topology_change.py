"""``antecede topology apply``: change the topology of a system that has data."""

import json
import sys
from datetime import datetime
from secrets import token_hex
from time import time
from typing import TYPE_CHECKING, Any

import typer

from antecede.cli.options import JSON, KEYS, Keys
from antecede.cli.organisation import usable_topology
from antecede.cli.terminal import rich_console
from antecede.crashes import print_error
from antecede.errors import ClosedError, RefusedError, UsageError
from antecede.topology import TopologyFile

if TYPE_CHECKING:
    from antecede.cli.live import Access
    from antecede.server.change.changing import Outcome, Steps
    from antecede.server.change.surveying import ChangeRequest

_RUNNING = typer.Argument(None, metavar="TOPOLOGY", help="Topology file of running servers.")
_STOPPED = typer.Option(
    None, "--data", metavar="DIR", help="Instead of TOPOLOGY: folder with the data directories of stopped servers."
)


def add_to(group: typer.Typer) -> None:
    """Add the commands that change a topology."""

    @group.command("apply")
    def apply(
        new: str = typer.Argument(..., metavar="NEW", help="New topology file (TOML)."),
        old: str | None = typer.Option(
            None,
            "--from",
            metavar="OLD",
            help="File of the current topology. If another topology is in force, the change is refused. Required with "
            "--data if an older version of Antecede wrote the data.",
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
        from antecede.cli.live import Access
        from antecede.live.application import find_beside
        from antecede.live.directories import change_directories
        from antecede.server.change.changing import carry_out

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
            outcome = change_directories(data, request, before, _Progress())
        if as_json:
            print(json.dumps(document(outcome, file), indent=2))
        else:
            _report(outcome, file)
        return 1 if outcome.state == "refused" else 0

    @group.command("history")
    def history(
        topology: str | None = _RUNNING,
        data: str | None = typer.Option(
            None, metavar="DIR", help="Instead of TOPOLOGY: folder with the servers' data directories."
        ),
        old: str | None = typer.Option(
            None,
            "--from",
            metavar="OLD",
            help="With --data: file of the topology in force. Needed only if an older version of Antecede wrote the "
            "data.",
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
            servers = _histories(data, old)
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


def _histories(data: str, old: str | None) -> dict[str, dict[str, Any]]:
    from antecede.live.directories import histories

    found = histories(data, None if old is None else usable_topology(old))
    return {
        server: {
            **state,
            "epochs": [{"change": one.change, "epoch": one.epoch, "since_ms": one.clock_ms or None} for one in epochs],
        }
        for server, (state, epochs) in found.items()
    }


def _asked_histories(topology: str, keys: Keys) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    from antecede.cli.live import Access, addresses, ask_server

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
    from antecede.cli.live import Access
    from antecede.live.directories import finish
    from antecede.server.change.changing import end_change

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
    from antecede.server.change.surveying import ChangeRequest

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


def document(outcome: "Outcome", new: TopologyFile) -> dict[str, Any]:
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


def _report(outcome: "Outcome", new: TopologyFile) -> None:
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
