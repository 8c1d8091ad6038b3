"""Runs the reactions that are due, and tries failed ones again.

A batch of plain handlers runs at once, between two steps of the machine; one with an ``async`` handler becomes a task,
and its agent's mailbox waits for it while all others go on. What became of a batch is an input of the next step.

A reaction that raises, whatever it raises, is tried again after a pause, then a longer one; its agent reacts to nothing
else meanwhile. After the last try the letter is dead, with the reason. What the batch did before the failing letter
stands.
"""

import asyncio
from collections.abc import Callable
from time import time

from antecede import limits, telemetry
from antecede.engine import React, died
from antecede.engine.host import Host, Outcome
from antecede.interrupts import is_ctrl_c
from antecede.runtime.logs import ServerLog
from antecede.server.items import Reacted
from antecede.whereabouts import described


class Reactions:
    """The agents of one server at work."""

    def __init__(self, host: Host, submit: Callable[[Reacted], None], log: ServerLog) -> None:
        self.host = host
        spans = telemetry.spans(host.server)
        if spans is not None:
            host.watches.append(spans)
        self._submit = submit
        self._log = log
        self._tries: dict[str, tuple[str, int]] = {}
        """For each agent that has trouble: the letter, and how often it was tried."""
        self._async: dict[str, bool] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pauses: set[asyncio.TimerHandle] = set()
        self._stopped = False
        self.reacting = ""
        """The agent whose plain handlers run at this moment."""
        self.done = 0
        self.failed = 0
        self.dead = 0

    @property
    def busy(self) -> int:
        """Batches under way or waiting for their next try."""
        return len(self._tasks) + len(self._pauses)

    def run(self, due: React) -> None:
        """React to a batch; its outcome is submitted sooner or later."""
        if self._stopped:
            return
        trouble = self._tries.get(due.agent)
        if trouble is not None and trouble[0] == due.letters[0].id:
            self._later(due, trouble[1])
        else:
            self._now(due)

    def stop(self) -> None:
        """Begin nothing more; what is under way is given up, and will be reacted to after the next start."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        for pause in self._pauses:
            pause.cancel()
        self._pauses.clear()

    def _now(self, due: React) -> None:
        is_async = self._async.get(due.agent)
        if is_async is None:
            is_async = self._async[due.agent] = self.host.is_async(due.agent)
        if is_async:
            task = asyncio.get_running_loop().create_task(self._await(due))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        self.reacting = due.agent
        try:
            outcome = self.host.react(due)
        except BaseException as error:
            outcome = self._broken(due, error)
        self.reacting = ""
        self._finish(due, outcome)

    async def _await(self, due: React) -> None:
        try:
            # Cancelled, when the server stops, it fails as well; nobody looks at its outcome then.
            outcome = await self.host.react_async(due)
        except BaseException as error:
            outcome = self._broken(due, error)
        if not self._stopped:
            self._finish(due, outcome)

    def _broken(self, due: React, error: BaseException) -> Outcome:
        """Nothing of the batch stands: the agent cannot be woken, or whoever looks on raised."""
        if is_ctrl_c(error):
            raise error
        self.host.forget(due.agent)
        return Outcome(due.agent, [], None, error)

    def _later(self, due: React, tries: int) -> None:
        handle: asyncio.TimerHandle

        def again() -> None:
            self._pauses.discard(handle)
            self._now(due)

        pause = limits.reaction_pause_seconds * 2 ** (tries - 1)
        handle = asyncio.get_running_loop().call_later(pause, again)
        self._pauses.add(handle)

    def _finish(self, due: React, outcome: Outcome) -> None:
        reactions = outcome.reactions
        self.done += len(reactions)
        if outcome.failure is not None:
            letter = due.letters[len(reactions)]
            before = self._tries.get(due.agent, ("", 0))
            tries = before[1] + 1 if before[0] == letter.id else 1
            self.failed += 1
            reason = described(outcome.failure)
            self._log.warning(
                "reaction-failed",
                raised=outcome.failure if tries == 1 else None,
                agent=due.agent,
                letter=letter.id,
                type=letter.type,
                tries=tries,
                reason=reason,
            )
            if tries >= limits.reaction_tries_max:
                self._tries.pop(due.agent, None)
                reactions.append(died(letter, reason[:_reason_chars], self.host.check))
            else:
                self._tries[due.agent] = (letter.id, tries)
        elif due.agent in self._tries:
            del self._tries[due.agent]
        if reactions:
            for reaction in reactions:
                if reaction.dead:
                    self.dead += 1
                    self._log.warning("dead-letter", agent=due.agent, letter=reaction.letter, reason=reaction.dead)
            self._submit(Reacted(due.agent, tuple(reactions), outcome.state, int(time() * 1000)))
        else:
            self._later(due, self._tries[due.agent][1])


_reason_chars = 1_000
