"""Late deliveries by causal order, along a walk, with one vector per process.

Let V_q be process q's vector: for each sender p, the position after the last send of p that deliveries brought to q's
knowledge. **A delivery of m, sent by p at position s, at q is late iff V_q[p] > s just before it**: its
send was already in q's past. V_q[q] is what came back to q, so that a message to oneself needs no rule of its own.

**What a message carries.** Sends of one process with no new knowledge between them differ in their own entry alone,
which is their position. So they share one copy of the vector, a *slot*, which is taken when the first of them is sent
and given back when the last of them was delivered for the last time. The number of a message's slot is written where
its send had the number of awaited deliveries, so that a delivery finds it by position.

**Blocks.** Only entries of senders are kept, in lanes; if there are more lanes than fit, the trace is walked once for
each block of lanes, and a block decides the messages of its own senders. ``lane_of`` is -1 outside the block.

**Who overtook.** V_q[p] only grows, so the delivery that first raised it beyond s is the first that q made of a message
sent causally after m. The questions of one (q, p) are sorted by s, and one more walk answers all of them. A single
question needs no vectors: ``reached[x]`` is the first position of process x that follows send(m). A message that x
sends there or later carries that knowledge, and the walk can stop at the answer.

**Chunks.** A part of a trace can be judged alone, from zero vectors at its beginning. Whatever makes a delivery of m
late is a chain of messages from send(m) to a delivery before deliver(m) at the same process; all of it lies between the
two in happened-before. So a task that reads from a consistent cut at or before send(m) to one behind deliver(m) sees
all of it, and may know nothing of what was before: a message sent before the first cut carries nothing about sends
after it, and is no message here.

Judged are messages sent in the *core*, up to ``core[p]`` in process p's line; what follows is the halo, read on for
their deliveries. A message sent in the halo is judged elsewhere, but it carries what its sender knows of the core, its
sender's own sends among it: without that, most violations that reach into the halo are missed. Counters hold positions
in the core plus one, and a send in the halo counts as the core's end. So they are never larger than the longest core of
a line, and ``known`` and the slots are of whatever unsigned type holds that. The core of a whole trace is the trace.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled
from antecede.pipeline.kernels.slots import Flat, Ints, Longs, Segments, Slots, Vectors, arrive, depart, renew
from antecede.pipeline.kernels.walk import SENT


class Late(NamedTuple):
    """Late deliveries, as many as ``found`` says, by their flat positions."""

    at: Longs
    found: Longs


class Core(NamedTuple):
    """Which messages are judged."""

    end: Longs
    """For each process the position at which its core ends."""
    mine: NDArray[np.uint8]
    """For each flat position whether the delivery there is to be judged; empty if all are."""


class Questions(NamedTuple):
    """Late deliveries whose overtaking one is asked for."""

    asker: Ints
    """A process's row in the table of questions, or -1."""
    first: Longs
    """For each row and lane the next question without an answer."""
    last: Longs
    sent: Ints
    answer: Longs


def no_questions(processes: int) -> Questions:
    """Nothing is asked."""
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
    """Judge the segments from ``begin`` to ``end``; the segment to go on with, which is ``end`` when all were judged.

    It stops early when no slot is free or ``late`` is full.
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
                    # A chunk that is not to judge it can leave it all the same: it brings nothing new.
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


@compiled
def _answer(
    at: int, process: int, slot: int, lane: int, sent: int, vectors: Vectors, slots: Slots, questions: Questions
) -> None:
    """Answer the questions of a process that this delivery, before it is taken in, is the first to answer."""
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
    """Follow what comes after one send along some segments; the first delivery at ``asker`` that brings it, or -1.

    ``reached`` is carried from call to call: for each process the first position that follows the send, which is at
    first its own position in its own line and beyond the end of all others.
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
