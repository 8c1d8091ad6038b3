"""The explorer catches broken orders, each by a shortest run, and what it prints is a scenario that tells them apart.

Every variant breaks one rule that the house's orders keep. The scenario must fail when it is played on the variant and
hold when it is played on the order as it should be.
"""

from collections.abc import Callable
from typing import Any

import pytest

from antecede.messages import COPY, PERSIST, Deliver, Effects, Message, Packet, Send, Verdict, members_of
from antecede.orders import (
    ACK,
    RELEASE,
    Buffer,
    Coordinator,
    Fifo,
    Lamport,
    Matrix,
    Order,
    OrderSpec,
    Pruned,
    Skeen,
    Updates,
    find,
)
from antecede.simulator.explorer import Violation, explore
from antecede.simulator.player import play
from antecede.simulator.scenario import parse_scenario


class MatrixOfOneLink(Matrix):
    """Waits for earlier messages of the sender, but not for those of others (the condition for k ≠ j is dropped)."""

    def missing(self, packet: Packet) -> tuple[int, int] | None:
        before = self.number(packet) - 1
        return (packet.source, before) if before > self.delivered[packet.source] else None


class MatrixLoop(Matrix):
    """A multicast as a loop of single sends: earlier copies do not know of later ones (Garg, Fig. 12.4's warning)."""

    def send(self, message: Message) -> Effects:
        effects = super().send(Message(message.id, message.source, 0, message.payload))[:2]
        for target in members_of(message.to):
            single = super().send(Message(message.id, message.source, 1 << target))[2]
            assert isinstance(single, Send)
            effects.append(Send(Packet(COPY, self.me, target, message, message.id, single.packet.stamp)))
        return effects


class PrunedForgets(Pruned):
    """A receiver does not log the message that it delivers (R4 left out)."""

    def learn(self, packet: Packet) -> None:
        before = self.log[packet.source]
        super().learn(packet)
        self.log[packet.source] = before


class PrunedAsPrinted(Pruned):
    """S2 takes the sender out of the destination sets, not the destinations of the message (Jang et al. §4.1)."""

    def _replace(self, to: int) -> dict[int, list[int]]:
        before = list(self.log)
        constraints = super()._replace(to)
        self.log = [
            tuple(value & ~(1 << self.me) if at & 1 else value for at, value in enumerate(log)) for log in before
        ]
        return constraints


class UpdatesFromZero(Updates):
    """State starts at 0, as printed: the first changes are never newer than what was stamped before."""

    def __init__(self, me: int, members: int, **options: object) -> None:
        super().__init__(me, members, **options)
        self.state = 0


class BufferTrustingTheLast(Buffer):
    """Pipelined, acknowledges whatever arrives, and takes one acknowledgement for that of all before (footnote 4)."""

    def _receive_numbered(self, packet: Packet) -> tuple[Verdict, Effects]:
        verdict, effects = super()._receive_numbered(packet)
        if verdict is Verdict.HOLD and not effects:
            effects = [Send(self.control(ACK, packet.source, packet.subject))]
        return verdict, effects

    def _acknowledged(self, packet: Packet) -> tuple[Verdict, Effects]:
        if packet.subject in self.posted:
            self.posted = {id_: entry for id_, entry in self.posted.items() if id_ >= packet.subject}
        return super()._acknowledged(packet)


class LamportAtOnce(Lamport):
    """A release delivers its message, whatever else is in the queue (as printed in Garg §12.3.2)."""

    def take(self, packet: Packet, effects: Effects) -> None:
        if packet.kind == RELEASE:
            entry = next(entry for entry in self._queue if entry[4] == packet.subject)
            self._queue.remove(entry)
            self._queue.sort()
            if entry[5] is not None:
                effects.append(Deliver(entry[5]))
        super().take(packet, effects)


class SkeenWithSlowClock(Skeen):
    """The clock does not advance to the final timestamp, as printed in Garg §12.3.3."""

    def _settle(self, key: tuple[int, int], time: int) -> None:
        clock = self.clock
        super()._settle(key, time)
        self.clock = clock


class CoordinatorWithHaste(Coordinator):
    """A sender delivers its own message to itself at once, not in its turn."""

    def send(self, message: Message) -> Effects:
        if not message.to >> self.me & 1:
            return super().send(message)
        others = Message(message.id, message.source, message.to & ~(1 << self.me), message.payload)
        return [*super().send(others), Deliver(message)]


class FifoImpatient(Fifo):
    """Skips what is missing, and takes it for a duplicate when it comes."""

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        if packet.stamp <= self.delivered[packet.source]:
            return Verdict.DUPLICATE, []
        self.delivered[packet.source] = packet.stamp
        assert packet.message is not None
        return Verdict.DELIVER, [PERSIST, Deliver(packet.message)]


class FifoFragile(Fifo):
    """Fails on the second message from one sender."""

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        if packet.stamp == 2:
            raise KeyError(packet.subject)
        return super().receive(packet)


def _tells_apart(violation: Violation, kind: type[Order], options: dict[str, object]) -> None:
    scenario = parse_scenario(violation.scenario.encode(), "explored")
    broken = play(scenario, OrderSpec(kind, options))
    assert broken.checked == 1
    assert not broken.holds
    correct = play(scenario, OrderSpec(find(kind.name), options))
    assert correct.checked == 1
    assert correct.holds, (violation.scenario, correct.failures)


@pytest.mark.parametrize(
    ("kind", "options", "scope", "found", "inputs"),
    [
        (MatrixOfOneLink, {}, (3, 3, "unicast"), "causal", 6),
        (MatrixLoop, {}, (3, 2, "multicast"), "causal", 5),
        (PrunedForgets, {}, (3, 3, "unicast"), "causal", 6),
        (PrunedAsPrinted, {}, (3, 3, "unicast"), "undelivered", 6),
        (UpdatesFromZero, {}, (3, 3, "unicast"), "causal", 6),
        (BufferTrustingTheLast, {"pipelined": True}, (3, 4, "unicast"), "causal", 9),
        (LamportAtOnce, {}, (3, 2, "multicast"), "causal", 13),
        (SkeenWithSlowClock, {}, (3, 2, "multicast"), "total", 14),
        (CoordinatorWithHaste, {}, (2, 2, "multicast"), "total", 4),
        (FifoImpatient, {}, (2, 2, "unicast"), "undelivered", 4),
    ],
)
def test_broken_order_is_caught_by_a_shortest_run(
    kind: type[Order], options: dict[str, object], scope: tuple[int, int, str], found: str, inputs: int
) -> None:
    violation = explore(
        OrderSpec(kind, options), *scope, to_self=kind in (CoordinatorWithHaste, PrunedAsPrinted)
    ).violation
    assert violation is not None
    assert violation.kind == found
    assert len(violation.actions) == inputs, violation.scenario
    _tells_apart(violation, kind, options)


@pytest.mark.parametrize(
    ("kind", "scope", "inputs"),
    [
        (MatrixOfOneLink, (3, 3, "unicast"), 6),
        (MatrixLoop, (3, 2, "multicast"), 5),
        (PrunedAsPrinted, (2, 3, "unicast"), 6),
        (CoordinatorWithHaste, (2, 2, "multicast"), 4),
        (FifoImpatient, (2, 2, "unicast"), 4),
    ],
)
def test_no_run_is_shorter(
    kind: type[Order], scope: tuple[int, int, str], inputs: int, naive_search: Callable[..., Any]
) -> None:
    to_self = kind in (CoordinatorWithHaste, PrunedAsPrinted)
    assert naive_search(kind, *scope, to_self=to_self).shortest == inputs


def test_an_order_that_fails_is_a_finding() -> None:
    violation = explore(OrderSpec(FifoFragile, {}), 2, 2).violation
    assert violation is not None
    assert violation.kind == "contract"
    assert "KeyError" in violation.text
    assert violation.scenario.splitlines()[-2:] == ["arrive m2 P2", "expect P2 delivered"]
    assert len(violation.actions) == 3


def test_a_function_that_makes_orders_can_be_explored() -> None:
    """So that a variant needs no name and no options."""
    assert explore(MatrixOfOneLink, 3, 3).violation is not None
    assert explore(Matrix, 3, 3).violation is None
    assert explore(lambda me, members: Buffer(me, members, pipelined=True), 3, 2).violation is None


def test_acknowledgements_in_sequence_may_be_trusted() -> None:
    """Where the receiver acknowledges only in sequence, the last acknowledgement does stand for all before it."""

    class InSequence(BufferTrustingTheLast):
        def _receive_numbered(self, packet: Packet) -> tuple[Verdict, Effects]:
            return Buffer._receive_numbered(self, packet)

    assert explore(OrderSpec(InSequence, {"pipelined": True}), 3, 4).violation is None
