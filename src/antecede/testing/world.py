"""Run your own agents in a simulated world: the code of real servers and logs, virtual time, a seed, and faults.

    world = World("shop.toml", seed=7, faults=ROUGH)
    world.send("alice@s1", "orders", Order(item="tea", count=2))
    world.run()
    assert world.state("orders").stock == 8
    world.check()

The simulated servers use the same state machines as real servers. Each server has the real log on a simulated disk.
When the power is cut, this disk may lose data that was not synced. A world uses no threads, no sockets and no
real clock, so the same seed gives the same run. The only exception: the run may differ if a handler uses random numbers
or the real clock. When such a handler is called again after a crash, its second call may differ from the first. Only
the effects of the committed call remain.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike, fspath
from typing import Any, TypeVar, overload

import msgspec

from antecede import limits
from antecede.documents import read_text
from antecede.engine.agents import Agent, Notification, Returned, name_of
from antecede.errors import AgentError, TopologyError, UsageError
from antecede.failures import noted
from antecede.live.application import agents_of, check_beginnings, find_beside, plan_of
from antecede.objects import Object
from antecede.orders import parse
from antecede.simulator.servers import NONE, ROUGH, Faults, ServerWorld
from antecede.simulator.servers.judgement import findings
from antecede.store import Sizes
from antecede.topology import OrderFacts, TopologyFile, check, parse_topology
from antecede.trace import Event, judge, write_trace

__all__ = ["NONE", "ROUGH", "DeadLetter", "Faults", "World"]

_resend_seconds = 0.2
_events_max = 5_000_000
_Kind = TypeVar("_Kind", bound=Notification)


class DeadLetter(msgspec.Struct, frozen=True):
    """A letter that a server has set aside with a reason, for example because its agent could not handle it."""

    agent: str
    type: str
    reason: str


class World:
    """A simulated world: the servers of a topology, with their agents and clients."""

    def __init__(
        self,
        topology: str | PathLike[str] | TopologyFile,
        *,
        agents: Mapping[str, type[Agent] | type[Object]] | None = None,
        seed: int = 1,
        faults: Faults = NONE,
        durability: str = "disk",
    ) -> None:
        """``topology``: the path of a topology file, its text, or the parsed file. ``agents``: the classes of agents
        and objects, by name; they are used instead of the classes in the file."""
        self.topology = _read(topology)
        self.seed = seed
        given = agents or {}
        objects = {name: kind for name, kind in given.items() if issubclass(kind, Object)}
        kinds = {name: kind for name, kind in given.items() if issubclass(kind, Agent)}
        if any(agent.name not in kinds for agent in self.topology.agents):
            for server in self.topology.servers:
                kinds |= agents_of(self.topology, server, given)
        unknown = sorted(set(kinds) - {agent.name for agent in self.topology.agents})
        unknown += sorted(set(objects) - {one.name for one in self.topology.objects})
        if unknown:
            raise UsageError(f"agent or object {unknown[0]}: not in {self.topology.name}")
        check_beginnings(kinds)
        plan = msgspec.structs.replace(plan_of(self.topology, objects), resend_after=_resend_seconds)
        self._world = ServerWorld(plan, kinds, seed, faults, durability, Sizes())
        self._kinds = kinds

    @property
    def now(self) -> float:
        """Virtual seconds since the world began."""
        return self._world.now

    # Actions.

    def send(self, client: str, to: str | Iterable[str], notification: Notification) -> None:
        """Let a client, ``name@server``, publish to one address or several. If the connection fails before the
        server has accepted the publish, the client sends it again."""
        self._world.send(client, to, notification)

    def call(self, client: str, object_: str, operation: str, *arguments: Any, timeout: float = 30.0) -> None:
        """Let a client, ``name@server``, call an operation of a replicated object; see ``returned``."""
        if object_ not in {one.name for one in self.topology.objects}:
            raise UsageError(f"object {object_}: not in {self.topology.name}")
        self._world.client(client).call(object_, operation, arguments, timeout)

    def run(self, seconds: float | None = None, *, events: int = _events_max) -> None:
        """Run until the period with faults is over and nothing is pending. With ``seconds``, stop after this number of
        virtual seconds. If the period with faults is not over at that time, the next call continues this period.

        A run that has not ended after this number of ``events`` fails: agents that answer each other for ever are
        never idle. An event is a step of a server or client, or the arrival of a frame."""
        self._world.events_max = events
        with self._named():
            self._world.run(seconds)

    def crash(self, server: str, *, power: bool = True) -> None:
        """Crash a server now. The server restarts by itself. If ``power`` is true, the crash is a power failure: the
        server's disk may lose data that was not synced. If ``power`` is false, only the process is killed."""
        self._known(server)
        with self._named():
            self._world.crash(server, "power" if power else "kill")

    def cut(self, one: str, other: str, seconds: float) -> None:
        """Cut the connection between two servers for this number of seconds."""
        self._known(one)
        self._known(other)
        self._world.cut(one, other, seconds)

    def set_clock(self, server: str, seconds: float) -> None:
        """Change a server's simulated wall clock by this number of seconds: forward, or back if it is negative."""
        self._known(server)
        self._world.servers[server].set_clock(round(seconds * 1000))

    def snapshot(self, server: str) -> None:
        """Let a server take a snapshot and delete old parts of its log."""
        self._known(server)
        with self._named():
            self._world.servers[server].attend()

    # Results.

    def state(self, agent: str) -> Any:
        """Return an agent with its committed state, or with its initial state if the agent never reacted."""
        for server in self._world.servers.values():
            if not server.up:
                continue
            known = server.agents.get(agent) or self._world.classes.get(server.machine.engine.born.get(agent, ""))
            if known is not None:
                state = server.machine.engine.states.get(agent)
                return known() if state is None else msgspec.msgpack.decode(state, type=known)
        raise AgentError(f"agent {agent!r} does not exist, or its server is down; call run() to restart servers")

    @overload
    def inbox(self, client: str) -> list[str]: ...

    @overload
    def inbox(self, client: str, kind: type[_Kind]) -> list[_Kind]: ...

    def inbox(self, client: str, kind: type[_Kind] | None = None) -> list[str] | list[_Kind]:
        """Return the notifications of the type ``kind`` that a client received. Without ``kind``, return the type name
        of each received letter. Each letter is listed once."""
        letters = self._world.client(client).inbox
        if kind is None:
            return [letter.type for letter in letters]
        return [msgspec.msgpack.decode(letter.body, type=kind) for letter in letters if letter.type == name_of(kind)]

    def returned(self, client: str) -> list[Returned]:
        """Return the results of a client's calls, in the sequence in which they ended."""
        return self.inbox(client, Returned)

    def replicas(self, object_: str) -> dict[str, dict[str, Any]]:
        """Return the committed state of each replica of an object, by server. Servers that are down are left out."""
        found = {}
        for home in next((one.servers for one in self.topology.objects if one.name == object_), ()):
            site = self._world.servers[home].machine.calls.site
            if self._world.servers[home].up and site is not None:
                found[home] = site.state_of(object_)
        return found

    def dead(self) -> list[DeadLetter]:
        """Return the dead letters that the servers keep."""
        return [
            DeadLetter(dead.agent, dead.letter.type, dead.reason)
            for server in self._world.servers.values()
            for dead in server.machine.engine.dead.values()
        ]

    def trace(self) -> list[Event]:
        """Return the rows of the trace from all servers' logs, as ``antecede verify`` would read them."""
        return self._world.trace()

    def write_trace(self, path: str | PathLike[str]) -> None:
        """Write the trace to a file, for ``antecede verify``, ``explain`` and ``measure``."""
        write_trace(fspath(path), self.trace())

    # Checks.

    def check(self, dead: int | None = 0) -> None:
        """Check all guarantees. Call this method when nothing is pending. It raises an AssertionError unless all these
        conditions hold:

        * Every accepted publish is delivered once, in the orders that the topology guarantees.
        * All servers are up, and nothing is pending: no letter, no question, no timer, no call.
        * A replay of the logs gives the same states.
        * The number of dead letters is ``dead``. If ``dead`` is None, any number is correct.
        """
        with self._named():
            found = findings(self._world, self._world.logs(), self._promised(), dead)
        if found:
            unexpected = dead is not None and len(self.dead()) > dead
            raise self._failure(found) from self._world.raised if unexpected else None

    def assert_causal(self) -> None:
        """Check that so far no message was delivered before a message on which it depends."""
        late = judge(self.trace(), ("causal",)).causal
        if late:
            raise self._failure([f"{one.message} reached {one.to} after {one.overtaken_by}" for one in late])

    def _promised(self) -> tuple[str, ...]:
        verdict = check(self.topology, lambda text: OrderFacts(parse(text).guarantees(), parse(text).kind.needs))
        kept = frozenset({"fifo", "causal", "total"})
        for pair in verdict.pairs:
            if pair.route:
                kept &= pair.guarantees
        return tuple(sorted(kept))

    def _known(self, server: str) -> None:
        if server not in self._world.servers:
            raise TopologyError(f"{self.topology.name} has no server {server}")

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Turn whatever goes wrong in the world into a failure that names the seed, and keep its traceback."""
        try:
            with noted():
                yield
        except Exception as error:
            text = str(error) if type(error) is AssertionError else f"{type(error).__name__}: {error}"
            raise self._failure([text]) from error

    def _failure(self, found: list[str]) -> AssertionError:
        return AssertionError("\n".join([*found, f"to replay this run, use seed={self.seed}"]))


def _read(topology: str | PathLike[str] | TopologyFile) -> TopologyFile:
    if isinstance(topology, TopologyFile):
        return topology
    text = fspath(topology)
    if "\n" in text:
        return parse_topology(text)
    found = read_text(text, limits.topology_bytes_max, TopologyError)
    find_beside(text)
    return parse_topology(found, text)
