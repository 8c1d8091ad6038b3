"""``antecede.testing``: users' agents in the simulated world; the guide's example runs as printed."""

import random
import re
import traceback
from pathlib import Path
from typing import Any

import pytest

from antecede import Agent, Context, Notification
from antecede.channel import Letter
from antecede.errors import AgentError, AntecedeError, TopologyError, UsageError
from antecede.testing import ROUGH, Faults, World
from antecede.trace import DELIVER, verify

_guide = Path(__file__).resolve().parents[2] / "docs" / "guide" / "testing.md"


class Add(Notification):
    count: int


class Sum(Notification):
    total: int


class Spawn(Notification):
    name: str


class Alarm(Notification):
    pass


class Adder(Agent):
    total: int = 0
    rung: int = 0

    def on_add(self, add: Add, ctx: Context) -> None:
        if add.count < 0:
            raise ValueError("less than nothing")
        self.total += add.count
        ctx.reply(Sum(total=self.total))

    def on_spawn(self, spawn: Spawn, ctx: Context) -> None:
        child = ctx.create(spawn.name, Adder(total=100))
        ctx.send(child, Add(count=1))
        ctx.timer(60, Alarm())

    def on_alarm(self, alarm: Alarm, ctx: Context) -> None:
        self.rung += 1


class Thinker(Agent):
    thoughts: int = 0

    async def on_add(self, add: Add, ctx: Context) -> None:
        self.thoughts += add.count


_topology = """
[servers]
s1 = "tcp://127.0.0.1:7101"
s2 = "tcp://127.0.0.1:7102"
s3 = "tcp://127.0.0.1:7103"
[domains]
A = { servers = ["s1", "s2"], order = "pruned" }
D = { servers = ["s2", "s3"], order = "matrix" }
[agents]
adder = { server = "s3", class = "nowhere:Adder" }
thinker = { server = "s1", class = "nowhere:Thinker" }
"""


def _world(**given: Any) -> World:
    return World(_topology, agents={"adder": Adder, "thinker": Thinker}, **given)


def test_the_guide_names_every_fault() -> None:
    table = _guide.read_text().split("| fault | kind | meaning |")[1].split("\n\n")[0]
    named = [name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted([*named, "seconds"]) == sorted(Faults.__struct_fields__)


def test_states_replies_and_traces(tmp_path: Path) -> None:
    world = _world()
    assert world.state("adder").total == 0
    for _ in range(3):
        world.send("bob@s1", ["adder", "thinker"], Add(count=2))
    world.run()
    assert world.state("adder").total == 6
    assert world.state("thinker").thoughts == 6
    assert [one.total for one in world.inbox("bob@s1", Sum)] == [2, 4, 6]
    assert world.inbox("bob@s1") == ["Sum"] * 3
    world.check()
    world.write_trace(tmp_path / "run.jsonl")
    assert verify([str(tmp_path / "run.jsonl")])["orders"]["causal"]["holds"]
    assert sum(row.kind == DELIVER for row in world.trace()) == 9


@pytest.mark.parametrize("power", [True, False])
def test_faults_by_hand(power: bool) -> None:
    world = _world(seed=3)
    for step in range(30):
        world.send("bob@s1", "adder", Add(count=1))
        if step % 5 == 2:
            world.crash(f"s{step % 3 + 1}", power=power)
        if step % 7 == 3:
            world.cut("s1", "s2", 0.05)
        if step % 9 == 4:
            world.snapshot("s2")
        world.run(seconds=0.01)
        world.assert_causal()
    world.run()
    assert world.state("adder").total == 30
    world.check()


def test_agents_that_are_created_survive_and_timers_ring_in_virtual_time() -> None:
    world = _world()
    world.send("bob@s1", "adder", Spawn(name="child"))
    world.run(seconds=1)
    world.crash("s3")
    world.set_clock("s3", -3600)
    world.run()
    assert world.state("child@s3").total == 101
    assert world.state("adder").rung == 1
    # Timers follow server time: a wall clock that was set back by an hour does not delay them.
    assert 60 < world.now < 120
    # The child answers its parent, who has no handler for that.
    world.check(dead=1)


def test_failing_reactions_end_as_dead_letters() -> None:
    world = _world()
    world.send("bob@s1", "adder", Add(count=-1))
    world.send("bob@s1", "adder", Alarm())
    world.send("bob@s1", "thinker", Sum(total=1))
    world.run()
    assert [(one.agent, one.type) for one in sorted(world.dead(), key=lambda one: one.agent)] == [
        ("adder", "Add"),
        ("thinker", "Sum"),
    ]
    world.check(dead=2)
    with pytest.raises(AssertionError, match="to replay this run, use seed=1"):
        world.check()


def test_the_same_seed_is_the_same_run() -> None:
    def rows(seed: int) -> list[Any]:
        world = _world(seed=seed, faults=ROUGH)
        for _ in range(10):
            world.send("bob@s1", ["adder", "thinker"], Add(count=1))
        world.run()
        world.check()
        return world.trace()

    assert rows(5) == rows(5)
    assert rows(5) != rows(6)


def test_what_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    world = _world()
    with pytest.raises(AntecedeError, match="nobody"):
        world.send("bob@s1", "nobody", Add(count=1))
    with pytest.raises(UsageError, match="bob@s9"):
        world.send("bob@s9", "adder", Add(count=1))
    with pytest.raises(UsageError, match="share no domain"):
        world.cut("s1", "s3", 1)
    with pytest.raises(TopologyError, match="s7"):
        world.crash("s7")
    with pytest.raises(AgentError, match="ghost"):
        world.state("ghost")
    with pytest.raises(UsageError, match="stranger"):
        World(_topology, agents={"adder": Adder, "thinker": Thinker, "stranger": Adder})
    with pytest.raises(AgentError, match="nowhere"):
        World(_topology)
    with pytest.raises(TopologyError, match=r"none\.toml"):
        World(tmp_path / "none.toml")
    cyclic = _topology.replace('A = { servers = ["s1", "s2"]', 'A = { servers = ["s1", "s2", "s3"]')
    with pytest.raises(TopologyError, match="not a forest"):
        World(cyclic, agents={"adder": Adder, "thinker": Thinker})


def test_a_world_without_order_is_found_out() -> None:
    """The checker must be able to fail: under no order at all, some seed delivers early."""
    text = 'guarantee = "none"\n' + _topology.replace("pruned", "none").replace("matrix", "none")
    early = 0
    for seed in range(20):
        faults = Faults(loss=0.3, seconds=0.5)
        world = World(text, agents={"adder": Adder, "thinker": Thinker}, seed=seed, faults=faults)
        for _ in range(20):
            world.send("bob@s1", "adder", Add(count=1))
            world.run(seconds=0.005)
        world.run()
        try:
            world.assert_causal()
        except AssertionError:
            early += 1
        world.check()
    assert early


@pytest.mark.parametrize("what", [{"n": 1}, None, Add])
def test_only_notifications_are_sent(what: Any) -> None:
    ctx = Context("a@s1", "s1", Letter("1", "b@s1", ("a@s1",), "Add", b""))
    sends = [ctx.reply, lambda it: ctx.send("b", it), lambda it: ctx.timer(1, it), lambda it: ctx.multicast(["b"], it)]
    for send in sends:
        with pytest.raises(AgentError, match="is not a Notification"):
            send(what)
    assert not ctx.outbound


class Needy(Agent):
    total: int

    def on_add(self, add: Add, ctx: Context) -> None:
        self.total += add.count


def test_an_agent_whose_field_has_no_default_is_refused_at_start() -> None:
    with pytest.raises(AgentError, match=r"agent adder: field Needy\.total has no default"):
        World(_topology, agents={"adder": Needy, "thinker": Thinker})


class Ball(Notification):
    rounds: int
    text: str = ""


class Player(Agent):
    """Returns each ball until its rounds are over; -1 means for ever."""

    other: str = ""
    balls: int = 0
    characters: int = 0

    def on_ball(self, ball: Ball, ctx: Context) -> None:
        self.balls += 1
        self.characters += len(ball.text)
        if ball.rounds:
            to = "adder" if ctx.agent == "thinker" else "thinker"
            ctx.send(to, Ball(rounds=ball.rounds - 1))


def _match(**given: Any) -> World:
    return World(_topology, agents={"adder": Player, "thinker": Player}, **given)


@pytest.mark.parametrize(("count", "size"), [(1, 17_000), (1, 1 << 20), (8, 1 << 20), (300, 10), (10_000, 10)])
def test_large_messages_and_many_of_them_are_ordinary(count: int, size: int) -> None:
    world = _match(seed=3)
    for _ in range(count):
        world.send("bob@s1", "adder", Ball(rounds=0, text="x" * size))
    world.run()
    world.check()
    player = world.state("adder")
    assert (player.balls, player.characters) == (count, count * size)


def test_large_loads_survive_faults() -> None:
    world = _match(seed=4, faults=ROUGH)
    for number in range(2_000):
        world.send(f"c{number % 7}@s{number % 3 + 1}", "adder", Ball(rounds=0, text="x" * (number % 5) * 4_000))
    world.run()
    world.check()
    assert world.state("adder").balls == 2_000


def test_a_long_run_becomes_idle() -> None:
    world = _match()
    for number in range(2):
        world.send(f"c{number}@s1", "adder", Ball(rounds=15_000))
    world.run()
    assert world.state("adder").balls + world.state("thinker").balls == 2 * 15_001


def test_a_run_without_end_fails_by_its_seed_with_its_traceback() -> None:
    world = _match(seed=17)
    world.send("bob@s1", "adder", Ball(rounds=-1))
    with pytest.raises(AssertionError, match="seed=17") as failed:
        world.run(events=5_000)
    cause = failed.value.__cause__
    assert cause is not None
    assert any("simulator" in frame.filename for frame in traceback.extract_tb(cause.__traceback__))
    # The world can go on.
    world.run(seconds=0.1)


def test_a_failed_check_shows_where_a_handler_failed() -> None:
    world = _world(seed=9)
    world.send("bob@s1", "adder", Add(count=-1))
    world.run()
    with pytest.raises(AssertionError, match="seed=9") as failed:
        world.check()
    cause = failed.value.__cause__
    assert isinstance(cause, ValueError)
    assert traceback.extract_tb(cause.__traceback__)[-1].name == "on_add"


def test_a_seed_is_the_same_run_on_every_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only ``random()`` is promised to draw the same in each version; the others stand for those of another version."""

    def rows() -> list[Any]:
        world = _world(seed=6, faults=ROUGH)
        for _ in range(20):
            world.send("bob@s1", ["adder", "thinker"], Add(count=1))
            world.run(seconds=0.05)
        world.run()
        return world.trace()

    before = rows()
    monkeypatch.setattr(random.Random, "choice", lambda self, items: items[-1 - int(self.random() * len(items))])
    monkeypatch.setattr(random.Random, "randrange", lambda self, end: end - 1 - int(self.random() * end))
    monkeypatch.setattr(random.Random, "sample", lambda self, items, size: list(items)[-size:])
    monkeypatch.setattr(random.Random, "randbytes", lambda self, size: bytes(size))
    monkeypatch.setattr(random.Random, "getrandbits", lambda self, size: 0)
    assert rows() == before
