"""Open questions of a bus, and when each times out.

One timer per question would be set and cancelled with every question. So there is one timer for all. It fires when the
first question that was open when it was set is due, and then checks which ones are due.
"""

import asyncio

from antecede.channel.letters import Letter
from antecede.errors import AntecedeError
from antecede.live.client.ticket import Ticket


class Question:
    """One open question."""

    __slots__ = ("answer", "due", "timeout", "to")

    def __init__(self, answer: "asyncio.Future[Letter]", to: str, timeout: float, due: float) -> None:
        self.answer = answer
        self.to = to
        self.timeout = timeout
        self.due = due


class Questions:
    """All open questions, by the ticket that asked."""

    def __init__(self) -> None:
        self._open: dict[Ticket, Question] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def open(self, ticket: Ticket, to: str, timeout: float, loop: asyncio.AbstractEventLoop) -> Question:
        """Begin to wait for the answer to a ticket."""
        due = loop.time() + timeout
        question = self._open[ticket] = Question(loop.create_future(), to, timeout, due)
        if self._timer is None or due < self._timer_at:
            self._set(due, loop)
        return question

    def close(self, ticket: Ticket) -> None:
        """Stop waiting for the answer."""
        self._open.pop(ticket, None)

    def answer(self, ticket: Ticket | None) -> "asyncio.Future[Letter] | None":
        """Return the future that waits for the answer to a ticket."""
        question = None if ticket is None else self._open.get(ticket)
        return None if question is None else question.answer

    def fail(self, ticket: Ticket, error: AntecedeError) -> bool:
        """Fail the question of this ticket; return whether it was still open."""
        question = self._open.pop(ticket, None)
        if question is None or question.answer.done():
            return False
        question.answer.set_exception(type(error)(str(error)))
        return True

    def fail_all(self, error: AntecedeError) -> None:
        """Fail all questions."""
        for ticket in list(self._open):
            self.fail(ticket, error)
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
        # Questions due in the same millisecond expire together with the one that set the timer.
        now = max(loop.time(), self._timer_at)
        for question in self._open.values():
            if question.due <= now and not question.answer.done():
                late = f"no answer from {question.to} within {question.timeout} s"
                question.answer.set_exception(TimeoutError(late))
        waiting = [question.due for question in self._open.values() if not question.answer.done()]
        if waiting:
            self._set(min(waiting), loop)
