"""Three anomalies on real brokers (Kafka: on librdkafka's mock cluster): each without us, and its absence with us.

Every run with us is recorded, and ``antecede verify`` judges the recording; it finds the anomalies without us, too.
"""

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from antecede.cli import run as run_command
from antecede.record import Recorder
from helpers.brokers import Broker, missing
from lanes.services import Service

pytest.importorskip("faststream")
from antecede.lanes.faststream import CausalOrder

_numbers = itertools.count()
BOTH = pytest.mark.parametrize("ordered", [False, True], ids=["without", "with"])


async def until(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)


class Run:
    """Services that record a trace, with or without order."""

    def __init__(self, broker: Broker, folder: Path, ordered: bool) -> None:
        self.broker, self.folder, self.ordered = broker, folder, ordered
        self.suffix = str(next(_numbers))
        self.services: list[Service] = []

    def service(self, name: str, **options: Any) -> Service:
        order = None
        if self.ordered:
            order = CausalOrder(recorder=Recorder(self.folder / f"{name}.jsonl"), **options)
        self.services.append(Service(self.broker.kind, self.broker.url, f"{name}{self.suffix}", order))
        return self.services[-1]

    def lane(self, name: str) -> str:
        return name + self.suffix

    async def __aenter__(self) -> "Run":
        return self

    async def __aexit__(self, *_: object) -> None:
        for service in self.services:
            await service.broker.stop()

    async def start(self) -> None:
        for service in reversed(self.services):
            await service.broker.start()


def in_thread(run: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(run(), 60)

    asyncio.run(bounded())


def verified(folder: Path, *options: str) -> int:
    return run_command(["verify", str(folder), "--engine", "plain", *options])


@BOTH
def test_an_answer_never_overtakes_its_question(broker: Broker, tmp_path: Path, ordered: bool) -> None:
    got: list[tuple[str, int]] = []
    count = 60

    async def main() -> None:
        async with Run(broker, tmp_path, ordered) as run:
            questions, answers = run.lane("questions"), run.lane("answers")
            asker, answerer, reader = run.service("asker"), run.service("answerer"), run.service("reader")

            async def answer(message: dict[str, int]) -> None:
                await answerer.say(answers, {"answer": message["question"]})

            async def read(message: dict[str, int]) -> None:
                ((kind, number),) = message.items()
                if kind == "question":
                    await asyncio.sleep(0.005 if broker.kind != "kafka" else 0.015)
                got.append((kind, number))

            answerer.on(questions, answer)
            if broker.kind == "rabbitmq" and ordered:
                reader.on((questions, answers), read)
            else:
                reader.on(questions, read)
                reader.on(answers, read)
            await run.start()
            for number in range(count):
                await asker.say(questions, {"question": number})
            await until(lambda: len(got) >= 2 * count)

    in_thread(main)
    first: dict[tuple[str, int], int] = {}
    for place, one in enumerate(got):
        first.setdefault(one, place)
    early = sum(first[("answer", n)] < first.get(("question", n), 1 << 30) for n in range(count))
    assert len(first) == 2 * count
    if ordered:
        assert early == 0
        assert verified(tmp_path) == 0
    else:
        assert early > 0


@BOTH
def test_what_failed_comes_again_before_its_successors(broker: Broker, tmp_path: Path, ordered: bool) -> None:
    if broker.kind == "kafka" and not ordered:
        pytest.skip("FastStream reads a partition one by one, and goes back to what failed")
    got: list[int] = []
    failed: set[int] = set()
    count = 12

    async def main() -> None:
        async with Run(broker, tmp_path, ordered) as run:
            service = run.service("service")

            async def handle(message: int) -> None:
                await asyncio.sleep(0.02)
                if message in (1, 5) and message not in failed:
                    failed.add(message)
                    raise ValueError(message)
                got.append(message)

            service.on(run.lane("tasks"), handle)
            await run.start()
            for number in range(count):
                await service.say(run.lane("tasks"), number)
            await until(lambda: len(got) >= count)

    in_thread(main)
    assert sorted(got) == list(range(count))
    assert failed == {1, 5}
    if ordered:
        assert got == list(range(count))
        assert verified(tmp_path) == 0
    else:
        assert got != list(range(count))


@BOTH
def test_messages_with_the_same_key_are_in_sequence(broker: Broker, tmp_path: Path, ordered: bool) -> None:
    if broker.kind == "kafka":
        pytest.skip("FastStream reads a partition one by one; see the test of the adapter for aiokafka")
    got: dict[str, list[int]] = {}
    overlaps: Counter[str] = Counter()
    running: set[str] = set()
    count, keys = 120, 5
    chance = random.Random(7)

    async def main() -> None:
        async with Run(broker, tmp_path, ordered) as run:
            options = {"scope": "key", "within": "key", "key": lambda message: message.headers.get("key")}
            service = run.service("service", **options)

            async def handle(message: int) -> None:
                key = str(message % keys)
                overlaps[key] += key in running
                running.add(key)
                await asyncio.sleep(chance.uniform(0.001, 0.08))
                running.discard(key)
                got.setdefault(key, []).append(message)

            service.on(run.lane("tasks"), handle, workers=64)
            await run.start()
            for number in range(count):
                await service.say(run.lane("tasks"), number, key=str(number % keys))
            await until(lambda: sum(map(len, got.values())) >= count)

    in_thread(main)
    assert sum(map(len, got.values())) == count
    wrong = sum(a > b for several in got.values() for a, b in itertools.pairwise(several))
    if ordered:
        assert (wrong, sum(overlaps.values())) == (0, 0)
    else:
        assert wrong > 0


@pytest.mark.parametrize("on", ["nats", "redis", "simulated"])
def test_the_demonstration_shows_the_anomaly_and_its_absence(on: str, capsys: pytest.CaptureFixture[str]) -> None:
    if on != "simulated" and (reason := missing(on)):
        pytest.skip(reason)
    assert run_command(["lanes", "demo", "--on", on, "--count", "60", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["with"] == {"early": 0, "late": 0}
    assert shown["without"]["early"] > 0
    assert shown["without"]["late"] > 0
