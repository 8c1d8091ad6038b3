"""``antecede trial``: real servers on this machine, killed, cut off from power and lied to, and judged afterwards.

Like ``campaign`` it is the developers' proof rather than a user's tool, so ``--help`` of the whole command does not
list it. Each goes on where its report ends, and keeps the folder of a round in which something was found.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from antecede.trials.report import Report


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Mistreat real servers on this machine, and judge what they left.")
    app.add_typer(group, name="trial", hidden=True)

    @group.command("kills")
    def kills(
        kills: int = typer.Option(30, "--kills", min=1, help="How many in all; a round has at most --round."),
        round_: int = typer.Option(50, "--round", min=1, help="Kills of one round, after which the logs are judged."),
        topology: str | None = typer.Option(None, metavar="FILE", help="Whose organisation; five servers if none."),
        seed: int = typer.Option(0, "--seed", min=0, help="The first round's."),
        folder: str | None = typer.Option(None, metavar="DIR", help="Where the servers keep their data."),
        report: str | None = typer.Option(None, metavar="FILE", help="Goes on from here, and is kept here."),
        nice: int = typer.Option(0, "--nice", min=0, max=19, help="How much the servers give way to others."),
        as_json: bool = typer.Option(False, "--json", help="One JSON document on standard output."),
    ) -> int:
        """Kill random servers under load; nothing accepted may be lost, repeated or overtaken.

        Exit 0: nothing was found. 1: something was; the folder of that round is kept.
        """
        import asyncio

        from antecede.cli.organisation import usable_topology
        from antecede.trials.kills import trial
        from antecede.trials.report import Report

        file = None if topology is None else usable_topology(topology)
        kept = Report(report, "kills")
        place = _folder(folder)

        def play(seed: int, left: int) -> dict[str, Any]:
            outcome = asyncio.run(trial(place / f"kills-{seed}", seed, min(round_, left), file, nice=nice))
            return _flat(outcome.seed, {"kills": outcome.kills, "stops": outcome.stops}, outcome.figures)

        kept.run(kills, "kills", seed, _told(kept, "kills", kills, play))
        return _finish(kept, as_json, ("kills", "stops", "walks", "messages", "deliveries", "undelivered", "late"))


def _folder(folder: str | None) -> Path:
    return Path(folder or tempfile.mkdtemp(prefix="antecede-trial-"))


def _flat(seed: int, counts: dict[str, int], figures: Any) -> dict[str, Any]:
    import msgspec

    return {"seed": seed, **counts, **msgspec.structs.asdict(figures)}


def _told(kept: "Report", count: str, target: int, play: Any) -> Any:
    def tell(seed: int, left: int) -> dict[str, Any]:
        if sys.stderr.isatty():
            print(f"\r{kept.kind}: {target - left} of {target} {count}", end="\r", file=sys.stderr, flush=True)
        found: dict[str, Any] = play(seed, left)
        return found

    return tell


def _finish(kept: "Report", as_json: bool, figures: tuple[str, ...]) -> int:
    totals = {figure: kept.total(figure) for figure in figures}
    if as_json:
        document = {"trial": kept.kind, "rounds": len(kept.rounds), **totals, "found": kept.found}
        print(json.dumps(document, indent=2))
    else:
        shown = ", ".join(f"{count:,} {figure}" for figure, count in totals.items())
        print(f"{len(kept.rounds)} rounds: {shown}; {len(kept.found)} found wrong")
        for line in kept.found[:20]:
            print(f"  {line}")
    return 1 if kept.found else 0
