"""Questions of a bus that nobody has answered yet, and when their time is up.

A timer for each would be set and cancelled with every question. There is one for all: it goes off when the first of
those that were open when it was set is due, and then looks which still are.
"""

import asyncio

from antecede.channel.letters import Letter
from antecede.errors import AntecedeError


class Question:
    """One of them."""

    __slots__ = ("answer", "due", "timeout", "to")

    def __init__(self, answer: "asyncio.Future[Letter]", to: str, timeout: float, due: float) -> None:
        self.answer = answer
        self.to = to
        self.timeout = timeout
        self.due = due


class Questions:
    """All of them, by the number of the publish that asked."""

    def __init__(self) -> None:
        self._open: dict[int, Question] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def open(self, number: int, to: str, timeout: float, loop: asyncio.AbstractEventLoop) -> Question:
        """A question is being asked."""
        due = loop.time() + timeout
        question = self._open[number] = Question(loop.create_future(), to, timeout, due)
        if self._timer is None or due < self._timer_at:
            self._set(due, loop)
        return question

    def close(self, number: int) -> None:
        """Nobody waits for the answer any more."""
        self._open.pop(number, None)

    def answer(self, quoted: str) -> "asyncio.Future[Letter] | None":
        """Who waits for an answer that quotes this."""
        question = self._open.get(int(quoted[1:])) if quoted[1:].isdecimal() else None
        return None if question is None else question.answer

    def moved(self, numbers: set[int]) -> dict[int, Question]:
        """Take those off that get other numbers."""
        return {number: self._open.pop(number) for number in numbers if number in self._open}

    def put(self, number: int, question: Question) -> None:
        """One of them under its new number."""
        self._open[number] = question

    def fail(self, number: int, error: AntecedeError) -> bool:
        """There will be no answer to this one; whether somebody was told."""
        question = self._open.pop(number, None)
        if question is None or question.answer.done():
            return False
        question.answer.set_exception(type(error)(str(error)))
        return True

    def fail_all(self, error: AntecedeError) -> None:
        """There will be no answer to any, nor to any that is asked later."""
        for number in list(self._open):
            self.fail(number, error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, due: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = loop.call_at(due, self._late, loop)

    def _late(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        # What is due at the same millisecond is late together with the one that the timer was set for.
        now = max(loop.time(), self._timer_at)
        for question in self._open.values():
            if question.due <= now and not question.answer.done():
                late = f"no answer from {question.to} within {question.timeout} s"
                question.answer.set_exception(TimeoutError(late))
        waiting = [question.due for question in self._open.values() if not question.answer.done()]
        if waiting:
            self._set(min(waiting), loop)
