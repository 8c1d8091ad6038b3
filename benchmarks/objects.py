"""Calls of replicated objects on three servers, compared with puts in etcd and with a lower bound (the *floor*).

**Rules.** There are three servers on one machine. Each server and each caller is a separate process. In each round, the
sides (our servers, etcd and the floor) are measured in turn. The report compares medians over the rounds, and only
ratios within one run are meaningful. etcd is measured only with a disk, and only if its program is installed.

**Figures.** For each side, the report has the calls per second, the median latency, and the CPU time of the three
servers per call. For our side, it also has the numbers of frames between servers, of records in the logs, of
fdatasyncs, and of bytes in the logs. Each of these four figures is the sum for all three servers, divided by the number
of calls.

**Kinds of calls.** *compatible*: conflict with nothing. *shared*: conflict only with an operation that is never called.
*conflicting*: conflict with each other. *nested*: call a second object. *unconfirmed*: conflict with nothing, and the
caller's server answers when the call is on its own disk; the others are answered when every replica has the call on its
disk. Needs Linux. If etcd (Debian's etcd-server) is not installed, the comparison with etcd is left out.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from antecede.errors import UsageError
from benchmarks import common, etcd
from benchmarks.common import Child, SideError, free_ports, party, program, report_status
from benchmarks.replicated import SERVERS, topology_text

KINDS = ("compatible", "unconfirmed", "shared", "conflicting", "nested")
Caller = Callable[[str, int, int], dict[str, float]]
"""A function that makes calls and returns their figures. Its arguments are the kind of the calls, the number of all
calls, and the number of calls that are under way at the same time."""


class Settings(msgspec.Struct, frozen=True):
    """The settings of the benchmark: which measurements are made, and how long they are."""

    kinds: tuple[str, ...] = KINDS
    under_way: tuple[int, ...] = (1, 8, 32, 256)
    states: tuple[int, ...] = (1_000, 1_000_000, 10_000_000)
    durable: tuple[bool, ...] = (False, True)
    calls: int = 1_000
    rounds: int = 1
    etcd: str | None = None
    """The path of etcd's program. If it is None, search for it in the folder of the Python interpreter and in PATH."""

    def cells(self, state: int) -> list[tuple[str, int]]:
        """Return the measurements for one size of the object's state, as pairs (kind of calls, number of calls under
        way). For the smallest state these are all combinations. For larger states they are the combinations with 1 or
        32 calls under way. ``state``: the size in bytes."""
        if state == min(self.states):
            return [(kind, count) for kind in self.kinds for count in self.under_way]
        return [(kind, count) for kind in self.kinds for count in self.under_way if count in (1, 32)]


def bench_objects(settings: Settings, directory: str | None) -> dict[str, Any]:
    """Measure our servers, etcd and the floor (a program that does only the unavoidable work), in turn in each round.
    Return the report."""
    skipped: dict[str, str] = {}
    found = settings.etcd or program("etcd")
    if settings.etcd is not None and not os.access(settings.etcd, os.X_OK):
        raise UsageError(f"--etcd {settings.etcd}: expected the path of a program that can be run")
    if found is None:
        skipped["etcd"] = "not installed: etcd (Debian's package etcd-server)"
        report_status(f"etcd: skipped, {skipped['etcd']}")
    samples: dict[tuple[str, bool, int, str, int], list[dict[str, float]]] = {}
    for number in range(settings.rounds):
        for durable in settings.durable:
            title = f"round {number + 1}/{settings.rounds}"
            _round(settings, durable, found, directory, samples, skipped, title)
    rows = [_row(key, one) for key, one in samples.items()]
    return {
        "bench": "objects",
        "calls": settings.calls,
        "rounds": settings.rounds,
        "cores": os.cpu_count(),
        "rows": _compared(rows),
        "skipped": skipped,
    }


def _round(
    settings: Settings,
    durable: bool,
    etcd_program: str | None,
    directory: str | None,
    samples: dict[tuple[str, bool, int, str, int], list[dict[str, float]]],
    skipped: dict[str, str],
    title: str,
) -> None:
    with ExitStack() as stack:
        place = stack.enter_context(TemporaryDirectory(prefix="antecede-benchmark-", dir=directory))
        sides: dict[str, Caller] = {}
        try:
            if durable and etcd_program is not None and "etcd" not in skipped:
                sides["etcd"] = stack.enter_context(_etcd(etcd_program, place))
        except (SideError, OSError) as error:
            skipped["etcd"] = str(error)
            report_status(f"etcd: given up, {error}")
        sides["floor"] = stack.enter_context(_floor(place if durable else None))
        for state in settings.states:
            with _ours(place if durable else None, state) as ours:
                for kind, count in settings.cells(state):
                    here = {"ours": ours}
                    if state == min(settings.states) and kind == settings.kinds[0]:
                        here |= sides
                    for side, call in here.items():
                        calls = max(count * 4, settings.calls if count > 1 else settings.calls // 3, 20)
                        try:
                            sample = call(kind, calls, count)
                        except SideError as error:
                            if side != "etcd":
                                raise
                            skipped[side] = str(error)
                            report_status(f"{side}: given up, {error}")
                            continue
                        samples.setdefault((side, durable, state, kind, count), []).append(sample)
                        what = f"{side} {'durable' if durable else 'memory'} {state:,} B {kind} ×{count}"
                        report_status(
                            f"{title}  {what:<44} {sample['per_second']:>9,.0f}/s {sample['p50_us']:>9,.0f} µs"
                        )


@contextmanager
def _ours(place: str | None, state: int) -> Iterator[Caller]:
    topology = topology_text(free_ports(3))
    with ExitStack() as stack:
        servers = []
        for name in SERVERS:
            data = {} if place is None else {"data": f"{place}/{state}-{name}"}
            servers.append(stack.enter_context(party("replicated", "server", topology=topology, name=name, **data)))
        for server in servers:
            server.receive(_start_seconds)
        with party("replicated", "filled", topology=topology, bytes_=state) as filler:
            filler.receive(_run_seconds)

        def counted() -> dict[str, int]:
            totals: dict[str, int] = {}
            for server in servers:
                server.ask()
                for name, count in server.receive(_start_seconds).items():
                    totals[name] = totals.get(name, 0) + count
            return totals

        def call(kind: str, calls: int, under_way: int) -> dict[str, float]:
            before = counted()
            sample = _called("replicated", servers, calls, under_way, topology=topology, kind=kind)
            after, total = counted(), calls + max(_warm, under_way)
            return sample | {name: (count - before[name]) / total for name, count in after.items()}

        yield call


@contextmanager
def _etcd(program_: str, place: str) -> Iterator[Caller]:
    ports = free_ports(6)
    with ExitStack() as stack:
        commands = etcd.server_commands(program_, place, ports[:3], ports[3:])
        nodes = [stack.enter_context(Child(command, silent=True)) for command in commands]
        yield lambda kind, calls, under_way: _called("etcd", nodes, calls, under_way, port=ports[0])


@contextmanager
def _floor(place: str | None) -> Iterator[Caller]:
    def data(name: str) -> dict[str, str]:
        return {} if place is None else {"data": f"{place}/floor-{name}"}

    with ExitStack() as stack:
        replicas = [stack.enter_context(party("replicated_floor", "replica", **data(name))) for name in ("2", "3")]
        others = [replica.receive(_start_seconds)["port"] for replica in replicas]
        first = stack.enter_context(party("replicated_floor", "first", others=others, **data("1")))
        port = first.receive(_start_seconds)["port"]
        servers = [first, *replicas]
        yield lambda kind, calls, under_way: _called("replicated_floor", servers, calls, under_way, port=port)


def _called(module: str, servers: list[Child], calls: int, under_way: int, **more: Any) -> dict[str, float]:
    """Let a separate process make calls to these servers. Return the figures of the calls, which include the CPU time
    of the servers."""
    settings = {"calls": calls, "under_way": under_way, "pids": [one.pid for one in servers], "warm": _warm}
    with party(module, "caller", **settings, **more) as caller:
        return caller.receive(_run_seconds)


def _row(key: tuple[str, bool, int, str, int], found: list[dict[str, float]]) -> dict[str, Any]:
    side, durable, state, kind, under_way = key
    figures = {name: median(sample[name] for sample in found) for name in found[0]}
    return {"side": side, "durable": durable, "state": state, "kind": kind, "under_way": under_way, **figures}


def _compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add ratios to each row of our side, and return all rows. The latency and the rate of the row are divided by those
    of etcd, and by those of the floor (the lower bound). The CPU time of the row is divided by the CPU time of the same
    calls with the smallest state."""
    others = {(row["side"], row["durable"], row["under_way"]): row for row in rows if row["side"] != "ours"}
    smallest = min((row["state"] for row in rows), default=0)
    small = {_place(row): row for row in rows if row["side"] == "ours" and row["state"] == smallest}
    for row in rows:
        if row["side"] != "ours":
            continue
        for side in ("etcd", "floor"):
            other = others.get((side, row["durable"] or side == "etcd", row["under_way"]))
            if other is not None:
                row[f"latency_to_{side}"] = row["p50_us"] / other["p50_us"]
                row[f"rate_to_{side}"] = row["per_second"] / other["per_second"]
        base = small.get(_place(row))
        row["cpu_to_smallest"] = row["cpu_us"] / base["cpu_us"] if base and base["cpu_us"] else None
    return rows


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["durable"], row["kind"], row["under_way"]


def _lines(report: dict[str, Any]) -> Iterator[str]:
    head = f"{'side':<6}{'disk':<8}{'state':>11}  {'calls':<12}{'×':>4}{'per s':>9}{'p50 µs':>9}{'CPU µs':>8}"
    yield head + f"{'frames':>8}{'steps':>7}{'syncs':>7}{'log B':>8}{'p50/etcd':>10}{'rate/etcd':>10}{'CPU/small':>10}"
    for row in report["rows"]:
        ratios = [row.get(name) for name in ("latency_to_etcd", "rate_to_etcd", "cpu_to_smallest")]
        counted = [row.get(name) for name in ("frames", "records", "syncs")]
        disk = "durable" if row["durable"] else "memory"
        yield (
            f"{row['side']:<6}{disk:<8}{row['state']:>11,}  {row['kind']:<12}{row['under_way']:>4}"
            f"{row['per_second']:>9,.0f}{row['p50_us']:>9,.0f}{row['cpu_us']:>8,.0f}"
            + "".join(
                f"{'–' if one is None else format(one, '.2f'):>{8 if at == 0 else 7}}" for at, one in enumerate(counted)
            )
            + f"{'–' if row.get('log_bytes') is None else format(row['log_bytes'], ',.0f'):>8}"
            + "".join(f"{'–' if one is None else format(one, '.2f'):>10}" for one in ratios)
        )
    yield from (f"{side}: skipped: {reason}" for side, reason in report["skipped"].items())


def main(arguments: Sequence[str]) -> int:
    parser = common.parser("objects", __doc__)
    parser.add_argument("--rounds", type=common.at_least(1), default=1, help="the results are medians")
    parser.add_argument(
        "--calls", type=common.at_least(20), default=1_000, help="per measurement; a third of it for one call at a time"
    )
    parser.add_argument("--kinds", type=common.some_of(KINDS), default=",".join(KINDS))
    parser.add_argument("--under-way", type=common.numbers(), default="1,8,32,256", help="simultaneous calls")
    parser.add_argument("--states", type=common.numbers(), default="1000,1000000,10000000", help="bytes of the state")
    parser.add_argument("--disk", choices=("yes", "no", "both"), default="both", help="whether servers write to disk")
    parser.add_argument("--etcd", metavar="PROGRAM", help="default: etcd on the PATH")
    common.add_directory(parser)
    given = parser.parse_args(arguments)
    durable = {"yes": (True,), "no": (False,), "both": (False, True)}[given.disk]
    settings = Settings(given.kinds, given.under_way, given.states, durable, given.calls, given.rounds, given.etcd)
    common.report(bench_objects(settings, given.directory), given.json, _lines)
    return 0


_start_seconds = 30.0
_run_seconds = 300.0
_warm = 50
