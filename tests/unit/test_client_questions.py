"""A client's open questions: each is late at its own time, ends once, and gets its own answer."""

import msgspec

from antecede.channel import Letter
from antecede.engine import Unanswered, name_of
from antecede.errors import ClosedError, OverloadError, UnansweredError
from antecede.server import Numbering, Questions, Ticket


class _World:
    def __init__(self) -> None:
        self.ended: dict[Ticket, Letter | Exception] = {}
        self.numbering: Numbering[Ticket] = Numbering(self._settled)
        self.questions: Questions[Ticket] = Questions(self.numbering, self.ended.__setitem__)

    def _settled(self, ticket: Ticket, error: Exception | None) -> None:
        if error is not None:
            self.questions.fail(ticket, error)

    def ask(self, to: str, timeout: float, now: float = 0.0) -> Ticket:
        ticket = Ticket(self.numbering.next, to, (to,), "Note", True)
        ticket.bodies.append(b"")
        self.questions.open(ticket, timeout, now)
        self.numbering.keep(ticket)
        return ticket

    def answer(self, number: int, kind: str = "Note", body: bytes = b"") -> Letter:
        letter = Letter(f"s.{number}", "c", ("x",), kind, body, answers=f"?{number}")
        self.questions.answered(letter)
        return letter


def test_each_question_is_late_at_its_own_time() -> None:
    world = _World()
    questions = world.questions
    long, short, asked, later = world.ask("a", 30.0), world.ask("b", 2.0), world.ask("c", 1.0), world.ask("d", 6.0)
    letter = world.answer(3)
    assert world.ended == {asked: letter}
    assert questions.deadline() is not None
    questions.expire(1.5)
    assert set(world.ended) == {asked}
    assert questions.deadline() == 2.0
    questions.expire(2.0)
    assert str(world.ended[short]) == "no answer from b within 2.0 s"
    questions.expire(6.5)
    assert isinstance(world.ended[later], TimeoutError)
    assert long not in world.ended
    questions.fail_all(ClosedError("the bus is closed"))
    assert isinstance(world.ended[long], ClosedError)
    questions.expire(40.0)
    assert questions.deadline() is None


def test_a_question_ends_once() -> None:
    world = _World()
    asked = world.ask("a", 30.0)
    letter = world.answer(1)
    world.answer(1)
    assert not world.questions.fail(asked, ClosedError("gone"))
    assert world.ended == {asked: letter}
    assert not len(world.questions)


def test_answers_to_nothing_are_dropped() -> None:
    world = _World()
    world.ask("a", 30.0)
    world.answer(2)
    world.questions.answered(Letter("s.9", "c", ("x",), "Note", b"", answers="?x"))
    assert not world.ended


def test_a_question_keeps_its_answer_when_it_gets_another_number() -> None:
    world = _World()
    refused, kept = world.ask("a", 30.0), world.ask("b", 30.0)
    world.numbering.refused(1, OverloadError("no such agent"), False)
    assert kept.number == 1
    letter = world.answer(1)
    assert world.ended[kept] is letter
    assert isinstance(world.ended[refused], OverloadError)


def test_the_number_of_a_refused_question_belongs_to_the_next() -> None:
    """Closing the refused one, which its owner does a little later, leaves the next one its answer."""
    world = _World()
    refused = world.ask("a", 30.0)
    world.numbering.refused(1, OverloadError("no such agent"), False)
    following = world.ask("b", 30.0)
    assert refused.number == following.number
    world.questions.close(refused)
    letter = world.answer(1)
    assert world.ended[following] is letter


def test_who_cannot_answer_says_so_at_once() -> None:
    world = _World()
    asked, strange = world.ask("a", 30.0), world.ask("b", 30.0)
    world.answer(1, name_of(Unanswered), msgspec.msgpack.encode(Unanswered(ask="?1", reason="no handler")))
    assert isinstance(world.ended[asked], UnansweredError)
    world.answer(2, name_of(Unanswered), b"\xc1")
    assert "does not fit" in str(world.ended[strange])
