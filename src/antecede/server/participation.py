"""A server's part in a change of the topology: it answers the commands of the operator's process.

A running server gets the commands over the network, like other commands of operators
(:mod:`antecede.server.operations`). For a stopped server, a program loads the server's data directory and calls the
commands directly (:mod:`antecede.live.directories`). The sequence of the commands is in
:mod:`antecede.server.change`. If the answer is lost, a command may be sent again: the repetition has no
further effect, or is refused.

From ``change-pause`` on, each command names its attempt: ``7:ab12`` is the attempt ``ab12`` to make change 7. A server
takes part in one attempt at a time, and carries out no command of another attempt. So the commands of two operators do
not mix.

Some commands have a :meth:`Participant.preparation`, which a driver carries out before the command. For
``change-classes``, ``change-stage`` and ``change-receive`` the preparation imports classes and reads states. It must
not be left out, because the command itself does not do this work. For ``change-learn`` the preparation plans the
change. If it is left out, the command does this work itself, which may take long. A preparation does not use the
server's state machine, so another thread may carry it out.
"""

from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import msgspec

from antecede import limits
from antecede.engine import Belongings, React
from antecede.errors import AntecedeError, DecidedError, OverloadError, TopologyError, UsageError
from antecede.server.change import View, attempt_of, read_attempt, read_number, read_stage
from antecede.server.driver import Driver
from antecede.server.inputs import Log
from antecede.server.items import Abandoned, Committed, Organising, Paused, Received, Staged
from antecede.server.learning import item_of, lesson_of, preparation, read_lesson
from antecede.server.node import AgentServer, Input
from antecede.server.organisation import topology_in
from antecede.server.peering import Peering
from antecede.server.sessions import MOVED, STOPPING, Sessions
from antecede.topology import TopologyFile, parse_topology
from antecede.wire import ServerHello, is_temporary


class Participant:
    """Carries out, on one server, the commands that the operator's process sends to change the topology."""

    def __init__(
        self,
        machine: AgentServer,
        change: Callable[[Input], None],
        prepare: Callable[[TopologyFile, list[Belongings]], None] = lambda file, came: None,
        indices: Callable[[list[str]], dict[str, int]] = lambda addresses: {},
    ) -> None:
        """``change``: gives an item to the next step; the command is answered when this item is durable. ``prepare``:
        imports the classes of the agents that will live here and reads their states, or raises an error. ``indices``:
        returns, for each of the given addresses, the index of its next event in the recorded trace."""
        self._machine = machine
        self._change = change
        self._prepare = prepare
        self.check = prepare
        """A function for a dry run: it changes nothing, and raises an error if ``prepare`` would raise one."""
        self._indices = indices
        self._pages: list[bytes] = []
        self._going: tuple[str, str, bytes] | None = None
        """The belongings that are being handed over: the attempt, the target, and the encoded belongings."""
        self._sizes: dict[int, tuple[Belongings, int]] = {}
        """The belongings that other servers have sent for the staged change, each with its size in bytes. (Belongings
        are all data of one agent or client.) The key is the Python ``id`` of the belongings."""
        self.idle_seconds: Callable[[], float | None] = lambda: None
        """A function that returns the seconds since the last command of the attempt in progress. It returns 3600 if no
        command has come since this server started, and None if no attempt is in progress."""
        self.present: Callable[[], Collection[str]] = tuple
        """A function that returns the names of the clients that are connected."""
        self.restored: Callable[[], str] = lambda: ""
        """A function that returns the id of the restored system to which this server belongs. It returns an empty text
        if this server was not restored."""
        self.belong: Callable[[str], None] = lambda restored: None
        """A function that stores durably that this server belongs to the restored system with this id."""
        self.commands: dict[str, tuple[int, Callable[..., Any]]] = {
            "change-look": (2, self.look),
            "change-classes": (1, self.classes),
            "change-join": (1, self.join),
            "change-lesson": (0, self.lesson),
            "change-learn": (1, self.learn),
            "change-pause": (4, self.pause),
            "change-transit": (2, self.transit),
            "change-stage": (1, self.stage),
            "change-ready": (1, self.ready),
            "change-left": (3, self.left),
            "change-receive": (4, self.receive),
            "change-commit": (2, self.commit),
            "change-abandon": (1, self.abandon),
            "change-history": (0, self.history),
        }

    def preparation(self, name: str, arguments: list[str]) -> Callable[[], None] | None:
        """Return a function that must be called before a command, or None if the command needs no preparation. The
        function raises an error if the command must be refused."""
        if name == "change-stage" and len(arguments) == 1:
            new = topology_in(read_stage(arguments[0]).topology)
            stay = self._with_other_classes(new)
            return lambda: self._prepare(new, stay)
        if name == "change-classes" and len(arguments) == 1:
            proposed = parse_topology(arguments[0], "the new topology")
            given = self._with_other_classes(proposed)
            return lambda: self.check(proposed, given)
        if name == "change-learn" and len(arguments) == 1:
            return preparation(self._machine, read_lesson(arguments[0]))
        if name == "change-receive" and len(arguments) == 4 and arguments[2] == "1":
            attempt, page, _, data = arguments
            new = topology_in(self._staged(attempt).topology)
            came = self._belongings(read_number(page), data)
            return lambda: self._prepare(new, came)
        return None

    def _with_other_classes(self, new: TopologyFile) -> list[Belongings]:
        """Return the states of the agents that stay here and get another class."""
        machine, old = self._machine, self._machine.plan.file
        before = {} if old is None else {one.name: one.kind for one in old.agents if one.server == machine.name}
        return [
            Belongings(agent.name, machine.engine.states[agent.name])
            for agent in new.agents
            if agent.server == machine.name
            and before.get(agent.name, agent.kind) != agent.kind
            and agent.name in machine.engine.states
        ]

    def look(self, topology: str, drop: str) -> dict[str, Any]:
        """Return the state of this server as a :class:`View`, with the reasons that prevent a change to this topology.
        If ``drop`` is not empty, the operator allows the servers to lose the letters of removed agents and clients, and
        to forget removed clients."""
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
                organisation.attempt,
                self.idle_seconds(),
                organisation.since,
                self._obstacles(new, bool(drop)),
                {one: self._letters(one) for one in machine.leaving(new)},
                organisation.history,
                restored=self.restored(),
            )
        )
        return view

    def join(self, restored: str) -> dict[str, Any]:
        """Join the restored system with this id. This server must be new: it has never been part of a system."""
        machine = self._machine
        if self.restored() or not machine.organisation.is_new(machine.channel):
            raise TopologyError(f"server {machine.name} belongs to another system, not to the one that was restored")
        if not restored.isalnum() or len(restored) > limits.mark_chars_max:
            raise UsageError(f"{restored[:32]!r}: expected the id of a restored system")
        self.belong(restored)
        return {"server": machine.name}

    def classes(self, topology: str) -> dict[str, Any]:
        """Confirm that this server can use the classes of a topology. They are checked before this method is called
        (``preparation``)."""
        return {"server": self._machine.name}

    def lesson(self) -> dict[str, Any]:
        """Return a lesson for servers that have missed changes: the topology in force here, and the history of
        changes."""
        return {"server": self._machine.name, "lesson": lesson_of(self._machine.organisation).decode()}

    def learn(self, lesson: str) -> dict[str, Any]:
        """Learn the changes in a lesson, if this server has missed them. A lesson contains the topology in force at
        another server, and the history of changes there. Return whether this server has learned changes."""
        item = item_of(self._machine, read_lesson(lesson))
        if item is not None:
            self._change(item)
        return {"server": self._machine.name, "learned": item is not None}

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
        found += self._unmovable(new, drop)
        for agent in new.agents:
            name = agent.name
            if agent.server == machine.name and name in machine.clients and name not in machine.plan.homes:
                found.append(f"agent {name}: server {machine.name} has a client of that name")
        return found[:_obstacles_max]

    def _unmovable(self, new: TopologyFile, drop: bool) -> Iterator[str]:
        """Yield the reasons why agents and clients cannot leave this server."""
        machine = self._machine
        homes = {agent.name: agent.server for agent in new.agents}
        for address in machine.leaving(new):
            home = homes.get(address) or (new.home_of(address.rpartition("@")[2]) if "@" in address else "")
            home = new.home_of(machine.name) if address == machine.name else home
            if machine.engine.is_bound(address):
                yield f"{address} has letters that are held behind a dead one: replay or bury the dead letter"
            if home in new.servers or drop:
                continue
            letters = self._letters(address)
            if letters:
                yield f"{address} is removed, but has waiting or dead letters: {letters} (--drop: lose them)"
            elif "@" in address and address in machine.addresses() and not is_temporary(address):
                yield (
                    f"server {machine.name} is removed, and has clients such as {address}: "
                    f'expected {machine.name} = "SERVER" in the table [moved] (--drop: forget them)'
                )

    def pause(self, attempt: str, domains: str, agents: str, whole: str) -> dict[str, Any]:
        """Pause these domains and agents: letters that would enter the domains or go to the agents wait here.
        ``domains``, ``agents``: names separated by commas. ``whole``: "1" if the change removes this server."""
        organisation = self._machine.organisation
        number, id_ = self._check(attempt)
        total = [name for name in _names(domains) if self._machine.channel.is_total(name)]
        if total:
            # Letters that come back through a total order may wait for each other; only stopped servers can do this.
            raise TopologyError(f"domain {total[0]} has total order: to change it, stop the servers and use --data DIR")
        if organisation.paused != number:
            present = list(self.present()) if whole == "1" else []
            self._change(Paused(number, _names(domains), _names(agents), whole == "1", id_, present))
        return {"server": self._machine.name, "paused": number}

    def transit(self, attempt: str, domains: str) -> dict[str, Any]:
        """Return two values. ``in_transit``: a text that says what this server has in transit in these domains (empty
        if nothing is in transit). ``sent``: the number of all frames that this server has ever sent in these
        domains."""
        organisation = self._machine.organisation
        number, _ = self._check(attempt)
        if organisation.paused != number:
            raise self._resumed(number)
        consumers = self._machine.channel.consumers
        sent = sum(
            link.sent for name in _names(domains) if name in consumers for link in consumers[name].links.values()
        )
        found = self._machine.channel.in_transit(_names(domains))
        return {"server": self._machine.name, "in_transit": found, "sent": sent}

    def stage(self, given: str) -> dict[str, Any]:
        """Get ready for a change of the topology: check that it can still be made, and log it as staged."""
        machine, stage = self._machine, read_stage(given)
        self._check(attempt_of(stage.change, stage.attempt))
        staged = machine.organisation.staged
        if machine.name in stage.pausing and machine.organisation.paused != stage.change:
            raise self._resumed(stage.change)
        new = topology_in(stage.topology)
        current = (machine.organisation.change + 1, machine.epoch) == (stage.change, stage.basis)
        if (machine.name in stage.members or machine.organisation.change) and not current:
            # A server that has a past in the system is never added to it.
            raise TopologyError(
                f"server {machine.name} has topology epoch {machine.epoch}, not {stage.basis}: try again"
            )
        if staged is None or staged.change != stage.change:
            leaving = machine.leaving(new)
            # Letters have arrived since the first look.
            for obstacle in self._unmovable(new, stage.drop):
                raise TopologyError(obstacle)
            self._pages = []
            self._change(
                Staged(
                    *(stage.system, stage.change, stage.topology, stage.since, stage.coordinator),
                    leaving,
                    stage.clock_ms,
                    stage.attempt,
                    stage.absent,
                    stage.history if machine.name not in stage.members else [],
                )
            )
        return {"server": machine.name, "staged": stage.change}

    def ready(self, attempt: str) -> dict[str, Any]:
        """Check that the change is staged at this server. Also check that nothing is in transit in domains that are
        new, or that get a new state in this change. (Nothing can enter these domains now.) Return the servers to which
        agents and clients of this server move."""
        staged, machine = self._staged(attempt), self._machine
        begun = [name for name, since in staged.since.items() if since == staged.change]
        found = machine.channel.in_transit(begun)
        if found:
            raise TopologyError(
                f"server {machine.name} still has letters in transit ({found}): "
                "a server must not be used before the end of the change that adds it"
            )
        new = topology_in(staged.topology)
        targets = {_target(new, one.address) for one in machine.organisation.left}
        return {"server": machine.name, "ready": staged.change, "targets": sorted(targets & new.servers.keys())}

    def left(self, attempt: str, target: str, page: str) -> dict[str, Any]:
        """Return one page of the belongings (all stored data) of the agents and clients that move from this server to
        the server ``target``, and whether more pages follow. ``page``: the number of the page, from 0. This server must
        have staged the change."""
        staged, start = self._staged(attempt), read_number(page) * limits.change_page_bytes
        if start == 0 or self._going is None or self._going[:2] != (attempt, target):
            self._going = attempt, target, self._encode_going(topology_in(staged.topology), target)
        data = self._going[2]
        piece = data[start : start + limits.change_page_bytes]
        more = start + len(piece) < len(data)
        if not more:
            self._going = None
        return {"server": self._machine.name, "data": b64encode(piece).decode(), "more": more}

    def _encode_going(self, new: TopologyFile, target: str) -> bytes:
        """Encode the belongings of the agents and clients that move to the server ``target``."""
        going = [one for one in self._machine.organisation.left if _target(new, one.address) == target]
        indices = self._indices([one.address for one in going])
        return msgspec.msgpack.encode(
            [msgspec.structs.replace(one, index=indices.get(one.address, one.index)) for one in going]
        )

    def receive(self, attempt: str, page: str, last: str, data: str) -> dict[str, Any]:
        """Receive one page of the belongings (all stored data) of agents and clients that will live here. ``page``: the
        number of the page, from 0. ``last``: "1" if this is the last page."""
        staged, number = self._staged(attempt), read_number(page)
        pages = [*self._earlier(number), _bytes(page, data)]
        if sum(map(len, pages)) + self._came_bytes() > limits.change_bytes_max:
            self._pages = []
            raise TopologyError(
                f"server {self._machine.name} gets more than {limits.change_bytes_max >> 20} MiB from other servers: "
                "move fewer agents and clients in one change, or make their states smaller"
            )
        if last == "1":
            came = self._belongings(number, data)
            self._pages = []
            self._check_arrivals(came)
            if came:
                self._change(Received(staged.change, came))
        else:
            self._pages = pages
        return {"server": self._machine.name, "received": number}

    def _came_bytes(self) -> int:
        """Return the total size, in bytes, of the belongings that have come from other servers for this change: the
        data of agents and clients that move here. The belongings of each agent or client are encoded only one time, to
        find their size. Then the size is kept in ``_sizes``."""
        came = self._machine.organisation.came
        sizes = [self._sizes.get(id(one)) or (one, len(msgspec.msgpack.encode(one))) for one in came]
        self._sizes = {id(one): (one, size) for one, size in sizes}
        return sum(size for _, size in sizes)

    def _earlier(self, page: int) -> list[bytes]:
        if page > len(self._pages):
            raise UsageError(f"page {page} of moved agents and clients: expected page {len(self._pages)} first")
        return self._pages[:page]

    def _belongings(self, page: int, data: str) -> list[Belongings]:
        try:
            whole = b"".join([*self._earlier(page), _bytes(str(page), data)])
            return msgspec.msgpack.decode(whole, type=list[Belongings])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"unreadable data of moved agents and clients: {error}") from None

    def _check_arrivals(self, came: list[Belongings]) -> None:
        """Refuse a client if this server has, or gets, another client with the same name. Otherwise the publishes of
        both clients would have the same numbers, and both clients would look for their letters under one address."""
        machine = self._machine
        organisation, here, present = machine.organisation, {*machine.addresses()}, self.present()
        coming = {one.client: one.address for one in organisation.came}
        for one in came:
            name = one.client
            if not name or is_temporary(name):
                continue
            known = name in organisation.adopted or f"{name}@{machine.name}" in here or name in present
            if known or coming.setdefault(name, one.address) != one.address:
                raise TopologyError(
                    f"client {one.address} cannot move to server {machine.name}, which has another client {name}: "
                    "to forget all clients of the removed server, delete its line in [moved] and use --drop"
                )

    def commit(self, attempt: str, clock_ms: str) -> dict[str, Any]:
        """Put the staged change into force. If the change is already in force, do nothing, but raise TopologyError if
        another attempt has made it."""
        organisation = self._machine.organisation
        number, id_ = read_attempt(attempt)
        if organisation.change < number:
            self._staged(attempt)
            self._change(Committed(number, read_number(clock_ms, limits.clock_ms_max), id_))
        elif organisation.made_by(number) not in ("", id_):
            raise TopologyError(
                f"change {number} was made by another command: check the topology in force, and try again"
            )
        return {"server": self._machine.name, "change": number}

    def abandon(self, attempt: str) -> dict[str, Any]:
        """Abandon this attempt to make a change. Raise :class:`DecidedError` if this attempt has already made the
        change, or if the change is in force and it is not known which attempt has made it."""
        organisation = self._machine.organisation
        number, id_ = read_attempt(attempt)
        if organisation.made_by(number) in ("", id_):
            raise DecidedError(
                f"change {number} is in force at server {self._machine.name}: to undo it, apply another change"
            )
        if organisation.attempt == id_ and (organisation.paused or organisation.staged is not None):
            self._change(Abandoned(number, id_))
        return {"server": self._machine.name, "abandoned": number}

    def history(self) -> dict[str, Any]:
        """Return the state of the change in progress, and the epochs of the last topologies of the system (at most
        ``limits.changes_kept_max``, the present topology included)."""
        epochs = [
            {"change": one.change, "epoch": one.epoch, "since_ms": one.clock_ms or None}
            for one in self._machine.organisation.history
        ]
        return {"server": self._machine.name, **self._machine.organisation.state(), "epochs": epochs}

    def _check(self, attempt: str) -> tuple[int, str]:
        """Read the argument that names an attempt, such as ``7:ab12``. Return the number of the change and the name of
        the attempt. Raise TopologyError if this change or a later change is in force here, or if this server takes part
        in another attempt."""
        organisation, name = self._machine.organisation, self._machine.name
        number, id_ = read_attempt(attempt)
        if number <= organisation.change:
            raise TopologyError(f"change {number} or a later change is already in force at server {name}: try again")
        if (organisation.paused or organisation.staged is not None) and organisation.attempt != id_:
            raise TopologyError(
                f"server {name} takes part in another change: try again later, or end it: antecede topology abort"
            )
        return number, id_

    def _resumed(self, number: int) -> TopologyError:
        """Return an error which says that this server has ended its pause for this change. For example, it has
        abandoned the change after a long time without a command."""
        return TopologyError(f"server {self._machine.name} has ended its pause for change {number}: try again")

    def _staged(self, attempt: str) -> Staged:
        number, id_ = read_attempt(attempt)
        staged = self._machine.organisation.staged
        if staged is None or (staged.change, staged.attempt) != (number, id_):
            raise TopologyError(f"change {number} is not staged at server {self._machine.name}: try again")
        return staged


def _bytes(page: str, data: str) -> bytes:
    try:
        return b64decode(data, validate=True)
    except ValueError:
        raise UsageError(f"page {page} of moved agents and clients is not base64") from None


def _target(new: TopologyFile, address: str) -> str:
    """Return the server to which an address and its data move in the new topology. ``address``: the address of an agent
    or a client, or the name of a server. The letters that a server could not forward are stored under its name."""
    home = next((agent.server for agent in new.agents if agent.name == address), "")
    return home or new.home_of(address.rpartition("@")[2] or address)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


_obstacles_max = 20


# The end of a change whose operator is gone: each server finds out by itself whether the change was made.
#
# The coordinator's log decides (:mod:`antecede.server.change`). If a server gets no command of the attempt for
# some time, it acts as follows:
#
# * If this server is the coordinator and has not committed the change, it abandons the change. After that, it cannot
#   commit the change.
# * A server that pauses for the change, but has not staged it, abandons the change as well. This is safe, because the
#   change cannot be committed unless this server stages it.
# * Any other server that has staged the change must not decide. It asks the coordinator repeatedly: it connects, and
#   sends a hello with the attempt. The coordinator answers with its own hello. This hello says which change is in force
#   at the coordinator, and which attempt is in progress. If the coordinator has not put the change into force, and does
#   not work on it, the coordinator has abandoned it. Only a hello that answers the question is used, because the
#   coordinator may have sent an earlier hello before it took part in the change.
#
# A server that was down at the commit learns about the commit in another way. The first server of the topology sends
# the history of changes, with the attempts that made them, to servers that have missed changes
# (:mod:`antecede.server.learning`).
#
# Suppose that a change is staged on this server, but neither staged nor in force at the coordinator. Then this server
# can safely abandon the change, for the following reason. The operator sends the commit only after every server, the
# coordinator included, has confirmed that it has staged the change. If the coordinator has abandoned the change, the
# coordinator refuses the commit. If the coordinator has not staged the change yet, the commit is never sent, because
# this server refuses to confirm an attempt that it has abandoned.


class Deciding:
    """Finds out, for one server, how a change in progress ends if its operator sends no commands."""

    def __init__(self, machine: AgentServer, decide: Callable[[Abandoned], None]) -> None:
        """``decide``: a function that abandons a change. Its argument names the change."""
        self._machine = machine
        self._decide = decide
        self._attempt = machine.organisation.attempt
        self._commanded = 0.0
        """The time of the last command of the attempt, or 0 if no command has come since the server started."""
        self._since: float | None = None
        """The time from which the seconds without a command are counted. It is the latest of three times: the last
        command of the attempt, the first check of the attempt, and this server's last decision to abandon the change.
        It is None if no change is in progress."""
        self._ask_at = 0.0

    def commanded(self, now: float) -> None:
        """Record that a command of the attempt in progress has come, or is being carried out."""
        self._commanded = self._since = now

    def idle(self, now: float) -> float | None:
        """Return the seconds since the last command of the attempt in progress. If no command has come since the server
        started, return 3600, as if the last command came an hour ago. Return None if no attempt is in progress."""
        return None if not self._in_progress else max(0.0, now - self._commanded) if self._commanded else _long_ago

    @property
    def _in_progress(self) -> bool:
        organisation = self._machine.organisation
        return bool(organisation.paused or organisation.staged is not None)

    def watch(self, now: float) -> str:
        """Watch the change in progress. If this server is the coordinator, or has not staged the change, it may decide:
        it abandons the change if no command has come for ``limits.change_idle_seconds_max``. Any other server must ask
        the coordinator. If it is time to ask, return the name of the coordinator. In all other cases, return an empty
        string."""
        organisation = self._machine.organisation
        if not self._in_progress:
            self._since = None
            return ""
        if self._since is None or organisation.attempt != self._attempt:
            self._since, self._attempt = now, organisation.attempt
        staged = organisation.staged
        if staged is not None and staged.coordinator != self._machine.name:
            if now >= max(self._ask_at, self._since + limits.change_ask_seconds):
                self._ask_at = now + limits.change_ask_seconds
                return staged.coordinator
        elif now - self._since > limits.change_idle_seconds_max:
            self._since = now
            number = organisation.paused if staged is None else staged.change
            self._decide(Abandoned(number, organisation.attempt))
        return ""

    def receive_hello(self, hello: ServerHello) -> bool:
        """Process a hello of an authenticated server. If a change is staged here, the hello may show that the
        coordinator has abandoned this change. In this case, also abandon the change here, and return True. Otherwise
        return False."""
        staged = self._machine.organisation.staged
        if staged is None:
            return False
        answer = hello.server == staged.coordinator and bool(hello.asked) and hello.asked == staged.attempt
        if answer and hello.attempt != staged.attempt and hello.change < staged.change:
            self._decide(Abandoned(staged.change, staged.attempt))
            return True
        return False


_long_ago = 3_600.0


# A running server's part in changes of the topology. It carries out the commands of the operator's process, one after
# the other, and then adapts the server to the new topology.
#
# :class:`antecede.server.participation.Participant` carries out the commands. For each command it first checks the
# state of the server's state machine, and then gives an item to the next step. No other item about a change may come
# between the check and this step. So a command waits until a step has processed the item of the previous command. A
# command is answered when its own item is durable.
#
# After a step with such an item, the server is adapted to the topology that is now in force. Agents that are paused for
# a move are dropped from memory. If a domain has started with a new state, the server connects again to its peers in
# this domain. Clients of a removed server get the address of the server that has their mailboxes now. Everything that
# depends on how the server runs is done by its :class:`Adapter`. For example, when the server is removed, the adapter
# ends the process of the server.
#
# While the server is paused for a backup, it carries out no command that changes anything. Otherwise the backups of
# two servers could contain different decisions about the same change.
#
# :mod:`antecede.server.participation` says what happens if the operator's process is gone.


Done = Callable[[Any, AntecedeError | None], None]
"""A function that is called one time, when a command has ended. Its arguments are the result and None, or None and the
error."""


class Adapter:
    """The part of a change that depends on how the server runs: as a real process, or in a simulation. Subclasses do
    this part. In this class the methods do nothing, except ``offload``, which does its work immediately, and ``check``,
    which calls ``prepare``."""

    def prepare(self, file: TopologyFile, came: list[Belongings]) -> None:
        """Import the classes of the agents that will live at this server. With these classes, read the states in
        ``came``: the data of agents that move to this server, or that stay here and get another class. Raise an error
        if this fails. This method may be called in another thread."""

    def check(self, file: TopologyFile, came: list[Belongings]) -> None:
        """Raise an error if ``prepare`` would raise one. This is for a dry run, so this method should change nothing.
        It may be called in another thread."""
        self.prepare(file, came)

    def indices(self, addresses: list[str]) -> dict[str, int]:
        """Return, for each of these addresses, the index of its next event in the recorded trace. This method may be
        called in another thread."""
        return {}

    def offload(self, work: Callable[[], None], then: Callable[[AntecedeError | None], None]) -> None:
        """Do some work that may take long. Then call ``then`` with the error of the work, or with None."""
        try:
            work()
        except AntecedeError as error:
            then(error)
        else:
            then(None)

    def drop_agents(self, agents: list[str]) -> None:
        """Drop agents from memory. If reactions of these agents are in progress, do not report their outcomes."""

    def organised(self, file: TopologyFile) -> None:
        """Use the agent classes and the server addresses of a topology that has come into force."""

    def belong(self, restored: str) -> None:
        """Store durably that from now on this server belongs to the restored system with the id ``restored``."""

    def removed(self) -> None:
        """End the server, which is not part of the topology any more."""


class Reorganising:
    """Carries out changes of the topology at one running server."""

    def __init__(
        self,
        machine: AgentServer,
        driver: Driver,
        peering: Peering,
        sessions: Sessions,
        lives: Callable[[str], bool],
        log: Log,
    ) -> None:
        """``lives``: returns True if this server has an agent with the given address."""
        self._machine = machine
        self._driver = driver
        self._peering = peering
        self._sessions = sessions
        self._lives = lives
        self._log = log
        self.adapter = Adapter()
        self._known_indices: dict[str, int] = {}
        """For each address that leaves this server: the index of its next event in the trace, found by the adapter."""
        self.participant = Participant(
            *(machine, self._feed, lambda file, came: self.adapter.prepare(file, came)),
            lambda addresses: self._known_indices,
        )
        self.participant.check = lambda file, came: self.adapter.check(file, came)
        self.participant.present = lambda: sessions.names
        self.participant.restored = lambda: peering.restored
        self.participant.belong = self._belong
        self.participant.idle_seconds = lambda: self.deciding.idle(driver.now)
        self.deciding = Deciding(machine, self._abandon)
        self.commands = self.participant.commands
        self._waiting: deque[tuple[str, list[str], Done]] = deque()
        self._busy = False
        """True while a command is being carried out."""
        self._fed = False
        self._looks = 0
        """The number of calls of ``watch`` in which this server was new and had no connected peer."""
        self._plan = machine.plan
        self._frozen: frozenset[str] = frozenset()
        self._removed = machine.organisation.removed
        peering.decide = self.deciding.receive_hello
        peering.lessons.learn = self.learn
        peering.lessons.ask = self.ask

    # Commands.

    def request(self, command: str, arguments: list[str], done: Done) -> None:
        """Carry out a command, after all commands that came before it."""
        self._waiting.append((command, arguments, done))
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and not self._busy:
            command, arguments, done = self._waiting.popleft()
            self._busy = True
            try:
                work = self._examine(command, arguments)
            except AntecedeError as error:
                self._end(done, None, error)
                continue
            if work is None:
                self._carry_out(command, arguments, done)
            else:
                self.adapter.offload(work, partial(self._prepared, command, arguments, done))

    def _examine(self, command: str, arguments: list[str]) -> Callable[[], None] | None:
        """Check a command. Return the work that must be done before the command is carried out, or None."""
        if len(arguments) != self.commands[command][0]:
            raise UsageError(f"unknown request {command!r} with {len(arguments)} arguments")
        self._check_backup(command)
        if command == "change-left" and arguments[2] == "0":
            addresses = [one.address for one in self._machine.organisation.left]
            return lambda: self._find_indices(addresses)
        return self.participant.preparation(command, arguments)

    def _check_backup(self, command: str) -> None:
        if command not in _looks and self._peering.paused:
            raise OverloadError(f"server {self._machine.name} is part of a backup: try again later")

    def _prepared(self, command: str, arguments: list[str], done: Done, error: AntecedeError | None) -> None:
        if error is None:
            self._carry_out(command, arguments, done)
        else:
            self._end(done, None, error)
        self._go_on()

    def _carry_out(self, command: str, arguments: list[str], done: Done) -> None:
        self._fed = False
        try:
            # A backup may have begun during the preparation.
            self._check_backup(command)
            result = self.commands[command][1](*arguments)
        except AntecedeError as error:
            self._end(done, None, error)
            return
        if command not in _unbound:
            self.deciding.commanded(self._driver.now)
        if not self._fed:
            self._end(done, result, None)
            return
        driver = self._driver

        def taken() -> None:
            driver.when_durable(lambda: done(result, None))
            self._busy = False
            self._go_on()

        driver.when_taken(taken)

    def _end(self, done: Done, result: Any, error: AntecedeError | None) -> None:
        self._busy = False
        done(result, error)

    def _feed(self, given: Input) -> None:
        driver = self._driver
        if driver.behind:
            raise OverloadError(f"server {self._machine.name} cannot write its log: {driver.trouble}")
        assert isinstance(given, Organising), "a change consists of items about it"
        self._fed = True
        driver.change(given)

    def _belong(self, restored: str) -> None:
        self.adapter.belong(restored)
        self._peering.restored = restored

    def _find_indices(self, addresses: list[str]) -> None:
        self._known_indices = self.adapter.indices(addresses)

    # Decisions.

    def learn(self, content: bytes, done: Done) -> None:
        """Learn the changes that this server has missed, from an authenticated server that has newer changes.
        ``content``: the lesson (the topology in force and the history of changes) from that server."""
        try:
            text = content.decode()
        except UnicodeDecodeError:
            done(None, TopologyError("the topology of another server is not text"))
            return
        self.request("change-learn", [text], done)

    def ask(self, server: str) -> None:
        """Ask another server for its hello, the message with which a server introduces itself. If that server has newer
        changes, it then sends a lesson about them."""
        self._peering.inquiries.ask(server, self._driver.now)
        self._driver.request_turn()

    def watch(self, now: float) -> None:
        """Check how long ago the last command of the change in progress came. If the operator seems to be gone, abandon
        the change, or ask the coordinator for the decision. If this server is new and no peer is connected, ask a peer
        for its hello, to find out whether the peers know this server. (Peers know a new server only after a change of
        the topology has added it.) Call this method about once per second."""
        inquiries, peers = self._peering.inquiries, self._peering.peers
        if self._busy:
            self.deciding.commanded(now)
        elif not self._peering.paused:
            coordinator = self.deciding.watch(now)
            if coordinator:
                self.ask(coordinator)
        organisation = self._machine.organisation
        alone = not organisation.outside and not any(peer.connection for peer in peers.values())
        if alone and organisation.is_new(self._machine.channel) and peers:
            # Peers that know this server connect at once. If one does not, a change must add this server first.
            self._looks += 1
            if self._looks > _looks_unasked:
                inquiries.ask(sorted(peers)[self._looks % len(peers)], now)
                self._driver.request_turn()

    def _abandon(self, item: Abandoned) -> None:
        """Abandon a change, because its coordinator has abandoned it, or because no command has come for too long."""
        self._log.warning("change-abandoned", change=item.change, reason="the operator's command has ended")
        self.request("change-abandon", [attempt_of(item.change, item.attempt)], self._abandoned)

    def _abandoned(self, result: Any, error: AntecedeError | None) -> None:
        if error is not None:
            self._log.warning("change-undecided", reason=str(error))

    # After a step.

    def organised(self, due: list[React]) -> None:
        """Adapt the server after a step that was about a change of the topology. ``due``: the batches of letters that
        the step gives to agents. If an agent gets its letters again in a later step, for example because it has a new
        class, its batch is removed from ``due``."""
        machine, organisation = self._machine, self._machine.organisation
        engine = machine.engine
        agents = (*machine.plan.homes, *engine.born)
        frozen = frozenset(agent for agent in agents if self._lives(agent) and engine.is_frozen(agent))
        if frozen != self._frozen:
            self._drop_agents(sorted(frozen | self._frozen))
            self._frozen = frozen
        # Nothing that these clients report now would count.
        self._sessions.send_away("the topology changes")
        if organisation.staged is not None:
            self._peering.lessons.part()
        if machine.plan is not self._plan or organisation.removed != self._removed:
            self._reorganise()
            due[:] = [one for one in due if one.agent not in engine.ready]

    def _drop_agents(self, agents: list[str]) -> None:
        self.adapter.drop_agents(agents)
        self._driver.retries.forget(set(agents))

    def _leave(self) -> None:
        """End this server's part in the system, because a change has removed it."""
        machine, reason = self._machine, "the server was removed from the topology"
        file = topology_in(machine.organisation.topology)
        home = file.home_of(machine.name)
        self._peering.stop(reason)
        self._sessions.moved_to = str(file.servers[home]) if home in file.servers else ""
        self._sessions.end(reason, MOVED if self._sessions.moved_to else STOPPING)
        self.adapter.removed()

    def _reorganise(self) -> None:
        machine, organisation = self._machine, self._machine.organisation
        before, self._plan, self._removed = self._plan, machine.plan, organisation.removed
        self._log.info("topology-changed", change=organisation.change, epoch=machine.epoch)
        if organisation.removed:
            self._leave()
            return
        file = machine.plan.file
        assert file is not None, "a topology that changes comes from a file"
        kinds = {} if before.file is None else {agent.name: agent.kind for agent in before.file.agents}
        other = [agent.name for agent in file.agents if agent.name in kinds and kinds[agent.name] != agent.kind]
        here = [agent for agent in machine.plan.homes if self._lives(agent)]
        gone = [agent for agent in before.homes if self._lives(agent) and machine.plan.homes.get(agent) != machine.name]
        self._drop_agents([*gone, *(agent for agent in other if agent in here)])
        self.adapter.organised(file)
        self._peering.lessons.organised()
        for agent in other:
            # What was handed out is forgotten, so that only the new class handles it.
            machine.engine.abandon(agent)
        self._peering.organise(self._driver.now, organisation.learned == organisation.change)
        self._driver.request_turn()


_looks = ("change-look", "change-classes", "change-history", "change-lesson")
"""Commands that change nothing."""
_unbound = (*_looks, "change-join", "change-learn")
"""The commands that do not name an attempt."""
_looks_unasked = 1
"""The number of calls of ``watch`` in which a new server without a connected peer only waits, because its peers may
still be starting. After that, it asks a peer."""
