"""Logs of older rules: their records lead to the same state, and from then on the newest rules are followed."""

from collections.abc import Generator
from random import Random
from typing import Any

import msgspec
import pytest

from antecede import Call, ReplicatedObject, limits, operation
from antecede.errors import StoreError
from antecede.live.application import plan_of
from antecede.objects.replicas import RULES, Replicas
from antecede.server import AgentServer, FromPeer
from antecede.server.items import Published, Ruled, decode_record, encode_record
from antecede.topology import parse_topology

TOPOLOGY = """
[servers]
s1 = "tcp://127.0.0.1:7101"
s2 = "tcp://127.0.0.1:7102"
s3 = "tcp://127.0.0.1:7103"
[domains]
A = { servers = ["s1", "s2", "s3"], order = "objects" }
[agents]
one = { servers = ["s1", "s2", "s3"], class = "x:Counter" }
two = { servers = ["s2", "s3"], class = "x:Counter" }
"""


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


class Net:
    """Three servers, and frames that arrive when they are told to."""

    def __init__(self) -> None:
        plan = plan_of(parse_topology(TOPOLOGY), {"one": Counter, "two": Counter})
        self.servers = {name: AgentServer(name, plan, at) for at, name in enumerate(("s1", "s2", "s3"), 1)}
        self.logs: dict[str, list[bytes]] = {name: [] for name in self.servers}
        self.boxes: dict[str, list[Any]] = {name: [] for name in self.servers}
        self.now = 0.0

    def meet(self) -> None:
        for name, server in self.servers.items():
            for peer, link in server.channel.consumers["A"].links.items():
                self.servers[peer].channel.consumers["A"].links[name].on_hello(link.hello(), self.now)

    def step(self, name: str, count: int = 1_000) -> None:
        inputs, self.boxes[name] = self.boxes[name][:count], self.boxes[name][count:]
        step = self.servers[name].step(inputs, self.now, 1_000)
        if step.record is not None:
            self.logs[name].append(step.record)
        for out in step.outgoing:
            self.boxes[out.peer].append(FromPeer(out.domain, name, out.content))

    def site(self, name: str) -> Replicas:
        site = self.servers[name].calls.site
        assert site is not None
        return site

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
            if not any(self.boxes.values()) and not any(server.calls.open for server in self.servers.values()):
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
    with pytest.raises(StoreError, match=f"version {RULES + 1} of the rules of objects: this version knows {RULES}"):
        Net().servers["s1"].replay(encode_record([Ruled(RULES + 1)]), 0.0)
