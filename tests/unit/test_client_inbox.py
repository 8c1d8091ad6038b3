"""A client's letters: handled in sequence, reported after their handlers, tried again, dead."""

from antecede import limits
from antecede.channel import Letter
from antecede.server import Inbox


class _World:
    def __init__(self) -> None:
        self.answers: list[str] = []
        self.done: list[tuple[list[str], str]] = []
        self.begun: list[str] = []
        self.inbox = Inbox(
            lambda letter: self.answers.append(letter.id),
            lambda ids, dead: self.done.append((ids, dead)),
            self.begun.append,
        )

    def deliver(self, *ids: str) -> None:
        """Letters whose id begins with ``?`` are answers."""
        self.inbox.delivered([_letter(one) for one in ids])

    def handle(self, now: float = 0.0) -> list[str]:
        """Handle everything that is to be handled now."""
        called = []
        while (letter := self.inbox.next(now)) is not None:
            called.append(letter.id)
            self.inbox.handled()
        return called


def _letter(id_: str) -> Letter:
    return Letter(id_, "a", ("b",), "Note", b"", answers="?1" if id_[0] == "?" else "")


def test_letters_are_reported_after_their_handlers_and_together() -> None:
    world = _World()
    world.deliver("1", "2")
    assert world.inbox.next(0.0) == _letter("1")
    assert world.inbox.running
    assert not world.done
    world.inbox.handled()
    assert world.handle() == ["2"]
    assert world.done == [(["1", "2"], "")]
    assert not world.inbox.waiting


def test_answers_keep_their_place() -> None:
    world = _World()
    world.deliver("?1", "2", "?3")
    assert world.answers == ["?1"]
    assert world.done == [(["?1"], "")]
    world.deliver("?4")
    assert world.answers == ["?1"]
    assert world.handle() == ["2"]
    assert world.answers == ["?1", "?3", "?4"]
    assert world.done[1:] == [(["2", "?3", "?4"], "")]


def test_a_failing_handler_is_tried_again_with_growing_pauses_and_then_dead() -> None:
    world = _World()
    world.deliver("1", "2")
    now, pauses = 0.0, []
    for _ in range(limits.reaction_tries_max):
        assert world.inbox.next(now) == _letter("1")
        world.inbox.failed("it broke", now)
        due = world.inbox.deadline()
        if due is None:
            break
        pauses.append(round(due - now, 6))
        assert world.inbox.next((now + due) / 2) is None
        now = due
    assert pauses == [limits.reaction_pause_seconds * 2**place for place in range(limits.reaction_tries_max - 1)]
    assert world.done == [(["1"], "it broke")]
    assert world.handle(now) == ["2"]


def test_what_comes_again_is_reported_and_not_handled_again() -> None:
    world = _World()
    world.deliver("1", "2", "3")
    assert world.inbox.next(0.0) == _letter("1")
    world.inbox.handled()
    assert world.inbox.next(0.0) == _letter("2")
    world.inbox.begin()
    world.deliver("1", "2", "3")
    world.inbox.dead("no handler")
    assert not world.done, "it came on a connection that is gone"
    assert world.handle() == ["3"]
    assert world.done == [(["1", "2"], "no handler"), (["3"], "")]
