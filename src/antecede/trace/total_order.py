"""Total and synchronous order as one question: can several sequences of messages be merged into one sequence?

There is one sequence per process. For total order, it has the deliveries of the process. For synchronous order, it has
all sends and deliveries of the process (Garg §12.1, §12.3). Message a *comes before* another message b if some sequence
has a before b. The sequences can be merged iff this relation has no cycle. To find out, messages are *released* one
after the other. A message is released as soon as it is at the head of every sequence in which it still occurs. If
several messages can be released, any of them may be released first. The result is always the same: the same messages
are released, and the same messages remain. If one sequence contains a message twice, with another message in between,
the repeated message comes both before and after the other message. So the repeated message can never be released.

**The witness.** When no message can be released, every remaining message is blocked: in some sequence another remaining
message comes before it. Take the first sequence in which the message is blocked. The *blocker* of the message is the
first other remaining message in this sequence. To find a cycle, start with the head of the first sequence that has a
remaining message. Go from each message to its blocker, until a message x occurs for the second time. The messages from
the first to the second occurrence of x are a cycle. In the returned list, each message comes before the next one, and
the last message comes before the first one. The list begins with the smallest id. The cycle depends on the trace alone,
and in practice it is short.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby


def cycle_in(sequences: Sequence[Sequence[str]]) -> list[str] | None:
    """Return ``None`` if the sequences can be merged into one sequence. Otherwise return a cycle of messages:
    each message comes before the next one (in at least one sequence), and the last one comes before the first one."""
    # The same message twice in a row counts once.
    lines = [[message for message, _ in groupby(sequence)] for sequence in sequences]
    occurrences = Counter(message for line in lines for message in line)
    cursors = [0] * len(lines)
    at_head: dict[str, list[int]] = {}
    ready: list[str] = []

    def bring_to_head(process: int) -> None:
        line, position = lines[process], cursors[process]
        if position < len(line):
            message = line[position]
            heads = at_head.setdefault(message, [])
            heads.append(process)
            if len(heads) == occurrences[message]:
                ready.append(message)

    for process in range(len(lines)):
        bring_to_head(process)
    while ready:
        for process in at_head.pop(ready.pop()):
            cursors[process] += 1
            bring_to_head(process)
    remaining = [line[position:] for line, position in zip(lines, cursors, strict=True)]
    return _witness(remaining) if any(remaining) else None


def _witness(stuck: list[list[str]]) -> list[str]:
    homes: dict[str, dict[int, int]] = {}
    for process, line in enumerate(stuck):
        for position, message in enumerate(line):
            homes.setdefault(message, {})[process] = position

    def blocker(message: str) -> str:
        for process, last in homes[message].items():
            line = stuck[process]
            if line[0] != message:
                return line[0]
            if last > 0:
                return line[1]
        raise AssertionError(f"message {message} remains, but no other message blocks it")

    path: list[str] = []
    seen: dict[str, int] = {}
    message = next(line for line in stuck if line)[0]
    while message not in seen:
        seen[message] = len(path)
        path.append(message)
        message = blocker(message)
    # The walk went from each message to one that comes before it.
    cycle = path[seen[message] :][::-1]
    least = cycle.index(min(cycle))
    return cycle[least:] + cycle[:least]


def agree_pairwise(sequences: Sequence[Sequence[str]]) -> bool:
    """Return whether every two sequences have their common messages in the same order. A sequence must not repeat a
    message."""
    homes: dict[str, list[tuple[int, int]]] = {}
    for process, line in enumerate(sequences):
        for position, message in enumerate(line):
            homes.setdefault(message, []).append((process, position))
    for process, line in enumerate(sequences):
        reached: dict[int, int] = {}
        for message in line:
            for other, position in homes[message]:
                if other > process:
                    if position < reached.get(other, -1):
                        return False
                    reached[other] = position
    return True
