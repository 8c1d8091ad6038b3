"""Blind operations conflict with nothing and return nothing: decided and answered where the call begins."""

from collections.abc import Generator
from typing import Any

import msgspec
import pytest

from antecede import Call, ReplicatedObject, Returned, limits, operation
from antecede.errors import ObjectError
from antecede.link import Frame
from antecede.messages import REQUEST, Label, Message
from antecede.objects import Request, blind_operations, unconfirmed_operations
from antecede.server import FromPeer, Published
from helpers.replicas import ReplicaNet, topology


class Tally(ReplicatedObject):
    counts: dict[str, int]
    texts: dict[str, str]

    def __init__(self) -> None:
        self.counts = {}
        self.texts = {}

    @operation(confirm=False)
    def add(self, name: str, amount: int) -> None:
        if amount == 0:
            raise ValueError("nothing to add")
        self.counts[name] = self.counts.get(name, 0) + amount

    @operation
    def confirm(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    @operation
    def count(self, name: str):  # type: ignore[no-untyped-def]  # noqa: ANN201
        self.counts[name] = self.counts.get(name, 0) + 1

    @operation(confirm=False)
    def lie(self, name: str) -> None:
        """Return the state, although neither the annotation nor a conflict says so."""
        self.counts[name] = self.counts.get(name, 0) + 1
        return self.counts[name]  # type: ignore[return-value]

    @operation(confirm=False)
    def hide(self) -> None:
        return self._calling()  # type: ignore[return-value]

    def _calling(self) -> Generator[Call, Any, None]:
        yield Call("tally", "add", ("hidden", 1))

    @operation(confirm=False)
    def swell(self, name: str, size: int) -> None:
        self.texts[name] = "x" * size

    @operation(confirm=False)
    def once(self) -> None:
        """Fail the second time: a conflict with itself that is not declared."""
        if "once" in self.counts:
            raise ValueError("again")
        self.counts["once"] = 1

    @operation(conflicts_with=["audit"])
    def seen(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    @operation
    def audit(self) -> int:
        return sum(self.counts.values())


class Net(ReplicaNet):
    """Three servers; clients of any of them call, and all frames arrive in the next round."""

    def __init__(self, on: str = "s1 s2 s3") -> None:
        super().__init__(topology(tally=on), {"tally": Tally})
        self.numbers: dict[str, int] = {}
        self.sent: list[str] = []
        self.meet()

    def call(self, kind: str, *given: Any, at: str = "s1") -> None:
        number = self.numbers[at] = self.numbers.get(at, 0) + 1
        body = msgspec.msgpack.encode((60_000, given))
        self.boxes[at].append(Published("al", number, ("tally()",), kind, body, ask=True))

    def round(self) -> None:
        boxes, self.boxes = self.boxes, {name: [] for name in self.servers}
        for name in self.servers:
            step = self.take(name, boxes[name], 1.0, 1_000)
            assert not step.faults
            self.sent += [name for out in step.outgoing if isinstance(out.content, Frame)]

    def finish(self) -> None:
        for _ in range(60):
            self.round()
            if self.quiet:
                return
        pytest.fail("calls do not end")

    def answers(self, at: str = "s1") -> list[Returned]:
        box = self.servers[at].engine.mailboxes.get(f"al@{at}", ())
        return [msgspec.msgpack.decode(letter.body, type=Returned) for letter in box]

    def counts(self, *servers: str) -> dict[str, int]:
        states = [self.site(name).state_of("tally") for name in servers or self.servers]
        assert all(state == states[0] for state in states)
        return states[0]["counts"]


def test_which_operations_are_blind() -> None:
    assert blind_operations(Tally) == {"add", "confirm", "lie", "hide", "swell", "once"}
    assert unconfirmed_operations(Tally) == {"add", "lie", "hide", "swell", "once"}


def test_a_blind_call_is_answered_in_its_step_and_needs_one_frame_for_each_other_replica() -> None:
    net = Net()
    net.call("add", "a", 3)
    net.round()
    (answer,) = net.answers()
    assert (answer.ok, answer.value, answer.tries) == (True, None, 1)
    assert net.counts("s1") == {"a": 3}, "it is committed at home"
    assert net.counts("s2") == {}
    net.finish()
    assert net.sent == ["s1", "s1"]
    assert net.counts() == {"a": 3}
    net.check_logs()


def test_its_answer_waits_for_the_log_and_its_request_for_company() -> None:
    net = Net()
    net.call("add", "a", 3)
    step = net.take("s1", net.boxes["s1"], 1.0, 1_000)
    assert [out.unhurried for out in step.outgoing] == [True, True]
    calls = net.servers["s1"].calls
    assert not any(calls.are_sure(due.letters) for due in step.due if due.letters)


def test_calls_that_come_together_share_a_request_and_each_fails_by_itself() -> None:
    net = Net()
    for amount in (1, 0, 2):
        net.call("add", "a", amount)
    net.finish()
    assert [(one.ok, one.reason) for one in net.answers()] == [
        (True, ""),
        (False, "ValueError: nothing to add"),
        (True, ""),
    ]
    assert net.sent == ["s1", "s1"]
    assert net.counts() == {"a": 3}
    net.check_logs()


def test_a_call_that_fails_at_home_is_sent_to_nobody() -> None:
    net = Net()
    net.call("add", "a", 0)
    net.finish()
    assert [one.reason for one in net.answers()] == ["ValueError: nothing to add"]
    assert net.sent == []
    # One to compute the call at its server, and two of the root, before and after its answer.
    assert net.servers["s1"].calls.computing() == (None, 3), "the watchdog sees nothing that runs"
    net.check_logs()


def test_calls_of_two_homes_cross() -> None:
    net = Net()
    for number in range(5):
        net.call("add", f"a{number}", 1, at="s1")
        net.call("add", "same", 1, at="s2")
        net.round()
    net.finish()
    assert net.counts() == {f"a{number}": 1 for number in range(5)} | {"same": 5}
    net.check_logs()


@pytest.mark.parametrize("kind", ["confirm", "count", "lie"])
def test_others_are_answered_when_all_replicas_have_answered(kind: str) -> None:
    net = Net()
    net.call(kind, "a")
    net.round()
    assert net.answers() == []
    net.finish()
    assert [one.ok for one in net.answers()] == [True]
    assert len(net.sent) == 6
    assert net.counts() == {"a": 1}
    net.check_logs()


def test_an_operation_that_calls_others_after_all_is_not_decided_alone() -> None:
    net = Net()
    net.call("hide")
    net.finish()
    assert [one.ok for one in net.answers()] == [True]
    assert net.counts() == {"hidden": 1}
    net.check_logs()


def test_an_operation_that_conflicts_with_another_is_not_blind() -> None:
    net = Net()
    net.call("seen", "a")
    net.finish()
    assert len(net.sent) == 10


def test_a_home_without_a_replica_asks_the_replicas() -> None:
    net = Net(on="s2 s3")
    net.call("add", "a", 1)
    net.finish()
    assert [one.ok for one in net.answers()] == [True]
    assert net.counts("s2", "s3") == {"a": 1}
    assert len(net.sent) == 6


def test_replicas_apply_what_fitted_at_home() -> None:
    """Compatible calls come in different orders, and only one of them may pass the bound of a state."""
    net = Net()
    half = limits.object_state_bytes_max // 2
    net.call("swell", "a", half, at="s1")
    net.call("swell", "b", half, at="s2")
    net.finish()
    assert [one.ok for at in ("s1", "s2") for one in net.answers(at)] == [True, True]
    net.counts()
    net.call("add", "one more", 1)
    net.finish()
    assert "at most" in net.answers()[-1].reason


def test_a_replica_at_which_a_decided_call_fails_reports_it() -> None:
    net = Net()
    net.call("once", at="s1")
    net.call("once", at="s2")
    net.finish()
    assert [one.ok for at in ("s1", "s2") for one in net.answers(at)] == [True, True]
    reported: list[tuple[str, str]] = []
    for server in [*net.servers.values(), net.servers["s1"]]:
        server.calls.report(lambda event, **fields: reported.append((event, fields["reason"])))
    assert reported == [("replica-differs", "ValueError: again")] * 3


def test_a_request_that_claims_to_be_decided_must_be_of_a_blind_operation() -> None:
    net = Net()
    site = net.site("s2")
    request = msgspec.msgpack.encode(Request("x", (1, 1, 1), ("a",), final=True))
    label = Label(REQUEST, "tally.seen", "al@s2!1.1/1", "call", "al@s2!1.1")
    site.outbox.add(*site.order.send(Message("m1", 1, 1, request, label)))
    consumer = net.servers["s2"].channel.consumers["A"]
    consumer.perform(site.outbox.drain(), 0.0)
    for out in consumer.outgoing:
        net.boxes[out.peer].append(FromPeer(out.domain, "s2", out.content))
    net.round()
    net.round()
    net.round()
    assert net.counts() == {}
    assert not net.site("s1").table.instances


def test_only_operations_that_nothing_can_undo_may_be_answered_early() -> None:
    def declare(conflicts: list[str], annotation: object) -> None:
        def add(self: object) -> None: ...
        def read(self: object) -> int: ...

        add.__annotations__["return"] = annotation
        methods = {"add": operation(confirm=False)(add), "read": operation(conflicts_with=conflicts)(read)}
        type("Odd", (ReplicatedObject,), methods)

    declare([], None)
    for conflicts, annotation in (["add"], None), ([], int):
        with pytest.raises(ObjectError, match=r"Odd\.add: confirm=False is for operations that conflict with nothing"):
            declare(conflicts, annotation)


# Nested calls.


class Purse(ReplicatedObject):
    given: int = 0

    @operation(conflicts_with=["give"])
    def give(self, to: str, operation_: str, *arguments: Any) -> Generator[Call, Any, int]:
        self.given += 1
        yield Call(to, operation_, arguments)
        return self.given


class Nested(Net):
    """An object that calls a tally."""

    def __init__(self, purse: str, tally: str) -> None:
        ReplicaNet.__init__(self, topology(purse=purse, tally=tally), {"purse": Purse, "tally": Tally})
        self.numbers, self.sent = {}, []
        self.meet()

    def give(self, operation_: str, *given: Any) -> Returned:
        self.numbers["s1"] = number = self.numbers.get("s1", 0) + 1
        body = msgspec.msgpack.encode((60_000, ("tally", operation_, *given)))
        self.boxes["s1"].append(Published("al", number, ("purse()",), "give", body, ask=True))
        self.finish()
        return self.answers()[-1]


@pytest.mark.parametrize(("kind", "given"), [("add", ("a", 1)), ("confirm", ("a",))])
def test_replicas_on_the_same_servers_call_the_replica_beside_them(kind: str, given: tuple[Any, ...]) -> None:
    net = Nested("s1 s2 s3", "s1 s2 s3")
    assert net.give(kind, *given).value == 1
    assert len(net.sent) == 10, "those of a conflicting call, none for the nested one"
    assert net.counts() == {"a": 1}


def test_a_nested_call_that_fails_undoes_nothing_else_and_its_caller_fails() -> None:
    net = Nested("s1 s2 s3", "s1 s2 s3")
    assert "nothing to add" in net.give("add", "a", 0).reason
    assert net.give("add", "a", 2).value == 1
    assert net.counts() == {"a": 2}


@pytest.mark.parametrize(
    ("purse", "tally", "kind"),
    [
        ("s1 s2", "s1 s2 s3", "add"),
        ("s1 s2 s3", "s1 s2", "add"),
        ("s1 s2", "s2 s3", "add"),
        # One order everywhere, and values that might differ.
        ("s1 s2 s3", "s1 s2 s3", "seen"),
        ("s1 s2 s3", "s1 s2 s3", "count"),
    ],
)
def test_other_nested_calls_go_to_all_replicas(purse: str, tally: str, kind: str) -> None:
    net = Nested(purse, tally)
    assert net.give(kind, *(("a", 1) if kind == "add" else ("a",))).value == 1
    assert len(net.sent) > 10
    assert net.counts(*tally.split()) == {"a": 1}
