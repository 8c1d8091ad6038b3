"""Failed reactions: when each is tried again, and when its letter is dead.

A reaction that fails is tried again after a pause, then after a longer one; its agent reacts to nothing else meanwhile.
After the last try the letter is dead, with the reason. The reactions of the batch before the failing letter are kept.
Tries are counted in memory: a restart begins counting again.
"""

from collections.abc import Callable
from heapq import heappop, heappush

from antecede import limits
from antecede.engine import React, Reaction, died
from antecede.engine.host import Outcome
from antecede.server.words import Log
from antecede.whereabouts import described


class Retries:
    """The agents of one server with failed reactions, and when they try again."""

    def __init__(self, check: Callable[[tuple[str, ...]], object], log: Log) -> None:
        self._check = check
        self._log = log
        self.tries: dict[str, tuple[str, int]] = {}
        """Agent → the letter that failed, and how often it was tried."""
        self.waiting: list[tuple[float, int, React]] = []
        """(when, number, batch), as a heap."""
        self._number = 0
        self.done = 0
        """Number of reactions that succeeded."""
        self.failed = 0
        """Number of tries that raised an exception."""
        self.dead = 0
        """Number of letters that became dead."""

    def admit(self, due: React, now: float) -> bool:
        """Return whether a batch may run now. If its first letter has just failed, it waits."""
        trouble = self.tries.get(due.agent)
        if trouble is None or trouble[0] != due.letters[0].id:
            return True
        self._wait(due, trouble[1], now)
        return False

    def due(self, now: float) -> list[React]:
        """Take the batches whose pause is over."""
        waiting, found = self.waiting, []
        while waiting and waiting[0][0] <= now:
            found.append(heappop(waiting)[2])
        return found

    def deadline(self) -> float | None:
        """The time of the next retry."""
        return self.waiting[0][0] if self.waiting else None

    def settle(self, due: React, outcome: Outcome, now: float) -> list[Reaction]:
        """Return the part of a batch to commit; if it is empty, the batch waits for its next try."""
        reactions = outcome.reactions
        self.done += len(reactions)
        if outcome.failure is not None:
            self._failed(due, outcome, outcome.failure)
        elif due.agent in self.tries:
            del self.tries[due.agent]
        if not reactions:
            self._wait(due, self.tries[due.agent][1], now)
            return reactions
        for reaction in reactions:
            if reaction.dead:
                self.dead += 1
                self._log.warning("dead-letter", agent=due.agent, letter=reaction.letter, reason=reaction.dead)
        return reactions

    def _failed(self, due: React, outcome: Outcome, failure: BaseException) -> None:
        letter = due.letters[len(outcome.reactions)]
        before = self.tries.get(due.agent, ("", 0))
        tries = before[1] + 1 if before[0] == letter.id else 1
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
        if tries >= limits.reaction_tries_max:
            self.tries.pop(due.agent, None)
            outcome.reactions.append(died(letter, reason[:_reason_chars], self._check))
        else:
            self.tries[due.agent] = (letter.id, tries)

    def _wait(self, due: React, tries: int, now: float) -> None:
        self._number += 1
        when = now + limits.reaction_pause_seconds * 2 ** (tries - 1)
        heappush(self.waiting, (when, self._number, due))


_reason_chars = 1_000
