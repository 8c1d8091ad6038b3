"""The box with an event loop around it: deliveries wait, the broker is asked, and nothing is redelivered meanwhile.

``Order`` is one instance of a service on one broker. A ``Source`` is what an adapter knows about a broker: how lanes
end, what a durable has finished. ``Order`` asks it only while something waits.

    stamp = await order.stamp(key)              # before a publish: the header
    order.sent(stamp, lane, position)           # after its acknowledgement; or order.unknown()
    verdict = await order.begin(delivery)       # waits until the handler may start
    await order.finish(delivery, Outcome.DONE)  # acknowledges, then lets others start

A handler must not wait for the handler of another message that waits here.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from antecede.lanes.box import Arrival, Box, Question, Verdict, Within
from antecede.lanes.frontier import HEADER, Context, Key, LanesError, Scope, Stamp, decode

if TYPE_CHECKING:
    from antecede.record import Recorder

ID_HEADER = "antecede-id"
"""The id of a message in a recorded trace; only if the sender records."""
WARN_SECONDS = 10.0
SUSPECT_SECONDS = 1.0
ASK_SECONDS = 5.0
PAUSE_SECONDS = (0.001, 0.05)
STILL = 4
"""After so many pauses without any progress, sole readers ask, too."""

_log = logging.getLogger("antecede.lanes")


class Opening(NamedTuple):
    """The arguments of ``Box.open``."""

    lane: str
    floor: int
    delivered: int | None = None
    sequence: int | None = None
    sole: bool = False


class Facts(NamedTuple):
    """What a broker says of a durable now. Everything up to ``floor`` is finished. Everything up to ``quiet`` that
    concerns a sole reader was delivered; ``sequence`` is then the consumer's number of the last delivery."""

    floor: int
    quiet: int | None = None
    sequence: int | None = None
    gone: Sequence[Arrival] = ()
    """Failed arrivals that will not come again."""
    back: bool = False
    """The lane or the durable went back: whatever is known of it is wrong."""


class First(NamedTuple):
    """A stored message: its position, its header, and when it was stored, by the broker's clock."""

    position: int
    header: str | bytes | None
    time: float


class Source(Protocol):
    """What an adapter knows about its broker. All answers come from leaders, and are as young as the question."""

    alive_seconds: float
    """How often a broker must hear of a delivery that waits."""

    async def ends(self) -> Mapping[str, int]:
        """The last positions of all lanes that anybody here writes or reads."""
        ...

    async def end(self, lane: str) -> int:
        """The last position of one lane; -1 if there is no such lane."""
        ...

    async def opening(self, reader: str) -> Opening:
        """The state of a durable before anything of it is handled here."""
        ...

    async def facts(self, reader: str, position: int) -> Facts:
        """What is finished of a durable. Somebody waits for this position."""
        ...

    async def first(self, reader: str, position: int) -> "First | None":
        """The first message of a durable above this position, if the broker can be asked for it."""
        ...


class Outcome(Enum):
    DONE = "done"
    """The handler succeeded: acknowledge."""
    SETTLED = "settled"
    """It was acknowledged or put aside for good already."""
    FAILED = "failed"
    """It was or will be given back to the broker."""


async def _nothing() -> None:
    pass


@dataclass(slots=True, eq=False)
class Delivery:
    """One delivery, and how the broker is told about it."""

    arrival: Arrival
    headers: Mapping[Any, Any]
    ack: Callable[[], Awaitable[Any]] = _nothing
    give_back: Callable[[], Awaitable[Any]] = _nothing
    alive: Callable[[], Awaitable[Any]] = _nothing
    """Tells the broker that it waits here, so that nobody else gets it."""
    missing: list[tuple[str, int]] = field(default_factory=list)
    """The causes that had not finished when the handler was started after a time-out."""
    context: Context | None = None
    _since: float = 0.0
    _beaten: float = 0.0
    _warned: bool = False
    _recorded: bool = False
    _waiter: "asyncio.Future[None] | None" = None

    @property
    def id(self) -> str:
        """Names the message in a recorded trace: the sender's id, or its place if the sender does not record."""
        found = self.headers.get(ID_HEADER)
        if isinstance(found, bytes):
            found = found.decode("latin-1")
        return found or f"{self.arrival.reader.partition(' ')[0]}@{self.arrival.position}"


class Waiting(NamedTuple):
    """A delivery that waits: for which lanes and positions, and for how many seconds now."""

    reader: str
    position: int
    missing: list[tuple[str, int]]
    seconds: float


class Order:
    """Causal order for one instance of a service, on one broker."""

    def __init__(
        self,
        source: Source,
        *,
        scope: Scope = "service",
        within: Within = "lane",
        timeout: float | None = None,
        overdue: Literal["deliver", "dead-letter"] = "deliver",
        recorder: "Recorder | None" = None,
        metrics: Any = None,
    ) -> None:
        """``timeout``: seconds after which a delivery does not wait any longer. Then it is handled, out of order
        (``deliver``), or counts as a dead letter (``dead-letter``). ``recorder``: an ``antecede.Recorder``.
        ``metrics``: a registry of ``prometheus_client``."""
        if overdue not in ("deliver", "dead-letter"):
            raise LanesError("overdue", f"What is overdue is 'deliver' or 'dead-letter', not {overdue!r}.")
        self.source, self.timeout, self.overdue, self.recorder = source, timeout, overdue, recorder
        self.context, self.box = Context(scope), Box(within)
        self.running: ContextVar[Delivery | None] = ContextVar("antecede_delivery", default=None)
        self._held: dict[Arrival, Delivery] = {}
        self._lanes: dict[str, str] = {}
        self._closed: set[str] = set()
        self._expected: dict[str, None] = {}
        self._running: set[Arrival] = set()
        self._opening: dict[str, asyncio.Future[None]] = {}
        self._settling: asyncio.Future[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._eager = False
        self._sole: dict[str | None, int] = {}
        self._count = 0
        self._beats: asyncio.Future[list[Any]] | None = None
        self._metrics = None if metrics is None else _Metrics(metrics)

    def waiting(self) -> list[Waiting]:
        """Everything that waits, with what it waits for."""
        now = time.monotonic()
        return [Waiting(a.reader, a.position, self.box.missing(a), now - one._since) for a, one in self._held.items()]

    # -- publishing -----------------------------------------------------------------------------------------------

    async def stamp(self, key: Key = None) -> Stamp:
        """What the next message says of its past. The first publish waits until the ends of all lanes are known."""
        delivery = self.running.get()
        context = self.context if delivery is None or delivery.context is None else delivery.context
        while context.doubts:
            await self._settle(context)
        stamp = context.header(key)
        if self._metrics is not None:
            self._metrics.header.observe(len(stamp.text))
        return stamp

    def headers(self, stamp: Stamp | None) -> dict[str, str]:
        """The headers of a message with this stamp. Call it right before the message leaves."""
        made = {} if stamp is None else {HEADER: stamp.text}
        if self.recorder is not None:
            delivery = self.running.get()
            if delivery is not None:
                self._record(delivery)
            made[ID_HEADER] = self.recorder.sent()
        return made

    def sent(self, stamp: Stamp, lane: str, position: int) -> None:
        """The broker has acknowledged the message."""
        delivery = self.running.get()
        context = self.context if delivery is None or delivery.context is None else delivery.context
        if context.sent(stamp, lane, position):
            _log.warning("Lane %s went back to position %s: what was known of it is forgotten.", lane, position)

    def unknown(self) -> None:
        """Nobody knows whether the message was stored. The next publish reads the ends of the lanes again."""
        delivery = self.running.get()
        context = self.context if delivery is None or delivery.context is None else delivery.context
        context.doubt()

    async def _settle(self, context: Context) -> None:
        if self._settling is None:
            self._settling = asyncio.ensure_future(self._merge_ends(context))
            self._settling.add_done_callback(self._settled)
        await asyncio.shield(self._settling)

    def _settled(self, done: "asyncio.Future[None]") -> None:
        self._settling = None

    async def _merge_ends(self, context: Context) -> None:
        doubts = context.doubts
        context.merge(await self.source.ends(), settles=doubts)

    # -- consuming ------------------------------------------------------------------------------------------------

    def expect(self, *readers: str) -> None:
        """Name what the service reads, before its subscriptions start: until all of it is open, nothing is handled."""
        self._expected.update(dict.fromkeys(readers))

    async def opened(self) -> None:
        """Wait until everything that is expected is open."""
        for reader in list(self._expected):
            while reader not in self._lanes:
                try:
                    await self.open(reader)
                except LanesError:
                    raise
                except Exception as error:
                    _log.info("%s cannot be opened yet: %r", reader, error)
                    await asyncio.sleep(PAUSE_SECONDS[1])

    async def open(self, reader: str) -> None:
        """Open a reader, unless it is open."""
        known = self._opening.get(reader)
        if known is None or (known.done() and (known.cancelled() or known.exception() is not None)):
            known = self._opening[reader] = asyncio.ensure_future(self._open(reader))
        if not known.done():
            await asyncio.shield(known)
        else:
            known.result()

    async def _open(self, reader: str) -> None:
        facts = await self.source.opening(reader)
        self._decided(self._opened(reader, facts))

    def _opened(self, reader: str, facts: Opening) -> list[Arrival]:
        self._lanes[reader] = facts.lane
        self._sole.pop(reader, None)
        if facts.sole:
            self._sole[reader] = facts.delivered or 0
        return self.box.open(
            reader, facts.lane, facts.floor, delivered=facts.delivered, sequence=facts.sequence, sole=facts.sole
        )

    def close(self, reader: str) -> None:
        """Believe nothing of this reader any more; it is opened again as soon as none of its handlers runs."""
        if self.is_open(reader):
            self._closed.add(reader)
            self._decided(self.box.close(reader))
            self.context.doubt()
            self._watch()

    def is_open(self, reader: str) -> bool:
        return reader in self._lanes and reader not in self._closed

    def renumber(self, reader: str, start: Callable[[str], Opening], fresh: bool) -> None:
        """Open a reader at once, whose deliveries are numbered here; ``fresh``: the numbers begin anew."""
        if reader not in self._lanes:
            self._decided(self._opened(reader, start(reader)))
        elif fresh:
            self._decided(self.box.close(reader))
            self._watch()

    async def idle(self) -> None:
        """Wait until no handler runs."""
        while self._running:
            await asyncio.sleep(0.01)

    def stamped(self, text: str | bytes | None, reader: str) -> Stamp:
        """Read a header; one that cannot be read has no causes."""
        stamp = decode(text)
        if stamp.problem:
            _log.warning("A message of %s counts as one without causes: %s", reader, stamp.problem)
        return stamp

    async def begin(self, delivery: Delivery) -> Verdict:
        """Wait until the handler of this delivery may start, or until it is clear that it must not."""
        arrival = delivery.arrival
        delivery._since = delivery._beaten = time.monotonic()
        self._held[arrival] = delivery
        self._decided(self.box.arrive(arrival))
        if arrival.verdict is Verdict.HELD:
            delivery._waiter = asyncio.get_running_loop().create_future()
            if self.recorder is not None:
                self.recorder.arrived(delivery.id)
            self._watch()
            try:
                await delivery._waiter
            except asyncio.CancelledError:
                self._held.pop(arrival, None)
                with suppress(LanesError):
                    self._decided(self.box.failed(arrival))
                raise
        for name, position in arrival.dropped:
            _log.warning("A message of %s names the position %s=%s, which cannot be.", arrival.reader, name, position)
        if self._metrics is not None and arrival.verdict is Verdict.START:
            self._metrics.held_seconds.observe(time.monotonic() - delivery._since)
        if arrival.verdict is Verdict.START:
            self._running.add(arrival)
            delivery.context = self.context.run(arrival.track)
            delivery.context.saw(self._lanes[arrival.reader], arrival.position, arrival.causes, arrival.track)
            if delivery._waiter is not None:
                with suppress(Exception):
                    await delivery.alive()
        return arrival.verdict

    async def finish(self, delivery: Delivery, outcome: Outcome) -> None:
        """The handler has ended. The broker hears of it before any other handler starts because of it."""
        arrival = delivery.arrival
        self._running.discard(arrival)
        if outcome is Outcome.FAILED:
            self._decided(self.box.failed(arrival))
            with suppress(Exception):
                await delivery.give_back()
            return
        self._record(delivery)
        try:
            if outcome is Outcome.DONE:
                await delivery.ack()
        finally:
            self._decided(self.box.done(arrival))
            if self._eager:
                self._moved.set()

    async def run(self, delivery: Delivery, handler: Callable[[], Awaitable[Any]]) -> Verdict:
        """The whole life of one delivery. An exception of the handler gives the message back, and is raised."""
        verdict = await self.begin(delivery)
        if verdict is Verdict.REPEAT:
            await delivery.ack()
        elif verdict is Verdict.RETURN:
            await delivery.give_back()
        if verdict is not Verdict.START:
            return verdict
        token = self.running.set(delivery)
        outcome = Outcome.FAILED
        try:
            if not (delivery.missing and self.overdue == "dead-letter"):
                await handler()
            outcome = Outcome.DONE
        finally:
            self.running.reset(token)
            await self.finish(delivery, outcome)
        return verdict

    def _record(self, delivery: Delivery) -> None:
        """A delivery is in the trace from its first effect on: what a failed attempt did not send, nobody follows."""
        if self.recorder is not None and not delivery._recorded:
            delivery._recorded = True
            self.recorder.delivered(delivery.id)

    def _decided(self, arrivals: list[Arrival]) -> None:
        self._count += len(arrivals)
        for arrival in arrivals:
            delivery = self._held.pop(arrival, None)
            if delivery is not None and delivery._waiter is not None and not delivery._waiter.done():
                delivery._waiter.set_result(None)
        if self._metrics is not None:
            self._metrics.held.set(len(self._held))

    # -- while something waits ------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.get_running_loop().create_task(self._watching())

    async def _watching(self) -> None:
        pause, longest = PAUSE_SECONDS
        count, still = -1, 0
        while self._held or any(question.reopen for question in self.box.wanted()):
            suspect = any(time.monotonic() - one._since > SUSPECT_SECONDS for one in self._held.values())
            still, count = 0 if self._count != count else still + 1, self._count
            await asyncio.gather(*(self._ask(question, suspect) for question in self._due(still < STILL, suspect)))
            self._look()
            pause = min(2 * pause, longest) if still else PAUSE_SECONDS[0]
            with suppress(TimeoutError):
                await asyncio.wait_for(self._moved.wait(), pause)
            self._moved.clear()

    def _due(self, moving: bool, suspect: bool) -> list[Question]:
        """What to ask now. As long as deliveries move on, a sole reader knows by itself what has finished, except what
        was delivered before it was opened."""
        wanted = self.box.wanted(suspect)
        shared = [q for q in wanted if q.reopen or self._sole.get(q.reader, 1) > 0]
        self._eager = any(question.reader is not None for question in shared)
        return shared if moving and not suspect else wanted

    async def _ask(self, question: Question, suspect: bool) -> None:
        """Ask the broker one question. If it does not answer, the question is asked again later. ``suspect``: something
        has waited long, perhaps for a position that does not exist."""
        reader = question.reader
        try:
            async with asyncio.timeout(ASK_SECONDS):
                if reader is None:
                    self._decided(self.box.end(question, await self.source.end(question.lane)))
                elif question.reopen:
                    self._decided(self._opened(reader, await self.source.opening(reader)))
                    self._closed.discard(reader)
                else:
                    if suspect:
                        self._decided(self.box.end(question, await self.source.end(question.lane)))
                    facts = await self.source.facts(reader, question.position)
                    if facts.back:
                        self.close(reader)
                        return
                    with suppress(Exception):
                        first = await self.source.first(reader, facts.floor) if suspect else None
                        if first is not None:
                            self.box.head(question, first.position, decode(first.header).causes, first.time)
                    if facts.floor >= self._sole.get(reader, facts.floor + 1):
                        self._sole[reader] = 0
                    self._decided(self.box.floor(question, facts.floor))
                    for arrival in facts.gone:
                        self._decided(self.box.done(arrival))
                    if facts.quiet is not None:
                        self._decided(self.box.quiet(question, facts.quiet, facts.sequence))
        except Exception as error:
            _log.info("The broker did not answer about %s: %r", question.lane, error)

    def _look(self) -> None:
        """Warn of what waits for long, end what is overdue, and let the broker hear of the others."""
        now, beats = time.monotonic(), []
        for arrival, delivery in list(self._held.items()):
            waited = now - delivery._since
            if waited > WARN_SECONDS and not delivery._warned:
                delivery._warned = True
                if self._metrics is not None:
                    self._metrics.overdue.inc()
                missing = ", ".join(f"{lane} up to {position}" for lane, position in self.box.missing(arrival))
                _log.warning(
                    "%s at %s has waited for %.0f s: not finished: %s",
                    arrival.reader,
                    arrival.position,
                    waited,
                    missing,
                )
            if self.timeout is not None and waited > self.timeout:
                delivery.missing = self.box.missing(arrival) or [(arrival.reader, arrival.position)]
                self._decided(self.box.give_up(arrival))
            elif now - delivery._beaten > self.source.alive_seconds:
                delivery._beaten = now
                beats.append(delivery.alive())
        if beats:
            self._beats = asyncio.gather(*beats, return_exceptions=True)


class _Metrics:
    def __init__(self, registry: Any) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        name = "antecede_lanes_"
        self.held = Gauge(name + "held", "Deliveries that wait for their causes.", registry=registry)
        self.held_seconds = Histogram(name + "held_seconds", "How long handlers waited.", registry=registry)
        self.overdue = Counter(name + "overdue", "Deliveries that waited for more than 10 s.", registry=registry)
        sizes = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
        self.header = Histogram(name + "header_bytes", "Bytes of headers.", registry=registry, buckets=sizes)
