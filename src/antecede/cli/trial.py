"""``antecede trial``: disturb servers with kills, power cuts or forged frames, and then check that nothing went wrong.

Most trials run real servers on this machine; two trials simulate servers. Like ``antecede campaign``, this command is a
test for developers: ``antecede --help`` does not list it, and only a clone of the repository has it. If the report file
of a trial exists, the trial continues after the rounds in that file. The folder of a round with errors is kept.
"""

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import typer

from antecede.cli.options import JSON
from antecede.cli.terminal import line
from antecede.trials.report import Report

if TYPE_CHECKING:
    from antecede.trials.overload import Result as OverloadResult
    from antecede.trials.rounds import Round

_topology = typer.Option(None, metavar="FILE", help="Topology file. Default: a topology with five servers.")
_folder = typer.Option(None, metavar="DIR", help="Folder for the servers' data. Default: a temporary folder.")
_report = typer.Option(
    None,
    metavar="FILE",
    help="Save the results in this file. If the file already has results, the trial continues after these results.",
)
_nice = typer.Option(0, "--nice", min=0, max=19, help="The nice value of the servers.")


class _Rounds(NamedTuple):
    """The options that are common to all trials that consist of rounds."""

    seed: int = typer.Option(0, min=0, help="The seed of the first round.")
    folder: str | None = _folder
    report: str | None = _report
    nice: int = _nice
    as_json: bool = JSON


class _Schedules(NamedTuple):
    """The options that are common to all trials with simulated servers."""

    seed: int = typer.Option(0, min=0, help="The first seed.")
    jobs: int = typer.Option(1, min=1, max=64, help="Number of parallel processes.")
    report: str | None = _report
    as_json: bool = JSON


_rounds, _schedules = _Rounds(), _Schedules()


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, help="Test real and simulated servers with faults, and check the results."
    )
    app.add_typer(group, name="trial", hidden=True)

    @group.command("kills")
    def kills(
        kills: int = typer.Option(30, min=1, help="Number of kills in total, divided into rounds (--round)."),
        round_: int = typer.Option(
            50, "--round", min=1, help="Number of kills per round. The logs are checked after each round."
        ),
        topology: str | None = _topology,
        options: _Rounds = _rounds,
    ) -> int:
        """Kill random servers under load, and check that no accepted message was lost, repeated or overtaken.

        Exit codes:
        0: No errors were found.
        1: Errors were found. The folder of the round with errors is kept.
        """
        from antecede.trials.rounds import Kills

        return _play(_on(Kills, topology, options), "kills", "kills", kills, round_, options)

    @group.command("changes")
    def changes(
        rounds: int = typer.Option(
            3,
            min=1,
            help="Number of rounds in total. A round makes five changes. The fifth change restores the topology with "
            "which the round began.",
        ),
        round_: int = typer.Option(
            5,
            "--round",
            min=1,
            help="Number of rounds between two checks of the logs. The logs are also checked at the end.",
        ),
        servers: int = typer.Option(8, min=4, max=64, help="Number of servers."),
        kills: float = typer.Option(
            1.0,
            min=0,
            max=3,
            help="Approximate number of kills per change, of servers and of `antecede topology apply`.",
        ),
        options: _Rounds = _rounds,
    ) -> int:
        """Change the topology of servers under load, while servers and `antecede topology apply` are killed.

        Exit codes:
        0: Nothing was lost, repeated or late, and all states are right.
        1: Errors were found. The folder is kept.
        """
        from antecede.trials.changes import Changes

        def made(place: Path, seed: int) -> "Round":
            return Changes(place, seed, servers, options.nice, kills)

        figures = (*_changing, "walks", "messages", "deliveries", *_zeros)
        return _play(made, "changes", "rounds", rounds, round_, options, figures)

    @group.command("backups")
    def backups(
        backups: int = typer.Option(5, min=1, help="Number of backups in total."),
        round_: int = typer.Option(
            5,
            "--round",
            min=1,
            help="Number of backups per round. After the round, each backup is restored and verified.",
        ),
        topology: str | None = _topology,
        options: _Rounds = _rounds,
    ) -> int:
        """Back up servers under load, kill some servers, and check that each backup can be restored to a correct
        system.

        Exit codes:
        0: No errors were found.
        1: Errors were found. The folder of the round with errors is kept.
        """
        from antecede.trials.backups import Backups

        return _play(_on(Backups, topology, options), "backups", "backups", backups, round_, options)

    @group.command("powercuts")
    def powercuts(
        cuts: int = typer.Option(
            10, min=1, help="Make at least this number of power cuts, divided into rounds (--round)."
        ),
        round_: int = typer.Option(
            25, "--round", min=1, help="Number of power cuts per round. The logs are checked after each round."
        ),
        topology: str | None = _topology,
        options: _Rounds = _rounds,
    ) -> int:
        """Cut the power of random servers, let disks fail or fill up, and check that no accepted message was lost.

        Exit codes:
        0: No errors were found.
        1: Errors were found. The folder of the round with errors is kept.
        """
        from antecede.trials.powercuts import PowerCuts

        return _play(_on(PowerCuts, topology, options), "powercuts", "cuts", cuts, round_, options)

    @group.command("objects")
    def objects(
        kills: int = typer.Option(20, min=1, help="Number of kills."),
        callers: int = typer.Option(32, min=1, max=1_000, help="Number of clients that call objects."),
        seed: int = typer.Option(0, min=0, help="The seed of the kills."),
        folder: str | None = _folder,
        nice: int = _nice,
        as_json: bool = JSON,
    ) -> int:
        """Kill servers while clients call objects, and check that each answered call took effect once at all replicas.

        Exit codes:
        0: No errors were found.
        1: Errors were found. The folder is kept.
        """
        from antecede.trials.objects import ObjectKills

        place = Path(folder or tempfile.mkdtemp(prefix="antecede-trial-")) / f"objects-{seed}"
        trial = ObjectKills(place, seed, callers, nice)
        outcome = asyncio.run(trial.run(kills, "kills"))
        counts = {"kills": trial.faults["kills"], "answered": trial.load.answered, "late": trial.load.late}
        document = {"trial": "objects", **counts, "deliveries": outcome.figures.deliveries, "found": outcome.found}
        template = "{kills:,} kills, {answered:,} calls answered, {late:,} late, {deliveries:,} deliveries; "
        return _conclude(document, template.format(**document), as_json)

    @group.command("frames")
    def frames(
        frames: int = typer.Option(20_000, min=1, help="Number of forged frames."),
        life: int = typer.Option(
            2_000, min=1, help="Number of forged frames for one server; then a new server takes its place."
        ),
        seed: int = typer.Option(0, min=0, help="The seed of the first server."),
        order: str | None = typer.Option(
            None, metavar="NAME[:option=value,…]", help="The order to test. Default: all orders in turn."
        ),
        as_json: bool = JSON,
    ) -> int:
        """Send forged input to a server: malformed frames, forged stamps and letters, frame numbers that are too large.

        Exit codes:
        0: Each frame was harmless, or ended its connection with a logged reason.
        1: Errors were found.
        """
        import resource

        from antecede.trials.lies import ORDERS, trial

        def report_progress(lies: int) -> None:
            line(f"{lies:,} of {frames:,} frames")

        outcome = asyncio.run(trial(seed, frames, ORDERS if order is None else (order,), life, report_progress))
        mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        text = (
            f"{outcome.lies:,} mutated frames, {outcome.servers} servers, {outcome.closed:,} connections closed "
            f"with a logged reason, {outcome.records:,} records replayed; longest stall {outcome.stall_ms:.0f} ms, "
            f"most CPU time {outcome.cpu_ms:.0f} ms, most work {outcome.calls_per_byte:.1f} calls per byte, "
            f"memory grew by {outcome.growth_mib} MiB, peak {mib} MiB; "
        )
        document = {"trial": "frames", **msgspec.structs.asdict(outcome), "peak_mib": mib}
        return _conclude(document, text, as_json)

    @group.command("overload")
    def overload(
        seconds: float = typer.Option(600.0, min=1, help="Duration of the overload in seconds."),
        factor: float = typer.Option(
            3.0, min=0.1, help="Rate of messages to the overloaded agent, as a multiple of the rate that it can handle."
        ),
        strangers: int = typer.Option(
            2_000, min=0, max=50_000, help="Number of unknown addresses that connect again and again."
        ),
        memory: int = typer.Option(
            1_024, min=1, metavar="MIB", help="Fail if a server uses more memory than this number of MiB."
        ),
        p99: float = typer.Option(
            100.0, metavar="MS", help="Fail if the p99 of the answer times exceeds this number of milliseconds."
        ),
        folder: str | None = _folder,
        as_json: bool = JSON,
    ) -> int:
        """Overload an agent while a subscriber is absent, a handler process blocks, and unknown programs connect.

        The trial runs two servers. At the same time, clients measure the answer times of one other agent on each
        server. These agents are not overloaded.

        Exit codes: 0: Memory and answer times are within their bounds (--memory, --p99), and no accepted message is
        lost. 1: A bound is exceeded, or an accepted message is lost.
        """
        from antecede.trials.overload import Settings, Trial

        place = Path(folder or tempfile.mkdtemp(prefix="antecede-overload-"))
        result = asyncio.run(Trial(place, Settings(seconds, factor, strangers, memory, p99), line).run())
        line("")
        code = _conclude({"trial": "overload", **msgspec.to_builtins(result)}, _overload_text(result), as_json)
        if not code and folder is None:
            shutil.rmtree(place)
        elif code:
            print(f"the servers' data and logs: {place}", file=sys.stderr)
        return code

    @group.command("servers")
    def servers(
        schedules: int = typer.Option(3_000, min=1, help="Number of schedules in total, one per seed."),
        options: _Schedules = _schedules,
    ) -> int:
        """Simulate complete servers, with a schedule of crashes, power cuts, partitions and bad clocks for each seed.

        Exit codes:
        0: No errors were found.
        1: Errors were found. They are printed with the command that replays them.
        """
        from antecede.simulator.servers.schedules import play

        return _simulate("servers", play, ("schedules", "crashes", "deliveries"), schedules, options)

    @group.command("changes-simulated")
    def changes_simulated(
        changes: int = typer.Option(
            1_000, min=1, help="Make at least this number of changes. Each seed gives a schedule with several changes."
        ),
        options: _Schedules = _schedules,
    ) -> int:
        """Change random topologies of simulated servers, while servers crash and `antecede topology apply` is killed.

        During a change, some of the servers that the change does not need are down. The result counts these servers as
        absences.

        Exit codes:
        0: No errors were found.
        1: Errors were found. They are printed with the command that replays them.
        """
        from antecede.simulator.servers.changes import play

        figures = ("changes", "schedules", "crashes", "deliveries", "absences")
        return _simulate("changes-simulated", play, figures, changes, options)


def _simulate(kind: str, play: Callable[[int], Any], figures: Sequence[str], most: int, options: _Schedules) -> int:
    """Play schedules, one per seed. Add up the counts of all schedules. Stop when errors are found, or when the first
    count in ``figures`` is at least ``most``. ``figures``: the names of the counts to report, for example
    ``crashes``."""
    from concurrent.futures import ProcessPoolExecutor

    kept, jobs = Report(options.report, kind), options.jobs
    with ProcessPoolExecutor(jobs) as pool:
        while (done := kept.total(figures[0])) < most and not kept.found:
            line(f"{done:,} of {most:,} {figures[0]}")
            first = kept.next_seed(options.seed)
            # A schedule counts at least once.
            last = first + min(_chunk * jobs, most - done)
            seeds = [range(first + job, last, jobs) for job in range(jobs)]
            parts = list(pool.map(partial(_part, play, figures), seeds))
            counts = {figure: sum(part[0][figure] for part in parts) for figure in figures}
            kept.add({"seed": last - 1, **counts, "found": [one for _, found in parts for one in found]})
    return _conclude_campaign(kept, options.as_json, figures)


def _part(play: Callable[[int], Any], figures: Sequence[str], seeds: range) -> tuple[dict[str, int], list[str]]:
    """Play the schedules of some seeds. Return two values: the sum of each count in ``figures`` over these schedules,
    and the errors."""
    outcomes = [play(seed) for seed in seeds]
    counts = {"schedules": len(outcomes)}
    for name in set(figures) - {"schedules"}:
        counts[name] = sum(getattr(one, _attributes.get(name, name)) for one in outcomes)
    return counts, [str(one) for one in outcomes if one.found]


def _on(kind: "type[Round]", topology: str | None, options: _Rounds) -> "Callable[[Path, int], Round]":
    """Return a function that makes a round of this kind from a folder and a seed."""
    from antecede.cli.servers import usable_topology
    from antecede.walks.processes import walking

    file = None if topology is None else usable_topology(topology)
    return lambda place, seed: kind(place, seed, None if file is None else walking(file), options.nice)


def _play(
    make: "Callable[[Path, int], Round]",
    kind: str,
    counted: str,
    target: int,
    most: int,
    options: _Rounds,
    figures: Sequence[str] = (),
) -> int:
    """Play rounds, and add up the counts of all rounds. Stop when an error is found, or when the count ``counted`` (for
    example ``kills``) is at least ``target``. ``most``: the largest target for a single round. ``figures``: the names
    of the counts to report. Default: ``undelivered``, ``late``, and all other counts that are not 0."""
    kept = Report(options.report, kind)
    place = Path(options.folder or tempfile.mkdtemp(prefix="antecede-trial-"))
    while (done := kept.total(counted)) < target and not kept.found:
        line(f"{done} of {target} {counted}")
        seed = kept.next_seed(options.seed)
        outcome = asyncio.run(make(place / f"{kind}-{seed}", seed).run(min(most, target - done), counted))
        kept.add({"seed": seed, **outcome.faults, **msgspec.structs.asdict(outcome.figures)})
    shown = figures or [figure for figure in _figures if kept.total(figure) or figure in _zeros]
    return _conclude_campaign(kept, options.as_json, shown)


def _conclude_campaign(kept: Report, as_json: bool, figures: Sequence[str]) -> int:
    totals = {figure: kept.total(figure) for figure in figures}
    shown = ", ".join(f"{count:,} {figure}" for figure, count in totals.items())
    document = {"trial": kept.kind, "rounds": len(kept.rounds), **totals, "found": kept.found}
    return _conclude(document, f"{len(kept.rounds)} rounds: {shown}; ", as_json)


def _conclude(document: dict[str, Any], text: str, as_json: bool) -> int:
    """Print the result of a trial and its first errors; return the exit code."""
    found = document["found"]
    if as_json:
        print(json.dumps(document, indent=2))
    else:
        print(f"{text}{len(found)} errors")
        print("".join(f"  {one}\n" for one in found[:20]), end="")
    return 1 if found else 0


def _overload_text(result: "OverloadResult") -> str:
    memory = ", ".join(
        f"{server} {mib} MiB (then {result.late_mib[server][0]} and {result.late_mib[server][1]})"
        for server, mib in result.peak_mib.items()
    )
    strangers = ", ".join(f"{count:,} {what}" for what, count in result.strangers.items())
    return (
        f"{result.seconds:.0f} s of overload; the sink handles {result.capacity:,.0f} messages per second\n"
        f"sink: {result.offered:,} offered, {result.accepted:,} accepted, {result.refused:,} refused, "
        f"{result.handled:,} handled\n"
        f"absent subscriber: {result.news:,} sent, {result.news_waiting:,} wait, {result.news_dead:,} dead\n"
        f"stuck agent: {result.stuck:,} sent, {result.stuck_waiting:,} wait, {result.stuck_dead:,} dead\n"
        f"strangers: {strangers or 'none'}\n"
        f"other agents: {result.probes:,} probes, p50 {result.p50_ms} ms, p99 {result.p99_ms} ms, "
        f"worst {result.worst_ms} ms\n"
        f"peak memory, and in the second and last third: {memory}\n"
    )


_chunk = 50
_changing = ("changes", "kills", "commands", "failures", "absences")
"""The counts that a trial of changes reports, in this sequence. ``changes``: changes that were made. ``kills``: kills
of servers. ``commands``: kills of ``antecede topology apply``. ``failures``: runs of this command that failed because a
server was down. ``absences``: servers that were down during a change that did not need them."""
_zeros = ("undelivered", "late")
_faults = ("backups", "failures", "kills", "stops", "cuts", "blackouts", "broken", "full")
_attributes = {"absences": "missed"}
"""The counts that have two different names. Each key is the name in the report. Each value is the name of the attribute
in the outcome of a schedule."""
_figures = (*_faults, "walks", "messages", "deliveries", *_zeros)
