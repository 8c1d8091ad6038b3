"""The agents of random worlds, and the notifications that these agents send.

The agents use all features of agents. Random numbers decide when an agent uses a feature. So a reaction that a crash
has undone acts differently when it runs again. All effects of its first run must then be gone.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from random import Random
from typing import ClassVar

import msgspec

from antecede import limits
from antecede.engine.agents import Agent, Context, Notification, Subscribe, Timeout, Unsubscribe
from antecede.server import Buried, BuriedMany, Handled, Holding, Reacted, Tried
from antecede.simulator.draws import stream
from antecede.simulator.servers.network import NONE, Faults
from antecede.simulator.servers.world import Logs, ServerWorld
from antecede.topology import Mailboxes, Quota
from antecede.trace import DELIVER, HOP, SEND, Event


class Work(Notification):
    """A task for an agent. If ``depth`` is above 0, the agent may send further tasks, each with a smaller depth."""

    id: int
    depth: int


class Enquiry(Notification):
    """A question to an agent. If ``silent`` is true, the agent does not answer it."""

    id: int
    silent: bool


class Answer(Notification):
    """The answer to a question."""

    id: int


class Ring(Notification):
    """A notification from an agent's own timer."""

    id: int


class Riddle(Notification):
    """A notification for which no agent has a handler."""

    id: int


class Poison(Notification):
    """A notification that makes its handler end the process in which the handler runs."""

    id: int


class SharedData:
    """The shared data of the agents of one world: the random generator, and the known addresses."""

    def __init__(self, random: Random, agents: list[str], topics: list[str], clients: list[str]) -> None:
        self.random = random
        self.agents = agents
        self.topics = topics
        self.clients = clients
        self.ids = 0
        self.plain = False
        """Whether agents use no topics and create no agents."""
        self.strike: Callable[[Context], None] | None = None
        """A function that ends the process in which a handler runs. It is None if :class:`Poison` has no effect."""
        self.errors: list[str] | None = None
        """A list to which ``effect`` adds the errors that it finds. If it is None, agents have no effects outside the
        simulated servers."""
        self._effects: dict[tuple[str, int, str], str] = {}

    def id(self) -> int:
        self.ids += 1
        return self.ids

    def effect(self, ctx: Context, work: int) -> None:
        """Simulate an effect outside the simulated servers, such as a payment. A crash does not undo such an effect.
        The key of the effect is the id of the reaction. Check that this id is the same if the reaction runs again. A
        dead letter that was sent again is a new letter, so the reaction to it has another id."""
        if self.errors is not None and work % 3 == 0:
            key = ctx.reaction_id
            before = self._effects.setdefault((ctx.agent, work, ctx.letter.replays), key)
            if before != key:
                self.errors.append(f"the reaction of {ctx.agent} to one piece of work had the ids {before} and {key}")

    def below(self, bound: int) -> int:
        return int(self.random.random() * bound)

    def one(self, names: list[str]) -> str:
        return names[self.below(len(names))]

    def some(self) -> list[str]:
        """Return one to three random addresses of agents and clients; the same address may come twice."""
        return [self.one(self.agents + self.clients) for _ in range(1 + self.below(3))]


class Worker(Agent):
    """An agent that uses all features of agents. It remembers the tasks that it has done, and counts its questions and
    timers."""

    shared: ClassVar[SharedData]

    seen: list[int] = msgspec.field(default_factory=list)
    asked: int = 0
    settled: int = 0
    rung: int = 0
    timers: int = 0
    children: int = 0

    def on_work(self, work: Work, ctx: Context) -> None:
        self.seen.append(work.id)
        self.shared.effect(ctx, work.id)
        if work.depth > 0:
            for _ in range(self.shared.below(3)):
                self._act(work.depth - 1, ctx)

    def _act(self, depth: int, ctx: Context) -> None:
        shared = self.shared
        what = shared.random.random() * (0.85 if shared.plain else 1.0)
        if what < 0.4:
            ctx.send(shared.one(shared.agents + shared.clients), Work(id=shared.id(), depth=depth))
        elif what < 0.65:
            ctx.multicast(shared.some(), Work(id=shared.id(), depth=depth))
        elif what < 0.75:
            self.asked += 1
            enquiry = Enquiry(id=shared.id(), silent=shared.random.random() < 0.3)
            ctx.ask(shared.one(shared.agents), enquiry, reply="on_answer", timeout=0.001 + shared.random.random() ** 3)
        elif what < 0.85:
            self.timers += 1
            ctx.timer(shared.random.random() * 0.5, Ring(id=shared.id()))
        elif what < 0.93:
            ctx.send(shared.one(shared.topics), Work(id=shared.id(), depth=0))
        elif what < 0.97:
            ctx.send(shared.one(shared.topics), Subscribe() if shared.below(3) else Unsubscribe())
        else:
            self.children += 1
            child = ctx.create(f"{ctx.agent.partition('@')[0]}-{shared.id()}", Worker())
            ctx.send(child, Work(id=shared.id(), depth=depth))

    def on_enquiry(self, enquiry: Enquiry, ctx: Context) -> None:
        if not enquiry.silent:
            ctx.reply(Answer(id=enquiry.id))

    def on_answer(self, answer: Answer, ctx: Context) -> None:
        self.settled += 1

    def on_timeout(self, timeout: Timeout, ctx: Context) -> None:
        self.settled += 1

    def on_poison(self, poison: Poison, ctx: Context) -> None:
        if self.shared.strike is not None:
            self.shared.strike(ctx)

    def on_ring(self, ring: Ring, ctx: Context) -> None:
        self.rung += 1
        ctx.send(self.shared.one(self.shared.agents), Work(id=self.shared.id(), depth=0))


# Mailboxes with special settings in a random world: small quotas, and held letters.
#
# **Small quotas.** A quota limits the letters in a mailbox. If a mailbox exceeds its quota, its server must let the
# oldest letters expire. But a letter that a client or an agent is handling must not expire. Two kinds of mailboxes may
# have a small quota:
#
# * the mailbox of a client that never returns. This client subscribes to a topic, and its process ends soon; agents and
#   clients continue to send to it;
# * mailboxes of agents and clients that get many letters at the same time. One of these mailboxes may have a quota in
#   bytes, and refuse letters from the clients of its server instead (``full = "refuse"``). Letters from other servers
#   still make the oldest letters expire.
#
# **Held letters.** For some agents, letters that follow from a dead letter (depend causally on it) are held until an
# operator decides about the dead letter. At the end of the simulated run, an operator decides about all dead letters
# that still block other letters. :func:`early` checks from the logs that no held letter was handled before this
# decision.


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
                world.later(when + 0.02 * random.random(), server.attend)
        for agent in sorted(self.hold):
            for _ in range(2):
                when = random.random() * seconds * 0.7
                world.later(when, world.send, clients[0], agent, Riddle(id=shared.id()))
                for source in clients:
                    later = when + random.random() * seconds * 0.3
                    world.later(later, world.send, source, [agent, *shared.some()], Work(id=shared.id(), depth=2))
        for _ in range(12 if self._busy else 0):
            for server in world.servers.values():
                world.later(random.random() * seconds, server.attend)


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


patient_seconds = 60.0
"""The number of seconds for which a patient client waits for an answer. No fault lasts as long as this."""


# Poison in a random world. A poison letter makes its handler end the process in which the handler runs.
#
# A poison letter must become a dead letter when all its tries (calls of its handler) have failed. This must be so if
# the handler runs in the server's process, and also if it runs in a worker process. Other letters must not be affected.
# If a handler ends the server's process, the log must count one failed try for the letter of this handler, and for no
# other letter. If the server is killed, the log must count one failed try for each handler call that was in progress.
# After a power cut, the log must count no failed try. This module also checks the tries in the logs.


_share = 0.2
_strikes_max = 100
"""The largest number of times that handlers may end a process on one server. If handlers do it more often, the world
reports an error. The number is large enough, because each letter has only a few tries, and a few more if an operator
sends it again."""


class Poisoned(Faults, frozen=True, kw_only=True):
    """The faults of a world with poison. A poison letter makes its handler end the process in which the handler
    runs."""

    poisons: int = 2
    """The number of poison letters."""
    isolated: str = ""
    """The name of the agent that runs in a worker process and gets all poison. If it is empty, random numbers from the
    seed choose the agents."""


class Poisoning:
    """The plan for the poison of one world: the number of poison letters, and the agents that run in a worker
    process."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self._random = random = stream(seed, "poison")
        self._letters = 1 + int(random.random() * 2) if random.random() < _share and faults != NONE else 0
        self._target = ""
        if isinstance(faults, Poisoned):
            self._letters, self._target = faults.poisons, faults.isolated
        drawn = "a0" if random.random() < 0.3 else "a9" if random.random() < 0.3 else ""
        self._isolated = {self._target or drawn} - {""}

    def join(self, world: ServerWorld, shared: SharedData) -> None:
        """Let clients send poison to agents, with ordinary letters before and after it. Send nothing if ``shared`` has
        no clients. This happens if changes of the topology remove all servers that existed at the beginning."""
        if not self._letters or not shared.clients:
            return
        for server in world.servers.values():
            server.isolated = self._isolated
        shared.strike = lambda ctx: _strike(world, ctx)
        random, seconds = self._random, world.faults.seconds
        for _ in range(self._letters):
            agent = self._target or shared.agents[int(random.random() * len(shared.agents))]
            source = shared.clients[int(random.random() * len(shared.clients))]
            when = random.random() * seconds
            for place in range(4):
                world.later(when, world.send, source, agent, Work(id=shared.id(), depth=0))
                if place == 1:
                    world.later(when, world.send, source, agent, Poison(id=shared.id()))


def _strike(world: ServerWorld, ctx: Context) -> None:
    server = world.servers[ctx.server]
    if sum(server.shared.strikes.values()) < _strikes_max:
        server.shared.strike(ctx.agent, ctx.letter.id)
    elif not world.errors:
        world.report_error(ctx.server, "handlers end the process of this server again and again")


def tried(world: ServerWorld, logs: Logs) -> Iterator[str]:
    """Check the failed tries in the logs, and yield the errors. Each time a server's process was killed, or was ended
    by a handler, the world recorded the handler calls that failed. The logs must count these calls, and no others. But
    a power cut may destroy a count. The tries of a letter are added up over all servers, because a letter keeps its
    tries when its agent moves to another server."""
    tries: Counter[str] = Counter()
    strikes: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    died: set[str] = set()
    for name, server in world.servers.items():
        found: Counter[tuple[int, frozenset[tuple[str, str]]]] = Counter()
        for item in logs.items[name]:
            if isinstance(item, Tried):
                found[item.life, frozenset(item.calls)] += 1
                tries.update(f"{letter} {agent}" for agent, letter in item.calls)
            elif isinstance(item, Reacted):
                died |= {f"{one.letter} {item.agent}" for one in item.reactions if one.dead.startswith(ENDED)}
        for end in server.shared.ends:
            count = found.pop((end.life, end.calls), 0)
            if count != 1 and not (end.lost and count == 0):
                yield f"{name}: the calls {sorted(end.calls)} were in progress at an end, but counted {count} times"
            lost.update(f"{letter} {agent}" for agent, letter in end.calls if end.lost)
        for life, calls in found:
            yield f"{name}: the calls {sorted(calls)} of life {life} were counted, although they were not in progress"
        for key, count in server.shared.strikes.items():
            strikes[key] += 0 if key.split(" ")[1] in server.isolated else count
    most = limits.reaction_tries_max
    yield from (f"{key} ended the process {count} times" for key, count in strikes.items() if count > most + lost[key])
    early = [key for key in sorted(died) if tries[key] < most]
    yield from (f"{key} died after its process had ended {tries[key]} times" for key in early)


def unlucky(logs: Logs, poison: set[str]) -> bool:
    """Return whether a letter that is not poison became a dead letter because its handler's process ended. This can
    happen if the server was killed several times while the handler of the letter was in progress."""
    return any(
        reaction.dead.startswith(ENDED) and reaction.letter not in poison
        for items in logs.items.values()
        for item in items
        if isinstance(item, Reacted)
        for reaction in item.reactions
    )


ENDED = "the process ended"
"""A letter may become a dead letter because its handler's process ended. The reason in the log begins with these
words."""
