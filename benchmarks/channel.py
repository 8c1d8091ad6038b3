"""Messages between two processes, with Antecede and with other systems: Redis Streams, NATS, ZeroMQ and bare TCP.

**Rules.** Payloads have 100 bytes. There are two processes, a sender and a receiver. Some systems need a third process,
the server of a broker. A *shape* is one way to exchange the messages; the shapes are listed below. A *side* is one
system that is measured in one shape. Each round measures all sides one after the other, so that a disturbance of the
machine affects all sides. Medians over the rounds are compared. Only ratios between sides of the same run are
meaningful. A side that is not installed is skipped, and the output says so.

**The shapes.** In most shapes, our side has a server in each of the two processes. The two servers are in one domain of
order ``pruned``. In the shapes *clients* and *accepted*, and in the side ``ping-pong-client``, only one server runs.

- *pipelined*: a program calls ``bus.send()`` once per message, on the bus of its server. An agent on the other server
  receives the messages. It has no state, except in the side ``stateful``. The time is measured from the first send
  until the agent's answer to the last message is back at the sender. When the answer arrives, all messages are on the
  disks of both servers, except in the side ``not-durable``.
- *clients*: one client sends to another client of the same server. The server writes the messages to its disk. Each
  message passes through two sockets, as with a broker. Each call of ``bus.send_many()`` sends 500 notifications. The
  time is measured until the other client has handled the last notification.
- *accepted*: there is a client in one process, and a server in the other. The client awaits each ``bus.send()`` before
  it calls the next one.
- *exchange*: two agents, one on each server, send one letter (a message) back and forth. Each agent's reaction is on
  disk before the letter is sent back. So a round trip costs one fdatasync at each end, as in
  :mod:`~benchmarks.bare`.
- *ping-pong*: a program in one process calls ``await bus.ask()``, and an agent on the server of the other process
  answers.

Systems that are not installed are skipped. To measure all, install the extra ``peers``, and redis-server with the
package manager of your system. ``--against``, ``--permissions`` and ``--soak`` need Linux.

**``--against COMMIT``** compares this version with another one, by CPU time per message. On a shared machine, wall
times differ by tens of percent from minute to minute, but CPU time per message differs only by a few percent. Each
side is measured with one version, and directly afterwards with the other version; every second round in the opposite
sequence. For each side, a round gives one ratio: this version's CPU time divided by the other version's. The report has
the geometric mean of the ratios and its 95 % confidence interval, by Student's t on the logarithms of the ratios. Both
versions run with this interpreter and execute this version's :mod:`benchmarks.ours`, so only the package differs.

**``--permissions``** compares two servers of this version in the same way. The first has an access file: client and
server prove their identity once, and each publish is checked. TLS is used in neither.
"""

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from antecede import limits
from antecede.errors import UsageError
from benchmarks import common, nats_broker, payload, redis_streams
from benchmarks.common import (
    Child,
    SideError,
    at_least,
    await_listener,
    free_ports,
    own_source,
    party,
    program,
    report_status,
    resident_bytes,
    root,
)
from benchmarks.ours import topology_text

CLIENTS = "durable-clients"
"""The name of the side in which one client sends to another client."""

Sample = dict[str, float]
"""The measured figures of one side in one round, by name."""


class Side(msgspec.Struct, frozen=True):
    """One side of the benchmark: one system that sends messages in one way."""

    name: str
    says: str
    share: float
    """The requested number of messages is multiplied by this factor. Slow sides have a small factor, so that all sides
    take about the same time."""
    run: Callable[[int, str], Sample]
    """The function that measures this side once. It gets the number of messages and a folder."""
    unit: str = "per_second"
    """The name of the main figure in the samples of this side."""
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """Return the names of the packages and programs that this side needs and that are not installed."""
        return [name for name in self.modules if find_spec(name) is None] + [
            name for name in self.programs if program(name) is None
        ]


def measure(side: Side, messages: int, directory: str | None) -> Sample:
    """Measure one side once, in a new temporary folder. ``messages``: the requested number of messages. ``directory``:
    where the temporary folder is made. If it is None, the folder is made in the default place for temporary files."""
    with TemporaryDirectory(prefix="antecede-benchmark-", dir=directory) as place:
        return side.run(max(100, round(messages * side.share)), place)


# Ours.


class Ours(msgspec.Struct, frozen=True):
    """Measures a side of Antecede. ``role``: the role of the sender, one of the functions in
    :mod:`benchmarks.ours`. ``disk``: whether messages are kept on disk. ``trace``: whether a trace is recorded.
    ``to``: the agent that receives the messages."""

    role: str
    disk: bool
    embedded: bool = True
    """Whether the sender is a program in the process of server s1, and sends through the bus of this server. If it is
    False, the sender is a client of the receiver's server, s2."""
    trace: bool = False
    to: str | None = None

    def __call__(self, messages: int, place: str, source: str | None = None, keys: Path | None = None) -> Sample:
        """Measure once. ``source``: a directory from which both processes import the package. If it is given, the
        figures contain the CPU times of both processes. ``keys``: a folder with an access file and credentials. If it
        is given, the client connects with these credentials."""
        topology = topology_text(free_ports(2))
        here: dict[str, Any] = {"data": f"{place}/s1"} if self.disk and self.embedded else {}
        there: dict[str, Any] = {"data": f"{place}/s2"} if self.disk else {}
        if self.trace:
            here, there = {**here, "trace": True}, {**there, "trace": True}
        if self.to is not None:
            here["to"] = self.to
        if keys is not None:
            here["credentials"], there["keys"] = str(keys / "program"), str(keys)
        with party("ours", "server", source, topology=topology, **there) as receiver:
            ready = receiver.receive(_start_seconds)
            if source is not None:
                package = Path(ready["package"]).resolve()
                if not package.is_relative_to(Path(source).resolve()):
                    raise SideError(f"the package was imported from {package.parent}: expected a folder in {source}")
                here["pid"] = receiver.pid
            with party("ours", self.role, source, topology=topology, messages=messages, **here) as sender:
                return sender.receive(_run_seconds)


def _clients(messages: int, place: str) -> Sample:
    """Measure a client that sends to another client of the same server. Each message passes through two sockets, as
    with a broker. The receiver's mailbox has no quota. But the server limits the mailboxes of all its clients together,
    so this function limits the number of messages."""
    messages = min(messages, _clients_messages_max)
    topology = topology_text(free_ports(2)) + '\n[mailboxes]\n"taker@s2" = { letters = 0, bytes = 0 }\n'
    with ExitStack() as stack:
        server = stack.enter_context(party("ours", "server", topology=topology, data=f"{place}/s2"))
        server.receive(_start_seconds)
        taker = stack.enter_context(party("ours", "taker", topology=topology, messages=messages))
        taker.receive(_start_seconds)
        giver = stack.enter_context(party("ours", "giver", topology=topology, messages=messages))
        return _rate(messages, giver.receive(_run_seconds), taker.receive(_run_seconds))


def _idle(messages: int, place: str) -> Sample:
    """Measure the memory of an idle server that ``antecede serve`` has started."""
    ports = free_ports(2)
    file = Path(place) / "topology.toml"
    file.write_text(topology_text(ports))
    command = [sys.executable, "-m", "antecede", "serve", str(file), "--server", "s2", "--data", f"{place}/s2"]
    with Child(command, silent=True) as child:
        await_listener(ports[1])
        return {"mib": resident_bytes(child.pid) / 2**20}


def soak(messages: int, directory: str | None) -> dict[str, list[float]]:
    """Send durable messages from one server to another, in ten parts. Return the memory of both servers after each
    part, in MiB: a list of ten values for each server. The memory must not grow."""
    with TemporaryDirectory(prefix="antecede-benchmark-", dir=directory) as place:
        topology = topology_text(free_ports(2))
        with party("ours", "server", topology=topology, data=f"{place}/s2") as receiver:
            receiver.receive(_start_seconds)
            settings = {"messages": messages, "pid": receiver.pid, "data": f"{place}/s1"}
            with party("ours", "soak", topology=topology, **settings) as sender:
                found = [sender.receive(_soak_seconds) for _ in range(10)]
    return {name: [sample[name] for sample in found] for name in found[0]}


# Floors.


def _floor(receiver: str, sender: str, there: bool = False, here: bool = False, **more: int) -> Callable[..., Sample]:
    """Return a function that measures a receiver and a sender of :mod:`benchmarks.bare`. ``there``: whether the
    receiver writes each message to a disk. ``here``: whether the sender writes each message to a disk."""

    def run(messages: int, place: str) -> Sample:
        with party("bare", receiver, **({"data": f"{place}/there"} if there else {})) as taker:
            port = taker.receive(_start_seconds)["port"]
            data = {"data": f"{place}/here"} if here else {}
            with party("bare", sender, port=port, messages=messages, **data, **more) as giver:
                return giver.receive(_run_seconds)

    return run


# Peers.


def _through(
    module: str, command: Callable[[int, str], list[str]], sender: str, receiver: str | None
) -> Callable[..., Sample]:
    """Return a function that measures messages from a sender to a receiver through a broker. ``module``: the module of
    this package that contains both programs. ``command``: returns the command that starts the broker. ``sender`` and
    ``receiver``: the roles of the two programs in this module. ``receiver`` is None if there is no receiver."""

    def run(messages: int, place: str) -> Sample:
        port = free_ports(1)[0]
        with ExitStack() as stack:
            stack.enter_context(Child(command(port, place), silent=True))
            await_listener(port)
            taker = None
            if receiver is not None:
                extra = {} if receiver == "echo" else {"messages": messages}
                taker = stack.enter_context(party(module, receiver, port=port, **extra))
                taker.receive(_start_seconds)
            giver = stack.enter_context(party(module, sender, port=port, messages=messages))
            answer = giver.receive(_run_seconds)
            if taker is None or "started" not in answer:
                return answer
            return _rate(messages, answer, taker.receive(_run_seconds))

    return run


def _zeromq(waits: bool) -> Callable[..., Sample]:
    def run(messages: int, place: str) -> Sample:
        with party("zeromq", "receiver", messages=messages, waits=waits) as receiver:
            port = receiver.receive(_start_seconds)["port"]
            with party("zeromq", "pipelined", port=port, messages=messages, waits=waits) as sender:
                answer = sender.receive(_run_seconds)
                return _rate(messages, answer, receiver.receive(_run_seconds))

    return run


def _rate(messages: int, sent: Sample, received: Sample) -> Sample:
    """Return the number of messages per second. The time begins with the first send, and ends when both processes have
    finished. Both processes read the same monotonic clock, so their times can be compared."""
    return {"per_second": messages / (max(sent["at"], received["at"]) - sent["started"])}


_rd: dict[str, Any] = {"modules": ("redis",), "programs": ("redis-server",)}
_nt: dict[str, Any] = {"modules": ("nats",), "programs": ("nats-server",)}
_zq: dict[str, Any] = {"modules": ("zmq",)}

sides = [
    Side(
        "durable",
        "ours: bus.send(), agent without state, fdatasync at both ends",
        1.0,
        Ours("pipelined", disk=True, to="sink"),
    ),
    Side(
        "durable-traced",
        "ours: the same with the trace kept",
        1.0,
        Ours("pipelined", disk=True, trace=True, to="sink"),
    ),
    Side(
        CLIENTS, "ours: from client to client through one server, fdatasync; two sockets, as with Redis", 0.3, _clients
    ),
    Side(
        "redis-pipelined",
        "Redis Streams, appendfsync always: pipelined XADD, XREAD",
        0.3,
        _through("redis_streams", redis_streams.server_command, "pipelined", "receiver"),
        **_rd,
    ),
    Side(
        "jetstream-pipelined",
        "JetStream, sync_interval always: publish_async, push consumer",
        0.02,
        _through("nats_broker", partial(nats_broker.server_command, sync=True), "pipelined", "receiver"),
        **_nt,
    ),
    Side(
        "floor-1",
        "bare TCP, receiver's log synced, 1 message per frame",
        0.5,
        _floor("log", "pipelined", there=True, together=1),
    ),
    Side(
        "floor-64",
        "bare TCP, receiver's log synced, 64 messages per frame",
        2.0,
        _floor("log", "pipelined", there=True, together=64),
    ),
    Side(
        "stateful",
        "ours: an agent whose state is saved with every reaction",
        1.0,
        Ours("pipelined", disk=True, to="ledger"),
    ),
    Side(
        "accepted",
        "ours: a client awaits each send, on the server's disk",
        0.01,
        Ours("accepted", disk=True, embedded=False),
    ),
    Side(
        "redis-accepted",
        "Redis, appendfsync always: one XADD after the other",
        0.01,
        _through("redis_streams", redis_streams.server_command, "accepted", None),
        **_rd,
    ),
    Side(
        "exchange",
        "ours: two agents, one letter back and forth, fdatasync at both ends",
        0.005,
        Ours("exchange", disk=True),
    ),
    Side(
        "floor-exchange", "bare TCP loop, fdatasync at both ends", 0.005, _floor("echo", "ping", there=True, here=True)
    ),
    Side("ping-pong", "ours, not durable: bus.ask() through two servers", 0.03, Ours("ask", disk=False), "p50_us"),
    Side(
        "ping-pong-client",
        "ours, not durable: a client asks an agent of its server",
        0.03,
        Ours("ask-as-client", disk=False, embedded=False),
        "p50_us",
    ),
    Side("echo", "bare uvloop + msgspec echo", 0.03, _floor("echo", "ping"), "p50_us", modules=("uvloop",)),
    Side(
        "nats-request",
        "NATS core: request and reply through nats-py",
        0.02,
        _through("nats_broker", partial(nats_broker.server_command, sync=False), "ping", "echo"),
        "p50_us",
        **_nt,
    ),
    Side("not-durable", "ours: bus.send(), nothing on disk", 1.0, Ours("pipelined", disk=False, to="sink")),
    Side("zeromq", "ZeroMQ: PUSH to PULL through pyzmq, blocking calls", 2.0, _zeromq(False), **_zq),
    Side("zeromq-asyncio", "ZeroMQ: the same in an event loop", 0.2, _zeromq(True), **_zq),
    Side("idle", "ours: memory of an idle server", 0.0, _idle, "mib"),
]

_clients_messages_max = int(limits.mailbox_clients_share_max * limits.backlog_letters_max * 0.9)
_start_seconds = 30.0
_run_seconds = 300.0
_soak_seconds = 1_800.0


# The report.


class Target(msgspec.Struct, frozen=True):
    """A target of the benchmark: the smallest (``least``) or the largest (``most``) accepted value. If ``against`` is
    empty, the value is the figure of ``side``. If ``against`` names another side, the value is the figure of ``side``
    divided by the figure of ``against``. A target with ``least`` = 0 accepts every value: its only purpose is that the
    report shows the value."""

    side: str
    against: str
    """The side with which ``side`` is compared. If it is empty, the target is for the figure of ``side`` itself."""
    least: float | None = None
    most: float | None = None

    @property
    def wanted(self) -> str:
        return f"≥ {self.least:g}" if self.least is not None else f"≤ {self.most:g}"

    def met(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


targets = [
    Target("durable", "redis-pipelined", least=2),
    Target(CLIENTS, "redis-pipelined", least=0),
    Target("durable", "jetstream-pipelined", least=20),
    Target("durable", "floor-1", least=0),
    Target("durable", "floor-64", least=0),
    Target("durable-traced", "durable", least=0.8),
    Target("stateful", "", least=20_000),
    Target("accepted", "redis-accepted", least=0.8),
    Target("exchange", "floor-exchange", least=0.7),
    Target("ping-pong", "echo", most=2),
    Target("ping-pong", "nats-request", most=1),
    Target("ping-pong-client", "echo", most=2),
    Target("ping-pong-client", "nats-request", most=1),
    Target("not-durable", "zeromq", least=1),
    Target("not-durable", "zeromq-asyncio", least=1),
    Target("idle", "", most=60),
]


def chosen(only: str | None) -> list[Side]:
    """Return the sides (the compared systems) that ``only`` names, or all sides if ``only`` is None. ``only``: names of
    sides, separated by commas. If it contains both ``durable`` and ``redis-pipelined``, add the side
    ``durable-clients``, in which the sender and the receiver are clients."""
    if only is None:
        return sides
    names = _known(only, [side.name for side in sides])
    if {"durable", "redis-pipelined"} <= set(names):
        names.append(CLIENTS)
    return [side for side in sides if side.name in names]


def _known(only: str, known: Sequence[str]) -> list[str]:
    names = [name.strip() for name in only.split(",")]
    for name in names:
        if name not in known:
            raise UsageError(f"--only {name}: expected some of {', '.join(known)}")
    return names


def bench_channel(wanted: Sequence[Side], messages: int, rounds: int, directory: str | None) -> dict[str, Any]:
    """Measure the sides (the compared systems), and return the report. Each round measures all sides that can be
    measured, one side after the other."""
    samples: dict[str, list[Sample]] = {}
    skipped: dict[str, str] = {}
    for side in wanted:
        missing = side.missing()
        if missing:
            skipped[side.name] = f"not installed: {', '.join(missing)}"
            report_status(f"{side.name}: skipped, {skipped[side.name]}")
    for number in range(rounds):
        for side in wanted:
            if side.name in skipped:
                continue
            try:
                sample = measure(side, messages, directory)
            except SideError as error:
                skipped[side.name] = str(error)
                report_status(f"{side.name}: given up, {error}")
                continue
            samples.setdefault(side.name, []).append(sample)
            report_status(f"round {number + 1}/{rounds}  {side.name:<20} {shown(side.unit, sample[side.unit])}")
    return {
        "bench": "channel",
        "payload_bytes": len(payload),
        "messages": messages,
        "rounds": rounds,
        "machine": {"cores": os.cpu_count(), "uvloop": find_spec("uvloop") is not None},
        "sides": [_row(side, samples.get(side.name, []), skipped.get(side.name)) for side in wanted],
        "ratios": _ratios({side.name: side for side in wanted}, samples),
    }


def _row(side: Side, found: list[Sample], skipped: str | None) -> dict[str, Any]:
    names = found[0] if found else {}
    return {
        "name": side.name,
        "says": side.says,
        "unit": side.unit,
        "median": median(sample[side.unit] for sample in found) if found else None,
        "figures": {name: median(sample[name] for sample in found) for name in names},
        "samples": [sample[side.unit] for sample in found],
        "skipped": skipped,
    }


def _ratios(wanted: dict[str, Side], samples: dict[str, list[Sample]]) -> list[dict[str, Any]]:
    rows = []
    for target in targets:
        if target.side not in samples or (target.against and target.against not in samples):
            continue
        unit = wanted[target.side].unit
        value = median(sample[unit] for sample in samples[target.side])
        if target.against:
            value /= median(sample[unit] for sample in samples[target.against])
        aim = target.least != 0
        rows.append(
            {
                "side": target.side,
                "against": target.against or None,
                "value": value,
                "target": target.wanted if aim else None,
                "met": target.met(value) if aim else None,
            }
        )
    return rows


def shown(unit: str, value: float) -> str:
    """Return a figure with its unit."""
    if unit == "per_second":
        return f"{value:,.0f}/s"
    return f"{value:,.0f} µs" if unit == "p50_us" else f"{value:.1f} MiB"


def table(report: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"{'side':<21}{'median':>13}  what"
    for row in report["sides"]:
        figure = "–" if row["median"] is None else shown(row["unit"], row["median"])
        why = f" (skipped: {row['skipped']})" if row["skipped"] else ""
        yield f"{row['name']:<21}{figure:>13}  {row['says']}{why}"
    yield f"\n{'ratio':<44}{'value':>10}  target"
    for row in report["ratios"]:
        name = f"{row['side']} / {row['against']}" if row["against"] else row["side"]
        mark = "" if row["met"] is None else f"{row['target']}  {'met' if row['met'] else 'MISSED'}"
        yield f"{name:<44}{row['value']:>10,.2f}  {mark}".rstrip()


# Two versions.

usual = ("durable", "stateful", "exchange", "ping-pong")
"""The names of the sides (the ways to send messages) that are compared by default."""

_client = "program"
"""The name of the client that :mod:`benchmarks.ours` runs."""

FIGURES = ("sender_cpu_us", "receiver_cpu_us", "cpu_us")


def comparable(only: str | None, permissions: bool = False) -> list[Side]:
    """Return the sides to compare. ``only``: their names, separated by commas, or None for the default sides. With
    ``permissions``, only sides with a client as the sender are possible, and all of these are the default."""
    ours = {side.name: side for side in sides if isinstance(side.run, Ours) and not (permissions and side.run.embedded)}
    names = _known(only, list(ours)) if only is not None else ours if permissions else usual
    return [side for name, side in ours.items() if name in names]


@contextmanager
def sources_of(version: str) -> Iterator[str]:
    """Yield the directory from which the package of another version is imported. ``version``: a commit, or the folder
    of a checkout."""
    source = Path(version).resolve() / "src"
    if (source / "antecede" / "__init__.py").is_file():
        yield str(source)
        return
    command = ["git", "-C", root, "archive", f"{version}^{{commit}}", "src"]
    with TemporaryDirectory(prefix="antecede-benchmark-") as place:
        found = subprocess.run(command, capture_output=True, check=False)
        if found.returncode:
            raise UsageError(f"--against {version}: expected a commit of this repository, or a checkout of Antecede")
        with tarfile.open(fileobj=BytesIO(found.stdout)) as archive:
            archive.extractall(place, filter="data")
        yield f"{place}/src"


def compare(
    wanted: Sequence[Side], other: str | None, messages: int, rounds: int, directory: str | None
) -> dict[str, Any]:
    """Measure each side with this version and with the package in the directory ``other``, and return the rows of the
    report. If ``other`` is None, compare this version with permissions and this version without permissions."""
    sources = {"this": own_source, "other": other or own_source}

    def measured(side: Side, variant: str) -> Sample:
        assert isinstance(side.run, Ours)
        with TemporaryDirectory(prefix="antecede-benchmark-", dir=directory) as place:
            keys = issue(Path(place) / "keys") if other is None and variant == "this" else None
            try:
                return side.run(max(100, round(messages * side.share)), place, sources[variant], keys)
            except SideError as error:
                raise SideError(f"side {side.name}, with the package in {sources[variant]}: {error}") from None

    samples: dict[str, dict[str, list[Sample]]] = {side.name: {"this": [], "other": []} for side in wanted}
    for number in range(rounds):
        turns = ("this", "other") if number % 2 == 0 else ("other", "this")
        for side in wanted:
            found = samples[side.name]
            for variant in turns:
                found[variant].append(measured(side, variant))
            ratio = found["this"][-1]["cpu_us"] / found["other"][-1]["cpu_us"]
            report_status(f"round {number + 1}/{rounds}  {side.name:<20} {ratio:.3f}")
    return {
        "bench": "channel",
        "payload_bytes": len(payload),
        "messages": messages,
        "rounds": rounds,
        "sides": [_compared_row(side, samples[side.name]) for side in wanted],
    }


def _compared_row(side: Side, found: dict[str, list[Sample]]) -> dict[str, Any]:
    """Return the row of one side in the report. For each figure it has the medians of both variants, the ratio of the
    variants, and the confidence interval of the ratio."""
    row: dict[str, Any] = {"name": side.name, "says": side.says}
    for figure in FIGURES:
        here, there = ([sample[figure] for sample in found[version]] for version in ("this", "other"))
        ratios = [a / b for a, b in zip(here, there, strict=True)]
        low, high = interval(ratios)
        row[figure] = {
            "this": median(here),
            "other": median(there),
            "ratio": exp(fmean(map(log, ratios))),
            "low": low,
            "high": high,
            "ratios": ratios,
        }
    return row


def issue(folder: Path) -> Path:
    """Write these files to the folder: keys for both servers and the client, and an access file with the client's
    permissions. Return the folder."""
    from antecede.access.model import CLIENT, SERVER, Identity, Key
    from antecede.live.issuing import new_key, table, write_folder, write_servers

    identities = []
    for role, name in ((SERVER, "s1"), (SERVER, "s2"), (CLIENT, _client)):
        key = new_key()
        write_folder(folder / name, role, name, key, None, None)
        send, receive = (("wall", "sink"), ("wall",)) if role == CLIENT else ((), ())
        identities.append(Identity(role, name, (Key(key.public),), send=send, receive=receive))
    write_servers(folder / _client, identities[:2])
    (folder / "access.toml").write_text("".join(map(table, identities)))
    return folder


def interval(ratios: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the 95 % confidence interval of the geometric mean of these ratios. For a single ratio, return (None,
    None)."""
    from antecede.pipeline.sweep import half_width

    if len(ratios) < 2:
        return None, None
    logs = [log(ratio) for ratio in ratios]
    reach = half_width(logs)
    assert reach is not None
    return exp(fmean(logs) - reach), exp(fmean(logs) + reach)


def comparison_table(report: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"CPU per message against {report['against']}, {report['rounds']} rounds in turns"
    yield f"{'side':<18}{'':<10}{'this':>10}{'other':>10}{'ratio':>8}   95 % interval"
    for row in report["sides"]:
        for figure, name in zip(FIGURES, ("sender", "receiver", "both"), strict=True):
            of = row[figure]
            span = "–" if of["low"] is None else f"{of['low']:.3f} … {of['high']:.3f}"
            called = row["name"] if name == "sender" else ""
            yield f"{called:<18}{name:<10}{of['this']:>7.1f} µs{of['other']:>7.1f} µs{of['ratio']:>8.3f}   {span}"


def main(arguments: Sequence[str]) -> int:
    parser = common.parser("channel", __doc__)
    parser.add_argument(
        "--rounds", type=at_least(1), help="rounds, in which all sides take turns; default: 5, for two versions 20"
    )
    parser.add_argument("--messages", type=at_least(1_000), default=200_000, help="for the fastest sides")
    parser.add_argument("--only", "--sides", metavar="SIDE,…", help="measure only these sides (see --list)")
    common.add_directory(parser)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--against", metavar="VERSION", help="a commit, or the folder of another checkout")
    kind.add_argument("--permissions", action="store_true", help="with an access file, against without one")
    kind.add_argument("--list", action="store_true", help="list the sides, and the programs that each side needs")
    kind.add_argument(
        "--soak", metavar="MESSAGES", type=at_least(1), help="send durable messages; print the memory after each tenth"
    )
    given = parser.parse_args(arguments)
    if given.permissions or given.against is not None:
        compared = comparable(given.only, given.permissions)
        with ExitStack() as stack:
            other = None if given.permissions else stack.enter_context(sources_of(given.against))
            found = compare(compared, other, given.messages, given.rounds or 20, given.directory)
        found["against"] = given.against or "no permissions"
        common.report(found, given.json, comparison_table)
        return 0
    wanted = chosen(given.only)
    if given.list:
        for side in wanted:
            missing = side.missing()
            print(f"{side.name:<21}{side.says}" + (f" (missing: {', '.join(missing)})" if missing else ""))
    elif given.soak:
        common.report({"bench": "channel", "soak": given.soak, **soak(given.soak, given.directory)}, True, table)
    else:
        found = bench_channel(wanted, given.messages, given.rounds or 5, given.directory)
        common.report(found, given.json, table)
    return 0
