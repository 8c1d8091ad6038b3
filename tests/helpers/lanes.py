"""Services on a simulated broker, with everything that goes wrong, judged by an oracle that knows no frontiers.

A run is drawn from its seed: the kind of broker, lanes, services and how they read, scope and order within lanes,
faults. What is tested is the shipped core (``Box``, ``Context``); ``Process`` is what a program around it does.

The oracle follows the definition. It notes what an instance knew when it began to publish a message: what it had
started to handle and what its earlier, acknowledged publishes were, and what was known of those. When a handler starts,
everything that was known of its message and lies in lanes of the service must have been handled by it. In the end,
everything must have been handled, and nothing may wait.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from antecede.lanes import Arrival, Box, Context, Question, Stamp, Verdict, decode, track_of
from antecede.lanes.frontier import LARGEST, name_of
from antecede.simulator.broker import Broker, Consumer, Delivery, Durable, Kind, Stored
from antecede.simulator.kernel import Kernel

KEYS = [None, "a", "b", "c"]
FAULTS_END = 12.0
WAIT = 1.0


@dataclass(eq=False)
class Message:
    """What the oracle knows of a message."""

    number: int
    lane: str
    key: str | None
    past: int
    scope: str = "service"
    stored: Stored | None = None
    poison: bool = False
    by: str = ""
    """The instance that published it and had its acknowledgement."""

    @property
    def bit(self) -> int:
        return 1 << self.number

    def __str__(self) -> str:
        return f"m{self.number} ({self.lane}:{self.stored.position if self.stored else '?'} key {self.key})"


@dataclass
class Plan:
    """What a run is made of. Everything is drawn from the seed, unless it is given."""

    kind: Kind = "counted"
    scope: str = "service"
    within: str = "lane"
    lanes: int = 2
    services: int = 2
    messages: int = 40
    sole: bool = True
    filters: bool = False
    tries: int = 0
    crashes: float = 0.0
    cuts: float = 0.0
    lost_acks: float = 0.0
    late: float = 0.0
    fails: float = 0.0
    rolling: bool = False
    zombies: bool = False
    again: bool = False
    """Lanes go back: they are made again or restored, and durables are rewound."""
    trims: bool = False
    hostile: float = 0.0
    foreign: float = 0.0
    judge_again: bool = False
    """Judge also lanes that went back, as far as order is promised."""
    repeat: float = 0.5
    """How often a publish without an answer is repeated with its id."""

    @classmethod
    def draw(cls, random: Random) -> "Plan":
        some = lambda chance, rate: rate if random.random() < chance else 0.0  # noqa: E731
        kind: Kind = random.choice(["counted", "counted", "pooled", "assigned"])
        return cls(
            kind=kind,
            scope=random.choice(["service", "service", "key", "message"]),
            within=random.choice(["lane", "key", "none"]),
            lanes=random.randint(2, 4),
            services=random.randint(2, 3),
            messages=random.randint(15, 50),
            sole=kind != "pooled" and random.random() < 0.7,
            filters=kind == "counted" and random.random() < 0.35,
            tries=random.choice([0, 0, 4, 6]),
            crashes=some(0.5, 0.3),
            cuts=some(0.5, 0.5),
            lost_acks=some(0.6, 0.1),
            late=some(0.5, 0.05),
            fails=some(0.5, 0.08),
            rolling=random.random() < 0.3,
            zombies=random.random() < 0.3,
            again=random.random() < 0.2,
            trims=random.random() < 0.15,
            hostile=some(0.2, 0.15),
            foreign=some(0.3, 0.2),
        )


@dataclass
class Spec:
    """A reader: a durable on a lane."""

    name: str
    lane: str
    durable: Durable
    position: int = 0
    """Of a fetch (``assigned``)."""
    fenced: int = -1
    consumer: Consumer | None = None


class Service:
    def __init__(self, world: "World", name: str, lanes: list[str], members: int, sole: bool, filters: bool) -> None:
        self.world, self.name, self.lanes, self.members, self.sole = world, name, lanes, members, sole
        self.finished = 0
        self.durables: list[Durable] = []
        plan = world.plan
        for lane in lanes:
            halves: list[tuple[str, Callable[[Stored], bool] | None]] = [("", None)]
            if filters:
                halves = [(".ab", lambda m: m.key in ("a", "b")), (".rest", lambda m: m.key not in ("a", "b"))]
            for suffix, accepts in halves:
                durable = world.broker.durable(f"{name}.{lane}{suffix}", lane, plan.kind, accepts, plan.tries)
                self.durables.append(durable)
        self.owners: dict[str, Process] = {}
        self.processes: dict[int, Process] = {}

    def open_causes(self, past: int) -> Iterator[Message]:
        """What the service reads of a past and has not finished."""
        past &= ~self.finished
        while past:
            low = past & -past
            past ^= low
            message = self.world.messages[low.bit_length() - 1]
            if message.lane in self.lanes and self.expects(message):
                yield message

    def expects(self, message: Message) -> bool:
        """Whether this message lies in the broker and must be handled."""
        stored = message.stored
        if stored is None:
            return False
        lane = self.world.broker.lanes[stored.lane]
        if stored.life != lane.life or not lane.first <= stored.position <= lane.end:
            return False
        return not any(dead.body is message for d in self.durables for dead in d.dead)


class Process:
    """The program around the core: subscriptions, handlers, questions. It does what ``Box`` asks of its caller."""

    capacity = 5
    # What planted bugs change.
    shared_flow = False
    strict = False
    eager = False

    def __init__(self, world: "World", service: Service, slot: int) -> None:
        self.world, self.service, self.slot = world, service, slot
        self.name = f"{service.name}/{slot}"
        self.box: Box = world.box(world.plan.within)
        self.context: Context = world.context(world.plan.scope)
        self.alive = True
        self.session = 0
        self.opening: set[str] = set()
        self.opened: dict[str, None] = {}
        self.specs = {d.name: Spec(d.name, d.lane.name, d) for d in service.durables}
        self.inflight: dict[Delivery, Arrival | None] = {}
        self.fifo: dict[str, float] = {}
        self.lives: dict[str, int] = {}

    # -- time and the network -------------------------------------------------------------------------------------

    def later(self, delay: float, act: Callable[[], None], session: bool = False) -> None:
        mine = self.session
        self.world.at(
            self.world.now + delay,
            lambda _: act() if self.alive and (not session or self.session == mine) else None,
            None,
        )

    def ask(
        self, question: Callable[[], Any], answer: Callable[[Any], None], lost: Callable[[], None] | None = None
    ) -> None:
        """A question to the broker; it answers as things are when the question arrives."""
        world, mine = self.world, self.session

        def arrived(_: object) -> None:
            value = question()
            world.at(world.now + world.delay(), back, value)

        def back(value: Any) -> None:
            if self.alive and self.session == mine:
                answer(value)
            elif self.alive and lost is not None:
                lost()

        world.at(world.now + world.delay(), arrived, None)

    def start(self) -> None:
        for spec in self.specs.values():
            self.open(spec.name)
        self.poll()
        if self.world.plan.kind == "assigned":
            self.fetch()

    # -- readers --------------------------------------------------------------------------------------------------

    def owns(self, spec: Spec) -> bool:
        return self.service.owners.get(spec.lane) is self

    def open(self, name: str) -> None:
        if name in self.opening:
            return
        self.opening.add(name)
        spec = self.specs[name]
        durable = spec.durable

        def facts() -> tuple[int, int, int, int, bool]:
            return durable.floor, durable.handed, durable.sequence, durable.fence, self.owns(spec)

        def answered(value: tuple[int, int, int, int, bool]) -> None:
            floor, delivered, sequence, fenced, owner = value
            self.opening.discard(name)
            reader = self.box._readers.get(name)
            if reader is not None and (not reader.closed or reader.running):
                return
            kind = self.world.plan.kind
            if kind == "assigned":
                if owner:
                    self.gained(spec)
                last = max((a.position for a in reader.queued), default=0) if reader is not None else 0
                spec.position, spec.fenced = max(floor, last), fenced
                decided = self.box.open(name, spec.lane, floor, sole=owner)
            elif self.service.sole:
                decided = self.box.open(name, spec.lane, floor, delivered=delivered, sequence=sequence)
            else:
                decided = self.box.open(name, spec.lane, floor, sole=False)
            self.opened[name] = None
            self.act(decided)
            if kind != "assigned" and self.eager and spec.consumer is None:
                self.subscribe(spec)
            if kind != "assigned" and len(self.opened) == len(self.specs):
                for one in self.specs.values():
                    if one.consumer is None:
                        self.subscribe(one)

        self.ask(facts, answered, lambda: (self.opening.discard(name), self.open(name))[0])

    def gained(self, spec: Spec) -> None:
        """A lane came from another member: its past comes with it."""
        self.context.doubt()
        self.world.inherit(self, self.service)

    def subscribe(self, spec: Spec) -> None:
        def room() -> int:
            consumers = [one.consumer for one in self.specs.values()] if self.shared_flow else [spec.consumer]
            durables = self.service.durables if self.shared_flow else [spec.durable]
            return self.capacity - sum(p.consumer in consumers for d in durables for p in d.pending.values())

        spec.consumer = Consumer(room, lambda delivery: self.travel(spec, delivery))
        spec.consumer.strict = self.strict
        spec.durable.consumers.append(spec.consumer)
        spec.durable.pump()

    def travel(self, spec: Spec, delivery: Delivery) -> None:
        """A delivery is on its way."""
        world = self.world
        world.at(world.now + WAIT * (0.8 + 0.4 * world.random.random()), self.expired, (spec, delivery))
        if world.busy and world.random.random() < world.plan.late:
            return  # Lost, and nobody notices.
        time = max(world.now + world.delay(), self.fifo.get(spec.name, 0.0))
        self.fifo[spec.name] = time
        self.later(time - world.now, lambda: self.take(delivery), session=True)

    def expired(self, what: tuple[Spec, Delivery]) -> None:
        """Nobody has acknowledged it in time, unless this process has asked for more time."""
        spec, delivery = what
        held = self.alive and delivery in self.inflight
        if held and not (self.world.busy and self.world.random.random() < self.world.plan.late):
            self.world.at(self.world.now + WAIT, self.expired, what)
        else:
            spec.durable.back(delivery)

    def fetch(self) -> None:
        """Read the lanes that this process owns (``assigned``), when all lanes are open."""
        for spec in self.specs.values():
            reader = self.box._readers.get(spec.name)
            if (
                (len(self.opened) < len(self.specs) and not self.eager)
                or reader is None
                or reader.closed
                or not reader.sole
            ):
                continue
            hands = sum(a is not None for a in reader.outstanding.values())
            if self.shared_flow:
                hands = sum(a is not None for r in self.box._readers.values() for a in r.outstanding.values())
            if hands >= self.capacity:
                continue
            position, opened = spec.position, reader.opened
            durable = spec.durable

            def request(
                durable: Durable = durable,
                spec: Spec = spec,
                position: int = position,
                most: int = self.capacity - hands,
            ) -> tuple[int, list[Delivery], int]:
                if spec.fenced != durable.fence:
                    position = durable.acknowledged
                return durable.fence, durable.fetch(position, most), position

            def got(
                value: tuple[int, list[Delivery], int],
                spec: Spec = spec,
                position: int = position,
                opened: int = opened,
            ) -> None:
                reader = self.box._readers[spec.name]
                if spec.position != position or reader.closed or reader.opened != opened:
                    return
                fenced, found, spec.position = value
                if fenced != spec.fenced:
                    # The lane was made again: what was finished says nothing about it.
                    self.act(self.box.close(spec.name))
                    return
                for delivery in found:
                    spec.position = delivery.message.position
                    self.take(delivery)

            self.ask(request, got)
        self.later(0.06, self.fetch)

    def cut(self) -> None:
        """The connection breaks, and comes back. What was on its way is lost."""
        self.session += 1
        noticed = self.world.plan.kind != "counted" or self.world.random.random() < 0.5
        if noticed:
            for name in list(self.opened):
                self.act(self.box.close(name))

    # -- deliveries and handlers ----------------------------------------------------------------------------------

    def take(self, delivery: Delivery) -> None:
        message = delivery.message
        stamp = self.decode(message)
        # Both ends must agree on the track: that of the header, or that of the key if nobody wrote a header.
        track = stamp.track if stamp.track is not None else self.track(message)
        arrival = Arrival(
            delivery.durable.name,
            message.position,
            stamp.causes,
            track,
            redelivered=delivery.attempt > 1,
            sequence=delivery.sequence if self.world.plan.kind == "counted" and self.service.sole else None,
            time=message.time,
            tag=delivery,
        )
        self.inflight[delivery] = arrival
        self.lives[arrival.reader] = message.life
        self.act(self.box.arrive(arrival))

    def decode(self, message: Stored) -> Stamp:
        return decode(message.header)

    def finished(self, spec: Spec) -> int:
        return self.box.finished(spec.name)

    def track(self, message: Stored) -> int | None:
        return track_of(message.key)

    def act(self, decided: list[Arrival]) -> None:
        for arrival in decided:
            delivery: Delivery = arrival.tag
            if arrival.verdict is Verdict.START:
                self.handle(arrival)
            elif arrival.verdict is Verdict.REPEAT:
                self.acknowledge(delivery)
            elif arrival.verdict is Verdict.IGNORE:
                self.inflight.pop(delivery, None)
            else:
                self.inflight.pop(delivery, None)
                if self.world.plan.kind != "assigned":
                    self.world.at(self.world.now + self.world.delay(), delivery.durable.back, delivery)

    def acknowledge(self, delivery: Delivery) -> None:
        self.inflight.pop(delivery, None)
        world = self.world
        if world.busy and world.random.random() < world.plan.lost_acks:
            return
        if world.plan.kind == "assigned":
            spec = self.specs[delivery.durable.name]
            reader = self.box._readers[spec.name]
            if not reader.closed and self.owns(spec):
                position, fenced = self.finished(spec), spec.fenced
                world.at(world.now + world.delay(), lambda _: delivery.durable.commit(position, fenced), None)
        else:
            world.at(world.now + world.delay(), delivery.durable.acknowledge, delivery)

    def commit(self) -> None:
        """Commit again what may not have come through."""
        if self.world.plan.kind == "assigned":
            for spec in self.specs.values():
                reader = self.box._readers.get(spec.name)
                if reader is not None and not reader.closed and reader.sole and self.owns(spec):
                    spec.durable.commit(self.finished(spec), spec.fenced)

    def handle(self, arrival: Arrival) -> None:
        world, delivery = self.world, arrival.tag
        message: Message = delivery.message.body
        world.started(self, message, delivery)
        run = self.context.run(arrival.track)
        run.saw(delivery.message.lane, arrival.position, arrival.causes, arrival.track)
        known = [message.past | message.bit]
        publishes = 0
        while publishes < 3 and world.random.random() < 0.5:
            publishes += 1

        def go_on(left: int) -> None:
            if left:
                key = message.key if world.random.random() < 0.5 else world.random.choice(KEYS)
                lane = world.random.choice(list(world.broker.lanes))
                own = message.key if message.scope != "hostile" else ""  # It may lie about its own track.
                self.publish(run, lane, key, lambda: self.later(world.work(), lambda: go_on(left - 1)), known, own)
            elif message.poison or (world.busy and world.random.random() < world.plan.fails):
                self.fail(arrival)
            else:
                world.finish(self.service, message)
                self.finish(arrival)

        self.later(world.work(), lambda: go_on(publishes))

    def finish(self, arrival: Arrival) -> None:
        decided = self.box.done(arrival)
        self.acknowledge(arrival.tag)
        self.act(decided)

    def fail(self, arrival: Arrival) -> None:
        delivery: Delivery = arrival.tag
        self.act(self.box.failed(arrival))
        self.inflight.pop(delivery, None)
        if self.world.plan.kind == "assigned":
            # There is no redelivery: try again here, and put it aside in the end.
            reader = self.box._readers[arrival.reader]
            opened = reader.opened

            def retry() -> None:
                if reader.closed or reader.opened != opened:
                    return
                if delivery.attempt >= 4:
                    delivery.durable.dead.append(delivery.message)
                    self.act(self.box.done(arrival))
                    return
                delivery.attempt += 1
                self.take(delivery)

            self.later(0.2, retry, session=True)
        else:
            self.world.at(self.world.now + self.world.delay(), delivery.durable.back, delivery)

    # -- publishing -----------------------------------------------------------------------------------------------

    def publish(
        self,
        run: Context,
        lane: str,
        key: str | None,
        then: Callable[[], None],
        known: list[int] | None = None,
        own: str | None = "",
    ) -> None:
        world = self.world
        if len(world.messages) >= world.plan.messages:
            then()
            return
        if run.doubts:
            self.ends(run, lambda: self.publish(run, lane, key, then, known, own))
            return
        stamp = run.header(key)
        message = world.note(self, lane, key, known, own)
        header, number = stamp.text, message.number
        attempts = 0

        def store() -> int:
            return world.store(message, header, number)

        def send() -> None:
            nonlocal attempts
            attempts += 1
            lost = world.busy and world.random.random() < world.plan.lost_acks * 2
            if lost and world.random.random() < 0.5:
                self.later(0.3, silent)  # The request is lost.
            elif lost:
                world.at(world.now + world.delay(), lambda _: store(), None)
                self.later(0.3, silent)
            else:
                self.ask(store, answered, silent)

        def silent() -> None:
            if world.random.random() < world.plan.repeat or attempts > 1:
                send()
            else:
                run.doubt()
                world.unresolved(self, message, known, own)
                then()

        def answered(position: int) -> None:
            if message.stored is not None and world.broker.lanes[lane].life == message.stored.life:
                message.by = self.name
                run.sent(stamp, lane, position)
            elif not world.plan.judge_again:
                run.sent(stamp, lane, position)
            world.known(self, message, known, own)
            then()

        send()

    def ends(self, run: Context, then: Callable[[], None]) -> None:
        """Read the ends of all lanes, and merge them."""
        doubts = run.doubts

        def read() -> tuple[dict[str, int], list[Callable[[], None]]]:
            return {lane.name: lane.end for lane in self.world.broker.lanes.values()}, self.world.resolved(self)

        def answered(value: tuple[dict[str, int], list[Callable[[], None]]]) -> None:
            ends, landed = value
            run.merge(ends, settles=doubts)
            for one in landed:
                one()
            then()

        self.ask(read, answered, lambda: self.ends(run, then))

    # -- questions ------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        self.commit()
        for question in self.box.wanted(overdue=self.world.random.random() < 0.2):
            if question.reopen:
                if question.reader is not None:
                    self.open(question.reader)
            else:
                self.inquire(question)
        self.later(0.1, self.poll)

    def inquire(self, question: Question) -> None:
        lanes = self.world.broker.lanes
        spec = self.specs.get(question.reader or "")

        def facts() -> tuple[int, int, int, int, Stored | None]:
            end = lanes[question.lane].end if question.lane in lanes else -1
            return (end, 0, 0, 0, None) if spec is None else (end, *self.facts(spec), self.head(spec))

        def answered(value: tuple[int, int, int, int, Stored | None]) -> None:
            end, floor, handed, sequence, head = value
            self.act(self.box.end(question, end))
            if spec is not None:
                if head is not None:
                    self.box.head(question, head.position, decode(head.header).causes, head.time)
                self.act(self.box.floor(question, floor))
                if self.world.plan.kind == "counted" and self.service.sole:
                    self.act(self.box.quiet(question, handed, sequence))
                elif self.world.plan.kind == "assigned" and self.owns(spec) and spec.fenced == spec.durable.fence:
                    self.act(self.box.quiet(question, spec.position))

        self.ask(facts, answered)

    def head(self, spec: Spec) -> Stored | None:
        durable = spec.durable
        found = durable.lane.log[durable.floor :]
        return next((message for message in found if durable.accepts(message)), None)

    def facts(self, spec: Spec) -> tuple[int, int, int]:
        durable = spec.durable
        return durable.floor, durable.handed, durable.sequence


class World(Kernel):
    """One run."""

    def __init__(
        self,
        seed: int,
        plan: Plan | None = None,
        box: type[Box] = Box,
        context: type[Context] = Context,
        process: type[Process] = Process,
        change: dict[str, Any] | None = None,
        log: bool = False,
    ) -> None:
        super().__init__()
        self.seed, self.random = seed, Random(seed)
        self.plan = replace(plan or Plan.draw(self.random), **(change or {}))
        self.box, self.context, self.process = box, context, process
        self.broker = Broker(self.random.random, lambda: self.now)
        self.messages: list[Message] = []
        self.knowledge: dict[str, dict[str | None, int]] = {}
        self.doubtful: dict[str, list[tuple[Message, Callable[[], None]]]] = {}
        self.found: list[str] = []
        self.lines: list[str] | None = [] if log else None
        self.starts = 0
        self.touched: set[str] = set()
        """Lanes that went back: order across that is not promised."""
        plan = self.plan
        names = ["lane0", "lane#1", "la ne=2", "läne3"][: plan.lanes]
        for name in names:
            self.broker.lane(name)
        self.services = []
        for n in range(plan.services):
            read = self.random.sample(names, self.random.randint(1, len(names)))
            members = 1 if plan.sole and plan.kind == "counted" else self.random.randint(1, 3)
            self.services.append(Service(self, f"svc{n}", sorted(read), members, plan.sole, plan.filters))
        self.client = Service(self, "client", [], 2, True, False)

    # -- drawing --------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether faults still happen."""
        return self.now < FAULTS_END

    def delay(self) -> float:
        return self.random.expovariate(60) + (0.2 if self.random.random() < 0.03 else 0.0)

    def work(self) -> float:
        return self.random.expovariate(20)

    def log(self, text: str) -> None:
        if self.lines is not None:
            self.lines.append(f"{self.now:8.3f}  {text}")

    # -- the run --------------------------------------------------------------------------------------------------

    def play(self) -> "World":
        plan = self.plan
        for service in (*self.services, self.client):
            for slot in range(service.members):
                self.boot(service, slot)
        for _ in range(plan.messages):
            self.at(self.random.random() * 8, self.spontaneous, None)
        for service in self.services:
            for slot in range(service.members):
                for rate, fault in ((plan.crashes, self.crash), (plan.cuts, self.cut)):
                    time = self.random.expovariate(rate / 3) if rate else FAULTS_END
                    while time < FAULTS_END:
                        self.at(time, fault, (service, slot))
                        time += self.random.expovariate(rate / 3)
            if plan.rolling and (plan.kind != "counted" or plan.sole):
                self.at(self.random.random() * 8, self.roll, service)
        if plan.again:
            for _ in range(self.random.randint(1, 2)):
                self.at(1 + self.random.random() * 8, self.go_back, self.random.choice(list(self.broker.lanes)))
        if plan.trims:
            self.at(2 + self.random.random() * 8, self.trim, self.random.choice(list(self.broker.lanes)))
        while self.now < FAULTS_END + 60 and not self.found:
            self.run_until(self.now + 1.0)
            self.now += 1e-9
            if self.now > FAULTS_END and self.calm():
                break
        else:
            if not self.found:
                self.found += self.stuck()
        return self

    def boot(self, service: Service, slot: int) -> None:
        old = service.processes.get(slot)
        assert old is None or not old.alive
        process = service.processes[slot] = self.process(self, service, slot)
        self.log(f"{process.name} starts")
        if self.plan.kind == "assigned":
            self.assign(service)
        process.start()

    def assign(self, service: Service) -> None:
        """Give lanes to members; members hear of it after a while."""
        alive = [p for p in service.processes.values() if p.alive]
        for lane in service.lanes:
            old = service.owners.get(lane)
            if not alive or (old in alive and self.random.random() < 0.6):
                continue
            new = service.owners[lane] = self.random.choice(alive)
            if new is not old:
                self.log(f"{lane} of {service.name} goes to {new.name}")
                for one, slow in ((old, self.plan.zombies and self.busy), (new, False)):
                    if one is not None and one.alive:
                        one.later(self.random.random() * (2.0 if slow else 0.1), self.told(one, lane))

    def told(self, process: Process, lane: str) -> Callable[[], None]:
        def hear() -> None:
            for spec in process.specs.values():
                if spec.lane == lane and spec.name in process.opened:
                    process.act(process.box.close(spec.name))

        return hear

    def spontaneous(self, _: object) -> None:
        """Somebody publishes outside a handler, or a producer that does not take part."""
        lane = self.random.choice(list(self.broker.lanes))
        key = self.random.choice(KEYS)
        if self.random.random() < self.plan.foreign + self.plan.hostile and len(self.messages) < self.plan.messages:
            message = Message(len(self.messages), lane, key, 0, "foreign")
            self.messages.append(message)
            hostile = self.random.random() * (self.plan.foreign + self.plan.hostile) < self.plan.hostile
            message.scope = "hostile" if hostile else "foreign"
            self.store(message, self.forged() if hostile else None, None)
            return
        service = self.client if self.random.random() < 0.7 else self.random.choice(self.services)
        alive = [p for p in service.processes.values() if p.alive]
        if alive:
            process = self.random.choice(alive)
            process.publish(
                process.context.run() if self.plan.scope == "message" else process.context, lane, key, _nothing
            )

    def forged(self) -> str:
        lane = self.random.choice(list(self.broker.lanes))
        near = self.broker.lanes[lane].end + self.random.randint(1, 6)
        lane = name_of(lane)
        choices = [
            f"1 {lane}={LARGEST}",
            f"1 {lane}={near}",
            f"1#3 {lane}#7={near} lane0={near + 40}",
            "1 " + " ".join(f"nowhere{n}={n}" for n in range(200)),
            "2 lane0=1",
            "\x00\xff",
            "1 " + "x" * 9000,
            f"1 lane0={'9' * 400}",
        ]
        return self.random.choice(choices)

    def crash(self, what: tuple[Service, int]) -> None:
        service, slot = what
        process = service.processes.get(slot)
        if process is None or not process.alive:
            return
        self.stop(process)
        self.at(self.now + 0.1 + self.random.random(), lambda _: self.boot(service, slot), None)

    def stop(self, process: Process) -> None:
        self.log(f"{process.name} ends")
        process.alive = False

        def noticed(_: object) -> None:
            for spec in process.specs.values():
                if spec.consumer is not None:
                    spec.durable.gone(spec.consumer)
            if self.plan.kind == "assigned":
                self.assign(process.service)

        self.at(self.now + self.random.random() * 0.3, noticed, None)

    def cut(self, what: tuple[Service, int]) -> None:
        service, slot = what
        process = service.processes.get(slot)
        if process is not None and process.alive:
            self.log(f"{process.name} loses its connection")
            process.cut()

    def roll(self, service: Service) -> None:
        """A rolling deployment: a second process starts before the first one ends."""
        slot = max(service.processes) + 1
        self.boot(service, slot)
        old = service.processes[0]

        def end(_: object) -> None:
            if old.alive:
                self.stop(old)
                for one in range(1, slot):
                    if service.processes[one].alive and service.sole and self.plan.kind == "counted":
                        self.stop(service.processes[one])

        self.at(self.now + self.random.random() * 3, end, None)

    def go_back(self, lane: str) -> None:
        how = self.random.choice(["make", "restore", "rewind"])
        self.log(f"{lane}: {how}")
        if how == "make":
            self.touched.add(lane)
            self.broker.make_again(lane)
        elif how == "restore":
            copy = self.broker.copy(lane)

            def restore(_: object) -> None:
                self.log(f"{lane}: restored")
                self.touched.add(lane)
                self.broker.restore(lane, copy)
                self.reland(lane)

            self.at(self.now + self.random.random() * 2, restore, None)
        else:
            for durable in self.broker.durables.values():
                if durable.lane.name == lane and durable.delivered:
                    durable.rewind(min(int(self.random.random() * (durable.floor + 1)), durable.delivered - 1))
                    durable.pump()

    def reland(self, lane: str) -> None:
        """Messages of a restored lane are what the broker has now."""
        for stored in self.broker.lanes[lane].log:
            stored.body.stored = stored

    def trim(self, lane: str) -> None:
        end = self.broker.lanes[lane].end
        self.log(f"{lane}: trimmed")
        self.broker.trim(lane, int(self.random.random() * (end + 1)))

    # -- what the oracle notes ------------------------------------------------------------------------------------

    def keys(self, key: str | None, own: str | None) -> list[str | None]:
        """The pasts that an event belongs to. ``own`` is the key of the run, or "" outside of a handler."""
        if self.plan.scope != "key":
            return [None]
        if key is None or own is None:
            return list(KEYS)
        return [key, own] if own else [key]

    def note(self, process: Process, lane: str, key: str | None, known: list[int] | None, own: str | None) -> Message:
        """A publish begins."""
        past = known[0] if known and self.plan.scope == "message" else 0
        if self.plan.scope != "message":
            knows = self.knowledge.setdefault(process.name, {})
            for one in self.keys(key, own):
                past |= knows.get(one, 0)
        message = Message(len(self.messages), lane, key, past, self.plan.scope)
        message.poison = self.plan.fails > 0 and self.plan.tries > 0 and self.random.random() < 0.03
        self.messages.append(message)
        return message

    def store(self, message: Message, header: str | None, number: int | None) -> int:
        lane = self.broker.lane(message.lane)
        before = lane.end
        if number is None or number not in lane.ids:
            # The consumers of the pumped lane may look at it at once.
            stored_at = len(lane.log)
            position = self.broker.publish(message.lane, message.key, header, message, number)
            message.stored = lane.log[stored_at]
        else:
            position = self.broker.publish(message.lane, message.key, header, message, number)
        if lane.end != before:
            self.log(f"{message} stored: {header}")
        return position

    def known(self, process: Process, message: Message, known: list[int] | None, own: str | None) -> None:
        """A publish is acknowledged."""
        if self.plan.scope == "message":
            if known:
                known[0] |= message.past | message.bit
            return
        knows = self.knowledge.setdefault(process.name, {})
        for one in self.keys(message.key, own):
            knows[one] = knows.get(one, 0) | message.past | message.bit

    def unresolved(self, process: Process, message: Message, known: list[int] | None, own: str | None) -> None:
        self.doubtful.setdefault(process.name, []).append((message, lambda: self.known(process, message, known, own)))

    def resolved(self, process: Process) -> list[Callable[[], None]]:
        """What had an unknown outcome and lies in its lane now, as the ends are read."""
        waiting = self.doubtful.get(process.name, [])
        landed = [one for message, one in waiting if message.stored is not None]
        self.doubtful[process.name] = [(m, one) for m, one in waiting if m.stored is None]
        return landed

    def inherit(self, process: Process, service: Service) -> None:
        """A lane comes from another member: so does what the members know."""
        mine = self.knowledge.setdefault(process.name, {})
        for other in service.processes.values():
            for key, past in self.knowledge.get(other.name, {}).items():
                mine[key] = mine.get(key, 0) | past

    def started(self, process: Process, message: Message, delivery: Delivery) -> None:
        """A handler starts: everything that it follows must have finished."""
        service = process.service
        self.starts += 1
        self.log(f"{process.name} starts {message}, attempt {delivery.attempt}")
        for cause in service.open_causes(message.past):
            if cause.scope == "hostile" and self.plan.scope == "key":
                continue  # It may lie about its own track.
            if not {cause.lane, message.lane} & self.touched or self.judged(process, message, cause):
                self.found.append(f"late: {process.name} starts {message} before {cause}")
        within = self.plan.within
        if within != "none" and message.lane not in self.touched and message.stored is not None:
            lane = self.broker.lanes[message.lane]
            for stored in lane.log[: message.stored.position - 1]:
                other = stored.body
                if service.finished & other.bit or not delivery.durable.accepts(stored) or not service.expects(other):
                    continue
                # A forged header may lie about its own track.
                together = other.key is None or message.key is None or other.key == message.key
                together &= "hostile" not in (other.scope, message.scope)
                if within == "lane" or (together and service.sole):
                    self.found.append(f"in lane: {process.name} starts {message} before {other}")
        if self.plan.scope != "message":
            knows = self.knowledge.setdefault(process.name, {})
            for one in self.keys(message.key, message.key):
                knows[one] = knows.get(one, 0) | message.past | message.bit

    def judged(self, process: Process, message: Message, cause: Message) -> bool:
        """Whether order is promised although a lane went back: one publisher, who has heard of nothing else, has
        published both since, and this process has noticed."""
        if not self.plan.judge_again or cause.by != message.by or not message.by.startswith("client"):
            return False
        for one in (message, cause):
            life = self.broker.lanes[one.lane].life
            if one.stored is None or one.stored.life != life:
                return False
            if any(
                process.lives.get(spec.name, -1) != life for spec in process.specs.values() if spec.lane == one.lane
            ):
                return False
        return True

    def finish(self, service: Service, message: Message) -> None:
        self.log(f"{service.name} has finished {message}")
        service.finished |= message.bit

    # -- the end --------------------------------------------------------------------------------------------------

    def left(self) -> Iterator[str]:
        """What is not handled, or waits."""
        for service in self.services:
            for lane in service.lanes:
                for stored in self.broker.lanes[lane].log[self.broker.lanes[lane].first - 1 :]:
                    if not service.finished & stored.body.bit and service.expects(stored.body):
                        yield f"lost or stuck: {service.name} has not handled {stored.body}"
            for process in service.processes.values():
                if process.alive:
                    for arrival in process.box.held:
                        yield f"stuck: {process.name} holds {arrival.reader}:{arrival.position}"

    def calm(self) -> bool:
        return next(self.left(), None) is None

    def stuck(self) -> list[str]:
        return list(self.left())


def _nothing() -> None:
    pass


def play(seed: int, **options: Any) -> World:
    """Play one seed, and fail with what was found."""
    world = World(seed, **options).play()
    assert not world.found, f"seed {seed}: {world.found[0]}\n{world.plan}\nreplay: {REPLAY} {seed}"
    return world


REPLAY = "PYTHONPATH=tests python -m helpers.lanes"

if __name__ == "__main__":
    import sys

    one = World(int(sys.argv[1]), log=True).play()
    print("\n".join(one.lines or []))
    print(one.plan, *one.found[:10], sep="\n")
