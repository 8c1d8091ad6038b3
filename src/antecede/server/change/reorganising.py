"""A running server's part in changes of the topology. It carries out the commands of the operator's process, one after
the other, and then adapts the server to the new topology.

:class:`antecede.server.change.participation.Participant` carries out the commands. For each command it first checks the
state of the server's state machine, and then gives an item to the next step. No other item about a change may come
between the check and this step. So a command waits until a step has processed the item of the previous command. A
command is answered when its own item is durable.

After a step with such an item, the server is adapted to the topology that is now in force. Agents that are paused for a
move are dropped from memory. If a domain has started with a new state, the server connects again to its peers in this
domain. Clients of a removed server get the address of the server that has their mailboxes now. Everything that depends
on how the server runs is done by its :class:`Adapter`. For example, when the server is removed, the adapter ends the
process of the server.

While the server is paused for a backup, it carries out no command that changes anything. Otherwise the backups of
two servers could contain different decisions about the same change.

:mod:`antecede.server.change.deciding` says what happens if the operator's process is gone.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from antecede.engine import Belongings, React
from antecede.errors import AntecedeError, OverloadError, TopologyError, UsageError
from antecede.server import AgentServer, Input
from antecede.server.change.deciding import Deciding
from antecede.server.change.participation import Participant
from antecede.server.change.requests import attempt_of
from antecede.server.driver import Driver
from antecede.server.inputs import Log
from antecede.server.items import Abandoned, Organising
from antecede.server.organisation import topology_in
from antecede.server.peering import Peering
from antecede.server.sessions import MOVED, STOPPING, Sessions
from antecede.topology import TopologyFile

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
