"""The other servers: one connection to each peer, dialed by the server whose name is smaller.

With an access file, both ends first prove their identity (:mod:`antecede.access.proof`). Before this proof, no link is
read or changed. Then each end sends a hello with the version, the topology epoch, the names, the token, and the state
of each shared link. A hello says which frames were accepted, and then the peer forgets these frames. So a hello is sent
only when all its content is durable. A server that must not connect is disconnected. It gets the reason: for example
another topology or token, or a link that stopped because data was lost. ``refusals`` keeps each peer's last reason.

While a peer is not connected, this class keeps no frames for it. The link to the peer keeps each frame until the
frame is acknowledged, and sends it again after the next hello. The module ``peer`` writes to a connection.

This class does no I/O and has no clock. ``dials`` returns the peers to dial now. The adapter (the code that opens the
connections) reports the result with ``dialed`` or ``dial_failed``.
"""

from collections.abc import Callable
from typing import Any, Final

from antecede import limits, wire
from antecede.access import Refusal
from antecede.channel.consumer import Outgoing
from antecede.errors import WireError
from antecede.link import Ack, Frame, Hello
from antecede.server import AgentServer
from antecede.server.admission import Guard
from antecede.server.connections import NO_HELLO, Connection, keep_alive
from antecede.server.driver import Driver
from antecede.server.inputs import FromPeer, Log
from antecede.server.peering.agreement import CHANGING, check_hello, link_hellos, refusal_of, shared_domains
from antecede.server.peering.inquiries import CODE, Inquiries
from antecede.server.peering.lessons import Lessons
from antecede.server.peering.peer import Peer, Unreachable
from antecede.server.peering.peer_ends import Dialed, Inquiry
from antecede.wire import PeerFrames


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
        shared = shared_domains(machine)
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
        consumers, shared = self._machine.channel.consumers, shared_domains(self._machine)
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
        refusal = refusal_of(self._machine, None if known is None else known.domains, hello, self.epoch)
        return refusal or self.stopped(hello.server)

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
