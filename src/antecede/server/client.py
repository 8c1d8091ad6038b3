"""A *line*: a client's connection to its server, without I/O. For publishes see
:mod:`antecede.server.client`.

The owner of the line opens the connection when ``dials`` returns True. Then the line sends the hello. (The owner is a
simulated client, or a ``TcpLine``, which serves a :class:`antecede.live.client.Bus`.) The server accepts the client
with a *welcome*. After a broken connection the line requests another dial, with growing pauses, for as long as the
client exists. The line ends when the server closes the connection permanently, for example because of a wrong token, or
because another client has the same name. The line reads the credentials again in two cases: the client or the server
does not prove its identity, or the client's key is revoked. It then requests another dial only if the credentials have
changed, or if a key was revoked and the client has a second key, or if a server that has once welcomed the client does
not prove its identity.

A client with credentials obeys nothing that comes before the server's proof of its identity: no end and no new address.

A server forgets a temporary client that closes its connection, or that is disconnected for too long. So the line of a
temporary client also ends if the server may have forgotten the client. Otherwise the client would repeat its last
publishes, and the server might accept them as new publishes.

The owner decides what to publish and what to do with letters. A line has no clock and no random numbers: callers pass
them.
"""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from antecede import limits, wire
from antecede.access import Refusal
from antecede.access.authoriser import REVOKED
from antecede.access.proof import NOT_PROVEN, Dialing, Keyring
from antecede.channel.letters import Letter, body_fault, decode_train, envelope_fault
from antecede.engine.agents import Unanswered, name_of
from antecede.errors import (
    AgentError,
    AntecedeError,
    MailboxFullError,
    NoRouteError,
    NotAllowedError,
    OverloadError,
    RefusedError,
    UnansweredError,
    UnknownAgentError,
    UsageError,
    again,
)
from antecede.limits import letter_bytes_max, publish_batch_max, train_bytes_max
from antecede.server.connections import (
    CLOSED_AT_ONCE,
    NO_WELCOME,
    Backoff,
    Connection,
    is_last_try,
    keep_alive,
    pause_after,
)

# The publishes of a client, without I/O. A *publish* is one notification or one question that the client sends.
#
# **Numbers.** Publishes are numbered 1, 2, 3 … without gaps. The client keeps each publish until the server has
# accepted
# it. When the client connects again, the server's welcome message contains the number of the last publish that the
# server
# has. The client sends only the later publishes again, so the server gets no publish twice. If the server refuses a
# publish, the server also skips the later publishes. The client gives the skipped publishes new numbers and sends them
# again (``Numbering.refused``).
#
# **Overload.** If the server refuses a publish because it is overloaded, nothing later is accepted before this publish.
# After a pause the client sends the first batch again. When the server has accepted it, the client sends two batches,
# then four, and so on, until all batches are sent. Meanwhile new batches wait.
#
# **Batches.** Consecutive notifications share a batch if they have the same type, destinations, label and trace
# context.
# The number of notifications in a batch is limited, and so is their size. The batch that is being filled is sent when
# the
# next publish cannot be added to it, or when the owner calls ``flush``. (The owner is a
# :class:`antecede.live.client.Bus`, or a simulated client.) When a batch is begun, ``flush_soon`` asks the owner to
# call
# ``flush`` soon. A batch also contains the ids of letters that the client began to handle before or between these
# publishes. So the server's trace can show the delivery of such a letter before the publishes that follow it.
#
# **The window.** The number of publishes that are not accepted yet is limited. If a client exceeds the limit by more
# than
# one full batch, the server closes the connection. The owner should publish nothing while ``Numbering.crowded`` is
# true.
# If the owner obeys this rule, it can always fill and send its next batch without exceeding the limit.
#
# The owner decides what to publish, and when to flush.


class Ticket:
    """A batch of publishes: one question, or one or several notifications of one type to the same destinations."""

    __slots__ = ("ask", "begun", "bodies", "bytes", "context", "kind", "number", "target", "to")

    def __init__(
        self, number: int, target: str | tuple[str, ...], to: tuple[str, ...], kind: str, ask: bool, context: str = ""
    ) -> None:
        self.number = number
        """The number of the first publish."""
        self.target = target
        """The destinations as the caller gave them: one address, or a tuple. A tuple is not sorted, and may
        contain duplicates."""
        self.to = to
        self.kind = kind
        self.ask = ask
        self.context = context
        """The trace context and the label of all these publishes, as in ``Letter.context``. It is empty if there is
        neither a trace context nor a label."""
        self.begun: list[tuple[int, str]] = []
        """Pairs (position in the batch, id of a letter). The client began to handle this letter before the publish at
        this position."""
        self.bodies: list[bytes] = []
        self.bytes = 0

    def drop(self, count: int) -> None:
        """Remove the first ``count`` publishes of the batch, because the server has accepted them. The batch then
        begins with the next publish."""
        self.number += count
        self.begun = [(max(0, place - count), letter) for place, letter in self.begun]
        del self.bodies[:count]


T = TypeVar("T", bound=Ticket)


class Numbering(Generic[T]):
    """The publishes of one client that are not accepted yet, and the next number."""

    def __init__(self, settled: Callable[[T, AntecedeError | None], None]) -> None:
        """``settled``: a function that is called once for each ticket. Its second argument is None if the publish was
        accepted, and otherwise the error."""
        self._settled = settled
        self.next = 1
        """The number of the first publish that was not sent yet."""
        self.accepted_upto = 0
        self.open: T | None = None
        """The batch that is being filled; it has a number, but was not sent yet."""
        self.tickets: deque[T] = deque()
        """Batches that were sent and are not accepted yet, in the sequence of their numbers."""
        self.asks: dict[int, T] = {}
        """The questions that wait for an answer: the number of the question's publish → the ticket of the question.
        The answer will quote this number."""
        self.crowded = False
        """Whether the owner should publish nothing for now, because too many publishes are not accepted yet. The batch
        that is being filled is ignored here, because it is short. Programs read this value for each message, so it is
        stored, not computed."""

    def keep(self, ticket: T) -> None:
        """Keep a complete ticket until it is accepted."""
        self.next = ticket.number + len(ticket.bodies)
        self.tickets.append(ticket)
        self._weigh()

    def _weigh(self) -> None:
        self.crowded = self.next - 1 - self.accepted_upto > limits.publish_window_max // 2

    @property
    def last(self) -> int:
        """The number of the newest publish."""
        return self.next - 1 + (0 if self.open is None else len(self.open.bodies))

    @property
    def outstanding(self) -> int:
        """How many publishes are not accepted yet."""
        return self.last - self.accepted_upto

    def accepted(self, upto: int) -> None:
        """Remove all publishes up to this number, because the server has accepted them. Call ``settled`` for each
        ticket that is completely accepted."""
        self.accepted_upto = max(self.accepted_upto, upto)
        self._weigh()
        tickets = self.tickets
        while tickets and tickets[0].number <= upto:
            ticket = tickets[0]
            known = upto + 1 - ticket.number
            if known < len(ticket.bodies):
                # A part of a batch: after a broken connection, or because ``Sessions.publish`` has cut the batch.
                ticket.drop(known)
                return
            tickets.popleft()
            self._settled(ticket, None)

    def welcomed(self, last: int) -> AntecedeError | None:
        """Process a welcome message: the server has this client's publishes up to ``last``. Number the other publishes
        again, from ``last`` + 1. The caller must then send them again. Return an error if the client cannot continue,
        otherwise None."""
        if self.tickets and last >= self.next:
            return UsageError("another client publishes under the same name: expected one at a time")
        if last < self.accepted_upto:
            lost = f"it had accepted {self.accepted_upto} publishes and now has {last}"
            return RefusedError(f"the server lost its data: {lost}", "data-lost")
        self.accepted(last)
        self.next = last + 1
        self._renumber()
        return None

    def refused(self, number: int, error: AntecedeError, retry: bool) -> AntecedeError | None:
        """Process a refusal: the server has accepted neither the batch that begins with this number nor the batches
        after it. Unless ``retry`` is true, the first batch fails, and the others get new numbers. The caller must send
        all remaining batches again. Return an error if the client cannot continue, otherwise None."""
        tickets = self.tickets
        if not tickets or tickets[0].number != number:
            return UsageError(f"the server refused publish {number}, which is not the first that waits for an answer")
        if not retry:
            self.next = number
            self._settled(tickets.popleft(), error)
            self._renumber()
        return None

    def fail(self, error: AntecedeError) -> None:
        """Report the error for all publishes that are not accepted yet. The caller calls this method when the client
        will not connect again."""
        tickets, self.tickets = self.tickets, deque()
        if self.open is not None:
            tickets.append(self.open)
            self.open = None
        self.next = self.accepted_upto + 1
        self._weigh()
        for ticket in tickets:
            self._settled(ticket, error)

    def _renumber(self) -> None:
        self._weigh()
        tickets, self.tickets = self.tickets, deque()
        moved = [*tickets, *([] if self.open is None else [self.open])]
        asks = {id(ticket): self.asks.pop(ticket.number) for ticket in moved if ticket.number in self.asks}
        for ticket in moved:
            ticket.number = self.next
            if id(ticket) in asks:
                self.asks[ticket.number] = ticket
            if ticket is not self.open:
                self.keep(ticket)


class Publishing(Generic[T]):
    """Publishes the notifications and questions of one client process: puts them into batches and sends the batches."""

    def __init__(
        self,
        ticket: Callable[[int, str | tuple[str, ...], tuple[str, ...], str, bool, str], T],
        settled: Callable[[T, AntecedeError | None], None],
        send: Callable[[T, bool], None],
        flush_soon: Callable[[], None],
        resend_later: Callable[[float], None],
    ) -> None:
        """``ticket``: makes a ticket. ``settled``: a function that is called once for each ticket. Its second argument
        is None if the publish was accepted, and otherwise the error. ``send``: sends a ticket. Its second argument is
        True if no other ticket is ready to be sent (this is the case in ``flush``). ``flush_soon``: called when a batch
        was begun. The owner must then call ``flush`` soon. ``resend_later``: called after a refusal because of
        overload. The owner must then call ``resend`` after this number of seconds."""
        self.numbering: Numbering[T] = Numbering(settled)
        self._ticket = ticket
        self._send = send
        self._flush_soon = flush_soon
        self._resend_later = resend_later
        self._flushing = False
        self.closed: AntecedeError | None = None
        """The reason why nothing more can be published. If it is None, publishing is possible."""
        self.overload = ""
        """Why the server accepts nothing for now; empty if it accepts publishes."""
        self._pause = overload_pause_seconds
        self._together: int | None = None
        """After an overload: how many batches may be sent now (0 during the pause). None if all batches were sent."""
        self._awaited = 0
        """After an overload: the number of the last publish that was sent. When it is accepted, more are sent."""
        self._begun = ""
        """The id of the last letter that the client has begun to handle. It is empty if the client has not begun to
        handle any letter."""

    def put(self, to: str | Iterable[str], kind: str, body: bytes, context: str = "") -> T:
        """Publish a notification; return the batch that contains it."""
        ticket = self.numbering.open
        if (
            ticket is None
            or ticket.target != to
            or ticket.kind != kind
            or ticket.context != context
            or len(ticket.bodies) >= publish_batch_max
            or ticket.bytes > train_bytes_max
        ):
            if not isinstance(to, str | tuple):
                # A list never equals the tuple of the open batch.
                return self.put(tuple(to), kind, body, context)
            ticket = self._open(to, kind, context)
        size = len(body)
        if size > letter_bytes_max:
            raise UsageError(body_fault(size))
        ticket.bodies.append(body)
        ticket.bytes += size
        return ticket

    def check_room(self, count: int) -> None:
        """Raise an error if it is not possible now to publish ``count`` notifications in one call."""
        if self.closed is not None:
            raise again(self.closed)
        if count > limits.publish_many_max:
            raise UsageError(f"{count} notifications in one call: expected at most {limits.publish_many_max}")
        outstanding = self.numbering.outstanding
        if outstanding + count > limits.publish_window_max:
            reason = f" ({self.overload})" if self.overload else ""
            raise OverloadError(
                f"{outstanding} publishes are not accepted yet{reason}: await bus.ready() or a ticket first"
            )

    def put_many(self, to: str | Iterable[str], groups: list[tuple[str, str, list[bytes]]]) -> list[T]:
        """Publish several groups of notifications; return the batches. Each group is a tuple of a type, a context and a
        list of bodies. If one notification is malformed, none is published. Call ``check_room`` first."""
        target, targets = _targets(to)
        for kind, _, bodies in groups:
            fault = envelope_fault(targets, kind) or body_fault(max(map(len, bodies)))
            if fault:
                raise UsageError(fault)
        return [ticket for group in groups for ticket in self._fill(target, *group)]

    def _fill(self, to: str | tuple[str, ...], kind: str, context: str, bodies: list[bytes]) -> list[T]:
        """Put bodies into batches; return the batches."""
        tickets, at = [], 0
        while at < len(bodies):
            # The first one begins a batch, if it must.
            ticket = self.put(to, kind, bodies[at], context)
            at += 1
            piece = bodies[at : at + publish_batch_max - len(ticket.bodies)]
            while piece and ticket.bytes + sum(map(len, piece)) > train_bytes_max:
                del piece[len(piece) // 2 :]
            ticket.bodies += piece
            ticket.bytes += sum(map(len, piece))
            at += len(piece)
            tickets.append(ticket)
        return tickets

    def ask(self, to: str | Iterable[str], kind: str, body: bytes, context: str = "") -> T:
        """Create the ticket of a question and give it a number. The caller must pass the ticket to ``send``
        immediately."""
        if len(body) > letter_bytes_max:
            raise UsageError(body_fault(len(body)))
        ticket = self._begin(to, kind, context, ask=True)
        ticket.bodies.append(body)
        return ticket

    def send(self, ticket: T) -> None:
        """Send a question, and keep its ticket until the server has accepted it."""
        self.numbering.keep(ticket)
        if self._together is None:
            self._send(ticket, False)

    def flush(self) -> None:
        """Send the batch that is being filled."""
        self._flushing = False
        self._send_open(True)

    def _open(self, to: str | Iterable[str], kind: str, context: str) -> T:
        """Begin the next batch."""
        ticket = self.numbering.open = self._begin(to, kind, context)
        if not self._flushing:
            self._flushing = True
            self._flush_soon()
        return ticket

    def _begin(self, to: str | Iterable[str], kind: str, context: str, *, ask: bool = False) -> T:
        numbering = self.numbering
        if numbering.open is not None:
            self._send_open(False)
        # Otherwise there is room: at most half of the window is used.
        if numbering.crowded or self.closed is not None:
            self.check_room(1)
        target, targets = _targets(to)
        fault = envelope_fault(targets, kind)
        if fault:
            raise UsageError(fault)
        ticket = self._ticket(numbering.next, target, targets, kind, ask, context)
        if self._begun:
            ticket.begun.append((0, self._begun))
        return ticket

    def begins(self, letter: str) -> None:
        """Record that the client begins to handle this letter. In the server's trace, the delivery of this letter comes
        before all publishes that the client makes after this call."""
        ticket, self._begun = self.numbering.open, letter
        if ticket is not None:
            begun, place = ticket.begun, len(ticket.bodies)
            if begun and begun[-1][0] == place:
                # Nothing was published since that letter; this one comes after it.
                begun.pop()
            begun.append((place, letter))

    def _send_open(self, last: bool) -> None:
        numbering = self.numbering
        ticket, numbering.open = numbering.open, None
        if ticket is not None and ticket.bodies:
            if ticket.begun and ticket.begun[-1][0] == len(ticket.bodies):
                ticket.begun.pop()
            numbering.keep(ticket)
            if self._together is None:
                self._send(ticket, last)

    # From the server.

    def welcomed(self, last: int) -> AntecedeError | None:
        """Process a welcome message: the server has the publishes up to ``last``. Send all later publishes again.
        Return an error if the client cannot continue, otherwise None."""
        wrong = self.numbering.welcomed(last)
        if wrong is None:
            self.overload, self._together = "", None
            self._send_again()
        return wrong

    def accepted(self, upto: int) -> None:
        """Process an acceptance: the server has all publishes up to this number."""
        self.numbering.accepted(upto)
        if self._together and upto >= self._awaited:
            self.overload, self._pause = "", overload_pause_seconds
            self._together *= 2
            self._send_again()

    def refused(self, number: int, error: AntecedeError, retry: bool) -> AntecedeError | None:
        """Process a refusal of the batch that begins with this number (see ``Numbering.refused``). Send the remaining
        batches again, but after a pause if the server is overloaded (``retry``). Return an error if the client cannot
        continue, otherwise None."""
        wrong = self.numbering.refused(number, error, retry)
        if wrong is not None:
            return wrong
        if retry:
            self.overload, self._together = str(error), 0
            self._resend_later(self._pause)
            self._pause = min(2 * self._pause, overload_pause_seconds_max)
        else:
            self._send_again()
        return None

    def resend(self) -> None:
        """Send the first batch again after the pause for an overload."""
        if self._together == 0 and self.closed is None:
            self._together = 1
            self._send_again()

    @property
    def held(self) -> bool:
        """Whether batches wait for the end of an overload."""
        return self._together is not None

    def _send_again(self) -> None:
        tickets = self.numbering.tickets
        if self._together is not None and len(tickets) <= self._together:
            self._together = None
        for ticket in islice(tickets, self._together):
            self._send(ticket, False)
            self._awaited = ticket.number + len(ticket.bodies) - 1

    def fail(self, error: AntecedeError) -> AntecedeError:
        """Report the error for all publishes that are not accepted yet, and publish nothing from now on. The caller
        calls this method when the client will not connect again. Return the error that was given in the first call of
        this method."""
        self.closed = self.closed or error
        self.numbering.fail(self.closed)
        return self.closed


def _targets(to: str | Iterable[str]) -> tuple[str | tuple[str, ...], tuple[str, ...]]:
    """Return the destinations in two forms: as the caller gave them, and as a sorted tuple without duplicates."""
    target = to if isinstance(to, str) else tuple(to)
    targets = (target,) if isinstance(target, str) else tuple(sorted(set(target)))
    if not targets:
        raise UsageError("a send without a destination: expected one agent or more")
    return target, targets


overload_pause_seconds: Final = 0.05
"""How long a client waits after the server refused a publish because of overload. Each further refusal doubles this
time."""
overload_pause_seconds_max: Final = 1.0


# A client's open questions, without I/O: which answer belongs to which question, and when an answer is too late.
#
# An answer quotes the number of the publish that asked the question. If a question is published again, it may have a
# new number (see :class:`antecede.server.client.Numbering`). So a question is identified by its ticket, not by its
# number. A question ends only one time: with its answer, with an error, or because its deadline has passed. Later
# answers are dropped.
#
# Each question has a deadline for its answer. The method ``deadline`` returns the earliest deadline of all open
# questions. There is one exception: if the question with the earliest deadline is closed, the method still returns the
# deadline of this closed question. Then ``expire`` is called earlier than necessary. This call finds the earliest
# deadline of the questions that are still open. So no search is needed when a question is opened or closed.


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


# The letters that a client receives, without I/O: when each letter is handled, tried again, given up and reported.
#
# Letters are handled one after the other, in their sequence. Each letter is reported to the server as done **after its
# handler has returned**. Until a letter is reported, the server keeps it, and hands it out again on the next
# connection. If a letter that was already handled comes again, it is reported as done again, and its handler is not
# called.
#
# A handler that fails is called again after a pause, which grows with each try. Meanwhile later letters wait. If the
# last try fails, the letter is reported as dead, with the reason. An answer to one of the client's own questions needs
# no handler. The program gets the answer after all earlier letters are handled.
#
# While ``waiting`` is true, the owner of the inbox (a bus, or a simulated client) calls ``next``:
#
#     letter = inbox.next(now)
#
# If ``letter`` is None, the owner waits until ``deadline``, or for more letters. Otherwise the owner calls the handler
# of the letter, and then reports the result by one of these calls:
#
#     inbox.handled()
#     inbox.failed(reason, now)
#     inbox.dead(reason)


class Inbox:
    """The letters that one client receives, on all its connections, one connection after the other."""

    def __init__(
        self,
        answered: Callable[[Letter], None],
        done: Callable[[list[str], str], None],
        begins: Callable[[str], None],
    ) -> None:
        """``answered``: a function that handles an answer. ``done``: a function that reports the ids of letters to the
        server as done. If the last of these letters is dead (given up), the second argument of ``done`` is the reason.
        Otherwise this argument is empty. ``begins``: a function that is called with a letter's id before a handler
        gets the letter."""
        self._answered = answered
        self._done = done
        self._begins = begins
        self._letters: deque[Letter] = deque()
        """Letters that were delivered on this connection and are not yet handled."""
        self._reported: list[str] = []
        """The ids of the letters that were handled on this connection and must still be reported as done."""
        self._handled: dict[str, str] = {}
        """The id of a letter that was handled recently → the reason why the letter is dead, or an empty text if it is
        not dead."""
        self._current: Letter | None = None
        """The letter whose handler runs, or will be called again after a pause. It is None if there is no such
        letter."""
        self._outdated = False
        """Whether the current letter arrived on an earlier connection, not on the present one."""
        self._tries = 0
        self._try_at = 0.0
        self.running = False
        """Whether a handler runs."""

    def begin(self) -> None:
        """Record that a new connection has begun. Forget the letters that still wait, and the ids that were not yet
        reported as done. The server sends all these letters again."""
        self._letters.clear()
        self._reported.clear()
        self._outdated = True

    def delivered(self, letters: list[Letter]) -> None:
        """Add letters that have arrived. If all earlier letters have been handled, the answers at the beginning of
        ``letters`` are handled immediately."""
        if not self._letters and self._current is None:
            answers = 0
            while answers < len(letters) and letters[answers].answers:
                self._answered(letters[answers])
                answers += 1
            if answers:
                self._done([letter.id for letter in letters[:answers]], "")
                letters = letters[answers:]
        self._letters.extend(letters)

    @property
    def waiting(self) -> bool:
        """Whether there is a letter that must still be handled, or must still be reported as handled."""
        return bool(self._letters or self._current or self._reported)

    def next(self, now: float) -> Letter | None:
        """Return the letter whose handler must be called now. Return None if no letter needs a handler, or if the next
        letter must wait until it is tried again."""
        if self._current is None:
            self._current = self._take()
        if self._current is None or now < self._try_at:
            self._report("")
            return None
        self.running = True
        self._begins(self._current.id)
        return self._current

    def deadline(self) -> float | None:
        """Return the time at which the handler of the current letter must be called again. Return None if a handler
        runs, or if there is no current letter."""
        return None if self._current is None or self.running else self._try_at

    def handled(self) -> None:
        """Record that the handler has returned."""
        self.dead("")

    def failed(self, reason: str, now: float) -> None:
        """Record that the handler failed. If this was the last try, the letter is dead. Otherwise the handler is called
        again after a pause."""
        self._tries += 1
        if is_last_try(self._tries):
            self.dead(reason)
        else:
            self.running = False
            self._try_at = now + pause_after(self._tries)

    def dead(self, reason: str) -> None:
        """End the handling of the current letter. If ``reason`` is empty, the letter was handled. Otherwise the letter
        is dead for this reason."""
        letter = self._current
        assert letter is not None
        self._current, self.running = None, False
        self._settle(letter, reason, self._outdated)

    def _take(self) -> Letter | None:
        """Remove letters from the queue until one of them needs a handler, and return this letter. Return None if no
        letter in the queue needs a handler. The other removed letters are answers, or were already handled. This method
        processes them."""
        self._outdated, self._tries, self._try_at = False, 0, 0.0
        while self._letters:
            letter = self._letters.popleft()
            if letter.id in self._handled:
                self._settle(letter, self._handled[letter.id], outdated=False)
            elif letter.answers:
                self._begins(letter.id)
                self._answered(letter)
                self._settle(letter, "", outdated=False)
            else:
                return letter
        return None

    def _settle(self, letter: Letter, dead: str, outdated: bool) -> None:
        self._handled[letter.id] = dead
        if len(self._handled) > _handled_max:
            del self._handled[next(iter(self._handled))]
        if not outdated:
            # Otherwise the letter comes again on the next connection, and is reported then.
            self._reported.append(letter.id)
            if dead or len(self._reported) >= _done_together:
                self._report(dead)

    def _report(self, dead: str) -> None:
        if self._reported:
            reported, self._reported = self._reported, []
            self._done(reported, dead)


_done_together: Final = 256
_handled_max: Final = 4 * limits.reactions_together_max


class LineOwner(Protocol):
    """The owner of a line: the line calls these methods to report what the server sends."""

    name: str

    def welcomed(self, address: str, last: int) -> None:
        """Handle the server's welcome. The server accepts this client, and has already accepted its publishes up to
        number ``last``."""
        ...

    def accepted(self, upto: int) -> None:
        """Record that the server has accepted all publishes up to this number."""
        ...

    def refused(self, number: int, error: AntecedeError, retry: bool) -> None:
        """Handle the refusal of the publish with this number. The server has not accepted later publishes either.
        ``retry``: whether the server may accept the same publish later."""
        ...

    def delivered(self, letters: list[Letter]) -> None:
        """Handle letters that have arrived."""
        ...

    def gone(self, error: AntecedeError) -> None:
        """Record that the connection was closed permanently, for the reason ``error``."""
        ...


class ClientLine:
    """The connection of a client to its server. The same object is used for all reconnections."""

    def __init__(
        self,
        owner: LineOwner,
        token: str,
        flush_soon: Callable[[], None],
        clock: Callable[[], float],
        random: Callable[[], float],
        keyring: Keyring | None = None,
    ) -> None:
        """``flush_soon``: called when there is something to write. The owner must then call ``flush`` soon. ``clock``:
        a clock in seconds that continues while the machine sleeps. ``random``: returns numbers from 0 to 1, which vary
        the pauses before dialing. ``keyring``:
        the client's identity, for servers with an access file."""
        self._owner = owner
        self._keyring = keyring
        self._proof: Dialing | None = None
        """The proof of identity that is in progress, or None if no proof is in progress."""
        self._left = False
        """True if this client has closed the connection because the server did not prove its identity."""
        self._token = token
        self._flush_soon = flush_soon
        self._clock = clock
        self._random = random
        self._temporary = wire.is_temporary(owner.name)
        self._known = False
        """True after the first welcome. From then on, no program that cannot prove to be the server ends the line."""
        self._lost_at: float | None = None
        """The time at which the last accepted connection ended. (The server accepts a connection by sending a welcome.)
        It is None while an accepted connection is open, and before the first accepted connection."""
        self._connection: Connection | None = None
        self._parts: list[wire.Part] = []
        self._backoff = Backoff()
        self._flushing = False
        self.welcomed = False
        self.dial_at: float | None = None
        """The time at which to dial next, or None if no dial is planned."""
        self.trouble = ""
        """The reason why the last attempt to connect failed, or why the last connection ended."""
        self.refusal = ""
        """The reason why the server or this client closed the connection permanently. It is empty if the connection was
        not closed permanently."""
        self._refusal_code = ""
        self.closed_here = False
        self.moved_to = ""
        """The new address to dial. It is empty if the server has not sent a new address."""

    def start(self, now: float) -> None:
        """Request the first dial."""
        self.dial_at = now

    def dials(self, now: float) -> bool:
        """Return True if the caller must dial now. After dialing, the caller must call ``opened`` or
        ``dial_failed``."""
        if self.dial_at is None or self.dial_at > now:
            return False
        self.dial_at = None
        return True

    def dial_failed(self, reason: str, now: float) -> None:
        """Record that the connection could not be made. Request a dial after a pause, which grows each time."""
        self.trouble = reason
        self._dial_later(now)

    def _dial_later(self, now: float) -> None:
        if not self.closed_here and not self.refusal:
            self.dial_at = now + self._backoff.next(self._random())

    def close(self) -> None:
        """Write the parts (messages of the wire protocol) that wait, and close the connection."""
        self.closed_here, self.dial_at = True, None
        if self._connection is not None:
            self.flush()
            self._connection.close("done", final=self._temporary)

    # Writing.

    def publish(self, ticket: Ticket, last: bool) -> None:
        """Send a ticket (a batch of publishes) if the server has accepted the connection with a welcome. Otherwise the
        owner sends the ticket after the next welcome. ``last``: true if no other publish follows at this moment. Then
        everything that waits is written immediately."""
        if self.welcomed:
            bodies = list(ticket.bodies)
            sent = ticket.number, ticket.to, ticket.kind, bodies, ticket.ask
            self._parts.append(wire.Publish(*sent, context=ticket.context, begun=ticket.begun))
            if last:
                self.flush()
            else:
                self._soon()

    def done(self, letters: list[str], dead: str) -> None:
        """Report letters as handled. ``dead``: the reason why the last of these letters is dead. It is empty if this
        letter is not dead."""
        self._put(wire.Done(letters, dead))

    def listen(self) -> None:
        """Tell the server that it may send letters on this connection from now on."""
        self._put(wire.Listen())

    def _put(self, part: wire.Part) -> None:
        """Send a part (a message of the wire protocol) if the server has accepted the connection with a welcome.
        Otherwise drop the part. After the next welcome, the owner repeats everything that is still needed."""
        if self.welcomed:
            self._parts.append(part)
            self._soon()

    def _soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._flush_soon()

    def flush(self) -> None:
        """Write the parts (messages of the wire protocol) that wait, unless the connection is full."""
        self._flushing = False
        if self._connection is None or not self._parts or self._connection.full:
            return
        parts, self._parts = self._parts, []
        self._connection.send(parts)

    # The connection.

    def opened(self, connection: Connection) -> "ClientLine":
        """Use a new connection to the server. With a keyring, send our introduction, which begins the proof of
        identity. The hello is sent after the proof. Without a keyring, send the hello. Return this line, which receives
        everything that comes on the connection."""
        self._connection = connection
        self.trouble = NO_WELCOME
        self._left = False
        if self._keyring is not None:
            self._proof = Dialing(self._keyring, connection)
            connection.send([self._proof.introduction])
            return self
        connection.trust(server=True)
        self._greet(connection)
        return self

    def _greet(self, connection: Connection) -> None:
        connection.send([wire.ClientHello(self._token, self._owner.name)])

    def _prove(self, dialing: Dialing, connection: Connection, part: wire.AnyPart) -> None:
        """Check the proof of the server's identity. If it is correct, send our proof and the hello. Otherwise close the
        connection."""
        proof = dialing.answer(part)
        if isinstance(proof, Refusal):
            self._left = True
            self.trouble = proof.reason
            if not self._renews(proof.code) and not self._known:
                self.refusal, self._refusal_code = proof.reason, proof.code
            connection.close(proof.reason, final=True, code=proof.code)
            return
        self._proof = None
        connection.trust(server=True)
        connection.send([proof])
        self._greet(connection)

    def _renews(self, code: str) -> bool:
        """Read the credentials again if an identity was not proven or a key was revoked. Return True if the client must
        dial again. ``code``: the code of the refusal."""
        return code in (NOT_PROVEN, REVOKED) and self._keyring is not None and self._keyring.renew(code)

    def received(self, parts: list[wire.AnyPart]) -> None:
        """Handle parts that the server has sent."""
        owner, connection = self._owner, self._connection
        if self._proof is not None and connection is not None:
            first = parts[0]
            if isinstance(first, wire.Bye):
                # Any program can answer at this address: its reason is only shown.
                self.trouble = first.reason[: limits.reason_chars_max]
            elif not self._left:
                self._prove(self._proof, connection, first)
            return
        for part in parts:
            if isinstance(part, wire.Accepted):
                owner.accepted(part.upto)
            elif isinstance(part, wire.Deliver):
                owner.delivered(decode_train(part.train))
            elif isinstance(part, wire.Refused):
                owner.refused(part.number, refusal_of(part.reason, part.code, part.retry), part.retry)
            elif isinstance(part, wire.Welcome):
                self._welcome(part)
            elif isinstance(part, wire.Ping):
                self._put(wire.Pong())
            elif isinstance(part, wire.Bye):
                self.trouble = part.reason
                if part.at and not part.final:
                    # The server has moved, or was removed and another one has our mailbox.
                    self.moved_to = part.at
                    self._backoff.reset()
                if part.final and not self._left and not self._renews(part.code):
                    self.refusal, self._refusal_code = part.reason, part.code or "refused"

    def _welcome(self, part: wire.Welcome) -> None:
        away = 0.0 if self._lost_at is None else self._clock() - self._lost_at
        if self._temporary and away > limits.temporary_client_seconds_max / 2:
            self.refusal = "disconnected for too long: it is not known whether the last publishes were accepted"
            self._refusal_code = "away-too-long"
            if self._connection is not None:
                self._connection.close(self.refusal)
            return
        self._lost_at = None
        self._known = True
        self.trouble = ""
        self.welcomed = True
        self._backoff.reset()
        self._owner.welcomed(part.address, part.last)

    def closed(self, reason: str, now: float) -> None:
        """Record that the connection has ended. If it was closed permanently, report the reason (``refusal``) to the
        owner. Otherwise dial again later. If ``close`` was called, do neither."""
        self._connection = None
        # On the next connection they would come before the welcome, and then again: the owner repeats them.
        self._parts = []
        if self.welcomed:
            self._lost_at = self._clock()
        self.welcomed = False
        known = "" if self.trouble == NO_WELCOME else self.trouble
        self.trouble = known or reason or CLOSED_AT_ONCE
        if self.refusal and not self.closed_here:
            self._owner.gone(RefusedError(self.refusal, self._refusal_code))
        else:
            self._dial_later(now)

    def writable(self) -> None:
        """Continue writing, because the connection has room again."""
        self.flush()

    def watch(self, now: float) -> None:
        """Send a ping from time to time, and close a connection that is silent."""
        if self._connection is not None:
            keep_alive(self._connection, now)


def refusal_of(reason: str, code: str, retry: bool) -> AntecedeError:
    """Return the error for a publish that the server refused. ``code``: the reason in one word."""
    if retry:
        return OverloadError(reason)
    return _refusals.get(code, UsageError)(reason)


_refusals: Final = {
    kind.code: kind for kind in (UsageError, UnknownAgentError, NoRouteError, NotAllowedError, MailboxFullError)
}
