"""The agents of random worlds, and the notifications that these agents send.

The agents use all features of agents. Random numbers decide when an agent uses a feature. So a reaction that a crash
has undone acts differently when it runs again. All effects of its first run must then be gone.
"""

from collections.abc import Callable
from random import Random
from typing import ClassVar

import msgspec

from antecede.engine.agents import Agent, Context, Notification, Subscribe, Timeout, Unsubscribe


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
