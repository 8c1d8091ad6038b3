"""The driver: everything between :class:`antecede.server.AgentServer` and a socket, a disk or a clock.

It queues inputs and processes them in *steps*: a step takes some inputs and makes at most one record. It numbers the
records and cuts long ones into pieces. It keeps output back until all earlier records are durable (``gate``). It delays
acknowledgements, and tries failed reactions again (``retries``). It takes no step while the disk is full. After a start
of the server, it takes no step until the first record is durable. It knows when it must be called next. It does no I/O
and has no clock. The live server and the simulator are adapters around it, so the simulator tests all these rules.

An adapter calls, in this sequence:

    turn = driver.turn(now, clock_ms)       one step at most, or a part of it
    append turn.records, driver.appended(how many, why not all)
    run turn.reactions, driver.reacted(…) for each, now or later
    repeat while driver.goes_on()
    driver.rest(now)                        returns when to commit: here, soon or later
    driver.durable(upto)                    when more records are durable: this lets output leave
    driver.committed(now)                   when the commit has ended and its output has left

The adapter calls ``turn`` again after a call of ``wake``. At ``deadline`` it calls ``alarm``, which may call ``wake``.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from antecede import limits
from antecede.channel.letters import Letter
from antecede.engine import React
from antecede.engine.agents import CHANGES_FROM_BYTES, State, change_of
from antecede.engine.host import Outcome
from antecede.server import AgentServer, Input
from antecede.server.driver.acknowledgements import Acknowledgements
from antecede.server.driver.batches import take_inputs, take_until_change
from antecede.server.driver.delayed import DelayedOutput
from antecede.server.driver.gate import Gate
from antecede.server.driver.retries import Retries
from antecede.server.driver.turns import HERE, LATER, SOON, Commit, Turn
from antecede.server.inputs import FromPeer, Log, Outputs, Step
from antecede.server.items import Handled, Organising, Reacted, pieces_of


class Driver:
    """Processes the inputs of one server in steps, records the steps, and sends output when its records are durable."""

    # An object with more than 30 attributes outside of slots has slower methods.
    __slots__ = ("__dict__", "_let_leave", "_open", "_rested", "_retry_at", "_slow", "_steps", "awake", "now", "taken")

    def __init__(
        self,
        machine: AgentServer,
        lives: Callable[[str], bool],
        outputs: Outputs,
        wake: Callable[[], None],
        log: Log,
        first: bytes,
        last: int = 0,
        durable: int = 0,
    ) -> None:
        """``lives``: returns whether an address is an agent of this server, not a client. ``wake``: asks the adapter
        to call ``turn`` soon, at most once per turn. ``first``: the first record of this run of the server. ``last``,
        ``durable``: the numbers of the last record and of the last durable record in the log, after recovery."""
        self.machine = machine
        self.gate = Gate(last, durable, outputs.send, outputs.reply)
        self.durable = self.gate.open
        """``durable(number)`` reports that all records up to this number are durable, and sends output that waited."""
        self.retries = Retries(machine.engine, machine.channel.check, log, lambda: bool(machine.channel.hidden))
        self.acknowledgements = Acknowledgements()
        self.stopping = False
        """Whether the server is stopping, so that no new reactions begin."""
        self._halted = True
        """Whether no step may be taken: the first record since the start is not durable yet, or a step has failed."""
        self.broken = False
        """Whether a step has failed. If so, no more steps are taken, and the server must end."""
        self.now = 0.0
        """The time of the last turn or of the last input: the later of these two times."""
        self.trouble = ""
        """The reason why records cannot be appended. The text is empty if they can be appended."""
        self._lives = lives
        self._outputs = outputs
        self._wake = wake
        self._log = log
        self.inputs: deque[Input] = deque()
        """The inputs that no step has taken yet."""
        self._records = deque(pieces_of(first))
        """Records that are not yet appended to the log."""
        self.gate.last += len(self._records)
        self.taken = self._changes = 0
        """``taken``: the number of inputs taken so far. ``_changes``: the number of queued changes of the topology."""
        self._organised = machine.organisation.applied
        self._when_taken: deque[tuple[int, Callable[[], None]]] = deque()
        """Pairs of a number and a function: the function is called when ``taken`` has reached the number."""
        self._open = False
        """Whether a step is open: its record will also contain the results of the reactions that run now."""
        self._later: list[React] = []
        """Batches of letters from the open step to clients. They are delivered to the clients when the step ends."""
        self._when_sealed: list[Callable[[], None]] = []
        """Functions to call when the record of the open step is durable."""
        self._careful: list[React] = []
        """Batches that had to wait until their letters were durable. The letters are durable now."""
        self._deferred: list[Callable[[], None]] = []
        """Functions to call at the beginning of the next turn."""
        self.awake = False
        """Whether a turn was requested or is in progress, or a group of inputs arrives now (see ``gathered``)."""
        self._steps, self._until = 0, 0.0
        """``_steps``: how many turns took a step in this run of turns (the turns since the last call of ``rest``).
        ``_until``: if a reaction ends after this time, the run of turns ends, so that other work can run."""
        self._slow = self.urgent = False
        """``_slow``: whether reactions are slow in this run of turns. ``urgent``: whether they were slow in the last
        run. If so, a turn's records should be committed before its reactions run, so that output leaves earlier."""
        self.stepped = True
        """Whether the last turn took a step."""
        self.calm = True
        """Whether the server was idle before this run of turns: no output had left for a while."""
        self._rested = self._let_leave = 0.0
        """The end times of the last run of turns (``_rested``) and of the last run with a commit (``_let_leave``)."""
        self._retry_at: float | None = None
        self._delayed = DelayedOutput()
        self._commit_at: float | None = None
        """The latest time to commit records for which no output waits. None if there are no such records."""
        self._wake_at: float | None = None
        self.gate.call(self._start)

    def _start(self) -> None:
        self._halted = self.broken
        self.request_turn()

    # Inputs.

    def feed(self, given: Input) -> None:
        """Queue an input for the next step."""
        self.inputs.append(given)
        if not self.awake:
            self.request_turn()

    def change(self, given: Organising) -> None:
        """Queue a change of the topology. A separate step takes it, because later inputs may use the old topology."""
        self._changes += 1
        self.feed(given)

    def ignore(self, domains: set[str], removed: set[str]) -> None:
        """Ignore all queued inputs that came from peers in these domains, or from these removed peers."""
        for place, given in enumerate(self.inputs):
            if isinstance(given, FromPeer) and (given.domain in domains or given.peer in removed):
                # It keeps its place, because others count the inputs before them.
                self.inputs[place] = FromPeer("", "", given.content)

    def request_turn(self) -> None:
        """Ask for a turn, even if there is no input."""
        if not self.awake:
            self.awake = True
            self._wake()

    def gathered(self, now: float) -> bool:
        """End a group of inputs, which began when the caller set ``awake``. If the server is idle, return True: the
        caller must take a turn now. Under load, request a later turn, which can take more inputs, and return False."""
        if now - self._rested > _calm_seconds:
            return True
        self._wake()
        return False

    def ungather(self) -> None:
        """End a group of inputs after an error: request a turn for the inputs that were queued."""
        self._wake()

    def when_durable(self, call: Callable[[], None]) -> None:
        """Call a function when everything recorded so far is durable and the output of all steps so far has left."""
        if self._open:
            self._when_sealed.append(call)
        elif self.gate.call(call):
            self.request_turn()

    def hand_out(self, letters: list[Letter], deliver: Callable[[list[Letter]], None]) -> None:
        """Hand letters to a client when all records so far are durable. The module ``gate`` explains one exception."""
        gate = self.gate
        if gate.calls or not self.machine.calls.are_sure(letters):
            self.when_durable(partial(deliver, letters))
            return
        delayed = self._delayed
        if delayed.leave_at is not None and gate.is_open(delayed.recorded) and (replies := delayed.take_replies()):
            self._outputs.reply(replies)
        deliver(letters)

    def when_taken(self, call: Callable[[], None]) -> None:
        """Call a function when steps have taken all inputs that are queued now."""
        self._when_taken.append((self.taken + len(self.inputs), call))
        self.request_turn()

    def defer(self, call: Callable[[], None]) -> None:
        """Call a function at the beginning of the next turn, so that other work can run between parts of long work."""
        self._deferred.append(call)
        self.request_turn()

    @property
    def busy(self) -> bool:
        """Whether there is pending work for this server's agents or its disk."""
        waits = any(self._lives(agent) for agent in self.machine.engine.mailboxes)
        return bool(self.inputs or self._records or self._open or self.gate.waiting or self._delayed or waits)

    @property
    def behind(self) -> bool:
        """Whether records are not yet appended to the log, for example because the log has no space."""
        return bool(self._records)

    @property
    def can_step(self) -> bool:
        """Whether the next turn can take a step."""
        return not (self._records or self._halted)

    # Turns.

    def turn(self, now: float, clock_ms: int) -> Turn:
        """Take one step, if the records of the previous steps were appended. Otherwise return these records again. A
        small step stays open while its reactions run, so that their results become part of its record."""
        self.now = now
        self.awake = True
        if self._deferred and not self.broken:
            deferred, self._deferred = self._deferred, []
            for call in deferred:
                call()
        records, queue, machine, retries = self._records, self.inputs, self.machine, self.retries
        self.stepped = not (records or self._halted)
        if not self.stepped:
            return Turn([] if self.broken else list(records), [])
        if not self._steps:
            self.calm = now - self._let_leave > _calm_seconds
            self._until, self.urgent, self._slow = now + limits.reactions_together_seconds, self._slow, False
        self._steps += 1
        # The agent of a reaction may leave in the next step.
        reactions = retries.due(now) if (retries.waiting or retries.queue) and not self._changes else []
        if self._careful:
            reactions += self._admitted(now)
        few = not self._changes and len(queue) <= _inputs_few
        if few:
            inputs = list(queue)
            queue.clear()
        elif self._changes:
            # A change has a separate step: one that is open ends first.
            inputs = [] if self._open else take_until_change(queue)
            self._changes -= bool(inputs) and isinstance(inputs[0], Organising)
        else:
            inputs = take_inputs(queue)
        self.taken += len(inputs)
        try:
            machine.take(inputs, now, clock_ms)
            if few and machine.engine.ready and self._stays_open(reactions):
                return Turn([], reactions)
            step = self._seal(now, clock_ms)
        except BaseException:
            # Half a step was taken and no record contains it: nothing may depend on it. The log is good.
            self.broken = self._halted = True
            raise
        for due in step.due:
            if not self._lives(due.agent):
                self._outputs.deliver(due)
            elif retries.idle():
                reactions.append(due)
            elif retries.is_careful(due):
                self._wait_until_durable(due)
            elif retries.admit(due, now):
                reactions.append(due)
        if machine.engine.came > limits.backlog_unwatched_letters_max:
            self._outputs.check_marks()
        while self._when_taken and self._when_taken[0][0] <= self.taken:
            self._when_taken.popleft()[1]()
        for domain, peer, reason in step.faults:
            self._outputs.fault(domain, peer, reason)
        if machine.calls.site is not None:
            machine.calls.sure.clear()
            machine.calls.report(self._log.error)
        return Turn(list(records), [] if self.stopping else reactions)

    def _stays_open(self, reactions: list[React]) -> bool:
        """Return whether the step stays open while its reactions run. If so, add these reactions to ``reactions``."""
        # Objects act at the end of a step. After slow reactions, what waits for the record should leave before them.
        apart = self.machine.calls.site is not None or self.urgent or self.stopping
        if apart or self._steps >= _steps_together or not self.retries.idle():
            return False
        lives = self._lives
        for due in self.machine.engine.due():
            (reactions if lives(due.agent) else self._later).append(due)
        self._open = goes_on = bool(reactions)
        return goes_on

    def _seal(self, now: float, clock_ms: int) -> Step:
        """End the step, and put its output into the gate, where it waits until the step's record is durable."""
        acknowledgements, machine, records = self.acknowledgements, self.machine, self._records
        acknowledge = acknowledgements.any and acknowledgements.are_due(now)
        step = machine.seal(now, clock_ms, acknowledge)
        waits = machine.channel.links.acks_wait
        if acknowledge or (waits and not acknowledgements.wait):
            acknowledgements.stepped(waits, now)
        if step.record is not None:
            records.extend(pieces_of(step.record))
            self.gate.last += len(records)
        if machine.organisation.applied != self._organised:
            self._organised = machine.organisation.applied
            self._outputs.organised(step.due)
        outgoing, replies = step.outgoing, step.replies
        if machine.calls.site is not None:
            outgoing, replies = self._delayed.admit(step, machine.calls, self._lives, now, self.gate.last)
        if outgoing or replies:
            self.gate.put(outgoing, replies)
        self._open = False
        if self._later:
            step.due[:0], self._later = self._later, []
        if self._when_sealed:
            calls, self._when_sealed = self._when_sealed, []
            for call in calls:
                self.when_durable(call)
        return step

    def _wait_until_durable(self, due: React) -> None:
        self.retries.early[due.agent] = due
        self.when_durable(partial(self._is_durable, due))

    def _is_durable(self, due: React) -> None:
        self._careful.append(due)
        self.request_turn()

    def _admitted(self, now: float) -> list[React]:
        """Return batches that may run now: their letters are durable. A letter with no tries left becomes dead."""
        careful, self._careful = self._careful, []
        admitted, dead = self.retries.admitted([due for due in careful if self._lives(due.agent)], now)
        for agent, reaction in dead:
            self.feed(Reacted(agent, (reaction,), None, 0))
        return admitted

    def appended(self, count: int, reason: str = "") -> None:
        """Report how many of the turn's records were appended to the log. ``reason``: why the other records were not
        appended. Until the log has space for them, no step is taken and nothing is read from connections."""
        records = self._records
        if count == len(records) and not self.trouble:
            records.clear()
            return
        for _ in range(count):
            records.popleft()
        if records:
            if not self.trouble:
                self._log.error("no-room", reason=reason)
                self._outputs.hold(True)
            self.trouble = reason
        elif self.trouble:
            self.trouble = ""
            self._log.info("trouble-over")
            self._outputs.hold(False)

    def goes_on(self) -> bool:
        """Return whether to take another turn immediately: to add the results of reactions to the open step, to take
        more inputs, or to take a step after a turn that only appended records."""
        if self._open:
            return True
        if self._records or self._halted:
            return False
        return not self.stepped or (bool(self.inputs) and self._steps < _steps_together)

    def rest(self, now: float) -> Commit:
        """End a run of turns, which contains all turns since the last call. Return when the log should be committed."""
        commit = self._commit(now)
        if commit is not LATER:
            self._let_leave = now
        self._rested = now
        self._steps = 0
        self.awake = False
        self._retry_at = now + _full_seconds if self._records else None
        if (self._deferred and not self.broken) or (self.inputs and self.can_step):
            self.request_turn()
        return commit

    def _commit(self, now: float) -> Commit:
        """Return when to commit. If no output waits, new records are not synced immediately. They are synced after a
        short time, or as soon as output waits (for example an acknowledgement)."""
        gate = self.gate
        if not gate.waiting:
            if gate.last == gate.durable:
                self._commit_at = None
                return LATER
            if self._commit_at is None:
                self._commit_at = now + _unhurried_seconds
            if now < self._commit_at - _early_seconds:
                return LATER
        self._commit_at = None
        return HERE if self.calm and not self.inputs else SOON

    def committed(self, now: float) -> None:
        """Record that the commit after ``rest`` has ended and its output has left. The inputs that came during the
        commit are taken together. An adapter need not call this method if nothing had to be synced and the driver was
        ``calm``. Without this call, the server counts as idle earlier, so it processes the next input sooner."""
        if self._let_leave == self._rested:
            self._let_leave = now
        self._rested = now

    def reacted(self, due: React, outcome: Outcome, now: float, clock_ms: int) -> None:
        """Report the outcome of a batch. If reactions are slow, end the run of turns, so that other work can run."""
        if self._steps and now >= self._until:
            self._steps, self._slow = _steps_together, True
        clock_ms = self.machine.clock.at(now, clock_ms)
        state: State | None = outcome.state
        if outcome.state is not None and len(outcome.state) >= CHANGES_FROM_BYTES and self.machine.kept:
            state = change_of(due.state, outcome.state)
        if outcome.plain:
            self.retries.settle_plain(due, outcome.plain)
            self.feed(Handled(due.agent, outcome.plain, state, clock_ms))
        elif reactions := self.retries.settle(due, outcome, now):
            self.feed(Reacted(due.agent, tuple(reactions), state, clock_ms))
        else:
            if outcome.too_early:
                self._wait_until_durable(due)
            # Another run of turns: letters may be due again, and it ends with a check of the deadline of the next try.
            self.defer(self.request_turn)

    def deadline(self, now: float, clock_ms: int) -> float | None:
        """Return the time to call ``alarm`` if nothing else happens before. Return None if no call is needed."""
        if self._records:
            return self._retry_at
        alarm = self.machine.alarm_ms()
        due = None if alarm is None else now + max(0.0, (alarm - self.machine.clock.at(now, clock_ms)) / 1000)
        others = self.retries.deadline(), self.acknowledgements.deadline(), self._commit_at, self._delayed.leave_at
        for other in others:
            if other is not None and (due is None or other < due):
                due = other
        known, channel = self._wake_at, self.machine.channel
        # No frame that was sent since then is due for a resend earlier, so the links need not be asked at every step.
        latest = now + self.machine.plan.resend_after
        if known is not None and now < known <= latest and (due is None or due >= known - 0.001):
            return known
        resend = None if due is not None and due <= channel.links.resend_at else channel.deadline()
        self._wake_at = resend if due is None or (resend is not None and resend < due) else due
        return self._wake_at

    def alarm(self, now: float, clock_ms: int) -> None:
        """Handle an alarm, at the deadline or earlier: request a turn if one is needed."""
        self._wake_at = None
        if (due := self.deadline(now, clock_ms)) is not None and due <= now + _early_seconds:
            self.request_turn()


_inputs_few: Final = 2
"""The largest number of queued inputs with which a step may stay open while its reactions run."""
_full_seconds: Final = 0.1
"""The pause before the next attempt to append a record for which the log had no space."""
_calm_seconds: Final = 0.00005
"""The time without a turn after which the server is idle. It then takes the next input without waiting for more."""
_steps_together: Final = 4
"""The largest number of turns with a step in one run of turns. After them, other work of the process can run."""
_early_seconds: Final = 0.001
"""An alarm that is early by at most this time counts as on time, because timers of event loops are not precise."""
_unhurried_seconds: Final = 0.01
"""The longest time that records stay in memory if no output waits. After a crash, their inputs are sent again."""
