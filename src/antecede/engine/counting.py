"""Counts the letters in mailboxes, and their memory. Both numbers are exact when they are requested. Between two
requests, counting takes almost no time.

Most letters are handled soon, so a letter is counted only if it is still in its mailbox when the numbers are requested.
The letters of one mailbox are counted in groups of consecutive letters, called *runs*. For each run, only the number of
letters and the number of their bytes are kept. So removing letters costs time per run, not per letter. If letters of a
run were removed, the next request counts the remaining letters of this run again. A multicast may also be in other
mailboxes. So if a run contains a multicast, the letters of this run are counted one by one.
"""

from collections import deque
from itertools import islice

import msgspec

from antecede.channel.footprint import Footprint, plain_bytes
from antecede.channel.letters import Letter


class _Run(msgspec.Struct, gc=False):
    """Consecutive letters of one mailbox that were counted together."""

    letters: int
    bytes: int | None
    """The bytes of these letters. If one of the letters is a multicast, the value is ``None``, and each letter of the
    run is added to the footprint individually."""
    begun: bool = False
    """Whether letters of this run were removed since ``bytes`` was counted."""


class Counting:
    """Counts the letters in the mailboxes of one engine."""

    def __init__(self) -> None:
        self.footprint = Footprint()
        """The number and the memory of all counted letters. Other parts of the server add held letters and timers to
        this footprint."""
        self.changed: set[str] = set()
        """The agents whose mailboxes must be counted again: new letters may have come, or some of the
        counted letters were removed."""
        self.runs: dict[str, list[_Run]] = {}
        """For each agent, the counted letters of its mailbox, from the head of the mailbox on."""

    def look(self, mailboxes: dict[str, deque[Letter]]) -> None:
        """Count the letters that came since the last call. If some letters of a *run* (a group of letters that were
        counted together) were removed, count the remaining letters of this run again."""
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
        """Record that these letters were removed from the head of the agent's mailbox. The agent must be in
        ``runs``."""
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
"""The largest number of letters in one *run* (a group of letters that are counted together). After a removal, at most
this many letters are counted again."""
