"""Planted bugs in ``pruned`` (Jang et al. §4) and ``direct``."""

from collections.abc import Callable

import pytest

from antecede.messages import PERSIST, Deliver, Effects, Message, Packet, Send, Verdict
from antecede.orders import Direct, Log, Pruned, pruned
from antecede.simulator.schedules import Outcome

Caught = Callable[..., Outcome]


def test_s2_as_printed_removes_the_sender(caught: Caught) -> None:
    """*− i* claims that everything has arrived here, and whoever answers us believes it."""

    class Printed(Pruned):
        def _replace(self, to: int) -> dict[int, list[int]]:
            before = list(self.log)
            constraints = super()._replace(to)
            mine = ~(1 << self.me)
            for k, log in enumerate(before):
                self.log[k] = tuple(value & mine if at & 1 else value for at, value in enumerate(log))
            return constraints

    caught(Printed, "causal", budget=200)


def test_s2_that_removes_everybody(caught: Caught) -> None:
    class Eager(Pruned):
        def _replace(self, to: int) -> dict[int, list[int]]:
            constraints = super()._replace(to)
            self.log = [(log[-2], 0) if log else () for log in self.log]
            return constraints

    caught(Eager, "causal", budget=50)


def test_r5_that_compares_with_the_newest_of_both_logs(caught: Caught, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every entry older than the newest known one goes, also those that only one log could know."""

    def wrong(mine: Log, theirs: Log) -> Log:
        if not mine or not theirs or mine[-2] == theirs[-2]:
            return mine or theirs if not (mine and theirs) else (mine[-2], mine[-1] & theirs[-1])
        return (mine if mine[-2] > theirs[-2] else theirs)[-2:]

    monkeypatch.setattr(pruned, "merge_logs", wrong)
    caught(Pruned, "causal", budget=100)


def test_r6_that_trusts_the_other_log(caught: Caught, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruned, "merge_logs", lambda mine, theirs: theirs or mine)
    caught(Pruned, "causal", budget=50)


def test_duplicate_moves_dlv_backwards(caught: Caught) -> None:
    """As printed there is no test for a duplicate: DLV takes its number, and what follows waits for ever."""

    class Printed(Pruned):
        def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
            if self.number(packet) <= self.delivered[packet.source] and self.missing(packet) is None:
                assert packet.message is not None
                self.delivered[packet.source] = self.number(packet)
                self.learn(packet)
                return Verdict.DELIVER, [PERSIST, Deliver(packet.message)]
            return super().receive(packet)

    caught(Printed, "twice", budget=50)
    caught(Printed, "undelivered", budget=400)


def test_merge_at_arrival_delays_needlessly(caught: Caught) -> None:
    class Hasty(Pruned):
        def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
            verdict, effects = super().receive(packet)
            if verdict is Verdict.HOLD:
                self.learn(packet)
            return verdict, effects

    caught(Hasty, "needless", "causal", budget=50)


def test_delivery_constraints_are_left_out(caught: Caught) -> None:
    class Careless(Pruned):
        def missing(self, packet: Packet) -> tuple[int, int] | None:
            return None

    caught(Careless, "causal", budget=20)


def test_last_constraint_is_left_out(caught: Caught) -> None:
    class Short(Pruned):
        def _replace(self, to: int) -> dict[int, list[int]]:
            return {bit: found[:-2] for bit, found in super()._replace(to).items()}

    caught(Short, "causal", budget=50)


def test_received_message_is_not_logged(caught: Caught) -> None:
    """R4 left out: its other destinations are forgotten."""

    class Forgetful(Pruned):
        def learn(self, packet: Packet) -> None:
            before = self.log[packet.source]
            super().learn(packet)
            self.log[packet.source] = before

    caught(Forgetful, "causal", budget=50)


def test_sent_message_is_not_logged(caught: Caught) -> None:
    """S5 left out."""

    class Forgetful(Pruned):
        def send(self, message: Message) -> Effects:
            before = self.log[self.me]
            effects = super().send(message)
            self.log[self.me] = before
            return effects

    caught(Forgetful, "causal", budget=20)


def test_direct_that_takes_what_is_on_its_way_for_delivered(caught: Caught) -> None:
    """The original's ``recent`` is before[i], in which a message to oneself may still be on its way."""

    class Original(Direct):
        def send(self, message: Message) -> Effects:
            self.recent = {**self.recent, **self.before[self.me]}
            return super().send(message)

    caught(Original, "causal", budget=400)


def test_direct_without_the_message_as_a_predecessor(caught: Caught) -> None:
    """Towards its other destinations a delivered message must stand for what it carried."""

    class Forgetful(Direct):
        def learn(self, packet: Packet) -> None:
            super().learn(packet)
            stamp = packet.stamp
            for p, newest in enumerate(self.before):
                if p != self.me and newest.get(packet.source) == stamp.time:
                    self.before[p] = {k: time for k, time in newest.items() if k != packet.source}

    caught(Forgetful, "causal", budget=50)


def test_direct_that_replaces_everybodys_predecessors(caught: Caught) -> None:
    class Eager(Direct):
        def send(self, message: Message) -> Effects:
            effects = super().send(message)
            if any(isinstance(effect, Send) for effect in effects):
                self.before = [{self.me: self.time} if message.to >> p & 1 else {} for p in range(self.members)]
            return effects

    caught(Eager, "causal", budget=50)
