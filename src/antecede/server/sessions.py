"""Connected clients: one session each.

A session is one connection of a client, or one bus (the object with which a client sends and receives) in the server's
own process. A client has at most one session. When the client begins a new session, the older session ends with the
code ``replaced``. The publishes of clients become inputs of the machine. The server sends replies and letters to
clients when all earlier records of the log are durable. Some answers to calls do not have to wait
(:mod:`antecede.server.driver`). When a session begins to listen, all letters in the mailbox are sent again, the
oldest first.

At the beginning of a session, the server sends a welcome. It contains the number of the client's last publish that the
server has accepted. So the server sends the welcome only when the publishes of the previous session have been accepted
or refused. If the server sent the welcome earlier, the client would send some of these publishes a second time, with
other numbers.

A temporary client (see :mod:`antecede.wire`) is forgotten when it has left: its mailbox is emptied, and the number of
its last publish is removed. A temporary client that was killed is forgotten after some time without a connection. A
letter for a temporary client that has left is dropped.
"""

from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from itertools import islice
from sys import getsizeof
from typing import Any, Final, Protocol

from antecede import limits, wire
from antecede.access import TOKEN, Authoriser, Refusal, Who
from antecede.access.authoriser import CALL, RECEIVE, SEND, SUBSCRIBE
from antecede.channel.letters import Letter, encode_train, envelope_fault
from antecede.engine import React, Reaction, died, name_of
from antecede.engine.agents import Subscribe, Unsubscribe
from antecede.engine.quotas import Quotas
from antecede.errors import OverloadError, UsageError, WireError
from antecede.server.connections import Connection, break_off
from antecede.server.driver import Driver
from antecede.server.inputs import OPERATOR, Accepted, Denied, Drop, Log, Refused
from antecede.server.items import Begun, Handled, Left, Published, PublishedMany, Reacted
from antecede.server.node import AgentServer

# The rights of one session, and a cache of the authoriser's decisions about this session.
#
# The session asks the authoriser about a list of destinations or about a sender, and stores the decision. Later it uses
# the stored decision. When the access file is loaded again, the session forgets all decisions.


Check = Callable[[tuple[str, ...]], tuple[str, ...]]
"""A function that returns destinations in their canonical form, or raises :class:`UsageError`."""


class Rights:
    """The rights of one session: what it may publish, and which letters it may receive."""

    __slots__ = (
        "_authoriser",
        "_check",
        "_decided",
        "_granted",
        "_rate",
        "_remembered",
        "_senders",
        "denied",
        "free",
        "who",
    )

    def __init__(self, authoriser: Authoriser, who: Who, check: Check) -> None:
        self._authoriser = authoriser
        self._check = check
        self.who = who
        self.free = authoriser.is_unrestricted(who)
        """Whether everything is allowed, so that nothing needs to be checked."""
        self.denied: Callable[[Refusal], None] = lambda refusal: None
        """A function that is called for each publish for which a permission is missing. It is not called for a publish
        that only exceeds the allowed rate."""
        self.forget()

    def forget(self) -> None:
        """Forget all decisions, because the access file was replaced."""
        self._granted: set[tuple[str, ...]] = set()
        """Destinations to which the session may send."""
        self._decided: dict[tuple[tuple[str, ...], str], Refusal | None] = {}
        """The decisions that are not in ``_granted``: all refusals, and all decisions about calls and subscriptions. A
        key is the pair (destinations, kind). For a call or a subscription, ``kind`` is the kind of the publish. For any
        other publish, ``kind`` is an empty text."""
        self._senders: dict[str, bool] = {}
        self._remembered = 0
        """The size of ``_granted``, ``_decided`` and ``_senders``, in bytes of memory."""
        self._rate = self._authoriser.rate(self.who)

    def refusal(self, to: tuple[str, ...], kind: str, bodies: list[bytes], now: float) -> Refusal | None:
        """Return why a publish is refused; None if it is allowed."""
        if to not in self._granted or kind in _special:
            refusal = self._decide(to, kind)
            if refusal is not None:
                self.denied(refusal)
                return refusal
        if self._rate is not None:
            exceeded = self._rate.take(len(bodies), sum(map(len, bodies)), now)
            if exceeded:
                return Refusal(OverloadError.code, f"{self.who.label} sends {exceeded}: try again later")
        return None

    def _decide(self, to: tuple[str, ...], kind: str) -> Refusal | None:
        if envelope_fault(to, kind):
            # The machine refuses it, whatever the permissions are. Nothing of it is matched or remembered.
            return None
        call = len(to) == 1 and to[0].endswith("()")
        place = (to, kind if call or kind in _special else "")
        if place in self._decided:
            return self._decided[place]
        refusal = self._examine(to, kind, call)
        self._make_room(*to, place[1], "" if refusal is None else refusal.reason)
        if refusal is None and not place[1]:
            self._granted.add(to)
        else:
            self._decided[place] = refusal
        return refusal

    def _examine(self, to: tuple[str, ...], kind: str, call: bool) -> Refusal | None:
        if call:
            return self._authoriser.refusal(self.who, CALL, f"{to[0].removesuffix('()')}.{kind}")
        try:
            to = self._check(to)
        except UsageError:
            # The machine refuses it, with the reason.
            return None
        action = SUBSCRIBE if kind in _special else SEND
        refusals = (self._authoriser.refusal(self.who, action, name) for name in to)
        return next((refusal for refusal in refusals if refusal is not None), None)

    def may_receive(self, letter: Letter) -> bool:
        """Return whether the session may get this letter. An answer to a question of the session is always allowed."""
        if self.free or letter.answers:
            return True
        allowed = self._senders.get(letter.source)
        if allowed is None:
            allowed = self._authoriser.allows(self.who, RECEIVE, letter.source)
            self._make_room(letter.source)
            self._senders[letter.source] = allowed
        return allowed

    def _make_room(self, *texts: str) -> None:
        """Count a decision that contains these texts. Forget all earlier decisions if they become too large."""
        size = sum(map(getsizeof, texts), _decision_bytes)
        self._remembered += size
        if self._remembered > limits.permissions_cached_bytes_max:
            self._granted.clear()
            self._decided.clear()
            self._senders.clear()
            self._remembered = size


def with_forbidden(handed: list[str], forbidden: Collection[str], letters: list[str]) -> list[str]:
    """Complete a client's report: return the reported letters, together with the forbidden letters before and between
    them. If the report is wrong, return an empty list.

    ``handed``: the session's letters that are not reported yet, in sequence. ``forbidden``: the letters that the client
    may not receive. The server does not send them, so the client cannot report them. ``letters``: the letters that the
    client reports as handled. The report must begin with the first letter in ``handed`` that is not forbidden. It
    may leave out forbidden letters, but no others. Example: ``handed`` is a, b, c, d, and b is forbidden. If the client
    reports a and c, the result is a, b, c.
    """
    place = 0
    for id_ in letters:
        while place < len(handed) and handed[place] in forbidden:
            place += 1
        if place == len(handed) or handed[place] != id_:
            return []
        place += 1
    return handed[:place]


_decision_bytes: Final = 300
"""The memory of one decision besides its texts: entries of dictionaries, tuples and a refusal."""
_special: Final = frozenset({name_of(Subscribe), name_of(Unsubscribe)})
"""Notifications that need the permission to subscribe."""


# The letters that clients have received and not yet reported as handled. For some time, these letters must not expire.
#
# A letter that was handed to a client stays in the client's mailbox until the client has reported the letter as
# handled. Before this report, the client may already have handled the letter, so the letter must not expire. But it may
# expire if the client is disconnected for too long, or if the mailbox holds too much and the client reports nothing for
# too long.


class Unreported:
    """Records which clients may have received letters that they have not reported as handled yet. Each server has one
    such object."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._moved: dict[str, float] = {}
        """For each client that may have unreported letters, the time of its last event: the client received a letter,
        reported a letter as handled, or disconnected."""

    def begin(self, mailboxes: Iterable[str], now: float) -> None:
        """After the start of the server, record that each client has received the first letters of its mailbox (one
        full batch). The server may have handed out these letters before it was restarted."""
        for address in mailboxes:
            if not self._quotas.is_agent(address):
                self.take(address, limits.reactions_together_max, now)

    def take(self, address: str, letters: int, now: float, more: bool = False) -> None:
        """Record that a client has received this number of letters and not yet reported them as handled. If ``more`` is
        true, the number is added to the recorded number. Otherwise it replaces the recorded number."""
        self._moved[address] = now
        handed = self._quotas.handed
        handed[address] = letters + (handed.get(address, 0) if more else 0)

    def moved(self, address: str, now: float) -> None:
        """Record that a client has reported a letter as handled, or has disconnected."""
        if address in self._moved:
            self._moved[address] = now

    def given_up(self, now: float, connected: Container[str]) -> list[str]:
        """Give up some clients: allow their letters to expire. A client is given up if two conditions hold. First, more
        than ``client_return_seconds`` have passed since the client's last event (it received a letter, reported a
        letter, or disconnected). Second, the client is disconnected now, or its mailbox holds too much. Return the
        clients that were given up and are still connected."""
        stalled: list[str] = []
        quotas = self._quotas
        for address, since in list(self._moved.items()):
            if address not in quotas.handed:
                del self._moved[address]
            elif now - since > limits.client_return_seconds and (address not in connected or address in quotas.crowded):
                self._give_up(address)
                if address in connected:
                    stalled.append(address)
        return stalled

    def _give_up(self, address: str) -> None:
        del self._moved[address]
        self._quotas.handed.pop(address, None)


STALLED: Final = (f"no letter was handled for {limits.client_return_seconds:g} s, and the mailbox is full", "stalled")
"""A reason and a code. The server ends a client's session with them if the client has reported no letter as handled for
too long, and the client's mailbox is full."""


REPLACED: Final = "replaced"
STOPPING: Final = "stopping"
MOVED: Final = "moved"
"""The code with which a session ends if the client must connect to another address. ``Sessions.moved_to`` is this
address."""


class Session(Protocol):
    """A connected client, as the server sees it."""

    client: str
    address: str
    """The client's address, usually ``client@server``; empty before the session has begun."""
    listening: bool
    handed: list[str]
    """Letters that were handed out and not yet reported as handled."""
    rights: Rights
    forbidden: dict[str, str]
    """For each letter in ``handed`` that the session is not allowed to receive: the letter's id → its sender. Such a
    letter becomes dead when all letters before it are handled."""

    def welcome(self, address: str, last: int) -> None: ...

    def reply(self, reply: Accepted | Refused) -> None: ...

    def deliver(self, letters: list[Letter]) -> None: ...

    def end(self, reason: str, code: str) -> None: ...


class Sessions:
    """All sessions of one server."""

    def __init__(self, machine: AgentServer, authoriser: Authoriser, log: Log) -> None:
        self._machine, self.server = machine, machine.name
        self._authoriser = authoriser
        self._log = log
        self._driver: Driver
        self._sessions: dict[str, Session] = {}
        """The sessions, by address."""
        self._temporary: dict[str, float] = {}
        """For each temporary client that is known or has letters: a time. From this time on, ``sweep`` counts
        the client's absence. The time is not used while the client is connected."""
        self.dead = 0
        """The number of letters that clients could not handle, or were not allowed to receive."""
        self._unreported = Unreported(machine.engine.quotas)
        self.moved_to = ""
        """The address to which all clients must go, if this server was removed or has a new address. Otherwise an empty
        text."""

    def attach(self, driver: Driver, now: float) -> None:
        """Set the driver. From now on, the publishes and the reports of clients become inputs of this driver."""
        self._driver, driver.now = driver, now
        for client in self._machine.clients:
            self._may_be_away(client)
        self._unreported.begin(self._machine.engine.mailboxes, now)

    def rights(self, who: Who) -> Rights:
        """Return the rights of a session whose client has this identity."""
        return Rights(self._authoriser, who, self._machine.channel.check)

    def review(self) -> None:
        """Decide again what sessions may do, because the access file was replaced."""
        for session in self._sessions.values():
            session.rights.forget()

    def defer(self, call: Callable[[], None]) -> None:
        """Let the driver call a function at the beginning of its next turn (``Driver.turn``)."""
        self._driver.defer(call)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def names(self) -> list[str]:
        """The clients that are connected."""
        return sorted(session.client for session in self._sessions.values())

    def refusal(self, client: str) -> Refusal | None:
        """Return why a client must not have this name: the name belongs to an agent or an object, or is reserved.
        Return None if a client may have this name."""
        machine = self._machine
        if client in machine.channel.objects:
            return Refusal("object-name", f"{client} is the name of a replicated object: {_choose}")
        if client in machine.plan.homes or f"{client}@{machine.name}" in machine.engine.born:
            return Refusal("agent-name", f"{client} is the name of an agent: {_choose}")
        if client == OPERATOR:
            return Refusal(
                "reserved-name", f"{client} is reserved for dead letters that are sent again: choose another name"
            )
        return None

    def must_wait(self, client: str) -> bool:
        """Return whether a client must connect again later, because a change of the topology is moving it away from
        this server or to this server. Until the change ends, this server cannot use the number of the client's last
        publish. Either the number may already have gone to the other server, or it has come from the other server but
        is not in use here yet."""
        organisation = self._machine.organisation
        return organisation.whole or any(one.address.rpartition("@")[0] == client for one in organisation.came)

    def is_away(self, address: str) -> bool:
        """Return whether no session reads this client's mailbox now."""
        return address not in self._sessions

    def begin(self, session: Session) -> None:
        """Begin a session. The welcome is sent later, when the publishes of the client's previous session have been
        accepted or refused."""
        address = session.address = self._machine.client_address(session.client)
        previous = self._sessions.get(address)
        if previous is not None:
            previous.end(f"another client connected as {session.client}", REPLACED)
        self._sessions[address] = session
        self._may_be_away(session.client)

        def welcome() -> None:
            last = self._machine.clients.get(session.client, 0)
            self._driver.when_durable(lambda: session.welcome(address, last))

        self._driver.when_taken(welcome)

    def finish(self, session: Session, reason: str = "", code: str = "") -> None:
        """End a session. ``reason``: what was wrong, or empty if nothing was wrong. ``code``: the rule that was broken,
        or empty."""
        if reason:
            coded: dict[str, Any] = {"code": code} if code else {}
            self._log.warning("client-gone", client=session.client, **coded, reason=reason)
        if self._sessions.get(session.address) is session:
            del self._sessions[session.address]
            self._may_be_away(session.client)
            self._unreported.moved(session.address, self._driver.now)

    def leave(self, session: Session) -> None:
        """Forget a temporary client that has closed its connection and will not return. Other clients are not
        forgotten."""
        if self.is_current(session) and wire.is_temporary(session.client):
            del self._sessions[session.address]
            self._forget(session.client)

    def sweep(self, now: float) -> None:
        """Find the temporary clients that have no session now. Forget each of them that has left, has published
        nothing, or has been away for too long. Also end the sessions of clients that handle no letters although their
        mailboxes are too full."""
        for client, since in list(self._temporary.items()):
            if self._machine.client_address(client) in self._sessions:
                continue
            # A client that has left, or that never sent anything, does not return for the letters in its mailbox.
            if client not in self._machine.clients or now - since > limits.temporary_client_seconds_max:
                self._forget(client)
        for address in self._unreported.given_up(now, self._sessions):
            self._sessions[address].end(*STALLED)

    def _may_be_away(self, client: str) -> None:
        if wire.is_temporary(client):
            self._temporary[client] = self._driver.now

    def _forget(self, client: str) -> None:
        self._temporary.pop(client, None)
        self.drop(self._machine.client_address(client), "its temporary client has left")
        self._driver.feed(Left(client))

    def drop(self, address: str, reason: str, most: int | None = None) -> int:
        """Delete the first letters of a client's mailbox: at most ``most`` letters, by default all. They cannot be
        restored. Return the number of deleted letters."""
        letters = len(list(islice(self._machine.engine.mailboxes.get(address, ()), most)))
        if letters:
            self._driver.feed(Drop(address, letters, reason))
        return letters

    def is_current(self, session: Session) -> bool:
        """Return whether this session has neither ended nor been replaced by a newer one."""
        return self._sessions.get(session.address) is session

    def listen(self, session: Session) -> None:
        """Hand out letters to this session from now on."""
        if self.is_current(session):
            session.listening = True
            session.handed = []
            session.forbidden = {}
            self._machine.engine.abandon(session.address)
            self._driver.request_turn()

    def malformed(self, client: str, part: wire.Publish) -> str:
        """Check a publish for errors that only a faulty client library makes. Return the error, or an empty string if
        there is none. This method does not report mistakes of an application. If a publish contains such a mistake, the
        machine refuses it, and the client continues."""
        count = len(part.bodies)
        if not count or not part.to:
            return "no destination" if count else "no notification"
        if part.number < 1 or (part.ask and count > 1):
            return f"number {part.number}" if part.number < 1 else f"one question with {count} notifications"
        if len(part.context) > limits.trace_context_chars_max:
            return f"trace context of {len(part.context)} characters, expected at most {limits.trace_context_chars_max}"
        for place, _ in part.begun:
            if not 0 <= place < count:
                return f"a handled letter at position {place}, expected 0 to {count - 1}"
        # A batch may be begun when the window is nearly full.
        window = self._machine.clients.get(client, 0) + limits.publish_window_max + limits.publish_batch_max
        if part.number + count - 1 > window:
            return f"number {part.number + count - 1}, expected at most {window} until more publishes are accepted"
        return ""

    def publish(
        self,
        session: Session,
        number: int,
        to: tuple[str, ...],
        kind: str,
        bodies: list[bytes],
        ask: bool,
        context: str,
        begun: Sequence[tuple[int, str]] = (),
    ) -> None:
        """Process one or several notifications of one type that a client sends to the same destinations. ``begun``:
        pairs of a position in ``bodies`` and a letter. The client began to handle this letter before it published the
        notification at this position."""
        if not self.is_current(session):
            return
        # What cannot be sent is refused by the machine, which knows whether it is this publish's turn.
        if not session.rights.free:
            refusal = session.rights.refusal(to, kind, bodies, self._driver.now)
            if refusal is not None:
                retry = refusal.code == OverloadError.code
                self._driver.feed(Denied(session.client, number, len(bodies), refusal.reason, retry, refusal.code))
                return
        if len(bodies) == 1:
            read = tuple([Begun(0, (letter,)) for _, letter in begun]) if begun else ()
            self._driver.feed(Published(session.client, number, to, kind, bodies[0], ask, context=context, begun=read))
            return
        # A batch to many destinations is cut, so that no step makes too many copies.
        most = max(1, limits.step_letters_max // len(to))
        for at in range(0, len(bodies), most):
            some = bodies if len(bodies) <= most else bodies[at : at + most]
            read = tuple([Begun(place - at, (letter,)) for place, letter in begun if at <= place < at + most])
            self._driver.feed(PublishedMany(session.client, number + at, to, kind, some, context, read))

    def done(self, session: Session, letters: list[str], dead: str) -> None:
        """Process a client's report that it has handled these letters. ``dead``: the reason why the client could not
        handle the last of them, or an empty string if it could handle this letter. The report must contain one
        or more of the session's unreported letters: the oldest ones, in sequence. Only letters that the session is not
        allowed to receive may be missing. If the report breaks this rule, it is ignored."""
        if not self.is_current(session) or not letters:
            return
        plainly = letters if session.handed[: len(letters)] == letters else []
        taken = with_forbidden(session.handed, session.forbidden, letters) if session.forbidden else plainly
        if not taken:
            return
        del session.handed[: len(taken)]
        self._unreported.moved(session.address, self._driver.now)
        address = session.address
        if not dead and not session.forbidden:
            self._driver.feed(Handled(address, taken, None, 0))
            return
        reactions = [
            self._forbidden_reaction(session, one) if one in session.forbidden else Reaction(one) for one in taken
        ]
        if dead:
            reactions[-1] = self._died(address, letters[-1], dead[:_reason_chars])
        self._driver.feed(Reacted(address, tuple(reactions), None, 0))
        if session.forbidden:
            self._drop_forbidden(session)

    def _died(self, address: str, id_: str, reason: str) -> Reaction:
        """Count and log a dead letter of a client. Return the reaction that makes the letter dead."""
        self.dead += 1
        self._log.warning("dead-letter", agent=address, letter=id_, reason=reason)
        mailbox = self._machine.engine.mailboxes.get(address, ())
        letter = next((letter for letter in mailbox if letter.id == id_), None)
        return Reaction(id_) if letter is None else died(letter, reason, self._machine.channel.check)

    def _forbidden_reaction(self, session: Session, id_: str) -> Reaction:
        """Return the reaction that makes a letter dead because the session is not allowed to receive it."""
        sender = session.forbidden.pop(id_)
        return self._died(session.address, id_, f"{session.rights.who.label} may not receive from {sender}")

    def _drop_forbidden(self, session: Session) -> None:
        """Make the first letters in ``handed`` dead if the session is not allowed to receive them. Stop before the
        first letter that the session may receive."""
        count = 0
        while count < len(session.handed) and session.handed[count] in session.forbidden:
            count += 1
        if count:
            reactions = tuple(self._forbidden_reaction(session, one) for one in session.handed[:count])
            del session.handed[:count]
            self._driver.feed(Reacted(session.address, reactions, None, 0))

    def deliver(self, due: React) -> None:
        """Hand letters to a client. If the client is not connected or does not listen, they wait in its mailbox."""
        session = self._sessions.get(due.agent)
        if session is None or not session.listening:
            if session is None and wire.is_temporary(due.agent):
                self._temporary.setdefault(due.agent.rpartition("@")[0], self._driver.now)
            return
        if session.handed and due.agent in self._machine.engine.quotas.crowded:
            return  # Once these are settled, letters expire, and then the next are handed out.
        rights = session.rights
        if len(due.letters) == 1 and not session.handed and (rights.free or rights.may_receive(due.letters[0])):
            letters = list(due.letters)
            session.handed = [letters[0].id]
            self._unreported.take(due.agent, 1, self._driver.now)
            self._driver.hand_out(letters, session.deliver)
            return
        fresh: list[Letter] = []
        size = copies = 0
        for letter in due.letters[len(session.handed) :]:
            # Its addresses count too: a topic has many, and one frame must be able to carry all of it.
            size += len(letter.body) + sum(map(len, letter.to))
            copies += len(letter.to)
            if fresh and (size > limits.deliver_bytes_wanted or copies > limits.train_copies_max):
                break
            fresh.append(letter)
        if not fresh:
            return
        self._unreported.take(due.agent, len(fresh), self._driver.now, bool(session.handed))
        session.handed += [letter.id for letter in fresh]
        if not rights.free:
            forbidden = {letter.id: letter.source for letter in fresh if not rights.may_receive(letter)}
            if forbidden:
                session.forbidden |= forbidden
                fresh = [letter for letter in fresh if letter.id not in forbidden]
                self._drop_forbidden(session)
        if fresh:
            self._driver.hand_out(fresh, session.deliver)

    def reply(self, replies: list[Accepted | Refused]) -> None:
        """Send replies to publishes. If a client gets several acceptances in a row, send only the last of them."""
        if len(replies) == 1:
            self._reply(replies[0])
            return
        newest: dict[str, Accepted | Refused] = {}
        for reply in replies:
            before = newest.get(reply.client)
            if before is not None and not (isinstance(before, Accepted) and isinstance(reply, Accepted)):
                self._reply(before)
            newest[reply.client] = reply
        for reply in newest.values():
            self._reply(reply)

    def _reply(self, reply: Accepted | Refused) -> None:
        session = self._sessions.get(self._machine.client_address(reply.client))
        if session is not None:
            session.reply(reply)

    def move(self, to: str) -> None:
        """End all sessions, and make their clients connect to another address."""
        before, self.moved_to = self.moved_to, to
        self.end("the server has moved", MOVED)
        self.moved_to = before

    def send_away(self, reason: str) -> None:
        """End the sessions of clients that must connect again later."""
        for session in list(self._sessions.values()):
            if self.must_wait(session.client):
                session.end(reason, STOPPING)

    def end(self, reason: str, code: str = STOPPING) -> None:
        """End all sessions."""
        for session in list(self._sessions.values()):
            session.end(reason, code)


_reason_chars: Final = 1_000
_choose: Final = "choose another name for the client"


# The session of a client at the other end of a connection.


class RemoteSession:
    """The session of a client at the other end of a connection. It receives the client's *parts* (the units of a
    frame, for example a publish or a report) and passes them to :class:`Sessions`. It sends replies and letters to the
    client."""

    def __init__(self, sessions: Sessions, connection: Connection, client: str, who: Who = TOKEN) -> None:
        self.client = client
        self.rights = sessions.rights(who)
        self.forbidden: dict[str, str] = {}
        self.address = ""
        self.listening = False
        self.handed: list[str] = []
        self._sessions = sessions
        self._connection = connection
        self._welcomed = False
        self._ended = False
        self._rest: deque[wire.AnyPart] = deque()
        """Parts that have arrived and are not yet handled."""
        connection.trust(server=False)
        sessions.begin(self)

    def welcome(self, address: str, last: int) -> None:
        self._welcomed = True
        self._connection.send([wire.Welcome(self._sessions.server, address, last)])

    def reply(self, reply: Accepted | Refused) -> None:
        if not self._welcomed:
            return
        if isinstance(reply, Accepted):
            self._connection.send([wire.Accepted(reply.number)])
        else:
            self._connection.send([wire.Refused(reply.number, reply.count, reply.reason, reply.retry, reply.code)])

    def deliver(self, letters: list[Letter]) -> None:
        if self._sessions.is_current(self):
            self._connection.send([wire.Deliver(encode_train(letters))])

    def end(self, reason: str, code: str) -> None:
        self._ended = True
        if code == MOVED:
            self._connection.send([wire.Bye(reason, False, MOVED, self._sessions.moved_to)])
        self._connection.close(reason, final=code == REPLACED, code=code)

    # From the connection.

    def received(self, parts: list[wire.AnyPart]) -> None:
        if self._rest:
            self._rest.extend(parts)
        elif len(parts) > limits.session_parts_max:
            self._rest.extend(parts)
            self._connection.busy(True)
            self._take_some()
        else:
            self._handle(parts)

    def _take_some(self) -> None:
        """Handle some of the parts in ``_rest`` now, and the others in the driver's next turns (calls of
        ``Driver.turn``)."""
        rest = self._rest
        self._handle([rest.popleft() for _ in range(min(len(rest), limits.session_parts_max))])
        if rest:
            self._sessions.defer(self._go_on)
        else:
            self._connection.busy(False)

    def _go_on(self) -> None:
        if self._rest:
            try:
                self._take_some()
            except WireError as error:
                self._rest.clear()
                break_off(self._connection, error, client=True)

    def _handle(self, parts: list[wire.AnyPart]) -> None:
        sessions, pinged = self._sessions, False
        for part in parts:
            if isinstance(part, wire.Publish):
                fault = sessions.malformed(self.client, part)
                if fault:
                    raise WireError(f"malformed publish from client {self.client}: {fault}", "bad-publish")
                sent = part.number, part.to, part.type, part.bodies, part.ask, part.context, part.begun
                sessions.publish(self, *sent)
            elif isinstance(part, wire.Done):
                sessions.done(self, part.letters, part.dead)
            elif isinstance(part, wire.Listen):
                sessions.listen(self)
            elif isinstance(part, wire.Ping):
                pinged = True
            elif isinstance(part, wire.Bye):
                if part.final:
                    sessions.leave(self)
            elif not isinstance(part, wire.Pong):
                raise WireError(f"unexpected {type(part).__name__} from client {self.client}", "unexpected-part")
        if pinged:
            self._connection.send([wire.Pong()])

    def closed(self, reason: str, now: float) -> None:
        self._rest.clear()
        self._sessions.finish(self, "" if self._ended else reason, self._connection.code)

    def writable(self) -> None:
        return
