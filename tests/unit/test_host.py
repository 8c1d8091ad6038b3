"""The host: whatever a handler raises is a failure, and no state is committed that cannot be read again."""

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from antecede.channel import Letter
from antecede.engine import Agent, Context, Host, Notification, Outcome, React, name_of
from antecede.failures import is_ctrl_c, noted
from antecede.testing import World


class Assign(Notification):
    field: str
    value: Any


class Fail(Notification):
    pass


class Exit(Notification):
    pass


class Create(Notification):
    number: Any


class Stop(Notification):
    pass


class Item(msgspec.Struct):
    name: str = ""


class Plain(Item):
    """As its base, but for its class."""


class Keeper(Agent):
    number: int = 0
    ratio: float = 0.0
    words: list[str] = msgspec.field(default_factory=list)
    item: Item | None = None
    seen: int = 0

    def on_assign(self, assign: Assign, ctx: Context) -> None:
        self.seen += 1
        setattr(self, assign.field, Plain() if assign.value == "plain" else assign.value)

    def on_fail(self, fail: Fail, ctx: Context) -> None:
        self.number = -1
        raise ValueError("no")

    def on_exit(self, exit_: Exit, ctx: Context) -> None:
        raise SystemExit(3)

    def on_create(self, create: Create, ctx: Context) -> None:
        ctx.create("child", Keeper(number=create.number))

    def on_stop(self, stop: Stop, ctx: Context) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def _react(*notifications: Notification, host: Host | None = None) -> Outcome:
    if host is None:
        host = Host("s1", lambda to: to)
        host.declare("keeper", Keeper)
    letters = tuple(
        Letter(f"m{place}", "alice@s1", ("keeper",), name_of(type(one)), msgspec.msgpack.encode(one))
        for place, one in enumerate(notifications)
    )
    return host.react(React("keeper", letters, ("",) * len(letters), None))


def _state(outcome: Outcome) -> Keeper:
    assert outcome.state is not None
    return msgspec.msgpack.decode(outcome.state, type=Keeper)


def test_the_reaction_that_made_a_bad_state_fails_and_those_before_it_stand() -> None:
    outcome = _react(Assign(field="number", value=1), Assign(field="number", value="x"), Assign(field="ratio", value=2))
    assert str(outcome.failure) == "agent keeper: field number of Keeper cannot be saved: Expected `int`, got `str`"
    assert [reaction.letter for reaction in outcome.reactions] == ["m0"]
    assert (_state(outcome).number, _state(outcome).seen) == (1, 1)


def test_a_bad_state_before_a_failure_is_found() -> None:
    for bad in (Assign(field="number", value="x"), Assign(field="item", value="plain")):
        outcome = _react(Assign(field="number", value=1), bad, Fail())
        assert [reaction.letter for reaction in outcome.reactions] == (
            ["m0"] if bad.field == "number" else ["m0", "m1"]
        )
        assert _state(outcome).number == 1


def test_a_batch_that_requests_nothing_is_a_list_of_letters() -> None:
    outcome = _react(Assign(field="number", value=1), Assign(field="number", value=2))
    assert (outcome.plain, outcome.reactions) == (["m0", "m1"], [])
    assert _state(outcome).seen == 2
    mixed = _react(Assign(field="number", value=1), Create(number=1), Assign(field="number", value=2))
    assert mixed.plain == []
    assert [(one.letter, len(one.births)) for one in mixed.reactions] == [("m0", 0), ("m1", 1), ("m2", 0)]


def test_letters_of_a_run_that_cannot_be_read_are_dead_and_the_others_handled() -> None:
    host = Host("s1", lambda to: to)
    host.declare("keeper", Keeper)
    good, bad = msgspec.msgpack.encode(Assign(field="number", value=1)), msgspec.msgpack.encode({"field": 7})
    bodies = [good, bad, good, b"\xc1", good]
    letters = tuple(Letter(f"m{at}", "alice@s1", ("keeper",), "Assign", body) for at, body in enumerate(bodies))
    for _ in range(2):  # The second time the decoder is known from the first letter on.
        outcome = host.react(React("keeper", letters, ("",) * len(letters), None))
        assert [bool(one.dead) for one in outcome.reactions] == [False, True, False, True, False]
        assert "Assign does not fit its fields" in outcome.reactions[1].dead
        assert outcome.failure is None
    assert _state(outcome).seen == 6


def test_a_struct_of_another_class_would_not_come_back() -> None:
    outcome = _react(Assign(field="item", value="plain"))
    assert (
        str(outcome.failure)
        == "agent keeper: field item of Keeper would be read back as another class: Plain becomes Item"
    )


def test_a_bad_state_that_the_same_batch_mends_is_never_committed_and_does_no_harm() -> None:
    outcome = _react(Assign(field="number", value="x"), Assign(field="number", value=2))
    assert outcome.failure is None
    assert _state(outcome).number == 2


def test_equal_values_in_another_form_are_kept() -> None:
    outcome = _react(Assign(field="ratio", value=1), Assign(field="words", value=("a", "b")))
    assert outcome.failure is None
    assert (_state(outcome).ratio, _state(outcome).words) == (1.0, ["a", "b"])


def test_an_agent_is_not_created_with_a_state_that_does_not_fit() -> None:
    outcome = _react(Create(number="x"))
    assert "agent child@s1: field number of Keeper cannot be saved" in str(outcome.failure)
    assert _react(Create(number=1)).failure is None


@pytest.fixture
def _plain_ctrl_c() -> Iterator[None]:
    """Python's own handler of Ctrl-C: a Spark session of another test may have installed one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_plain_ctrl_c")
def test_ctrl_c_in_a_handler_is_no_failure_of_it() -> None:
    with pytest.raises(KeyboardInterrupt), noted():
        _react(Stop())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with noted():
        assert not is_ctrl_c(KeyboardInterrupt()), "no signal came"


def test_a_simulated_world_treats_them_alike() -> None:
    text = """
    [servers]
    s1 = "tcp://127.0.0.1:7101"
    [domains]
    A = { servers = ["s1"] }
    [agents]
    keeper = { server = "s1", class = "shop:Keeper" }
    """
    world = World(text, agents={"keeper": Keeper})
    for notification in (Assign(field="number", value=5), Exit(), Assign(field="number", value="x"), Fail()):
        world.send("alice@s1", "keeper", notification)
    world.run()
    reasons = [dead.reason.partition(" (")[0] for dead in world.dead()]
    assert reasons == [
        "SystemExit: 3",
        "AgentError: agent keeper: field number of Keeper cannot be saved: Expected `int`, got `str`",
        "ValueError: no",
    ]
    assert world.state("keeper").number == 5
    world.check(dead=3)


class Say(Notification):
    pass


class Talker(Agent):
    said: int = 0

    def on_say(self, say: Say, ctx: Context) -> str:
        self.said += 1
        ctx.send("keeper", Fail())
        return "done"


class SlowTalker(Agent):
    said: int = 0

    async def on_say(self, say: Say, ctx: Context) -> str:
        self.said += 1
        ctx.send("keeper", Fail())
        return "done"


def test_a_text_that_a_handler_returns_means_nothing() -> None:
    for kind in (Talker, SlowTalker):
        host = Host("s1", lambda to: to)
        host.declare("talker", kind)
        letters = tuple(
            Letter(f"m{place}", "alice@s1", ("talker",), name_of(Say), msgspec.msgpack.encode(Say()))
            for place in range(3)
        )
        due = React("talker", letters, ("", "", ""), None)
        outcome = asyncio.run(host.react_async(due)) if host.is_async("talker") else host.react(due)
        assert [(one.dead, len(one.outbound)) for one in outcome.reactions] == [("", 1)] * 3
        assert outcome.state is not None
        assert msgspec.msgpack.decode(outcome.state, type=kind).said == 3
