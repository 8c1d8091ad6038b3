"""Find the deliveries that are late under significant order. A walk over the events keeps vectors for operation
instances and for cells (groups of instances).

:mod:`antecede.trace.significant` defines which messages an instance knows. Here, this knowledge is kept in vectors
with an entry for each sending instance. All sends are numbered in the sequence of the walk. An entry is a *serial*, the
number of a send. It means that this send and all earlier sends of the same instance are known. So one entry per
instance is enough.

**Lanes.** A lane is a position in vectors: in every vector, it is the entry of the same instance. Only messages that
are not yet delivered have to be distinguished. So an instance has a lane from its first send to the last delivery of
its messages. Then another instance can use the lane. The old values in the lane are not erased. Serials only grow, so
the old values are smaller than all serials of the other instance. If no lane is free and the walk may not add lanes, an
instance is *put off*: this walk judges none of its messages, and another walk judges all of them.

**Rows of vectors.** A running instance has three rows: its base, its knowledge, and what it received. A *cell* is a
group of instances of one object that have the same conflicts, usually all instances of one operation. A cell has two
rows: the knowledge of its completed instances, and the knowledge in the requests that its instances received. A message
that is not yet delivered has one row; its entry for the sending instance is the serial of the message. So memory is
bounded by the number of cells, running instances and undelivered messages, times the number of lanes.

**Overtaking messages.** A question asks which delivery overtook a late delivery. The question is open from the send of
the late message on. While it is open, it is in a list of the object that delivers this message. Each delivery at the
object is compared with the open questions in this list. A question is closed when its answer is found, or when the late
delivery itself is reached.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import Bytes, Ints, Longs, compiled, inner
from antecede.pipeline.kernels.walk import SENT, Flat, Segments, Slots, give_back, take

LANES, RUNS, LATE, PUT_OFF, SERIAL = range(5)
"""The positions of these numbers in ``counts``: free lanes, free rows for running instances, late deliveries found,
instances that were put off, and the last serial."""

BY_INSTANCE, BY_CONFLICT = 1, 2

REQUEST, RESPONSE = 1, 2
"""The kinds of deliveries that significant order judges. The kind of any other delivery is 0."""


class Instances(NamedTuple):
    """Operation instances: their events, where they begin and end, and what they conflict with."""

    of: Ints
    """For each event, the number of its instance; -1 if it has none. If a message is not sent by an instance, an
    additional instance is made for its send. In an additional instance, ``first`` and ``last`` are -1."""
    received_as: Bytes
    first: Longs
    last: Longs
    cell: Ints
    aborted: Bytes
    rival_from: Longs
    rivals: Ints
    request_rival_from: Longs
    request_rivals: Ints


class Lanes(NamedTuple):
    """The lane of each instance (``of``), and the free lanes. A lane is the position of an instance in every vector.
    ``wanted`` marks the instances whose messages this walk judges. For each instance, ``remaining`` counts those
    deliveries of its messages that the walk has not reached yet."""

    wanted: Bytes
    remaining: Longs
    of: Ints
    free: Ints


class Running(NamedTuple):
    """The vectors of the running instances. Each running instance has one row in ``base``, ``known`` and
    ``received``."""

    of: Ints
    free: Ints
    base: Longs
    known: Longs
    received: Longs


class Cells(NamedTuple):
    """The vectors of the cells. A cell is a group of instances of one object that have the same conflicts, usually all
    instances of one operation. Each cell has one row in ``done`` and one in ``requests``."""

    done: Longs
    requests: Longs


class QuestionLists(NamedTuple):
    """Questions, sorted by ``send`` (the send of the late message). Each question asks which delivery overtook a given
    late delivery. The open questions of each process form a linked list. It begins with the question ``head[process]``,
    and ``next`` leads from each question to the following one."""

    send: Longs
    late: Longs
    serial: Longs
    next: Ints
    head: Ints
    answer: Longs
    broken: Bytes


@compiled
def significant(
    lines: Flat,
    segments: Segments,
    begin: int,
    end: int,
    grow_lanes: bool,
    instances: Instances,
    owners: Lanes,
    running: Running,
    cells: Cells,
    slots: Slots,
    questions: QuestionLists,
    counts: Longs,
    late: Longs,
) -> int:
    """Judge the deliveries in the segments from ``begin`` to ``end`` - 1. Write the flat positions of the late ones to
    ``late``. A segment has consecutive events of one process. Return the segment at which to continue, or ``end`` if
    all were judged.

    The kernel stops early if ``late`` is full, or if there is no free slot or no free row for a running instance. If
    ``grow_lanes`` is true, the kernel also stops if there is no free lane.
    """
    offsets, source, argument = lines.offsets, lines.source, lines.argument
    instance, received_as, first, last = instances.of, instances.received_as, instances.first, instances.last
    cell, rival_from, rivals = instances.cell, instances.rival_from, instances.rivals
    request_rival_from, request_rivals = instances.request_rival_from, instances.request_rivals
    wanted, remaining, lane_of, free_lane = owners.wanted, owners.remaining, owners.of, owners.free
    run_of, free_run, base, known, received = running.of, running.free, running.base, running.known, running.received
    done, requests, carried = cells.done, cells.requests, slots.rows
    lanes = carried.shape[1]
    for s in range(begin, end):
        process = segments.process[s]
        offset = offsets[process]
        for position in range(segments.begin[s], segments.end[s]):
            at = offset + position
            own = instance[at]
            sender = source[at]
            if own < 0 and sender < 0:
                continue
            if (
                slots.left[0] == 0
                or counts[RUNS] == 0
                or counts[LATE] == len(late)
                or (grow_lanes and counts[LANES] == 0)
            ):
                segments.begin[s] = position
                return s
            if own >= 0 and at == first[own]:
                counts[RUNS] -= 1
                run = free_run[counts[RUNS]]
                run_of[own] = run
                for k in range(lanes):
                    base[run, k] = known[run, k] = received[run, k] = 0
                if cell[own] >= 0:
                    for r in range(rival_from[cell[own]], rival_from[cell[own] + 1]):
                        for k in range(lanes):
                            base[run, k] = max(base[run, k], done[rivals[r], k])
            if sender == SENT:
                counts[SERIAL] += 1
                lane = -1
                if argument[at] > 0 and wanted[own]:
                    if lane_of[own] == -1:
                        if counts[LANES] == 0:
                            lane_of[own] = -2
                            counts[PUT_OFF] += 1
                        else:
                            counts[LANES] -= 1
                            lane_of[own] = free_lane[counts[LANES]]
                    lane = lane_of[own]
                run = run_of[own]
                if run >= 0:
                    for k in range(lanes):
                        known[run, k] = max(known[run, k], base[run, k])
                    if lane >= 0:
                        known[run, lane] = counts[SERIAL]
                if argument[at] > 0:
                    slot = take(slots, argument[at])
                    for k in range(lanes):
                        carried[slot, k] = known[run, k] if run >= 0 else 0
                    if lane >= 0:
                        carried[slot, lane] = counts[SERIAL]
                        q = np.searchsorted(questions.send, at)
                        while q < len(questions.send) and questions.send[q] == at:
                            # The newest question is the first in the list; each delivery examines all of them.
                            receiver = np.searchsorted(offsets, questions.late[q], side="right") - 1
                            questions.serial[q] = counts[SERIAL]
                            questions.next[q] = questions.head[receiver]
                            questions.head[receiver] = q
                            q += 1
                    argument[at] = slot
            elif sender >= 0:
                sent = offsets[sender] + argument[at]
                slot = argument[sent]
                if own >= 0:
                    run = run_of[own]
                    lane = lane_of[instance[sent]]
                    if lane >= 0:
                        serial = carried[slot, lane]
                        by_instance = received[run, lane] >= serial
                        by_conflict = False
                        if cell[own] >= 0 and received_as[at] == REQUEST:
                            for r in range(request_rival_from[cell[own]], request_rival_from[cell[own] + 1]):
                                by_conflict = by_conflict or requests[request_rivals[r], lane] >= serial
                        elif cell[own] >= 0:
                            for r in range(rival_from[cell[own]], rival_from[cell[own] + 1]):
                                by_conflict = by_conflict or requests[rivals[r], lane] >= serial
                        if received_as[at] and (by_instance or by_conflict):
                            late[counts[LATE]] = at
                            counts[LATE] += 1
                    if questions.head[process] >= 0:
                        _answer(process, at, slot, carried, instances, lane_of, questions)
                    for k in range(lanes):
                        reached = carried[slot, k]
                        known[run, k] = max(known[run, k], reached)
                    if received_as[at]:
                        for k in range(lanes):
                            received[run, k] = max(received[run, k], carried[slot, k])
                    if received_as[at] == REQUEST and cell[own] >= 0:
                        for k in range(lanes):
                            requests[cell[own], k] = max(requests[cell[own], k], carried[slot, k])
                give_back(slots, slot)
                sending = instance[sent]
                remaining[sending] -= 1
                if remaining[sending] == 0 and lane_of[sending] >= 0:
                    free_lane[counts[LANES]] = lane_of[sending]
                    counts[LANES] += 1
                    lane_of[sending] = -1
            if own >= 0 and at == last[own]:
                run = run_of[own]
                if cell[own] >= 0 and not instances.aborted[own]:
                    for k in range(lanes):
                        done[cell[own], k] = max(done[cell[own], k], known[run, k])
                run_of[own] = -1
                free_run[counts[RUNS]] = run
                counts[RUNS] += 1
    return end


@compiled
def _answer(
    process: int, at: int, slot: int, carried: Longs, instances: Instances, lane_of: Ints, questions: QuestionLists
) -> None:
    """Compare the delivery at position ``at`` with the open questions of its process. If the delivery is the answer to
    a question, store the answer and close the question. If a question is about this delivery itself, close the question
    too."""
    before = -1
    q = questions.head[process]
    while q >= 0:
        following = questions.next[q]
        closed = questions.late[q] == at
        if not closed:
            lane = lane_of[instances.of[questions.send[q]]]
            if carried[slot, lane] >= questions.serial[q]:
                rule = forbidden(questions.late[q], at, instances)
                if rule:
                    questions.answer[q] = at
                    questions.broken[q] = rule
                    closed = True
        if closed:
            if before < 0:
                questions.head[process] = following
            else:
                questions.next[before] = following
        else:
            before = q
        q = following


@compiled
def forbidden(late: int, earlier: int, instances: Instances) -> int:
    """Return the rule of :mod:`antecede.trace.significant` that two deliveries at one object break: ``BY_INSTANCE`` (SO
    1-1), ``BY_CONFLICT`` (SO 1-2), or 0 if they break neither rule. The delivery ``earlier`` came before ``late``. The
    caller must know that the message of ``late`` significantly precedes the message of ``earlier``."""
    received_as, cell = instances.received_as, instances.cell
    one, other = instances.of[late], instances.of[earlier]
    if not received_as[late] or not received_as[earlier]:
        return 0
    if one == other:
        return BY_INSTANCE
    if received_as[earlier] != REQUEST:
        return 0
    if received_as[late] == REQUEST:
        conflicting = are_rivals(cell[one], cell[other], instances.request_rival_from, instances.request_rivals)
    else:
        conflicting = are_rivals(cell[one], cell[other], instances.rival_from, instances.rivals)
    return BY_CONFLICT if conflicting else 0


@compiled
def are_rivals(one: int, other: int, rival_from: Longs, rivals: Ints) -> bool:
    """Return whether two cells (groups of instances of one object with the same conflicts) conflict. The cells are
    given by their numbers. If one of the numbers is -1 (an instance without a cell), return False."""
    if one < 0 or other < 0:
        return False
    found = False
    for r in range(rival_from[one], rival_from[one + 1]):
        found = found or rivals[r] == other
    return found


class Copies(NamedTuple):
    """The deliveries of each message. ``late`` is 1 at each delivery that breaks rule (1) of
    :mod:`antecede.trace.significant`."""

    late: Bytes
    place: Ints
    """The process of each instance."""
    first: Longs
    """For each send, the position in ``delivered`` at which the deliveries of its message begin."""
    delivered: Longs


@compiled
def crossed(lines: Flat, instances: Instances, copies: Copies, both: Longs, before: Longs) -> None:
    """Find the pairs of conflicting requests that two objects deliver in opposite orders. For each pair, one delivery
    is late: at the object whose name comes later in alphabetical order, the request that was delivered second is late.
    ``before`` has one entry per event. The entry of the late delivery gets the flat position of the delivery that came
    first. If a delivery is late in several pairs, its entry gets the earliest of these positions. All other entries
    remain -1, and so do the entries of deliveries that break rule (1) of :mod:`antecede.trace.significant`.

    Some requests are received at two objects. ``both`` has the pairs of cells that receive them, one cell at each
    object. Each pair is a number (see :func:`pair_of`), and the numbers are ascending. The function goes backwards
    through the deliveries of each object. For each pair of cells in ``both``, it remembers one of the requests that it
    has already seen: the request that was delivered first at the other object. A request is not remembered if its
    delivery at the current object breaks rule (1). The function :func:`unsettled` examines such requests.
    """
    offsets, source, argument = lines.offsets, lines.source, lines.argument
    instance, cell, rival_from, rivals = instances.of, instances.cell, instances.rival_from, instances.rivals
    late, place, first, delivered = copies.late, copies.place, copies.first, copies.delivered
    cells = len(rival_from) - 1
    earliest = np.zeros(len(both), np.int64)
    met_by = np.full(len(both), -1, np.int32)
    for process in range(len(offsets) - 1):
        for at in range(offsets[process + 1] - 1, offsets[process] - 1, -1):
            if not is_request(at, source, instances):
                continue
            here = cell[instance[at]]
            send = offsets[source[at]] + argument[at]
            for turn in range(2):
                for k in range(first[send], first[send + 1]):
                    copy = delivered[k]
                    if not is_request(copy, source, instances) or place[instance[copy]] <= process:
                        continue
                    there = cell[instance[copy]]
                    if turn == 0 and not late[copy]:
                        for h in range(rival_from[here], rival_from[here + 1]):
                            for r in range(rival_from[there], rival_from[there + 1]):
                                key = pair_of(rivals[h], rivals[r], cells)
                                number = np.searchsorted(both, key)
                                if number == len(both) or both[number] != key or met_by[number] != process:
                                    continue
                                if earliest[number] < copy and (before[copy] < 0 or earliest[number] < before[copy]):
                                    before[copy] = earliest[number]
                    elif turn == 1 and not late[at]:
                        number = np.searchsorted(both, pair_of(here, there, cells))
                        if met_by[number] != process or copy < earliest[number]:
                            met_by[number] = process
                            earliest[number] = copy


@inner
def pair_of(here: int, there: int, cells: int) -> int:
    """Return a number that stands for a pair of cells; ``cells`` is the number of all cells."""
    return here * cells + there


@inner
def is_request(at: int, source: Ints, instances: Instances) -> bool:
    """Return whether the event at position ``at`` is the delivery of a request for an operation."""
    own = instances.of[at]
    return bool(source[at] >= 0 and own >= 0 and instances.received_as[at] == REQUEST and instances.cell[own] >= 0)


@compiled
def unsettled(others: Longs, other: int, lines: Flat, instances: Instances, copies: Copies, out: Longs) -> int:
    """Find pairs of conflicting requests that two objects delivered in opposite orders. One object first delivered the
    requests at the positions ``others``. After them, it delivered the request m' at the position ``other``. The
    function examines all objects whose names come later in alphabetical order. If such an object delivered m' before a
    conflicting request m from ``others``, the function writes one row to ``out``: the position of m and the position of
    m' at that object. If the delivery of m at that object breaks rule (1) of :mod:`antecede.trace.significant`, the
    pair is left out. Return the number of rows written.

    ``out`` must have enough rows: the length of ``others`` times the number of deliveries of m'.
    """
    offsets, source, argument = lines.offsets, lines.source, lines.argument
    instance, cell, rival_from, rivals = instances.of, instances.cell, instances.rival_from, instances.rivals
    late, place, first, delivered = copies.late, copies.place, copies.first, copies.delivered
    found = 0
    own = offsets[source[other]] + argument[other]
    for k in range(first[own], first[own + 1]):
        twin = delivered[k]
        if not is_request(twin, source, instances):
            continue
        process = place[instance[twin]]
        if process <= place[instance[other]]:
            continue
        for at in others:
            if not are_rivals(cell[instance[at]], cell[instance[other]], rival_from, rivals):
                continue
            send = offsets[source[at]] + argument[at]
            for c in range(first[send], first[send + 1]):
                copy = delivered[c]
                if not is_request(copy, source, instances) or place[instance[copy]] != process:
                    continue
                if copy < twin or late[copy]:
                    continue
                if are_rivals(cell[instance[copy]], cell[instance[twin]], rival_from, rivals):
                    out[found, 0], out[found, 1] = copy, twin
                    found += 1
    return found


# Compare pairs of messages during a walk over all events: find whether one message was sent in the past of the other,
# and whether one message significantly precedes the other.
#
# The results are sets with one bit per message. To compute them, the walk keeps three kinds of sets:
#
# * The *past* of a process is the set of messages that were sent causally before its current event. The past of a
#   message is the past of its send.
# * The *knowledge* of a message or of a running instance. A *cell* (a group of instances with the same conflicts) also
#   has such a set: the knowledge of its completed instances.
# * The *base* of a running instance.
#
# The walk keeps the sets of a message until its last delivery. :mod:`antecede.trace.significant` defines knowledge and
# base.


Sets = NDArray[np.uint64]


class InstanceSpans(NamedTuple):
    """Operation instances: where they begin and end, and what they conflict with."""

    of: Ints
    """For each event, the number of its instance; -1 if it has none."""
    first: Longs
    last: Longs
    cell: Ints
    aborted: Bytes
    rival_from: Longs
    rivals: Ints


class RunningSets(NamedTuple):
    """The sets of the running instances. Each running instance has one row in ``base`` and one in ``known``."""

    of: Ints
    """For each instance, the number of its row; -1 if it is not running."""
    base: Sets
    known: Sets
    free: Ints
    left: Longs


class Before(NamedTuple):
    """For each compared message, the messages that were sent in its past, and those that significantly precede it."""

    causal: Sets
    significant: Sets


@compiled
def precedences(
    lines: Flat,
    segments: Segments,
    begin: int,
    end: int,
    drawn: Longs,
    instances: InstanceSpans,
    past: Sets,
    done: Sets,
    running: RunningSets,
    slots: Slots,
    before: Before,
) -> int:
    """Walk through the segments from ``begin`` to ``end`` − 1, and fill in ``before``. A segment has consecutive events
    of one process. Return ``end`` if all these segments are done. Stop early if there is no free slot, or no free row
    for a running instance. In this case, return the segment at which to continue.

    ``drawn`` has the flat positions of the sends of the compared messages, ascending. A flat position is a position in
    the joined lines (event lists) of all processes. A slot contains two sets of messages for one message: first its
    *past*, then its *knowledge* (see the docstring of this module).
    """
    offsets, source, argument = lines.offsets, lines.source, lines.argument
    first, last, cell = instances.first, instances.last, instances.cell
    base, known, carried = running.base, running.known, slots.rows
    words = past.shape[1]
    for s in range(begin, end):
        process = segments.process[s]
        offset = offsets[process]
        for position in range(segments.begin[s], segments.end[s]):
            at = offset + position
            own = instances.of[at]
            sender = source[at]
            if own < 0 and sender < 0 and sender != SENT:
                continue
            if slots.left[0] == 0 or running.left[0] == 0:
                segments.begin[s] = position
                return s
            if own >= 0 and at == first[own]:
                running.left[0] -= 1
                run = running.free[running.left[0]]
                running.of[own] = run
                for k in range(words):
                    base[run, k] = known[run, k] = 0
                if cell[own] >= 0:
                    for r in range(instances.rival_from[cell[own]], instances.rival_from[cell[own] + 1]):
                        for k in range(words):
                            base[run, k] |= done[instances.rivals[r], k]
            run = running.of[own] if own >= 0 else -1
            if sender == SENT:
                number = np.searchsorted(drawn, at)
                picked = number < len(drawn) and drawn[number] == at
                if run >= 0:
                    for k in range(words):
                        known[run, k] |= base[run, k]
                if picked:
                    bit = np.uint64(1) << np.uint64(number & 63)
                    for k in range(words):
                        before.causal[number, k] = past[process, k]
                        if run >= 0:
                            before.significant[number, k] = known[run, k]
                    past[process, number >> 6] |= bit
                    if run >= 0:
                        known[run, number >> 6] |= bit
                if argument[at] > 0:
                    slot = take(slots, argument[at])
                    argument[at] = slot
                    for k in range(words):
                        carried[slot, k] = past[process, k]
                        carried[slot, words + k] = known[run, k] if run >= 0 else np.uint64(0)
                    if picked and run < 0:
                        carried[slot, words + (number >> 6)] |= np.uint64(1) << np.uint64(number & 63)
            elif sender >= 0:
                slot = argument[offsets[sender] + argument[at]]
                for k in range(words):
                    past[process, k] |= carried[slot, k]
                    if run >= 0:
                        known[run, k] |= carried[slot, words + k]
                give_back(slots, slot)
            if own >= 0 and at == last[own]:
                if cell[own] >= 0 and not instances.aborted[own]:
                    for k in range(words):
                        done[cell[own], k] |= known[run, k]
                running.of[own] = -1
                running.free[running.left[0]] = run
                running.left[0] += 1
    return end
