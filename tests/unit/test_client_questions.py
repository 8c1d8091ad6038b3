"""One timer for all open questions: each is late at its own time, and none that was answered."""

import asyncio

import pytest

from antecede.channel.letters import Letter
from antecede.errors import ClosedError
from antecede.live.client.questions import Questions
from antecede.live.client.ticket import Ticket


def _ticket(number: int) -> Ticket:
    return Ticket(number, "a", ("a",), "Note", True)


def test_each_question_is_late_at_its_own_time() -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        questions = Questions()
        first, second, third, fourth = map(_ticket, range(1, 5))
        long = questions.open(first, "a", 30.0, loop)
        short = questions.open(second, "b", 0.02, loop)
        answered = questions.open(third, "c", 0.01, loop)
        later = questions.open(fourth, "d", 0.06, loop)
        letter = Letter("s.1", "c", ("x",), "Note", b"", answers="?3")
        found = questions.answer(third)
        assert found is not None
        found.set_result(letter)
        questions.close(third)
        with pytest.raises(TimeoutError, match=r"no answer from b within 0.02 s"):
            await short.answer
        assert not later.answer.done(), "it has more time"
        assert await answered.answer is letter
        questions.close(second)
        with pytest.raises(TimeoutError, match="no answer from d"):
            await later.answer
        questions.fail_all(ClosedError("the bus is closed"))
        with pytest.raises(ClosedError):
            await long.answer

    asyncio.run(play())


def test_a_question_fails_once_and_unknown_tickets_have_no_answer() -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        questions = Questions()
        asked = _ticket(7)
        question = questions.open(asked, "a", 30.0, loop)
        asked.number = 8
        assert questions.answer(asked) is question.answer, "a question keeps its ticket, whatever its number"
        assert questions.answer(_ticket(7)) is None
        assert questions.answer(None) is None
        assert questions.fail(asked, ClosedError("gone"))
        assert not questions.fail(asked, ClosedError("gone"))
        with pytest.raises(ClosedError):
            await question.answer
        questions.fail_all(ClosedError("gone"))

    asyncio.run(play())
