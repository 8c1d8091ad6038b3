"""Poison in a random world. A poison letter makes its handler end the process in which the handler runs.

A poison letter must become a dead letter when all its tries (calls of its handler) have failed. This must be so if
the handler runs in the server's process, and also if it runs in a worker process. Other letters must not be affected.
If a handler ends the server's process, the log must count one failed try for the letter of this handler, and for no
other letter. If the server is killed, the log must count one failed try for each handler call that was in progress.
After a power cut, the log must count no failed try. This module also checks the tries in the logs.
"""

from collections import Counter
from collections.abc import Iterator

from antecede import limits
from antecede.engine.agents import Context
from antecede.server.items import Reacted, Tried
from antecede.simulator.draws import stream
from antecede.simulator.servers.faults import NONE, Faults
from antecede.simulator.servers.workers import Poison, SharedData, Work
from antecede.simulator.servers.world import Logs, ServerWorld

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
    if world.faults.old_versions:
        # The oldest log format has no place for tries.
        return
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
