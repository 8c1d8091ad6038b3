"""The count of the letters in mailboxes and of their memory, exact at every look, at hardly any cost in between.

Most letters are reacted to soon, so a letter is counted only if it is still there when somebody looks. Letters of one
mailbox are counted in *runs*, of which only the number of letters and their bytes are kept: taking letters off costs
something per run, not per letter. The next look counts again what is left of a run that was begun. Where a run has
multicasts, which other mailboxes may hold too, its letters are counted one by one.
"""

from collections import deque
from itertools import islice

import msgspec

from antecede.channel.footprint import Footprint, plain_bytes
from antecede.channel.letters import Letter


class _Run(msgspec.Struct, gc=False):
    """Letters next to each other in a mailbox."""

    letters: int
    bytes: int | None
    """``None``: they are counted one by one."""
    begun: bool = False
    """Some letters were taken off since ``bytes`` was counted."""


class Counting:
    """Counts what is in the mailboxes of one engine."""

    def __init__(self) -> None:
        self.footprint = Footprint()
        """All letters that are counted; also dead letters and timers, which others add."""
        self.changed: set[str] = set()
        """Agents whose mailboxes may hold letters that are not counted, or a run that was begun."""
        self.runs: dict[str, list[_Run]] = {}
        """What is counted, by agent."""

    def look(self, mailboxes: dict[str, deque[Letter]]) -> None:
        """Count what has changed since the last time."""
        changed = list(self.changed)
        self.changed.clear()
        for agent in changed:
            mailbox = mailboxes.get(agent)
            if mailbox is not None:
                self._count(self.runs.setdefault(agent, []), mailbox)

    def _count(self, runs: list[_Run], mailbox: deque[Letter]) -> None:
        footprint = self.footprint
        if runs and runs[0].begun and runs[0].bytes is not None:
            left = plain_bytes(list(islice(mailbox, runs[0].letters)))
            assert left is not None, "a run without multicasts has none later"
            footprint.bytes += left - runs[0].bytes
            runs[0] = _Run(runs[0].letters, left)
        fresh = len(mailbox) - sum(run.letters for run in runs)
        arrived = list(islice(reversed(mailbox), fresh))
        arrived.reverse()
        for start in range(0, fresh, _run_letters):
            letters = arrived[start : start + _run_letters]
            size = plain_bytes(letters)
            runs.append(_Run(len(letters), size))
            if size is None:
                for letter in letters:
                    footprint.add(letter)
            else:
                footprint.entries += len(letters)
                footprint.bytes += size

    def taken(self, agent: str, letters: list[Letter]) -> None:
        """Note that these were taken off the head of a mailbox that is in ``runs``."""
        runs = self.runs[agent]
        start = 0
        while runs and start < len(letters):
            run = runs[0]
            count = min(run.letters, len(letters) - start)
            if run.bytes is None:
                for letter in letters[start : start + count]:
                    self.footprint.remove(letter)
            else:
                self.footprint.entries -= count
            start += count
            run.letters -= count
            run.begun = True
            if not run.letters:
                del runs[0]
                self.footprint.bytes -= run.bytes or 0
        if runs:
            self.changed.add(agent)
        else:
            del self.runs[agent]


_run_letters = 256
"""Letters in one run: what is counted again, at most, because some of it was taken off."""
