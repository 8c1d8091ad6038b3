"""Histograms of durations, for the metrics page of a server: the number of durations in each bucket.

The caller measures the durations. This module does not read a clock. One thread may add durations while a second thread
reads the counts. The second thread gets consistent counts. Adding a duration takes much less than a microsecond.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from operator import sub
from typing import Final

BOUNDS: Final = (
    *(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""The upper ends of the buckets, in seconds. After these, there is one more bucket without an upper end."""


class Durations:
    """A histogram of durations."""

    __slots__ = ("_counts", "seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0
        """The sum of all durations, in seconds."""

    def add(self, seconds: float) -> None:
        """Add one duration."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds

    def add_run(self, marks: list[float]) -> None:
        """Add several durations. Each duration begins when the previous one ends. ``marks``: the start of the first
        duration, and then the end of each duration, in seconds."""
        gaps = list(map(sub, marks[1:], marks))
        if not gaps:
            return
        counts = self._counts
        if max(gaps) <= BOUNDS[0]:
            counts[0] += len(gaps)
        else:
            for gap in gaps:
                counts[bisect_left(BOUNDS, gap)] += 1
        self.seconds += marks[-1] - marks[0]

    @property
    def count(self) -> int:
        """The number of durations that were added."""
        return sum(self._counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Return a pair for each bucket: its upper end, and the number of durations that are not longer than this
        value. The upper ends ascend, and the last one is infinity."""
        return zip((*BOUNDS, float("inf")), accumulate(self._counts), strict=True)
