"""Planted bugs in ``updates``: what Laumay et al. print in §3 and appendix A."""

from collections.abc import Callable

from antecede.messages import COPY, PERSIST, Effects, Message, Packet, Send, Sent, Verdict, members_of
from antecede.orders import Entry, OrderSpec, Updates
from antecede.simulator.explorer import ProgramSend, explore
from antecede.simulator.schedules import Outcome

Caught = Callable[..., Outcome]


def test_node_state_is_overwritten_before_the_set_is_computed(caught: Caught) -> None:
    """As printed: no entry is ever newer, every stamp is empty."""

    class Printed(Updates):
        def _changes(self, target: int) -> tuple[Entry, ...]:
            self.stamped[target] = self.state
            return super()._changes(target)

    caught(Printed, "causal", budget=20)


def test_states_that_start_at_zero(caught: Caught) -> None:
    """As printed: 0 > 0 is false, so that the first events are never told."""

    class Printed(Updates):
        def __init__(self, me: int, members: int, **options: object) -> None:
            super().__init__(me, members, **options)
            self.state = 0

    caught(Printed, "causal", budget=50)


class WithoutNumbers(Updates):
    """As printed: the deltas alone decide."""

    def missing(self, packet: Packet) -> tuple[int, int] | None:
        for line, column, value in packet.stamp[1]:
            if column == self.me and value > self.delivered[line]:
                return line, value
        return None

    def hold_again(self, packet: Packet) -> None:
        # Its later messages may have been delivered, so that ``receive`` would take it for a duplicate.
        line, value = self.missing(packet) or (0, 0)
        self._held[self.number(packet) * self.members + packet.source] = packet
        self._parked.setdefault(value * self.members + line, []).append(packet)


def test_deltas_without_the_number_on_the_link(caught: Caught) -> None:
    caught(WithoutNumbers, "causal", "undelivered", budget=20)


def test_deltas_without_numbers_fail_on_fifo_links_too() -> None:
    """x:0>2 is late, y:0>1, then z1 and z2:1>2; z1 is held, z2's delta is empty, so z2 passes z1."""
    to = (1, 2, 4)
    program = (
        (ProgramSend(to[2], name="x"), ProgramSend(to[1], name="y")),
        (ProgramSend(to[2], after=1, name="z1"), ProgramSend(to[2], after=1, name="z2")),
        (),
    )
    found = explore(OrderSpec(WithoutNumbers, {}), program=program, fifo_links=True).violation
    assert found is not None
    assert found.kind in ("fifo", "causal")
    assert explore("updates", program=program, fifo_links=True).violation is None


def test_merge_at_arrival_delays_needlessly(caught: Caught) -> None:
    class Hasty(Updates):
        def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
            verdict, effects = super().receive(packet)
            if verdict is Verdict.HOLD:
                self.learn(packet)
            return verdict, effects

    caught(Hasty, "needless", budget=50)


def test_multicast_as_a_loop_of_unicasts(caught: Caught) -> None:
    """116 to 150 of 400 random runs."""

    class Loop(Updates):
        def send(self, message: Message) -> Effects:
            effects: Effects = [PERSIST, Sent(message)]
            for target in members_of(message.to):
                single = super().send(Message(message.id, message.source, 1 << target))
                stamps = [effect.packet.stamp for effect in single if isinstance(effect, Send)]
                effects.append(Send(Packet(COPY, self.me, target, message, message.id, stamps[0])))
            return effects

    caught(Loop, "causal", budget=50)


def test_resend_with_a_recomputed_stamp(caught: Caught) -> None:
    """The second stamp lacks what the first one told; if it comes first, the first is its duplicate."""

    class Recomputing(Updates):
        def send(self, message: Message) -> Effects:
            effects = super().send(message)
            for packet in [effect.packet for effect in effects if isinstance(effect, Send)]:
                stamp = (packet.stamp[0], self._changes(packet.target))
                effects.append(Send(Packet(COPY, self.me, packet.target, message, message.id, stamp)))
            return effects

    caught(Recomputing, "causal", budget=100)


def test_members_messages_to_themselves_are_left_out(caught: Caught) -> None:
    """What j told us it need not hear again, except that we know of its messages to itself."""

    class Literal(Updates):
        def _changes(self, target: int) -> tuple[Entry, ...]:
            itself = target * self.members + target
            entry = self.entries.get(itself)
            told = target != self.me and entry is not None and entry[2] == target
            return tuple(c for c in super()._changes(target) if not (told and c[:2] == (target, target)))

    caught(Literal, "causal", budget=400)


def test_one_off_in_the_delivery_test(caught: Caught) -> None:
    class Lenient(Updates):
        def missing(self, packet: Packet) -> tuple[int, int] | None:
            found = super().missing(packet)
            lenient = found and found[0] != packet.source and found[1] == self.delivered[found[0]] + 1
            return None if lenient else found

    caught(Lenient, "causal", budget=50)
