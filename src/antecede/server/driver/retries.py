"""The rules for failed reactions: when a reaction is tried again, and when its letter becomes a dead letter.

A failed reaction is tried again after a pause. If it fails again, the next pause is longer. Meanwhile its agent reacts
to nothing else. After the last try the letter becomes a dead letter, with the reason. If earlier letters of the same
batch were handled, the reactions to them are kept. Failed tries are counted in memory, so the count begins again after
a restart.

While a change of the topology adds agents, a letter does not become dead if its handler raises exceptions. The reason:
another server may use the new topology earlier than this server, so letters of a new agent may arrive. A handler that
answers the new agent fails, because this server cannot send to new agents yet. This rule does not apply to a handler
that ends a process.

If a handler ends the server's process, or the worker process in which the handler runs, this counts as one try of the
letter that was being handled. This letter is now a *suspect* (:mod:`antecede.engine.dead`): it is handled alone, after
its pause, and at most one suspect is handled at a time. The other letters of the batch are handled again, and no try is
counted for them. Tries that ended the server's process are counted in the log.

If a handler asks for the id of its reaction too early (:mod:`antecede.engine.agents`), this does not count as a
failure. The reaction runs again when its letter is durable. From then on, the agent is *keyed*: all batches of this
agent wait until their letters are durable.
"""

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from msgspec.structs import replace

from antecede.engine import Engine, React, Reaction, died
from antecede.engine.host import Outcome
from antecede.failures import described
from antecede.server.connections import is_last_try, pause_after
from antecede.server.inputs import Log


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
