"""The experiments of Laumay et al. §6 with real servers on one machine.

Every server has one agent that answers each message. The main agent sends three kinds of messages: to the agent on its
own server (*local*), to the agent on another server (*remote*), and to the agents on all servers (*broadcast*). It
measures the time until all answers are back. Two organisations are measured. In the *flat* organisation, all servers
are in one domain. In the *bus*, one backbone domain connects several other domains. The main agent is on a server that
is not a router, and the remote agent is on the last server. So a remote message in a bus passes through three domains.

The servers are started by ``antecede up``, as a user starts them. The report also contains the elapsed time and the CPU
time from the start until all servers were connected. It also contains the memory of the idle servers: the sum of their
proportional set sizes. In this sum, a page that several processes share is counted once. 150 servers need about 5 GB of
memory, and Linux.

The paper shows its times only as pictures, so we cannot compare numbers. Only the *law* of growth can be compared. The
paper says that the times of the flat organisation grow with the square of the number of servers. It says that the times
of the bus grow linearly. The entry ``fits`` of the report shows how well each law describes the times of each
organisation (by least squares).
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import correlation, fmean, linear_regression, median
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import msgspec

from antecede.live.client.line import connect
from antecede.topology import SHAPES as ALL_SHAPES
from antecede.topology import Address, AgentHome, TopologyFile, make
from benchmarks import common
from benchmarks.common import SideError, Up, free_ports, report_status
from benchmarks.paper000_agents import Begin, Measured
from benchmarks.paper000_figures import figures

KINDS = ("local", "remote", "broadcast")
SHAPES = ("flat", "bus")


class Settings(msgspec.Struct, frozen=True):
    """The settings of one run of the benchmark."""

    servers: tuple[int, ...]
    shapes: tuple[str, ...] = SHAPES
    order: str = "matrix"
    sends: int = 100
    broadcasts: int = 20
    durability: str = "disk"
    start_seconds: float = 600.0


def bench_paper000(settings: Settings, directory: str | None) -> dict[str, Any]:
    """Measure the organisations one after the other, and return the report. An organisation is a shape (flat or bus)
    with a number of servers."""
    rows = []
    for servers in settings.servers:
        for shape in settings.shapes:
            rows.append(_measured(shape, servers, settings, directory))
            report_status(_line(rows[-1]))
    return {
        "bench": "paper000",
        **msgspec.to_builtins(settings),
        "cores": os.cpu_count(),
        "rows": rows,
        "fits": fits(rows),
    }


def organisation(shape: str, servers: int, order: str, ports: Sequence[int]) -> TopologyFile:
    """Return the topology of an experiment: the servers, the domains, the main agent, and an echo agent on every
    server."""
    made = make(shape, servers, None, order)
    names = list(made.servers)
    agents = [AgentHome("main", names[1], f"{_agents}:Main")]
    agents += [AgentHome(f"echo-{name}", name, f"{_agents}:Echo") for name in names]
    addresses = {name: Address("127.0.0.1", port) for name, port in zip(names, ports, strict=True)}
    return msgspec.structs.replace(made, servers=addresses, agents=tuple(agents))


def _measured(shape: str, servers: int, settings: Settings, directory: str | None) -> dict[str, Any]:
    file = organisation(shape, servers, settings.order, free_ports(servers))
    names = list(file.servers)
    echoes = [f"echo-{name}" for name in names]
    rounds: dict[str, tuple[list[str], int]] = {
        "local": ([f"echo-{names[1]}"], settings.sends),
        "remote": ([echoes[-1]], settings.sends),
        "broadcast": (echoes, settings.broadcasts),
    }
    with TemporaryDirectory(prefix="antecede-benchmark-", dir=directory) as place:
        path = Path(place) / "topology.toml"
        path.write_text(file.text())
        with Up(str(path), f"{place}/data", settings.durability) as up:
            up.await_ready(settings.start_seconds)
            row: dict[str, Any] = {
                "shape": shape,
                "servers": servers,
                "route": len(file.organisation.route(names[1], names[-1])) - 1,
                "start_seconds": monotonic() - up.started,
                "start_cpu_seconds": up.cpu_seconds(),
                "idle_pss_bytes": up.pss_bytes(),
            }
            for kind, (to, count) in rounds.items():
                before = up.cpu_seconds()
                seconds = asyncio.run(_rounds(str(file.servers[names[1]]), to, count))
                cpu = (up.cpu_seconds() - before) / len(seconds)
                row[kind] = {
                    "median_ms": median(seconds) * 1e3,
                    "mean_ms": fmean(seconds) * 1e3,
                    "least_ms": min(seconds) * 1e3,
                    "cpu_ms": cpu * 1e3,
                }
    return row


async def _rounds(address: str, to: list[str], count: int) -> list[float]:
    """Let the main agent measure some rounds to warm up, and then ``count`` rounds. Return the times of these ``count``
    rounds in seconds."""
    warm = max(1, min(5, count // 4))
    measured: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()
    async with connect(address) as bus:
        bus.on(Measured, lambda found: measured.set_result(found.seconds))
        await bus.send("main", Begin(to=to, rounds=warm + count))
        try:
            return (await asyncio.wait_for(measured, _rounds_seconds))[warm:]
        except TimeoutError:
            raise SideError(f"{count} rounds to {len(to)} agents took more than {_rounds_seconds:.0f} s") from None


def fit(points: Sequence[tuple[float, float]]) -> dict[str, float] | None:
    """Return the least-squares line y = a + b·x through these points, and the share of the variance that this line
    explains. Return None if there are fewer than three points."""
    if len(points) < 3:
        return None
    xs, ys = zip(*points, strict=True)
    line = linear_regression(xs, ys)
    explained = correlation(xs, ys) ** 2 if len(set(ys)) > 1 else 1.0
    return {"a": line.intercept, "b": line.slope, "r2": explained}


def fits(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, dict[str, float] | None]]]:
    """Return how well the median times follow a + b·n and a + b·n², where n is the number of servers. The result is
    grouped by organisation and by kind of message."""
    found: dict[str, dict[str, dict[str, dict[str, float] | None]]] = {}
    for shape in dict.fromkeys(row["shape"] for row in rows):
        mine = [row for row in rows if row["shape"] == shape]
        found[shape] = {
            kind: {
                "linear": fit([(row["servers"], row[kind]["median_ms"]) for row in mine]),
                "quadratic": fit([(row["servers"] ** 2, row[kind]["median_ms"]) for row in mine]),
            }
            for kind in KINDS
        }
    return found


def _line(row: dict[str, Any]) -> str:
    times = "  ".join(f"{kind} {row[kind]['median_ms']:,.1f} ms" for kind in KINDS)
    return f"{row['shape']:<5}{row['servers']:>4} servers  started in {row['start_seconds']:.0f} s  {times}"


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"order {report['order']}, durability {report['durability']}; turn-around: medians; CPU: all servers together"
    yield (
        f"{'':<5}{'servers':>8}{'local':>11}{'remote':>11}{'(CPU)':>11}{'broadcast':>12}{'(CPU)':>11}"
        f"{'start':>8}{'(CPU)':>8}{'memory':>10}"
    )
    for row in report["rows"]:
        yield (
            f"{row['shape']:<5}{row['servers']:>8}{row['local']['median_ms']:>8,.1f} ms"
            f"{row['remote']['median_ms']:>8,.1f} ms{row['remote']['cpu_ms']:>8,.1f} ms"
            f"{row['broadcast']['median_ms']:>9,.0f} ms{row['broadcast']['cpu_ms']:>8,.0f} ms"
            f"{row['start_seconds']:>6.0f} s{row['start_cpu_seconds']:>6.0f} s"
            f"{row['idle_pss_bytes'] / 2**20:>6,.0f} MiB"
        )
    for shape, kinds in report["fits"].items():
        for kind in ("remote", "broadcast"):
            laws = [(name, law["r2"]) for name, law in kinds[kind].items() if law is not None]
            if laws:
                shares = ", ".join(f"{name} {share:.2f}" for name, share in laws)
                yield f"{shape} {kind}: share of the variance explained: {shares}"


def main(arguments: Sequence[str]) -> int:
    parser = common.parser("paper000", __doc__)
    parser.add_argument("--servers", type=common.numbers(), default="10,20,30,50,75,100,150", help="3 to 1000 each")
    parser.add_argument("--shapes", type=common.some_of(tuple(ALL_SHAPES)), default="flat,bus", help="of topologies")
    parser.add_argument("--order", type=common.orders, default="matrix", help="of every domain")
    parser.add_argument("--sends", type=common.at_least(4), default=100, help="messages to one agent")
    parser.add_argument("--broadcasts", type=common.at_least(4), default=20, help="messages to all agents")
    parser.add_argument("--svg", metavar="FILE", help="draw the paper's Fig. 9, 11 and 12 into this file")
    common.add_durability(parser)
    common.add_directory(parser)
    given = parser.parse_args(arguments)
    if not 3 <= min(given.servers) <= max(given.servers) <= 1_000:
        parser.error("--servers: expected numbers from 3 to 1000, separated by commas")
    if given.svg is not None and not os.access(os.path.dirname(os.path.abspath(given.svg)), os.W_OK):
        parser.error(f"--svg {given.svg}: expected a file in a folder that can be written")
    settings = Settings(given.servers, given.shapes, given.order[0], given.sends, given.broadcasts, given.durability)
    found = bench_paper000(settings, given.directory)
    if given.svg is not None:
        Path(given.svg).write_text(figures(found), encoding="utf-8")
    common.report(found, given.json, _lines)
    return 0


_agents = "benchmarks.paper000_agents"
_rounds_seconds = 900.0
