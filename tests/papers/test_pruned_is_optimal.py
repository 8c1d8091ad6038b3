"""The log of Jang et al. §4 is that of Kshemkalyani and Singhal's optimal algorithm, after every step.

``Optimal`` is the latter, written from its own description: a process keeps LOG, a set of (sender, time, Dests), and
SR, the time of the last message delivered from each. What travels to d names the other destinations of the message no
more, for *they* are told themselves. At delivery two logs are merged by the rule that an entry which one of them must
have known and no longer lists was found redundant there; and of the entries without destinations only the newest of
each sender is kept.

What differs harmlessly: the optimal algorithm removes an entry that has become empty at the next send or delivery,
where ours removes it at once.
"""

from collections.abc import Iterator

import pytest

from antecede.messages import Deliver, Message, Packet, Send, members_of
from antecede.orders import Log, Pruned, pruned
from antecede.simulator.draws import below, stream, subset

Entries = dict[tuple[int, int], frozenset[int]]
"""(sender, time) → destinations."""


def _purged(log: Entries) -> Entries:
    """Without those empty entries of which the sender has a newer entry."""
    newest: dict[int, int] = {}
    for sender, time in log:
        newest[sender] = max(newest.get(sender, 0), time)
    return {(sender, time): to for (sender, time), to in log.items() if to or time == newest[sender]}


class Optimal:
    """Kshemkalyani and Singhal's process."""

    def __init__(self, me: int, members: int) -> None:
        self.me = me
        self.clock = 0
        self.log: Entries = {}
        self.delivered = [0] * members
        self.waiting: list[tuple[int, int, frozenset[int], Entries]] = []

    def send(self, to: frozenset[int]) -> dict[int, tuple[int, int, frozenset[int], Entries]]:
        self.clock += 1
        packets = {}
        for d in to:
            carried = {key: (dests - to) | (dests & {d}) for key, dests in self.log.items()}
            packets[d] = (self.me, self.clock, to, _purged(carried))
        self.log = _purged({key: dests - to for key, dests in self.log.items()})
        self.log[self.me, self.clock] = to
        return packets

    def receive(self, packet: tuple[int, int, frozenset[int], Entries]) -> list[tuple[int, int]]:
        """What is delivered, as (sender, time), now that this packet has arrived."""
        self.waiting.append(packet)
        delivered = []
        while ready := [waiting for waiting in self.waiting if self._deliverable(waiting[3])]:
            self.waiting.remove(ready[0])
            self._deliver(*ready[0])
            delivered.append(ready[0][:2])
        return delivered

    def _deliverable(self, carried: Entries) -> bool:
        return all(time <= self.delivered[sender] for (sender, time), to in carried.items() if self.me in to)

    def _deliver(self, sender: int, time: int, to: frozenset[int], carried: Entries) -> None:
        self.delivered[sender] = time
        theirs = {key: dests - {self.me} for key, dests in {**carried, (sender, time): to}.items()}
        mine = self.log

        def known(log: Entries, key: tuple[int, int]) -> bool:
            """Does the log list it, or at least nothing newer of that sender?"""
            return key in log or not any(other[0] == key[0] and other[1] > key[1] for other in log)

        kept = [key for key in {**mine, **theirs} if known(mine, key) and known(theirs, key)]
        both = {**mine, **theirs}
        merged = {key: mine.get(key, both[key]) & theirs.get(key, both[key]) for key in kept}
        self.log = _purged(merged)


def _entries(order: Pruned) -> Entries:
    return {
        (k, time): frozenset(members_of(to))
        for k, log in enumerate(order.log)
        for time, to in zip(log[::2], log[1::2], strict=True)
    }


def _compared(seed: int) -> Iterator[tuple[Entries, Entries]]:
    """Both logs of whoever moved, after each step of one random schedule; deliveries are compared on the way."""
    rng = stream(seed, "optimal")
    members = 2 + below(rng, 5)
    ours = [Pruned(me, members) for me in range(members)]
    theirs = [Optimal(me, members) for me in range(members)]
    single = rng.random() < 0.4
    flying: list[tuple[Packet, tuple[int, int, frozenset[int], Entries]]] = []
    left = 30
    while left or flying:
        if left and (not flying or rng.random() < 0.4):
            left -= 1
            me = below(rng, members)
            to = subset(rng, list(range(members)), 1 if single else 1 + below(rng, members))
            effects = ours[me].send(Message(f"{me}.{ours[me].time + 1}", me, to))
            packets = theirs[me].send(frozenset(members_of(to)))
            flying += [(e.packet, packets[e.packet.target]) for e in effects if isinstance(e, Send)]
        else:
            packet, other = flying.pop(below(rng, len(flying)))
            me = packet.target
            _, effects = ours[me].receive(packet)
            delivered = {e.message.id for e in effects if isinstance(e, Deliver)}
            assert delivered == {f"{sender}.{time}" for sender, time in theirs[me].receive(other)}
        yield _entries(ours[me]), _purged(theirs[me].log)


def _differs(seeds: range) -> bool:
    return any(ours != theirs for seed in seeds for ours, theirs in _compared(seed))


def test_logs_are_equal_after_every_step(seeds: int) -> None:
    for seed in range(seeds):
        for step, (ours, theirs) in enumerate(_compared(seed)):
            assert ours == theirs, f"seed {seed}, step {step}"


def test_newest_entry_dropped_when_it_is_empty_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 and R9 read the other way: order is kept, but what was found redundant comes back from other logs."""
    real = pruned.merge_logs

    def wrong(mine: Log, theirs: Log) -> Log:
        merged = real(mine, theirs)
        return merged[:-2] if merged and not merged[-1] else merged

    monkeypatch.setattr(pruned, "merge_logs", wrong)
    assert _differs(range(20))


def test_logs_united_instead_of_intersected_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """R6 the other way round: order is kept, at the price of entries that say nothing."""

    def wrong(mine: Log, theirs: Log) -> Log:
        merged = {time: to for log in (mine, theirs) for time, to in zip(log[::2], log[1::2], strict=True)}
        for log in (mine, theirs):
            for time, to in zip(log[::2], log[1::2], strict=True):
                merged[time] |= to
        return tuple(value for time in sorted(merged) for value in (time, merged[time]))

    monkeypatch.setattr(pruned, "merge_logs", wrong)
    assert _differs(range(20))


def test_entry_of_a_received_message_that_keeps_its_receiver_is_seen() -> None:
    """R4 without *just delivered*."""

    class Verbose(Pruned):
        def learn(self, packet: Packet) -> None:
            super().learn(packet)
            log = self.log[packet.source]
            if log and log[-2] == packet.stamp[0].time:
                self.log[packet.source] = (*log[:-1], log[-1] | 1 << self.me)

    order, optimal = Verbose(1, 2), Optimal(1, 2)
    sender, other = Pruned(0, 2), Optimal(0, 2)
    effects = sender.send(Message("m", 0, 0b10))
    order.receive(next(effect.packet for effect in effects if isinstance(effect, Send)))
    optimal.receive(other.send(frozenset({1}))[1])
    assert _entries(order) != optimal.log
