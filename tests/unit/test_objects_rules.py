"""Logs of older rules: their records lead to the same state, and from then on the newest rules are followed."""

from collections.abc import Generator
from random import Random
from typing import Any

import msgspec
import pytest

from antecede import Call, ReplicatedObject, limits, operation
from antecede.errors import StoreError
from antecede.objects.replicas import RULES
from antecede.server.items import Published, Ruled, decode_record, encode_record
from helpers.replicas import ReplicaNet, topology

TOPOLOGY = topology(one="s1 s2 s3", two="s2 s3")


class Counter(ReplicatedObject):
    total: int = 0
    names: dict[str, int]

    def __init__(self) -> None:
        self.names = {}

    @operation
    def add(self, name: str) -> None:
        self.names[name] = self.names.get(name, 0) + 1

    @operation(conflicts_with=["set", "move"])
    def set(self, value: int) -> int:
        self.total = 3 * self.total + value
        return self.total

    @operation(conflicts_with=["move"])
    def move(self, value: int) -> Generator[Call, Any, int]:
        self.total = 2 * self.total + value
        moved: int = yield Call("two", "set", (value,))
        return moved


class Net(ReplicaNet):
    """Three servers, and frames that arrive when they are told to."""

    def __init__(self) -> None:
        super().__init__(TOPOLOGY, {"one": Counter, "two": Counter})
        self.now = 0.0

    def step(self, name: str, count: int = 1_000) -> None:
        inputs, self.boxes[name] = self.boxes[name][:count], self.boxes[name][count:]
        self.take(name, inputs, self.now, 1_000)

    def call(self, name: str, number: int, random: Random) -> None:
        kind = random.choice(["add", "add", "set", "move"])
        given = [random.choice("abc")] if kind == "add" else [random.randrange(9)]
        body = msgspec.msgpack.encode((60_000, given))
        self.boxes[name].append(Published("al", number, ("one()",), kind, body, ask=True))

    def finish(self) -> None:
        for _ in range(3_000):
            self.now += 0.05
            for name in self.servers:
                self.step(name)
            if self.quiet:
                return
        pytest.fail("calls do not end")


def _old(random: Random, version: int) -> Net:
    """Servers in the middle of many calls, by older rules."""
    net = Net()
    for server in net.servers.values():
        server.calls.newest = version
    net.meet()
    for number in range(1, 21):
        for name in net.servers:
            net.call(name, number, random)
    for _ in range(40):
        net.step(random.choice(sorted(net.servers)), random.randrange(1, 15))
    return net


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_log_is_replayed_by_its_rules_and_goes_on_with_the_newest(version: int) -> None:
    random = Random(version)
    old = _old(random, version)
    if version == 1:
        assert all(len(old.site(name).roots.running) <= limits.roots_conflicting_max for name in old.servers)
    assert {old.site(name).rules for name in old.servers} == {version}
    net = Net()
    for name, server in net.servers.items():
        for record in old.logs[name]:
            server.replay(record, 0.0)
        assert net.site(name).snapshot() == old.site(name).snapshot()
        server.begin_life(2)
    net.meet()
    for number in range(21, 31):
        for name in net.servers:
            net.call(name, number, random)
    net.finish()
    assert {net.site(name).rules for name in net.servers} == {RULES}
    assert [isinstance(decode_record(log[0])[0], Ruled) for log in net.logs.values()] == [True] * 3
    for name, homes in (("one", ("s1", "s2", "s3")), ("two", ("s2", "s3"))):
        states = [net.site(home).state_of(name) for home in homes]
        assert states == [states[0]] * len(states)
        assert len({net.site(home).execution.intentions.live.states[name].digest for home in homes}) == 1
    assert not [left for name in net.servers for left in net.site(name).unended()]
    again = Net()
    for name, server in again.servers.items():
        for record in old.logs[name]:
            server.replay(record, 0.0)
        server.begin_life(2)
        for record in net.logs[name]:
            server.replay(record, 0.0)
        assert again.site(name).snapshot() == net.site(name).snapshot()


def test_a_snapshot_without_a_version_follows_version_1() -> None:
    old = _old(Random(7), 1)
    site = Net().site("s1")
    site.load(msgspec.msgpack.decode(msgspec.msgpack.encode(old.site("s1").dump()))[:3])
    assert (site.rules, site.roots.version, site.order.together, site.order.sparing) == (1, 1, False, False)
    assert site.state_of("one") == old.site("s1").state_of("one")


def test_rules_of_a_later_version_are_refused() -> None:
    with pytest.raises(
        StoreError, match=f"version {RULES + 1} of the rules of objects: this program knows only versions up to {RULES}"
    ):
        Net().servers["s1"].replay(encode_record([Ruled(RULES + 1)]), 0.0)
