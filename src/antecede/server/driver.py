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
from enum import Enum
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from antecede import limits
from antecede.channel.consumer import Outgoing
from antecede.channel.letters import Letter
from antecede.engine import Engine, React, Reaction, died
from antecede.engine.agents import CHANGES_FROM_BYTES, State, change_of
from antecede.engine.host import Outcome
from antecede.failures import described
from antecede.link import Ack
from antecede.objects.calls import Calls
from antecede.server.connections import is_last_try, pause_after
from antecede.server.inputs import Accepted, Drop, FromPeer, Log, Outputs, Refused, ReplayMany, Step
from antecede.server.items import BuriedMany, Handled, Organising, Published, PublishedMany, Reacted, pieces_of
from antecede.server.node import AgentServer, Input

# The times at which a server acknowledges the frames of its peers.


class Acknowledgements:
    """The rules for when a step acknowledges frames.

    Acknowledgements are not urgent: a connection loses nothing until it breaks, and an unacknowledged frame costs its
    sender only a little memory. If each frame were acknowledged immediately, both servers would spend a large part of
    their work on acknowledgements. So acknowledgements wait for a few milliseconds (``_ack_seconds``), or until many
    frames have come (``_frames_together``). After that, the next step sends them, in the same write as its frames. If
    no step comes within another ``_ack_seconds``, the driver takes a step only to send acknowledgements.
    """

    def __init__(self) -> None:
        self.any = False
        """Whether acknowledgements must still be sent: frames have come since the last acknowledgements, or a step has
        postponed acknowledgements."""
        self.wait = False
        """Whether a step postponed acknowledgements, and no step has sent them yet."""
        self.frames = 0
        """The number of frames that have not been acknowledged yet."""
        self.due = inf
        """From this time on, the next step sends the acknowledgements that wait. The value is infinite if no
        acknowledgements wait."""

    def received(self, frames: int) -> None:
        """Count frames that must be acknowledged."""
        self.any = True
        self.frames += frames

    def are_due(self, now: float) -> bool:
        """Return whether the next step must send acknowledgements: enough time has passed, or enough frames came."""
        return now >= self.due or self.frames >= _frames_together

    def stepped(self, waiting: bool, now: float) -> None:
        """Record that a step was taken. ``waiting``: whether this step postponed acknowledgements."""
        self.any = self.wait = waiting
        if not waiting:
            self.frames, self.due = 0, inf
        elif self.due == inf:
            self.due = now + _ack_seconds

    def deadline(self) -> float | None:
        """Return the time at which a step must be taken to send acknowledgements, or None if no acknowledgements
        wait."""
        return None if self.due == inf else self.due + _ack_seconds


_ack_seconds: Final = 0.003
_frames_together: Final = 64


# The inputs that one step takes, limited by their sizes.


def take_inputs(inputs: deque[Input]) -> list[Input]:
    """Remove the inputs of the next step from the queue, and return them. Stop as soon as the size of these inputs is
    ``step_bytes_max`` or more. So the record of the step usually fits into one write. The sizes are estimates: a
    reaction counts as 4 KiB, although its state and its letters may be larger. If the record does not fit into one
    write, it is written in pieces."""
    taken: list[Input] = []
    size = 0
    while inputs and size < limits.step_bytes_max:
        given = inputs.popleft()
        taken.append(given)
        size += _size_of(given)
    return taken


def take_until_change(inputs: deque[Input]) -> list[Input]:
    """Remove the first inputs from the queue, and return them. Stop at ``step_bytes_max`` bytes, as ``take_inputs``
    does. Stop also before an item about a change of the topology (``Organising``). But if the first input is such an
    item, remove and return only this item."""
    if not inputs or isinstance(inputs[0], Organising):
        return [inputs.popleft()] if inputs else []
    taken: list[Input] = []
    size = 0
    while inputs and size < limits.step_bytes_max and not isinstance(inputs[0], Organising):
        taken.append(inputs.popleft())
        size += _size_of(taken[-1])
    return taken


def _size_of(given: Any) -> int:
    """Return the approximate number of bytes that an input adds to the record of its step."""
    if isinstance(given, FromPeer):
        return len(getattr(given.content, "body", b"")) + 64
    if isinstance(given, PublishedMany):
        return sum(map(len, given.bodies)) + _copy_bytes * len(given.bodies) * len(given.to)
    if isinstance(given, Published):
        return len(given.body) + _copy_bytes * len(given.to)
    if isinstance(given, ReplayMany):
        return given.bytes + _copy_bytes * len(given.letters)
    if isinstance(given, BuriedMany | Drop):
        return _copy_bytes * (given.letters if isinstance(given, Drop) else len(given.keys))
    return 4_096


_copy_bytes: Final = limits.step_bytes_max // limits.step_letters_max
"""The number of bytes that ``_size_of`` counts for each copy of a letter, in addition to the letter's body."""


# Output that is not urgent waits for other output, and leaves together with it. If both outputs go to the same
# receiver, the receiver wakes up only once, and takes both outputs in one step.
#
# Two kinds of output are not urgent. The first kind is a message that commits an operation, if the operation conflicts
# with no other operation. Nothing waits for this commit, so the message leaves together with the next frame. The second
# kind is a reply that informs a client that its call was accepted. The client waits only for the answer to the
# call, so the reply leaves together with this answer. If no other output comes, the message or the reply leaves alone
# after a few milliseconds.


_Replies = list[Accepted | Refused]


class DelayedOutput:
    """The output that is not urgent, and therefore waits in a server until other output leaves."""

    def __init__(self) -> None:
        self._frames: list[Outgoing] = []
        self._replies: _Replies = []
        self.recorded = 0
        """The number of a record. The waiting replies may leave when this record is durable. This record was the newest
        one when the last of these replies came."""
        self.leave_at: float | None = None
        """The time at which the waiting output must leave, or None if nothing waits."""

    def __bool__(self) -> bool:
        return self.leave_at is not None

    def admit(
        self, step: Step, calls: Calls, lives: Callable[[str], bool], now: float, recorded: int
    ) -> tuple[list[Outgoing], _Replies]:
        """Take the output of a step, on a server that has objects. Return the frames and replies that leave now. The
        others wait. ``lives``: returns whether an address belongs to an agent of this server, not to a client.
        ``recorded``: the number of the newest record."""
        frames, replies = step.outgoing, step.replies
        if self.leave_at is None and not (frames and frames[0].unhurried) and not (replies and replies[0].unhurried):
            return frames, replies
        letters = not all(lives(due.agent) or calls.are_sure(due.letters) for due in step.due)
        return self.gather(frames, replies, letters, now, recorded, bool(calls.sure))

    def gather(
        self,
        frames: list[Outgoing],
        replies: _Replies,
        letters: bool,
        now: float,
        recorded: int = 0,
        sure: bool = False,
    ) -> tuple[list[Outgoing], _Replies]:
        """Take the output of a step. Return the frames and replies that leave now, in their sequence. The others wait.
        ``letters``: whether letters for clients leave after this call. If so, the replies leave now, too. ``recorded``:
        the number of the newest record. ``sure``: whether the step has answers that leave before this record is
        durable. If so, the step's acknowledgements are not urgent: they wait, so that the record need not be synced
        immediately. The caller can skip this call if no output waits, the first frame is urgent (not ``unhurried``),
        and the first reply is urgent. In this case, all output leaves now."""
        due = self.leave_at is not None and now >= self.leave_at - _early_seconds
        if frames or self._frames:
            self._frames += frames
            urgent = due or not all(one.unhurried or (sure and isinstance(one.content, Ack)) for one in frames)
            frames, self._frames = (self._frames, []) if urgent else ([], self._frames)
        if replies or self._replies:
            self._replies += replies
            self.recorded = recorded if replies else self.recorded
            urgent = due or letters or not all(one.unhurried for one in replies)
            replies, self._replies = (self._replies, []) if urgent else ([], self._replies)
        if not (self._frames or self._replies):
            self.leave_at = None
        elif self.leave_at is None:
            self.leave_at = now + _company_seconds
        return frames, replies

    def take_replies(self) -> _Replies:
        """Remove and return the replies that wait. The caller sends them together with an answer that does not wait for
        the log."""
        replies, self._replies = self._replies, []
        if not self._frames:
            self.leave_at = None
        return replies


_company_seconds: Final = 0.004
_early_seconds: Final = 0.001
"""A time in seconds. If an alarm is too early by at most this time, it is treated like an alarm that is on time."""


# The gate: output leaves a server only when all records that were made before this output are durable.
#
# The rule is *persist, then send, then acknowledge* (Laumay et al. §5). One queue contains all frames,
# acknowledgements, replies to clients, letters for clients, and the first messages of a session or a connection
# (welcome, hello). Output that is put into the queue must wait until the newest record at that time is durable. This
# record may still wait for space on the disk. The output of a step without a record waits as well. For example, suppose
# that such a step repeats the acknowledgement of a frame. An earlier step accepted this frame, and the record of the
# earlier step may not be durable yet.
#
# All output for one receiver leaves in the sequence of the queue. Output for another receiver may leave earlier or
# later. For example, replies to clients leave before frames that wait for the same record. The queue also contains
# function calls. When such a call opens a new connection or session, all output for the previous connection or session
# has already left.
#
# There is one exception: some answers do not wait, because the server will give them again, unchanged, after a crash
# (``Calls.sure``). Such an answer leaves immediately, unless a function call is in the queue. In that case the answer
# waits like other output. If an answer leaves immediately, delayed replies (:mod:`antecede.server.driver`) leave
# together with it, but only if their record is durable and the queue is empty (``is_open``).
#
# Some output does not pass through the gate: pings, proofs of identity, and the answer to an operator if the operator's
# command changed nothing. Most connections are also closed without the gate. But if a peer has sent a wrong frame, the
# connection to this peer is closed through the gate, so that this server's hello leaves first (``Peering.fault``).


Reply = Accepted | Refused
_Waiting = tuple[int, list[Outgoing], list[Reply], Callable[[], None] | None]


class Gate:
    """The queue of all output that waits for the log."""

    def __init__(
        self,
        last: int,
        durable: int,
        send: Callable[[list[Outgoing]], None],
        reply: Callable[[list[Reply]], None],
    ) -> None:
        self.last = last
        """The number of the newest record. This record may still wait for space on the disk."""
        self.durable = durable
        """All records up to this number are durable."""
        self._send = send
        self._reply = reply
        self.waiting: deque[_Waiting] = deque()
        """The output that has not left yet."""
        self.calls = 0
        """The number of function calls that wait in the queue; ``call`` adds them."""

    def put(self, outgoing: list[Outgoing], replies: list[Reply]) -> None:
        """Put output into the queue. The output leaves when all records that exist now are durable. The replies leave
        before the frames."""
        self.waiting.append((self.last, outgoing, replies, None))

    def call(self, call: Callable[[], None]) -> bool:
        """Put a function into the queue. It is called when all records that exist now are durable, and all earlier
        entries of the queue have left. Return whether the first entry of the queue may leave now."""
        self.waiting.append((self.last, [], [], call))
        self.calls += 1
        return self.waiting[0][0] <= self.durable

    def is_open(self, record: int) -> bool:
        """Return whether output that waits only for this record may leave immediately. It may leave if the record is
        durable and the queue is empty, because then no earlier output waits."""
        return record <= self.durable and not self.waiting

    def open(self, durable: int) -> None:
        """Send the output that waited for the records up to the number ``durable``, because these records are durable
        now. Call the functions that waited for them, too. Do both in the sequence of the queue."""
        if durable > self.durable:
            self.durable = durable
        durable, waiting = self.durable, self.waiting
        while waiting and waiting[0][0] <= durable:
            _, outgoing, replies, call = waiting.popleft()
            if call is None and waiting and waiting[0][0] <= durable:
                # New lists: these belong to the step that made them.
                outgoing, replies = [*outgoing], [*replies]
                while call is None and waiting and waiting[0][0] <= durable:
                    _, frames, more_replies, call = waiting.popleft()
                    outgoing += frames
                    replies += more_replies
            if replies:
                self._reply(replies)
            if outgoing:
                self._send(outgoing)
            if call is not None:
                self.calls -= 1
                call()


# The rules for failed reactions: when a reaction is tried again, and when its letter becomes a dead letter.
#
# A failed reaction is tried again after a pause. If it fails again, the next pause is longer. Meanwhile its agent
# reacts to nothing else. After the last try the letter becomes a dead letter, with the reason. If earlier letters of
# the same batch were handled, the reactions to them are kept. Failed tries are counted in memory, so the count begins
# again after a restart.
#
# While a change of the topology adds agents, a letter does not become dead if its handler raises exceptions. The
# reason: another server may use the new topology earlier than this server, so letters of a new agent may arrive. A
# handler that answers the new agent fails, because this server cannot send to new agents yet. This rule does not apply
# to a handler that ends a process.
#
# If a handler ends the server's process, or the worker process in which the handler runs, this counts as one try of the
# letter that was being handled. This letter is now a *suspect* (:mod:`antecede.engine.dead`): it is handled alone,
# after its pause, and at most one suspect is handled at a time. The other letters of the batch are handled again, and
# no try is counted for them. Tries that ended the server's process are counted in the log.
#
# If a handler asks for the id of its reaction too early (:mod:`antecede.engine.agents`), this does not count as a
# failure. The reaction runs again when its letter is durable. From then on, the agent is *keyed*: all batches of this
# agent wait until their letters are durable.


class Retries:
    """The failed reactions of one server's agents, and the times at which they are tried again."""

    def __init__(
        self,
        engine: Engine,
        check: Callable[[tuple[str, ...]], object],
        log: Log,
        undecided: Callable[[], bool] = lambda: False,
    ) -> None:
        """``undecided``: returns True if a change of the topology adds agents, and this server does not use the new
        topology yet."""
        self._undecided = undecided
        self._engine = engine
        self._suspects = engine.tries
        self._check = check
        self._log = log
        self.tries: dict[str, tuple[str, int]] = {}
        """For each agent with a failed reaction: the id of the letter that failed, and how often the letter was
        tried."""
        self.waiting: list[tuple[float, int, React]] = []
        """Batches that wait for their next try, as a heap of (time of this try, running number, batch)."""
        self.queue: deque[React] = deque()
        """Batches whose pause is over. Each contains one letter, a *suspect*: its handler may have ended the process.
        These batches run one at a time."""
        self._running = ""
        """The agent that handles a suspect letter now. It is empty if no suspect letter is being handled."""
        self._number = 0
        self.keyed: set[str] = set()
        """The agents that have asked for the id of a reaction too early. All their batches wait until their letters are
        durable."""
        self.early: dict[str, React] = {}
        """The batches that must not run before their letters are durable, by agent."""
        self.done = 0
        """Number of reactions that succeeded."""
        self.failed = 0
        """Number of tries that failed."""
        self.dead = 0
        """Number of letters that became dead."""

    def idle(self) -> bool:
        """Return whether every batch may run immediately. This is true if no letter has failed, no letter is suspected
        of having ended the process, and no agent has batches that must wait until their letters are durable."""
        suspects = self._suspects
        return not (self.tries or self.keyed or suspects.careful or suspects.letters)

    def is_careful(self, due: React) -> bool:
        """Return whether a batch must wait until its letters are durable."""
        return due.agent in self.keyed or self._suspects.is_careful(due.agent, due.letters[0].id)

    def admit(self, due: React, now: float) -> bool:
        """Return whether a batch may run now. If earlier tries of its first letter failed, return False and let the
        batch wait until a pause is over."""
        letter = due.letters[0].id
        failed = self.tries.get(due.agent)
        if failed is None or failed[0] != letter:
            tries = self._suspects.of(due.agent, letter)
            if not tries:
                return True
            failed = self.tries[due.agent] = (letter, tries)
        self._wait(due, failed[1], now)
        return False

    def admitted(self, careful: list[React], now: float) -> tuple[list[React], list[tuple[str, Reaction]]]:
        """Check batches whose letters are durable now. Return two lists. The first list has the batches that may run
        now. The second list has a pair for each suspect letter with no tries left: the agent, and the reaction that
        makes the letter dead. The other batches wait until a pause is over, or are dropped. A batch is dropped if it
        was forgotten meanwhile, or if a change of the topology has stopped its agent."""
        admitted: list[React] = []
        dead: list[tuple[str, Reaction]] = []
        for waited in careful:
            if self.early.get(waited.agent) is not waited:
                continue
            del self.early[waited.agent]
            if self._engine.is_frozen(waited.agent):
                continue
            due = replace(waited, durable=True)
            reaction = self.exhausted(due)
            if reaction is not None:
                dead.append((due.agent, reaction))
            elif self.admit(due, now):
                admitted.append(due)
        return admitted, dead

    def exhausted(self, due: React) -> Reaction | None:
        """Check how many tries of the batch's first letter ended the process. If no further try is allowed, return the
        reaction that makes this letter dead. Return None if the letter may be tried again."""
        letter = due.letters[0]
        tries = self._suspects.of(due.agent, letter.id)
        if not is_last_try(tries):
            return None
        self.tries.pop(due.agent, None)
        reaction = died(letter, f"the process ended {tries} times while it was handled", self._check)
        self._died(due, reaction)
        return reaction

    def due(self, now: float) -> list[React]:
        """Remove and return the batches whose pause is over. At most one of the returned batches contains a suspect (a
        letter whose handler may have ended the process). If a suspect is being handled already, no returned
        batch contains a suspect."""
        waiting, found = self.waiting, []
        while waiting and waiting[0][0] <= now:
            batch = heappop(waiting)[2]
            if self._is_suspect(batch):
                self.queue.append(batch)
            else:
                found.append(batch)
        if self.queue and not self._running:
            found.append(self.queue.popleft())
            self._running = found[-1].agent
        return found

    def _is_suspect(self, due: React) -> bool:
        return self._suspects.is_suspect(due.agent, due.letters[0].id)

    def forget(self, agents: set[str]) -> None:
        """Forget the batches of these agents, because the agents leave this server, or because their letters will be
        handed out again."""
        self.waiting = [one for one in self.waiting if one[2].agent not in agents]
        heapify(self.waiting)
        self.queue = deque(due for due in self.queue if due.agent not in agents)
        self.tries = {agent: failed for agent, failed in self.tries.items() if agent not in agents}
        self.keyed -= agents
        for agent in agents:
            self.early.pop(agent, None)
        if self._running in agents:
            self._running = ""

    def deadline(self) -> float | None:
        """Return the time at which the next pause is over, or None if no batch waits."""
        return self.waiting[0][0] if self.waiting else None

    def settle_plain(self, due: React, letters: list[str]) -> None:
        """Record that a whole batch succeeded, and that its reactions requested nothing: no sends, no timers, no new
        agents."""
        if self._running == due.agent:
            self._running = ""
        self.done += len(letters)
        if self.tries and self.tries.get(due.agent, ("", 0))[0] in letters:
            del self.tries[due.agent]

    def settle(self, due: React, outcome: Outcome, now: float) -> list[Reaction]:
        """Handle the outcome of a batch, and return the reactions to commit. If there are none, one of three things is
        true: the batch waits for its next try, its letters are handed out again, or a reaction asked for its id too
        early. In the third case the caller must let the batch wait until its letters are durable."""
        if self._running == due.agent:
            self._running = ""
        if outcome.plain:
            outcome.merge()
        reactions = outcome.reactions
        self.done += len(reactions)
        if outcome.too_early:
            self.keyed.add(due.agent)
        elif outcome.failure is not None:
            self._failed(due, outcome, outcome.failure)
        elif due.agent in self.tries and self.tries[due.agent][0] in {reaction.letter for reaction in reactions}:
            del self.tries[due.agent]
        if not reactions and not outcome.too_early:
            if outcome.ended_at is not None and len(due.letters) > 1:
                self._suspects.suspect(due.agent, due.letters[outcome.ended_at].id)
                self._engine.abandon(due.agent)
            else:
                self._wait(due, self.tries[due.agent][1], now)
            return reactions
        for reaction in reactions:
            if reaction.dead:
                self._died(due, reaction)
        return reactions

    def _died(self, due: React, reaction: Reaction) -> None:
        self.dead += 1
        self._log.warning("dead-letter", agent=due.agent, letter=reaction.letter, reason=reaction.dead)

    def _failed(self, due: React, outcome: Outcome, failure: BaseException) -> None:
        alone = outcome.ended_at is None or len(due.letters) == 1
        letter = due.letters[len(outcome.reactions) if outcome.ended_at is None else outcome.ended_at]
        before = self.tries.get(due.agent, ("", 0))
        tries = before[1] + 1 if before[0] == letter.id else 1 + self._suspects.of(due.agent, letter.id)
        if is_last_try(tries) and outcome.ended_at is None and self._undecided():
            tries -= 1
        self.failed += 1
        reason = described(failure)
        self._log.warning(
            "reaction-failed",
            raised=failure if tries == 1 else None,
            agent=due.agent,
            letter=letter.id,
            type=letter.type,
            tries=tries,
            reason=reason,
        )
        if is_last_try(tries) and alone:
            self.tries.pop(due.agent, None)
            outcome.reactions.append(died(letter, reason[:_reason_chars], self._check))
        else:
            self.tries[due.agent] = (letter.id, tries)

    def _wait(self, due: React, tries: int, now: float) -> None:
        self._number += 1
        heappush(self.waiting, (now + pause_after(tries), self._number, due))


_reason_chars = 1_000


# The interface between the driver of a server and its adapters (the live server and the simulator): the work after a
# turn, and the time of the next commit of the log.


class Turn(msgspec.Struct, gc=False):
    """The work that an adapter must do after a turn of the driver, in the sequence of the fields."""

    records: list[bytes]
    """First, append these records to the log, in this sequence, and call ``Driver.appended`` with the number of records
    that were appended. All output that depends on these records waits in the gate until they are durable. If the log
    has no space for a record, stop before this record: the next turn returns it again."""
    reactions: list[React]
    """Then run these batches of reactions, and report the outcome of each batch with ``Driver.reacted``. Each batch
    belongs to a different agent, so the batches are independent of each other. A batch need not wait until the records
    above are durable, because its results become part of the record of an open step, or of a later record."""


class Commit(Enum):
    """The answer of ``Driver.rest``, after one or more turns: when and where to commit the log."""

    HERE = "here"
    """The adapter commits immediately: output waits for the records, or the records have waited long enough. There is
    no other work. The store usually commits in the thread of the adapter. In some cases it commits in its commit
    thread, for example if recent syncs were slow or many bytes wait."""
    SOON = "soon"
    """Output waits for the records, or the records have waited long enough, as for ``HERE``. But there is other work.
    So the commit thread commits the records, together with records that come in the meantime."""
    LATER = "later"
    """Do not commit now, because there are no records, or no output waits for them. The records are committed at the
    deadline, or as soon as new output waits for them. A step without a record can also have such output (for example
    an acknowledgement)."""


HERE: Final = Commit.HERE
SOON: Final = Commit.SOON
LATER: Final = Commit.LATER
"""``HERE``, ``SOON`` and ``LATER`` are separate names for the members of :class:`Commit`. Every turn uses one of these
members. It is slow to get a member from the class: this takes as long as ten other instructions."""


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
            if now < self._commit_at - _driver_early_seconds:
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
        if (due := self.deadline(now, clock_ms)) is not None and due <= now + _driver_early_seconds:
            self.request_turn()


_inputs_few: Final = 2
"""The largest number of queued inputs with which a step may stay open while its reactions run."""
_full_seconds: Final = 0.1
"""The pause before the next attempt to append a record for which the log had no space."""
_calm_seconds: Final = 0.00005
"""The time without a turn after which the server is idle. It then takes the next input without waiting for more."""
_steps_together: Final = 4
"""The largest number of turns with a step in one run of turns. After them, other work of the process can run."""
_driver_early_seconds: Final = 0.001
"""An alarm that is early by at most this time counts as on time, because timers of event loops are not precise."""
_unhurried_seconds: Final = 0.01
"""The longest time that records stay in memory if no output waits. After a crash, their inputs are sent again."""
