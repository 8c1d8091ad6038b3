"""A client's open questions, without I/O: which answer belongs to which question, and when an answer is too late.

An answer quotes the number of the publish that asked the question. If a question is published again, it may have a new
number (see :class:`antecede.server.client.publishing.Numbering`). So a question is identified by its ticket, not by its
number. A question ends only one time: with its answer, with an error, or because its deadline has passed. Later answers
are dropped.

Each question has a deadline for its answer. The method ``deadline`` returns the earliest deadline of all open
questions. There is one exception: if the question with the earliest deadline is closed, the method still returns the
deadline of this closed question. Then ``expire`` is called earlier than necessary. This call finds the earliest
deadline of the questions that are still open. So no search is needed when a question is opened or closed.
"""

from collections.abc import Callable
from typing import Generic

import msgspec

from antecede.channel.letters import Letter
from antecede.engine.agents import Unanswered, name_of
from antecede.errors import AgentError, AntecedeError, UnansweredError, again
from antecede.server.client.publishing import Numbering, T

Ends = Callable[[T, Letter | Exception], None]
"""A function that is called when a question has ended. Its arguments are the ticket of the question, and either the
answer or the error that the program gets instead."""


class Questions(Generic[T]):
    """All open questions of one client. Each question is identified by its ticket."""

    def __init__(self, numbering: Numbering[T], ends: Ends[T]) -> None:
        self._numbering = numbering
        self._ends = ends
        self._open: dict[T, tuple[float, float]] = {}
        """The ticket of a question → the deadline for its answer, and its timeout in seconds."""
        self._due: float | None = None

    def __len__(self) -> int:
        return len(self._open)

    def open(self, ticket: T, timeout: float, now: float) -> float:
        """Begin to wait for the answer to a question. Its ``ticket`` must already have a number. Return the deadline
        for the answer."""
        due = now + timeout
        self._open[ticket] = (due, timeout)
        self._numbering.asks[ticket.number] = ticket
        if self._due is None or due < self._due:
            self._due = due
        return due

    def close(self, ticket: T) -> bool:
        """Forget a question, because the program no longer waits for the answer. Return whether the question was
        open."""
        if self._open.pop(ticket, None) is None:
            return False
        # The number of a refused question is used again, so a newer question may have it.
        if self._numbering.asks.get(ticket.number) is ticket:
            del self._numbering.asks[ticket.number]
        return True

    def answered(self, letter: Letter) -> None:
        """End the question that this letter answers, if the question is still open."""
        quoted = letter.answers[1:]
        ticket = self._numbering.asks.get(int(quoted)) if quoted.isdecimal() else None
        if ticket is not None and self.close(ticket):
            self._ends(ticket, _unanswered(letter) if letter.type == _unanswered_type else letter)

    def fail(self, ticket: T, error: Exception) -> bool:
        """End the question of this ticket: there will be no answer. Return whether the question was still open."""
        if not self.close(ticket):
            return False
        self._ends(ticket, error)
        return True

    def fail_all(self, error: AntecedeError) -> None:
        """End all questions: there will be no more answers."""
        for ticket in list(self._open):
            self.fail(ticket, again(error))

    def deadline(self) -> float | None:
        """Return the time at which ``expire`` must be called. Return None if no call is needed."""
        return self._due

    def expire(self, now: float) -> None:
        """End the questions whose deadline has passed."""
        late = [(ticket, timeout) for ticket, (due, timeout) in self._open.items() if due <= now]
        for ticket, timeout in late:
            asked = ticket.target if isinstance(ticket.target, str) else ", ".join(ticket.target)
            self.fail(ticket, TimeoutError(f"no answer from {asked} within {timeout} s"))
        self._due = min((due for due, _ in self._open.values()), default=None)


def _unanswered(letter: Letter) -> AgentError:
    try:
        unanswered = msgspec.msgpack.decode(letter.body, type=Unanswered)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return AgentError(f"the content of {letter.type} does not fit its fields: {error}")
    return UnansweredError(f"{letter.source} cannot answer: {unanswered.reason}")


_unanswered_type = name_of(Unanswered)
