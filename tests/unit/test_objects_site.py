"""One group of objects at a time, every packet by hand: locks, wounds, nesting, aborts, replicas, crashes."""

from collections.abc import Generator
from random import Random
from typing import Any

import msgspec
import pytest

from antecede import limits
from antecede.channel import decode_packet, encode_packet
from antecede.errors import ObjectError, OrderError
from antecede.messages import ABORT, COMMIT, COPY, REQUEST, RESPONSE, Label, Message, Packet, Send
from antecede.objects import Answered, Call, CallFailed, Local, Object, Site, group, operation
from antecede.orders import WOUND, Stamp


class Cell(Object):
    """A number that is set, added to and read; and operations that call others."""

    value: int = 0

    @operation(conflicts_with=["set", "add", "get"])
    def set(self, value: int) -> None:
        self.value = value

    @operation(conflicts_with=["get"])
    def add(self, amount: int) -> None:
        self.value += amount

    @operation
    def get(self) -> int:
        return self.value

    @operation
    def fail(self) -> None:
        raise ValueError("as asked")

    @operation(conflicts_with=["set", "hold"])
    def hold(self, other: str, name: str, *arguments: Any) -> Generator[Call, Any, Any]:
        answer = yield Call(other, name, arguments)
        return answer

    @operation
    def call(self, others: list[str], name: str, *arguments: Any) -> Generator[Call, Any, Any]:
        answer = yield Call(tuple(others), name, arguments)
        return answer

    @operation
    def careful(self, other: str, fallback: str) -> Generator[Call, Any, str]:
        try:
            yield Call(other, "fail")
        except CallFailed:
            yield Call(fallback, "add", (1,))
            return "went around"
        return "impossible"

    @operation(conflicts_with=["set", "add", "get", "take"])
    def take(self, amount: int) -> None:
        if self.value < amount:
            raise ValueError("not enough")
        self.value -= amount

    @operation
    def beg(self, other: str) -> Generator[Call, Any, str]:
        try:
            yield Call(other, "take", (1,))
        except CallFailed:
            return "went without"
        return "took"

    @operation
    def swing(self, other: str, back: str) -> Generator[Call, Any, int]:
        self.value += 1
        yield Call(other, "call", ([back], "add", 10))
        return self.value


class Hand:
    """A group whose packets arrive when they are told to."""

    def __init__(self, *names: str, clocks: str = "eager") -> None:
        self.spec = group(dict.fromkeys(names, Cell), clocks=clocks)
        self.names = names
        self.sites: list[Site] = [self.spec.create(me, len(names)) for me in range(len(names))]
        self.air: list[Packet] = []
        self.answers: dict[str, Answered] = {}
        self.locals: list[tuple[str, str, str]] = []

    def start(self, at: str, name: str, *arguments: Any, deadline: float | None = None) -> str:
        me = self.names.index(at)
        root, effects = self.sites[me].start(name, arguments, deadline=deadline)
        self.take(me, effects)
        return root

    def take(self, me: int, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self.air.append(effect.packet)
            elif isinstance(effect, Answered):
                self.answers[effect.root] = effect
            elif isinstance(effect, Local):
                self.locals.append((self.names[me], effect.type, effect.instance))

    def arrive(self, packet: Packet) -> None:
        self.air.remove(packet)
        site = self.sites[packet.target]
        data = site.encode(packet)
        assert site.decode(packet.kind, packet.source, data) == packet.stamp
        _, effects = site.receive(packet)
        self.take(packet.target, effects)
        # What is written down is all that there is.
        again = self.spec.create(packet.target, len(self.names))
        again.restore(site.snapshot())
        assert again.snapshot() == site.snapshot()
        self.sites[packet.target] = again

    def drain(self, last: bool = False) -> None:
        for _ in range(10_000):
            if not self.air:
                return
            self.arrive(self.air[-1 if last else 0])
        raise AssertionError("it does not come to an end")

    def value(self, at: str) -> int:
        return int(self.sites[self.names.index(at)].state["value"])

    def quiet(self) -> bool:
        return not any(site.unended() for site in self.sites)


@pytest.mark.parametrize("last", [False, True])
def test_a_call_and_its_answer(last: bool) -> None:
    hand = Hand("a", "b")
    root = hand.start("a", "call", ["b"], "add", 5)
    hand.drain(last)
    assert hand.answers[root].ok
    assert hand.value("b") == 5
    assert hand.quiet()
    assert hand.locals == [
        ("a", "begin", root),
        ("b", "begin", f"{root}/1"),
        ("a", "commit", root),
        ("b", "commit", f"{root}/1"),
    ]


def test_several_objects_answer_by_name() -> None:
    hand = Hand("a", "b", "c")
    hand.start("b", "set", 3)
    root = hand.start("a", "call", ["b", "c"], "get")
    hand.drain()
    assert hand.answers[root].answer == {"b": 3, "c": 0}


def test_effects_are_intentions_until_the_root_commits() -> None:
    hand = Hand("a", "b")
    hand.start("a", "call", ["b"], "set", 7)
    while hand.air and hand.value("a") == hand.value("b") == 0 and not hand.answers:
        hand.arrive(hand.air[0])
    assert hand.answers
    assert hand.value("b") == 0, "the root has committed, and b has not heard of it"
    hand.drain()
    assert hand.value("b") == 7


def test_aborting_one_increment_leaves_the_other() -> None:
    """Restoring a snapshot would undo both: they are compatible, and interleave."""
    hand = Hand("a", "b", "c")
    failing = hand.start("a", "call", ["b", "c"], "call", ["b"], "add", 1)
    hand.drain()
    first = hand.start("a", "call", ["b"], "add", 10)
    late = hand.start("c", "call", ["b"], "add", 100, deadline=5.0)
    mine = [packet for packet in hand.air if packet.message is not None]
    for packet in mine:
        hand.arrive(packet)
    hand.take(2, hand.sites[2].tick(5.0))
    hand.drain()
    assert not hand.answers[late].ok
    assert "timeout" in hand.answers[late].answer
    assert hand.answers[first].ok
    assert hand.answers[failing].ok
    assert hand.value("b") == 11, "the two replicas' call is one instance, computed once"
    assert hand.quiet()


@pytest.mark.parametrize("last", [False, True])
def test_two_that_hold_and_call_each_other_crosswise(last: bool) -> None:
    """op1@i calls op2@j while op3@j calls op4@i: both come to their end, the older one undisturbed."""
    hand = Hand("a", "b")
    older = hand.start("a", "hold", "b", "set", 1)
    younger = hand.start("b", "hold", "a", "set", 2)
    hand.drain(last)
    assert hand.answers[older].ok
    assert hand.answers[younger].ok
    assert hand.answers[older].tries == 1
    assert hand.answers[younger].tries > 1
    assert (hand.value("a"), hand.value("b")) == (2, 1)
    assert hand.quiet()


def test_a_call_back_into_an_ancestors_object_does_not_wait_for_it() -> None:
    """swing@a calls call@b, which calls add@a; and hold conflicts with hold, yet not with its own ancestor."""
    hand = Hand("a", "b")
    root = hand.start("a", "swing", "b", "a")
    hand.drain()
    assert hand.answers[root].answer == 11
    deep = hand.start("a", "hold", "b", "hold", "a", "hold", "b", "add", 1)
    hand.drain()
    assert hand.answers[deep].ok
    assert hand.value("b") == 1
    assert hand.quiet()


def test_a_failure_is_undone_and_can_be_caught() -> None:
    hand = Hand("a", "b", "c")
    root = hand.start("a", "careful", "b", "c")
    hand.drain()
    assert hand.answers[root].answer == "went around"
    assert hand.value("c") == 1
    lost = hand.start("a", "call", ["b"], "fail")
    hand.drain()
    assert not hand.answers[lost].ok
    assert "as asked" in hand.answers[lost].answer
    assert hand.quiet()


def test_a_call_that_fails_at_one_object_is_undone_at_all() -> None:
    hand = Hand("a", "b", "c")
    hand.start("c", "set", 5)
    hand.drain()
    root = hand.start("a", "call", ["b", "c"], "call", ["nobody"], "add", 1)
    hand.drain()
    assert not hand.answers[root].ok
    assert "no object 'nobody'" in hand.answers[root].answer
    assert hand.quiet()


def test_a_slow_replica_finds_failed_what_failed_for_a_quick_one() -> None:
    """Between the two the object has changed, and the call would go well now."""
    hand = Hand("a", "b", "c", "d")
    root = hand.start("a", "call", ["b", "c"], "beg", "d")
    slow = 2
    while quick := [packet for packet in hand.air if slow not in (packet.source, packet.target)]:
        hand.arrive(quick[0])
    added = hand.start("d", "add", 5)
    assert hand.answers[added].ok
    hand.drain()
    assert hand.answers[root].answer == {"b": "went without", "c": "went without"}
    assert hand.value("d") == 5
    assert hand.quiet()


def test_what_objects_called_at_once_call_is_one_call() -> None:
    """They are taken for replicas, also if they are not; called one after the other they act each on its own."""
    hand = Hand("a", "b", "c")
    hand.start("a", "call", ["b", "c"], "call", ["a"], "add", 1)
    hand.drain()
    assert hand.value("a") == 1
    for other in ("b", "c"):
        hand.start("a", "call", [other], "call", ["a"], "add", 1)
    hand.drain()
    assert hand.value("a") == 3


def test_conflicting_instances_run_one_after_the_other() -> None:
    hand = Hand("a", "b", "c")
    hand.start("a", "call", ["c"], "set", 1)
    hand.start("b", "call", ["c"], "get")
    hand.drain()
    at_c = [(kind, instance) for where, kind, instance in hand.locals if where == "c"]
    begun: list[str] = []
    for kind, instance in at_c:
        if kind == "begin":
            assert not begun, f"{instance} begins while {begun} runs"
            begun.append(instance)
        else:
            begun.remove(instance)


def test_what_is_queued_is_not_overtaken_by_what_conflicts_with_it() -> None:
    """Two additions are compatible; but the second comes after a reading that waits for the first."""
    hand = Hand("a", "b", "c", "d")
    roots = []
    for caller, name, arguments in (("a", "add", (1,)), ("b", "get", ()), ("d", "add", (10,))):
        roots.append(hand.start(caller, "call", ["c"], name, *arguments))
        hand.arrive(next(packet for packet in hand.air if packet.kind == COPY and packet.target == 2))
    begun = [instance for at, kind, instance in hand.locals if (at, kind) == ("c", "begin")]
    assert begun == [f"{roots[0]}/1"]
    hand.drain()
    assert hand.answers[roots[1]].answer == 1
    assert hand.value("c") == 11
    assert hand.quiet()


def test_compatible_instances_interleave() -> None:
    hand = Hand("a", "b", "c")
    hand.start("a", "call", ["c"], "add", 1)
    hand.start("b", "call", ["c"], "add", 2)
    while hand.air:
        hand.arrive(hand.air[0])
        if len(hand.sites[2].table.instances) == 2:
            break
    else:
        pytest.fail("they never ran together")
    hand.drain()
    assert hand.value("c") == 3


def test_nesting_has_a_bound() -> None:
    class Deep(Object):
        @operation
        def down(self) -> Generator[Call, Any, Any]:
            answer = yield Call("a", "down")
            return answer

    hand = Hand("a")
    hand.spec = group({"a": Deep})
    hand.sites = [hand.spec.create(0, 1)]
    root = hand.start("a", "down")
    hand.drain()
    assert not hand.answers[root].ok
    assert "nested deeper than" in hand.answers[root].answer
    assert hand.quiet()


def test_what_makes_no_sense_is_refused() -> None:
    hand = Hand("a", "b")
    with pytest.raises(ObjectError):
        hand.start("a", "nothing")
    with pytest.raises(OrderError):
        hand.sites[0].send(Message("m", 0, 2))
    with pytest.raises(OrderError):
        hand.spec.create(0, 3)
    with pytest.raises(ObjectError):
        group({"a/b": Cell})


def test_only_so_many_roots_are_under_way() -> None:
    """More would only wound each other. They begin in the order in which they were started."""
    hand = Hand("a", "b")
    roots = [hand.start("a", "hold", "b", "set", number) for number in range(3 * limits.roots_rival_max)]
    site = hand.sites[0]
    assert len(site.roots.running) + len(site.roots.resting) == limits.roots_rival_max
    hand.drain()
    assert [hand.answers[root].ok for root in roots] == [True] * len(roots)
    assert hand.value("b") == len(roots) - 1
    assert hand.quiet()


def test_word_that_a_root_may_go_on_can_come_before_word_that_it_is_wounded() -> None:
    """What waited is given up, so the root in its way need not make way; but the word that it must is still to come."""
    hand = Hand("a", "b", "c")
    older = hand.start("a", "call", ["b"], "set", 1, deadline=1.0)
    younger = hand.start("c", "call", ["b"], "set", 2)
    for home in (2, 0):
        hand.arrive(next(packet for packet in hand.air if packet.kind == COPY and packet.source == home))
    (wound,) = [packet for packet in hand.air if packet.kind == WOUND]
    assert wound.target == 2
    hand.take(0, hand.sites[0].tick(1.0))
    # The answer to the younger comes last, else it would have ended.
    while late := [packet for packet in hand.air if packet.target != 2 or packet.kind not in (COPY, WOUND)]:
        hand.arrive(late[0])
    hand.arrive(wound)
    hand.drain()
    assert "timeout" in hand.answers[older].answer
    assert hand.answers[younger].ok
    assert hand.answers[younger].tries == 2
    assert hand.value("b") == 2
    assert hand.quiet()


def test_packets_travel_as_those_of_any_order() -> None:
    """A site is an order to whoever puts its packets on a wire; labels are part of its stamps."""
    hand = Hand("a", "b", "c")
    roots = [hand.start("a", "hold", "b", "set", 1), hand.start("b", "call", ["a", "c"], "add", 2)]
    while hand.air:
        packet = hand.air.pop(0)
        data, _ = encode_packet(hand.sites[packet.source], packet)
        arrived = decode_packet(hand.sites[packet.target], packet.source, data)
        hand.take(packet.target, hand.sites[packet.target].receive(arrived)[1])
    assert all(hand.answers[root].ok for root in roots)
    assert hand.quiet()


def test_forged_messages_break_no_step() -> None:
    """Labels, ends and payloads that no object has sent: whatever decodes is taken, saved, and followed by the rest."""
    for seed in range(60):
        random = Random(seed)
        hand = Hand("a", "b", "c")
        for number in range(6):
            at = random.choice(hand.names)
            others = random.sample(hand.names, random.randint(1, 3))
            what: Any = random.choice([("call", others, "add", number), ("hold", others[0], "set", number)])
            hand.start(at, *what, deadline=random.choice((None, 1.0)))
        for _ in range(300):
            if not hand.air:
                break
            packet = random.choice(hand.air)
            if random.random() < 0.2 and packet.message is not None:
                site = hand.sites[packet.target]
                stamp = packet.stamp
                names = [*site.table.instances, "x", f"{next(iter(site.table.instances), 'y')}/1"]
                label = Label(
                    random.choice((REQUEST, RESPONSE, COMMIT, ABORT)),
                    random.choice(("add", "set", "nothing")),
                    random.choice(names),
                    "call",
                    random.choice(names),
                )
                payloads = [b"", b"\x90", b"\x92\xc3\x01"]
                for one in [*site.table.instances.values()][:2]:
                    # What names an instance that there is, and asks for just what it does, is taken furthest.
                    payloads.append(msgspec.msgpack.encode((one.root, one.number, one.arguments)))
                    if one.id == label.instance:
                        label = msgspec.structs.replace(label, operation=one.operation)
                forged = msgspec.structs.replace(stamp, label=label)
                data = site.encode(msgspec.structs.replace(packet, stamp=forged))
                message = msgspec.structs.replace(packet.message, payload=random.choice(payloads))
                hand.air.remove(packet)
                packet = msgspec.structs.replace(packet, message=message, stamp=site.decode(COPY, packet.source, data))
                hand.air.append(packet)
            hand.arrive(packet)
        for me, site in enumerate(hand.sites):
            hand.take(me, site.tick(1.0))


def test_nobody_calls_a_root_and_so_nobody_ends_it() -> None:
    """A request for an instance that is a root of this very object, and then its abort."""
    hand = Hand("a", "b", "c")
    root = hand.start("a", "call", ["b"], "add", 5, deadline=5.0)
    site = hand.sites[0]
    one = site.table.instances[root]
    asked = msgspec.msgpack.encode((root, one.number, one.arguments))
    for number, (type_, payload) in enumerate([(REQUEST, asked), (ABORT, b"")], 1):
        message = Message(f"c-{number}", 2, 1, payload)
        stamp = Stamp(number, 10 + number, number, (), Label(type_, "call", root, "call", "c.1"))
        hand.take(0, site.receive(Packet(COPY, 2, 0, message, message.id, stamp))[1])
    hand.take(0, site.tick(9.0))
    assert "timeout" in hand.answers[root].answer
    assert not site.table.instances
    assert not list(site.roots)
