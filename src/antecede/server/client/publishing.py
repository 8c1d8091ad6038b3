"""The publishes of a client, without I/O. A *publish* is one notification or one question that the client sends.

**Numbers.** Publishes are numbered 1, 2, 3 … without gaps. The client keeps each publish until the server has accepted
it. When the client connects again, the server's welcome message contains the number of the last publish that the server
has. The client sends only the later publishes again, so the server gets no publish twice. If the server refuses a
publish, the server also skips the later publishes. The client gives the skipped publishes new numbers and sends them
again (``Numbering.refused``).

**Overload.** If the server refuses a publish because it is overloaded, nothing later is accepted before this publish.
After a pause the client sends the first batch again. When the server has accepted it, the client sends two batches,
then four, and so on, until all batches are sent. Meanwhile new batches wait.

**Batches.** Consecutive notifications share a batch if they have the same type, destinations, label and trace context.
The number of notifications in a batch is limited, and so is their size. The batch that is being filled is sent when the
next publish cannot be added to it, or when the owner calls ``flush``. (The owner is a
:class:`antecede.live.client.Bus`, or a simulated client.) When a batch is begun, ``flush_soon`` asks the owner to call
``flush`` soon. A batch also contains the ids of letters that the client began to handle before or between these
publishes. So the server's trace can show the delivery of such a letter before the publishes that follow it.

**The window.** The number of publishes that are not accepted yet is limited. If a client exceeds the limit by more than
one full batch, the server closes the connection. The owner should publish nothing while ``Numbering.crowded`` is true.
If the owner obeys this rule, it can always fill and send its next batch without exceeding the limit.

The owner decides what to publish, and when to flush.
"""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, Generic, TypeVar

from antecede import limits
from antecede.channel.letters import body_fault, envelope_fault
from antecede.errors import AntecedeError, OverloadError, RefusedError, UsageError, again
from antecede.limits import letter_bytes_max, publish_batch_max, train_bytes_max


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
