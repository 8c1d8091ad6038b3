"""Late deliveries by significant order, along a walk, with a vector for each instance and each operation of an object.

What is known is what :mod:`antecede.trace.significance` says, message by message; here it is kept in vectors. The sends
of one instance follow from each other, so whoever knows one of them knows those before it, and an entry an instance is
enough. An entry is a *serial*, the number of a send along the walk.

**Lanes.** Only messages on their way have to be told apart, so an instance has a lane from its first send to the last
delivery of what it sent; then the lane is given to another. Nothing is wiped: serials only rise, so what a lane held
before is smaller than any serial of its next owner. If lanes run out and may not be made more, an instance is *put
off*: none of its messages is judged in this walk, all of them are in another.

**Rows of vectors.** A running instance has three: its base, what it knows, what it received; a *cell*, that is an
operation of an object, has two: what completed instances knew, what requests brought. A message on its way has one,
whose own entry is its own serial. So memory is bounded by cells, running instances and messages on their way, times
lanes.

**Who overtook.** A question is a late delivery. It is open from the send of its message on, in a list of its object;
whatever is delivered there looks through that list, until an answer is found or the late delivery itself has come.
"""

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled
from antecede.pipeline.kernels.walk import SENT

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Bytes = NDArray[np.uint8]

SLOTS, LANES, RUNS, LATE, PUT_OFF, SERIAL = range(6)
"""In ``counts``: free slots of messages, free lanes, free rows of running instances, late deliveries found, instances
put off, the last serial."""

BY_INSTANCE, BY_CONFLICT = 1, 2

REQUEST, RESPONSE = 1, 2
"""What a delivery is, 0 where no order asks about it."""


@compiled
def significant(
    offsets: Longs,
    source: Ints,
    argument: Ints,
    seg_process: Ints,
    seg_from: Longs,
    seg_to: Longs,
    begin: int,
    end: int,
    grow_lanes: bool,
    instance: Ints,
    received_as: Bytes,
    first: Longs,
    last: Longs,
    cell: Ints,
    aborted: Bytes,
    rival_from: Longs,
    rivals: Ints,
    request_rival_from: Longs,
    request_rivals: Ints,
    wanted: Bytes,
    awaits: Longs,
    lane_of: Ints,
    run_of: Ints,
    free_lane: Ints,
    free_slot: Ints,
    free_run: Ints,
    owed: Ints,
    carried: Longs,
    base: Longs,
    known: Longs,
    received: Longs,
    done: Longs,
    requests: Longs,
    counts: Longs,
    late: Longs,
    asked_send: Longs,
    asked_late: Longs,
    asked_serial: Longs,
    next_asked: Ints,
    head_asked: Ints,
    answer: Longs,
    broken: Bytes,
) -> int:
    """Judge the segments from ``begin`` to ``end``; the segment to go on with, which is ``end`` when all were judged.

    It stops early when something in ``counts`` ran out or ``late`` is full, having cut the segment to what is left of
    it. ``instance`` is that of each event or -1; a message that no instance sends has one of its own, without first
    and last. ``late`` takes flat positions. Questions are sorted by ``asked_send``.
    """
    lanes = carried.shape[1]
    for s in range(begin, end):
        process = seg_process[s]
        offset = offsets[process]
        for position in range(seg_from[s], seg_to[s]):
            at = offset + position
            own = instance[at]
            sender = source[at]
            if own < 0 and sender < 0:
                continue
            if (
                counts[SLOTS] == 0
                or counts[RUNS] == 0
                or counts[LATE] == len(late)
                or (grow_lanes and counts[LANES] == 0)
            ):
                seg_from[s] = position
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
                    counts[SLOTS] -= 1
                    slot = free_slot[counts[SLOTS]]
                    for k in range(lanes):
                        carried[slot, k] = known[run, k] if run >= 0 else 0
                    if lane >= 0:
                        carried[slot, lane] = counts[SERIAL]
                        q = np.searchsorted(asked_send, at)
                        while q < len(asked_send) and asked_send[q] == at:
                            # The first to look through the list are the youngest; all are looked at anyway.
                            receiver = np.searchsorted(offsets, asked_late[q], side="right") - 1
                            asked_serial[q] = counts[SERIAL]
                            next_asked[q] = head_asked[receiver]
                            head_asked[receiver] = q
                            q += 1
                    owed[slot] = argument[at]
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
                    if head_asked[process] >= 0:
                        _answer(
                            process, at, slot, carried, instance, received_as, cell, rival_from, rivals,
                            request_rival_from, request_rivals, asked_send,
                            asked_late, asked_serial, next_asked, head_asked, lane_of, answer, broken,
                        )  # fmt: skip
                    for k in range(lanes):
                        reached = carried[slot, k]
                        known[run, k] = max(known[run, k], reached)
                    if received_as[at]:
                        for k in range(lanes):
                            received[run, k] = max(received[run, k], carried[slot, k])
                    if received_as[at] == REQUEST and cell[own] >= 0:
                        for k in range(lanes):
                            requests[cell[own], k] = max(requests[cell[own], k], carried[slot, k])
                owed[slot] -= 1
                if owed[slot] == 0:
                    free_slot[counts[SLOTS]] = slot
                    counts[SLOTS] += 1
                sending = instance[sent]
                awaits[sending] -= 1
                if awaits[sending] == 0 and lane_of[sending] >= 0:
                    free_lane[counts[LANES]] = lane_of[sending]
                    counts[LANES] += 1
                    lane_of[sending] = -1
            if own >= 0 and at == last[own]:
                run = run_of[own]
                if cell[own] >= 0 and not aborted[own]:
                    for k in range(lanes):
                        done[cell[own], k] = max(done[cell[own], k], known[run, k])
                run_of[own] = -1
                free_run[counts[RUNS]] = run
                counts[RUNS] += 1
    return end


@compiled
def _answer(
    process: int, at: int, slot: int, carried: Longs, instance: Ints, received_as: Bytes, cell: Ints,
    rival_from: Longs, rivals: Ints, request_rival_from: Longs, request_rivals: Ints,
    asked_send: Longs, asked_late: Longs, asked_serial: Longs,
    next_asked: Ints, head_asked: Ints, lane_of: Ints, answer: Longs, broken: Bytes,
) -> None:  # fmt: skip
    """Let a delivery answer what questions of its object it can, and close its own."""
    before = -1
    q = head_asked[process]
    while q >= 0:
        following = next_asked[q]
        closed = asked_late[q] == at
        if not closed:
            lane = lane_of[instance[asked_send[q]]]
            if carried[slot, lane] >= asked_serial[q]:
                rule = forbidden(
                    asked_late[q], at, instance, received_as, cell, rival_from, rivals, request_rival_from,
                    request_rivals,
                )  # fmt: skip
                if rule:
                    answer[q] = at
                    broken[q] = rule
                    closed = True
        if closed:
            if before < 0:
                head_asked[process] = following
            else:
                next_asked[before] = following
        else:
            before = q
        q = following


@compiled
def forbidden(
    late: int, earlier: int, instance: Ints, received_as: Bytes, cell: Ints, rival_from: Longs, rivals: Ints,
    request_rival_from: Longs, request_rivals: Ints,
) -> int:  # fmt: skip
    """Which rule forbids these two deliveries at an object in this order, given that one message precedes the other."""
    one, other = instance[late], instance[earlier]
    if not received_as[late] or not received_as[earlier]:
        return 0
    if one == other:
        return BY_INSTANCE
    if received_as[earlier] != REQUEST:
        return 0
    if received_as[late] == REQUEST:
        clash = are_rivals(cell[one], cell[other], request_rival_from, request_rivals)
    else:
        clash = are_rivals(cell[one], cell[other], rival_from, rivals)
    return BY_CONFLICT if clash else 0


@compiled
def are_rivals(one: int, other: int, rival_from: Longs, rivals: Ints) -> bool:
    """Whether two cells conflict."""
    if one < 0 or other < 0:
        return False
    found = False
    for r in range(rival_from[one], rival_from[one + 1]):
        found = found or rivals[r] == other
    return found


@compiled
def crossed(
    offsets: Longs,
    source: Ints,
    argument: Ints,
    instance: Ints,
    received_as: Bytes,
    late: Bytes,
    place: Ints,
    cell: Ints,
    rival_from: Longs,
    rivals: Ints,
    first: Longs,
    delivered: Longs,
    both: Longs,
    before: Longs,
) -> None:
    """For each request that two objects deliver in different orders, at the object of the later name, which came first.

    ``before`` takes flat positions, -1 where nothing came first. ``place`` is the process of an instance; ``delivered``
    are the deliveries of each send, from ``first``. ``both`` are the pairs of cells in which a request is received at
    two objects (see :func:`pair_of`), ascending. Each object is walked backwards, with the earliest delivery,
    elsewhere, of the requests met so far, by such pairs. Those that are late at the object by precedence are left to
    :func:`unsettled`.
    """
    cells = len(rival_from) - 1
    earliest = np.zeros(len(both), np.int64)
    met_by = np.full(len(both), -1, np.int32)
    for process in range(len(offsets) - 1):
        for at in range(offsets[process + 1] - 1, offsets[process] - 1, -1):
            if not is_request(at, source, instance, received_as, cell):
                continue
            here = cell[instance[at]]
            send = offsets[source[at]] + argument[at]
            for turn in range(2):
                for k in range(first[send], first[send + 1]):
                    copy = delivered[k]
                    if not is_request(copy, source, instance, received_as, cell) or place[instance[copy]] <= process:
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


@compiled
def pair_of(here: int, there: int, cells: int) -> int:
    """Two cells as one number."""
    return here * cells + there


@compiled
def is_request(at: int, source: Ints, instance: Ints, received_as: Bytes, cell: Ints) -> bool:
    """Whether a request of an operation is delivered here."""
    return bool(source[at] >= 0 and instance[at] >= 0 and received_as[at] == REQUEST and cell[instance[at]] >= 0)


@compiled
def unsettled(
    others: Longs,
    other: int,
    offsets: Longs,
    source: Ints,
    argument: Ints,
    instance: Ints,
    received_as: Bytes,
    late: Bytes,
    place: Ints,
    cell: Ints,
    rival_from: Longs,
    rivals: Ints,
    first: Longs,
    delivered: Longs,
    out: Longs,
) -> int:
    """Of some requests that an object received before the one at ``other``, those that another object of a later name
    received after it: into ``out`` the positions of both at that other object. How many there are.

    ``out`` must have room for all of them at each copy of the request at ``other``.
    """
    found = 0
    own = offsets[source[other]] + argument[other]
    for k in range(first[own], first[own + 1]):
        twin = delivered[k]
        if not is_request(twin, source, instance, received_as, cell):
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
                if not is_request(copy, source, instance, received_as, cell) or place[instance[copy]] != process:
                    continue
                if copy < twin or late[copy]:
                    continue
                if are_rivals(cell[instance[copy]], cell[instance[twin]], rival_from, rivals):
                    out[found, 0], out[found, 1] = copy, twin
                    found += 1
    return found
