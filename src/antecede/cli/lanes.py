"""``antecede lanes``: causal order over a broker that exists already (see :mod:`antecede.lanes`)."""

import asyncio
import json
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

from antecede.cli.options import JSON
from antecede.errors import UsageError

if TYPE_CHECKING:
    from antecede.lanes.drive import Delivery, Facts, Opening, Order
    from antecede.simulator.broker import Broker

_lanes = ("questions", "answers")
Handler = Callable[[str], Awaitable[None]]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Causal order over Kafka, NATS, Redis or RabbitMQ.")
    app.add_typer(group, name="lanes")

    @group.callback()
    def _lanes_group() -> None:
        """Causal order over Kafka, NATS, Redis or RabbitMQ."""

    @group.command("demo")
    def demo(
        on: str = typer.Option("auto", help="Broker: auto, nats, redis or simulated."),
        count: int = typer.Option(200, min=1, max=10_000, help="Number of questions."),
        as_json: bool = JSON,
    ) -> int:
        """Show answers that overtake their questions on a broker, and that none does with causal order.

        One service asks, a second one answers, and a third one reads questions and answers from two streams. The
        broker is started for this purpose: nats-server or redis-server if one is found with its client, otherwise a
        simulated one. Both runs are recorded and verified.
        """
        kind = _chosen(on)
        runs = []
        for ordered in (False, True):
            with TemporaryDirectory(prefix="antecede-lanes-") as folder:
                runs.append(asyncio.run(_run(kind, Path(folder), ordered, count)))
        if as_json:
            print(json.dumps({"broker": kind, "questions": count, "without": runs[0], "with": runs[1]}, indent=2))
        else:
            print(f"{count} questions and their answers, over two streams of {_names[kind]}:")
            for name, run in zip(("without", "with"), runs, strict=True):
                verdict = "kept" if run["late"] == 0 else f"broken ({run['late']} late)"
                print(f"{name:>8}  {run['early']:>5} answers before their questions   verify: causal order {verdict}")
        return 0 if runs[1]["early"] == 0 and runs[1]["late"] == 0 else 1


_names = {"nats": "NATS JetStream", "redis": "Redis", "simulated": "a simulated broker"}


def _chosen(on: str) -> str:
    found = [kind for kind in ("nats", "redis") if _program(kind) and _client(kind)]
    if on == "auto":
        return (*found, "simulated")[0]
    if on not in _names:
        raise UsageError(f"--on {on}: expected one of auto, {', '.join(_names)}")
    if on != "simulated" and on not in found:
        raise UsageError(f"--on {on}: {on}-server or the client is not installed (pip install 'antecede[{on}]')")
    return on


def _program(kind: str) -> str | None:
    near = shutil.which(f"{kind}-server", path=str(Path(sys.executable).parent))
    return near or shutil.which(f"{kind}-server")


def _client(kind: str) -> bool:
    from importlib.util import find_spec

    return find_spec(kind) is not None


async def _run(kind: str, folder: Path, ordered: bool, count: int) -> dict[str, int]:
    """Run the three services once, and return how many answers came early, and how many deliveries are late."""
    from antecede.record import Recorder
    from antecede.trace import verify

    link: _Link = {"nats": _Nats, "redis": _Redis, "simulated": _Simulated}[kind](folder)
    got: list[str] = []
    enough = asyncio.Event()
    tasks = []
    try:
        await link.start()
        traces = folder / "traces"
        traces.mkdir()
        made = {}
        for name in ("asker", "answerer", "reader"):
            made[name] = link.order(ordered, Recorder(traces / f"{name}.jsonl"))

        async def answer(question: str) -> None:
            await link.publish(made["answerer"], "answers", question.replace("question", "answer"))

        async def read(text: str) -> None:
            if text.startswith("question"):
                await asyncio.sleep(0.002)
            got.append(text)
            if len(got) >= 2 * count:
                enough.set()

        tasks.append(asyncio.ensure_future(link.consume(made["answerer"], "answerer", _lanes[:1], answer)))
        tasks.append(asyncio.ensure_future(link.consume(made["reader"], "reader", _lanes, read)))
        for number in range(count):
            await link.publish(made["asker"], "questions", f"question {number}")
        await asyncio.wait_for(enough.wait(), 60)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await link.stop()
    first: dict[str, int] = {}
    for place, text in enumerate(got):
        first.setdefault(text, place)
    early = sum(first[f"answer {n}"] < first[f"question {n}"] for n in range(count))
    return {"early": early, "late": int(verify([str(traces)])["orders"]["causal"]["late"])}


class _Link:
    """A broker that runs for the demonstration, and the source of its facts."""

    source: Any

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._server: subprocess.Popen[bytes] | None = None

    def order(self, ordered: bool, recorder: Any) -> "Order":
        from antecede.lanes.box import Verdict
        from antecede.lanes.drive import Order

        class Unordered(Order):
            """Handles everything at once."""

            async def begin(self, delivery: "Delivery") -> Verdict:
                delivery.arrival.verdict = Verdict.START
                return Verdict.START

            async def finish(self, delivery: "Delivery", outcome: Any) -> None:
                self._record(delivery)
                await delivery.ack()

        return (Order if ordered else Unordered)(self.source, recorder=recorder)

    async def _serve(self, *arguments: str) -> None:
        log = self.folder / "server.log"
        with log.open("wb") as output:
            self._server = subprocess.Popen(arguments, stdout=output, stderr=output, cwd=self.folder)
        end = time.monotonic() + 10
        while time.monotonic() < end:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return
            await asyncio.sleep(0.02)
        raise UsageError(f"{arguments[0]} did not start: {log.read_text(errors='replace')[-200:]!r}")

    async def start(self) -> None:
        raise NotImplementedError

    async def publish(self, order: "Order", lane: str, text: str) -> None:
        raise NotImplementedError

    async def consume(self, order: "Order", group: str, lanes: tuple[str, ...], handler: Handler) -> None:
        raise NotImplementedError

    async def stop(self) -> None:
        if self._server is not None:
            self._server.terminate()
            await asyncio.to_thread(self._server.wait, 10)


class _Nats(_Link):
    async def start(self) -> None:
        import nats

        from antecede.lanes.nats import JetStream

        config = self.folder / "nats.conf"
        config.write_text(f'host: 127.0.0.1\nport: {self.port}\njetstream {{ store_dir: "{self.folder / "data"}" }}\n')
        await self._serve(_program("nats") or "", "-c", str(config))
        self._client: Any = await nats.connect(f"nats://127.0.0.1:{self.port}")
        self._js = self._client.jetstream()
        for lane in _lanes:
            await self._js.add_stream(name=lane, subjects=[lane])
        self.source = JetStream(self._js)

    async def publish(self, order: "Order", lane: str, text: str) -> None:
        await self.source.publish(order, lane, text.encode())

    async def consume(self, order: "Order", group: str, lanes: tuple[str, ...], handler: Handler) -> None:
        callback = self.source.callback(order, lambda message: handler(message.data.decode()))
        order.expect(*(self.source.reader(lane, f"{group}-{lane}") for lane in lanes))
        for lane in lanes:
            await self._js.subscribe(lane, durable=f"{group}-{lane}", stream=lane, cb=callback, manual_ack=True)
        await asyncio.Event().wait()

    async def stop(self) -> None:
        await self._client.close()
        await super().stop()


class _Redis(_Link):
    async def start(self) -> None:
        from redis.asyncio import Redis

        from antecede.lanes.redis import RedisStreams

        words = ("--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder))
        await self._serve(_program("redis") or "", *words)
        self._client: Any = Redis(port=self.port)
        self.source = RedisStreams(self._client)

    async def publish(self, order: "Order", lane: str, text: str) -> None:
        await self.source.publish(order, lane, {"text": text})

    async def consume(self, order: "Order", group: str, lanes: tuple[str, ...], handler: Handler) -> None:
        await self.source.consume(order, lanes, group, "1", lambda fields: handler(fields[b"text"].decode()))

    async def stop(self) -> None:
        await self._client.aclose()
        await super().stop()


class _Simulated(_Link):
    async def start(self) -> None:
        from antecede.simulator.broker import Broker

        self.broker = Broker(random.Random(7).random, time.monotonic)
        self.source = _Told(self.broker)

    async def publish(self, order: "Order", lane: str, text: str) -> None:
        stamp = await order.stamp()
        headers = order.headers(stamp)
        await asyncio.sleep(0)
        order.sent(stamp, lane, self.broker.publish(lane, None, json.dumps(headers), text))

    async def consume(self, order: "Order", group: str, lanes: tuple[str, ...], handler: Handler) -> None:
        from antecede.lanes.box import Arrival
        from antecede.lanes.drive import Delivery
        from antecede.lanes.frontier import HEADER
        from antecede.simulator import broker

        came: asyncio.Queue[broker.Delivery] = asyncio.Queue()
        for lane in lanes:
            durable = self.broker.durable(f"{group} {lane}", lane, "counted")
            await order.open(durable.name)
            durable.consumers.append(broker.Consumer(lambda: 64, came.put_nowait))
            durable.pump()

        async def handle(one: broker.Delivery) -> None:
            headers = json.loads(one.message.header or "{}")
            stamp = order.stamped(headers.get(HEADER), one.message.lane)
            arrival = Arrival(one.durable.name, one.message.position, stamp.causes, sequence=one.sequence)

            async def acknowledge() -> None:
                one.durable.acknowledge(one)

            delivery = Delivery(arrival, headers, acknowledge)
            await order.run(delivery, lambda: handler(one.message.body))

        tasks = set()
        while True:
            task = asyncio.ensure_future(handle(await came.get()))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


class _Told:
    """What the simulated broker knows."""

    alive_seconds = 1e9

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    async def ends(self) -> Mapping[str, int]:
        return {name: lane.end for name, lane in self._broker.lanes.items()}

    async def end(self, lane: str) -> int:
        return self._broker.lane(lane).end

    async def opening(self, reader: str) -> "Opening":
        from antecede.lanes.drive import Opening

        durable = self._broker.durables[reader]
        return Opening(durable.lane.name, durable.floor, durable.delivered, durable.sequence, sole=True)

    async def facts(self, reader: str, position: int) -> "Facts":
        from antecede.lanes.drive import Facts

        return Facts(self._broker.durables[reader].floor)
