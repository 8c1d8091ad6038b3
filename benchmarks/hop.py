"""The constants of the planner's cost model, measured on this machine.

* **α** is the CPU time of one durable hop (a message from one server to the next). Two real servers answer each other's
  messages (*letters*), one at a time, and both write each letter to disk. Each letter has its own stamp, frame and
  record, as the model assumes. α is computed from the difference between a short and a long run. The start of the
  processes takes the same time in both runs, so the difference does not include it.
* **β** is the time that one byte of a stamp takes. An *order* is the algorithm that decides when a message may be
  delivered. A *stamp* is the control information that the order adds to a message. β is the sum of a CPU time and 8 ns
  for a network of 1 Gbit/s. To measure the CPU time, messages are sent, encoded, decoded and received with the order
  ``matrix``, in a small group and in a large group. The additional time in the large group is divided by the additional
  bytes of its stamps.
* **σ** is the mean size of an order's stamps in a domain (a group of servers). One short simulation measures it for one
  order and one number of servers. Each message goes to one other member, which is chosen at random (*uniform
  unicasts*). The stamps of some orders still grow at the end of such a run. Therefore the planner's own table comes
  from the longer runs of ``antecede sweep stamps``.

α and β are medians over the rounds. α is noisy if there are few letters, because it is a difference of two runs. A busy
machine makes both α and β larger.
"""

import resource
from collections.abc import Iterator, Sequence
from statistics import median
from time import process_time_ns
from typing import Any

import msgspec

from antecede.messages import Message, Send
from antecede.orders import parse
from antecede.simulator.run import Setup, simulate
from benchmarks import common
from benchmarks.channel import measure, sides
from benchmarks.common import report_status

LINE_NS_PER_BYTE = 8.0
"""The time that one byte takes on a network of 1 Gbit/s, in nanoseconds."""

_few, _many = 16, 96
"""The numbers of members in the small and in the large group, for the measurement of β."""


def bench_hop(
    letters: int, rounds: int, orders: Sequence[str], sizes: Sequence[int], directory: str | None
) -> dict[str, Any]:
    """Measure α, β, and the mean size of the stamps for each order and each size of a domain. Return the report."""
    report_status("exchanging letters between two servers")
    alphas = [_hop_ns(letters, directory) for _ in range(rounds)]
    report_status("encoding and decoding stamps")
    betas = [_byte_ns() for _ in range(rounds)]
    table = {}
    for order in orders:
        report_status(f"measuring the stamps of {order}")
        table[order] = [round(stamp_bytes(order, size), 1) for size in sizes]
    return {
        "bench": "hop",
        "alpha_ns": round(median(alphas)),
        "alpha_rounds_ns": [round(one) for one in alphas],
        "beta_ns": round(median(betas) + LINE_NS_PER_BYTE, 2),
        "beta_cpu_ns": round(median(betas), 2),
        "beta_line_ns": LINE_NS_PER_BYTE,
        "sizes": list(sizes),
        "stamp_bytes": table,
    }


def _hop_ns(letters: int, directory: str | None) -> float:
    """Return the CPU time of both servers for one hop of a letter, in nanoseconds. It is computed from the difference
    between a short and a long run."""
    side = next(side for side in sides if side.name == "exchange")
    taken = []
    for many in (letters, 4 * letters):
        before = _children_seconds()
        measure(side, round(many / side.share), directory)
        taken.append(_children_seconds() - before)
    # A round trip is two hops.
    return (taken[1] - taken[0]) * 1e9 / (3 * letters * 2)


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _byte_ns() -> float:
    small, large = _stamp_cost(_few), _stamp_cost(_many)
    return (large[0] - small[0]) / (large[1] - small[1])


def _stamp_cost(members: int, messages: int = 400) -> tuple[float, float]:
    """Measure messages with the order ``matrix``, and return two mean values per message. The first is the CPU time to
    send, encode, decode and receive the message, in nanoseconds. The second is the size of its stamp, in bytes."""
    spec = parse("matrix")
    sender, receiver = spec.create(0, members), spec.create(1, members)
    total = 0
    started = process_time_ns()
    for number in range(messages):
        for effect in sender.send(Message(f"m{number}", 0, 2, b"")):
            if type(effect) is Send:
                packet = effect.packet
                data = sender.encode(packet)
                total += len(data)
                stamp = receiver.decode(packet.kind, packet.source, data)
                receiver.receive(msgspec.structs.replace(packet, stamp=stamp))
    return (process_time_ns() - started) / messages, total / messages


def stamp_bytes(order: str, size: int) -> float:
    """Return the mean size of an order's stamps, in bytes, from a simulation. The domain has ``size`` members. Each
    message goes to one other member, which is chosen at random."""
    setup = Setup(parse(order), size, max(3_000, 100 * size), warmup=max(1_000, 40 * size))
    return float(simulate(setup)["stamp"]["bytes_mean"])


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"α {report['alpha_ns'] / 1e3:,.0f} µs per hop, β {report['beta_ns']:.2f} ns per byte of a stamp"
    yield f"{'bytes of a stamp':<18}" + "".join(f"{size:>8}" for size in report["sizes"]) + "  servers"
    for order, row in report["stamp_bytes"].items():
        yield f"{order:<18}" + "".join(f"{size:>8,.1f}" for size in row)


def main(arguments: Sequence[str]) -> int:
    parser = common.parser("hop", __doc__)
    parser.add_argument(
        "--letters", type=common.at_least(100), default=1_500, help="round trips of the short run; the long has 4 ×"
    )
    parser.add_argument("--rounds", type=common.at_least(1), default=3, help="the results are medians")
    parser.add_argument("--order", type=common.orders, default="pruned,direct,updates,buffer,fifo")
    parser.add_argument("--sizes", type=common.numbers(2), default="2,3,4,6,8,12,16,24,32,48,64", help="of domains")
    common.add_directory(parser)
    given = parser.parse_args(arguments)
    found = bench_hop(given.letters, given.rounds, given.order, given.sizes, given.directory)
    common.report(found, given.json, _lines)
    return 0
