"""What goes wrong inside a server: agents that cannot be kept, operators who are too quick, steps that fail."""

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antecede import limits, wire
from antecede.engine import Agent, Context, Notification
from antecede.errors import BrokenStepError, NoDescriptorError, StoreError
from antecede.live import ServerRuntime
from antecede.live import server as housekeeping
from antecede.server import Accepted, AgentServer, Task
from antecede.store import draft_path
from antecede.topology import TopologyFile, parse_topology
from helpers.ports import free_ports


class Do(Notification):
    what: str


class Count(Notification):
    pass


class Word(Notification):
    pass


class Counted(Notification):
    count: int


class Clumsy(Agent):
    count: int = 0
    kept: Any = None

    def on_do(self, do: Do, ctx: Context) -> None:
        self.count += 1
        if do.what == "state":
            self.kept = object()
        elif do.what == "number":
            self.count = 1 << 80
        elif do.what == "timer":
            ctx.timer(1e18, Count())
        elif do.what == "ask":
            ctx.ask("agent", Count(), reply="on_counted", timeout=1e18)
        elif do.what == "length":
            ctx.send("agent", Do(what="x" * limits.letter_bytes_max))

    def on_count(self, count: Count, ctx: Context) -> None:
        ctx.reply(Counted(count=self.count))

    def on_counted(self, counted: Counted, ctx: Context) -> None:
        raise AssertionError("nobody was asked")


class AsyncClumsy(Clumsy):
    async def on_word(self, word: Word, ctx: Context) -> None:
        raise AssertionError("for nobody: one such handler is enough for all to be awaited")


class Unborn(Agent):
    count: int = 0

    def __post_init__(self) -> None:
        raise KeyError("not yet")

    def on_do(self, do: Do, ctx: Context) -> None:
        raise AssertionError("nobody lives")


def _topology() -> TopologyFile:
    (port,) = free_ports(1)
    text = f'[servers]\ns1 = "tcp://127.0.0.1:{port}"\n[domains]\nA = {{ servers = ["s1"] }}\n'
    return parse_topology(text + '[agents]\nagent = { server = "s1", class = "nowhere:Clumsy" }\n')


def _played(
    play: Callable[[ServerRuntime], Awaitable[None]], folder: Path | None = None, kind: type[Agent] = Clumsy
) -> None:
    async def main() -> None:
        data, durability = (None, "memory") if folder is None else (str(folder / "s1"), "os")
        runtime = ServerRuntime(_topology(), "s1", data, durability=durability, agents={"agent": kind})
        await runtime.start()
        try:
            async with asyncio.timeout(60):
                await play(runtime)
        finally:
            await runtime.stop()

    asyncio.run(main())


@pytest.fixture(autouse=True)
def _quick_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "reaction_pause_seconds", 0.001)


@pytest.mark.parametrize("kind", [Clumsy, AsyncClumsy])
@pytest.mark.parametrize("what", ["state", "number", "timer", "ask", "length"])
def test_what_cannot_be_kept_is_a_failed_reaction(what: str, kind: type[Agent]) -> None:
    """Not the end of the server: the letter is dead in the end, and the agent is as it was before."""

    async def play(runtime: ServerRuntime) -> None:
        async with runtime.bus("alice") as bus:
            await bus.send("agent", Do(what="nothing"))
            await bus.send("agent", Do(what=what))
            assert (await bus.ask("agent", Count(), expect=Counted)).count == 1
        (dead,) = runtime.operations.dead.list()
        assert dead["type"] == "Do"

    _played(play, kind=kind)


def test_an_agent_that_cannot_be_made() -> None:
    async def play(runtime: ServerRuntime) -> None:
        async with runtime.bus("alice") as bus:
            await bus.send("agent", Do(what="nothing"))
            while not runtime.machine.engine.dead:
                await asyncio.sleep(0.001)
            await bus.send("bob@s1", Do(what="nothing"))
        assert "not yet" in runtime.operations.dead.list()[0]["reason"]

    _played(play, kind=Unborn)


async def _dead(runtime: ServerRuntime, bodies: list[Any]) -> list[str]:
    async with runtime.bus("alice") as bus:
        for body in bodies:
            await bus.post("agent", "Nonsense", body)
        while len(runtime.machine.engine.dead) < len(bodies):
            await asyncio.sleep(0.001)
    return list(runtime.machine.engine.dead)


def test_dead_letters_replayed_at_once(tmp_path: Path) -> None:
    """Two operators, and one of them twice, before the server takes a step: each letter is sent again, once."""

    async def play(runtime: ServerRuntime) -> None:
        keys = await _dead(runtime, [{"number": 1}, {"number": 2}])
        for key in [*keys, keys[0]]:
            runtime.operations.dead.replay(key)
        while runtime.machine.engine.dead.keys() & set(keys):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        replays = [dead.letter.replays for dead in runtime.machine.engine.dead.values()]
        assert sorted(replays) == sorted(key.split()[0] for key in keys)

    _played(play, tmp_path)


def test_a_dead_letter_that_is_replayed_at_a_bad_moment(tmp_path: Path) -> None:
    """The server becomes overloaded before it takes the step: what was asked for in time is done."""

    async def play(runtime: ServerRuntime) -> None:
        (key,) = await _dead(runtime, [{"number": 1}])
        runtime.operations.dead.replay(key)
        runtime.machine.overloaded = True
        while key in runtime.machine.engine.dead:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert [dead.letter.replays for dead in runtime.machine.engine.dead.values()] == [key.split()[0]]

    _played(play, tmp_path)


def test_a_dead_letter_that_json_cannot_tell() -> None:
    async def play(runtime: ServerRuntime) -> None:
        for body in (msgspec.msgpack.encode({(1, 2): 3}), msgspec.msgpack.encode(msgspec.msgpack.Ext(5, b"x"))):
            async with runtime.bus("alice") as bus:
                ticket = bus.post("agent", "Nonsense", {})
                ticket.bodies[0] = body
                await ticket
            while not runtime.machine.engine.dead:
                await asyncio.sleep(0.001)
            (key,) = runtime.machine.engine.dead
            assert runtime.operations.dead.show(key)["fields"] is None
            runtime.machine.engine.dead.clear()

    _played(play)


def test_a_mailbox_dropped_twice_at_once(tmp_path: Path) -> None:
    async def play(runtime: ServerRuntime) -> None:
        async with runtime.bus("alice") as bus:
            for number in range(3):
                await bus.send("bob@s1", Do(what=str(number)))
            assert runtime.operations.mailbox_drop("bob@s1")["dropped"] == 3
            runtime.operations.mailbox_drop("bob@s1")
            await bus.send("bob@s1", Do(what="more"))
        assert [letter.body for letter in runtime.machine.engine.mailboxes["bob@s1"]] == [b"\x81\xa4what\xa4more"]
        assert not runtime.machine.engine.dead
        assert not runtime.failed.done()

    _played(play, tmp_path)


def test_a_client_is_welcomed_after_all_that_came_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the client before published may take several steps. One that was told a smaller number would number its own
    publishes alike, and they would be taken for repeated ones: accepted, and never sent."""
    monkeypatch.setattr(limits, "step_bytes_max", 100)

    async def play(runtime: ServerRuntime) -> None:
        first = await runtime.bus("alice").__aenter__()
        await first.send("bob@s1", Do(what="begin"))
        for number in range(6):
            first.send("bob@s1" if number % 2 else "carol@s1", Do(what=str(number) * 100))
        first._publishing.flush()
        async with runtime.bus("alice") as second:
            await second.send("bob@s1", Do(what="mine"))
        bodies = [letter.body for letter in runtime.machine.engine.mailboxes["bob@s1"]]
        assert len(bodies) == 5
        assert b"mine" in bodies[-1]

    _played(play, tmp_path)


def test_what_waits_for_the_disk_leaves_in_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if all of it becomes durable at once: a new connection gets no frames, and a new session no replies, that
    were meant for the one before."""

    async def play(runtime: ServerRuntime) -> None:
        left: list[object] = []
        await asyncio.to_thread(runtime.store.wait, runtime.store.last)
        gate = runtime.driver.gate
        runtime.driver.durable(runtime.store.durable)
        monkeypatch.setattr(gate, "_reply", lambda replies: left.extend(one.number for one in replies))
        monkeypatch.setattr(gate, "_send", left.extend)
        gate.put(["frame"], [Accepted("alice", 1)])  # type: ignore[list-item]
        gate.call(lambda: left.append("call"))
        gate.put(["another"], [Accepted("alice", 2)])  # type: ignore[list-item]
        gate.open(gate.last)
        assert left == [1, "frame", "call", 2, "another"]

    _played(play, tmp_path)


def test_a_snapshot_that_failed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Soon, and not only when as much log has gathered again. Another process builds it; the server itself encodes its
    state only after several failures, and at its end."""
    monkeypatch.setattr(limits, "snapshot_retry_seconds", 0.01)
    tries: list[int] = []
    real = housekeeping.build_apart

    async def build(directory: str, server: str, topology: TopologyFile, task: Task) -> str:
        tries.append(task.upto)
        if len(tries) == 1:
            raise NoDescriptorError("no file descriptor for a process")
        if len(tries) == 2:
            # As if its file was damaged.
            draft = await real(directory, server, topology, task)
            Path(draft).write_bytes(Path(draft).read_bytes()[:-1])
            return draft
        return await real(directory, server, topology, task)

    async def play(runtime: ServerRuntime) -> None:
        monkeypatch.setattr(housekeeping, "build_apart", build)
        with monkeypatch.context() as patch:
            patch.setattr(AgentServer, "snapshot", lambda self: pytest.fail("the server was stalled"))
            async with runtime.bus("alice") as bus:
                await bus.send("bob@s1", Do(what="x"))
            runtime.core.upkeep.snapshot_bytes = runtime.core.upkeep.logged_bytes - 1
            while not runtime.store.figures.snapshot_upto:
                await asyncio.sleep(0.01)
        assert len(tries) == 3
        assert not [name for name in os.listdir(runtime.data) if name.endswith(".new")]

    _played(play, tmp_path)


def test_a_builder_that_is_killed_or_stopped_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A real process. In the end it is stopped while the server stops, and the server does not wait for it."""
    monkeypatch.setattr(limits, "snapshot_retry_seconds", 0.01)
    real, start = housekeeping.build_apart, asyncio.create_subprocess_exec
    numbers: list[int] = []
    ends = [(signal.SIGKILL, 60.0), (signal.SIGSTOP, 0.2), (signal.SIGCONT, 60.0), (signal.SIGSTOP, 60.0)]
    """The signal to each process, and how long it may take."""

    async def build(directory: str, server: str, topology: TopologyFile, task: Task) -> str:
        async def started(*command: str, **options: Any) -> asyncio.subprocess.Process:
            process = await start(*command, **options)
            numbers.append(process.pid)
            end, seconds = ends[len(numbers) - 1]
            process.send_signal(end)
            monkeypatch.setattr(limits, "snapshot_build_seconds_max", seconds)
            if end != signal.SIGCONT:
                Path(draft_path(directory, task.upto, str(process.pid))).write_bytes(b"half of a snap")
            return process

        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "create_subprocess_exec", started)
            return await real(directory, server, topology, task)

    async def play(runtime: ServerRuntime) -> None:
        monkeypatch.setattr(housekeeping, "build_apart", build)
        upkeep = runtime.core.upkeep
        for count in (3, 4):
            async with runtime.bus("alice") as bus:
                await bus.send("bob@s1", Do(what="x"))
            upkeep.snapshot_bytes = upkeep.logged_bytes - 1
            while len(numbers) < count or (count == 3 and not runtime.store.figures.snapshot_upto):
                await asyncio.sleep(0.01)

    with caplog.at_level("INFO", "antecede"):
        _played(play, tmp_path)
    reasons = [getattr(one, "fields", {}).get("reason") for one in caplog.records if one.message == "snapshot-failed"]
    assert reasons == [
        "the process that builds the snapshot ended: signal SIGKILL",
        "the process that builds the snapshot was ended after 0.2 s: too slow",
    ]
    assert not list((tmp_path / "s1").glob("*.new"))
    for number in numbers:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


def test_a_server_that_no_process_can_build_snapshots_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "snapshot_retry_seconds", 0.01)
    tries: list[int] = []

    async def build(directory: str, server: str, topology: TopologyFile, task: Task) -> str:
        tries.append(task.upto)
        raise StoreError("killed")

    async def play(runtime: ServerRuntime) -> None:
        monkeypatch.setattr(housekeeping, "build_apart", build)
        async with runtime.bus("alice") as bus:
            await bus.send("bob@s1", Do(what="x"))
        runtime.core.upkeep.snapshot_bytes = runtime.core.upkeep.logged_bytes - 1
        while not runtime.store.figures.snapshot_upto:
            await asyncio.sleep(0.01)
        assert len(tries) == limits.snapshot_builds_max

    _played(play, tmp_path)


def test_who_does_not_read_is_not_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server has to say waits up to its bound; it does not take more questions to which the answers would wait,
    too. Once it is read all is answered."""
    monkeypatch.setattr(limits, "write_buffer_bytes_max", 10_000)

    async def play(runtime: ServerRuntime) -> None:
        address = runtime.topology.servers["s1"]
        together, frames = 1_000, 40
        small = socket.socket()
        # What the operating system takes for a program that does not read is to be little.
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        small.connect((address.host, address.port))
        reader, writer = await asyncio.open_connection(sock=small)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(wire.frame([wire.ClientHello("", "alice")]))
        for _ in range(frames):
            writer.write(wire.frame([wire.Publish(1, ("nobody" * 30,), "Word", [b""])] * together))
        (visitor,) = [one async for one in _visitors(runtime)]
        connection: Any = visitor.connection
        while not connection.full:
            await asyncio.sleep(0.01)
        buffered = -1
        while buffered != connection._transport.get_write_buffer_size():
            buffered = connection._transport.get_write_buffer_size()
            await asyncio.sleep(0.2)
        assert connection._reading_paused
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        unframer, answers = wire.Unframer(), 0
        unframer.trust()
        while answers < together * frames:
            answers += sum(isinstance(part, wire.Refused) for part in unframer.feed(await reader.read(65_536)))
        writer.close()

    _played(play)


async def _visitors(runtime: ServerRuntime) -> Any:
    while not runtime.core.entry.connections:
        await asyncio.sleep(0.01)
    for visitor in runtime.core.entry.connections:
        yield visitor


def test_a_step_that_fails_ends_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has taken half a step is not gone on with, nor kept: the log is, and has what was accepted."""
    told: list[dict[str, Any]] = []

    async def play(runtime: ServerRuntime) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        bus = await runtime.bus("alice").__aenter__()
        await bus.send("bob@s1", Do(what="accepted"))
        apply = runtime.machine._apply_many

        def broken(item: Any) -> None:
            apply(item)
            raise ZeroDivisionError("half way")

        monkeypatch.setattr(runtime.machine, "_apply_many", broken)
        ticket = bus.send("bob@s1", Do(what="lost"))
        bus.send("bob@s1", Do(what="lost"))
        assert isinstance(await runtime.failed, BrokenStepError)
        monkeypatch.setattr(limits, "snapshot_log_bytes", -1)
        await asyncio.sleep(0.3)
        assert not ticket.settled
        assert runtime.operations.status()["trouble"] == "a step failed: ZeroDivisionError: half way"
        await bus.close()

    topology = _topology()
    monkeypatch.setitem(globals(), "_topology", lambda: topology)
    _played(play, tmp_path)
    assert [type(context["exception"]) for context in told] == [ZeroDivisionError]
    assert not list((tmp_path / "s1").glob("snapshot-*"))

    async def after(runtime: ServerRuntime) -> None:
        assert [letter.body for letter in runtime.machine.engine.mailboxes["bob@s1"]] == [b"\x81\xa4what\xa8accepted"]

    _played(after, tmp_path)
