"""The id of a reaction is the same each time, also if its letter was not durable when the handler ran first."""

from typing import Any

from msgspec.msgpack import encode

from antecede.channel import Letter
from antecede.engine import Agent, Context, Engine, Host, Notification, React
from antecede.server import Retries


class Pay(Notification):
    amount: int


class Till(Agent):
    paid: int = 0

    def on_pay(self, pay: Pay, ctx: Context) -> None:
        self.paid += pay.amount
        if pay.amount > 10:
            keys.append(ctx.reaction_id)


class Deaf(Agent):
    """Ignores that it was stopped."""

    paid: int = 0

    def on_pay(self, pay: Pay, ctx: Context) -> None:
        self.paid += pay.amount
        try:
            keys.append(ctx.reaction_id)
        except BaseException:
            keys.append("none")


keys: list[str] = []


class _Silent:
    def info(self, event: str, **fields: Any) -> None: ...

    def warning(self, event: str, *, raised: BaseException | None = None, **fields: Any) -> None: ...

    def error(self, event: str, **fields: Any) -> None: ...


def test_an_agent_that_leaves_costs_the_others_nothing() -> None:
    retries = Retries(Engine(), lambda to: to, _Silent())
    host, due = _react(Till, [50], "s1", False)
    assert retries.settle(due, host.react(due), 0.0) == []
    assert not retries.waiting, "it has not failed"
    assert retries.is_careful(due)
    assert not retries.idle()
    retries.forget({"till"})
    assert retries.idle()


def _react(kind: type[Agent], amounts: list[int], source: str, durable: bool) -> tuple[Host, React]:
    host = Host("s1", lambda to: to)
    host.declare("till", kind)
    letters = tuple(
        Letter(f"{source}.7.{number}", "c@s1", ("till",), "Pay", encode(Pay(amount=amount)))
        for number, amount in enumerate(amounts)
    )
    return host, React("till", letters, ("",) * len(letters), None, durable)


def test_a_handler_that_asks_too_early_is_stopped_and_runs_again() -> None:
    keys.clear()
    host, due = _react(Till, [1, 2, 50, 3], "s1", False)
    outcome = host.react(due)
    assert outcome.too_early
    assert not keys
    assert [reaction.letter for reaction in outcome.reactions] == ["s1.7.0", "s1.7.1"]
    assert outcome.state == encode(Till(paid=3)), "the reactions before it are kept"


def test_durable_letters_and_letters_of_other_servers_have_their_ids_at_once() -> None:
    for source, durable in (("s1", True), ("s2", False)):
        keys.clear()
        host, due = _react(Till, [1, 50], source, durable)
        outcome = host.react(due)
        assert outcome.failure is None
        assert keys == [f"till:{source}.7.1"]


def test_a_handler_that_catches_everything_is_stopped_all_the_same() -> None:
    keys.clear()
    host, due = _react(Deaf, [50], "s1", False)
    outcome = host.react(due)
    assert outcome.too_early
    assert not outcome.reactions
    assert keys == ["none"]
