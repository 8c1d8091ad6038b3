"""Planted bugs in ``none``, ``fifo``, ``matrix`` and ``vector`` (Garg chapter 12)."""

from collections.abc import Callable

from antecede.messages import (
    PERSIST,
    Deliver,
    Effects,
    Message,
    Packet,
    Persist,
    Send,
    Sent,
    Verdict,
    mask_of,
    members_of,
)
from antecede.orders import Fifo, Matrix, NoOrder
from antecede.orders.matrix import _row
from antecede.orders.vector import Vector
from antecede.simulator.schedules import Outcome

Caught = Callable[..., Outcome]


def test_no_order_is_not_fifo(caught: Caught) -> None:
    class Declared(NoOrder):
        guarantees = frozenset({"fifo"})

    caught(Declared, "fifo", budget=20)


def test_fifo_is_not_causal(caught: Caught) -> None:
    """Garg §12.1: FIFO does not order a chain through a third process."""

    class Declared(Fifo):
        guarantees = frozenset({"fifo", "causal"})

    caught(Declared, "causal", budget=20)


def test_causal_is_not_total(caught: Caught) -> None:
    class Declared(Matrix):
        guarantees = frozenset({"total"})

    caught(Declared, "total", budget=20)


def test_total_is_not_synchronous(caught: Caught) -> None:
    from antecede.orders import Lamport

    class Declared(Lamport):
        guarantees = frozenset({"total", "synchronous"})

    caught(Declared, "synchronous", budget=20)


def test_fifo_numbers_for_all_links_together_block(caught: Caught) -> None:
    class Global(Fifo):
        def send(self, message: Message) -> Effects:
            self.sent = [max(self.sent) + 1] * self.members
            return [PERSIST, Sent(message), *map(Send, self.copies(message, self.sent[0]))]

    caught(Global, "undelivered", budget=20)


def test_fifo_that_delivers_anything_newer_loses_the_older(caught: Caught) -> None:
    class Impatient(Fifo):
        def missing(self, packet: Packet) -> tuple[int, int] | None:
            return None

    caught(Impatient, "undelivered", budget=20)


def test_fifo_that_waits_for_other_senders_delays_needlessly(caught: Caught) -> None:
    """As if the links from all senders were one."""

    class Timid(Fifo):
        def missing(self, packet: Packet) -> tuple[int, int] | None:
            found = Fifo.missing(self, packet)
            for held in [] if packet in self._held.values() else self._held.values():
                found = found or Fifo.missing(self, held)
            return found

    caught(Timid, "needless", budget=50)


def test_self_send_blocks_in_figure_12_2(caught: Caught) -> None:
    """As printed, what was delivered is column i of M itself, which counts a self-send as soon as it is sent."""

    class Printed(Matrix):
        def missing(self, packet: Packet) -> tuple[int, int] | None:
            for k, row in enumerate(packet.stamp):
                known = self.rows[k][self.me] + (k == packet.source)
                if (k == packet.source and row[self.me] != known) or row[self.me] > known:
                    return k, row[self.me]
            return None

    caught(Printed, "undelivered", budget=20)


def test_less_or_equal_of_figure_12_4_delivers_a_duplicate_twice(caught: Caught) -> None:
    class Printed(Matrix):
        def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
            if self.number(packet) <= self.delivered[packet.source] and self.missing(packet) is None:
                assert packet.message is not None
                return Verdict.DELIVER, [PERSIST, Deliver(packet.message)]
            return super().receive(packet)

    caught(Printed, "twice", budget=50)


def test_multicast_as_a_loop_of_sends(caught: Caught) -> None:
    """294 of 1500 random runs. The first copies are stamped before the later ones are counted."""

    class Loop(Matrix):
        def send(self, message: Message) -> Effects:
            effects: Effects = [PERSIST, Sent(message)]
            for target in members_of(message.to):
                counts = list(self.rows[self.me][: self.members])
                counts[target] += 1
                self.rows[self.me] = _row(counts)
                effects += [Send(copy) for copy in self.copies(message, tuple(self.rows)) if copy.target == target]
            return effects

    caught(Loop, "causal", budget=50)


def test_matrix_that_looks_at_its_own_link_only(caught: Caught) -> None:
    class Narrow(Matrix):
        def missing(self, packet: Packet) -> tuple[int, int] | None:
            before = packet.stamp[packet.source][self.me] - 1
            return None if before <= self.delivered[packet.source] else (packet.source, before)

    caught(Narrow, "causal", budget=20)


def test_matrix_that_is_one_off_for_third_processes(caught: Caught) -> None:
    class Lenient(Matrix):
        def missing(self, packet: Packet) -> tuple[int, int] | None:
            missing = super().missing(packet)
            if missing and missing[0] != packet.source and missing[1] == self.delivered[missing[0]] + 1:
                return None
            return missing

    caught(Lenient, "causal", budget=20)


def test_matrix_that_learns_nothing_from_stamps(caught: Caught) -> None:
    class Closed(Matrix):
        def learn(self, packet: Packet) -> None:
            pass

    caught(Closed, "causal", budget=20)


def test_matrix_that_merges_at_arrival(caught: Caught) -> None:
    """Nothing is out of order, but later messages wait for what their sender had not delivered either."""

    class Hasty(Matrix):
        def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
            verdict, effects = super().receive(packet)
            if verdict is Verdict.HOLD:
                self.learn(packet)
            return verdict, effects

    caught(Hasty, "needless", budget=50)


def test_hold_back_queue_that_is_never_rescanned(caught: Caught) -> None:
    class Forgetful(Matrix):
        def _release(self, key: int, effects: Effects) -> None:
            pass

    caught(Forgetful, "undelivered", budget=20)


def test_hold_back_queue_that_is_rescanned_once_only(caught: Caught) -> None:
    """What a released message frees in turn stays."""

    class Shallow(Matrix):
        def _release(self, key: int, effects: Effects) -> None:
            for packet in self._parked.pop(key):
                if self.missing(packet) is None:
                    assert packet.message is not None
                    del self._held[self.number(packet) * self.members + packet.source]
                    self.delivered[packet.source] = self.number(packet)
                    self.learn(packet)
                    effects.append(Deliver(packet.message))

    caught(Shallow, "undelivered", budget=20)


def test_matrix_that_sends_before_it_is_durable(caught: Caught) -> None:
    """A crash between the two: the copies are out, and the next message gets the same number."""

    class Early(Matrix):
        def send(self, message: Message) -> Effects:
            effects = super().send(message)
            return [*(e for e in effects if isinstance(e, Send)), *(e for e in effects if not isinstance(e, Send))]

    caught(Early, "error", "stray", "undelivered", "causal", budget=200, faults=True)


def test_matrix_whose_deliveries_are_not_durable(caught: Caught) -> None:
    class Careless(Matrix):
        def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
            verdict, effects = super().receive(packet)
            return verdict, [effect for effect in effects if not isinstance(effect, Persist)]

    caught(Careless, "undelivered", budget=200, faults=True)


def test_matrix_whose_snapshot_forgets_the_others(caught: Caught) -> None:
    class Selfish(Matrix):
        def load(self, state: object) -> None:
            super().load(state)
            self.rows = [row if k == self.me else _row([0] * self.members) for k, row in enumerate(self.rows)]

    caught(Selfish, "causal", budget=400, faults=True)


def test_vector_on_subsets_blocks(caught: Caught) -> None:
    """On subsets it waits for broadcasts that never come."""

    class Anywhere(Vector):
        needs = frozenset[str]()

        def send(self, message: Message) -> Effects:
            everybody = Message(message.id, message.source, self.everyone | mask_of([self.me]))
            wanted = {effect.packet.target: effect for effect in super().send(everybody) if isinstance(effect, Send)}
            stamp = wanted[self.me].packet.stamp
            return [PERSIST, Sent(message), *map(Send, self.copies(message, stamp))]

    caught(Anywhere, "undelivered", budget=20)


def test_vector_that_takes_its_own_copy_for_delivered(caught: Caught) -> None:
    """A broadcast to oneself may be overtaken by an answer to it."""

    class Presumptuous(Vector):
        def missing(self, packet: Packet) -> tuple[int, int] | None:
            found = super().missing(packet)
            return None if found and found[0] == self.me else found

    caught(Presumptuous, "causal", budget=50)


def test_vector_that_looks_at_the_broadcaster_only(caught: Caught) -> None:
    class Narrow(Vector):
        def missing(self, packet: Packet) -> tuple[int, int] | None:
            found = super().missing(packet)
            return found if found and found[0] == packet.source else None

    caught(Narrow, "causal", "undelivered", budget=20)
