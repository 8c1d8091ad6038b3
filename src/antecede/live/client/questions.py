"""Open questions of a bus, and when each times out.

A timer per question would be set and cancelled with every question. There is one for all: it fires when the first of
the questions that were open when it was set is due, and then looks which are.
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
        """Nobody waits for the answer any more."""
        self._open.pop(ticket, None)

    def answer(self, ticket: Ticket | None) -> "asyncio.Future[Letter] | None":
        """Return what waits for the answer to a ticket."""
        question = None if ticket is None else self._open.get(ticket)
        return None if question is None else question.answer

    def fail(self, ticket: Ticket, error: AntecedeError) -> bool:
        """There will be no answer to this ticket. Return whether somebody was told."""
        question = self._open.pop(ticket, None)
        if question is None or question.answer.done():
            return False
        question.answer.set_exception(type(error)(str(error)))
        return True

    def fail_all(self, error: AntecedeError) -> None:
        """There will be no answers any more."""
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
        # What is due at the same millisecond is late together with the one that the timer was set for.
        now = max(loop.time(), self._timer_at)
        for question in self._open.values():
            if question.due <= now and not question.answer.done():
                late = f"no answer from {question.to} within {question.timeout} s"
                question.answer.set_exception(TimeoutError(late))
        waiting = [question.due for question in self._open.values() if not question.answer.done()]
        if waiting:
            self._set(min(waiting), loop)
