"""An overload trial: two servers, s1 and s2, get several times the load that they can handle. Other disturbances
happen at the same time.

- Publishers send messages to the agent ``sink`` of s1, several times faster than ``sink`` can handle them. The trial
  first measures how fast ``sink`` is. The mailbox of ``sink`` has a quota with ``full = "refuse"``.
- A client of s2 subscribes to the topic ``news`` of s1, leaves and never returns; news are still published.
- The agent ``stuck`` of s1 never returns from a handler. It is isolated: it runs in a separate process.
- Strangers, which send no valid hello, connect to both servers from many loopback addresses.

Meanwhile probes measure answer times: a client of each server asks an agent of each server again and again. At the end
the trial checks three things: the **memory** was bounded, the **p99** of the answer times was small, and **nothing
accepted was lost**. Every accepted message to ``sink`` must have been handled. Every message to the absent client or to
``stuck`` must still be in the mailbox, or be a dead letter with a reason.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from antecede.engine import Subscribe
from antecede.errors import AntecedeError, ClosedError, MailboxFullError
from antecede.live.client import Bus
from antecede.live.client.line import connect
from antecede.live.client.operator import request
from antecede.topology import parse_topology
from campaigns.crowd import Answer, Ask, Count, Counted, Item
from campaigns.lies import resident_mib
from campaigns.walks import Processes, environment, free_ports

TOPOLOGY = """
[servers]
s1 = "tcp://127.0.0.1:{}"
s2 = "tcp://127.0.0.1:{}"
[domains]
A = {{ servers = ["s1", "s2"], order = "pruned" }}
[agents]
sink = {{ server = "s1", class = "campaigns.crowd:Sink" }}
echo1 = {{ server = "s1", class = "campaigns.crowd:Echo" }}
echo2 = {{ server = "s2", class = "campaigns.crowd:Echo" }}
news = {{ server = "s1", class = "antecede:Topic" }}
stuck = {{ server = "s1", class = "campaigns.crowd:Stuck", isolate = "process", reaction_seconds_max = 1 }}
[mailboxes]
sink = {{ letters = 20000, full = "refuse" }}
stuck = {{ letters = 100 }}
"""


class Settings(msgspec.Struct, frozen=True):
    """The length and the load of a trial, and the limits for its result."""

    seconds: float
    factor: float
    strangers: int
    memory_mib: int
    """The most memory, in MiB, that a server may use."""
    p99_ms: float


class Result(msgspec.Struct):
    """The figures of a trial, and its errors."""

    seconds: float = 0.0
    capacity: float = 0.0
    """Messages per second that the sink handled before the trial."""
    offered: int = 0
    accepted: int = 0
    refused: int = 0
    handled: int = 0
    news: int = 0
    news_waiting: int = 0
    news_dead: int = 0
    stuck: int = 0
    stuck_waiting: int = 0
    stuck_dead: int = 0
    strangers: dict[str, int] = {}
    probes: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    worst_ms: float = 0.0
    peak_mib: dict[str, int] = {}
    """The most memory, in MiB, that each server used."""
    late_mib: dict[str, tuple[int, int]] = {}
    """For each server, the most memory, in MiB, that it used in the second third and in the last third of the trial."""
    found: list[str] = []


class Trial:
    """Runs one overload trial. The servers keep their data and their logs in ``folder``."""

    def __init__(self, folder: Path, settings: Settings, report_status: Callable[[str], None]) -> None:
        """``report_status``: a function that shows a text about the progress of the trial."""
        self._settings = settings
        self._report_status = report_status
        topology = parse_topology(TOPOLOGY.format(*free_ports(2)))
        self._processes = Processes(folder, topology, trace=False)
        self._addresses = {name: str(address) for name, address in topology.servers.items()}
        self._topology = topology
        self._children: list[subprocess.Popen[str]] = []
        self._times: list[float] = []
        self._memory: dict[str, list[tuple[float, int]]] = {server: [] for server in topology.servers}
        self.result = Result()

    async def run(self) -> Result:
        """Run the trial; return its figures."""
        try:
            await self._processes.up(*self._addresses)
            await self._overload()
            self._judge()
        except (AntecedeError, TimeoutError) as error:
            self.result.found.append(f"{type(error).__name__}: {error}")
        finally:
            for child in self._children:
                child.kill()
                child.wait()
            codes = {server: self._processes.stop(server) for server in list(self._processes.running)}
            self.result.found += [f"{server} ended with {code}" for server, code in codes.items() if code]
            self._processes.close()
        return self.result

    async def _overload(self) -> None:
        settings, result = self._settings, self.result
        async with connect(self._addresses["s2"], name="absent") as absent:
            await absent.send("news", Subscribe())
        async with (
            connect(self._addresses["s1"], name="probe1", patience=120) as one,
            connect(self._addresses["s2"], name="probe2", patience=120) as two,
        ):
            self._report_status("measuring the capacity")
            result.capacity = await self._capacity(one)
            before = await one.ask("sink", Count(), expect=Counted, timeout=_drain_seconds)
            addresses = list(self._addresses.values())
            others = self._start("strangers", addresses=addresses, count=settings.strangers, seconds=settings.seconds)
            begin = time.monotonic()
            rate = settings.factor * result.capacity / _publishers
            children = [self._publish(f"publisher{number}", rate, settings.seconds) for number in range(_publishers)]
            tasks = [asyncio.create_task(self._probe(bus, to)) for bus in (one, two) for to in ("echo1", "echo2")]
            tasks += [
                asyncio.create_task(self._feed(two, "news", _news_rate)),
                asyncio.create_task(self._feed(two, "stuck", 1)),
            ]
            await self._watch(begin)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            result.seconds = round(time.monotonic() - begin, 1)
            self._report_status("waiting for the publishers")
            offers = [await self._end(child) for child in children]
            result.strangers = await self._end(others)
            for key in ("offered", "accepted", "refused"):
                setattr(result, key, sum(offer[key] for offer in offers))
            self._report_status("waiting for the sink")
            after = await self._drained(one, before.count + result.accepted)
            result.handled = after.count - before.count
            digest = sum(offer["digest"] for offer in offers)
            if after.digest - before.digest != digest:
                result.found.append(f"the sink's digest is {after.digest - before.digest}, expected {digest}")
            await two.drain()
            await self._settled()

    async def _capacity(self, bus: Bus) -> float:
        """For a while, offer more messages than the sink can handle; return how many it handles per second."""
        child = self._publish("warm", _capacity_rate, _capacity_seconds + 1)
        await asyncio.sleep(1)
        seen = []
        for _ in range(2):
            status = await request(self._topology.servers["s1"], "", "status")
            seen.append((time.monotonic(), status["reactions"]))
            await asyncio.sleep(_capacity_seconds)
        offer = await self._end(child)
        await self._drained(bus, int(offer["accepted"]))
        return float((seen[1][1] - seen[0][1]) / (seen[1][0] - seen[0][0]))

    async def _drained(self, bus: Bus, count: int) -> Counted:
        async with asyncio.timeout(_drain_seconds):
            while True:
                with contextlib.suppress(MailboxFullError):
                    counted = await bus.ask("sink", Count(), expect=Counted, timeout=_drain_seconds)
                    if counted.count >= count:
                        return counted
                await asyncio.sleep(0.05)

    async def _probe(self, bus: Bus, to: str) -> None:
        """Ask an agent again and again, and record how long each answer takes."""
        while True:
            begin = time.perf_counter()
            try:
                await bus.ask(to, Ask(), expect=Answer, timeout=_probe_seconds)
            except AntecedeError as error:
                self.result.found.append(f"a probe of {to} failed: {error}")
            except TimeoutError:
                pass
            self._times.append(time.perf_counter() - begin)
            await asyncio.sleep(_probe_pause_seconds)

    async def _feed(self, bus: Bus, to: str, rate: float) -> None:
        """Send ``rate`` messages per second to the agent ``to``, and count them in the result."""
        number = 0
        while True:
            number += 1
            # Counted before it is accepted: the feed may be cancelled while it waits for that, and all are accepted.
            if to == "news":
                self.result.news += 1
            else:
                self.result.stuck += 1
            try:
                await bus.send(to, Item(number=number, fill=bytes(_news_bytes if to == "news" else 0)))
            except AntecedeError as error:
                self.result.found.append(f"a message to {to} was refused: {error}")
                return
            await asyncio.sleep(1 / rate)

    async def _watch(self, begin: float) -> None:
        """Record the memory of both servers again and again, until the planned time of the trial has passed. Raise
        ClosedError if a server ends."""
        while (elapsed := time.monotonic() - begin) < self._settings.seconds:
            for server, process in self._processes.running.items():
                if process.poll() is not None:
                    raise ClosedError(
                        f"{server} ended during the trial with exit code {process.returncode}; "
                        f"the end of its log: {self._processes.log(server)[-500:]}"
                    )
                self._memory[server].append((elapsed, resident_mib(process.pid)))
            self._report_status(f"{elapsed:.0f} of {self._settings.seconds:.0f} s, {len(self._times)} probes")
            await asyncio.sleep(0.5)

    async def _settled(self) -> None:
        """Wait until each letter to the absent client or to the stuck agent is in the mailbox or is a dead letter.
        Record how many are in the mailboxes, and how many are dead."""
        result = self.result
        async with asyncio.timeout(_drain_seconds):
            while True:
                one, two = [await request(self._topology.servers[name], "", "status") for name in self._addresses]
                result.news_waiting = two["mailboxes"].get("absent@s2", 0)
                result.news_dead = two["dead"] + two["dead_dropped"]
                result.stuck_waiting = one["mailboxes"].get("stuck", 0)
                result.stuck_dead = one["dead"] + one["dead_dropped"]
                if self._complete():
                    return
                await asyncio.sleep(0.2)

    def _complete(self) -> bool:
        result = self.result
        news, stuck = result.news_waiting + result.news_dead, result.stuck_waiting + result.stuck_dead
        return news >= result.news and stuck >= result.stuck

    def _judge(self) -> None:
        settings, result, times = self._settings, self.result, sorted(self._times)
        result.probes = len(times)
        if times:
            marks = [times[int(len(times) * share)] for share in (0.5, 0.99)]
            result.p50_ms, result.p99_ms, result.worst_ms = (round(1000 * one, 1) for one in (*marks, times[-1]))
        third = settings.seconds / 3
        for server, seen in self._memory.items():
            result.peak_mib[server] = max((mib for _, mib in seen), default=0)
            middle = max((mib for at, mib in seen if third <= at < 2 * third), default=0)
            last = max((mib for at, mib in seen if at >= 2 * third), default=0)
            result.late_mib[server] = (middle, last)
            if result.peak_mib[server] > settings.memory_mib:
                result.found.append(
                    f"{server} used {result.peak_mib[server]} MiB: expected at most {settings.memory_mib}"
                )
        if result.handled != result.accepted:
            result.found.append(f"{result.accepted} messages were accepted, but {result.handled} handled")
        if result.news_waiting + result.news_dead != result.news:
            result.found.append(f"of {result.news} news, {result.news_waiting} wait and {result.news_dead} are dead")
        if result.stuck_waiting + result.stuck_dead != result.stuck:
            waiting, dead = result.stuck_waiting, result.stuck_dead
            result.found.append(f"of {result.stuck} messages to stuck, {waiting} wait and {dead} are dead")
        if result.p99_ms > settings.p99_ms:
            result.found.append(f"p99 of the probes is {result.p99_ms} ms: expected at most {settings.p99_ms:g}")

    def _publish(self, name: str, rate: float, seconds: float) -> "subprocess.Popen[str]":
        address = self._addresses["s1"]
        return self._start("publish", address=address, name=name, to="sink", rate=rate, seconds=seconds)

    def _start(self, program: str, **settings: object) -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            [sys.executable, "-m", "campaigns.crowd", program, json.dumps(settings)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self._children.append(child)
        return child

    async def _end(self, child: "subprocess.Popen[str]") -> Any:
        out, _ = await asyncio.to_thread(child.communicate, timeout=self._settings.seconds + _drain_seconds)
        document = json.loads(out or '{"error": "it ended without a result"}')
        if "error" in document:
            raise ClosedError(f"a program that makes load for the trial failed: {document['error']}")
        return document


_publishers = 2
_capacity_rate = 12_000.0
_capacity_seconds = 2.0
_drain_seconds = 600.0
_probe_seconds = 10.0
_probe_pause_seconds = 0.025
_news_rate = 200
_news_bytes = 500
