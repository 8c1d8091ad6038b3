"""The number of letters in mailboxes, and their memory. Both are exact when they are requested. Between two requests,
counting takes almost no time.

Most letters are handled soon, so a letter is counted only if it is still there when the count is requested. Letters of
one mailbox are counted in *runs*; only the number of letters and their bytes are kept for a run. So removing letters
costs time per run, not per letter. The next count examines again the rest of a run from which letters were removed. If
a run has multicasts, which other mailboxes may hold too, its letters are counted one by one.
"""

from collections import deque
from itertools import islice

import msgspec

from antecede.channel.footprint import Footprint, plain_bytes
from antecede.channel.letters import Letter


class _Run(msgspec.Struct, gc=False):
    """Consecutive letters in a mailbox."""

    letters: int
    bytes: int | None
    """The bytes of these letters; ``None``: the letters are counted one by one."""
    begun: bool = False
    """Whether letters were removed since ``bytes`` was counted."""


class Counting:
    """Counts the letters in the mailboxes of one engine."""

    def __init__(self) -> None:
        self.footprint = Footprint()
        """All counted letters; also held letters and timers, which other parts of the server add."""
        self.changed: set[str] = set()
        """Agents whose mailboxes may have letters that are not counted, or a run with removed letters."""
        self.runs: dict[str, list[_Run]] = {}
        """The counted letters of each agent."""

    def look(self, mailboxes: dict[str, deque[Letter]]) -> None:
        """Count the letters that came since the last call. Count again the rest of each run from which letters were
        removed."""
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
            assert left is not None, "a run without multicasts cannot get one later"
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
        """Record that these letters were removed from the head of a mailbox that is in ``runs``."""
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
"""The largest number of letters in one run. At most this many letters are counted again after a removal."""
