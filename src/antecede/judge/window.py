"""Judge one window of a trace without knowing anything before it.

A *window* is a run of rows between two consistent cuts: if a delivery lies before a cut, so does its send. Indices rise
within each process. Let V_q be the vector of process q: V_q[s] is 1 + the index of the last send of s that happened
before q's present, through deliveries; 0 if there is none. **The delivery of m (sent by s at index i) at q is late iff
V_q[s] > i just before it**: q has delivered a message that m's send precedes. Under FIFO order it is late iff q has
delivered a message that s sent after m.

**What a window can know.** The kernel keeps L_q, which is V_q restricted to sends of *this* window. Index order makes
that enough for messages that are sent in the window: if s sent m in the window and V_q[s] > i, then the last known
send of s is in the window, too, so L_q[s] > i. Messages of earlier windows (*cross* deliveries) are judged by the fold,
which needs to know what q knew just before. L_q tells that as well: q knows the rows of process r before index L_q[r],
and so r's state at the first cut (if L_q[r] > 0) and everything that the cross deliveries among these rows brought. So
a cross delivery carries a copy of L_q, and nothing else has to be remembered (:mod:`antecede.judge.fold`).

**Memory.** A message carries the vector of its sender, in which the sender's own entry is the message itself. Sends
between two deliveries of a process share one copy (a *version*); a copy is free again when no copy in transit uses
it. What is in transit when the window ends is part of the summary.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.errors import AntecedeError
from antecede.pipeline.kernels import compiled

OTHER, SEND, DELIVER = 0, 1, 2

Ints = NDArray[np.int64]
Numbers = NDArray[np.int32]
Names = NDArray[np.uint64]


class NotCleanError(AntecedeError):
    """A window does not continue the windows before it: the rows must be matched by id instead."""

    code = "not-clean"


class Rows(NamedTuple):
    """The rows of a window, in a sequence in which a send comes before its deliveries."""

    process: Numbers
    """The numbers of the processes; they are the same in all windows."""
    at: Ints
    """The index of the row in its process."""
    kind: NDArray[np.uint8]
    message: Names
    """A fingerprint of the message's id. Rows of other kinds have any value."""
    destinations: Ints
    """For row k, ``to[destinations[k] : destinations[k + 1]]`` are the destinations of the send."""
    to: Numbers


class Late(NamedTuple):
    """Late deliveries of messages that were sent in the same window, as numbers of rows."""

    fifo: Ints
    causal: Ints


class Transit(NamedTuple):
    """Messages that were sent in the window and not delivered everywhere."""

    message: Names
    source: Numbers
    at: Ints
    known: Ints
    """One row per message: L of the sender at the send."""
    destinations: Ints
    to: Numbers
    """The destinations that have not delivered the message."""


class Cross(NamedTuple):
    """Deliveries of messages that were not sent in the window, in the sequence of the rows."""

    row: Ints
    process: Numbers
    at: Ints
    message: Names
    known: Ints
    """One row per delivery: L of the receiver just before it."""


class Summary(NamedTuple):
    """What the fold needs of a window."""

    rows: int
    first: Ints
    """For each process, its first index in the window; -1 if it has none."""
    last: Ints
    known: Ints
    """L of each process when the window ends."""
    newest: Ints
    """For FIFO order: 1 + the largest send index in the window, by receiver and sender, among delivered messages."""
    since: Ints
    """For FIFO order: the index of the first delivery of a message of the window, by receiver and sender; else -1."""
    sent: Names
    """The fingerprints of all messages that were sent, in the sequence of the rows."""
    deliveries: int
    transit: Transit
    cross: Cross


def judge_window(rows: Rows, processes: int) -> tuple[Late, Summary]:
    """Judge a window of a trace with this number of processes."""
    sends = int(np.count_nonzero(rows.kind == SEND))
    deliveries = int(np.count_nonzero(rows.kind == DELIVER))
    table = 1 << max(4, (2 * sends).bit_length())
    first, last = np.full(processes, -1, np.int64), np.full(processes, -1, np.int64)
    known, newest = np.zeros((processes, processes), np.int64), np.zeros((processes, processes), np.int64)
    since = np.full((processes, processes), -1, np.int64)
    late = np.zeros(deliveries, np.uint8)
    cross = np.zeros(deliveries, np.int64)
    cross_known = np.zeros((16, processes), np.int64)
    send_rows = np.zeros(sends, np.int64)
    version_of = np.zeros(sends, np.int64)
    remaining = np.zeros(sends, np.int64)
    open_to = rows.to.copy()
    counts, cross_known, versions = _walk(
        rows.process,
        rows.at,
        rows.kind,
        rows.message,
        rows.destinations,
        open_to,
        first,
        last,
        known,
        newest,
        since,
        late,
        cross,
        cross_known,
        send_rows,
        version_of,
        remaining,
        np.full(table, -1, np.int64),
    )
    if counts[1] >= 0:
        raise NotCleanError(f"row {counts[1]}: its index does not rise, or its message was sent twice or not to it")
    at = np.flatnonzero(rows.kind == DELIVER)
    left = np.flatnonzero(remaining > 0)
    places = send_rows[left]
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(remaining[left])])
    ranges = _ranges(rows.destinations[places], rows.destinations[places + 1])
    still = open_to[ranges]
    crossed = cross[: counts[0]]
    summary = Summary(
        len(rows.kind),
        first,
        last,
        known,
        newest,
        since,
        rows.message[send_rows],
        deliveries,
        Transit(
            rows.message[places],
            rows.process[places],
            rows.at[places],
            versions[version_of[left]] if len(left) else np.zeros((0, processes), np.int64),
            ends,
            still[still >= 0],
        ),
        Cross(crossed, rows.process[crossed], rows.at[crossed], rows.message[crossed], cross_known[: counts[0]]),
    )
    return Late(at[(late & 1) > 0], at[(late & 2) > 0]), summary


def _ranges(begin: Ints, end: Ints) -> Ints:
    """Return the numbers of all ranges from ``begin`` to ``end`` - 1, one range after the other."""
    lengths = end - begin
    offsets = np.repeat(begin - np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)[:-1]]), lengths)
    numbers: Ints = np.arange(int(lengths.sum()), dtype=np.int64) + offsets
    return numbers


@compiled
def _walk(
    process: Numbers,
    index: Ints,
    kind: NDArray[np.uint8],
    message: Names,
    destinations: Ints,
    open_to: Numbers,
    first: Ints,
    last: Ints,
    known: Ints,
    newest: Ints,
    since: Ints,
    late: NDArray[np.uint8],
    cross: Ints,
    cross_known: Ints,
    send_rows: Ints,
    version_of: Ints,
    remaining: Ints,
    table: Ints,
) -> tuple[Any, Ints, Ints]:
    """Walk through the rows once. ``table`` maps fingerprints to sends, by open addressing."""
    processes = known.shape[0]
    mask = np.uint64(len(table) - 1)
    versions = np.zeros((max(16, processes), processes), np.int64)
    # The copies in transit that use a version, and 1 more while its process may still send with it.
    users = np.zeros(len(versions), np.int64)
    free = np.arange(len(versions) - 1, -1, -1)
    free_count = len(versions)
    # For each process the version that equals its vector; -1 if it has learned something since.
    current = np.full(processes, -1, np.int64)
    sends = deliveries = crossed = 0
    wrong = -1
    for k in range(len(kind)):
        p = process[k]
        i = index[k]
        if i <= last[p]:
            wrong = k
            break
        if first[p] < 0:
            first[p] = i
        last[p] = i
        if kind[k] == SEND:
            place = (message[k] * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(17) & mask
            while table[place] >= 0 and message[send_rows[table[place]]] != message[k]:
                place = (place + np.uint64(1)) & mask
            if table[place] >= 0:
                wrong = k
                break
            table[place] = sends
            send_rows[sends] = k
            copies = destinations[k + 1] - destinations[k]
            remaining[sends] = copies
            if copies > 0:
                version = current[p]
                if version < 0:
                    if free_count == 0:
                        size = len(versions)
                        more = np.zeros((2 * size, processes), np.int64)
                        more[:size] = versions
                        versions = more
                        more_users = np.zeros(2 * size, np.int64)
                        more_users[:size] = users
                        users = more_users
                        free = np.arange(2 * size - 1, size - 1, -1)
                        free = np.concatenate((free, np.zeros(size, np.int64)))
                        free_count = size
                    free_count -= 1
                    version = free[free_count]
                    versions[version] = known[p]
                    users[version] = 1
                    current[p] = version
                version_of[sends] = version
                users[version] += copies
            sends += 1
        elif kind[k] == DELIVER:
            place = (message[k] * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(17) & mask
            while table[place] >= 0 and message[send_rows[table[place]]] != message[k]:
                place = (place + np.uint64(1)) & mask
            send = table[place]
            if send < 0:
                if crossed == len(cross_known):
                    wider = np.zeros((2 * crossed, processes), np.int64)
                    wider[:crossed] = cross_known
                    cross_known = wider
                cross[crossed] = k
                cross_known[crossed] = known[p]
                crossed += 1
                deliveries += 1
                continue
            at = send_rows[send]
            addressed = -1
            for d in range(destinations[at], destinations[at + 1]):
                if open_to[d] == p:
                    addressed = d
                    break
            if addressed < 0:
                wrong = k
                break
            open_to[addressed] = -1
            s, sent = process[at], index[at]
            if newest[p, s] > sent + 1:
                late[deliveries] |= 1
            else:
                newest[p, s] = sent + 1
            if since[p, s] < 0:
                since[p, s] = i
            version = version_of[send]
            if known[p, s] > sent:
                late[deliveries] |= 2
            else:
                row = versions[version]
                mine = known[p]
                for t in range(processes):
                    if row[t] > mine[t]:
                        mine[t] = row[t]
                mine[s] = sent + 1
                if current[p] >= 0:
                    old = current[p]
                    users[old] -= 1
                    if users[old] == 0:
                        free[free_count] = old
                        free_count += 1
                    current[p] = -1
            deliveries += 1
            remaining[send] -= 1
            users[version] -= 1
            if users[version] == 0:
                free[free_count] = version
                free_count += 1
    return (crossed, wrong), cross_known, versions
