"""Changes of agents' states: what they rebuild is the new state, and they are short where little changed."""

import asyncio
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antecede import Agent, Context, Notification, ServerRuntime, Topic, parse_topology
from antecede.engine import CHANGES_FROM_BYTES, Change, Subscribe, Unsubscribe, change_of, changed
from antecede.errors import StoreError
from antecede.testing import ROUGH, World
from helpers.ports import free_ports


def _size(state: bytes | Change) -> int:
    return len(msgspec.msgpack.encode(state))


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=300), st.integers(1, 5))
def test_the_new_state_comes_back(start: bytes, middle: bytes, end: bytes, times: int) -> None:
    old = start * times + end
    for new in (start * times + middle + end, start + middle * times, end, middle + old, b""):
        assert changed(old, change_of(old, new)) == new
        assert changed(new, change_of(new, old)) == old


def test_random_edits_come_back() -> None:
    random = Random(5)
    for _ in range(400):
        old = random.randbytes(random.randrange(1, 20_000))
        new = bytearray(old)
        for _ in range(random.randrange(5)):
            place = random.randrange(len(new) + 1)
            new[place : place + random.choice((0, 1, 8, 100))] = random.randbytes(random.choice((0, 1, 8, 100)))
        assert changed(old, change_of(old, bytes(new))) == bytes(new)


def test_one_subscription_more_is_a_short_change() -> None:
    names = [f"client-{number:05}@s1" for number in range(3000)]
    old = msgspec.msgpack.encode(Topic(subscribers=tuple(names)))
    for place in (0, 1, 1500, 2999, 3000):
        new = msgspec.msgpack.encode(Topic(subscribers=(*names[:place], "client-new@s1", *names[place:])))
        assert _size(change_of(old, new)) < 80, place
        assert _size(change_of(new, old)) < 80, place


def test_counters_in_a_large_state_are_a_short_change() -> None:
    state = {"first": 2**33, "rest": "x" * 5000, "second": 2**33, "more": "y" * 5000}
    old = msgspec.msgpack.encode(state)
    new = msgspec.msgpack.encode(state | {"first": 2**33 + 1, "second": 2**33 + 1})
    assert _size(change_of(old, new)) < 60


def test_a_change_of_another_state_is_refused() -> None:
    old, new = b"a" * 2000 + b"b" * 2000, b"a" * 2000 + b"c" + b"b" * 2000
    with pytest.raises(StoreError, match="does not fit"):
        changed(b"z" + old, change_of(old, new))


class Keep(Notification):
    key: int
    text: str


class Shelf(Agent):
    """Keeps many texts, so that its state is large."""

    texts: dict[int, str] = msgspec.field(default_factory=dict)
    count: int = 0

    def on_keep(self, keep: Keep, ctx: Context) -> None:
        self.texts[keep.key] = keep.text
        self.count += 1


_topology = """
[servers]
s1 = "tcp://127.0.0.1:{port}"
[domains]
A = {{ servers = ["s1"], order = "matrix" }}
[agents]
shelf = {{ server = "s1", class = "shop:Shelf" }}
news = {{ server = "s1", class = "antecede:Topic" }}
"""


@pytest.mark.parametrize("seed", range(8))
def test_large_states_survive_crashes(seed: int) -> None:
    world = World(
        parse_topology(_topology.format(port=1)), agents={"shelf": Shelf, "news": Topic}, seed=seed, faults=ROUGH
    )
    random = Random(seed)
    for number in range(60):
        key = random.randrange(20)
        world.send(f"c{number % 3}@s1", "shelf", Keep(key=key, text=f"{number} " * random.choice((1, 50, 200))))
        world.send(f"c{number % 3}@s1", "news", Subscribe() if random.random() < 0.7 else Unsubscribe())
    world.run()
    world.check()
    assert world.state("shelf").count == 60


async def _subscribe(directory: Path, port: int, count: int) -> None:
    topology = parse_topology(_topology.format(port=port))
    runtime = ServerRuntime(topology, "s1", str(directory), agents={"shelf": Shelf, "news": Topic})
    await runtime.start()
    for number in range(count):
        async with runtime.bus(f"a-client-with-a-long-name-{number:04}") as bus:
            await bus.send("news", Subscribe())
    await runtime.stop()


def test_many_subscriptions_write_little(tmp_path: Path) -> None:
    """A topic with n subscribers wrote about n²/2 names; now about n."""
    [port] = free_ports(1)
    directory = tmp_path / "data"
    asyncio.run(_subscribe(directory, port, 300))
    written = b"".join(file.read_bytes().rstrip(b"\0") for file in directory.iterdir() if file.suffix == ".log")
    assert 300 * CHANGES_FROM_BYTES > len(written) > 300 * 40
