"""The other servers: one connection to each peer, dialed by the server whose name is smaller.

With an access file, both ends first prove their identity (:mod:`antecede.access.proof`). Before this proof, no link is
read or changed. Then each end sends a hello with the topology epoch, the names, the token, and the state
of each shared link. A hello says which frames were accepted, and then the peer forgets these frames. So a hello is sent
only when all its content is durable. A server that must not connect is disconnected. It gets the reason: for example
another topology or token, or a link that stopped because data was lost. ``refusals`` keeps each peer's last reason.

While a peer is not connected, this class keeps no frames for it. The link to the peer keeps each frame until the
frame is acknowledged, and sends it again after the next hello. The module ``peer`` writes to a connection.

This class does no I/O and has no clock. ``dials`` returns the peers to dial now. The adapter (the code that opens the
connections) reports the result with ``dialed`` or ``dial_failed``.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from antecede import limits, wire
from antecede.access import Refusal, Who
from antecede.access.proof import Dialing
from antecede.channel.consumer import Outgoing
from antecede.errors import AntecedeError, OverloadError, UsageError, WireError
from antecede.link import Ack, Frame, Hello
from antecede.server.admission import Guard
from antecede.server.connections import NO_HELLO, Backoff, Connection, keep_alive
from antecede.server.driver import Driver
from antecede.server.inputs import FromPeer, Log
from antecede.server.learning import learns, lesson_of, teachers_of, teaches, trusts
from antecede.server.node import AgentServer
from antecede.wire import PeerFrames

# One other server, and the output on the connection to it.
#
# Frames that can be sent at the same time are written together. While the connection is full, at most
# ``deferred_frames_max`` frames and acknowledgements wait here. Further frames and acknowledgements are dropped. A
# frame that was already written to this connection does not wait here again: it is dropped, too. Nothing is lost,
# because the link repeats each frame until it is acknowledged.


class Unreachable(msgspec.Struct, frozen=True):
    """A peer that does not answer when it is dialed."""

    reason: str
    """The reason why the last try failed."""
    since: float
    tries: int

    def status(self, now: float) -> dict[str, Any]:
        """Return the values that the operators' command ``status`` shows for this peer."""
        return {"reason": self.reason, "tries": self.tries, "seconds": round(max(0.0, now - self.since), 1)}


class Peer:
    """Another server that shares a domain with this one."""

    def __init__(self, name: str, domains: list[str], ours_to_dial: bool) -> None:
        self.name = name
        self.domains = domains
        self.ours_to_dial = ours_to_dial
        self.connection: Connection | None = None
        self.serial = 0
        """The number of the newest connection on which a hello was accepted."""
        self.dialed: Connection | None = None
        """The connection that we dialed, even if the peer has not sent its hello yet."""
        self.who: Who | None = None
        """The identity that the peer has proved on the connection that we dialed."""
        self.ready = False
        """Whether this server and the peer have sent their hellos. Frames may be sent only after both hellos."""
        self.deferred: list[Outgoing] = []
        """Frames and acknowledgements that wait for space on the connection."""
        self.newest: dict[str, int] = {}
        """Domain → the largest frame number written to this connection. A frame with a larger number is new for this
        connection."""
        self.connections = 0
        """The number of connections that were made so far. Every connection after the first is a reconnection."""
        self.bye = ""
        """The reason that the other end gave for closing the connection."""
        self.claim = ""
        """The reason why this server last refused a program that claimed to be this peer without proof. The text is
        empty if no such program was refused since the peer last connected."""
        self.dial_at: float | None = None
        """The time at which this server will dial the peer, or None if no dial is planned."""
        self.backoff = Backoff()

    def begin(self) -> None:
        """Forget the state of an earlier connection. Drop the frames and acknowledgements that wait for space on it."""
        self.ready = False
        self.claim = ""
        self.deferred.clear()
        self.newest.clear()

    def write(self, several: list[Outgoing]) -> None:
        """Write frames and acknowledgements. If the connection is full, add them to ``deferred`` instead. In this case,
        drop frames that were already written to this connection, and everything beyond ``deferred_frames_max``."""
        connection = self.connection
        assert connection is not None
        if not connection.full:
            connection.send(self._parts(several))
            return
        for one in several:
            content = one.content
            again = isinstance(content, Frame) and content.number <= self.newest.get(one.domain, 0)
            if not again and len(self.deferred) < limits.deferred_frames_max:
                self.deferred.append(one)

    def writable(self) -> None:
        """Write the frames and acknowledgements that were kept, because the connection has room again."""
        if self.ready and self.deferred:
            deferred, self.deferred = self.deferred, []
            self.write(deferred)

    def _parts(self, several: list[Outgoing]) -> list[wire.Part]:
        """Return the parts to write. A part contains an acknowledgement, or consecutive frames of one link, up to a
        size limit."""
        newest = self.newest
        if len(several) == 1:
            domain, content = several[0].domain, several[0].content
            if isinstance(content, Ack):
                return [_acknowledgement(domain, content)]
            if content.number > newest.get(domain, 0):
                newest[domain] = content.number
            return [wire.PeerFrames(domain, content.source, content.target, [content.number], [content.body])]
        parts: list[wire.Part] = []
        open_: tuple[str, int, int] | None = None
        numbers: list[int] = []
        bodies: list[bytes] = []
        size = 0
        for one in several:
            content = one.content
            if isinstance(content, Ack):
                parts.append(_acknowledgement(one.domain, content))
                continue
            link = (one.domain, content.source, content.target)
            if link != open_ or size > limits.frame_bytes_wanted:
                numbers, bodies, size, open_ = [], [], 0, link
                parts.append(wire.PeerFrames(*link, numbers, bodies))
            numbers.append(content.number)
            bodies.append(content.body)
            size += len(content.body)
            if content.number > newest.get(one.domain, 0):
                newest[one.domain] = content.number
        return parts


def _acknowledgement(domain: str, ack: Ack) -> wire.PeerAck:
    return wire.PeerAck(domain, ack.source, ack.target, ack.upto, ack.beyond)


# The conditions for two servers to connect: the same system, and equal shared domains.


CHANGING: Final = "changing"
"""The code for refusing a server that does not take part in the change in progress. The refused server may try again
soon."""
BEHIND: Final = ("other-topology", "unknown-server", "other-links")
"""Codes of refusals. If a server is refused with one of them, it perhaps has not made a change of the topology yet."""


def check_hello(epoch: str, server: str, peer: str, token: str, domains: Sequence[str]) -> None:
    """Raise UsageError if a hello with this token and these domains would be longer than a server accepts."""
    most = limits.counter_max
    links = [wire.LinkHello(domain, most, most, most, most, most, most, most, "0" * 16) for domain in domains]
    names = (epoch, server, peer, token)
    size = len(wire.frame([wire.ServerHello(*names, links, "0" * 16, most)]))
    if size > limits.hello_bytes_max:
        raise UsageError(
            f"the hello between {server} and {peer} has {size} bytes, but a server reads at most "
            f"{limits.hello_bytes_max}: expected a shorter token, or fewer than {len(links)} shared domains"
        )


def link_hellos(machine: AgentServer, peer: str, domains: Sequence[str]) -> list[wire.LinkHello]:
    """Return the present state of the links to a peer in these domains, for a hello."""
    links, organisation = [], machine.organisation
    for domain in domains:
        consumer = machine.channel.consumers[domain]
        mine = consumer.links[peer].hello()
        links.append(
            wire.LinkHello(
                domain,
                mine.source,
                mine.target,
                mine.sent,
                mine.accepted,
                consumer.generation,
                mine.life,
                mine.base,
                organisation.digest(domain, machine.plan),
            )
        )
    return links


# Questions to other servers about a change of the topology. Each question has its own connection, only for hellos.
#
# A question is a hello that names no links. The other server answers with its hello, and then closes the connection. A
# server that is refused because it has not made a change yet gets the same answer. From this answer it learns that the
# change was made. See :mod:`antecede.server.participation`.


CODE = "topology-changed"


class Inquiries:
    """The questions of one server about a change of the topology, and its answers to such questions."""

    def __init__(self, peering: "Peering", machine: AgentServer, log: Log) -> None:
        self._peering = peering
        self._machine = machine
        self._log = log
        self._at: dict[str, float] = {}
        """The server's name → the time at which to ask this server."""
        self._dialed: set[str] = set()

    def ask(self, server: str, now: float) -> None:
        """Plan to ask a server for its hello at the time ``now``."""
        self._at[server] = now

    def deadline(self) -> float | None:
        """Return the time of the next question, or None if no question is planned."""
        return min(self._at.values(), default=None)

    def due(self, now: float) -> list[str]:
        """Return the servers to dial now for a question. The caller then calls ``ended`` for each of them."""
        found = [name for name, when in self._at.items() if when <= now]
        for name in found:
            del self._at[name]
        fresh = [name for name in found if name not in self._dialed]
        self._dialed.update(fresh)
        return fresh

    def ended(self, name: str) -> bool:
        """Record that the attempt to dial a server has ended, with success or without. Return whether the server was
        dialed for a question."""
        asked = name in self._dialed
        self._dialed.discard(name)
        return asked

    def answered(self, hello: wire.ServerHello) -> None:
        """Handle the answer to a question. If this server is new and the other server does not know it, record that
        this server is not part of the system yet."""
        organisation = self._machine.organisation
        if not hello.known and organisation.is_new(self._machine.channel):
            if not organisation.outside:
                self._log.info("not-yet-part", peer=hello.server, topology=hello.epoch[:64])
            organisation.outside = True

    def answers(self, hello: wire.ServerHello, refusal: Refusal) -> bool:
        """Return whether a refused server must get our hello. It gets the hello if it asked a question, or if it has
        not made a change yet."""
        behind = hello.change < self._machine.organisation.change or bool(hello.attempt)
        return refusal.code in BEHIND and (behind or not hello.links)

    def answer(self, hello: wire.ServerHello, connection: Connection, refusal: Refusal) -> None:
        """Send our hello when everything recorded so far is durable, and then close the connection."""
        to, attempt = Peer(hello.server[:64], [], False), hello.attempt[:64]
        self._peering.say_hello(to, connection, lambda: connection.close(refusal.reason, code=CODE), attempt)


# Lessons between two servers. The server with the newer topology sends the topology in force, and the other server
# records it.
#
# See :mod:`antecede.server.learning` for the rules. A lesson comes after both hellos, on the same connection. It does
# not matter which of the two servers has dialed. When the receiver has recorded the lesson, it closes the connection,
# and both servers connect again. A server that refuses a lesson sends the reason and closes the connection. A server
# accepts lessons only from servers that it believes (see *Which servers are believed* in ``learning``). When any other
# server has a newer topology, the server requests a lesson from the servers that it believes.


UNCONFIRMED: Final = "unconfirmed"
"""The code of a refusal: the other server has a newer topology, but this server does not accept lessons from it. The
refusals end when this server has learned the change from a server whose lessons it accepts."""
Learn = Callable[[bytes, Callable[[Any, AntecedeError | None], None]], None]
"""A function with two arguments: a lesson as JSON, and a callback. It records the lesson in the log, and then calls the
callback with the result or the error."""


class Lessons:
    """Sends and receives lessons for one server. The server sends a lesson when another server has missed changes of
    the topology. The server receives a lesson when it has missed changes itself."""

    def __init__(self, peering: "Peering", machine: AgentServer, log: Log) -> None:
        self._peering = peering
        self._machine = machine
        self._log = log
        self.learn: Learn = lambda content, done: done(None, None)
        self.ask: Callable[[str], None] = lambda server: None
        """A function that connects to a server to get a lesson from it. That server need not be a peer."""
        self._waiting: set[str] = set()
        """Servers that have a newer topology, but from which this server does not accept lessons. Each of them was
        disconnected once for this reason. The set is emptied when another topology comes into force here."""
        self._trouble = ""
        """The reason why the last lesson was refused."""

    def are_due_to(self, hello: wire.ServerHello) -> bool:
        """Return whether the sender of a hello must learn changes of the topology from this server. The sender is an
        authenticated server."""
        return self._same_copy(hello) and teaches(self._machine, hello)

    def are_due_from(self, hello: wire.ServerHello) -> bool:
        """Return whether this server must learn changes of the topology from the sender of a hello. The sender is an
        authenticated server."""
        return self._same_copy(hello) and learns(self._machine, hello)

    def _same_copy(self, hello: wire.ServerHello) -> bool:
        # A restored system has its id behind its epoch (antecede.backups.folder).
        return hello.epoch.partition("~")[2] == self._peering.restored

    def give(self, hello: wire.ServerHello, connection: Connection, dialed: bool) -> None:
        """Send a lesson to the sender of ``hello``. ``dialed``: whether this server has dialed. If it has not, send our
        hello first, because the other server waits for it. The other server closes the connection after the lesson."""
        lesson = wire.Lesson(lesson_of(self._machine.organisation))
        self._log.info("teaches", peer=hello.server[:64], change=self._machine.organisation.change)
        if dialed:
            self._peering.when_durable(lambda: connection.send([lesson]))
        else:
            to = Peer(hello.server[:64], [], False)
            self._peering.say_hello(to, connection, lambda: connection.send([lesson]), hello.attempt[:64], True)

    def expect(self, hello: wire.ServerHello, connection: Connection, dialed: bool) -> bool:
        """Prepare to receive a lesson (the changes that this server has missed) from the sender of ``hello``.
        ``dialed``: whether this server has dialed. If it has not, send our hello, because the other server waits for
        it. If this server does not accept lessons from the other one, close the connection and return False. Otherwise
        return True."""
        if not trusts(self._machine, hello.server):
            self._send_away(hello, connection)
            return False
        connection.trust(server=True)
        if not dialed:
            self._peering.say_hello(Peer(hello.server[:64], [], False), connection, lambda: None)
        return True

    def _send_away(self, hello: wire.ServerHello, connection: Connection) -> None:
        """Close the connection to a server that has a newer topology, but from which this server does not accept
        lessons. Ask for a lesson from the servers whose lessons this server accepts. The first time, the other server
        may connect again immediately. After that, it is refused until another topology is in force here. If there is no
        server to ask, the other server is refused immediately."""
        teachers = teachers_of(self._machine)
        for server in teachers:
            self.ask(server)
        other = hello.server[:64]
        if teachers and other not in self._waiting and len(self._waiting) < limits.topology_servers_max:
            self._waiting.add(other)
            connection.close("the topology has changed", code=CODE)
            return
        me, change = self._machine.name, self._machine.organisation.change
        reason = f"server {other} has change {hello.change} of the topology and {me} has change {change}: "
        if teachers:
            reason += f"{me} learns changes only from {teachers[-1]}, which has not confirmed it"
            reason += f" ({self._trouble})" if self._trouble else ""
        else:
            reason += (
                f"{me} takes part in every change, so its data or the data of {other} does not belong to this system"
            )
        self._peering.refuse(hello.server, connection, Refusal(UNCONFIRMED, reason))

    def organised(self) -> None:
        """Forget which servers were disconnected, and why the last lesson was refused, because another topology is in
        force."""
        self._waiting.clear()
        self._trouble = ""

    def take(self, peer: str, part: wire.AnyPart, connection: Connection) -> None:
        """Handle the part that a peer has sent when this server expects a lesson (the changes that this server has
        missed). Refuse the part if it is not a lesson."""
        if not isinstance(part, wire.Lesson):
            what = f"{type(part).__name__} where a topology was expected"
            self._peering.refuse(peer, connection, Refusal("lesson-expected", what))
            return

        def learned(result: Any, error: AntecedeError | None) -> None:
            if error is None or isinstance(error, OverloadError):
                self._log.info("learned", peer=peer, change=self._machine.organisation.change, ok=error is None)
                connection.close("the topology has changed", code=CODE)
            else:
                self._trouble = str(error)
                self._peering.refuse(peer, connection, Refusal("other-topology", str(error)))

        self.learn(part.content, learned)

    def part(self) -> None:
        """Close the connections to servers that do not take part in the change that is staged."""
        organisation = self._machine.organisation
        for peer in self._peering.peers.values():
            for connection in (peer.connection, peer.dialed):
                if connection is not None and organisation.is_apart(peer.name):
                    connection.close("the topology changes", code=CODE)


# The two ends of a connection between servers: the one that dialed, and the one that answered.
#
# With an access file, each end first proves its identity. When the hellos have been accepted, both ends pass everything
# that they receive on the connection to :class:`antecede.server.peering.Peering`.


class Dialed:
    """The dialing end of a connection to a peer."""

    def __init__(self, peering: "Peering", peer: Peer, connection: Connection) -> None:
        self._peering = peering
        self._peer = peer
        self._connection = connection
        self._met = False
        self._refused = False
        self._learning = False
        self._change = -1
        """The number of the topology change in our hello, or −1 if our hello was not sent yet."""
        peer.dialed = connection
        peer.who = None
        keyring = peering.guard.keyring
        self._proof = None if keyring is None else Dialing(keyring, connection, peer.name)
        if self._proof is None:
            self._greet()
        else:
            connection.send([self._proof.introduction])

    def _greet(self) -> None:
        stopped = self._peering.stopped(self._peer.name)
        if stopped is not None:
            self._refuse(stopped)
        else:
            self._say_hello()

    def _say_hello(self) -> None:
        self._change = self._peering.change
        self._peering.say_hello(self._peer, self._connection, lambda: None)

    def received(self, parts: list[wire.AnyPart]) -> None:
        if self._met:
            self._peering.received(self._peer, parts)
            return
        # One part: the connection reads no more until it is trusted.
        first = parts[0]
        if isinstance(first, wire.Bye):
            self._peering.closed_by_peer(self._peer, first, self._connection.remote)
        elif self._refused:
            return
        elif self._learning:
            self._refused = True
            self._peering.lessons.take(self._peer.name, first, self._connection)
        elif self._proof is not None:
            self._check(self._proof, first)
        else:
            self._take_hello(first)

    def _check(self, dialing: Dialing, first: wire.AnyPart) -> None:
        """Check the peer's proof of its identity, and send ours."""
        proof = dialing.answer(first)
        if isinstance(proof, Refusal):
            self._peering.guard.refused(self._connection.remote, f"server {self._peer.name}", proof)
            self._refuse(proof)
            return
        self._proof = None
        self._peer.who = dialing.who
        self._connection.send([proof])
        self._greet()

    def _take_hello(self, first: wire.AnyPart) -> None:
        if not isinstance(first, wire.ServerHello):
            raise WireError(f"{type(first).__name__} where a server's hello was expected", "hello-expected")
        refusal = self._peering.guard.authoriser.token_refusal(first.token) if self._peer.who is None else None
        if refusal is None and first.server != self._peer.name:
            refusal = Refusal("wrong-server", f"dialed {self._peer.name} and {first.server[:64]} answered")
        if refusal is None and self._peering.decide(first):
            self._connection.close("the topology changes", code=CODE)
            return
        if refusal is None and self._is_lesson(first):
            return
        refusal = refusal or self._judge(first)
        if refusal is not None:
            self._refuse(refusal)
            return
        self._met = True
        self._peering.met(self._peer, self._connection, first)
        self._peering.open_for_frames(self._peer, self._connection)

    def _is_lesson(self, hello: wire.ServerHello) -> bool:
        """Handle the three cases in which the peer's hello must not be used, and return True. (1) The topology has
        changed here since our hello: close the connection. (2) The other server has missed changes: send a lesson. (3)
        This server has missed changes: prepare to receive a lesson. In all other cases, do nothing and return False.
        Then the caller must process the hello."""
        lessons = self._peering.lessons
        if self._change != self._peering.change:
            # The other end has got an older hello, and does not expect a lesson.
            self._connection.close("the topology has changed", code=CODE)
        elif lessons.are_due_to(hello):
            self._refused = True
            lessons.give(hello, self._connection, dialed=True)
        elif hello.teaches and lessons.are_due_from(hello):
            self._learning = lessons.expect(hello, self._connection, dialed=True)
            self._refused = not self._learning
        else:
            return False
        return True

    def _judge(self, hello: wire.ServerHello) -> Refusal | None:
        return self._peering.refusal(hello)

    def _refuse(self, refusal: Refusal) -> None:
        self._refused = True
        self._peering.refuse(self._peer.name, self._connection, refusal)

    def closed(self, reason: str, now: float) -> None:
        if self._peer.dialed is self._connection:
            self._peer.dialed = None
        self._peering.lost_dialed(self._peer, self._connection, reason, now)

    def writable(self) -> None:
        self._peer.writable()


class Inquiry(Dialed):
    """The dialing end of a connection that is made for one question (:mod:`antecede.server.peering`)."""

    def _greet(self) -> None:
        self._say_hello()

    def _judge(self, hello: wire.ServerHello) -> Refusal | None:
        self._peering.inquiries.answered(hello)
        return Refusal(CODE, "the question is answered")

    def _refuse(self, refusal: Refusal) -> None:
        self._refused = True
        self._connection.close(refusal.reason, code=refusal.code)

    def closed(self, reason: str, now: float) -> None:
        """Do nothing, because nothing depends on this connection."""


class Answered:
    """The answering end of a connection that a peer has dialed, from the moment when the peer's hello is accepted."""

    def __init__(self, peering: "Peering", connection: Connection, hello: wire.ServerHello) -> None:
        self._peering = peering
        self._connection = connection
        self._peer = peering.peers[hello.server]
        connection.expect_a_reader(False)
        peering.met(self._peer, connection, hello)
        peering.say_hello(self._peer, connection, lambda: peering.open_for_frames(self._peer, connection))

    def received(self, parts: list[wire.AnyPart]) -> None:
        self._peering.received(self._peer, parts)

    def closed(self, reason: str, now: float) -> None:
        self._peering.lost(self._peer, self._connection, reason, now)

    def writable(self) -> None:
        self._peer.writable()


class Peering:
    """The connections of one server to all its peers: dial, exchange hellos, send and receive frames, close."""

    def __init__(
        self,
        machine: AgentServer,
        epoch: str,
        token: str,
        guard: Guard,
        log: Log,
        random: Callable[[], float],
    ) -> None:
        """``random``: a function that returns numbers from 0 to 1, for the random part of the pauses between dials."""
        self._machine = machine
        self._given_epoch, _, self.restored = epoch.partition("~")
        """``_given_epoch``: the topology epoch at the start. ``restored``: the id of the restored system to which this
        server belongs (:mod:`antecede.backups.folder`), or an empty string if the system was not restored."""
        self._token = token
        self.guard = guard
        self._log = log
        self._random = random
        self._driver: Driver
        self._feed: Callable[[FromPeer], None]
        """A function that passes a peer's input to the driver, or keeps it in ``_kept`` while ``paused`` is true."""
        self._kept: list[FromPeer] = []
        self._held, self.paused = False, False
        """``_held``: whether ``hold`` stopped reading from peers. ``paused``: whether inputs go to ``_kept``."""
        self.unreachable: dict[str, Unreachable] = {}
        """Peer → its failed dials since it was last connected. Only peers with failed dials have an entry."""
        self.refusals: dict[str, str] = {}
        """Peer → the reason of the last refusal: this server refused the peer, or the peer refused this server."""
        self.decide: Callable[[wire.ServerHello], bool] = lambda hello: False
        """A function that processes the hello of an authenticated server. If the hello shows that the staged change was
        abandoned, it abandons the change here and returns True. The caller then closes the connection."""
        self.inquiries = Inquiries(self, machine, log)
        self.lessons = Lessons(self, machine, log)
        self._dialing: set[str] = set()
        self._consumers = dict(machine.channel.consumers)
        """For each domain: the consumer (this server's part in the domain) at the time when ``peers`` was set. If a
        domain has another consumer now, the domain has started with a new state."""
        shared = machine.channel.shared_domains()
        self.peers = {name: Peer(name, domains, machine.name < name) for name, domains in shared.items()}
        for each in self.peers.values():
            check_hello(self.epoch, machine.name, each.name, token, each.domains)

    @property
    def epoch(self) -> str:
        """The epoch of the topology in force, as in hellos. In a restored system, it ends with the system's id."""
        return (self._machine.epoch or self._given_epoch) + (f"~{self.restored}" if self.restored else "")

    @property
    def change(self) -> int:
        """The number of the change that brought the present topology into force."""
        return self._machine.organisation.change

    def attach(self, driver: Driver) -> None:
        """Set the driver that processes the inputs from peers."""
        self._driver = driver
        self._feed = driver.feed

    def start(self, now: float) -> None:
        """Plan to dial, at the time ``now``, each peer whose name is larger than the name of this server."""
        for peer in self.peers.values():
            if peer.ours_to_dial:
                peer.dial_at = now

    def stop(self, reason: str) -> None:
        """Close all connections, and stop dialing."""
        for peer in self.peers.values():
            peer.dial_at, peer.ours_to_dial = None, False
            if peer.connection is not None:
                peer.connection.close(reason)

    def hold(self, held: bool) -> None:
        """Stop reading from all peers if ``held``. Otherwise read from them again, unless ``paused`` is true."""
        self._held = held
        self._hold()

    def _hold(self) -> None:
        for peer in self.peers.values():
            if peer.connection is not None:
                peer.connection.hold(self._held or self.paused)

    def pause(self) -> None:
        """Keep all inputs from peers (frames, acknowledgements, hellos) until ``resume``. Frames are still sent."""
        self.paused, self._feed = True, self._kept.append
        self._hold()

    def resume(self) -> None:
        """Give the kept inputs to the driver, in the sequence in which they came, and read from peers again."""
        self.paused, self._feed = False, self._driver.feed
        kept, self._kept = self._kept, []
        for given in kept:
            self._feed(given)
        self._hold()

    def reset(self, domain: str, now: float) -> None:
        """Close the connections to all members of a domain that is being reset, so that no message from before the
        reset is read. Then connect again."""
        self._kept[:] = [given for given in self._kept if given.domain != domain]
        for peer in self.peers.values():
            if domain in peer.domains:
                self.refusals.pop(peer.name, None)
                if peer.connection is not None:
                    connection = peer.connection
                    connection.close(f"domain {domain} was reset")
                    self.lost(peer, connection, f"domain {domain} was reset", now)
                if peer.ours_to_dial:
                    peer.backoff.reset()
                    peer.dial_at = now

    def organise(self, now: float, learned: bool = False) -> None:
        """Follow the topology that is now in force. Close the connection to a peer if the two servers now share
        other domains than before, or if a shared domain starts with a new state. Then frames from before the change are
        invalid, so new hellos are needed. ``learned``: whether another server has sent this topology to us. If so,
        close all connections, because any peer may have an older topology."""
        consumers, shared = self._machine.channel.consumers, self._machine.channel.shared_domains()
        begun = {name for name, one in self._consumers.items() if consumers.get(name) is not one}
        self._consumers = dict(consumers)
        before, self.peers = self.peers, {}
        for name, domains in shared.items():
            known = before.get(name)
            if known is not None and known.domains == domains and begun.isdisjoint(domains) and not learned:
                self.peers[name] = before.pop(name)
                if known.dial_at is not None:  # It may have refused us because of the change.
                    known.backoff.reset()
                    known.dial_at = now
            else:
                peer = self.peers[name] = Peer(name, domains, self._machine.name < name)
                peer.dial_at = now if peer.ours_to_dial else None
                self.refusals.pop(name, None)
        self._driver.ignore(begun, {name for name in before if name not in shared})
        for peer in before.values():
            for connection in {peer.connection, peer.dialed} - {None}:
                assert connection is not None
                connection.close("the topology has changed", code=CODE)
            if peer.name not in shared:
                self.refusals.pop(peer.name, None)
                self.unreachable.pop(peer.name, None)

    def review(self) -> None:
        """Close each connection that we dialed if the other server's key was revoked or has expired."""
        for peer in self.peers.values():
            refusal = None if peer.dialed is None else self.guard.lapse(peer.who)
            if refusal is not None and peer.dialed is not None:
                self.guard.note("revoked", peer.who, peer.dialed.remote, reason=refusal.reason)
                self.refuse(peer.name, peer.dialed, refusal)

    def watch(self, now: float) -> None:
        """Check the connections that we dialed. Send pings to keep them open. Close a connection if nothing is
        received on it for too long. :mod:`antecede.server.entry` does the same for incoming connections."""
        for peer in self.peers.values():
            connection = peer.dialed
            if connection is None:
                continue
            if connection is peer.connection:
                keep_alive(connection, now)
            elif now - connection.last_received > limits.hello_seconds_max:
                connection.close(f"no hello from {peer.name}", code=NO_HELLO)

    # Connections.

    def dials(self, now: float) -> list[str]:
        """Return the servers to dial now. The caller then calls ``dialed`` or ``dial_failed`` for each of them."""
        found = []
        for peer in self.peers.values():
            if peer.dial_at is not None and peer.dial_at <= now:
                peer.dial_at = None
                if peer.name not in self._dialing:
                    found.append(peer.name)
        self._dialing.update(found)
        return found + self.inquiries.due(now)

    def deadline(self) -> float | None:
        """Return the time at which the next server must be dialed, or None if no server must be dialed."""
        due = self.inquiries.deadline()
        for peer in self.peers.values():
            if peer.dial_at is not None and (due is None or peer.dial_at < due):
                due = peer.dial_at
        return due

    def dial_failed(self, name: str, now: float, reason: str = "") -> None:
        """Record that a dial has failed, and plan the next dial. The pauses grow up to a limit. Log only one failure:
        the first one after ``_tries_unlogged`` failures."""
        if self._dial_ended(name):
            return
        before = self.unreachable.get(name, Unreachable("", now, 0))
        failed = self.unreachable[name] = Unreachable(reason, before.since, before.tries + 1)
        if failed.tries == _tries_unlogged + 1:
            self._log.warning("dial-failed", peer=name, reason=reason, tries=failed.tries)
        self._dial_later(self.peers[name], now)

    def _dial_ended(self, name: str) -> bool:
        """Record that a dial has ended. Return True if it was for ``inquiries``, or if the server is not a peer."""
        if self.inquiries.ended(name):
            return True
        self._dialing.discard(name)
        return name not in self.peers

    def dialed(self, name: str, connection: Connection) -> Dialed:
        """Record that a dial has succeeded. Return the object that handles what is received on the new connection."""
        if self._dial_ended(name):
            return Inquiry(self, Peer(name, [], False), connection)
        # Two connections at once would have hellos of different moments.
        self.peers[name].dial_at = None
        return Dialed(self, self.peers[name], connection)

    def _dial_later(self, peer: Peer, now: float) -> None:
        if peer.ours_to_dial:
            peer.dial_at = now + peer.backoff.next(self._random())

    def when_durable(self, then: Callable[[], None]) -> None:
        """Call ``then`` when everything recorded so far is durable."""
        self._driver.when_durable(then)

    def say_hello(
        self, peer: Peer, connection: Connection, then: Callable[[], None], asked: str = "", teaches: bool = False
    ) -> None:
        """Send our hello when its content is durable. Then call ``then``. ``asked``, ``teaches``: see ``hello``."""
        hello = self.hello(peer, asked, teaches)

        def send() -> None:
            connection.send([hello])
            then()

        self._driver.when_durable(send)

    def hello(self, peer: Peer, asked: str = "", teaches: bool = False) -> wire.ServerHello:
        """Return our hello to a server, with the present state of the links. ``asked``: the ``attempt`` of the hello
        that our hello answers, or an empty string. ``teaches``: whether we send a lesson after our hello."""
        organisation = self._machine.organisation
        return wire.ServerHello(
            self.epoch,
            self._machine.name,
            peer.name,
            self._token,
            link_hellos(self._machine, peer.name, peer.domains),
            organisation.system,
            organisation.change,
            organisation.attempt,
            asked,
            peer.name in self.peers,
            teaches,
        )

    def refusal(self, hello: wire.ServerHello) -> Refusal | None:
        """Return why the authenticated sender of a hello must not connect, or None if the sender may connect."""
        known = self.peers.get(hello.server)
        refusal = self._incompatible(None if known is None else known.domains, hello)
        return refusal or self.stopped(hello.server)

    def _incompatible(self, shared: Sequence[str] | None, hello: wire.ServerHello) -> Refusal | None:
        """Return why the sender of a hello must not connect, or None if the sender may connect. ``shared``: the domains
        that the sender shares with this server, or None if the sender is not a peer."""
        machine = self._machine
        me, other = machine.name, hello.server[:64]
        if hello.to != me:
            return Refusal("wrong-server", f"this is server {me}, not {hello.to[:64]}")
        if shared is None:
            return Refusal("unknown-server", f"server {other} shares no domain with {me}")
        other_topology = self._other_topology(shared, hello)
        if other_topology is not None:
            return other_topology
        for link in hello.links:
            mine = machine.channel.consumers[link.domain].generation
            if link.generation != mine:
                return Refusal(
                    "other-generation",
                    f"domain {link.domain} was reset {link.generation} times at {other} and {mine} times at {me}: "
                    "reset it at all its members (antecede topology forget)",
                )
        return None

    def _other_topology(self, shared: Sequence[str], hello: wire.ServerHello) -> Refusal | None:
        """Return why the sender of a hello must not connect, or None if the sender may connect. The sender must belong
        to the same system. It must take part in the change that is staged here (if there is one). Its last change of
        the topology must be the same as ours. The digests of the domains that both servers share must be equal."""
        machine = self._machine
        me, other, organisation = machine.name, hello.server[:64], machine.organisation
        if hello.epoch.partition("~")[2] != self.epoch.partition("~")[2]:
            return Refusal(
                "other-system",
                f"server {other} belongs to another system ({hello.epoch[:64]}) than {me}: one was restored from a "
                "backup; to let a server without data join the restored system: antecede topology apply",
            )
        if hello.system and organisation.system and hello.system != organisation.system:
            return Refusal("other-system", f"server {other} belongs to another system ({hello.system[:64]}) than {me}")
        theirs = {link.domain: link.digest for link in hello.links}
        if len(theirs) < len(hello.links):
            return Refusal("bad-hello", f"server {other} names a link twice")
        ours = {one: organisation.digest(one, machine.plan) for one in shared}
        if organisation.is_apart(hello.server):
            return Refusal(CHANGING, f"the topology changes, and server {other} does not take part: try again")
        if theirs.keys() != ours.keys() and hello.epoch == self.epoch:
            return Refusal("other-links", f"server {other} names other links than the topology has")
        differ = sorted(one for one in {*theirs, *ours} if theirs.get(one) != ours.get(one))
        if hello.change == organisation.change and not differ:
            return None
        reason = (
            f"server {other} has change {hello.change} of the topology (epoch {hello.epoch[:64]}) and {me} has change "
            f"{organisation.change} ({self.epoch}), and "
        )
        if hello.change != organisation.change:
            # The server with the lower number would have learned from the other, unless they have different histories.
            return Refusal("other-topology", reason + "the server with the lower number cannot learn from the other")
        return Refusal(
            "other-topology",
            f"{reason}domain {differ[0][:64]} differs: finish the change (antecede topology apply); if both were "
            "first started with different files, start them with one file and empty data directories",
        )

    def stopped(self, peer: str) -> Refusal | None:
        """Return why a link to a peer is stopped, or None if no link to this peer is stopped."""
        for (domain, name), reason in self._machine.stopped.items():
            if name == peer:
                return Refusal("link-stopped", f"link {domain} with {peer} is stopped: {reason}")
        return None

    def is_outdated(self, name: str, connection: Connection) -> bool:
        """Return whether a hello was already accepted on a newer connection of this peer. If so, do not use the hello
        on this older connection. It contains old frame numbers, so the peer would seem to have lost data."""
        return connection.serial < self.peers[name].serial

    def met(self, peer: Peer, connection: Connection, hello: wire.ServerHello) -> None:
        """Use ``connection`` for this peer from now on, because the peer's hello was accepted."""
        if peer.connection is not None and peer.connection is not connection:
            peer.connection.close("another connection took its place")
        peer.connection = connection
        self._machine.organisation.outside = False
        peer.serial = connection.serial
        peer.begin()
        self.refusals.pop(peer.name, None)
        connection.trust(server=True)
        if self._held or self.paused:
            connection.hold(True)
        for link in hello.links:
            content = Hello(link.source, link.target, link.sent, link.accepted, link.life, link.base)
            self._feed(FromPeer(link.domain, peer.name, content))

    def open_for_frames(self, peer: Peer, connection: Connection) -> None:
        """Allow frames on a connection, because both hellos were sent."""
        if peer.connection is connection:
            peer.ready = True
            peer.backoff.reset()
            peer.connections += 1
            self.unreachable.pop(peer.name, None)
            self._log.info("peer-connected", peer=peer.name, remote=connection.remote)

    def received(self, peer: Peer, parts: list[wire.AnyPart]) -> None:
        """Handle the parts that a peer has sent after the hellos, mainly frames and acknowledgements."""
        driver, name, feed = self._driver, peer.name, self._feed
        pinged = False
        if self.peers.get(name) is not peer:
            return  # It was sent before the topology changed.
        for part in parts:
            if type(part) is PeerFrames:
                if part.domain not in peer.domains or len(part.numbers) != len(part.bodies):
                    raise WireError(f"malformed frames from {name} in domain {part.domain[:64]!r}", "bad-frames")
                driver.acknowledgements.received(len(part.numbers))
                for number, body in zip(part.numbers, part.bodies, strict=True):
                    feed(FromPeer(part.domain, name, Frame(part.source, part.target, number, body)))
            elif isinstance(part, wire.PeerAck):
                if part.domain not in peer.domains:
                    raise WireError(f"acknowledgement from {name} in unknown domain {part.domain[:64]!r}", "bad-ack")
                feed(FromPeer(part.domain, name, Ack(part.source, part.target, part.upto, part.beyond)))
            elif isinstance(part, wire.Ping):
                pinged = True
            elif isinstance(part, wire.Bye):
                self.closed_by_peer(peer, part)
            elif not isinstance(part, wire.Pong):
                raise WireError(f"unexpected {type(part).__name__} from server {name}", "unexpected-part")
        if pinged and peer.connection is not None:
            peer.connection.send([wire.Pong()])

    def closed_by_peer(self, peer: Peer, part: wire.Bye, stranger: str = "") -> None:
        """Record the reason that the other end gave for closing a connection. ``stranger``: empty if the other end has
        proved that it is the peer. Otherwise its address, because another program may have sent the reason."""
        peer.bye = reason = part.reason[: limits.reason_chars_max]
        if stranger:
            known = reason[: limits.log_text_chars_max // 2]
            peer.bye = reason = f"{known} (sent by {stranger}, which has not proved to be {peer.name})"
        if part.final and peer.name in self.peers:
            if self.refusals.get(peer.name) != reason:
                self._log.warning("refused-by-peer", peer=peer.name, reason=reason)
            self.refusals[peer.name] = reason

    def refuse(self, name: str, connection: Connection, refusal: Refusal) -> None:
        """Close the connection of a server. Keep the reason in ``refusals``, except in two cases: the code is
        ``CHANGING``, or the peer has another connection."""
        reason = refusal.reason
        if refusal.code == CHANGING:
            connection.close(reason, code=CODE)
            return
        if self.refusals.get(name) != reason:
            # A name that no peer has is only what the other end claims.
            named: dict[str, Any] = {"peer": name} if name in self.peers else {"claims": name[:64]}
            self._log.warning("peer-refused", **named, remote=connection.remote, code=refusal.code, reason=reason)
        if name in self.peers and self.peers[name].connection in (None, connection):
            self.refusals[name] = reason
        connection.close(reason, final=True, code=refusal.code)

    def lost(self, peer: Peer, connection: Connection, reason: str, now: float) -> None:
        """Forget a connection that has ended, unless a newer one is in use. Do not dial again (see ``lost_dialed``)."""
        if peer.connection is connection:
            if peer.ready or reason:
                self._log.info("peer-lost", peer=peer.name, reason=reason or peer.bye or "closed by the peer")
            peer.bye = ""
            peer.connection = None
            peer.begin()

    def lost_dialed(self, peer: Peer, connection: Connection, reason: str, now: float) -> None:
        """Forget a connection that we dialed and that has ended. Then dial again after a pause, which is longer after a
        refusal. The pauses grow with each dial, until a connection is ready for frames."""
        self.lost(peer, connection, reason, now)
        if peer.name in self.refusals:
            peer.backoff.grow_to(1.0)
        if peer.dialed is None:  # Otherwise a newer connection took its place.
            self._dial_later(peer, now)

    def fault(self, domain: str, name: str, reason: str) -> None:
        """Log what a peer did wrong, and close its connection with the reason."""
        peer, code, stopped = self.peers.get(name), "bad-frame", self.stopped(name)
        if stopped is not None and (domain, name) in self._machine.stopped:
            self._log.error("link-stopped", domain=domain, peer=name, reason=reason)
            self.refusals[name] = reason = stopped.reason
            code = stopped.code
        else:
            self._log.warning("bad-frame", domain=domain, peer=name, reason=reason)
            self.guard.note("bad-frame", None, "", claims=f"server {name}", reason=reason)
        if peer is not None and peer.connection is not None:
            # Close after our own hello, if that still waits: the other end must learn our incarnation.
            connection, final_reason = peer.connection, reason
            self._driver.when_durable(lambda: connection.close(final_reason, final=True, code=code))

    def send(self, outgoing: list[Outgoing]) -> None:
        """Write frames and acknowledgements to the peers that are connected, with one call per connection."""
        if len(outgoing) == 1:
            peer = self.peers.get(outgoing[0].peer)
            if peer is not None and peer.ready:
                peer.write(outgoing)
            return
        to: dict[str, list[Outgoing]] = {}
        for one in outgoing:
            if one.peer in to:
                to[one.peer].append(one)
            else:
                to[one.peer] = [one]
        for name, several in to.items():
            peer = self.peers.get(name)
            if peer is not None and peer.ready:
                peer.write(several)


_tries_unlogged: Final = 4
"""The number of failed dials that are not logged. Peers that start together need about a second to connect."""
