"""Calls that share a request: who shares, what each caller gets, and what happens when it fails or takes too long."""

from collections import Counter as Counts
from collections.abc import Generator
from typing import Any

import msgspec
import pytest

from antecede import Call, ReplicatedObject, Returned, limits, operation
from antecede.channel import Outgoing
from antecede.link import Frame
from antecede.objects import Root, Roots, answer_bytes
from antecede.orders import Relation
from antecede.server import Published, Resumed
from helpers.replicas import ReplicaNet, topology

TOPOLOGY = topology(one="s1 s2 s3")


class Table(ReplicatedObject):
    total: int = 0
    names: dict[str, int]

    def __init__(self) -> None:
        self.names = {}

    @operation
    def add(self, name: str) -> None:
        self.names[name] = self.names.get(name, 0) + 1

    @operation
    def tell(self, name: str) -> str:
        self.add(name)
        return name

    @operation(conflicts_with=["set"])
    def set(self, value: int) -> int:
        self.total = 3 * self.total + value
        if value < 0:
            raise ValueError("negative")
        return self.total

    @operation(conflicts_with=["long"])
    def long(self, size: int) -> str:
        self.total += 1
        return "x" * size

    @operation(conflicts_with=["step"])
    def step(self, value: int) -> Generator[Call, Any, int]:
        self.total = 3 * self.total + value
        yield Call("one", "enter", (value,))
        # The next call must see this.
        self.total += 1
        if value < 0:
            raise ValueError("negative")
        return self.total

    @operation
    def enter(self, value: int) -> None:
        if value == 0:
            raise ValueError("zero")
        self.add(str(value))

    @operation(conflicts_with=["hidden"])
    def hidden(self, name: str) -> Generator[Call, Any, int]:
        # Not a generator function, but what it returns is one.
        return self._calling(name)

    def _calling(self, name: str) -> Generator[Call, Any, int]:
        self.total += 1
        yield Call("one", "add", (name,))
        return self.total


class Net(ReplicaNet):
    """Three servers; a client of s1 calls, and all frames arrive in the next round."""

    def __init__(self) -> None:
        super().__init__(TOPOLOGY, {"one": Table})
        self.frames: list[tuple[str, Outgoing]] = []
        self.numbers: Counts[str] = Counts()
        self.clock_ms = 1_000
        self.meet()

    def call(self, client: str, kind: str, *given: Any, timeout_ms: int = 60_000) -> None:
        self.numbers[client] += 1
        body = msgspec.msgpack.encode((timeout_ms, given))
        self.boxes["s1"].append(Published(client, self.numbers[client], ("one()",), kind, body, ask=True))

    def round(self) -> None:
        boxes, self.boxes = self.boxes, {name: [] for name in self.servers}
        for name in self.servers:
            step = self.take(name, boxes[name], self.clock_ms / 1000, self.clock_ms)
            assert not step.faults
            self.frames += [(name, out) for out in step.outgoing]

    def finish(self) -> None:
        for _ in range(60):
            self.clock_ms += 10
            self.round()
            if self.quiet:
                return
        pytest.fail("calls do not end")

    @property
    def answers(self) -> dict[str, list[Returned]]:
        boxes = self.servers["s1"].engine.mailboxes
        return {
            client: [msgspec.msgpack.decode(letter.body, type=Returned) for letter in box]
            for client, box in boxes.items()
        }

    def state(self) -> dict[str, Any]:
        states = [self.site(name).state_of("one") for name in self.servers]
        assert states == [states[0]] * 3
        return states[0]


def _frames(net: Net) -> int:
    return sum(isinstance(out.content, Frame) for _, out in net.frames)


def test_a_compatible_call_is_six_frames_and_nothing_else() -> None:
    net = Net()
    net.call("al", "tell", "a")
    net.finish()
    assert _frames(net) == 6, "request, response and commit, for each of two other replicas"
    assert [out.unhurried for _, out in net.frames if isinstance(out.content, Frame)] == [False] * 4 + [True] * 2
    assert net.state()["names"] == {"a": 1}


def test_conflicting_calls_of_several_clients_share_a_request_and_keep_their_order() -> None:
    net = Net()
    values = list(range(1, 41))
    for value in values:
        net.call(f"c{value % 3}", "set", value)
    net.finish()
    total, expected = 0, {}
    for value in values:
        total = 3 * total + value
        expected.setdefault(f"c{value % 3}@s1", []).append(total)
    assert {client: [one.value for one in got] for client, got in net.answers.items()} == expected
    assert net.state()["total"] == total
    assert _frames(net) == 10, "as many as one call"
    net.check_logs()


def test_the_commit_of_a_conflicting_operation_leaves_at_once() -> None:
    net = Net()
    net.call("al", "set", 1)
    net.finish()
    assert not any(out.unhurried for _, out in net.frames)


def test_a_call_that_fails_does_not_touch_those_that_share_its_request() -> None:
    net = Net()
    for value in (1, -1, 2, "x", 3):
        net.call("al", "set", value)
    net.finish()
    got = net.answers["al@s1"]
    assert [one.ok for one in got] == [True, False, True, False, True]
    assert [one.value for one in got if one.ok] == [1, 5, 18]
    assert "negative" in got[1].reason
    assert net.state()["total"] == 18
    net.check_logs()


def test_only_the_call_whose_time_is_up_is_late() -> None:
    net = Net()
    for number in range(5):
        net.call("al", "set", number, timeout_ms=50 if number == 2 else 60_000)
    net.round()
    # The frames of the first try wait until the time of one call is up.
    boxes, net.boxes = net.boxes, {name: [] for name in net.servers}
    net.clock_ms += 100
    net.round()
    for name, waiting in boxes.items():
        net.boxes[name] = [*waiting, *net.boxes[name]]
    net.finish()
    got = net.answers["al@s1"]
    assert sorted((one.late, one.ok) for one in got) == [(False, True)] * 4 + [(True, False)]
    assert [one.value for one in got if one.ok] == [0, 1, 6, 22]
    assert [one.tries for one in got if one.ok] == [2] * 4
    net.check_logs()


def test_hundreds_of_calls_at_once_end_and_leave_nothing() -> None:
    net = Net()
    count = 2 * limits.shared_calls_max + 1
    for number in range(count):
        net.call(f"c{number % 7}", "tell", str(number % 50))
    net.finish()
    assert sum(one.ok for got in net.answers.values() for one in got) == count
    assert sum(net.state()["names"].values()) == count
    assert _frames(net) == 3 * 6
    net.check_logs()


def test_hundreds_of_calls_that_are_late_together_are_all_undone() -> None:
    net = Net()
    count = limits.shared_calls_max + 50
    for _ in range(count):
        net.call("al", "set", 1, timeout_ms=50)
    net.round()
    boxes, net.boxes = net.boxes, {name: [] for name in net.servers}
    net.clock_ms += 100
    net.round()
    assert [one.late for one in net.answers["al@s1"]] == [True] * count
    for name, waiting in boxes.items():
        net.boxes[name] = [*waiting, *net.boxes[name]]
    net.finish()
    net.clock_ms += 10
    net.round()
    assert net.state()["total"] == 0
    net.check_logs()


_many = limits.shared_nested_max + 1


@pytest.mark.parametrize(("kind", "given", "count"), [("hidden", "a", _many), ("long", 3 * 1024 * 1024, 3)])
def test_calls_that_cannot_share_are_made_one_by_one(kind: str, given: Any, count: int) -> None:
    """An operation may turn out to call others, and answers may be too long for one message."""
    net = Net()
    for _ in range(count):
        net.call("al", kind, given)
    net.finish()
    got = net.answers["al@s1"]
    assert [one.ok for one in got] == [True] * count
    assert [one.tries for one in got] == [2] * count
    assert net.state()["total"] == count
    net.check_logs()


def _stepped(values: list[int]) -> tuple[list[int], dict[str, int]]:
    """Return the answers of ``step`` computed one after the other, and the names that it leaves."""
    total, answers = 0, []
    for value in values:
        if value > 0:
            total = 3 * total + value + 1
            answers.append(total)
    return answers, {str(value): values.count(value) for value in values if value > 0}


def test_calls_that_make_calls_share_a_request_and_are_computed_one_after_the_other() -> None:
    net = Net()
    values = list(range(1, limits.shared_nested_max + 1))
    for value in values:
        net.call("al", "step", value)
    net.finish()
    assert _frames(net) == 10, "as many as one call: the nested ones go to the replica beside"
    got = net.answers["al@s1"]
    assert [one.tries for one in got] == [1] * len(values)
    assert ([one.value for one in got], net.state()["names"]) == _stepped(values)
    net.check_logs()


@pytest.mark.parametrize("values", [[1, -2, 3], [1, 2, 0, 4], [-1, -1], [0]])
def test_a_call_that_fails_after_its_calls_is_undone_alone(values: list[int]) -> None:
    """It fails by itself, or because of the call that it makes; then all calls are made one by one."""
    net = Net()
    for value in values:
        net.call("al", "step", value)
    net.finish()
    got = net.answers["al@s1"]
    assert [one.ok for one in got] == [value > 0 for value in values]
    assert ([one.value for one in got if one.ok], net.state()["names"]) == _stepped(values)
    net.check_logs()


def test_a_trace_names_every_caller() -> None:
    net = Net()
    for client in ("al", "bo", "cy"):
        net.call(client, "set", 1)
    net.servers["s1"].calls.record()
    net.round()
    site = net.site("s1")
    (shared,) = site.roots.running.values()
    assert (shared.name.partition("!")[0], shared.name.rpartition("+")[2]) == ("al@s1", "3")
    assert [part.name.partition("!")[0] for part in shared.parts] == ["al@s1", "bo@s1", "cy@s1"]


def test_an_answer_after_a_restart_has_an_id_that_no_lost_answer_had() -> None:
    net = Net()
    net.call("al", "set", 1)
    net.round()
    net.servers["s1"].note([Resumed()])
    net.finish()
    (letter,) = net.servers["s1"].engine.mailboxes["al@s1"]
    assert letter.id.rpartition(".")[2] == "c1-1"


def test_a_snapshot_keeps_shared_roots() -> None:
    net = Net()
    for number in range(4):
        net.call("al", "set", number, timeout_ms=500)
    net.round()
    other = Net()
    site, restored = net.site("s1"), other.site("s1")
    restored.load(msgspec.msgpack.decode(msgspec.msgpack.encode(site.dump())))
    assert restored.dump() == site.dump()
    assert restored.deadline() == site.deadline() == 1_500


# Who shares.


def _roots(operations: str, **root: Any) -> Roots:
    """Roots of operations by letter: a and b conflict, and a with itself; c conflicts with nothing."""

    def unite(parts: list[Root]) -> Root:
        size = sum(part.size for part in parts)
        return Root(
            "+".join(part.name for part in parts), parts[0].operation, (), parts[0].number, size=size, parts=parts
        )

    roots = Roots(
        Relation([("a", "a"), ("a", "b")]),
        unite=unite,
        shareable=lambda name: 0 if name == "d" else limits.shared_calls_max,
    )
    for number, name in enumerate(operations, 1):
        roots.add(Root(f"{name}{number}", name, (), (0, 0, number), **root))
    return roots


@pytest.mark.parametrize(
    ("started", "admitted"),
    [
        ("aaa", "a1+a2+a3"),
        ("acacc", "a1+a3 c2+c4+c5"),
        # b2 is older than a3, and conflicts with it.
        ("abab", "a1 b2"),
        ("bbab", "b1+b2 a3 b4"),
        ("dcdd", "d1 c2 d3 d4"),
    ],
)
def test_roots_share_if_no_conflicting_one_is_between_them(started: str, admitted: str) -> None:
    assert " ".join(root.name for root in _roots(started).admitted()) == admitted


def test_a_root_that_must_be_alone_ends_a_group() -> None:
    roots = _roots("aa")
    roots.add(Root("a3", "a", (), (0, 0, 3), alone=True))
    roots.add(Root("a4", "a", (), (0, 0, 4)))
    assert [root.name for root in roots.admitted()] == ["a1+a2", "a3"]
    assert [root.name for root in roots.waiting] == ["a4"]


def test_sharing_is_bounded_and_few_shared_roots_run() -> None:
    most = limits.shared_calls_max
    roots = _roots("a" * (limits.roots_rival_max * most + 1))
    assert [len(root.parts) for root in roots.admitted()] == [most] * limits.roots_rival_max
    assert roots.admitted() == []
    half = _roots("ccc", size=limits.shared_calls_bytes_max // 2)
    assert [len(root.parts) for root in half.admitted()] == [2, 0]


def test_parts_that_are_put_back_wait_in_their_order() -> None:
    roots = _roots("aaaa", deadline=9.0)
    (shared,) = roots.admitted()
    roots.add(Root("a9", "a", (), (0, 0, 9)))
    roots.end(shared)
    assert roots.deadline() is None
    roots.put_back([shared.parts[3], shared.parts[1]])
    assert [root.name for root in roots.waiting] == ["a2", "a4", "a9"]
    assert roots.deadline() == 9.0
    assert [root.name for root in roots.admitted()] == ["a2+a4+a9"]


def test_calls_with_little_time_do_not_stop_the_same_others_again() -> None:
    roots = _roots("cccc")
    for root in roots.waiting[1:3]:
        root.tries = 2
    assert [root.name for root in roots.admitted()] == ["c1", "c2+c3", "c4"]


def test_an_answer_that_cannot_travel_is_too_long() -> None:
    assert answer_bytes((True, object())) > limits.letter_bytes_max
