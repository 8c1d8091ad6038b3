"""A simulated client. It uses the code of real clients to connect, to publish, to receive letters and to ask questions.

A *publish* is a request to send a letter. Publishes that were not accepted are sent again after a reconnection. The
handler of a letter runs at least once, and may run again for the same letter. The letter is added to ``inbox`` when its
handler has returned for the first time. A client can be killed. It then starts again under the same name, but it has
forgotten everything, including which of its publishes were accepted. If another process connects under the same name,
the new process takes over, and the server informs the first process.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from antecede import wire
from antecede.access.model import OPERATOR
from antecede.channel import Letter
from antecede.engine.agents import Notification, Returned, name_of
from antecede.errors import AntecedeError, ClosedError, MailboxFullError, OverloadError, UnansweredError, UsageError
from antecede.labels import tail_of
from antecede.server.client import ClientLine, Inbox, Publishing, Questions, Ticket
from antecede.server.operator import OperatorRequest, next_generation
from antecede.simulator.servers.network import End, connect
from antecede.simulator.servers.server import SimulatedServer, Surroundings

_encode = msgspec.msgpack.Encoder().encode
_returned = name_of(Returned)


class Question(msgspec.Struct):
    """A question that a client asked, and its outcome."""

    id: int
    timeout: float
    outcome: str = "open"
    """``open``, ``answered``, ``late`` (no answer before the timeout), ``unanswered`` (the agent could not react),
    ``refused`` (the agent's mailbox was full) or ``lost`` (the client was killed)."""


class Publish(msgspec.Struct):
    """A publish of a client, and its state."""

    to: tuple[str, ...]
    kind: str
    body: bytes
    ask: bool = False
    state: str = "sent"
    """``sent``, ``accepted``, ``refused`` or ``unknown`` (the client was killed before the answer)."""
    question: Question | None = None
    context: str = ""
    after: str = ""
    """The id of the last letter that the client began to handle before this publish, or an empty string if there is no
    such letter."""


class SimulatedTicket(Ticket):
    """A batch of publishes. It sets the state of each :class:`Publish` in the batch."""

    __slots__ = ("publishes",)

    def __init__(
        self, number: int, target: str | tuple[str, ...], to: tuple[str, ...], kind: str, ask: bool, context: str = ""
    ) -> None:
        super().__init__(number, target, to, kind, ask, context)
        self.publishes: list[Publish] = []

    def drop(self, count: int) -> None:
        for publish in self.publishes[:count]:
            publish.state = "accepted"
        del self.publishes[:count]
        super().drop(count)


class SimulatedClient:
    """A client, through all its connections and restarts."""

    def __init__(self, world: Surroundings, name: str, home: SimulatedServer) -> None:
        self.world = world
        self.name = name
        self.home = home
        self.address = f"{name}@{home.name}"
        self.published: list[Publish] = []
        self.inbox: list[Letter] = []
        self._results: dict[str, Letter] = {}
        """The first answer to each call of an operation, by the id of the call."""
        self.questions: list[Question] = []
        self.no_handler = frozenset[str]()
        """Types of letters that the application has no handler for."""
        self.end: End | None = None
        self._previous: End | None = None
        """The connection of the earlier process that this process replaces; None if there is no such process."""
        self.over = False
        """Whether the client has ended for ever: it has no process, and no other process will start."""
        self._seen: set[str] = set()
        self._life = 0
        self._begin()

    def _begin(self) -> None:
        """Start a new process of this client. The process knows only the client's name."""
        self._life += 1
        self._started = False
        """Whether a server has welcomed this process. Before the first welcome, the process publishes nothing."""
        self._called: set[str] = set()
        """The ids of the letters that were handled in this process: their handlers have returned."""
        self._waiting: deque[Publish] = deque()
        """Publishes that wait because too many earlier publishes are not accepted yet."""
        self._publishing: Publishing[SimulatedTicket] = Publishing(
            SimulatedTicket,
            self._settled,
            lambda ticket, last: self._line.publish(ticket, last),
            lambda: self._later(self.world.random.random() * 0.001, self._publishing.flush),
            lambda seconds: self._later(seconds, self._publishing.resend),
        )
        self._inbox = Inbox(self._answered, lambda letters, dead: self._line.done(letters, dead), self._begins)
        self._begun = ""
        self._questions: Questions[SimulatedTicket] = Questions(self._publishing.numbering, self._ended)
        self._expires_at: float | None = None
        self._line = ClientLine(
            self,
            "",
            lambda: self._later(0.0, self._line.flush),
            lambda: self.world.now,
            self.world.random.random,
            keyring=None if self.world.identities is None else self.world.identities.of_client(self.name),
        )
        self._line.start(self.world.now)
        self._later(0.0, self._dial)

    def _later(self, seconds: float, call: Callable[..., None], *given: Any) -> None:
        """Call a function after this number of seconds, if this process still exists then."""
        self.world.later(seconds, self._guard, self._life, call, *given)

    def _guard(self, life: int, call: Callable[..., None], *given: Any) -> None:
        if life == self._life:
            call(*given)

    # Publishing.

    def send(self, to: tuple[str, ...], notification: Notification) -> None:
        """Publish a notification."""
        kind, body = name_of(type(notification)), _encode(notification)
        self._publish(Publish(to, kind, body, context=tail_of(notification)))

    def call(self, object_: str, operation: str, arguments: tuple[Any, ...], timeout: float) -> None:
        """Call an operation of a replicated object. The result comes as a letter."""
        body = _encode((round(timeout * 1000), arguments))
        self._publish(Publish((f"{object_}()",), operation, body, True))

    def ask(self, to: str, id_: int, notification: Notification, timeout: float) -> None:
        """Ask an agent the question with the id ``id_``. The answer must have the same id."""
        if self.over:
            return
        question = Question(id_, timeout)
        self.questions.append(question)
        self._publish(Publish((to,), name_of(type(notification)), _encode(notification), True, question=question))

    def _publish(self, publish: Publish) -> None:
        if self.over:
            return
        self.published.append(publish)
        if self._started:
            self._waiting.append(publish)
            self._put_waiting()

    def _put_waiting(self) -> None:
        """Send the publishes that wait. Stop when too many publishes are not accepted yet."""
        while self._waiting and not self._publishing.numbering.crowded:
            self._put(self._waiting.popleft())

    def _begins(self, letter: str) -> None:
        self._begun = letter
        self._publishing.begins(letter)

    def _put(self, publish: Publish) -> None:
        publish.after = self._begun
        if not publish.ask:
            ticket = self._publishing.put(publish.to, publish.kind, publish.body, publish.context)
            ticket.publishes.append(publish)
            return
        ticket = self._publishing.ask(publish.to, publish.kind, publish.body, publish.context)
        ticket.publishes.append(publish)
        if publish.question is not None:
            self._questions.open(ticket, publish.question.timeout, self.world.now)
            self._expire_later()
        self._publishing.send(ticket)

    def _settled(self, ticket: SimulatedTicket, error: AntecedeError | None) -> None:
        if error is not None and ticket.ask:
            self._questions.fail(ticket, error)
        if error is None:
            for publish in ticket.publishes:
                publish.state = "accepted"
        else:
            for publish in ticket.publishes:
                publish.state = "refused"
            if not self.world.may_refuse(self.address, ticket.to, error):
                self.world.report_error(self.address, f"a publish was refused: {error}")

    # Connections.

    def _dial(self) -> None:
        if not self._line.dials(self.world.now):
            return
        if self.home.listens:
            self._later(self.world.delay(), self._connect)
        else:
            self._line.dial_failed("connection refused", self.world.now)
            self._dial_at()

    def _dial_at(self) -> None:
        if self._line.dial_at is not None:
            self._later(max(0.0, self._line.dial_at - self.world.now), self._dial)

    def _connect(self) -> None:
        if not self.home.listens:
            self._line.dial_failed("connection refused", self.world.now)
            self._dial_at()
            return
        life = self._life
        mine = End(
            self.world,
            self.home.name,
            lambda end, parts: self._guard(life, self._received, end, parts),
            lambda end, reason: self._guard(life, self._closed, end, reason),
            lambda end: self._guard(life, self._line.writable),
        )
        theirs = self.home.end(self.address)
        connect(mine, theirs)
        self.end = mine
        self.home.guard(self.home.life, self.home.accept, theirs)
        mine.receiver = self._line.opened(mine)

    def _received(self, end: End, parts: list[wire.AnyPart]) -> None:
        self._line.received(parts)

    def _closed(self, end: End, reason: str) -> None:
        if end is self.end:
            self.end = None
        self._line.closed(reason, self.world.now)
        self._dial_at()

    def reset(self) -> None:
        """Break the connection; the client connects again later."""
        if self.end is not None:
            self.end.disconnect()

    def watch(self) -> None:
        """Check the connection, as a real client does at regular times."""
        self._line.watch(self.world.now)

    def leave(self) -> None:
        """Close the connection and end the client's process."""
        self._line.close()
        self._end_process()

    def die(self) -> None:
        """End the client's process; no other process takes its place."""
        if self.end is not None:
            self.end.vanish()
        self._end_process()

    def _end_process(self) -> None:
        self._forget()
        if self._previous is not None:
            # A process that was about to be replaced ends as well, even if no other has connected yet.
            self._previous.vanish()
        self.over = True

    def restart(self) -> None:
        """Start a new process under the same name. The process knows only this name."""
        self._forget()
        self._begin()

    def kill(self) -> None:
        """Kill the client's process, and start a new process under the same name. Do nothing if the client is not
        connected."""
        if self._line.welcomed and self.end is not None and not self.over:
            self.end.vanish()
            self.restart()

    def take_over(self) -> None:
        """Let a new process connect under the same name, so that the server ends the connection of the current process.
        Do nothing if the current process is not connected."""
        if self._line.welcomed and not self.over:
            self._previous = self.end
            self.restart()

    def _forget(self) -> None:
        self._life += 1
        if self.end is not None:
            self.end.abandon()
        self.end = None
        for question in self.questions:
            if question.outcome == "open":
                question.outcome = "lost"
        for publish in self.published:
            if publish.state == "sent":
                publish.state = "unknown"

    # From the line.

    def welcomed(self, address: str, last: int) -> None:
        """Continue after the server's welcome. The server already has this client's publishes up to the number
        ``last``."""
        error = self._publishing.welcomed(last)
        if error is not None:
            self.world.client_gone(self.address, error)
            return
        if not self._started:
            self._started = True
            self._waiting.extend(publish for publish in self.published if publish.state == "sent")
        self._put_waiting()
        self._inbox.begin()
        self._line.listen()

    def accepted(self, upto: int) -> None:
        """Record that all publishes up to this number are on the server's disk."""
        self._publishing.accepted(upto)
        self._put_waiting()

    def refused(self, number: int, error: AntecedeError, retry: bool) -> None:
        """Record that the server refused the publish with this number. The server has not accepted any later publish
        either."""
        wrong = self._publishing.refused(number, error, retry)
        if wrong is not None:
            self.world.report_error(self.address, str(wrong))
        else:
            self._put_waiting()

    def delivered(self, letters: list[Letter]) -> None:
        """Handle letters that have arrived."""
        self._inbox.delivered(letters)
        self._handle()

    def gone(self, error: AntecedeError) -> None:
        """Report to the simulated world that the client cannot continue because of an error."""
        self.world.client_gone(self.address, error)

    # Handlers.

    def _handle(self) -> None:
        """Call the handler of the next letter, unless a handler is running."""
        inbox, now = self._inbox, self.world.now
        if inbox.running:
            return
        letter = inbox.next(now)
        if letter is not None:
            self._later(self.world.random.random() * 0.002, self._handled, letter)
        elif inbox.waiting:
            self._later(max(0.0, (inbox.deadline() or 0.0) - now), self._handle)

    def _handled(self, letter: Letter) -> None:
        """Decide how the handling of a letter has ended, and record it: the handler has returned, the handler has
        failed, or there is no handler for the letter. Then handle the next letter."""
        if letter.type in self.no_handler:
            self._inbox.dead(f"no handler for {letter.type}")
        elif self.world.client_fails(letter):
            self._inbox.failed("this handler fails at its first try", self.world.now)
        else:
            if letter.id in self._called:
                self.world.report_error(self.address, f"the handler of {letter.id} was called twice")
            self._called.add(letter.id)
            self._received_once(letter)
            self._inbox.handled()
        self._handle()

    def _received_once(self, letter: Letter) -> None:
        if letter.id not in self._seen:
            self._seen.add(letter.id)
            self.inbox.append(letter)

    # Questions.

    def _answered(self, letter: Letter) -> None:
        if self._first_answer(letter):
            self._received_once(letter)
        self._questions.answered(letter)

    def _first_answer(self, letter: Letter) -> bool:
        """Return whether the application gets this letter. It gets every letter, except a second answer to the same
        call. After a crash the server may answer a call again, but only with the same answer."""
        if letter.type != _returned:
            return True
        first = self._results.setdefault(letter.answers, letter)
        if first.body != letter.body:
            self.world.report_error(
                self.address, f"call {letter.answers} was answered by {first.body!r} and {letter.body!r}"
            )
        return first.id == letter.id

    def _ended(self, ticket: SimulatedTicket, outcome: Letter | Exception) -> None:
        question = ticket.publishes[0].question
        if question is None:
            return
        if isinstance(outcome, TimeoutError):
            question.outcome = "late"
        elif isinstance(outcome, UnansweredError):
            question.outcome = "unanswered"
        elif isinstance(outcome, MailboxFullError):
            question.outcome = "refused"
        elif isinstance(outcome, Letter):
            question.outcome = "answered"
            answered = msgspec.msgpack.decode(outcome.body)["id"]
            if answered != question.id:
                self.world.report_error(self.address, f"question {question.id} got the answer to question {answered}")

    def _expire_later(self) -> None:
        due, life = self._questions.deadline(), self._life
        if due is not None and (self._expires_at is None or due < self._expires_at):
            self._expires_at = due
            self.world.unless(lambda: life != self._life or self._none_expires(), due, self._expire)

    def _none_expires(self) -> bool:
        """Return whether no question is open. If so, also clear the time at which the next question expires."""
        if len(self._questions):
            return False
        self._expires_at = None
        return True

    def _expire(self) -> None:
        self._expires_at = None
        self._questions.expire(self.world.now)
        self._expire_later()


# Simulated operators. They send the requests of real operators, each on a separate connection.


class Operators:
    """The operators of one world, and the answers that they got."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world
        self._requests = 0
        self.buried: set[tuple[str, str]] = set()
        """The dead letters that operators wanted to bury (to take off the server's list). Each is a pair: the server's
        name, and the letter's key."""
        self.off_the_list: list[tuple[str, str]] = []
        """The dead letters that were buried or sent again, according to the server's answer. Each is a pair: the
        server's name, and the letter's key."""

    def settle_dead(self, server: SimulatedServer) -> None:
        """Send the dead letters of a server again, or bury them (take them off its list). The choice between the two
        is random."""
        command = "dead-replay" if self._world.random.random() < 0.7 else "dead-bury"
        singly = self._world.random.random() < 0.5

        def listed(document: Any, error: AntecedeError | None) -> None:
            if document and not singly:
                of = self._world.random.choice(("", "Riddle"))
                meant = {_number(dead): dead["key"] for dead in document if of in ("", dead["type"])}
                if meant:
                    self._settle_page(server, command, of, meant, 0)
                return
            for dead in document or ():
                self.settle(server, command, dead["key"])

        self.request(server, "dead-list", [], listed)

    def _settle_page(self, server: SimulatedServer, command: str, of: str, listed: dict[int, str], upto: int) -> None:
        """Send dead letters again, or bury them (take them off the server's list), as ``command`` says. One request
        handles at most two letters. If there are more letters, further requests follow. ``of``: the type of the
        letters, or an empty text for any type. ``listed``: the numbers of the letters, each with the letter's key.
        ``upto``: the number of the last letter that earlier requests have handled."""
        if command == "dead-bury":
            self.buried |= {(server.name, key) for number, key in listed.items() if number > upto}
        page = [str(upto), str(max(listed)), str(_page_letters), "", of, "", "0"]

        def answered(document: Any, error: AntecedeError | None) -> None:
            if error is None:
                settled = [key for number, key in listed.items() if upto < number <= document["upto"]]
                # While an agent moves, its letters have no destination and stay on the list.
                self.off_the_list += [(server.name, key) for key in settled if not document.get("skipped")]
                if document["upto"] > max(listed):
                    self._world.report_error(
                        server.name, f"an operator's {command} went beyond the letters that were meant"
                    )
                if document["more"]:
                    self._settle_page(server, command, of, listed, document["upto"])
            elif not isinstance(error, ClosedError | OverloadError):
                self._world.report_error(server.name, f"an operator's {command} failed: {error}")

        self.request(server, f"{command}-page", page, answered)

    def settle(self, server: SimulatedServer, command: str, key: str) -> None:
        """Send one dead letter again, or bury it (take it off the server's list), as ``command`` says."""
        place = (server.name, key)
        if command == "dead-bury":
            self.buried.add(place)

        def answered(document: Any, error: AntecedeError | None) -> None:
            if error is None:
                self.off_the_list.append(place)
            elif not isinstance(error, ClosedError | OverloadError | UsageError):
                self._world.report_error(server.name, f"an operator's {command} failed: {error}")

        self.request(server, command, [key], answered)

    def reset_lost(self, domain: str, members: list[SimulatedServer]) -> bool:
        """Send a reset of a domain to all members, if the status of the members shows that the domain needs it. Return
        whether a reset was sent."""
        try:
            generation = next_generation(domain, {one.name: one.core.operations.status() for one in members})
        except UsageError:
            return False
        self._forget(domain, members, generation)
        return True

    def reset(self, domain: str, members: list[SimulatedServer]) -> None:
        """Reset a domain at all its members, even if no reset is needed. The members do not check whether a reset is
        needed."""
        self._forget(domain, members, 1 + max(one.machine.channel.consumers[domain].generation for one in members))

    def _forget(self, domain: str, members: list[SimulatedServer], generation: int) -> None:
        for server in members:
            self._forget_at(server, domain, generation)

    def _forget_at(self, server: SimulatedServer, domain: str, generation: int) -> None:
        """Reset a domain at one member. If the member crashes before it answers, send the command again later, unless
        the member has already reset the domain."""

        def answered(document: Any, error: AntecedeError | None) -> None:
            if isinstance(error, ClosedError):
                self._world.later(_again_seconds, self._forget_at, server, domain, generation)
            elif error is not None:
                self._world.report_error(domain, f"the domain was not reset: {error}")

        if not (server.listens and server.machine.channel.consumers[domain].generation >= generation):
            self.request(server, "forget", [domain, str(generation)], answered)

    def request(
        self,
        server: SimulatedServer,
        command: str,
        arguments: list[str],
        answered: Callable[[Any, AntecedeError | None], None],
    ) -> None:
        """Send a request. ``answered`` is called with (the document of the answer, None) or (None, the error)."""
        world = self._world
        if not server.listens:
            world.later(0.0, answered, None, ClosedError("the server does not listen"))
            return

        def received(end: End, parts: list[wire.AnyPart]) -> None:
            assert end.receiver is not None
            end.receiver.received(parts)

        def closed(end: End, reason: str) -> None:
            assert end.receiver is not None
            end.receiver.closed(reason, world.now)

        mine = End(world, server.name, received, closed, lambda end: None)
        # Each request has a separate address, because there may be more requests than connections allowed per address.
        self._requests += 1
        theirs = server.end(f"operator {self._requests}")
        connect(mine, theirs)
        server.guard(server.life, server.accept, theirs)
        known = world.identities
        keyring = None if known is None else known.keyring(OPERATOR, "admin")
        mine.receiver = OperatorRequest(mine, wire.Request("", command, arguments), answered, keyring)


def _number(listed: dict[str, Any]) -> int:
    return int(listed["place"].rpartition(":")[2])


_again_seconds = 0.1
"""The time after which an operator repeats a command that got no answer."""
_page_letters = 2
