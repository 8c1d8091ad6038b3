"""A server that receives a million forged frames ("lies"). When it detects a lie, it closes the connection and logs the
reason.

The server is a complete :class:`antecede.live.ServerRuntime`, with its state machine and its code for connections,
sessions and peers. Only the sockets are missing, so that frames reach the server as fast as it reads them. Lying peers
and clients have everything that honest ones have (token, epoch, incarnations, true stamps of a real state machine), so
that their lies pass the first checks.

After the last lie to a server, the trial checks:

1. The server has raised no exception, and the log has the reason for every connection that the server closed.
2. The server still serves an honest client, and accepts the letters of an honest peer in a domain without a lying peer.
3. A replay of the server's log gives the server's current state, and the log can be converted to a trace. So the server
   can start again, even if it has accepted lies.
4. The server's memory is bounded.

While the server handles input, it answers no other connection. So the longest time for one *conversation* (all frames
of one connection) is the longest time that another connection must wait. This time is measured by the wall clock and by
the CPU time of this thread, because other programs may use the computer at the same time. The *work* for a conversation
is the number of function calls. It must be proportional to the length of the conversation. The calls are counted in
every twentieth conversation, and in about half of the long conversations. The time of a conversation is measured only
if its calls are not counted, because counting takes time.

A *lie* is such a forged input. It is made from a valid conversation (all frames of one connection) of a client, an
operator or a peer. The conversation is changed at one of four depths:

1. in the bytes of a frame,
2. in a field of a part (a struct in a frame),
3. in a packet of the domain's ordering protocol, mostly in the stamp of the packet, or
4. in a letter that such a packet contains.

The deeper the change, the more checks the lie passes before it is found.

Some frames are *flooded* instead: one part is repeated many times, or one list or text of a part is made very long, up
to and beyond the bounds of :mod:`antecede.limits`."""

import asyncio
import logging
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count, islice
from pathlib import Path
from random import Random
from time import perf_counter, thread_time
from typing import Any, cast

import msgspec

from antecede import limits, wire
from antecede.channel import Outgoing
from antecede.engine import Agent, Context, Notification
from antecede.errors import AntecedeError, UsageError
from antecede.link import Ack, Frame
from antecede.live.application import plan_of
from antecede.live.server import ServerRuntime
from antecede.live.tcp import TcpConnection
from antecede.server import CODE, AgentServer, FromPeer, Published, link_hellos, project
from antecede.topology import parse_topology
from antecede.wire import Part, PeerFrames, frame


class Nowhere(asyncio.Transport):
    """A transport without a network. It stores what the server writes, up to a bound, and never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False
        self.written = bytearray()

    def write(self, data: Any) -> None:
        if len(self.written) < _written_bytes_max:
            self.written += data

    def close(self) -> None:
        self.closed = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        # The other end closes as soon as nothing more will come.
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return


def feed(end: asyncio.BufferedProtocol, data: bytes) -> None:
    """Give bytes to one end of a connection, as if they came from the network."""
    while data:
        memory = memoryview(end.get_buffer(-1))
        part = data[: len(memory)]
        memory[: len(part)] = part
        end.buffer_updated(len(part))
        data = data[len(part) :]


def resident_mib(pid: int | str = "self") -> int:
    """Return the memory that a process uses now, in MiB, or 0 if the operating system does not report it. The default
    is the current process."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() >> 20
    except OSError:
        return 0


class ReasonHandler(logging.Handler):
    """A log handler that keeps the reasons and the exceptions of log messages."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: set[str] = set()
        self.exceptions: list[str] = []

    def has_reason(self, reason: str) -> bool:
        """Return whether a log message had this reason. A log message may contain only a part of a reason: the
        beginning, if the reason is long, or the text after "is stopped:", if the reason is about a stopped link. Such a
        part is enough."""
        shown = reason[: limits.log_text_chars_max] + "…"
        stopped = reason.partition(" is stopped: ")[2] or reason
        return not self.reasons.isdisjoint({reason, shown, stopped})

    def emit(self, record: logging.LogRecord) -> None:
        self.reasons.add(str(getattr(record, "fields", {}).get("reason", "")))
        if record.exc_info:
            self.exceptions.append(self.format(record))


@contextmanager
def listening() -> Iterator[ReasonHandler]:
    """Capture the log messages of servers, and hide them from other handlers."""
    logger = logging.getLogger("antecede")
    before = (logger.handlers, logger.propagate, logger.level)
    handler = ReasonHandler()
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        logger.handlers, logger.propagate = before[0], before[1]
        logger.setLevel(before[2])


_written_bytes_max = 1 << 20


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.decode

_flooded = 0.005
"""The share of conversations that are flooded. It is small, because a flooded conversation can be as long as thousands
of others."""
_floods = (300, 1_024, 1_025, 5_000, 65_536, 65_537, 200_000)
_flood_bytes = 2 * 1024 * 1024
_nest = b"\x91" * 2_000
_odd: tuple[Any, ...] = (
    *(0, 1, -1, 127, 128, 255, 256, 2**16, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)),
    *("", "s1", "s2", "echo", "A", "x@s1", "nobody", "\x00", "é" * 40, "x" * 5_000, "@", "a@", "@s1"),
    *(b"", b"\x00", b"\xff" * 9, b"\x80" * 40, b"\x91" * 3_000, b"x" * 5_000),
    *(None, True, False, 1.5, float("inf"), [], [[]], {}, [0] * 300, {"a": {"b": {}}}, [[[[[[[[1]]]]]]]]),
)


class Liar:
    """Turns valid conversations into lies. It changes one frame of each conversation, and sometimes also the sequence
    of the frames. In most cases the change breaks a rule of the protocol."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def mutated(self, conversation: Sequence[Sequence[Part]]) -> bytes:
        """Change a valid conversation so that it contains false data. Return the bytes to send on a connection."""
        random = self._random
        frames = [list(parts) for parts in conversation]
        if random.random() < _flooded:
            return self._flood(frames)
        depth = int(random.random() * 4)
        deep = [
            (at, place)
            for at, parts in enumerate(frames)
            for place, part in enumerate(parts)
            if depth < 2 or (isinstance(part, PeerFrames) and part.bodies)
        ]
        at, place = deep[int(random.random() * len(deep))] if deep else (0, 0)
        written = [frame(parts) for parts in frames]
        if depth == 0:
            written[at] = self._bytes(written[at])
        else:
            parts: list[Any] = list(frames[at])
            parts[place] = self._part(frames[at][place], depth)
            written[at] = self._framed(parts)
        if random.random() < 0.05:
            random.shuffle(written)
        return b"".join(written)

    def _flood(self, frames: list[list[Part]]) -> bytes:
        """Flood a conversation with many equal parts, or with a very long list or text; return its bytes."""
        random = self._random
        written = [frame(parts) for parts in frames]
        at = int(random.random() * len(frames))
        part = frames[at][int(random.random() * len(frames[at]))]
        count = _floods[int(random.random() * len(_floods))]
        fields: list[Any] = _decode(_encode(part))
        long = [place for place, value in enumerate(fields) if isinstance(value, list | str | bytes) and value]
        if long and random.random() < 0.7:
            place = long[int(random.random() * len(long))]
            value = fields[place]
            fields[place] = value * min(count, max(1, _flood_bytes // len(_encode(value))))
            written[at] = self._framed([fields])
        else:
            written[at] = self._framed([fields] * min(count, max(1, _flood_bytes // len(_encode(fields)))))
        return b"".join(written)

    def _framed(self, parts: list[Any]) -> bytes:
        """Return a frame with these parts, even if they are not valid parts."""
        body = _encode(parts)
        length = len(body) + 1
        return length.to_bytes(4, "big") + bytes([wire.VERSION]) + body

    def _part(self, part: Part, depth: int) -> Any:
        fields = _decode(_encode(part))
        if depth == 1 or not isinstance(part, PeerFrames) or not part.bodies:
            return self._value(fields)
        bodies = list(part.bodies)
        place = int(self._random.random() * len(bodies))
        bodies[place] = self._packet(bodies[place], depth)
        fields[-1] = bodies
        return fields

    def _packet(self, body: bytes, depth: int) -> bytes:
        """Change a packet that an ordering protocol has encoded; return the changed packet. The fields of a packet are
        name, version, kind, subject, stamp, source, to and payload."""
        fields = list(_decode(body))
        if depth == 3 and fields[-1]:
            fields[-1] = self._train(fields[-1])
        elif self._random.random() < 0.6:
            fields[4] = self._bytes(fields[4])
        elif self._random.random() < 0.5 and fields[-1]:
            fields[-1] = self._bytes(fields[-1])
        else:
            fields = self._value(fields)
        return _encode(fields)

    def _train(self, train: bytes) -> bytes:
        letters = _decode(train)
        if letters and self._random.random() < 0.2:
            letters = letters * 3
        return _encode(self._value(letters))

    def _value(self, value: Any) -> Any:
        """Return a value with one change in it."""
        random = self._random
        if isinstance(value, list) and value and random.random() < 0.9:
            changed = list(value)
            place = int(random.random() * len(changed))
            kind = random.random()
            if kind < 0.06:
                del changed[place]
            elif kind < 0.12:
                changed.insert(place, changed[place])
            else:
                changed[place] = self._value(changed[place])
            return changed
        if isinstance(value, bytes) and random.random() < 0.5:
            return self._bytes(value)
        if type(value) is int and random.random() < 0.3:
            return value + int(random.random() * 7) - 3
        # Mostly of its own type, because other types are detected soon.
        odd = [one for one in _odd if type(one) is type(value)] if random.random() < 0.8 else _odd
        return odd[int(random.random() * len(odd))] if odd else None

    def _bytes(self, data: bytes) -> bytes:
        """Return bytes with one to four changes, such as other bytes, missing or doubled pieces, nested lists or a
        wrong length."""
        random = self._random
        changed = bytearray(data)
        for _ in range(1 + int(random.random() * 4)):
            at = int(random.random() * (len(changed) + 1))
            kind = int(random.random() * 8)
            if kind == 0 and at < len(changed):
                changed[at] = int(random.random() * 256)
            elif kind == 1 and at < len(changed):
                changed[at] ^= 1 << int(random.random() * 8)
            elif kind == 2:
                del changed[at:]
            elif kind == 3:
                changed[at:at] = changed[at : at + int(random.random() * 20)]
            elif kind == 4:
                changed[at:at] = _nest[: int(random.random() * len(_nest))]
            elif kind == 5:
                changed[:4] = int(random.random() * 2 ** (1 + int(random.random() * 32))).to_bytes(5, "big")[1:]
            elif kind == 6:
                changed[at:at] = b"\xff" * int(random.random() * 12)
            elif kind == 7:
                del changed[at : at + 1 + int(random.random() * 8)]
        return bytes(changed)


ORDERS = (
    *("none", "fifo", "matrix", "updates", "pruned", "direct", "buffer", "buffer:pipelined=true"),
    *("synchronous", "coordinator", "token", "lamport", "skeen", "skeen:causal=true"),
)

_token = "secret"


class Word(Notification):
    """The notification that clients and peers send in this trial. :class:`Echo` answers it."""

    text: str


class Echo(Agent):
    """An agent that answers every notification."""

    words: int = 0

    def on_word(self, word: Word, ctx: Context) -> None:
        self.words += 1
        # With a forged sender the reaction would fail and be tried again, and everything else would wait.
        with suppress(UsageError):
            ctx.reply(word)


class Lies(msgspec.Struct):
    """The results of a trial: sums and largest values over all its servers."""

    lies: int = 0
    closed: int = 0
    """The number of connections that the server closed. The lies on the other connections were harmless or could not be
    detected."""
    servers: int = 0
    records: int = 0
    stall_ms: float = 0.0
    """The longest time that one conversation took, by the wall clock."""
    cpu_ms: float = 0.0
    """The most CPU time that one conversation took."""
    calls: int = 0
    """The most function calls that one conversation caused."""
    calls_per_byte: float = 0.0
    """The largest number of function calls per byte of a conversation. Before the division, ``grace_bytes`` is added to
    the length of the conversation."""
    growth_mib: int = 0
    """The largest growth of the process's memory. The memory is measured after the trial of each server, and compared
    with the memory after the first server."""
    kinds: dict[str, int] = {}
    """The number of conversations for each kind of sender: strangers (senders without an accepted hello), peers,
    clients and operators."""
    found: list[str] = []


grace_bytes = 4_096
"""To compute the function calls per byte, this number of bytes is added to the length of each conversation. The reason:
even after the shortest conversation, the server may write a log record and handle letters that waited."""


class Victim:
    """A server that receives lies (forged input), with two peers: one lies, and one is honest. The class also makes
    valid conversations, which are then changed into lies."""

    def __init__(self, order: str, seed: int, outcome: Lies) -> None:
        """The results of this server are added to ``outcome``."""
        self.random = Random(f"{order} {seed}")
        self._outcome = outcome
        text = f"""
            guarantee = "none"
            [servers]
            s1 = "tcp://127.0.0.1:7101"
            s2 = "tcp://127.0.0.1:7102"
            s3 = "tcp://127.0.0.1:7103"
            s4 = "tcp://127.0.0.1:7104"
            [domains]
            A = {{ servers = ["s1", "s2", "s4"], order = "{order}" }}
            B = {{ servers = ["s1", "s3"], order = "pruned" }}
            [agents]
            echo = {{ server = "s1", class = "campaigns.lies:Echo" }}
            far = {{ server = "s3", class = "campaigns.lies:Echo" }}
            near = {{ server = "s2", class = "campaigns.lies:Echo" }}
        """
        self.topology = parse_topology(text)
        self.plan = plan_of(self.topology)
        self.runtime = ServerRuntime(self.topology, "s1", durability="memory", token=_token)
        # Each line of the log counts here, so no budget may leave one out: its clock goes one second per line.
        self.runtime.core.log.clock = count().__next__
        self.records: list[bytes] = []
        self.runtime.machine.kept = True
        self._append = self.runtime.store.append
        cast(Any, self.runtime.store).append = self._keep
        self.records.append(AgentServer("s1", self.plan, self.runtime.store.incarnation).begin(self.topology.epoch))
        self.peer = AgentServer("s2", self.plan, 77)
        self.honest = AgentServer("s3", self.plan, 78)
        self.liar = Liar(self.random)
        self.sent_lies = 0
        self.unlogged: list[str] = []

    def _keep(self, record: bytes, **given: Any) -> int:
        self.records.append(record)
        return self._append(record, **given)

    # Valid conversations.

    def _hello(self, machine: AgentServer, domain: str) -> wire.ServerHello:
        links = link_hellos(machine, "s1", (domain,))
        return wire.ServerHello(self.topology.epoch, machine.name, "s1", _token, links)

    def _frames(self, machine: AgentServer, count: int) -> list[Outgoing]:
        """Let a client of a peer publish ``count`` messages; return the frames from the peer to the server."""
        outgoing: list[Outgoing] = []
        for _ in range(count):
            to = (("echo",), ("far",), ("echo", "far"))[int(self.random.random() * 3)]
            if machine is self.honest:
                to = ("echo",)
            body = msgspec.msgpack.encode({"text": "true"})
            given = Published("bob", machine.clients.get("bob", 0) + 1, to, "Word", body, False)
            outgoing += machine.step([given], 0.0, 0).outgoing
        return [one for one in outgoing if one.peer == "s1"]

    def _parts(self, outgoing: list[Outgoing]) -> list[wire.Part]:
        parts: list[wire.Part] = []
        for one in outgoing:
            content = one.content
            if isinstance(content, Frame):
                parts.append(
                    wire.PeerFrames(one.domain, content.source, content.target, [content.number], [content.body])
                )
            else:
                parts.append(wire.PeerAck(one.domain, content.source, content.target, content.upto, content.beyond))
        return parts

    def _conversation(self) -> list[list[wire.Part]]:
        draw = self.random.random()
        kind = next(name for name, upto in _shares.items() if draw < upto)
        self._outcome.kinds[kind] = self._outcome.kinds.get(kind, 0) + 1
        return cast("list[list[wire.Part]]", getattr(self, f"_of_{kind}")())

    def _of_strangers(self) -> list[list[wire.Part]]:
        """Return a conversation of an unknown sender: its first part is not a hello (the part that opens a connection),
        or is a hello that the server refuses."""
        first: list[wire.Part] = [
            wire.Ping(),
            wire.Pong(),
            wire.Bye("so long"),
            wire.Listen(),
            wire.Accepted(1),
            wire.Deliver(b"\x90"),
            wire.ClientHello("wrong", "client1"),
            wire.ClientHello(_token, "echo"),
            wire.Request("wrong", "status", []),
            wire.Publish(1, ("echo",), "Word", [b""]),
            msgspec.structs.replace(self._hello(self.peer, "A"), token="wrong"),
        ]
        return [[first[int(self.random.random() * len(first))]], [wire.Ping()], [wire.Ping(), wire.Pong()]]

    def _of_peers(self) -> list[list[wire.Part]]:
        parts = self._parts(self._frames(self.peer, 1 + int(self.random.random() * 3)))
        parts.append(wire.PeerAck("A", 77, self.runtime.store.incarnation, 0, b""))
        return [[self._hello(self.peer, "A")], parts, [wire.Ping()]]

    def _of_clients(self) -> list[list[wire.Part]]:
        client = f"client{int(self.random.random() * 20)}"
        machine = self.runtime.machine
        number = machine.clients.get(client, 0) + 1
        body = msgspec.msgpack.encode({"text": "true"})
        publish = wire.Publish(number, ("echo",), "Word", [body] * (1 + int(self.random.random() * 3)))
        others = ("far", f"client{int(self.random.random() * 20)}@s1")
        done = [letter.id for letter in islice(machine.engine.mailboxes.get(f"{client}@s1", ()), 3)] or ["s1.1.1"]
        return [
            [wire.ClientHello(_token, client)],
            [
                wire.Listen(),
                publish,
                wire.Publish(number + len(publish.bodies), others, "Word", [body], context="00-1"),
            ],
            [wire.Done(done, "" if self.random.random() < 0.7 else "why"), wire.Ping(), wire.Pong()],
        ]

    def _of_operators(self) -> list[list[wire.Part]]:
        dead = next(iter(self.runtime.machine.engine.dead), "x")
        name, *arguments = _requests[int(self.random.random() * len(_requests))]
        arguments = [dead if one == "DEAD" else one for one in arguments]
        return [[wire.Request(_token, name, arguments)], [wire.Bye("done")]]

    # Lies.

    async def lie(self, handler: ReasonHandler) -> None:
        """Send one lie (a conversation with forged data) on a new connection, in one or three pieces."""
        data = self.liar.mutated(self._conversation())
        transport = Nowhere()
        pieces = 1 if self.random.random() < 0.8 else 3
        size = -(-len(data) // pieces) or 1
        slot = self.runtime.core.entry.admission.enter("127.0.0.1", lambda reason, code: None)
        connection = TcpConnection(self.runtime.connections.accepted, slot)
        connection.connection_made(transport)
        counted = self.sent_lies % (_counted_each if len(data) < _long_bytes else 2) == 0
        calls = 0

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        began, cpu = perf_counter(), thread_time()
        if counted:
            sys.setprofile(count)
        try:
            for at in range(0, len(data), size):
                feed(connection, data[at : at + size])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        finally:
            if counted:
                sys.setprofile(None)
        outcome = self._outcome
        if counted:
            outcome.calls = max(outcome.calls, calls)
            work = round(calls / (len(data) + grace_bytes), 1)
            outcome.calls_per_byte = max(outcome.calls_per_byte, work)
        else:
            # Counting itself takes time.
            outcome.cpu_ms = max(outcome.cpu_ms, round((thread_time() - cpu) * 1000, 1))
            outcome.stall_ms = max(outcome.stall_ms, round((perf_counter() - began) * 1000, 1))
        self.sent_lies += 1
        outcome.lies += 1
        connection.connection_lost(None)
        if transport.closed:
            outcome.closed += 1
            # A server that asks about a change of the topology gets its answer, and nothing is logged.
            known = not connection.reason or connection.code == CODE or handler.has_reason(connection.reason)
            if not known and len(self.unlogged) < _shown_max:
                self.unlogged.append(f"a connection was closed without a logged reason: {connection.reason!r}")
        # A stopped link would let nothing more in, so the domain is reset.
        if self.runtime.machine.stopped:
            self._begin_again()
        elif self.sent_lies % 50 == 0:
            self._acknowledge()

    def _begin_again(self) -> None:
        """Reset domain A and replace the lying peer. This is necessary after the server has stopped a link, because a
        stopped link accepts no more frames."""
        machine = self.runtime.machine
        generation = machine.channel.consumers["A"].generation
        self.runtime.operations.run("forget", ["A", str(generation + 1)])
        self.peer = AgentServer("s2", self.plan, 77)
        self.peer.channel.begin_again("A", generation + 1, ())

    def _acknowledge(self) -> None:
        """Let the lying peer acknowledge all frames that the server sent to it. Otherwise the server would keep them
        for ever."""
        link = self.runtime.machine.channel.consumers["A"].links["s2"]
        if link.peer == 77:
            ack = Ack(77, link.incarnation, link.sent, b"")
            self.runtime.submit(FromPeer("A", "s2", ack))

    # The end of a life.

    async def findings(self) -> list[str]:
        """Check the server after the last lie, and return the errors."""
        found = list(self.unlogged)
        found += await self._serves()
        machine = self.runtime.machine
        again = AgentServer("s1", self.plan, machine.incarnation)
        try:
            for record in self.records:
                again.replay(record, 0.0)
            if _state(again) != _state(machine):
                found.append("the state from the log differs from the server's state")
        except Exception as error:
            found.append(f"the log does not replay: {type(error).__name__}: {error}")
        try:
            for _ in project(self.records, "s1", machine.incarnation, self.topology.organisation):
                pass
        except Exception as error:
            found.append(f"the log has no trace: {type(error).__name__}: {error}")
        found += self._unbounded()
        return found

    async def _serves(self) -> list[str]:
        try:
            async with asyncio.timeout(10):
                async with self.runtime.bus("alice") as bus:
                    await bus.ask("echo", Word(text="well?"), timeout=10)
        except (TimeoutError, AntecedeError) as error:
            return [f"an honest client is not served: {type(error).__name__}: {error}"]
        # A lie of an operator may be a command that resets this domain; then its members begin again.
        generation = self.runtime.machine.channel.consumers["B"].generation
        if generation:
            self.honest.channel.begin_again("B", generation, ())
        transport = Nowhere()
        connection = TcpConnection(self.runtime.connections.accepted)
        connection.connection_made(transport)
        feed(connection, wire.frame([self._hello(self.honest, "B")]))
        feed(connection, wire.frame(self._parts(self._frames(self.honest, 3))))
        for _ in range(5):
            await asyncio.sleep(0.005)
        accepted = self.runtime.machine.channel.consumers["B"].links["s3"].hello().accepted
        connection.connection_lost(None)
        return [] if accepted == 3 else [f"only {accepted} of 3 frames of an honest peer were accepted"]

    def _unbounded(self) -> Iterator[str]:
        machine = self.runtime.machine
        for domain, consumer in machine.channel.consumers.items():
            for peer, link in consumer.links.items():
                if link.pending > limits.link_window_frames_max:
                    yield f"link {domain} to {peer} holds {link.pending} frames"
        entry = self.runtime.core.entry
        if len(entry.connections) > 1:
            yield f"{len(entry.connections)} connections are still open"
        strangers, unfinished = entry.admission.strangers, entry.admission.unfinished_bytes
        if strangers or unfinished:
            yield f"{strangers} strangers and {unfinished} bytes are still counted"


def _state(machine: AgentServer) -> bytes:
    orders = {
        domain: (one.sent, one.order.snapshot(), {peer: link.sent for peer, link in one.links.items()})
        for domain, one in machine.channel.consumers.items()
    }
    return msgspec.msgpack.encode(
        (machine.engine.dump(), machine.clients, machine.timers.waiting, orders), order="sorted"
    )


async def trial(
    seed: int,
    lies: int,
    orders: tuple[str, ...] = ORDERS,
    life: int = 2_000,
    report_progress: Callable[[int], None] = lambda lies: None,
) -> Lies:
    """Send ``lies`` lies in total to several servers, one server after the other. Each server gets at most ``life``
    lies. The first server uses the first of the ``orders``, the second server the second one, and so on. After the last
    order, the first one is used again. The trial ends early if a server has errors. After each server,
    ``report_progress`` is called with the number of lies so far."""
    outcome = Lies()
    loop = asyncio.get_running_loop()
    escaped: list[str] = []
    first = 0
    loop.set_exception_handler(lambda _, context: escaped.append(f"{context.get('exception')!r}"))
    with listening() as handler:
        while outcome.lies < lies and not outcome.found:
            order = orders[outcome.servers % len(orders)]
            victim = Victim(order, seed + outcome.servers, outcome)
            try:
                for _ in range(min(life, lies - outcome.lies)):
                    await victim.lie(handler)
                outcome.found += (f"{order}: {line}" for line in await victim.findings())
            except Exception as error:
                logging.getLogger("campaigns").exception("an exception escaped")
                outcome.found.append(f"{order}, lie {victim.sent_lies}: {type(error).__name__}: {error}")
            outcome.records += len(victim.records)
            outcome.servers += 1
            report_progress(outcome.lies)
            outcome.found += (f"{order}: {line}" for line in (*escaped, *handler.exceptions))
            victim.runtime.core.leave("the trial is over")
            if victim.runtime._timer is not None:
                victim.runtime._timer.cancel()
            victim.records.clear()
            resident = resident_mib()
            first = first or resident
            outcome.growth_mib = max(outcome.growth_mib, resident - first)
    return outcome


_counted_each = 20
_long_bytes = 50_000
"""A conversation with at least this many bytes is long. Function calls are counted in about half of the long
conversations."""
_shares = {"strangers": 0.1, "peers": 0.6, "clients": 0.85, "operators": 1.0}
"""The kinds of conversations, each with an upper bound. A random number from 0 to 1 chooses the first kind whose bound
is larger than the number."""
_requests = (
    *(("status",), ("dead-page", *"0000000"), ("dead-show", "DEAD"), ("dead-replay", "DEAD"), ("dead-bury", "DEAD")),
    *(("mailbox-drop", "client1@s1"), ("mailbox-drop", "echo"), ("forget", "A", "0"), ("forget", "B", "x")),
)
_shown_max = 20
