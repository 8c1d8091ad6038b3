"""The live runtime in one process: recovery, durability before anything leaves, overload, a full and a failing disk."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from antecede import limits
from antecede.engine import Notification
from antecede.errors import StoreError, StoreFailedError, StoreFullError, TopologyError, UsageError
from antecede.live import ServerRuntime
from antecede.live.client.line import connect
from antecede.topology import TopologyFile, parse_topology
from helpers.overload import fill, refused
from helpers.ports import free_ports
from helpers.summing import Add, Sum, Tell, Total


def _topology(servers: int = 2, domain: str = "A") -> TopologyFile:
    names = [f"s{number + 1}" for number in range(servers)]
    lines = [f'{name} = "tcp://127.0.0.1:{port}"' for name, port in zip(names, free_ports(servers), strict=True)]
    members = ", ".join(f'"{name}"' for name in names)
    text = ["[servers]", *lines, "[domains]", f"{domain} = {{ servers = [{members}] }}", "[agents]"]
    return parse_topology("\n".join([*text, f'sum = {{ server = "{names[-1]}", class = "nowhere:Sum" }}']))


class World:
    """Servers of one topology in this event loop."""

    def __init__(self, folder: Path | None, servers: int = 2) -> None:
        self.topology = _topology(servers)
        self.folder = folder
        self.running: dict[str, ServerRuntime] = {}

    async def start(self, *servers: str) -> None:
        last = list(self.topology.servers)[-1]
        for server in servers or self.topology.servers:
            data = None if self.folder is None else str(self.folder / server)
            durability = "memory" if self.folder is None else "os"
            agents = {"sum": Sum} if server == last else {}
            self.running[server] = ServerRuntime(self.topology, server, data, durability=durability, agents=agents)
            await self.running[server].start()

    async def stop(self) -> None:
        for runtime in self.running.values():
            await runtime.stop()


def played(play: Callable[[World], Awaitable[None]], folder: Path | None = None, servers: int = 2) -> None:
    async def main() -> None:
        world = World(folder, servers)
        await world.start()
        try:
            async with asyncio.timeout(20):
                await play(world)
        finally:
            await world.stop()

    asyncio.run(main())


@pytest.mark.parametrize("durable", [True, False])
def test_an_exchange_in_one_process(durable: bool, tmp_path: Path) -> None:
    async def play(world: World) -> None:
        async with world.running["s1"].bus("alice") as bus:
            for amount in range(1000):
                bus.send("sum", Add(amount=amount))
            await bus.drain()
            assert (await bus.ask("sum", Tell(), expect=Total)).amount == 499_500
            with pytest.raises(UsageError, match="unknown agent"):
                await bus.send("nobody", Tell())
            await bus.send("sum", Add(amount=1))
            assert (await bus.ask("sum", Tell(), expect=Total)).amount == 499_501
        status = world.running["s2"].operations.status()
        assert status["health"] == "ok"
        assert status["reactions"] == 1003

    played(play, tmp_path if durable else None)


@pytest.mark.parametrize("snapshot", [True, False])
def test_recovery(snapshot: bool, tmp_path: Path) -> None:
    """With and without a snapshot, the log brings everything back, client numbers too."""

    async def play(world: World) -> None:
        async with world.running["s1"].bus("alice") as bus:
            await bus.send("sum", Add(amount=5))
            await bus.ask("sum", Tell())
        for server in list(world.running):
            if snapshot:
                await world.running[server].stop()
            else:
                await _abandon(world.running[server])
        await world.start()
        assert world.running["s1"].machine.clients["alice"] == 2
        async with world.running["s1"].bus("alice") as bus:
            await bus.send("sum", Add(amount=6))
            assert (await bus.ask("sum", Tell(), expect=Total)).amount == 11

    played(play, tmp_path)


async def _abandon(runtime: ServerRuntime) -> None:
    """As if killed: the log ends where it ends, no snapshot."""
    runtime.core.leave("killed")
    runtime._cancel()
    assert runtime._listener is not None
    runtime._listener.close()
    runtime.house.end()
    await asyncio.sleep(0.01)
    runtime._ended = True
    runtime.store.close()


def test_nothing_leaves_before_it_is_durable(tmp_path: Path) -> None:
    """Neither a client nor a peer is told anything before the log says that it is durable."""

    async def play(world: World) -> None:
        runtime, far = world.running["s1"], world.running["s2"]
        async with runtime.bus("alice") as bus:
            await bus.ask("sum", Tell())
            reactions, durable = far.driver.retries.done, runtime.driver.durable
            commit_here = runtime.store.commit_here
            runtime.driver.durable = lambda upto: None  # type: ignore[method-assign]
            runtime.store.commit_here = lambda: None  # type: ignore[method-assign]
            ticket = bus.send("sum", Add(amount=1))
            await asyncio.sleep(0.1)
            runtime.driver.gate.open(runtime.driver.gate.durable)
            await asyncio.sleep(0.1)
            assert not ticket.settled
            assert far.driver.retries.done == reactions
            runtime.driver.durable = durable  # type: ignore[method-assign]
            runtime.store.commit_here = commit_here  # type: ignore[method-assign]
            runtime.store.commit_soon()
            await ticket
            assert (await bus.ask("sum", Tell(), expect=Total)).amount == 1

    played(play, tmp_path)


def test_nothing_leaves_before_the_loop_itself_has_made_it_durable(tmp_path: Path) -> None:
    """When nothing else is going on the log is committed in the event loop's thread; first that, then all else."""

    async def play(world: World) -> None:
        runtime = world.running["s1"]
        async with runtime.bus("alice") as bus:
            await bus.ask("sum", Tell())
            commit, seen = runtime.store.commit_here, []

            def commit_here() -> None:
                seen.append((ticket.settled, runtime.core.peering.peers["s2"].newest.get("A"), runtime.store.durable))
                commit()
                seen.append((ticket.settled, runtime.core.peering.peers["s2"].newest.get("A"), runtime.store.durable))

            await asyncio.sleep(0.05)
            runtime.store.commit_here = commit_here  # type: ignore[method-assign]
            ticket = bus.send("sum", Add(amount=1))
            await ticket
            (settled, frames, durable), (settled_after, frames_after, durable_after) = seen[:2]
            assert (settled, settled_after, frames) == (False, False, frames_after)
            assert durable_after == runtime.store.last > durable
            assert runtime.core.peering.peers["s2"].newest["A"] == (frames or 0) + 1
            assert (await bus.ask("sum", Tell(), expect=Total)).amount == 1

    played(play, tmp_path)


def test_a_client_that_handled_what_it_was_not_given(tmp_path: Path) -> None:
    async def play(world: World) -> None:
        runtime = world.running["s1"]
        async with runtime.bus("alice") as alice, runtime.bus("bob") as bob:
            bob.on(Add, lambda add: None)
            await alice.send("bob@s1", Tell())
            bob._line.done(["nonsense"], "")
            await alice.send("sum", Add(amount=2))
            assert (await alice.ask("sum", Tell(), expect=Total)).amount == 2

    played(play, tmp_path)


def test_publishes_wait_for_the_end_of_an_overload(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(world: World) -> None:
        runtime = world.running["s1"]
        async with runtime.bus("alice") as bus:
            await bus.send("sum", Add(amount=1))
            monkeypatch.setattr(limits, "backlog_frames_max", -1)
            runtime.marks.watch(False)
            waiting = [bus.send("sum", Add(amount=2)), bus.send(["sum"], Add(amount=4))]
            assert await refused(bus, waiting[0])
            assert not any(ticket.settled for ticket in waiting)
            assert runtime.operations.status()["health"] == "overloaded"
            monkeypatch.setattr(limits, "backlog_frames_max", 100)
            runtime.marks.watch(False)
            await bus.drain()
            assert (await bus.ask("sum", Tell(), expect=Total)).amount == 7

    played(play)


def test_full_mailboxes_hold_the_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose client is away reads no more from its peers, and goes on when the client has read."""

    async def play(world: World) -> None:
        far = world.running["s2"]
        async with world.running["s1"].bus("alice") as bus:
            await bus.send("bob@s2", Add(amount=0))
            while not far.machine.engine.mailboxes:
                await asyncio.sleep(0.01)
            monkeypatch.setattr(limits, "backlog_letters_max", 0.5)
            monkeypatch.setattr(limits, "mailbox_clients_share_max", 100)
            far.marks.watch(False)
            await bus.send("bob@s2", Add(amount=1))
            await asyncio.sleep(0.2)
            assert len(far.machine.engine.mailboxes["bob@s2"]) == 1, "the second was not read"
            heard: list[int] = []
            async with far.bus("bob") as bob:
                bob.on(Add, lambda add: heard.append(add.amount))
                while len(heard) < 2:
                    await asyncio.sleep(0.01)
            assert heard == [0, 1]

    played(play)


def test_marks_are_looked_at_again_when_much_was_taken_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However short the time: here the server never looks of its own accord."""
    monkeypatch.setattr("antecede.live.server.LOOK_SECONDS", 3_600)
    monkeypatch.setattr(limits, "backlog_letter_bytes_max", 100_000)
    monkeypatch.setattr(limits, "backlog_unwatched_bytes_max", 50_000)

    async def play(world: World) -> None:
        runtime = world.running["s1"]
        async with runtime.bus("alice") as bus:
            sent, _ = await fill(bus, lambda: bus.post("bob@s1", "Text", {"text": "x" * 10_000}))
            # It looks above 50,000 bytes, and again above 100,000: only then is more there than the bound allows.
            assert 10 <= sent <= 16
            assert runtime.machine.backlog().letter_bytes > 100_000

    played(play, tmp_path)


@pytest.mark.parametrize("most", [4, 5, 9])
def test_a_client_can_read_all_letters_with_many_destinations(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client accepts a limited number of destinations in one train, so a batch of letters must not have more."""
    monkeypatch.setattr(limits, "train_copies_max", most)

    async def play(world: World) -> None:
        server = str(world.topology.servers["s1"])
        async with connect(server, name="bob"):
            pass
        async with connect(server, name="alice") as alice:
            for amount in range(12):
                alice.send(["bob@s1", "c1@s1", "c2@s1"], Add(amount=amount))
            alice.send([f"c{number}@s1" for number in range(most)] + ["bob@s1"], Add(amount=12))
            alice.send(["bob@s1"], Add(amount=13))
            await alice.drain()
        got: list[int] = []
        all_ = asyncio.Event()

        def on_add(add: Add) -> None:
            got.append(add.amount)
            if len(got) == 14:
                all_.set()

        async with connect(server, name="bob") as bob:
            bob.on(Add, on_add)
            await all_.wait()
        assert got == list(range(14))

    played(play, servers=1)


@pytest.mark.parametrize("on_disk", [True, False])
def test_marks_are_looked_at_again_when_many_letters_came(
    on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A multicast to many clients has few bytes in the log, and without a log it has none."""
    monkeypatch.setattr("antecede.live.server.LOOK_SECONDS", 3_600)
    monkeypatch.setattr(limits, "backlog_letters_max", 1_000)
    monkeypatch.setattr(limits, "backlog_unwatched_letters_max", 200)
    to = [f"c{number}@s1" for number in range(100)]

    async def play(world: World) -> None:
        runtime = world.running["s1"]
        async with runtime.bus("alice") as bus:
            sent, _ = await fill(bus, lambda: bus.send(to, Add(amount=1)))
            # It looks when more than 200 letters have come, that is, at 300, 600, 900 and 1,200 letters.
            assert sent == 12

    played(play, tmp_path if on_disk else None)


def test_dead_letters_have_a_bound_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """They never keep clients out. Above their bound the oldest are dropped."""

    async def play(world: World) -> None:
        runtime = world.running["s2"]
        monkeypatch.setattr(limits, "backlog_letters_max", 3)
        monkeypatch.setattr(limits, "dead_letters_max", 4)
        async with runtime.bus("alice") as bus:
            for number in range(6):
                await bus.send("sum", Total(amount=1))
                while runtime.machine.engine.deaths <= number:
                    await asyncio.sleep(0.01)
            while len(runtime.machine.engine.dead) > 4:
                await asyncio.sleep(0.01)
            runtime.marks.watch(False)
            await bus.send("sum", Add(amount=4))
            assert (await bus.ask("sum", Tell(), expect=Total)).amount == 4
        assert [dead.number for dead in runtime.machine.engine.dead.values()] == [3, 4, 5, 6]
        assert runtime.operations.status()["dead_dropped"] == 2

    played(play)


def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    async def play(world: World) -> None:
        runtime = world.running["s1"]
        append = runtime.store.append
        refusals = 3

        def full(record: bytes, *, wake: bool = True) -> int:
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise StoreFullError("no room")
            return append(record, wake=wake)

        async with runtime.bus("alice") as bus:
            runtime.store.append = full  # type: ignore[method-assign]
            ticket = bus.send("sum", Add(amount=3))
            while refusals == 3:
                await asyncio.sleep(0)
            assert runtime.operations.status()["trouble"] == "no room"
            assert not ticket.settled
            await ticket
            assert runtime.operations.status()["health"] == "ok"
            assert (await bus.ask("sum", Tell(), expect=Total)).amount == 3

    played(play, tmp_path)


def test_a_failed_disk_ends_the_server(tmp_path: Path) -> None:
    async def play(world: World) -> None:
        runtime = world.running["s1"]

        def broken(record: bytes, *, wake: bool = True) -> int:
            raise StoreFailedError("the disk is gone")

        bus = await runtime.bus("alice").__aenter__()
        runtime.store.append = broken  # type: ignore[method-assign]
        ticket = bus.send("sum", Add(amount=3))
        assert str(await runtime.failed) == "the disk is gone"
        assert not ticket.settled, "what is not durable is not accepted"
        await bus.close()

    played(play, tmp_path)


def test_another_topology_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        ports = _topology(1)
        runtime = ServerRuntime(ports, "s1", str(tmp_path / "s1"), durability="os", agents={})
        await runtime.start()
        await runtime.stop()
        for other in (_topology(1, "B"), _topology(1)):
            with pytest.raises(TopologyError, match="differs from the topology in force at server s1"):
                ServerRuntime(other, "s1", str(tmp_path / "s1"), durability="os", agents={})
        with pytest.raises(StoreError, match="belongs to server s1, not to s2"):
            ServerRuntime(_topology(2), "s2", str(tmp_path / "s1"), durability="os", agents={})
        ServerRuntime(ports, "s1", str(tmp_path / "s1"), durability="os", agents={}).store.close()

    asyncio.run(main())


def test_large_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notifications at the bound go through; a step that is longer than a record of the log is kept in pieces."""
    # A slow disk must not make the server refuse the third.
    monkeypatch.setattr(limits, "store_pending_bytes_max", 1 << 30)

    class Blob(Notification):
        data: bytes

    async def play(world: World) -> None:
        heard: list[int] = []
        address = str(world.topology.servers["s1"])
        async with connect(address, name="alice") as alice, world.running["s2"].bus("bob") as bob:
            for _ in range(3):
                alice.send("bob@s2", Blob(data=b"x" * (limits.letter_bytes_max - 64)))
            await alice.drain()
            bob.on(Blob, lambda blob: heard.append(len(blob.data)))
            while len(heard) < 3:
                await asyncio.sleep(0.01)
        assert heard == [limits.letter_bytes_max - 64] * 3

    played(play, tmp_path)


def test_an_agent_that_is_missing(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(Exception, match="cannot import nowhere"):
            ServerRuntime(_topology(1), "s1", str(tmp_path / "s1"))
        with pytest.raises(UsageError, match="has no server s9"):
            ServerRuntime(_topology(1), "s9", str(tmp_path / "s1"))

    asyncio.run(main())


def test_a_busy_port(tmp_path: Path) -> None:
    async def play(world: World) -> None:
        second = ServerRuntime(world.topology, "s1", str(tmp_path / "other"), durability="os", agents={})
        with pytest.raises(UsageError, match="cannot listen on"):
            await second.start()

    played(play, None, servers=1)


def test_a_cancelled_dial_is_not_taken_for_a_failed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stops while it dials in vain comes to an end, whatever the dialing makes of a cancellation."""

    async def stubborn(*_: object) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ConnectionRefusedError from None

    async def main() -> None:
        runtime = ServerRuntime(_topology(), "s1", durability="memory", agents={})
        await runtime.start()
        await asyncio.sleep(0.01)
        [dialer] = runtime._dialing
        await runtime.stop()
        async with asyncio.timeout(5):
            await asyncio.wait([dialer])

    monkeypatch.setattr("antecede.live.server.dial", stubborn)
    asyncio.run(main())


def test_a_dial_that_fails_unexpectedly_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [0]

    async def failing(*_: object) -> None:
        calls[0] += 1
        raise ValueError("nobody expects this")

    async def main() -> None:
        runtime = ServerRuntime(_topology(), "s1", durability="memory", agents={})
        await runtime.start()
        async with asyncio.timeout(20):
            while calls[0] < 3:
                await asyncio.sleep(0.02)
        await runtime.stop()

    monkeypatch.setattr("antecede.live.server.dial", failing)
    asyncio.run(main())
