"""A server's part in a change of the topology: it answers the commands of the operator's process.

The commands are those of operators (:mod:`antecede.server.operations`), or are called directly on the machine of a
stopped server. :mod:`antecede.server.changing` says in which sequence. Each may be repeated: a command that was carried
out already has no further effect.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

import msgspec

from antecede import limits
from antecede.engine.belongings import Belongings, holds
from antecede.errors import TopologyError, UsageError
from antecede.server import AgentServer, Input
from antecede.server.change_items import Abandoned, Committed, Paused, Received, Staged
from antecede.server.organisation import addresses_of, leaving_from, topology_in
from antecede.topology import TopologyFile, parse_topology
from antecede.wire import is_temporary


class Stage(msgspec.Struct, frozen=True):
    """The new topology, as every server gets it."""

    system: str
    change: int
    topology: str
    since: dict[str, int]
    coordinator: str
    clock_ms: int


class View(msgspec.Struct, frozen=True):
    """A server's answer to the first question: what it has, and what stands in the way of a change."""

    server: str
    system: str
    change: int
    epoch: str
    topology: str
    removed: bool = False
    staged: int = 0
    """The number of the change that is staged or for which the server pauses; 0: none."""
    coordinator: str = ""
    since: dict[str, int] = {}
    obstacles: list[str] = []
    leaving: dict[str, int] = {}
    """The agents and clients that will leave, each with the number of its letters."""


class Participant:
    """One server's part in changes."""

    def __init__(
        self,
        machine: AgentServer,
        change: Callable[[Input], None],
        prepare: Callable[[TopologyFile, list[Belongings]], None] = lambda file, came: None,
        indices: Callable[[list[str]], dict[str, int]] = lambda addresses: {},
    ) -> None:
        """``change``: takes an item into a step; the command is answered when it is durable. ``prepare``: imports the
        classes of the agents that will live here and reads their states, or raises an error. ``indices``: returns the
        next index of processes in the recorded trace."""
        self._machine = machine
        self._change = change
        self._prepare = prepare
        self._indices = indices
        self._pages: list[bytes] = []
        self.commands: dict[str, tuple[int, Callable[..., Any]]] = {
            "change-look": (2, self.look),
            "change-pause": (4, self.pause),
            "change-transit": (1, self.transit),
            "change-stage": (1, self.stage),
            "change-ready": (1, self.ready),
            "change-left": (3, self.left),
            "change-receive": (4, self.receive),
            "change-commit": (2, self.commit),
            "change-abandon": (1, self.abandon),
            "change-history": (0, self.history),
        }

    def look(self, topology: str, drop: str) -> dict[str, Any]:
        """Return what this server has, and what stands in the way of this topology. ``drop``: unless empty, letters of
        removed agents and clients may be lost."""
        machine, organisation = self._machine, self._machine.organisation
        new = parse_topology(topology, "the new topology")
        staged = organisation.staged
        view: dict[str, Any] = msgspec.to_builtins(
            View(
                machine.name,
                organisation.system,
                organisation.change,
                machine.epoch,
                organisation.topology,
                organisation.removed,
                organisation.paused if staged is None else staged.change,
                "" if staged is None else staged.coordinator,
                organisation.since,
                self._obstacles(new, bool(drop)),
                {one: self._letters(one) for one in leaving_from(machine, new)},
            )
        )
        return view

    def _letters(self, address: str) -> int:
        engine = self._machine.engine
        return len(engine.mailboxes.get(address, ())) + sum(dead.agent == address for dead in engine.dead.values())

    def _obstacles(self, new: TopologyFile, drop: bool) -> list[str]:
        machine, found = self._machine, []
        organisation = machine.organisation
        if not organisation.topology:
            found.append(f"server {machine.name} does not know its topology")
        for (domain, peer), reason in machine.stopped.items():
            found.append(f"domain {domain}: the link of {machine.name} and {peer} is stopped: {reason}")
        homes = {agent.name: agent.server for agent in new.agents}
        for address in leaving_from(machine, new):
            home = homes.get(address) or (new.home_of(address.rpartition("@")[2]) if "@" in address else "")
            home = new.home_of(machine.name) if address == machine.name else home
            if holds(machine.engine, address):
                found.append(f"{address} has letters that are held behind a dead one: replay or drop the dead letter")
            if home in new.servers or drop:
                continue
            letters = self._letters(address)
            if letters:
                found.append(
                    f"{address} is removed, and has {letters} letters that wait or are dead (--drop: lose them)"
                )
            elif "@" in address and address in addresses_of(machine) and not is_temporary(address):
                found.append(
                    f"server {machine.name} is removed, and has clients such as {address}: "
                    f'expected {machine.name} = "SERVER" in the table [moved] (--drop: forget them)'
                )
        for name, home in homes.items():
            if home == machine.name and name in machine.clients and name not in machine.plan.homes:
                found.append(f"agent {name}: server {machine.name} has a client of that name")
        return found[:_obstacles_max]

    def pause(self, change: str, domains: str, agents: str, whole: str) -> dict[str, Any]:
        """Let letters that would enter these domains, or go to these agents, wait here; names are separated by
        commas. ``whole``: "1" if the change removes this server."""
        organisation, number = self._machine.organisation, _number(change)
        if number <= organisation.change:
            raise TopologyError(f"change {number} is in force already")
        total = [name for name in _names(domains) if self._machine.channel.is_total(name)]
        if total:
            # Letters that come back through a total order may wait for each other; only stopped servers can do this.
            raise TopologyError(f"domain {total[0]} has a total order: stop the servers, and change it with --data DIR")
        if organisation.paused != number:
            self._change(Paused(number, _names(domains), _names(agents), whole == "1"))
        return {"server": self._machine.name, "paused": number}

    def transit(self, domains: str) -> dict[str, Any]:
        """Return what is in transit through these domains, and how many frames were ever sent there."""
        consumers = self._machine.channel.consumers
        sent = sum(
            link.sent for name in _names(domains) if name in consumers for link in consumers[name].links.values()
        )
        found = self._machine.channel.in_transit(_names(domains))
        return {"server": self._machine.name, "in_transit": found, "sent": sent}

    def stage(self, given: str) -> dict[str, Any]:
        """Get ready for a change."""
        machine = self._machine
        try:
            stage = msgspec.json.decode(given, type=Stage)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"unreadable change: {error}") from None
        if stage.change <= machine.organisation.change:
            raise TopologyError(f"change {stage.change} is in force already")
        staged = machine.organisation.staged
        if staged is None or staged.change != stage.change:
            new = topology_in(stage.topology)
            self._prepare(new, [])
            leaving = leaving_from(machine, new)
            self._pages = []
            self._change(
                Staged(
                    *(stage.system, stage.change, stage.topology, stage.since, stage.coordinator),
                    leaving,
                    stage.clock_ms,
                )
            )
        return {"server": machine.name, "staged": stage.change}

    def ready(self, change: str) -> dict[str, Any]:
        """Check that the change is staged here, and that nothing is in transit in the domains that it begins. Nothing
        more can enter them."""
        staged, machine = self._staged(change), self._machine
        begun = [name for name, since in staged.since.items() if since == staged.change]
        found = machine.channel.in_transit(begun)
        if found:
            raise TopologyError(
                f"server {machine.name}: {found}; a server that is added must not be used before the change is made"
            )
        return {"server": machine.name, "ready": staged.change}

    def left(self, change: str, target: str, page: str) -> dict[str, Any]:
        """Return one page of the belongings that leave this server for another one, after it has staged the change."""
        staged = self._staged(change)
        new = topology_in(staged.topology)
        homes = {agent.name: agent.server for agent in new.agents}
        going = []
        for one in self._machine.organisation.left:
            home = homes.get(one.address) or new.home_of(one.address.rpartition("@")[2] or one.address)
            if home == target:
                going.append(one)
        indices = self._indices([one.address for one in going])
        going = [msgspec.structs.replace(one, index=indices.get(one.address, one.index)) for one in going]
        data = msgspec.msgpack.encode(going)
        start = _number(page) * limits.change_page_bytes
        piece = data[start : start + limits.change_page_bytes]
        more = start + len(piece) < len(data)
        return {"server": self._machine.name, "agents": len(going), "data": b64encode(piece).decode(), "more": more}

    def receive(self, change: str, page: str, last: str, data: str) -> dict[str, Any]:
        """Take one page of the belongings of agents and clients that will live here; ``last``: "1" for the last."""
        staged = self._staged(change)
        if _number(page) > len(self._pages):
            raise UsageError(f"page {page} of a change: expected page {len(self._pages)}")
        try:
            self._pages[_number(page) :] = [b64decode(data, validate=True)]
        except ValueError:
            raise UsageError(f"page {page} of a change is not base64") from None
        if last == "1":
            try:
                came = msgspec.msgpack.decode(b"".join(self._pages), type=list[Belongings])
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise UsageError(f"unreadable belongings: {error}") from None
            self._pages = []
            self._prepare(topology_in(staged.topology), came)
            if came:
                self._change(Received(staged.change, came))
        return {"server": self._machine.name, "received": _number(page)}

    def commit(self, change: str, clock_ms: str) -> dict[str, Any]:
        """Let the staged change come into force."""
        organisation, number = self._machine.organisation, _number(change)
        if organisation.change < number:
            self._staged(change)
            self._change(Committed(number, _number(clock_ms)))
        return {"server": self._machine.name, "change": number}

    def abandon(self, change: str) -> dict[str, Any]:
        """Give up a change that was begun."""
        organisation, number = self._machine.organisation, _number(change)
        if organisation.change >= number:
            raise TopologyError(f"change {number} is in force at server {self._machine.name}: apply another change")
        staged = organisation.staged
        if organisation.paused == number or (staged is not None and staged.change == number):
            self._change(Abandoned(number))
        return {"server": self._machine.name, "abandoned": number}

    def history(self) -> dict[str, Any]:
        """Return the topologies that were in force here."""
        epochs = [
            {"change": one.change, "epoch": one.epoch, "since_ms": one.clock_ms or None}
            for one in self._machine.organisation.history
        ]
        return {"server": self._machine.name, **self._machine.organisation.state(), "epochs": epochs}

    def _staged(self, change: str) -> Staged:
        staged = self._machine.organisation.staged
        if staged is None or staged.change != _number(change):
            raise TopologyError(f"change {change[:32]} is not staged at server {self._machine.name}")
        return staged


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > len(str(limits.counter_max)):
        raise UsageError(f"{text[:32]!r}: expected a number")
    return int(text)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


_obstacles_max = 20
