"""The other servers: one connection to each neighbour, made by the one whose name is smaller.

The first word on a connection is a hello with version, topology epoch, names, token, and where each shared link stands.
A hello says which frames were accepted, and the peer forgets them: so it leaves only when all that it says is durable.
Whoever may not talk to us (another topology, another token, a link that stopped because data was lost) is told why and
hung up on; ``refusals`` keeps the last reason for each.

While a connection is missing nothing is kept for it: every frame is in its link until it is acknowledged, and the next
hello makes the link send it again. What leaves on one that is there: :mod:`antecede.runtime.neighbour`.
"""

import asyncio
import hmac
import ssl
from collections.abc import Callable
from random import uniform

from antecede import limits, wire
from antecede.channel import Outgoing
from antecede.errors import UsageError, WireError
from antecede.link import Ack, Frame, Hello
from antecede.runtime.intake import Intake
from antecede.runtime.logs import ServerLog
from antecede.runtime.neighbour import Patience, Peer
from antecede.server import AgentServer, FromPeer
from antecede.topology import TopologyFile
from antecede.transports import Connection
from antecede.transports.tcp import TcpConnection, dial


class Peers:
    """All neighbours of a server."""

    def __init__(
        self,
        machine: AgentServer,
        topology: TopologyFile,
        token: str,
        tls: ssl.SSLContext | None,
        intake: Intake,
        when_durable: Callable[[Callable[[], None]], None],
        log: ServerLog,
    ) -> None:
        self._machine = machine
        self._topology = topology
        self._token = token
        self._tls = tls
        self._intake = intake
        self._submit = intake.submit
        self._when_durable = when_durable
        self._log = log
        self._stopping = False
        self.patience = Patience(intake.poke)
        self.refusals: dict[str, str] = {}
        """For each peer why it was last refused, or refused us."""
        shared: dict[str, list[str]] = {}
        for domain, consumer in machine.channel.consumers.items():
            for peer in consumer.links:
                shared.setdefault(peer, []).append(domain)
        self.peers = {peer: Peer(peer, domains) for peer, domains in shared.items()}
        for neighbour in self.peers.values():
            self._check_hello(neighbour)

    def _check_hello(self, peer: Peer) -> None:
        """Refuse a topology, or a token, with which a hello would be longer than the other end reads."""
        most = limits.counter_max
        links = [wire.LinkHello(domain, most, most, most, most, most, most, most) for domain in peer.domains]
        names = (self._topology.epoch, self._machine.name, peer.name, self._token)
        size = len(wire.frame([wire.ServerHello(wire.VERSION, wire.VERSION_OLDEST, *names, links)]))
        if size > limits.hello_bytes_max:
            raise UsageError(
                f"the hello between {self._machine.name} and {peer.name} has {size} bytes, at most "
                f"{limits.hello_bytes_max} are read: expected a shorter token, or less than {len(links)} shared domains"
            )

    def start(self) -> None:
        """Dial those whom we have to dial."""
        for peer in self.peers.values():
            if self._machine.name < peer.name:
                peer.dialer = asyncio.get_running_loop().create_task(self._keep(peer))

    async def stop(self, reason: str = "the server stops") -> None:
        """Hang up on all."""
        self._stopping = True
        for peer in self.peers.values():
            if peer.dialer is not None:
                peer.dialer.cancel()
            if peer.connection is not None:
                peer.connection.close(reason)

    def hold(self, held: bool) -> None:
        """Read nothing from any peer for a while."""
        for peer in self.peers.values():
            if peer.connection is not None:
                peer.connection.hold(held)

    def begin_anew(self, domain: str) -> None:
        """Hang up on all members of a domain, so that nothing of before is read any more; then say hello again."""
        for peer in self.peers.values():
            if domain in peer.domains:
                self.refusals.pop(peer.name, None)
                if peer.connection is not None:
                    peer.connection.close(f"domain {domain} begins anew")
                    self.lost(peer, peer.connection, f"domain {domain} begins anew")
                peer.wake.set()

    # Connections.

    async def _keep(self, peer: Peer) -> None:
        """Dial, watch, dial again."""
        pause = _pause_first
        address = self._topology.servers[peer.name]
        # A cancellation may come at the very moment at which the dialing fails, and be taken for that.
        while not self._stopping:
            peer.wake.clear()
            try:
                await dial(lambda connection: _Dialed(self, peer, connection), address.host, address.port, self._tls)
                await peer.wake.wait()
                pause = _pause_first if peer.name not in self.refusals else max(pause, 1.0)
            except (OSError, TimeoutError):
                pass
            peer.wake.clear()
            try:
                async with asyncio.timeout(uniform(pause / 2, pause)):
                    await peer.wake.wait()
            except TimeoutError:
                pause = min(2 * pause, limits.dial_seconds_max)

    def say_hello(self, peer: Peer, connection: Connection, then: Callable[[], None]) -> None:
        """Say where our links stand, once that is durable."""
        consumers = self._machine.channel.consumers
        links = []
        for domain in peer.domains:
            consumer = consumers[domain]
            hello = consumer.links[peer.name].hello()
            links.append(
                wire.LinkHello(
                    domain,
                    hello.source,
                    hello.target,
                    hello.sent,
                    hello.accepted,
                    consumer.generation,
                    hello.life,
                    hello.base,
                )
            )
        word = wire.ServerHello(
            wire.VERSION,
            wire.VERSION_OLDEST,
            self._topology.epoch,
            self._machine.name,
            peer.name,
            self._token,
            links,
        )

        def say() -> None:
            connection.send([word])
            then()

        self._when_durable(say)

    def refusal(self, hello: wire.ServerHello) -> str:
        """Why this server may not talk to us; empty: it may."""
        try:
            wire.agree(hello.version, hello.oldest)
        except WireError as error:
            return str(error)
        if not hmac.compare_digest(hello.token.encode(), self._token.encode()):
            return "wrong token"
        if hello.to != self._machine.name:
            return f"this is server {self._machine.name}, not {hello.to[:64]}"
        if hello.server not in self.peers:
            return f"server {hello.server[:64]} is no neighbour of {self._machine.name}"
        if hello.epoch != self._topology.epoch:
            return (
                f"server {hello.server} has topology epoch {hello.epoch[:64]} and {self._machine.name} has "
                f"{self._topology.epoch}: start both with the same topology file"
            )
        if sorted(link.domain for link in hello.links) != sorted(self.peers[hello.server].domains):
            return f"server {hello.server} names other links than the topology"
        for link in hello.links:
            mine = self._machine.channel.consumers[link.domain].generation
            if link.generation != mine:
                return (
                    f"domain {link.domain} has begun anew {link.generation} times at {hello.server} and {mine} times "
                    f"at {self._machine.name}: let all its members begin anew (antecede topology forget)"
                )
        return self.stopped(hello.server)

    def stopped(self, peer: str) -> str:
        """Why the link to a peer is stopped; empty: it is not."""
        for (domain, name), reason in self._machine.stopped.items():
            if name == peer:
                return f"link {domain} with {peer} is stopped: {reason}"
        return ""

    def met(self, peer: Peer, connection: Connection, hello: wire.ServerHello) -> None:
        """A peer's hello is in order: from now on this is its connection."""
        if peer.connection is not None and peer.connection is not connection:
            peer.connection.close("another connection took its place")
        peer.connection = connection
        peer.begin()
        self.refusals.pop(peer.name, None)
        connection.trust(server=True)
        peer.version = wire.agree(hello.version, hello.oldest)
        self.patience.got(1)
        for link in hello.links:
            content = Hello(link.source, link.target, link.sent, link.accepted, link.life, link.base)
            self._submit(FromPeer(link.domain, peer.name, content))

    def open_for_frames(self, peer: Peer, connection: Connection) -> None:
        """Both hellos were said."""
        if peer.connection is connection:
            # Our own hello has been said, in words that every version reads.
            connection.speak(peer.version)
            peer.ready = True
            peer.meetings += 1
            self._log.info("peer-connected", peer=peer.name, remote=connection.remote)

    def received(self, peer: Peer, parts: list[wire.AnyPart]) -> None:
        """Frames and acknowledgements of a peer."""
        gathers = self._intake.gather()
        try:
            self._sort(peer, parts)
        finally:
            if gathers:
                self._intake.go()

    def _sort(self, peer: Peer, parts: list[wire.AnyPart]) -> None:
        submit, name = self._submit, peer.name
        pinged = False
        for part in parts:
            if isinstance(part, wire.PeerFrames):
                if part.domain not in peer.domains or len(part.numbers) != len(part.bodies):
                    raise WireError(f"frames of {name} in domain {part.domain[:64]!r} that are none", "bad-frames")
                self.patience.got(len(part.numbers))
                for number, body in zip(part.numbers, part.bodies, strict=True):
                    submit(FromPeer(part.domain, name, Frame(part.source, part.target, number, body)))
            elif isinstance(part, wire.PeerAck):
                if part.domain not in peer.domains:
                    raise WireError(f"acknowledgement of {name} in domain {part.domain[:64]!r}", "bad-ack")
                ack = Ack(part.source, part.target, part.upto, part.beyond)
                submit(FromPeer(part.domain, name, ack))
            elif isinstance(part, wire.Ping):
                pinged = True
            elif isinstance(part, wire.Bye):
                self.hung_up(peer, part)
            elif not isinstance(part, wire.Pong):
                raise WireError(f"{type(part).__name__} from server {name}", "unexpected-part")
        if pinged and peer.connection is not None:
            peer.connection.send([wire.Pong()])

    def hung_up(self, peer: Peer, part: wire.Bye) -> None:
        """A peer says good-bye."""
        peer.parting = reason = part.reason[: limits.reason_chars_max]
        if part.final:
            if self.refusals.get(peer.name) != reason:
                self._log.warning("refused-by-peer", peer=peer.name, reason=reason)
            self.refusals[peer.name] = reason

    def refuse(self, name: str, connection: Connection, reason: str) -> None:
        """Tell a server why we don't talk to it."""
        if self.refusals.get(name) != reason:
            self._log.warning("peer-refused", peer=name[:64], remote=connection.remote, reason=reason)
        if name in self.peers:
            self.refusals[name] = reason
        connection.close(reason, final=True)

    def lost(self, peer: Peer, connection: Connection, reason: str) -> None:
        """A connection ended."""
        if peer.connection is connection:
            if peer.ready or reason != "the other end hung up":
                self._log.info("peer-lost", peer=peer.name, reason=peer.parting or reason)
            peer.parting = ""
            peer.connection = None
            peer.ready = False
            peer.deferred.clear()

    def fault(self, domain: str, name: str, reason: str) -> None:
        """A peer did something wrong: hang up, with the reason."""
        peer = self.peers.get(name)
        if (domain, name) in self._machine.stopped:
            self._log.error("link-stopped", domain=domain, peer=name, reason=reason)
            reason = self.stopped(name)
            self.refusals[name] = reason
        else:
            self._log.warning("bad-frame", domain=domain, peer=name, reason=reason)
        if peer is not None and peer.connection is not None:
            # After our own hello, if that still waits: the other end has to learn which incarnation we are.
            connection, said = peer.connection, reason
            self._when_durable(lambda: connection.close(said, final=True))

    # Frames.

    def send(self, outgoing: list[Outgoing]) -> None:
        """What is durable may leave: one write a connection."""
        if len(outgoing) == 1:
            peer = self.peers[outgoing[0].peer]
            if peer.ready:
                peer.write(outgoing)
            return
        to: dict[str, list[Outgoing]] = {}
        for one in outgoing:
            if one.peer in to:
                to[one.peer].append(one)
            else:
                to[one.peer] = [one]
        for name, several in to.items():
            peer = self.peers[name]
            if peer.ready:
                peer.write(several)


class _Dialed:
    """The dialing end of a connection to a peer, from its first word."""

    def __init__(self, peers: Peers, peer: Peer, connection: TcpConnection) -> None:
        self._peers = peers
        self._peer = peer
        self._connection = connection
        self._met = False
        stopped = peers.stopped(peer.name)
        if stopped:
            peers.refuse(peer.name, connection, stopped)
        else:
            peers.say_hello(peer, connection, lambda: None)

    def received(self, parts: list[wire.AnyPart]) -> None:
        if not self._met:
            # One part: the connection reads no more before it is trusted.
            first = parts[0]
            if isinstance(first, wire.Bye):
                self._peers.hung_up(self._peer, first)
                return
            if not isinstance(first, wire.ServerHello):
                raise WireError(f"{type(first).__name__} where a server's hello was expected")
            refusal = self._peers.refusal(first)
            if not refusal and first.server != self._peer.name:
                refusal = f"dialed {self._peer.name} and {first.server} answered"
            if refusal:
                self._peers.refuse(self._peer.name, self._connection, refusal)
                return
            self._met = True
            self._peers.met(self._peer, self._connection, first)
            self._peers.open_for_frames(self._peer, self._connection)
        else:
            self._peers.received(self._peer, parts)

    def closed(self, reason: str) -> None:
        self._peers.lost(self._peer, self._connection, reason)
        self._peer.wake.set()

    def writable(self) -> None:
        self._peer.writable()


class Answered:
    """The answering end of a connection to a peer, after its hello was read."""

    def __init__(self, peers: Peers, connection: Connection, hello: wire.ServerHello) -> None:
        self._peers = peers
        self._connection = connection
        self._peer = peers.peers[hello.server]
        connection.expect_a_reader(False)
        peers.met(self._peer, connection, hello)
        peers.say_hello(self._peer, connection, lambda: peers.open_for_frames(self._peer, connection))

    def received(self, parts: list[wire.AnyPart]) -> None:
        self._peers.received(self._peer, parts)

    def closed(self, reason: str) -> None:
        self._peers.lost(self._peer, self._connection, reason)

    def writable(self) -> None:
        self._peer.writable()


_pause_first = 0.05
