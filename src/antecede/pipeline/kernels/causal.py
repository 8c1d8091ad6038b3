"""Late deliveries by causal order, along a walk, with one vector per process.

A *position* is the index of an event in the line of its process. Let V_q be the vector of process q. V_q[p] is the
position after the last send of process p that q knows. Process q learns of sends only through its deliveries. Let p
send message m at position s. **The delivery of m at q is late iff V_q[p] > s just before this delivery.** Then the send
of m was already in q's past. The same holds for V_q[q]: it covers a send of q only when q has delivered a message that
depends on this send. So a message to oneself needs no special rule.

**Slots.** A message carries the vector of its sender. If a process learns nothing between two sends, the vectors of the
two messages differ only in the sender's own entry. This entry is the position of the send. So the messages share one
copy of the vector, a *slot*. The slot is taken for the first of these sends. It is free again after the last delivery
of all these messages. An array has one entry for each send. Before the send, the entry is the number of deliveries that
are still to come. From the send on, the entry is the number of the message's slot. A delivery knows the position of its
send, so it finds the slot.

**Blocks.** Vectors have entries only for processes that send. Each of these entries is a *lane*. If there are more
lanes than fit into memory, the trace is walked once for each block of lanes. Each walk judges the messages of the
senders in its block. ``lane_of`` is -1 for a sender outside the block.

**Overtaking messages.** V_q[p] only grows. So the delivery that first raises V_q[p] above s is the first delivery at q
of a message that was sent causally after m. A *question* asks for this delivery. Questions with the same q and p are
sorted by s, and one more walk answers all questions. A single question needs no vectors, only an array ``reached``. Its
entry ``reached[x]`` is the first position of process x that is causally after send(m). A message that x sends at this
position or later is also causally after send(m). The walk can stop at the answer.

**Chunks.** A part of a trace can be judged alone, with zero vectors at its beginning. If the delivery of m is late, the
cause is a chain of messages from send(m) to an earlier delivery at the same process. In happened-before, the whole
chain lies between send(m) and the late delivery. So a task sees the whole chain if it reads from one consistent cut to
another. The first cut is at or before send(m), the other is after the late delivery. The task needs no knowledge of
earlier events. A message that was sent before the first cut carries nothing about sends after the cut. So the task
ignores such a message.

A task judges the messages sent in its *core*. In the line of process p, the core ends at ``core.end[p]``. The *halo*
follows the core. The task reads the halo to find the deliveries of these messages. A message sent in the halo is judged
by another task. But this message carries its sender's knowledge about the core, including the sender's own sends. If
the task ignored the message, it would miss most violations that reach into the halo.

An entry of a vector is the position after a send in the core. For a send in the halo, the entry is the end of the core.
So an entry is never larger than the longest core of a line. If a narrow integer type can hold this length, ``known``
and the slots use it. If a whole trace is judged in one task, its core is the whole trace.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled, inner
from antecede.pipeline.kernels.slots import Flat, Ints, Longs, Segments, Slots, Vectors, arrive, depart, renew
from antecede.pipeline.kernels.walk import SENT


class Late(NamedTuple):
    """The late deliveries: ``at`` is an array for their positions in the joined lines of all processes. ``found`` has
    one entry, the number of positions in ``at`` so far."""

    at: Longs
    found: Longs


class Core(NamedTuple):
    """The messages that a task judges: those sent in its core."""

    end: Longs
    """For each process, the position at which its core ends."""
    mine: NDArray[np.uint8]
    """For each position in the joined lines of all processes, whether this task judges the delivery at this position.
    The array is empty if the task judges all deliveries."""


class Questions(NamedTuple):
    """A table of questions. Each question asks which delivery overtook a given late delivery."""

    asker: Ints
    """For each process, its row in the table of questions; -1 if there are no questions about its deliveries."""
    first: Longs
    """For each row and each lane (sender), the number of the next question that has no answer yet."""
    last: Longs
    sent: Ints
    answer: Longs


def no_questions(processes: int) -> Questions:
    """Return an empty table of questions."""
    nothing = np.zeros((0, 0), np.int64)
    return Questions(np.full(processes, -1, np.int32), nothing, nothing, np.zeros(0, np.int32), np.zeros(0, np.int64))


@compiled
def causal(
    lines: Flat,
    segments: Segments,
    begin: int,
    end: int,
    vectors: Vectors,
    slots: Slots,
    core: Core,
    late: Late,
    questions: Questions,
) -> int:
    """Judge the segments (stretches of lines) with the numbers from ``begin`` to ``end`` - 1. Return the number of the
    segment at which to continue, or ``end`` if all segments were judged.

    The kernel stops early if no slot is free or ``late`` is full.
    """
    offsets, source, argument = lines.offsets, lines.source, lines.argument
    known, carried = vectors.known, slots.rows
    lanes = known.shape[1]
    for s in range(begin, end):
        process = segments.process[s]
        base = offsets[process]
        asking = questions.asker[process] >= 0
        for position in range(segments.begin[s], segments.end[s]):
            at = base + position
            sender = source[at]
            if sender == SENT:
                if argument[at] > 0 and not depart(process, at, argument, vectors, slots):
                    segments.begin[s] = position
                    return s
            elif sender >= 0:
                if late.found[0] == len(late.at):
                    segments.begin[s] = position
                    return s
                sent = argument[at]
                slot = argument[offsets[sender] + sent]
                lane = vectors.lane_of[sender]
                if lane >= 0 and known[process, lane] > sent:
                    # If this chunk does not judge the delivery, it can skip it: the delivery brings no new knowledge.
                    if len(core.mine) == 0 or core.mine[at]:
                        late.at[late.found[0]] = at
                        late.found[0] += 1
                else:
                    if asking:
                        _answer(at, process, slot, lane, sent, vectors, slots, questions)
                    if sender != process:
                        for k in range(lanes):
                            known[process, k] = max(known[process, k], carried[slot, k])
                        renew(process, vectors, slots)
                    if lane >= 0:
                        known[process, lane] = max(known[process, lane], min(sent + 1, core.end[sender]))
                arrive(slot, sender, vectors, slots)
        if segments.end[s] == offsets[process + 1] - base:
            renew(process, vectors, slots)
    return end


@inner
def _answer(
    at: int, process: int, slot: int, lane: int, sent: int, vectors: Vectors, slots: Slots, questions: Questions
) -> None:
    """Store the delivery at position ``at`` of the joined lines as the answer to each open question that this delivery
    answers. Only questions about late deliveries at the same process are examined. Call this function before the
    knowledge from the delivery is merged into the vector of the process."""
    row = questions.asker[process]
    for k in range(vectors.known.shape[1]):
        reached = sent + 1 if k == lane else slots.rows[slot, k]
        if reached > vectors.known[process, k]:
            q = questions.first[row, k]
            while q < questions.last[row, k] and questions.sent[q] < reached:
                questions.answer[q] = at
                q += 1
            questions.first[row, k] = q


@compiled
def overtaker_of(lines: Flat, segments: Segments, count: int, asker: int, reached: Longs) -> int:
    """Follow the events after one send, along some segments of the walk. Return the first delivery at ``asker`` of a
    message that was sent causally after that send. If these segments have no such delivery, return -1.

    ``reached`` has, for each process, the first position that is causally after the send. The caller passes the same
    array to all calls. Before the first call, the entry of the sender is the position of the send, and all other
    entries are a very large number.
    """
    offsets, source, argument = lines.offsets, lines.source, lines.argument
    for s in range(count):
        process = segments.process[s]
        base = offsets[process]
        for position in range(segments.begin[s], segments.end[s]):
            sender = source[base + position]
            if sender >= 0 and argument[base + position] >= reached[sender]:
                if process == asker:
                    at: int = base + position
                    return at
                reached[process] = min(reached[process], position)
    return -1
