"""One timer for all open questions: each is late at its own time, and none that was answered."""

import asyncio

import pytest

from antecede.channel.letters import Letter
from antecede.client.questions import Questions
from antecede.errors import ClosedError


def test_each_question_is_late_at_its_own_time() -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        questions = Questions()
        long = questions.open(1, "a", 30.0, loop)
        short = questions.open(2, "b", 0.02, loop)
        answered = questions.open(3, "c", 0.01, loop)
        later = questions.open(4, "d", 0.06, loop)
        letter = Letter("s.1", "c", ("x",), "Note", b"", answers="?3")
        found = questions.answer("?3")
        assert found is not None
        found.set_result(letter)
        questions.close(3)
        with pytest.raises(TimeoutError, match=r"no answer from b within 0.02 s"):
            await short.answer
        assert not later.answer.done(), "it has more time"
        assert await answered.answer is letter
        questions.close(2)
        with pytest.raises(TimeoutError, match="no answer from d"):
            await later.answer
        questions.fail_all(ClosedError("the bus is closed"))
        with pytest.raises(ClosedError):
            await long.answer

    asyncio.run(play())


def test_numbers_change_and_answers_that_quote_nothing_are_nobodys() -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        questions = Questions()
        question = questions.open(7, "a", 30.0, loop)
        for number, one in questions.moved({6, 7}).items():
            questions.put(number + 1, one)
        assert questions.answer("?7") is None
        assert questions.answer("?8") is question.answer
        assert questions.answer("") is None
        assert questions.answer("?x") is None
        assert questions.fail(8, ClosedError("gone"))
        assert not questions.fail(8, ClosedError("gone"))
        with pytest.raises(ClosedError):
            await question.answer
        questions.fail_all(ClosedError("gone"))

    asyncio.run(play())
