"""The sides (measured systems) of ``antecede bench channel``: how each side is run, and what it needs."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from antecede import limits
from antecede.bench import nats_broker, redis_streams
from antecede.bench.children import Child, SideError, await_listener, party, program, resident_bytes
from antecede.bench.ours import topology_text
from antecede.walks.processes import free_ports

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
    with TemporaryDirectory(prefix="antecede-bench-", dir=directory) as place:
        return side.run(max(100, round(messages * side.share)), place)


# Ours.


class Ours(msgspec.Struct, frozen=True):
    """Measures a side of Antecede. ``role``: the role of the sender, one of the functions in
    :mod:`antecede.bench.ours`. ``disk``: whether messages are kept on disk. ``trace``: whether a trace is recorded.
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
    with TemporaryDirectory(prefix="antecede-bench-", dir=directory) as place:
        topology = topology_text(free_ports(2))
        with party("ours", "server", topology=topology, data=f"{place}/s2") as receiver:
            receiver.receive(_start_seconds)
            settings = {"messages": messages, "pid": receiver.pid, "data": f"{place}/s1"}
            with party("ours", "soak", topology=topology, **settings) as sender:
                found = [sender.receive(_soak_seconds) for _ in range(10)]
    return {name: [sample[name] for sample in found] for name in found[0]}


# Floors.


def _floor(receiver: str, sender: str, there: bool = False, here: bool = False, **more: int) -> Callable[..., Sample]:
    """Return a function that measures a receiver and a sender of :mod:`antecede.bench.bare`. ``there``: whether the
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
