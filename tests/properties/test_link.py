"""Two links over a network that loses, duplicates and reorders everything, between ends that crash at any moment.

Each end is a small owner that keeps the link's one rule: nothing leaves it before the state that it follows from is
saved. A crash returns an end to what it saved last, with the applications' own sent and taken lists. In the end every
body that was durably sent is taken exactly once, nothing is kept, and memory is bounded. The same run must find the
bugs that are planted below.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antecede.errors import LinkError
from antecede.link import Ack, Arrival, Frame, Link, Numbers

Choose = Callable[[int], int]
"""A number from 0 to n-1: the dice, the test's or Hypothesis'."""

WINDOW = 6


class End:
    """A link with its owner: what it sent and took, what waits to be accepted, what may leave after a commit."""

    def __init__(self, kind: type[Link], incarnation: int) -> None:
        self.kind = kind
        self.link = self._new(incarnation)
        self.sent: list[bytes] = []
        self.taken: list[bytes] = []
        self.waiting: dict[int, bytes] = {}
        self.leaving: list[Frame | Ack] = []
        self.commit(0.0)

    def _new(self, incarnation: int) -> Link:
        link = self.kind(incarnation, 1.0)
        link.window, link.resend_cap = WINDOW, 8.0
        return link

    def send(self, now: float) -> None:
        body = b"%d:%d" % (self.link.incarnation, len(self.sent))
        self.sent.append(body)
        self.leaving.append(self.link.send(body, now))

    def receive(self, thing: Frame | Ack, now: float) -> None:
        if isinstance(thing, Ack):
            self.link.on_ack(thing, now)
        elif self.link.receive(thing) is Arrival.FRESH:
            assert thing.number not in self.waiting
            self.waiting[thing.number] = thing.body

    def accept(self, choose: Choose) -> None:
        if self.waiting:
            number = list(self.waiting)[choose(len(self.waiting))]
            self.link.accept(number)
            self.taken.append(self.waiting.pop(number))

    def commit(self, now: float) -> list[Frame | Ack]:
        self.saved = self.link.snapshot(), list(self.sent), list(self.taken)
        leaving, self.leaving = self.leaving, []
        ack = self.link.ack()
        return leaving if ack is None else [*leaving, ack]

    def crash(self, now: float) -> None:
        snapshot, sent, taken = self.saved
        self.link = self._new(self.link.incarnation)
        self.link.restore(snapshot, now)
        self.sent, self.taken = list(sent), list(taken)
        self.waiting, self.leaving = {}, []

    def check_memory(self) -> None:
        link = self.link
        assert link.pending == len(self.waiting) <= WINDOW
        assert link._accepted.beyond.bit_length() <= WINDOW
        assert link._acknowledged.beyond.bit_length() <= WINDOW
        assert len(link.timers) <= 2 * link.unacknowledged + 64


def play(kind: type[Link], choose: Choose, steps: int) -> None:
    """A run of ``steps`` adversarial steps, then a fair end."""
    ends = [End(kind, 1), End(kind, 2)]
    flying: list[tuple[int, Frame | Ack]] = []
    now = 0.0
    # With a short backlog the newest frame is often acknowledged; with a long one the window is full.
    backlog = (1, 4, 12)[choose(3)]
    for _ in range(steps):
        action, at = choose(16), choose(2)
        end = ends[at]
        if action < 3:
            if end.link.unacknowledged < backlog:
                end.send(now)
        elif action < 8 and flying:
            # Any thing in flight arrives, is lost, or arrives and stays in flight: reordering, loss, duplicates.
            index, fate = choose(len(flying)), choose(4)
            target, thing = flying[index]
            if fate != 1:
                del flying[index]
            if fate != 0:
                ends[target].receive(thing, now)
        elif action < 10:
            end.accept(choose)
        elif action < 13:
            flying.extend((1 - at, thing) for thing in end.commit(now))
        elif action < 15:
            now += choose(3)
            end.leaving.extend(end.link.tick(now))
        else:
            end.crash(now)
        end.check_memory()
    settle(ends, flying, now)
    for end, peer in (ends, ends[::-1]):
        assert sorted(peer.taken) == sorted(end.sent), "every body exactly once"
        assert (end.link.unacknowledged, end.link.pending, end.link.deadline()) == (0, 0, None)
        assert end.link._accepted.upto == peer.link.sent


def settle(ends: list[End], flying: list[tuple[int, Frame | Ack]], now: float) -> None:
    """Everything arrives and is accepted until both ends are quiet."""
    for _ in range(200):
        for at, end in enumerate(ends):
            for target, thing in flying:
                if target == at:
                    end.receive(thing, now)
            flying = [(target, thing) for target, thing in flying if target != at]
            while end.waiting:
                end.accept(lambda n: 0)
            flying.extend((1 - at, thing) for thing in end.commit(now))
        deadlines = [due for end in ends if (due := end.link.deadline()) is not None]
        if not flying and not deadlines:
            return
        if not flying:
            now = max(now, min(deadlines))
        for end in ends:
            end.leaving.extend(end.link.tick(now))
    raise AssertionError("the two ends never come to rest")


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(0, 120))
def test_every_body_is_taken_exactly_once(data: st.DataObject, steps: int) -> None:
    play(Link, lambda n: data.draw(st.integers(0, n - 1)), steps)


@pytest.mark.parametrize("seed", range(300))
def test_every_body_is_taken_exactly_once_in_long_runs(seed: int) -> None:
    play(Link, random.Random(seed).randrange, 500)


class AcknowledgesOnReceipt(Link):
    """Takes a frame for accepted as soon as it is received: a crash loses it."""

    def receive(self, frame: Frame) -> Arrival:
        arrival = super().receive(frame)
        if arrival is Arrival.FRESH:
            self._accepted.add(frame.number)
            self.ack_due = True
        return arrival

    def accept(self, number: int) -> None:
        self._received.remove(number)


class ForgetsAcceptedBeyond(Link):
    """Saves only the cumulative number: what was accepted beyond it is taken twice after a crash."""

    def dump(self) -> Any:
        *rest, _ = super().dump()
        return (*rest, 0)


class AcknowledgesTheLargest(Link):
    """Acknowledges up to the largest number accepted, holes included."""

    def ack(self) -> Ack | None:
        ack = super().ack()
        return ack and Ack(ack.source, ack.target, self._accepted.largest)


class ForgetsDuplicatesBeyond(Link):
    """Knows a duplicate only up to the cumulative number."""

    def receive(self, frame: Frame) -> Arrival:
        if frame.number > self._accepted.upto and frame.number in self._accepted:
            return Arrival.FRESH
        return super().receive(frame)

    def accept(self, number: int) -> None:
        if number not in self._accepted:
            super().accept(number)


class ResendsOnce(Link):
    """Does not arm the timer again: a frame lost twice is lost."""

    def tick(self, now: float) -> list[Frame]:
        frames = super().tick(now)
        again = {frame.number for frame in frames}
        self.timers = [timer for timer in self.timers if timer[1] not in again]
        return frames


class NeverAcknowledgesAgain(Link):
    """Says nothing to a copy of an accepted frame: a lost acknowledgement is never made good."""

    def receive(self, frame: Frame) -> Arrival:
        due = self.ack_due
        arrival = super().receive(frame)
        self.ack_due = due
        return arrival


class SavesWhatItReceived(Link):
    """Remembers received frames through a crash, though the bodies are gone."""

    def dump(self) -> Any:
        *rest, upto, beyond = super().dump()
        numbers = Numbers(upto, beyond)
        for number in self._received:
            numbers.add(number)
        return (*rest, numbers.upto, numbers.beyond)


class HasNoWindow(Link):
    """Admits whatever comes."""

    def receive(self, frame: Frame) -> Arrival:
        arrival = super().receive(frame)
        if arrival is Arrival.DROPPED:
            self._received.add(frame.number)
            return Arrival.FRESH
        return arrival


class ForgetsTheNumberGiven(Link):
    """After a restart goes on from the last number that it still keeps a body of, and so gives numbers twice."""

    def dump(self) -> Any:
        incarnation, peer, _, bodies, upto, beyond = super().dump()
        return incarnation, peer, max(bodies, default=self._acknowledged.upto), bodies, upto, beyond


@pytest.mark.parametrize(
    "broken",
    [
        AcknowledgesOnReceipt,
        ForgetsAcceptedBeyond,
        AcknowledgesTheLargest,
        ForgetsDuplicatesBeyond,
        ResendsOnce,
        NeverAcknowledgesAgain,
        SavesWhatItReceived,
        HasNoWindow,
        ForgetsTheNumberGiven,
    ],
)
def test_planted_bugs_are_caught(broken: type[Link]) -> None:
    def caught(seed: int) -> bool:
        try:
            play(broken, random.Random(seed).randrange, 500)
        except (AssertionError, LinkError):
            return True
        return False

    assert any(caught(seed) for seed in range(40))
