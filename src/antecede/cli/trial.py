"""``antecede trial``: real servers on this machine under kills, power cuts and forged frames, and checks afterwards.

Like ``campaign`` it is a test for developers, so ``antecede --help`` does not list it, and only a clone has it. Each
trial continues where its report ends, and keeps the folder of a round with errors.
"""

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from antecede.topology import TopologyFile
    from antecede.trials.overload import Result as OverloadResult
    from antecede.trials.report import Report
    from antecede.trials.rounds import Outcome, Round


_topology = typer.Option(None, metavar="FILE", help="A topology. Default: five servers.")
_folder = typer.Option(None, metavar="DIR", help="Where the servers keep their data.")
_report = typer.Option(None, metavar="FILE", help="Continue from this report, and save it here.")
_nice = typer.Option(0, "--nice", min=0, max=19, help="The nice value of the servers.")
_json = typer.Option(False, "--json", help="Print one JSON document on standard output.")


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, help="Test real servers on this machine with faults, and check their data."
    )
    app.add_typer(group, name="trial", hidden=True)

    @group.command("kills")
    def kills(
        kills: int = typer.Option(30, "--kills", min=1, help="Number of kills in total; a round has at most --round."),
        round_: int = typer.Option(
            50, "--round", min=1, help="Kills per round; the logs are checked after each round."
        ),
        topology: str | None = _topology,
        seed: int = typer.Option(0, "--seed", min=0, help="The seed of the first round."),
        folder: str | None = _folder,
        report: str | None = _report,
        nice: int = _nice,
        as_json: bool = _json,
    ) -> int:
        """Kill random servers under load; no accepted message may be lost, repeated or overtaken.

        Exit 0: no errors. 1: errors; the folder of that round is kept.
        """
        from antecede.trials.kills import Kills

        return _rounds(Kills, "kills", kills, round_, topology, seed, folder, report, nice, as_json)

    @group.command("changes")
    def changes(
        rounds: int = typer.Option(
            3, "--rounds", min=1, help="Rounds in total. A round is five changes; the last restores the first topology."
        ),
        round_: int = typer.Option(5, "--round", min=1, help="Rounds until the logs are checked."),
        servers: int = typer.Option(8, "--servers", min=4, max=64, help="Number of servers."),
        kills: float = typer.Option(1.0, "--kills", min=0, max=3, help="About how many kills there are per change."),
        seed: int = typer.Option(0, "--seed", min=0, help="The seed of the first round."),
        folder: str | None = _folder,
        report: str | None = _report,
        nice: int = _nice,
        as_json: bool = _json,
    ) -> int:
        """Change the topology of running servers under load, with kills of servers and of the command.

        Exit 0: nothing was lost, repeated or late, and all states are right. 1: errors; the folder is kept.
        """
        import asyncio
        import tempfile

        import msgspec

        from antecede.trials.changes import Changes
        from antecede.trials.report import Report

        async def played(place: Path, number: int, count: int) -> "Outcome":
            return await Changes(place, number, servers, nice, kills).run(count)

        kept = Report(report, "changes")
        place = Path(folder or tempfile.mkdtemp(prefix="antecede-trial-"))
        while kept.total("rounds") < rounds and not kept.found:
            left = rounds - kept.total("rounds")
            if sys.stderr.isatty():
                print(f"\r{rounds - left} of {rounds} rounds", end="\r", file=sys.stderr, flush=True)
            next_ = kept.next_seed(seed)
            outcome = asyncio.run(played(place / f"changes-{next_}", next_, min(round_, left)))
            kept.add({"seed": next_, **outcome.faults, **msgspec.structs.asdict(outcome.figures)})
        return _told(kept, as_json, (*_changing, "walks", "messages", "deliveries", *_zeros))

    @group.command("backups")
    def backups(
        backups: int = typer.Option(5, "--backups", min=1, help="Number of backups in total."),
        round_: int = typer.Option(5, "--round", min=1, help="Backups per round; each is then restored and verified."),
        topology: str | None = _topology,
        seed: int = typer.Option(0, "--seed", min=0, help="The seed of the first round."),
        folder: str | None = _folder,
        report: str | None = _report,
        nice: int = _nice,
        as_json: bool = _json,
    ) -> int:
        """Back up running servers under load, with kills; every backup must restore to a system that passes all checks.

        Exit 0: no errors. 1: errors; the folder of that round is kept.
        """
        from antecede.trials.backups import Backups

        return _rounds(Backups, "backups", backups, round_, topology, seed, folder, report, nice, as_json)

    @group.command("powercuts")
    def powercuts(
        cuts: int = typer.Option(10, "--cuts", min=1, help="Number of power cuts in total; a round has about --round."),
        round_: int = typer.Option(
            25, "--round", min=1, help="Power cuts per round; the logs are checked after each round."
        ),
        topology: str | None = _topology,
        seed: int = typer.Option(0, "--seed", min=0, help="The seed of the first round."),
        folder: str | None = _folder,
        report: str | None = _report,
        nice: int = _nice,
        as_json: bool = _json,
    ) -> int:
        """Cut the power of random servers under load, let disks fail or fill up; no accepted message may be lost.

        Exit 0: no errors. 1: errors; the folder of that round is kept.
        """
        from antecede.trials.powercuts import PowerCuts

        return _rounds(PowerCuts, "cuts", cuts, round_, topology, seed, folder, report, nice, as_json)

    @group.command("objects")
    def objects(
        kills: int = typer.Option(20, "--kills", min=1, help="Number of kills."),
        callers: int = typer.Option(32, "--callers", min=1, max=1_000, help="Number of clients that call."),
        seed: int = typer.Option(0, "--seed", min=0, help="The seed of the kills."),
        folder: str | None = _folder,
        nice: int = _nice,
        as_json: bool = _json,
    ) -> int:
        """Kill random servers under calls of replicated objects; every answered call counts once at all replicas.

        Exit 0: no errors. 1: errors; the folder is kept.
        """
        import asyncio
        import tempfile

        import msgspec

        from antecede.trials.objects import ObjectKills

        place = Path(folder or tempfile.mkdtemp(prefix="antecede-trial-")) / f"objects-{seed}"
        result = asyncio.run(ObjectKills(place, seed, callers, nice).run(kills))
        if as_json:
            print(json.dumps({"trial": "objects", **msgspec.to_builtins(result)}, indent=2))
        else:
            counts = f"{result.kills:,} kills, {result.answered:,} calls answered, {result.late:,} late"
            print(f"{counts}, {result.deliveries:,} deliveries; {len(result.found)} errors")
            print("".join(f"  {line}\n" for line in result.found[:20]), end="")
        return 1 if result.found else 0

    @group.command("frames")
    def frames(
        frames: int = typer.Option(20_000, "--frames", min=1, help="Number of forged frames."),
        life: int = typer.Option(2_000, "--life", min=1, help="Forged frames per server."),
        seed: int = typer.Option(0, "--seed", min=0, help="The seed of the first server."),
        order: str | None = typer.Option(
            None, metavar="NAME[:option=value,…]", help="The order. Default: all in turn."
        ),
        as_json: bool = _json,
    ) -> int:
        """Send forged input to a server: malformed frames, forged stamps and letters, numbers that jump.

        Exit 0: each frame was harmless or ended its connection with a logged reason. 1: otherwise.
        """
        import asyncio
        import resource

        import msgspec

        from antecede.trials.lies import ORDERS, trial

        def told(lies: int) -> None:
            if sys.stderr.isatty():
                print(f"\r{lies:,} of {frames:,} frames", end="\r", file=sys.stderr, flush=True)

        outcome = asyncio.run(trial(seed, frames, ORDERS if order is None else (order,), life, told))
        mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        if as_json:
            print(json.dumps({"trial": "frames", **msgspec.structs.asdict(outcome), "peak_mib": mib}, indent=2))
        else:
            print(
                f"{outcome.lies:,} mutated frames, {outcome.servers} servers, {outcome.closed:,} connections closed "
                f"with a logged reason, {outcome.records:,} records replayed; longest stall {outcome.stall_ms:.0f} ms, "
                f"most CPU time {outcome.cpu_ms:.0f} ms, most work {outcome.calls_per_byte:.1f} calls per byte, "
                f"memory grew by {outcome.growth_mib} MiB, peak {mib} MiB; {len(outcome.found)} errors"
            )
            print("".join(f"  {line}\n" for line in outcome.found[:20]), end="")
        return 1 if outcome.found else 0

    @group.command("overload")
    def overload(
        seconds: float = typer.Option(600.0, "--seconds", min=1, help="How long the overload lasts."),
        factor: float = typer.Option(3.0, "--factor", min=0.1, help="The offered load, as a multiple of the capacity."),
        strangers: int = typer.Option(
            2_000, "--strangers", min=0, max=50_000, help="Number of unknown addresses that connect again and again."
        ),
        memory: int = typer.Option(1_024, "--memory", min=1, metavar="MIB", help="Fail if a server uses more memory."),
        p99: float = typer.Option(100.0, "--p99", metavar="MS", help="Fail if the p99 of the probes is larger."),
        folder: str | None = _folder,
        as_json: bool = _json,
    ) -> int:
        """Overload two servers, beside an absent subscriber, an isolated handler that blocks, and strangers.

        Exit 0: memory and the p99 of other agents are within their bounds, and nothing accepted is lost. 1: otherwise.
        """
        import asyncio
        import tempfile

        import msgspec

        from antecede.trials.overload import Settings, Trial

        def told(text: str) -> None:
            if sys.stderr.isatty():
                print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

        async def main() -> "OverloadResult":
            return await Trial(place, Settings(seconds, factor, strangers, memory, p99), told).run()

        place = Path(folder or tempfile.mkdtemp(prefix="antecede-overload-"))
        result = asyncio.run(main())
        told("")
        if as_json:
            print(json.dumps({"trial": "overload", **msgspec.to_builtins(result)}, indent=2))
        else:
            _print_overload(result)
        if not result.found and folder is None:
            shutil.rmtree(place)
        elif result.found:
            print(f"the servers' data and logs: {place}", file=sys.stderr)
        return 1 if result.found else 0

    @group.command("servers")
    def servers(
        schedules: int = typer.Option(3_000, "--schedules", min=1, help="Number of schedules in total, one per seed."),
        seed: int = typer.Option(0, "--seed", min=0, help="The first seed."),
        jobs: int = typer.Option(1, "--jobs", min=1, max=64, help="Number of parallel processes."),
        report: str | None = _report,
        as_json: bool = _json,
    ) -> int:
        """Run whole servers in a simulated world, one schedule per seed: crashes, power cuts, partitions, bad clocks.

        Exit 0: no errors. 1: errors, printed with the command that replays them.
        """
        figures = ("schedules", "crashes", "deliveries")
        return _told(_schedules("servers", _play_servers, figures, schedules, seed, jobs, report), as_json, figures)

    @group.command("changes-simulated")
    def changes_simulated(
        changes: int = typer.Option(1_000, "--changes", min=1, help="Number of changes in total, some per schedule."),
        seed: int = typer.Option(0, "--seed", min=0, help="The first seed."),
        jobs: int = typer.Option(1, "--jobs", min=1, max=64, help="Number of parallel processes."),
        report: str | None = _report,
        as_json: bool = _json,
    ) -> int:
        """Change random topologies in a simulated world, with crashes of servers and kills of the command. Some servers
        that a change does not need are down meanwhile (absences).

        Exit 0: no errors. 1: errors, printed with the command that replays them.
        """
        figures = ("changes", "schedules", "crashes", "deliveries", "absences")
        kept = _schedules("changes-simulated", _play_changes, figures, changes, seed, jobs, report)
        return _told(kept, as_json, figures)


def _schedules(
    kind: str,
    play: Callable[[range], tuple[dict[str, int], list[str]]],
    figures: Sequence[str],
    most: int,
    seed: int,
    jobs: int,
    report: str | None,
) -> "Report":
    """Play schedules, one per seed, until the first of these figures is reached or errors are found."""
    from concurrent.futures import ProcessPoolExecutor

    from antecede.trials.report import Report

    kept = Report(report, kind)
    with ProcessPoolExecutor(jobs) as pool:
        while (done := kept.total(figures[0])) < most and not kept.found:
            if sys.stderr.isatty():
                print(f"\r{done:,} of {most:,} {figures[0]}", end="\r", file=sys.stderr, flush=True)
            first = kept.next_seed(seed)
            # A schedule counts at least once.
            last = first + min(_chunk * jobs, most - done)
            parts = list(pool.map(play, [range(first + job, last, jobs) for job in range(jobs)]))
            counts = {figure: sum(part[0][figure] for part in parts) for figure in figures}
            kept.add({"seed": last - 1, **counts, "found": [line for _, lines in parts for line in lines]})
    return kept


def _print_overload(result: "OverloadResult") -> None:
    memory = ", ".join(
        f"{server} {mib} MiB (then {result.late_mib[server][0]} and {result.late_mib[server][1]})"
        for server, mib in result.peak_mib.items()
    )
    strangers = ", ".join(f"{count:,} {what}" for what, count in result.strangers.items())
    print(
        f"{result.seconds:.0f} s of overload; the sink handles {result.capacity:,.0f} messages per second\n"
        f"sink: {result.offered:,} offered, {result.accepted:,} accepted, {result.refused:,} refused, "
        f"{result.handled:,} handled\n"
        f"absent subscriber: {result.news:,} sent, {result.news_waiting:,} wait, {result.news_dead:,} dead\n"
        f"stuck agent: {result.stuck:,} sent, {result.stuck_waiting:,} wait, {result.stuck_dead:,} dead\n"
        f"strangers: {strangers or 'none'}\n"
        f"other agents: {result.probes:,} probes, p50 {result.p50_ms} ms, p99 {result.p99_ms} ms, "
        f"worst {result.worst_ms} ms\n"
        f"peak memory, and in the second and last third: {memory}\n"
        f"{len(result.found)} errors"
    )
    print("".join(f"  {line}\n" for line in result.found[:20]), end="")


def _play_servers(seeds: range) -> tuple[dict[str, int], list[str]]:
    """Return the figures and errors of schedules of whole servers."""
    from antecede.simulator.servers.schedules import play

    outcomes = [play(seed) for seed in seeds]
    counts = {"schedules": len(outcomes), "crashes": sum(one.crashes for one in outcomes)}
    counts["deliveries"] = sum(one.deliveries for one in outcomes)
    return counts, [str(one) for one in outcomes if one.found]


def _play_changes(seeds: range) -> tuple[dict[str, int], list[str]]:
    """Return the figures and errors of schedules in which the topology changes."""
    from antecede.simulator.servers.changes_random import play

    outcomes = [play(seed) for seed in seeds]
    counts = {"schedules": len(outcomes), "changes": sum(one.changes for one in outcomes)}
    counts["crashes"] = sum(one.crashes for one in outcomes)
    counts["deliveries"] = sum(one.deliveries for one in outcomes)
    counts["absences"] = sum(one.missed for one in outcomes)
    return counts, [str(one) for one in outcomes if one.found]


def _rounds(
    kind: "type[Round]",
    counted: str,
    target: int,
    most: int,
    topology: str | None,
    seed: int,
    folder: str | None,
    report: str | None,
    nice: int,
    as_json: bool,
) -> int:
    """Play rounds until the target is reached or an error is found."""
    import asyncio
    import tempfile

    import msgspec

    from antecede.cli.organisation import usable_topology
    from antecede.trials.report import Report

    file = None if topology is None else usable_topology(topology)
    kept = Report(report, counted)
    place = Path(folder or tempfile.mkdtemp(prefix="antecede-trial-"))
    while kept.total(counted) < target and not kept.found:
        left = target - kept.total(counted)
        if sys.stderr.isatty():
            print(f"\r{target - left} of {target} {counted}", end="\r", file=sys.stderr, flush=True)
        seed = kept.next_seed(seed)
        outcome = asyncio.run(_round(kind, place / f"{counted}-{seed}", seed, file, nice, min(most, left), counted))
        kept.add({"seed": seed, **outcome.faults, **msgspec.structs.asdict(outcome.figures)})
    return _told(kept, as_json, [figure for figure in _figures if kept.total(figure) or figure in _zeros])


def _told(kept: "Report", as_json: bool, figures: Sequence[str]) -> int:
    """Print the result of a trial; return its exit code."""
    totals = {figure: kept.total(figure) for figure in figures}
    if as_json:
        print(json.dumps({"trial": kept.kind, "rounds": len(kept.rounds), **totals, "found": kept.found}, indent=2))
    else:
        shown = ", ".join(f"{count:,} {figure}" for figure, count in totals.items())
        print(f"{len(kept.rounds)} rounds: {shown}; {len(kept.found)} errors")
        print("".join(f"  {line}\n" for line in kept.found[:20]), end="")
    return 1 if kept.found else 0


async def _round(
    kind: "type[Round]", place: Path, seed: int, file: "TopologyFile | None", nice: int, most: int, counted: str
) -> "Outcome":
    return await kind(place, seed, file, nice).run(most, counted)


_chunk = 50
_changing = ("changes", "kills", "commands", "failures", "absences")
"""Changes that were made; kills of servers; commands that were killed, and that failed because a server was down."""
_zeros = ("undelivered", "late")
_faults = ("backups", "failures", "kills", "stops", "cuts", "blackouts", "broken", "full")
_figures = (*_faults, "walks", "messages", "deliveries", *_zeros)
