"""All small computations: every way in which some messages can be sent and received by some processes.

A computation is, for each process, the sequence of its events; an event is the send or the receipt of one of the
messages. Each message goes from one process to one other (Garg §12.2: *a process never sends any message to itself*).
Happened-before is the transitive closure of the processes' own sequences and of send before receipt; sequences that
would make it circular are no computation. Messages are interchangeable, so each choice of their ends is made once.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement, pairwise, permutations, product

Ends = tuple[int, int]
"""(source, target) of a message."""


class Computation:
    """``s(x)`` and ``r(x)`` are the events of message x; relations are asked of pairs of events."""

    def __init__(self, ends: Sequence[Ends], lines: Sequence[tuple[int, ...]], after: list[int]) -> None:
        self.ends = ends
        self.lines = lines
        self.messages = range(len(ends))
        self._after = after
        self._place = {event: (p, i) for p, line in enumerate(lines) for i, event in enumerate(line)}

    def s(self, x: int) -> int:
        return 2 * x

    def r(self, x: int) -> int:
        return 2 * x + 1

    def happened_before(self, e: int, f: int) -> bool:
        """e → f."""
        return bool(self._after[e] >> f & 1)

    def before_locally(self, e: int, f: int) -> bool:
        """e ≺ f: e occurred before f in the same process."""
        (p, i), (q, j) = self._place[e], self._place[f]
        return p == q and i < j

    def pairs(self) -> Iterator[tuple[int, int]]:
        """All ordered pairs of different messages."""
        return permutations(self.messages, 2)

    def is_fifo(self) -> bool:
        return all(
            not (self.before_locally(self.s(x), self.s(y)) and self.before_locally(self.r(y), self.r(x)))
            for x, y in self.pairs()
        )

    def is_causal(self) -> bool:
        return all(
            not (self.happened_before(self.s(x), self.s(y)) and self.before_locally(self.r(y), self.r(x)))
            for x, y in self.pairs()
        )


def computations(messages: int, links: Sequence[Ends]) -> Iterator[Computation]:
    """Every computation of so many messages on these links."""
    processes = 1 + max(max(link) for link in links)
    for ends in combinations_with_replacement(links, messages):
        events: list[list[int]] = [[] for _ in range(processes)]
        for x, (source, target) in enumerate(ends):
            events[source].append(2 * x)
            events[target].append(2 * x + 1)
        for lines in product(*map(permutations, events)):
            after = _closure(2 * messages, lines)
            if after is not None:
                yield Computation(ends, lines, after)


def _closure(events: int, lines: Sequence[tuple[int, ...]]) -> list[int] | None:
    """For each event the set of those that it happened before, as a mask; nothing if one happened before itself."""
    after = [1 << (event + 1) if event % 2 == 0 else 0 for event in range(events)]
    for line in lines:
        for earlier, later in pairwise(line):
            after[earlier] |= 1 << later
    for middle in range(events):
        for event in range(events):
            if after[event] >> middle & 1:
                after[event] |= after[middle]
    return None if any(mask >> event & 1 for event, mask in enumerate(after)) else after
