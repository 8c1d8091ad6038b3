"""Replicated objects in one process: called by clients, with every refusal; the log, and code that was changed."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antecede import (
    Agent,
    CallTimeoutError,
    Context,
    Notification,
    OperationError,
    RefusedError,
    ReplicatedObject,
    Returned,
    ServerRuntime,
    UsageError,
    limits,
    operation,
    parse_topology,
)
from antecede.errors import AgentError, ObjectError, StoreError, TopologyError
from antecede.live.application import plan_of
from antecede.objects import unfit
from antecede.recording.converting import convert
from antecede.recording.segments import begin, gathered
from antecede.server import AgentServer, Published
from antecede.store import Sizes, open_log
from antecede.trace import read_events, verify
from helpers.ports import free_ports


class Till(ReplicatedObject):
    coins: int = 0

    @operation(conflicts_with=["take", "count"])
    def put(self, coins: int, times: int = 1) -> None:
        self.coins += coins * times

    @operation(conflicts_with=["take", "count"])
    def take(self, coins: int) -> int:
        if coins > self.coins:
            raise ValueError("too few")
        self.coins -= coins
        return self.coins

    @operation
    def count(self) -> int:
        return self.coins


class Fed(Till):
    """The same, but for what it does: as if somebody had changed the code."""

    @operation(conflicts_with=["take", "count"])
    def put(self, coins: int, times: int = 1) -> str:
        self.coins += coins * times
        raise ValueError("not any more")


class Poke(Notification):
    pass


class Robot(Agent):
    heard: tuple[str, ...] = ()

    def on_poke(self, poke: Poke, ctx: Context) -> None:
        ctx.call("till", "put", 5, reply="on_put")
        ctx.call("till", "take", 1_000, reply="on_taken")
        ctx.call("till", "put", 1)

    def on_put(self, returned: Returned, ctx: Context) -> None:
        self.heard += (f"{returned.object}.{returned.operation} {returned.ok} {returned.reason}",)

    def on_taken(self, returned: "Taken", ctx: Context) -> None:
        self.heard += (f"{returned.operation} {returned.reason}",)


class Taken(Returned):
    """What the robot gets for another operation."""


def _text(order: str = "objects", robot: bool = False) -> str:
    ports = free_ports(2)
    return f"""
[servers]
s1 = "tcp://127.0.0.1:{ports[0]}"
s2 = "tcp://127.0.0.1:{ports[1]}"
[domains]
A = {{ servers = ["s1", "s2"], order = "{order}" }}
[agents]
till = {{ servers = ["s1", "s2"], class = "shop:Till" }}
""" + ('robot = { server = "s2", class = "shop:Robot" }\n' if robot else "")


def _play(
    tmp_path: Path, play: Callable[[list[ServerRuntime]], Awaitable[None]], text: str = "", **classes: Any
) -> None:
    async def run() -> None:
        topology = parse_topology(text or _text())
        given = {"till": Till, **classes}
        runtimes = [ServerRuntime(topology, name, str(tmp_path / name), agents=given) for name in topology.servers]
        for runtime in runtimes:
            await runtime.start()
        try:
            async with asyncio.timeout(30):
                await play(runtimes)
        finally:
            for runtime in runtimes:
                await runtime.stop(0.1)

    asyncio.run(run())


def test_operations_are_awaited(tmp_path: Path) -> None:
    async def play(servers: list[ServerRuntime]) -> None:
        async with servers[0].bus("al") as al, servers[1].bus("bo") as bo:
            till = al.object("till", Till)
            assert await till.put(3) is None
            await till.put(2, times=2)
            assert await bo.object("till").count() == 7
            await asyncio.gather(*(bus.object("till").put(1) for bus in (al, bo) for _ in range(20)))
            assert await till.take(coins=7) == 40
        # Who called is answered when it is decided; the others hear of it a little later.
        for one in servers:
            while one.machine.calls.site is None or one.machine.calls.site.state_of("till") != {"coins": 40}:
                await asyncio.sleep(0.01)

    _play(tmp_path, play)


def test_what_cannot_be_called_is_said(tmp_path: Path) -> None:
    async def play(servers: list[ServerRuntime]) -> None:
        async with servers[0].bus("al") as bus:
            till = bus.object("till", Till)
            with pytest.raises(OperationError, match=r"till\.take: ValueError: too few"):
                await till.take(1)
            with pytest.raises(OperationError, match=r"till\.put: TypeError: put: Expected `int`, got `str`"):
                await till.put("1")
            with pytest.raises(AttributeError, match=r"Till has no operation 'steal' \(it has: count, put, take\)"):
                _ = till.steal
            with pytest.raises(UsageError, match="missing a required argument: 'coins'"):
                await till.put()
            with pytest.raises(UsageError, match="not a plain value"):
                await till.put(object())
            with pytest.raises(OperationError, match=r"Till has no operation 'steal' \(it has: count"):
                await bus.object("till").steal()
            with pytest.raises(UsageError, match="expected positional arguments only"):
                await bus.object("till").put(coins=1)
            with pytest.raises(UsageError, match="unknown object 'safe'"):
                await bus.object("safe").open()
            with pytest.raises(UsageError, match="till is a replicated object: call one of its operations"):
                await bus.send("till", Poke())
            with pytest.raises(UsageError, match=r"till\(\) is a replicated object"):
                await bus.send(["till()", "other@s1"], Poke())
            with pytest.raises(UsageError, match="unreadable call"):
                await bus.post("till()", "put", {"coins": 1})
            with pytest.raises(UsageError, match="timeout of 0 s"):
                bus.object("till", timeout=0)
            assert await till.count() == 0
        with pytest.raises(RefusedError, match="till is the name of a replicated object"):
            async with servers[0].bus("till"):
                pass
        with pytest.raises(UsageError, match="cannot be reset, because the replicas of its objects would differ"):
            servers[0].operations.forget("A", "1")

    _play(tmp_path, play)


def test_a_call_whose_time_is_up_is_undone(tmp_path: Path) -> None:
    async def play(servers: list[ServerRuntime]) -> None:
        async with servers[0].bus("al") as bus:
            till = bus.object("till", Till, timeout=10.0)
            await till.put(1)
            await servers[1].stop(0.1)
            with pytest.raises(TimeoutError, match=r"put: not finished at every replica within 0\.2 s, and undone"):
                await till.within(0.2).put(1)
            with pytest.raises(CallTimeoutError):
                await till.within(0.2).count()
            topology = servers[1].topology
            servers[1] = ServerRuntime(topology, "s2", str(tmp_path / "s2"), agents={"till": Till})
            await servers[1].start()
            assert await till.count() == 1

    _play(tmp_path, play)


def test_calls_that_have_not_ended_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "calls_open_max", 12)

    async def play(servers: list[ServerRuntime]) -> None:
        async with servers[0].bus("al") as bus:
            till = bus.object("till", Till, timeout=0.5)
            await till.put(1)
            await servers[1].stop(0.1)
            waiting = [asyncio.ensure_future(till.put(1)) for _ in range(12)]
            while servers[0].machine.calls.open < 12:
                await asyncio.sleep(0.01)
            late = asyncio.ensure_future(till.put(1))
            while not bus.trouble:
                await asyncio.sleep(0.01)
            assert "12 unfinished calls" in bus.trouble
            for one in await asyncio.gather(*waiting, late, return_exceptions=True):
                assert isinstance(one, CallTimeoutError | TimeoutError)
            with pytest.raises(CallTimeoutError):
                await till.put(1)

    _play(tmp_path, play)


def test_agents_call_and_hear_later(tmp_path: Path) -> None:
    async def play(servers: list[ServerRuntime]) -> None:
        async with servers[0].bus("al") as bus:
            await bus.send("robot", Poke())
            till = bus.object("till", Till)
            while await till.count() < 6 or servers[1].machine.engine.asks or servers[1].machine.engine.mailboxes:
                await asyncio.sleep(0.01)
        state = msgspec.msgpack.decode(servers[1].machine.engine.states["robot"], type=Robot)
        assert sorted(state.heard) == ["take ValueError: too few", "till.put True "]

    _play(tmp_path, play, _text(robot=True), robot=Robot)


def _crashed(tmp_path: Path, text: str) -> None:
    """Two servers that computed something and ended without a snapshot."""

    async def run() -> None:
        topology = parse_topology(text)
        names = list(topology.servers)
        runtimes = [ServerRuntime(topology, name, str(tmp_path / name), agents={"till": Till}) for name in names]
        for runtime in runtimes:
            await runtime.start()
        async with runtimes[0].bus("al") as bus:
            await bus.object("till", Till).put(4)
        for runtime in runtimes:
            await runtime.give_up("a test")
            await asyncio.to_thread(runtime.store.close)

    asyncio.run(run())


def test_the_log_gives_the_state_again_and_code_that_was_changed_is_found(tmp_path: Path) -> None:
    text = _text()
    _crashed(tmp_path, text)

    async def again(kind: type[Till]) -> dict[str, Any]:
        runtime = ServerRuntime(parse_topology(text), "s1", str(tmp_path / "s1"), agents={"till": kind})
        await runtime.start()
        site = runtime.machine.calls.site
        await runtime.stop(0.1)
        assert site is not None
        return site.state_of("till")

    with pytest.raises(StoreError, match="start the server with the previous code"):
        asyncio.run(again(Fed))
    assert asyncio.run(again(Till)) == {"coins": 4}
    # It stopped well, with a snapshot: from here on the code may be another.
    assert asyncio.run(again(Fed)) == {"coins": 4}


def test_topologies_that_cannot_be_run_are_refused_by_name() -> None:
    with pytest.raises(TopologyError, match="object till: domain A has order pruned"):
        plan_of(parse_topology(_text("pruned")), {"till": Till})
    with pytest.raises(TopologyError, match="the objects' classes declare the conflicts"):
        plan_of(parse_topology(_text("objects:conflicts=none")), {"till": Till})
    with pytest.raises(AgentError, match="cannot import shop"):
        plan_of(parse_topology(_text()))

    class Slow(ReplicatedObject):
        @operation
        async def wait(self) -> None:
            pass

    with pytest.raises(TopologyError, match=r"Slow\.wait is asynchronous"):
        plan_of(parse_topology(_text()), {"till": Slow})
    with pytest.raises(ObjectError, match="no such operation"):

        class Wrong(ReplicatedObject):
            @operation(conflicts_with=["nothing"])
            def do(self) -> None:
                pass


def test_converted_segments_say_which_operations_conflict(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    alone = parse_topology(_text().replace('["s1", "s2"]', '["s1"]'))
    directory = str(tmp_path / "s1")
    sizes = Sizes(segment_bytes=65_536, group_bytes_max=16_384, pending_bytes_max=32_768, log_bytes_max=1 << 24)
    with open_log(directory, sizes=sizes) as log:
        machine = AgentServer("s1", plan_of(alone, {"till": Till}), log.incarnation)
        log.append(machine.begin(alone.epoch))
        for number in range(1, 301):
            body = msgspec.msgpack.encode((1_000, [1]))
            step = machine.step([Published("al", number, ("till()",), "put", body, True)], 0.0, number)
            assert step.record is not None
            log.wait(log.append(step.record))
    begin(directory)
    assert convert(directory) > 0
    table = {"till@s1": [["count", "put"], ["count", "take"], ["put", "take"], ["take", "take"]]}
    with gathered([directory]) as paths:
        for path in paths:
            assert [one.conflicts for one in read_events([path])[1]] == [table], path
        report = verify(paths, ("significant",))
    assert report["orders"]["significant"]["holds"]
    assert report["orders"]["significant"]["unlisted"] == [], "that somebody called is no operation of an object"
    assert report["complete"]


@pytest.mark.parametrize("body", [b"", b"\x93", msgspec.msgpack.encode((0, [])), msgspec.msgpack.encode((2**40, []))])
def test_bodies_that_are_no_calls(body: bytes) -> None:
    assert unfit(body) != ""


@pytest.mark.parametrize(("depth", "fits"), [(limits.call_depth_max, True), (limits.call_depth_max + 1, False)])
def test_arguments_are_nested_only_so_deeply(depth: int, fits: bool) -> None:
    nested: Any = 1
    for _ in range(depth - 1):
        nested = [nested]
    assert (unfit(msgspec.msgpack.encode((1, [nested]))) == "") == fits
