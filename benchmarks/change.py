"""How the round-trip times of existing agents change while other agents are added to a running system.

Real servers run under a constant load: clients ask agents on other servers at fixed times, even if earlier answers are
late. Meanwhile, the command `antecede topology apply` runs once for each new agent. Each run is a separate process. On
a small machine, the start of a process takes CPU time from the servers, even if the command changes nothing. So before
each change the same command runs with `--dry-run`: it asks the same servers, but changes nothing.

The result is the ratio of the round-trip times during changes to the round-trip times during dry runs. The ratio is
near 1 if adding an agent does not pause the other agents. To estimate the noise, the ratio is computed many times, each
time from rounds that are drawn at random (bootstrap). The reported interval contains 95 % of these ratios.

The run has four *windows*: the time before the first command, the time of the dry runs, the time of the changes, and
the time after the last command. A round trip belongs to the window in which it began. In the first and the last window
there is only the load.
"""

import asyncio
import sys
import tempfile
from collections.abc import Iterator, Sequence
from os import cpu_count
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

import msgspec

from antecede.live.client.line import connect
from antecede.topology import Address, AgentHome, DomainEntry, TopologyFile
from benchmarks import common
from benchmarks.common import SideError, Up, environment, free_ports, report_status
from benchmarks.paper000_agents import Echo, Ping, Pong

WINDOWS = ("before", "dry_run", "change", "after")


class Settings(msgspec.Struct, frozen=True):
    """The settings of the measurement."""

    servers: int = 4
    rounds: int = 10
    """The number of rounds. Each round makes one dry run, and then adds one agent."""
    rate: int = 100
    """The number of round trips that all clients together start per second."""
    quiet_seconds: float = 10.0
    """The length of the first and of the last window, in seconds. In these windows there is load, but no command
    runs."""
    durability: str = "disk"


def bench_change(settings: Settings, directory: str | None) -> dict[str, Any]:
    """Measure round trips before, during and after changes, and return the report."""
    with tempfile.TemporaryDirectory(prefix="antecede-change-", dir=directory) as folder:
        return asyncio.run(_Measurement(settings, Path(folder)).run())


class _Measurement:
    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._added = 0
        names = [f"s{number + 1}" for number in range(settings.servers)]
        ports = free_ports(settings.servers)
        addresses = {name: Address("127.0.0.1", port) for name, port in zip(names, ports, strict=True)}
        echoes = tuple(AgentHome(f"echo-{name}", name, _kind) for name in names)
        self._base = TopologyFile(addresses, (DomainEntry("A", tuple(names), "pruned"),), echoes)
        self._window = WINDOWS[0]
        self._times: dict[str, list[list[float]]] = {window: [[]] for window in WINDOWS}
        """For each window, the round-trip times of each round, in seconds."""
        self._commands: dict[str, list[float]] = {"dry_run": [], "change": []}
        self._asking: set[asyncio.Task[None]] = set()

    async def run(self) -> dict[str, Any]:
        settings = self._settings
        topology = self._folder / "topology.toml"
        topology.write_text(self._base.text())
        with Up(str(topology), str(self._folder / "data"), settings.durability) as up:
            await asyncio.to_thread(up.await_ready, _start_seconds)
            await self._measure()
        return self._report()

    async def _measure(self) -> None:
        settings = self._settings
        loads: list[asyncio.Task[None]] = []
        try:
            stop, ready = asyncio.Event(), asyncio.Barrier(settings.servers + 1)
            loads = [asyncio.create_task(self._load(name, ready, stop)) for name in self._base.servers]
            await asyncio.wait_for(ready.wait(), _start_seconds)
            await asyncio.sleep(settings.quiet_seconds)
            for number in range(settings.rounds):
                for window in _COMPARED:
                    self._times[window].append([])
                    await self._command(window)
                report_status(f"round {number + 1}/{settings.rounds}")
            self._window = "after"
            await asyncio.sleep(settings.quiet_seconds)
            stop.set()
            await asyncio.gather(*loads)
            await asyncio.wait_for(asyncio.gather(*self._asking), _answer_seconds)
        except TimeoutError:
            raise SideError("the servers did not answer in time") from None
        finally:
            for load in loads:
                load.cancel()

    async def _load(self, server: str, ready: asyncio.Barrier, stop: asyncio.Event) -> None:
        """Connect a client to this server. At fixed times, the client asks the agent on the next server of the
        topology."""
        names = list(self._base.servers)
        to = f"echo-{names[(names.index(server) + 1) % len(names)]}"
        pause = len(names) / self._settings.rate
        async with connect(str(self._base.servers[server]), name="load") as bus:
            await bus.ask(to, Ping(number=0), expect=Pong, timeout=_start_seconds)
            await ready.wait()
            due, number = perf_counter() + pause * (names.index(server) + 1) / len(names), 0
            while not stop.is_set():
                await asyncio.sleep(max(0.0, due - perf_counter()))
                number += 1
                task = asyncio.create_task(self._ask(bus, to, number, due))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)
                due += pause
            await asyncio.gather(*self._asking)

    async def _ask(self, bus: Any, to: str, number: int, due: float) -> None:
        times = self._times[self._window][-1]
        await bus.ask(to, Ping(number=number), expect=Pong, timeout=_answer_seconds)
        times.append(perf_counter() - due)

    async def _command(self, window: str) -> None:
        """Run the command that adds the next agent. In the window ``dry_run``, run the same command with
        ``--dry-run``."""
        names = list(self._base.servers)
        self._added += window == "change"
        count = self._added + (window == "dry_run")
        more = tuple(AgentHome(f"added-{one}", names[one % len(names)], _kind) for one in range(count))
        new = msgspec.structs.replace(self._base, agents=(*self._base.agents, *more))
        path = self._folder / "new.toml"
        path.write_text(new.text())
        begun, self._window = perf_counter(), window
        options = ["--dry-run"] if window == "dry_run" else []
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "antecede", "topology", "apply", str(path), *options),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
        )
        _, errors = await process.communicate()
        if process.returncode:
            raise SideError(f"antecede topology apply: {errors.decode(errors='replace').strip()[-500:]}")
        self._commands[window].append(perf_counter() - begun)
        # What the command has begun may still go on.
        await asyncio.sleep(_after_seconds)

    def _report(self) -> dict[str, Any]:
        settings = self._settings
        windows = {name: _figures([one for times in rounds for one in times]) for name, rounds in self._times.items()}
        rounds = [(dry, change) for dry, change in zip(*(self._times[name][1:] for name in _COMPARED), strict=True)]
        return {
            "bench": "change",
            **msgspec.to_builtins(settings),
            "windows": windows,
            "command_seconds": {name: median(times) for name, times in self._commands.items()},
            "ratios": {name: _compared(rounds, name) for name in ("p50", "p99")},
            "cores": cpu_count(),
        }


def _figures(times: list[float]) -> dict[str, Any]:
    if not times:
        raise SideError("no round trip was measured: expected a larger --rate or --seconds")
    ordered = sorted(times)
    return {"round_trips": len(times), **{f"{name}_ms": _share(ordered, name) * 1_000 for name in _shares}}


def _share(ordered: list[float], name: str) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * _shares[name]))]


def _compared(rounds: list[tuple[list[float], list[float]]], name: str) -> dict[str, float]:
    """Compare the round-trip times during changes with the round-trip times during dry runs. Return their ratio, and
    the 95 % interval of the ratio. ``name``: the compared figure, such as ``p50``."""

    def ratio(drawn: list[tuple[list[float], list[float]]]) -> float:
        dry, change = (sorted(one for times in several for one in times) for several in zip(*drawn, strict=True))
        return _share(change, name) / _share(dry, name)

    # A draw of rounds without round trips would have no ratio.
    rounds = [one for one in rounds if all(one)]
    if not rounds:
        raise SideError("no round has round trips in both of its windows: expected a larger --rate or --seconds")
    random = Random(0)
    found = sorted(ratio(random.choices(rounds, k=len(rounds))) for _ in range(_draws))
    return {"value": ratio(rounds), "low": found[int(_draws * 0.025)], "high": found[int(_draws * 0.975)]}


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"{report['servers']} servers, {report['rate']} round trips per second, {report['rounds']} agents added"
    yield f"{'':<28}{'round trips':>12}{'p50':>10}{'p99':>10}{'longest':>10}"
    for name, shown in zip(WINDOWS, _shown, strict=True):
        row = report["windows"][name]
        yield (
            f"{shown:<28}{row['round_trips']:>12,}{row['p50_ms']:>7.1f} ms{row['p99_ms']:>7.1f} ms"
            f"{row['longest_ms']:>7.1f} ms"
        )
    seconds, ratios = report["command_seconds"], report["ratios"]
    yield f"the command takes {seconds['change']:.2f} s, its dry run {seconds['dry_run']:.2f} s"
    for name, one in ratios.items():
        noise = f"{one['low']:.2f} to {one['high']:.2f}"
        yield f"{name} while agents are added / during dry runs: {one['value']:.2f} (noise: {noise})"


def main(arguments: Sequence[str]) -> int:
    parser = common.parser("change", __doc__)
    parser.add_argument("--servers", type=common.at_least(2), default=4, help="all in one domain")
    parser.add_argument("--rounds", type=common.at_least(1), default=10, help="agents to add, one after the other")
    parser.add_argument("--rate", type=common.at_least(1), default=100, help="round trips per second of all clients")
    parser.add_argument("--seconds", type=float, default=10.0, help="to measure before and after the changes")
    common.add_durability(parser)
    common.add_directory(parser)
    given = parser.parse_args(arguments)
    settings = Settings(given.servers, given.rounds, given.rate, given.seconds, given.durability)
    common.report(bench_change(settings, given.directory), given.json, _lines)
    return 0


_COMPARED = ("dry_run", "change")
_draws = 1_000
_kind = f"{Echo.__module__}:{Echo.__qualname__}"
_shown = ("before, nothing else", "during dry runs", "while agents are added", "after, nothing else")
_shares = {"p50": 0.5, "p99": 0.99, "longest": 1.0}
_start_seconds = 60.0
_answer_seconds = 60.0
_after_seconds = 0.25
