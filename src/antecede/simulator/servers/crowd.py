"""Mailboxes with special settings in a random world: small quotas, and held letters.

**Small quotas.** A quota limits the letters in a mailbox. If a mailbox exceeds its quota, its server must let the
oldest letters expire. But a letter that a client or an agent is handling must not expire. Two kinds of mailboxes may
have a small quota:

* the mailbox of a client that never returns. This client subscribes to a topic, and its process ends soon; agents and
  clients continue to send to it;
* mailboxes of agents and clients that get many letters at the same time. One of these mailboxes may have a quota in
  bytes, and refuse letters from the clients of its server instead (``full = "refuse"``). Letters from other servers
  still make the oldest letters expire.

**Held letters.** For some agents, letters that follow from a dead letter (depend causally on it) are held until an
operator decides about the dead letter. At the end of the simulated run, an operator decides about all dead letters that
still block other letters. :func:`early` checks from the logs that no held letter was handled before this decision.
"""

from collections import deque
from collections.abc import Iterator

from antecede.engine.agents import Subscribe
from antecede.server.items import Buried, BuriedMany, Handled, Holding, Reacted
from antecede.simulator.draws import stream
from antecede.simulator.servers.server import SimulatedServer
from antecede.simulator.servers.workers import Enquiry, Riddle, SharedData, Work
from antecede.simulator.servers.world import Logs, ServerWorld
from antecede.topology import Mailboxes, Quota
from antecede.trace import DELIVER, HOP, SEND, Event


class Crowd:
    """The mailboxes with special settings in one world: small quotas, or held letters."""

    def __init__(self, seed: int, servers: list[str]) -> None:
        self._random = random = stream(seed, "crowd")
        named: dict[str, Quota] = {}
        self.absent = ""
        self.agents: set[str] = set()
        """Agents with a small quota: their letters may expire."""
        if random.random() < 0.15:
            self.absent = f"absent@{servers[int(random.random() * len(servers))]}"
            seconds = 0.2 if random.random() < 0.3 else 0
            named[self.absent] = Quota(1 + int(random.random() * 5), seconds=seconds)
        if random.random() < 0.2:
            self.agents.add("a9")
            named["a9"] = Quota(1 + int(random.random() * 3))
        if random.random() < 0.2:
            named.update({f"c0@{server}": Quota(1 + int(random.random() * 3)) for server in servers})
        self.hold = {"a0", "a9"} if random.random() < 0.2 else set()
        if self.hold and random.random() < 0.5:
            self.agents.add("a0")
            named["a0"] = Quota(1 + int(random.random() * 3))
        refusing = stream(seed, "refusing")
        if refusing.random() < 0.15:
            self.agents.add("a9")
            named["a9"] = Quota(bytes=40 + int(refusing.random() * 120), full="refuse")
        self.mailboxes = Mailboxes(named=named, hold=frozenset(self.hold))
        self._busy = bool(named)

    def join(self, world: ServerWorld, shared: SharedData) -> None:
        """Schedule the events that test the mailboxes with small quotas or held letters. If ``absent`` names a client,
        this client connects at the beginning. Later its process ends, and it never returns. Clients send letters to the
        mailboxes. Servers do their regular work, which checks quotas."""
        random, seconds, clients = self._random, world.faults.seconds, shared.clients
        if self.absent:
            client = world.client(self.absent)
            client.no_handler = frozenset({"Riddle"})
            world.send(self.absent, shared.topics[0], Subscribe())
            clients.append(self.absent)
            world.absent.add(self.absent)
            world.later(random.random() * seconds, client.die)
            for _ in range(8):
                world.later(random.random() * seconds, world.send, clients[0], self.absent, _work(shared))
        for address in [one for one in self.mailboxes.named if one in (*self.agents, *clients) and one != self.absent]:
            when = random.random() * seconds
            for place in range(8):
                if 0 < place < 4 and address in self.agents and len(clients) > 1:
                    id_, patient = shared.id(), world.client(clients[1])
                    world.later(when, patient.ask, address, id_, Enquiry(id=id_, silent=False), patient_seconds)
                world.later(when, world.send, clients[0], address, _work(shared))
            for server in world.servers.values():
                world.later(when + 0.02 * random.random(), _look_at, server)
        for agent in sorted(self.hold):
            for _ in range(2):
                when = random.random() * seconds * 0.7
                world.later(when, world.send, clients[0], agent, Riddle(id=shared.id()))
                for source in clients:
                    later = when + random.random() * seconds * 0.3
                    world.later(later, world.send, source, [agent, *shared.some()], Work(id=shared.id(), depth=2))
        for _ in range(12 if self._busy else 0):
            for server in world.servers.values():
                world.later(random.random() * seconds, _look_at, server)


def decide(world: ServerWorld) -> None:
    """Let an operator bury (delete) all dead letters that block other letters. A blocked letter is held until this
    decision. Repeat until no dead letter blocks other letters."""
    while any(server.machine.engine.following.blocks for server in world.servers.values()):
        decide_once(world)
        world.settle()


def decide_once(world: ServerWorld) -> bool:
    """Let an operator bury (delete) all dead letters that now block other letters. A blocked letter is held until
    this decision. Return whether there were such dead letters."""
    held = [
        (server, key)
        for server in world.servers.values()
        for blocks in server.machine.engine.following.blocks.values()
        for key in blocks
    ]
    for server, key in held:
        world.operators.settle(server, "dead-bury", key)
    return bool(held)


def early(logs: Logs) -> Iterator[str]:
    """Yield an error for each letter that an agent handled too early. Only agents that must hold letters are checked.
    If a letter to such an agent becomes a dead letter, other letters may follow from it (depend causally on it). The
    agent must not handle these letters before an operator has decided about the dead letter."""
    pasts = _pasts(logs.rows)
    for items in logs.items.values():
        agents: list[str] = []
        undecided: dict[str, tuple[str, str]] = {}
        for item in items:
            if isinstance(item, Holding):
                agents = item.agents
            elif isinstance(item, Buried | BuriedMany):
                for key in item.keys:
                    undecided.pop(key, None)
            elif isinstance(item, Reacted | Handled) and item.agent in agents:
                for reaction in item.reactions:
                    if reaction.expired:
                        continue
                    for dead, agent in undecided.values():
                        if agent == item.agent and dead in pasts.get(reaction.letter, ()):
                            yield f"{agent} handled {reaction.letter}, which follows from {dead}, before a decision"
                    if reaction.dead:
                        undecided[f"{reaction.letter} {item.agent}"] = (reaction.letter, item.agent)


def _pasts(rows: list[Event]) -> dict[str, set[str]]:
    """Return, for each message, the set of the messages from which it follows (on which it depends causally). If a
    letter becomes a dead letter at a process, the later messages of this process do not follow from the letter. If an
    operator sends a dead letter again, the new letter follows from no message, because only the operator decided to
    send it."""
    lines: dict[str, deque[Event]] = {}
    for row in sorted((row for row in rows if row.kind != HOP), key=lambda row: row.index):
        lines.setdefault(row.process, deque()).append(row)
    pasts: dict[str, set[str]] = {}
    known: dict[str, set[str]] = {process: set() for process in lines}
    moved = True
    while moved:
        moved = False
        for process, line in lines.items():
            while line and (line[0].kind != DELIVER or line[0].message in pasts):
                row, moved = line.popleft(), True
                if row.message is None:
                    continue
                if row.kind == SEND:
                    pasts[row.message] = set() if row.replays else set(known[process])
                    known[process].add(row.message)
                elif row.kind == DELIVER and not row.dead:
                    known[process] |= pasts[row.message] | {row.message}
    return pasts


def _work(shared: SharedData) -> Work:
    return Work(id=shared.id(), depth=0)


def _look_at(server: SimulatedServer) -> None:
    server.guard(server.life, server.look)


patient_seconds = 60.0
"""The number of seconds for which a patient client waits for an answer. No fault lasts as long as this."""
