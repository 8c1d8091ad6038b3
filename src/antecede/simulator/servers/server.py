"""One simulated server: the real machine, the real log on a disk that forgets, the real host of agents.

It does what the runtime does, one tick at a time: take the inputs that gathered, step, append the record, run what is
due, and let what the step sends leave when everything appended so far is durable. ``effect`` is called between any two
of these, and by the disk before each operation; at the one that the faults chose, the server is gone.
"""

import errno
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Protocol

from antecede.channel import Outgoing
from antecede.engine import React, died
from antecede.engine.agents import Agent
from antecede.engine.host import Host, Outcome
from antecede.errors import AgentError, StoreError, StoreFailedError
from antecede.interrupts import is_ctrl_c
from antecede.server import Accepted, AgentServer, Plan, Refused
from antecede.server.items import Reacted
from antecede.store import LogStore, Sizes, open_log, read_records
from antecede.store.simulated import PowerCut, SimulatedDisk
from antecede.whereabouts import described

SIZES = Sizes(segment_bytes=65_536, group_bytes_max=16_384, pending_bytes_max=32_768, log_bytes_max=1 << 24)
_directory = "data"
_tries_max = 5
_pause_seconds = 0.1


class Surroundings(Protocol):
    """What a server sees of its world."""

    now: float
    random: Random

    def later(self, seconds: float, call: Callable[..., None], *given: Any) -> None: ...

    def leaves(self, server: "SimulatedServer", outgoing: Outgoing) -> None: ...

    def replies(self, server: "SimulatedServer", reply: Accepted | Refused) -> None: ...

    def due_client(self, server: "SimulatedServer", due: React) -> None: ...

    def handed_out(self, due: React) -> None: ...

    def fails(self, due: React) -> bool: ...

    def born(self, kind: str, agent: type[Agent]) -> None: ...

    def class_of(self, kind: str) -> type[Agent]: ...

    def went(self, server: "SimulatedServer") -> None: ...

    def came(self, server: "SimulatedServer") -> None: ...

    def misbehaved(self, server: "SimulatedServer", reason: str) -> None: ...


class SimulatedServer:
    """A server with its disk, through all its lives."""

    machine_class: type[AgentServer] = AgentServer
    host_class: type[Host] = Host

    def __init__(
        self, world: Surroundings, name: str, plan: Plan, agents: dict[str, type[Agent]], durability: str = "disk"
    ) -> None:
        self.world = world
        self.name = name
        self.plan = plan
        self.agents = agents
        self.durability = durability
        self.disk = SimulatedDisk(random=world.random)
        self.disk.script = self._disk_effect
        self.up = False
        self.life = 0
        self.machine: AgentServer
        self.store: LogStore
        self.host: Host
        self.effects_left = 0
        """After so many effects the server is gone; 0: not foreseen."""
        self.how = "kill"
        self.clock_offset_ms = 1_700_000_000_000
        self.commit_seconds = 0.001
        self.archived: list[bytes] = []
        """Records that were kept elsewhere before the log let go of them."""
        self.reactions = 0
        self._broken = self._failed = False
        self._reset()

    def _reset(self) -> None:
        self.inputs: list[Any] = []
        self._ticking = False
        self._committing = False
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._stepped: list[Callable[[], None]] = []
        self._wake_at: float | None = None
        self._tries: dict[str, tuple[str, int]] = {}

    @property
    def clock_ms(self) -> int:
        """This server's wall clock."""
        return self.clock_offset_ms + int(self.world.now * 1000)

    # Crashes.

    def effect(self) -> None:
        """Between two effects."""
        if self.effects_left:
            self.effects_left -= 1
            if not self.effects_left:
                if self.how == "sync":
                    self._broken = True
                else:
                    raise PowerCut

    def _disk_effect(self, operation: str, path: str) -> None:
        if self._broken and operation == "sync":
            self._broken, self._failed = False, True
            raise OSError(errno.EIO, "the simulated disk is broken", path)
        self.effect()

    def guard(self, life: int, call: Callable[..., None], *given: Any) -> None:
        """Do something of this life; the server may be gone after it."""
        if life != self.life or not self.up:
            return
        try:
            with quiet():
                call(*given)
        except PowerCut:
            self.crash()
        except StoreError:
            # Only a disk that was made to fail may do so; then the server ends.
            if not self._failed:
                raise
            self.crash()

    def later(self, seconds: float, call: Callable[..., None], *given: Any) -> None:
        """Do something later, if the server still lives."""
        self.world.later(seconds, self.guard, self.life, call, *given)

    def crash(self) -> None:
        """The server is gone, and with it whatever its disk had not been made to keep."""
        self.up = False
        self.life += 1
        self.effects_left = 0
        self._broken = self._failed = False
        self._reset()
        self.disk.script = None
        if self.how == "power":
            self.disk.power_cut(self.world.random)
        else:
            self.disk.kill(self.world.random)
        self.disk.script = self._disk_effect
        self.world.went(self)

    def start(self) -> None:
        """Recover from the disk and go on."""
        self.life += 1
        self.up = True
        self.guard(self.life, self._recover)

    def _recover(self) -> None:
        world = self.world
        self.store = open_log(
            _directory,
            durability=self.durability,
            sizes=SIZES,
            files=self.disk,
            threaded=False,
            on_durable=self._became_durable,
            on_failed=self._disk_failed,
        )
        self.machine = self.machine_class(self.name, self.plan, self.store.incarnation)
        found = self.store.recovered
        if found.snapshot is not None:
            self.machine.restore(found.snapshot.data(), world.now)
        for _, record in found.records():
            self.machine.replay(record, world.now)
        self.machine.begin_life(self.life + 1)
        self.host = self.host_class(self.name, self.machine.channel.check)
        for agent, kind in self.agents.items():
            self.host.declare(agent, kind)
        for address, born in self.machine.engine.born.items():
            self.host.declare(address, world.class_of(born))
        world.came(self)
        self.poke()

    # Ticks.

    def submit(self, given: Any) -> None:
        """Something for the next step."""
        self.inputs.append(given)
        self.poke()

    def poke(self) -> None:
        """Take a step soon."""
        if not self._ticking:
            self._ticking = True
            self.later(self.world.random.random() * 0.0005, self._tick)

    def when_stepped(self, call: Callable[[], None]) -> None:
        """Call after the next step has taken all that is here now."""
        self._stepped.append(call)
        self.poke()

    def when_durable(self, call: Callable[[], None]) -> None:
        """Call when all that was appended so far is durable."""
        if self.store.last <= self.store.durable and not self._waiting:
            call()
        else:
            self._waiting.append((self.store.last, call))

    def _tick(self) -> None:
        self._ticking = False
        inputs, self.inputs = self.inputs, []
        step = self.machine.step(inputs, self.world.now, self.clock_ms)
        self.effect()
        if step.record is not None:
            self.store.append(step.record)
            if not self._committing:
                self._committing = True
                self.later(self.world.random.random() * 2 * self.commit_seconds, self._commit)
        for _, peer, reason in step.faults:
            self.world.misbehaved(self, f"{peer}: {reason}")
        self.send(step.outgoing, step.replies)
        for due in step.due:
            self.world.handed_out(due)
            if self.host.lives(due.agent):
                self._run(due)
            else:
                self.world.due_client(self, due)
        stepped, self._stepped = self._stepped, []
        for call in stepped:
            call()
        self._set_alarm()

    def send(self, outgoing: list[Outgoing], replies: list[Accepted | Refused]) -> None:
        """Let these leave when all that was appended so far is durable."""
        if outgoing or replies:
            self.when_durable(lambda: self._release(outgoing, replies))

    def _release(self, outgoing: list[Outgoing], replies: list[Accepted | Refused]) -> None:
        for reply in replies:
            self.effect()
            self.world.replies(self, reply)
        for one in outgoing:
            self.effect()
            self.world.leaves(self, one)

    def _commit(self) -> None:
        self._committing = False
        self.effect()
        if self.store.commit() and self.store.last > self.store.durable:
            self._committing = True
            self.later(self.commit_seconds, self._commit)

    def _became_durable(self, number: int) -> None:
        self.effect()
        waiting = self._waiting
        while waiting and waiting[0][0] <= number:
            waiting.popleft()[1]()

    def _disk_failed(self, error: StoreFailedError) -> None:
        """Nothing more will be durable: the server ends."""
        raise PowerCut

    def _set_alarm(self) -> None:
        """Be woken when a link wants to resend or an agent's timer is due."""
        now = self.world.now
        due = self.machine.deadline()
        alarm = self.machine.alarm_ms()
        if alarm is not None:
            rings = now + max(0.0, (alarm - self.clock_ms) / 1000)
            due = rings if due is None else min(due, rings)
        if due is not None and (self._wake_at is None or due < self._wake_at):
            self._wake_at = due
            self.later(max(0.0005, due - now), self._alarm, due)

    def _alarm(self, due: float) -> None:
        if self._wake_at == due:
            self._wake_at = None
            self.poke()

    def set_clock(self, milliseconds: int) -> None:
        """The wall clock is set."""
        self.clock_offset_ms += milliseconds
        if self.up:
            self._wake_at = None
            self.poke()

    # Reactions.

    def _run(self, due: React) -> None:
        trouble = self._tries.get(due.agent)
        if trouble is not None and trouble[0] == due.letters[0].id:
            self.later(_pause_seconds * 2 ** (trouble[1] - 1), self._react, due)
        else:
            self._react(due)

    def _react(self, due: React) -> None:
        self.reactions += 1
        if self.world.fails(due):
            self.host.forget(due.agent)
            outcome = Outcome(due.agent, [], None, AgentError("this reaction fails at its first try"))
        else:
            try:
                outcome = _at_once(self.host, due)
            except BaseException as error:
                if is_ctrl_c(error):
                    raise
                self.host.forget(due.agent)
                outcome = Outcome(due.agent, [], None, error)
        for reaction in outcome.reactions:
            for birth in reaction.births:
                self.world.born(birth.kind, self.host.kind_of(f"{birth.name}@{self.name}"))
        self.effect()
        self._finish(due, outcome)

    def _finish(self, due: React, outcome: Outcome) -> None:
        reactions = outcome.reactions
        if outcome.failure is not None:
            letter = due.letters[len(reactions)]
            before = self._tries.get(due.agent, ("", 0))
            tries = before[1] + 1 if before[0] == letter.id else 1
            if tries >= _tries_max:
                self._tries.pop(due.agent, None)
                reason = described(outcome.failure)
                reactions.append(died(letter, reason, self.machine.channel.check))
            else:
                self._tries[due.agent] = (letter.id, tries)
        else:
            self._tries.pop(due.agent, None)
        if reactions:
            reacted = Reacted(due.agent, tuple(reactions), outcome.state, self.clock_ms)
            self.later(self.world.random.random() * 0.002, self.submit, reacted)
        else:
            self.later(_pause_seconds * 2 ** (self._tries[due.agent][1] - 1), self._react, due)

    # The log.

    def take_snapshot(self) -> None:
        """Keep the state, let old segments go; what they hold is kept elsewhere first."""
        upto = self.store.last
        if not upto:
            return
        try:
            self.store.snapshot(self.machine.snapshot(), upto)
        except StoreFailedError:
            raise
        except StoreError:
            # A snapshot that could not be written is none; the log has all that it would have held.
            return
        self.archived += [record for _, record in self._stored(len(self.archived), upto)]
        self.store.release(upto)

    def records(self) -> list[bytes]:
        """All records from the first, as the disk has them."""
        return self.archived + [record for _, record in self._stored(len(self.archived))]

    def _stored(self, after: int, upto: int | None = None) -> Iterator[tuple[int, bytes]]:
        return read_records(_directory, after, upto, self.disk)


def _at_once(host: Host, due: React) -> Outcome:
    """A batch's outcome; a handler that is a coroutine must come to its end without waiting for anything."""
    if not host.is_async(due.agent):
        return host.react(due)
    reacting = host.react_async(due)
    try:
        reacting.send(None)
    except StopIteration as done:
        outcome: Outcome = done.value
        return outcome
    reacting.close()
    raise AgentError(f"agent {due.agent} awaits something that a simulated world does not have")


@contextmanager
def quiet() -> Iterator[None]:
    """Torn groups and failed disks are what these worlds are made of: the log need not mention them."""
    logger = logging.getLogger("antecede.store")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
