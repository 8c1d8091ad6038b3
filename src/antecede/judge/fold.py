"""Fold the summaries of consecutive windows: the true vectors at each cut, and the verdict on messages that cross cuts.

The fold knows V_p of each process at the present cut, and of each message in transit its sender, index, carried vector
and remaining destinations. A summary says what a process knew of its window (a row L of
:mod:`antecede.judge.window`). The true vector is then, for each t, the largest of

* L[t], the sends of t in the window;
* V_r[t] at the cut, for each process r of which L knows a row (L[r] > 0), and for the process itself;
* what the cross deliveries of r with an index below L[r] carried, for these r (for the process itself: all earlier).

This is exact, because a past is a prefix: whoever knows a row of r knows all earlier rows of r and what they knew, and
L contains the rows of further processes that r knew. The carried vectors of r's cross deliveries are kept as prefix
maxima, so one entry of a true vector costs O(processes), however many cross deliveries there are.

A summary is checked before anything is changed: each process goes on where it ended, each cross delivery belongs to a
message in transit that still has this destination, and nothing in transit is sent again. What fails is not clean
(:class:`NotCleanError`), and the caller takes the exact path.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.judge.window import Ints, NotCleanError, Numbers, Summary
from antecede.pipeline.kernels import compiled


class CrossLate(NamedTuple):
    """Late deliveries among the cross deliveries of a window, as numbers of its rows."""

    fifo: Ints
    causal: Ints


class Fold:
    """The state at the present cut."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self.known = np.zeros((processes, processes), np.int64)
        """V of each process."""
        self.newest = np.zeros((processes, processes), np.int64)
        """For FIFO order: 1 + the largest send index delivered, by receiver and sender."""
        self.last = np.full(processes, -1, np.int64)
        """The index at which each process ends."""
        self.rows = self.messages = self.deliveries = 0
        self.late_fifo = self.late_causal = 0
        self._places: dict[int, int] = {}
        """The place of each message in transit in the arrays below."""
        self._source = np.zeros(0, np.int32)
        self._index = np.zeros(0, np.int64)
        self._carried = np.zeros((0, processes), np.int64)
        self._remaining: list[set[int]] = []

    @property
    def in_transit(self) -> int:
        """The number of messages that have not been delivered everywhere."""
        return len(self._places)

    @property
    def undelivered(self) -> int:
        """The number of pairs of a message and a destination that has not delivered it."""
        return sum(len(self._remaining[place]) for place in self._places.values())

    def add(self, summary: Summary) -> CrossLate:
        """Go on to the next cut. Return the late deliveries among the messages that crossed the present one."""
        places = self._check(summary)
        cross, transit = summary.cross, summary.transit
        source, sent = self._source[places], self._index[places]
        carried = self._carried[places]
        carried[np.arange(len(places)), source] = sent + 1
        # The cross deliveries by receiver, in the sequence of their indices, with prefix maxima of what they carried.
        order = np.lexsort((cross.at, cross.process))
        begin = np.searchsorted(cross.process[order], np.arange(self.processes + 1)).astype(np.int64)
        past = _Past(begin, cross.at[order], carried[order], self.known)
        late = _judge(past, cross.known[order], source[order], sent[order], self.newest, summary.since)
        resolved = _resolve(transit.known, transit.source, transit.at, past)
        everybody, end = np.arange(self.processes, dtype=np.int32), np.full(self.processes, np.iinfo(np.int64).max)
        self.known = _resolve(summary.known, everybody, end, past)
        np.maximum(self.newest, summary.newest, out=self.newest)
        self.last = np.where(summary.last >= 0, summary.last, self.last)
        self._move(summary, places, resolved)
        rows = cross.row[order]
        found = CrossLate(np.sort(rows[(late & 1) > 0]), np.sort(rows[(late & 2) > 0]))
        self.rows += summary.rows
        self.messages += len(summary.sent)
        self.deliveries += summary.deliveries
        return found

    def _check(self, summary: Summary) -> Ints:
        """Return the places of the messages that cross the present cut into this window."""
        if np.any((summary.first >= 0) & (summary.first <= self.last)):
            raise NotCleanError("a process does not go on after the index at which it ended")
        crossed = summary.cross.message.tolist()
        places = [self._places.get(message, -1) for message in crossed]
        taken: set[tuple[int, int]] = set()
        for place, receiver in zip(places, summary.cross.process.tolist(), strict=True):
            if place < 0 or receiver not in self._remaining[place] or (place, receiver) in taken:
                raise NotCleanError(
                    "a delivery without a send before it, or one more than the message has destinations"
                )
            taken.add((place, receiver))
        if not self._places.keys().isdisjoint(summary.sent.tolist()):
            raise NotCleanError("a message was sent twice")
        return np.array(places, np.int64)

    def _move(self, summary: Summary, places: Ints, resolved: Ints) -> None:
        """Remove what was delivered everywhere, and add what the window leaves in transit."""
        for place, receiver in zip(places.tolist(), summary.cross.process.tolist(), strict=True):
            self._remaining[place].discard(receiver)
        kept = [(message, place) for message, place in self._places.items() if self._remaining[place]]
        stay = np.array([place for _, place in kept], np.int64)
        transit = summary.transit
        self._source = np.concatenate([self._source[stay], transit.source])
        self._index = np.concatenate([self._index[stay], transit.at])
        self._carried = np.concatenate([self._carried[stay], resolved])
        bounds = transit.destinations.tolist()
        to = transit.to.tolist()
        self._remaining = [self._remaining[place] for _, place in kept]
        self._remaining += [set(to[b:e]) for b, e in pairwise(bounds)]
        names = [message for message, _ in kept] + transit.message.tolist()
        self._places = {message: place for place, message in enumerate(names)}


class _Past(NamedTuple):
    """What was known at the present cut, and what the cross deliveries of the window brought."""

    begin: Ints
    """The cross deliveries of process r have the places from ``begin[r]`` to ``begin[r + 1]`` - 1."""
    at: Ints
    """The index of each cross delivery; the indices of a process rise."""
    brought: Ints
    """What each cross delivery carried; :func:`_judge` makes it the maxima over those of the same process so far."""
    state: Ints
    """V of each process at the cut."""


@compiled
def _judge(past: _Past, known: Ints, source: Numbers, sent: Ints, newest: Ints, since: Ints) -> NDArray[np.uint8]:
    """Judge the cross deliveries. First make the maxima of what they brought: a delivery may know cross deliveries of
    other processes that come later in this array."""
    begin, at, brought, state = past
    processes = state.shape[0]
    late = np.zeros(len(at), np.uint8)
    for q in range(processes):
        for k in range(begin[q] + 1, begin[q + 1]):
            for t in range(processes):
                if brought[k - 1, t] > brought[k, t]:
                    brought[k, t] = brought[k - 1, t]
    for q in range(processes):
        for k in range(begin[q], begin[q + 1]):
            s, i = source[k], sent[k]
            if newest[q, s] > i + 1 or (since[q, s] >= 0 and since[q, s] < at[k]):
                late[k] |= 1
            elif newest[q, s] < i + 1:
                newest[q, s] = i + 1
            top = known[k, s]
            for r in range(processes):
                if r == q or known[k, r] > 0:
                    before = at[k] if r == q else known[k, r]
                    count = np.searchsorted(at[begin[r] : begin[r + 1]], before)
                    top = max(top, state[r, s])
                    if count:
                        top = max(top, brought[begin[r] + count - 1, s])
            if top > i:
                late[k] |= 2
    return late


@compiled
def _resolve(rows: Ints, owner: Numbers, limit: Ints, past: _Past) -> Ints:
    """Return the true vector of each row L. ``owner``: whose knowledge it is; ``limit``: the index before which the
    owner knows its own cross deliveries."""
    begin, at, brought, state = past
    processes = state.shape[0]
    resolved = rows.copy()
    for k in range(len(rows)):
        result = resolved[k]
        for r in range(processes):
            if r == owner[k] or rows[k, r] > 0:
                before = limit[k] if r == owner[k] else rows[k, r]
                count = np.searchsorted(at[begin[r] : begin[r + 1]], before)
                for t in range(processes):
                    result[t] = max(result[t], state[r, t])
                    if count:
                        result[t] = max(result[t], brought[begin[r] + count - 1, t])
    return resolved
