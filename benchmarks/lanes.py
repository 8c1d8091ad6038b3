"""What causal order over another broker costs: bytes of headers, CPU time in the core, time that messages are held, and
messages per second with an order per key.

CPU times are those of this machine. Hold times and rates come from a simulated broker with virtual time, hence are the
same everywhere: they show what an order costs by itself.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from random import Random
from statistics import mean, median, quantiles
from time import process_time
from typing import Any

from antecede.lanes import Arrival, Box, Context, decode
from antecede.simulator.broker import Broker, Consumer, Delivery
from antecede.simulator.kernel import Kernel
from benchmarks import common
from benchmarks.common import report_status

SHAPES = ((5, 5), (10, 10), (20, 20), (50, 10), (20, 120))


def header_bytes(services: int, lanes: int, scope: Any, messages: int) -> float:
    """The mean length of a header, when every service handles messages of all lanes and publishes to all."""
    random = Random(1)
    contexts = [Context(scope) for _ in range(services)]
    for context in contexts:
        context.merge({}, settles=context.doubts)
    logs: list[list[tuple[str, str]]] = [[] for _ in range(lanes)]
    sizes = []
    for _ in range(messages):
        context = random.choice(contexts)
        log = random.randrange(lanes)
        run = context if scope == "key" else context.run()
        if logs[log] and random.random() < 0.8:
            text, key = logs[log][-1 - random.randrange(min(3, len(logs[log])))]
            stamp = decode(text)
            run = context.run(stamp.track)
            run.saw(f"topic{log}", len(logs[log]), stamp.causes, stamp.track)
        else:
            key = f"key{random.randrange(1000)}"
        stamp = run.header(key)
        log = random.randrange(lanes)
        logs[log].append((stamp.text, key))
        run.sent(stamp, f"topic{log}", len(logs[log]))
        sizes.append(len(stamp.text))
    return mean(sizes[messages // 2 :])


def core_microseconds(lanes: int, messages: int) -> tuple[float, float]:
    """CPU time per message: to publish, and to consume. Each service reads and writes all lanes."""
    names = [f"topic{lane}" for lane in range(lanes)]
    context, consumer, box = Context(), Context(), Box("key")
    for name in names:
        box.open(name, name, 0)
    context.merge(dict.fromkeys(names, 0), settles=context.doubts)
    texts = []
    start = process_time()
    for count in range(messages):
        stamp = context.header(f"key{count % 100}")
        texts.append(stamp.text)
        context.sent(stamp, names[count % lanes], count // lanes + 1)
    published = process_time() - start
    start = process_time()
    for count, text in enumerate(texts):
        stamp = decode(text)
        name, position = names[count % lanes], count // lanes + 1
        for arrival in box.arrive(Arrival(name, position, stamp.causes, stamp.track)):
            consumer.run(arrival.track).saw(name, position, arrival.causes, arrival.track)
            box.done(arrival)
    return published / messages * 1e6, (process_time() - start) / messages * 1e6


class Reader(Kernel):
    """A service on a simulated broker: so many handlers at once, each takes its time; lanes may lag."""

    def __init__(self, within: Any, workers: int, seconds: float, lag: dict[str, float], capacity: int = 512) -> None:
        super().__init__()
        self.random = Random(7)
        self.broker = Broker(self.random.random, lambda: self.now)
        self.box = None if within == "without" else Box(within)
        self.workers, self.seconds, self.lag, self.capacity = workers, seconds, lag, capacity
        self.ready: deque[Arrival] = deque()
        self.busy = 0
        self.arrived: dict[Arrival, float] = {}
        self.held: list[tuple[str, float]] = []
        self.order: list[tuple[str, int, str | None]] = []

    def read(self, lane: str) -> None:
        durable = self.broker.durable(lane, lane, "counted")
        durable.consumers.append(Consumer(lambda: self.capacity - len(durable.pending), self.take))
        if self.box is not None:
            self.box.open(lane, lane, 0)

    def take(self, delivery: Delivery) -> None:
        time = self.now + 0.001 + self.lag.get(delivery.message.lane, 0.0)
        self.at(time, self.arrive, delivery)

    def arrive(self, delivery: Delivery) -> None:
        stamp = decode(delivery.message.header)
        arrival = Arrival(delivery.durable.name, delivery.message.position, stamp.causes, stamp.track, tag=delivery)
        self.arrived[arrival] = self.now
        self.begin([arrival] if self.box is None else self.box.arrive(arrival))

    def begin(self, arrivals: list[Arrival]) -> None:
        self.ready.extend(arrivals)
        for arrival in arrivals:
            self.held.append((arrival.reader, self.now - self.arrived.pop(arrival)))
        while self.ready and self.busy < self.workers:
            self.busy += 1
            self.at(self.now + self.random.expovariate(1 / self.seconds), self.finish, self.ready.popleft())

    def finish(self, arrival: Arrival) -> None:
        self.busy -= 1
        self.order.append((arrival.reader, arrival.position, arrival.tag.message.key))
        decided = [] if self.box is None else self.box.done(arrival)
        arrival.tag.durable.acknowledge(arrival.tag)
        self.begin(decided)


def lagging(lag: float, messages: int) -> dict[str, Any]:
    """Each answer follows its question by 5 ms, and questions reach the reader late: how long are answers held?"""
    found: dict[str, Any] = {"lag_ms": lag * 1000}
    for within in ("without", "none"):
        world = Reader(within, 64, 0.001, {"questions": lag})
        for lane in ("questions", "answers"):
            world.read(lane)
        context = Context()
        context.merge({}, settles=context.doubts)
        texts = {lane: context.header().text for lane in ("questions", "answers")}
        for number in range(messages):
            stamp = context.header()
            position = world.broker.publish("questions", None, stamp.text, number)
            context.sent(stamp, "questions", position)
            world.run_until(world.now + 0.005)
            world.now += 0.005
            texts["answers"] = context.header().text
            world.broker.publish("answers", None, texts["answers"], number)
        world.run_until()
        done = {"questions": 0, "answers": 0}
        first = 0
        for lane, _, _ in world.order:
            done[lane] += 1
            first += lane == "answers" and done["answers"] > done["questions"]
        held = [seconds * 1000 for lane, seconds in world.held if lane == "answers"]
        found[f"answers_first_{within}"] = first
        if within == "none":
            found |= {"held_ms_p50": median(held), "held_ms_p99": quantiles(held, n=100)[98]}
    return found


def keyed(within: str, messages: int, keys: int, workers: int) -> dict[str, Any]:
    """One lane, several handlers at once: messages per second, and how many of a key were out of place."""
    world = Reader(within, workers, 0.005, {})
    world.read("orders")
    context = Context("key")
    context.merge({}, settles=context.doubts)
    for number in range(messages):
        stamp = context.header(f"key{number % keys}")
        position = world.broker.publish("orders", f"key{number % keys}", stamp.text, number)
        context.sent(stamp, "orders", position)
    world.run_until()
    latest: dict[str | None, int] = {}
    out = 0
    for _, position, key in world.order:
        out += position < latest.get(key, 0)
        latest[key] = max(position, latest.get(key, 0))
    return {"within": within, "per_second": messages / world.now, "out_of_place": out}


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"{'services':>8}{'lanes':>7}{'service':>10}{'key':>8}{'message':>10}   bytes per header"
    for row in report["headers"]:
        yield f"{row['services']:>8}{row['lanes']:>7}{row['service']:>10.0f}{row['key']:>8.0f}{row['message']:>10.0f}"
    yield f"\n{'lanes':>8}{'publish':>10}{'consume':>10}   µs per message"
    for row in report["core"]:
        yield f"{row['lanes']:>8}{row['publish_us']:>10.1f}{row['consume_us']:>10.1f}"
    yield f"\n{'lag':>8}{'p50':>10}{'p99':>10}   ms that answers are held; answers before their questions"
    for row in report["lag"]:
        yield (
            f"{row['lag_ms']:>8.0f}{row['held_ms_p50']:>10.1f}{row['held_ms_p99']:>10.1f}"
            f"   without {row['answers_first_without']}, with {row['answers_first_none']}"
        )
    yield f"\n{'order':>8}{'per second':>12}{'out of place':>14}   {report['keys']} keys, {report['workers']} workers"
    for row in report["keyed"]:
        yield f"{row['within']:>8}{row['per_second']:>12,.0f}{row['out_of_place']:>14}"


def main(arguments: Sequence[str]) -> int:
    parser = common.parser("lanes", __doc__)
    parser.add_argument("--messages", type=common.at_least(100), default=5000, help="per measurement")
    parser.add_argument("--keys", type=common.at_least(1), default=50)
    parser.add_argument("--workers", type=common.at_least(1), default=16)
    given = parser.parse_args(arguments)
    report: dict[str, Any] = {"bench": "lanes", "keys": given.keys, "workers": given.workers, "headers": [], "core": []}
    for services, lanes in SHAPES:
        report_status(f"headers of {services} services on {lanes} lanes")
        sizes = {scope: header_bytes(services, lanes, scope, given.messages) for scope in ("service", "key", "message")}
        report["headers"].append({"services": services, "lanes": lanes, **sizes})
    for lanes in (2, 10, 120):
        report_status(f"the core with {lanes} lanes")
        several = [core_microseconds(lanes, given.messages) for _ in range(3)]
        report["core"].append(
            {"lanes": lanes, "publish_us": min(p for p, _ in several), "consume_us": min(c for _, c in several)}
        )
    report["lag"] = [lagging(lag, given.messages // 10) for lag in (0.0, 0.01, 0.1, 1.0)]
    report["keyed"] = [
        keyed(within, given.messages, given.keys, given.workers) for within in ("without", "none", "key", "lane")
    ]
    common.report(report, given.json, _lines)
    return 0
