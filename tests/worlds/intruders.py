"""A world with identities, and with intruders. An intruder is a connection that tries something without permission.

Some intruders have no key. Others have the key of the client ``mallory``, who has few permissions. Each attempt must be
refused. If an attempt succeeds, the world reports an error. ``mallory`` also acts as a correct client: she loses a
permission while she is connected, and later her key is revoked.

Some intruders open more connections than one address may have. Some servers are controlled by an intruder: such a
server sends letters in the name of agents that live on other servers. The peers of this server must drop these letters.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from antecede import wire
from antecede.access import CLIENT, OPERATOR, SERVER, AddressLimits, Dialing, Keyring
from antecede.channel import FORGED
from antecede.engine.agents import Notification, name_of
from antecede.errors import AntecedeError, NotAllowedError
from antecede.server import OnBehalf
from antecede.simulator.draws import stream
from antecede.simulator.servers.client import Publish
from antecede.simulator.servers.judgement import TRAITOR
from antecede.simulator.servers.network import End, Faults, Identities, connect
from antecede.simulator.servers.server import SimulatedServer
from antecede.simulator.servers.world import ServerWorld

MALLORY = "mallory"
INTRUDER = "intruder"
_everything = {"send": ("*",), "receive": ("*",), "subscribe": ("*",), "call": ("*",)}
_address_max = 12
"""The largest number of connections that one address may have."""
_clients = ("c0", "c1", "c2", "t", "l", "absent")


class Intruded(Faults, frozen=True, kw_only=True):
    """The faults of a world with identities, in which intruders also try to get in."""

    intruders: int
    """The number of times that an intruder tries to get in."""


def intruded(faults: Faults, intruders: int) -> Intruded:
    """Return these faults, with intruders added."""
    return Intruded(**msgspec.structs.asdict(faults), intruders=intruders)


class Intruder:
    """One connection of an intruder. The intruder first sends one part, such as a hello. When the server sends a
    challenge, the intruder sends the parts that ``answer`` returns."""

    def __init__(
        self,
        world: "IdentifiedWorld",
        server: SimulatedServer,
        what: str,
        first: wire.Part,
        answer: Callable[[wire.Challenge], list[wire.Part]] = lambda challenge: [],
    ) -> None:
        """``what``: the attempt, in words. ``answer``: returns the parts to send after the server's challenge."""
        self._world = world
        self._server = server
        self._what = what
        self._answer = answer
        self.end = mine = End(world, server.name, self._arrived, lambda end, reason: None, lambda end: None)
        mine.receiver = self
        if not server.up:
            # The connection is refused.
            mine.open = False
            return
        theirs = server.end(INTRUDER)
        connect(mine, theirs)
        server.guard(server.life, server.accept, theirs)
        mine.send([first])

    def _arrived(self, end: End, parts: list[wire.AnyPart]) -> None:
        for part in parts:
            if isinstance(part, wire.Challenge):
                for one in self._answer(part):
                    end.send([one])
            elif isinstance(part, wire.ServerHello | wire.Welcome) or (isinstance(part, wire.Answer) and part.ok):
                # What follows from this does not matter any more.
                raise AssertionError(f"{self._server.name}: an intruder was accepted: {self._what}")
            elif isinstance(part, wire.Bye):
                end.vanish()

    def received(self, parts: list[wire.AnyPart]) -> None:
        """Do nothing: ``_arrived`` handles the parts."""

    def closed(self, reason: str, now: float) -> None:
        """Do nothing when the connection has ended."""

    def writable(self) -> None:
        """Do nothing, because an intruder has no output that waits for space on the connection."""


class IdentifiedWorld(ServerWorld):
    """A world in which servers, clients and operators prove their identities, and intruders try to get in."""

    def prepare(self, seed: int) -> None:
        """Make the identities of servers, clients and operators, before the servers start."""
        faults = self.faults
        self._intruders = faults.intruders if isinstance(faults, Intruded) else 0
        self.forbidden: list[Publish] = []
        """Publishes that must be refused."""
        self.work: Callable[[], Notification] | None = None
        """A function that returns a notification for an agent. If the attribute is None, mallory publishes nothing, and
        no server sends forged letters."""
        self._revoked = self._forged = False
        self.identities = known = Identities(stream(seed, "identities"))
        for name in self.plan.topology.servers:
            known.add(SERVER, name)
        for name in _clients:
            known.add(CLIENT, name, **_everything)
        known.add(CLIENT, MALLORY, send=("a0",))
        known.add(OPERATOR, "admin", operate=("*",))
        known.access = msgspec.structs.replace(known.access, addresses=AddressLimits(connections=_address_max))

    def _plan_faults(self) -> None:
        super()._plan_faults()
        draw, seconds = self.random.random, self.faults.seconds
        for _ in range(self._intruders):
            self.later(draw() * seconds, self._intrude)
        if self._intruders and self.work is not None:
            times = sorted(draw() * seconds for _ in range(4))
            for when, does in zip(
                times, (self._publish, self._restrict, self._publish_forbidden, self._revoke), strict=True
            ):
                self.later(when, does)

    # Mallory as a client.

    def _mallory(self) -> Any:
        return self.client(f"{MALLORY}@{next(iter(self.servers))}")

    def _publish(self) -> None:
        assert self.work is not None
        self._mallory().send(("a0",), self.work())

    def _restrict(self) -> None:
        self._reload(send=(), receive=("a0",))

    def _publish_forbidden(self) -> None:
        assert self.work is not None
        client = self._mallory()
        client.send(("a0",), self.work())
        self.forbidden.append(client.published[-1])

    def _revoke(self) -> None:
        self._revoked = True
        self._reload(keys=())

    def _reload(self, **changes: Any) -> None:
        known = self.identities
        assert known is not None
        known.set(msgspec.structs.replace(known.access.clients[MALLORY], **changes))
        for server in self.servers.values():
            if server.up:
                server.guard(server.life, server.core.reload, known.access)

    def may_refuse(self, address: str, to: tuple[str, ...], error: AntecedeError) -> bool:
        """Return whether a permanent refusal of a publish is correct. It is correct if mallory has no permission, or if
        the destination does not exist."""
        mallory = address.startswith(f"{MALLORY}@") and isinstance(error, NotAllowedError)
        return mallory or super().may_refuse(address, to, error)

    def client_gone(self, address: str, error: AntecedeError) -> None:
        """Handle a client that cannot continue. If the client is mallory and her key was revoked, end her process,
        because her server must refuse her. Otherwise record an error."""
        if address.startswith(f"{MALLORY}@") and self._revoked:
            self.clients[address].die()
        else:
            super().client_gone(address, error)

    def logged(self, server: SimulatedServer, event: str, fields: dict[str, Any]) -> None:
        """Check a warning or an error that a server logged. Three kinds of events are expected, and are not checked:
        events about intruders, about forged letters, and about mallory after her key was revoked."""
        mallory = self._revoked and fields.get("client") == MALLORY
        forged = event == "bad-frame" and FORGED in fields.get("reason", "") and self._forged
        if fields.get("remote") != INTRUDER and not mallory and not forged:
            super().logged(server, event, fields)

    def forbidden_accepted(self) -> list[str]:
        """Return the errors, one line each: a forbidden publish of mallory was accepted, or she is still connected
        after her key was revoked."""
        found = [
            f"a publish to {publish.to[0]} was accepted, which {MALLORY} may not send to any more"
            for publish in self.forbidden
            if publish.state == "accepted"
        ]
        if self._revoked:
            found += [
                f"{server.name}: {MALLORY} is still connected, although her key was revoked"
                for server in self.servers.values()
                if MALLORY in server.core.sessions.names
            ]
        return found

    # Intruders.

    def _intrude(self) -> None:
        server = self.servers[self._any(list(self.servers))]
        if not server.up or self.calm:
            return
        attempts = (
            self._without_proof,
            self._with_another_key,
            self._replay,
            self._reflect,
            self._as_another_client,
            self._as_operator,
            self._as_server,
            self._as_many,
            self._as_agent,
        )
        attempts[int(self.random.random() * len(attempts))](server)

    def _as_many(self, server: SimulatedServer) -> None:
        """Open many connections from one address, and leave them open for a while."""
        introduction = wire.Introduce(CLIENT, "c0", "", bytes(32))
        many: list[End] = []
        # The server may crash before all are open.
        while server.up and len(many) < _address_max + 4:
            many.append(Intruder(self, server, "one of many", introduction).end)
        self.later(0.2, self._count, server, many)

    def _count(self, server: SimulatedServer, many: list[End]) -> None:
        count = sum(end.open and end.remote == INTRUDER for end in server.ends)
        if count > _address_max:
            self.report_error(server.name, f"{count} connections from one address, which may have {_address_max}")
        for end in many:
            end.vanish()

    def _as_agent(self, server: SimulatedServer) -> None:
        """Let this server send a forged letter. The letter names an agent of another server as its source."""
        if self.work is None:
            return
        for domain, consumer in server.machine.channel.consumers.items():
            peers = [name for name in self.plan.topology.domains[domain].servers if name != server.name]
            agents = [agent for agent, home in self.plan.homes.items() if home in peers and agent[0] == "a"]
            if agents and not consumer.order.relays:
                agent, work = agents[int(self.random.random() * len(agents))], self.work()
                self._forged = True
                body = msgspec.msgpack.encode(work)
                forged = OnBehalf(agent, (agent,), name_of(type(work)), body, TRAITOR)
                server.guard(server.life, server.core.driver.feed, forged)
                return

    def _hello(self, server: SimulatedServer) -> wire.ServerHello:
        """Return a hello that a peer of this server could send to it. An intruder may have seen such a hello on the
        network."""
        peers = server.core.peering.peers
        peer = next((name for name in peers if self.servers[name].up), next(iter(peers)))
        if self.servers[peer].up:
            theirs = self.servers[peer].core.peering
            return theirs.hello(theirs.peers[server.name])
        links = [wire.LinkHello(domain, 1, 2, 3, 4, 0) for domain in peers[peer].domains]
        return wire.ServerHello("", peer, server.name, "", links)

    def _keyring(self, role: str, name: str, *, own: bool = True) -> Keyring:
        known = self.identities
        assert known is not None
        return known.keyring(role, name, None if own else known.new_key())

    def _without_proof(self, server: SimulatedServer) -> None:
        client = wire.ClientHello("", "c0")
        Intruder(self, server, "a server without a proof", self._hello(server))
        Intruder(self, server, "a client without a proof", client)
        Intruder(self, server, "an operator without a proof", wire.Request("", "status", []))

    def _prove(self, server: SimulatedServer, keyring: Keyring, what: str, then: wire.Part) -> None:
        """Let an intruder try to prove an identity with this keyring. After the server's challenge, the intruder sends
        the proof, and then the part ``then``."""
        ends: list[End] = []

        class Late:
            """A placeholder for the intruder's connection, which does not exist yet when ``Dialing`` is made."""

            certified = ()

            @property
            def binding(self) -> bytes:
                return ends[0].binding

        dialing = Dialing(keyring, Late())  # type: ignore[arg-type]

        def answer(challenge: wire.Challenge) -> list[wire.Part]:
            proof = dialing.answer(challenge)
            return [proof, then] if isinstance(proof, wire.Proof) else []

        ends.append(Intruder(self, server, what, dialing.introduction, answer).end)

    def _with_another_key(self, server: SimulatedServer) -> None:
        hello = self._hello(server)
        keyring = self._keyring(SERVER, hello.server, own=False)
        self._prove(server, keyring, "a server with another key", hello)

    def _replay(self, server: SimulatedServer) -> None:
        """Let an intruder send a copy of a proof that a server, client or operator sent to this server earlier."""
        assert self.identities is not None
        seen = [one for one in self.identities.proofs if one.server == server.name]
        if not seen:
            return
        one = seen[int(self.random.random() * len(seen))]
        hello: wire.Part = self._hello(server)
        if one.introduction.role == CLIENT:
            hello = wire.ClientHello("", one.introduction.name)
        elif one.introduction.role == OPERATOR:
            hello = wire.Request("", "status", [])
        Intruder(self, server, "a repeated proof", one.introduction, lambda challenge: [one.proof, hello])

    def _reflect(self, server: SimulatedServer) -> None:
        """Let an intruder claim to be this server, and send the server's own signature back as the proof."""
        nonce = self.random.randbytes(32)
        introduction = wire.Introduce(SERVER, server.name, "", nonce)
        hello = msgspec.structs.replace(self._hello(server), server=server.name)
        what = "the server's own signature"
        Intruder(self, server, what, introduction, lambda challenge: [wire.Proof(challenge.signature), hello])

    def _as_another_client(self, server: SimulatedServer) -> None:
        hello = wire.ClientHello("", "c0")
        self._prove(server, self._keyring(CLIENT, MALLORY), "a client with another client's name", hello)

    def _as_operator(self, server: SimulatedServer) -> None:
        request = wire.Request("", "status", [])
        self._prove(server, self._keyring(CLIENT, MALLORY), "a client as an operator", request)

    def _as_server(self, server: SimulatedServer) -> None:
        self._prove(server, self._keyring(CLIENT, MALLORY), "a client as a server", self._hello(server))
