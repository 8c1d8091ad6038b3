"""Find the deliveries that are late under causal order. A *walk* visits all events, each one after all events that
happened before it. The walk keeps one vector per process.

The *line* of a process has the events of this process, in sequence. A *position* is an index into a line. Let V_q be
the vector of process q. Process q knows some sends of process p. V_q[p] is the position after the last of these sends.
Process q learns of sends only through its deliveries. This includes its own sends: q knows such a send only after it
has delivered the sent message, or a message that was sent causally after this send. So a message from q to itself needs
no special rule. Let p send message m at position s. **The delivery of m at q is late iff V_q[p] > s just before this
delivery.** In this case, q already knew the send of m.

**Slots.** A message carries the vector of its sender. If a process learns nothing between two sends, the vectors of the
two messages differ only in the sender's own entry. At each delivery, the walk computes this entry from the position of
the send. So the messages share one copy of the vector. The copy is stored in a *slot*. The first of these sends takes a
free slot. The slot becomes free again after all deliveries of these messages. An array has one entry for each send.
Until the walk reaches the send, the entry is the number of deliveries of the message. Then it becomes the number of the
message's slot. At a delivery, the walk knows the position of the send, so it finds the slot.

**Blocks.** Vectors have entries only for processes that send. Each of these entries is a *lane*. If the lanes do not
all fit into memory, they are divided into blocks, and the trace is walked once for each block. Each walk judges the
messages of the senders in its block. ``lane_of`` is -1 for a sender outside the block.

**Overtaking messages.** V_q[p] never decreases. So the delivery that first raises V_q[p] above s overtook m: it is q's
first delivery of a message that was sent causally after m. A *question* asks for this delivery. Questions with the same
q and p are sorted by s, and one more walk answers all questions. If there is only one question, an array ``reached`` is
used instead of vectors. ``reached[x]`` is the first position of process x that is causally after send(m). A message
that x sends at this position or later is also causally after send(m). The walk can stop at the answer.

**Chunks.** A part of a trace can be judged alone, with zero vectors at its beginning. If the delivery of m is late, the
cause is a chain of messages from send(m) to an earlier delivery at the same process. The chain begins with send(m), and
all its events happened before the late delivery. So a task sees the whole chain if it reads from one consistent cut to
another. The first cut is at or before send(m), the other is after the late delivery. The task needs no knowledge of
earlier events. A message that was sent before the first cut has no knowledge about sends after the cut. So the task
ignores such a message.

A task judges the messages sent in its *core*. In the line of process p, the core ends at ``core.end[p]``. The *halo*
follows the core. The task reads the halo to find the deliveries of these messages. A message sent in the halo is judged
by another task. But this message carries its sender's knowledge about the core, including the sender's own sends. If
the task ignored the message, it would miss most of the late deliveries in the halo.

If the last send of p that q knows is in the core, V_q[p] is the position after this send. If this send is in the halo,
V_q[p] is the end of the core. So no entry is larger than the number of events that one process has in the core. If a
narrow integer type can hold the largest of these numbers, ``known`` and the slots use this type. If one task judges a
whole trace, the core is the whole trace.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import Bytes, Ints, Longs, compiled, inner
from antecede.pipeline.kernels.walk import SENT, Flat, Segments, Slots, Vectors, arrive, depart, give_back, renew, take


class Late(NamedTuple):
    """The late deliveries. ``at`` is an array for their positions in the joined lines (event lists) of all processes.
    ``found`` has one entry: the number of positions in ``at`` so far."""

    at: Longs
    found: Longs


class Core(NamedTuple):
    """The part of a trace whose messages a task judges: the task judges a message if it was sent in this part."""

    end: Longs
    """For each process, the position at which its core ends."""
    mine: NDArray[np.uint8]
    """For each position in the joined lines (event lists) of all processes, whether this task judges the delivery at
    this position. The array is empty if the task judges all deliveries."""


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
    """Judge the deliveries in the segments with the numbers from ``begin`` to ``end`` - 1. A segment has consecutive
    events of one process. Return the number of the segment at which to continue, or ``end`` if all segments were
    judged.

    The kernel stops early if ``late`` is full, or if no slot (memory for the vector of a message) is free.
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
    """Find the questions whose answer is the delivery at position ``at``, and store ``at`` as their answer. A question
    asks which delivery overtook a given late delivery. Only unanswered questions about late deliveries at the same
    process are examined. Call this function before the knowledge from the delivery is merged into the vector of the
    process."""
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
    """Search for the delivery that overtook a late message. ``asker`` is the process that delivered this message late.
    The overtaking delivery is the first delivery at this process whose message was sent causally after the late
    message. Only the first ``count`` entries of ``segments`` are searched. Return the flat position of the delivery, or
    -1 if it is not in these segments.

    ``reached`` has, for each process, the first position that is causally after the send of the late message. The
    function updates this array. The caller passes the same array to all calls. Before the first call, the entry of the
    sender is the position of the send, and all other entries are a very large number.
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


# Find the deliveries that are late under FIFO order. A delivery is late if its process had already delivered a message
# that the same sender sent later.


@compiled
def fifo(
    offsets: Longs, source: Ints, argument: Ints, first: int, last: int, newest: Longs, seen_by: Ints, late: Longs,
    counts: Longs,
) -> int:  # fmt: skip
    """Find the late deliveries of the processes from ``first`` to ``last`` (exclusive), and add their positions to
    ``late``. Stop before a process if the array ``late`` has too few free entries for all events of this process.
    Return the process at which to continue, or ``last`` if all processes are done."""
    for process in range(first, last):
        if counts[0] + offsets[process + 1] - offsets[process] > len(late):
            return process
        for at in range(offsets[process], offsets[process + 1]):
            sender = source[at]
            if sender >= 0:
                if seen_by[sender] != process:
                    seen_by[sender] = process
                    newest[sender] = -1
                if argument[at] < newest[sender]:
                    late[counts[0]] = at
                    counts[0] += 1
                else:
                    newest[sender] = argument[at]
    return last


@compiled
def fifo_overtakers(
    start: int, end: int, source: Ints, argument: Ints, senders: int, late: Longs, answer: Longs
) -> None:
    """Find, for each late delivery of one process, the delivery that overtook it. This is the first delivery, at the
    same process, of a message that the same sender sent after the late message. Write the position of this delivery to
    ``answer``.

    A delivery is a candidate if its message is newer than all messages of the same sender that were delivered earlier.
    The answer for a late delivery is the first candidate of the same sender whose message is newer than the late
    message. The candidates of each sender are stored in the sequence of the deliveries. Each of them has a newer
    message than the candidate before it, so a binary search finds the answer.
    """
    room = np.zeros(senders + 1, np.int64)
    for at in range(start, end):
        if source[at] >= 0:
            room[source[at] + 1] += 1
    for sender in range(senders):
        room[sender + 1] += room[sender]
    kept = np.zeros(senders, np.int64)
    newest = np.empty(room[senders], np.int64)
    asked = 0
    for at in range(start, end):
        sender = source[at]
        if sender < 0:
            continue
        base = room[sender]
        if kept[sender] and argument[at] < argument[newest[base + kept[sender] - 1]]:
            low, high = base, base + kept[sender] - 1
            while low < high:
                middle = (low + high) // 2
                if argument[newest[middle]] > argument[at]:
                    high = middle
                else:
                    low = middle + 1
            if asked < len(late) and late[asked] == at:
                answer[asked] = newest[low]
                asked += 1
        else:
            newest[base + kept[sender]] = at
            kept[sender] += 1


# Check whether the recorded clocks agree with the events. :mod:`antecede.trace.clocks` explains the rules.
#
# There are two rules for vector clocks, and both check each entry of a clock separately. A recorded clock is wrong if
# one of its entries is wrong. So the entries can be checked in blocks, with one walk over all events for each block. An
# entry belongs to one process p. At each event, the walk has two numbers for each entry. ``known`` is the number of p's
# events in the past of the event. ``floor`` is the largest value of this entry in all clocks that were recorded in this
# past.


class Recorded(NamedTuple):
    """The recorded vector clocks, in the order of their flat positions. A flat position is an index into the arrays
    that contain the lines of all processes, one after the other."""

    at: Longs
    """The flat positions that have a clock, ascending."""
    first: Longs
    """For each clock, the index of its first entry in the arrays ``name`` and ``entry``."""
    name: Ints
    entry: Longs
    own: Longs
    """The own entries of all clocks, sorted by process and then by value. The own entry of a clock is its entry for the
    process that recorded the clock, or 0 if the clock has no such entry."""
    indices: Longs
    """For each flat position, the index of the event there. The array is empty if the index of every event is equal to
    its position in the line."""


@compiled
def clocks(
    lines: Flat,
    segments: Segments,
    begin: int,
    end: int,
    low: int,
    exact: bool,
    recorded: Recorded,
    known: Longs,
    floor: Longs,
    slots: Slots,
    disagrees: Bytes,
) -> int:
    """Check the clocks in the segments from number ``begin`` to ``end`` - 1. A segment has consecutive events of one
    process. Set ``disagrees`` for each wrong clock. Return the segment at which to continue: ``end``, or an earlier
    segment if no slot was free.

    Only one block of entries is checked. Each name that occurs in clocks has a number. The block contains the entries
    for the names from number ``low`` on, one name for each column of ``known``. A slot contains the values of ``known``
    and then those of ``floor``.
    """
    offsets, source, argument = lines.offsets, lines.source, lines.argument
    clocked, first, indices, carried = recorded.at, recorded.first, recorded.indices, slots.rows
    lanes = known.shape[1]
    processes = len(offsets) - 1
    entries = np.zeros(lanes, np.int64)
    for s in range(begin, end):
        process = segments.process[s]
        base = offsets[process]
        c = np.searchsorted(clocked, base + segments.begin[s])
        for position in range(segments.begin[s], segments.end[s]):
            at = base + position
            sender = source[at]
            if sender == SENT and argument[at] > 0 and slots.left[0] == 0:
                segments.begin[s] = position
                return s
            if sender >= 0:
                sent = argument[at]
                slot = argument[offsets[sender] + sent]
                for k in range(lanes):
                    known[process, k] = max(known[process, k], carried[slot, k])
                    floor[process, k] = max(floor[process, k], carried[slot, lanes + k])
                if low <= sender < low + lanes:
                    known[process, sender - low] = max(known[process, sender - low], sent + 1)
                give_back(slots, slot)
            if c < len(clocked) and clocked[c] == at:
                entries[:] = 0
                for e in range(first[c], first[c + 1]):
                    if low <= recorded.name[e] < low + lanes:
                        entries[recorded.name[e] - low] = recorded.entry[e]
                for k in range(lanes):
                    other = low + k
                    reached = 0
                    if other < processes:
                        reached = position + 1 if other == process else known[process, k]
                    if exact:
                        wanted = 0
                        if reached > 0:
                            wanted = reached if len(indices) == 0 else indices[offsets[other] + reached - 1] + 1
                        if entries[k] != wanted:
                            disagrees[c] = 1
                    else:
                        if floor[process, k] > 0 and entries[k] < floor[process, k]:
                            disagrees[c] = 1
                        if other < processes:
                            a = np.searchsorted(clocked, offsets[other])
                            b = np.searchsorted(clocked, offsets[other + 1])
                            past = np.searchsorted(clocked, offsets[other] + reached)
                            if np.searchsorted(recorded.own[a:b], entries[k], side="right") != past - a:
                                disagrees[c] = 1
                    floor[process, k] = max(floor[process, k], entries[k])
                c += 1
            if sender == SENT and argument[at] > 0:
                slot = take(slots, argument[at])
                for k in range(lanes):
                    carried[slot, k] = known[process, k]
                    carried[slot, lanes + k] = floor[process, k]
                argument[at] = slot
    return end


@compiled
def lamport(lines: Flat, clocked: Longs, value: Longs) -> int:
    """Return the number of Lamport clocks that are too small. A clock must be larger than the previous Lamport clock in
    the same process. At a delivery, it must also be larger than the clock of the send."""
    offsets, source, argument = lines.offsets, lines.source, lines.argument
    disagree = 0
    for process in range(len(offsets) - 1):
        start = np.searchsorted(clocked, offsets[process])
        end = np.searchsorted(clocked, offsets[process + 1])
        for c in range(start, end):
            at = clocked[c]
            wrong = c > start and value[c] <= value[c - 1]
            if source[at] >= 0 and not wrong:
                send = offsets[source[at]] + argument[at]
                k = np.searchsorted(clocked, send)
                wrong = k < len(clocked) and clocked[k] == send and value[c] <= value[k]
            disagree += wrong
    return disagree
