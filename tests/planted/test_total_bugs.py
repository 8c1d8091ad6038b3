"""Planted bugs in the total orders and in ``synchronous`` (Garg §12.3)."""

from collections.abc import Callable
from heapq import heapify

from antecede.messages import (
    COPY,
    PERSIST,
    Deliver,
    Effects,
    Message,
    Packet,
    Persist,
    Send,
    Sent,
    Verdict,
    members_of,
)
from antecede.orders import RELEASE, Coordinator, Lamport, Skeen, Synchronous, Token
from antecede.simulator.schedules import Outcome

Caught = Callable[..., Outcome]


def test_lamport_release_that_delivers_at_once(caught: Caught) -> None:
    """As printed; 1178 of 1500 random runs."""

    class Printed(Lamport):
        def take(self, packet: Packet, effects: Effects) -> None:
            if packet.kind == RELEASE:
                for entry in self._queue:
                    if entry[1:3] == (packet.source, packet.stamp[1]):
                        self._queue.remove(entry)
                        heapify(self._queue)
                        self.released[packet.source] = packet.stamp[1]
                        if entry[-1] is not None:
                            effects.append(Deliver(entry[-1]))
                        break
            super().take(packet, effects)

    caught(Printed, "total", budget=20)


def test_lamport_without_fifo_numbers(caught: Caught) -> None:
    class Unnumbered(Lamport):
        def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
            effects: Effects = [PERSIST]
            self.taken[packet.source] = max(self.taken[packet.source], packet.stamp[0])
            self.take(packet, effects)
            return Verdict.DELIVER, effects

    caught(Unnumbered, "total", budget=50)


def test_lamport_that_does_not_wait_for_acknowledgements(caught: Caught) -> None:
    class Impatient(Lamport):
        def others(self) -> list[int]:
            return []

        def _advance(self, effects: Effects) -> None:
            before = self.released[self.me]
            super()._advance(effects)
            for number in range(before + 1, self.released[self.me] + 1):
                for target in range(self.members):
                    if target != self.me:
                        effects.append(Send(self.next_packet(RELEASE, target, None, "", number)))

    caught(Impatient, "total", budget=50)


def test_lamport_whose_clock_ignores_arrivals(caught: Caught) -> None:
    class Deaf(Lamport):
        def take(self, packet: Packet, effects: Effects) -> None:
            clock = self.clock
            super().take(packet, effects)
            self.clock = clock

    caught(Deaf, "causal", "total", "undelivered", budget=50)


def test_lamport_that_acknowledges_before_it_is_durable(caught: Caught) -> None:
    class Careless(Lamport):
        def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
            verdict, effects = super().receive(packet)
            return verdict, [effect for effect in effects if not isinstance(effect, Persist)]

    caught(Careless, "undelivered", "error", "total", budget=100, faults=True)


def test_skeen_without_a_tie_break(caught: Caught) -> None:
    """Equal timestamps: each destination goes by its own sequence of arrival."""

    class Untied(Skeen):
        def _deliver(self, effects: Effects) -> None:
            while self._places:
                key = min(self._places, key=lambda key: self._places[key].time)
                if not self._places[key].final:
                    return
                effects.append(Deliver(self._places.pop(key).message))

    caught(Untied, "total", budget=100)


def test_skeen_whose_clock_does_not_reach_the_final_timestamp(caught: Caught) -> None:
    """131 of 1500 random runs."""

    class Lagging(Skeen):
        def _settle(self, key: tuple[int, int], time: int) -> None:
            clock = self.clock
            super()._settle(key, time)
            self.clock = clock

        def _count(self, key: tuple[int, int], time: int, effects: Effects) -> None:
            clock = self.clock
            super()._count(key, time, effects)
            self.clock = clock

    caught(Lagging, "total", budget=200)


def test_skeen_as_printed_is_neither_causal_nor_fifo(caught: Caught) -> None:
    """349 of 1500 random runs."""

    class Declared(Skeen):
        guarantees = frozenset({"fifo", "causal", "total"})

    caught(Declared, "causal", budget=50)
    caught(Declared, "fifo", budget=50)


def test_skeen_that_takes_the_first_proposal(caught: Caught) -> None:
    class First(Skeen):
        def _count(self, key: tuple[int, int], time: int, effects: Effects) -> None:
            vote = self._votes[key]
            super()._count(key, vote.best or time, effects)

    caught(First, "total", budget=50)


def test_skeen_that_delivers_what_is_not_final(caught: Caught) -> None:
    class Eager(Skeen):
        def _deliver(self, effects: Effects) -> None:
            for place in self._places.values():
                place.final = True
            super()._deliver(effects)

    caught(Eager, "total", "undelivered", budget=50)


def test_coordinator_whose_senders_deliver_at_once(caught: Caught) -> None:
    """1407 of 1500 random runs."""

    class Printed(Coordinator):
        def send(self, message: Message) -> Effects:
            effects = super().send(message)
            if message.to >> self.me & 1:
                effects.append(Deliver(message))
            return effects

        def take(self, packet: Packet, effects: Effects) -> None:
            super().take(packet, effects)
            effects[:] = [e for e in effects if not (isinstance(e, Deliver) and e.message.source == self.me)]

    caught(Printed, "total", budget=20)


def test_coordinator_without_fifo_links(caught: Caught) -> None:
    class Unnumbered(Coordinator):
        def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
            effects: Effects = [PERSIST]
            message = packet.message
            assert message is not None
            if packet.source == self.coordinator:
                effects.append(Deliver(message))
            else:
                for target in members_of(message.to):
                    effects.append(Send(self.next_packet(COPY, target, message, message.id)))
            return Verdict.DELIVER, effects

    caught(Unnumbered, "fifo", budget=20)
    caught(Unnumbered, "total", budget=20)


def test_traffic_past_the_coordinator(caught: Caught) -> None:
    """Total and causal only for traffic that goes through it."""

    class Bypass(Coordinator):
        def send(self, message: Message) -> Effects:
            if message.to.bit_count() == 1 and self.me != self.coordinator:
                return [PERSIST, Sent(message), *map(Send, self.copies(message, (0,)))]
            return super().send(message)

        def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
            if packet.stamp == (0,):
                assert packet.message is not None
                return Verdict.DELIVER, [PERSIST, Deliver(packet.message)]
            return super().receive(packet)

    caught(Bypass, "causal", budget=20)


def test_token_with_global_numbers_blocks_on_subsets(caught: Caught) -> None:
    class Global(Token):
        def _post(self, message: Message, effects: Effects) -> None:
            self.numbers = [self.numbers[0] + 1] * self.members
            for target in members_of(message.to):
                stamp = (self.numbers[0],)
                effects.append(Send(Packet(COPY, self.me, target, message, message.id, stamp)))

    caught(Global, "undelivered", budget=20)


def test_token_that_is_accepted_twice(caught: Caught) -> None:
    class Credulous(Token):
        def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
            if packet.kind == "token" and packet.stamp[0] <= self.passes:
                self.passes = packet.stamp[0] - 1
            return super().receive(packet)

    caught(Credulous, "total", "duplicate", budget=100)


def test_token_holder_that_goes_on_numbering(caught: Caught) -> None:
    class Greedy(Token):
        def send(self, message: Message) -> Effects:
            self.holding, held = True, self.holding
            effects = super().send(message)
            self.holding = held
            return effects

    caught(Greedy, "total", "undelivered", budget=20)


def test_token_delivered_without_sequence(caught: Caught) -> None:
    class Impatient(Token):
        def _receive_copy(self, packet: Packet) -> tuple[Verdict, Effects]:
            assert packet.message is not None
            return Verdict.DELIVER, [PERSIST, Deliver(packet.message)]

    caught(Impatient, "total", budget=20)


def test_synchronous_without_the_senders_own_lock(caught: Caught) -> None:
    class Unlocked(Synchronous):
        def needed(self, message: Message) -> int:
            return message.to

    caught(Unlocked, "synchronous", budget=20)


def test_synchronous_with_locks_in_any_order_deadlocks(caught: Caught) -> None:
    """The obvious rendezvous; Mattern and Fünfrocken, Fig. 1."""

    class OwnFirst(Synchronous):
        def following(self, missing: int) -> int:
            return self.me if missing >> self.me & 1 else super().following(missing)

    caught(OwnFirst, "undelivered", budget=20)
