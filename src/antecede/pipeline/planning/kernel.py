"""Compiled code that computes the cost of a tree of domains.

**A plan is a rooted tree with a partition of each server's children.** ``parent[v]`` is the server above v, or -1 if v
is the root. ``block[v]`` is the number of v's block. A domain consists of one server and those children of this server
that are in the same block. For a given root, every tree of domains has exactly one such form, and every such form is a
tree of domains. So the domains form a tree in every step of the search.

**Cost.** Let cut(v) be the traffic between the subtree of v and all other servers. Let inner(b) be the traffic between
the subtrees of different children in block b. Then the domain of block b carries Σ cut(c) − inner(b) messages; the sum
is over the children c in block b. The reason is that a domain connects several parts of the tree, one for each of its
members. A message passes through the domain if it goes from one of these parts to another. The cuts are computed as
sums over the tree; for each pair of servers only the lowest common ancestor has to be found. In the same way, a router
connects several parts of the tree. It forwards all messages that go from one of these parts to another. The *Steiner
tree* of a multicast is the smallest part of the tree that connects its source and its destinations. The multicast
passes one time through each domain of its Steiner tree. The cost of the multicast is the sum of the prices of these
domains. The multicasts are examined one by one.

**Excess.** One figure measures by how much a plan breaks its bounds and pins. A pin is a rule for certain servers: they
must share a domain, must not share a domain, or must not be routers. The excess is the sum of the relative amounts by
which the bounds are exceeded, plus 1 for each broken pin. It is 0 if all bounds and pins hold.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled, inner

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float64]

COST, HOPS, SHARE, DOMAIN, LONGEST, PINS, EXCESS = 0, 1, 2, 3, 4, 5, 6
"""The position of each figure of a plan in ``figures``: mean cost of a message, mean number of hops, share of all
messages that the busiest router forwards, size of the largest domain, hops of the longest route, number of broken pins,
and excess."""
FIGURES = 7

MAX_DOMAIN, MAX_SHARE, MAX_HOPS = 0, 1, 2
"""The position of each bound in ``bounds``."""


class Inputs(NamedTuple):
    """The input of the evaluation of plans: traffic, prices, bounds and pins."""

    one: Ints
    """The servers ``one[k]`` and ``other[k]`` exchange ``weight[k]`` unicasts, both directions together."""
    other: Ints
    weight: Floats
    degree: Floats
    """For each server, the number of unicasts that it sends or receives."""
    first: Ints
    """For each multicast g, ``member[first[g]:first[g + 1]]`` has its source and its targets. The source is
    ``source[g]``. The multicast was sent ``times[g]`` times."""
    member: Ints
    source: Ints
    times: Floats
    total: float
    """The number of messages."""
    price: Floats
    """``price[s]`` is the cost of one message in a domain of s servers."""
    bounds: Floats
    together_first: Ints
    """For each group g of servers that must share a domain, ``together[together_first[g]:together_first[g + 1]]`` are
    the servers of the group."""
    together: Ints
    apart: Ints
    """Pairs of servers that must not share a domain; the array has one pair after the other."""
    leaves: Ints
    """Servers that must not be routers."""


@compiled
def ordered(parent: Ints, order: Ints, depth: Ints) -> int:
    """Write the servers of the root's tree to ``order``; each server comes after its parent. Write the depth of each of
    these servers to ``depth``. Return the number of these servers. If this number is smaller than the number of all
    servers, the plan is not one tree."""
    n = len(parent)
    head = np.full(n, -1, np.int32)
    following = np.full(n, -1, np.int32)
    root = -1
    for v in range(n - 1, -1, -1):
        p = parent[v]
        if p < 0:
            root = v
        else:
            following[v] = head[p]
            head[p] = v
    order[0] = root
    depth[root] = 0
    count, done = 1, 0
    while done < count:
        v = order[done]
        done += 1
        c = head[v]
        while c >= 0:
            order[count] = c
            depth[c] = depth[v] + 1
            count += 1
            c = following[c]
    return count


@compiled
def evaluate(parent: Ints, block: Ints, inputs: Inputs, figures: Floats) -> None:
    """Compute the figures of a plan."""
    one, other, weight, degree, total = inputs.one, inputs.other, inputs.weight, inputs.degree, inputs.total
    price, bounds = inputs.price, inputs.bounds
    n = len(parent)
    order = np.empty(n, np.int32)
    depth = np.empty(n, np.int32)
    ordered(parent, order, depth)
    size = np.ones(n, np.int32)
    inner = np.zeros(n)
    within = np.zeros(n)
    cut = degree.copy()
    for v in range(n):
        if parent[v] >= 0:
            size[block[v]] += 1
    for k in range(len(one)):
        a, b = one[k], other[k]
        below_a = below_b = -1
        while a != b:
            if depth[a] >= depth[b]:
                below_a = a
                a = parent[a]
            else:
                below_b = b
                b = parent[b]
        # A server that is the common ancestor itself has no server below on its side.
        within[a] += weight[k]
        if below_a >= 0 and below_b >= 0 and block[below_a] == block[below_b]:
            inner[block[below_a]] += weight[k]
    for i in range(n - 1, 0, -1):
        v = order[i]
        cut[parent[v]] += cut[v]
        within[parent[v]] += within[v]
    carried = np.zeros(n)
    forwarded = np.zeros(n)
    union = np.zeros(n)
    for v in range(n):
        between = cut[v] - 2.0 * within[v]
        forwarded[v] -= degree[v]
        if parent[v] >= 0:
            carried[block[v]] += between
            forwarded[v] += between
            union[block[v]] += between
    above = np.full(n, -1, np.int32)
    for v in range(n):
        if parent[v] >= 0:
            above[block[v]] = parent[v]
    for b in range(n):
        if above[b] >= 0:
            carried[b] -= inner[b]
            forwarded[above[b]] += union[b] - 2.0 * inner[b]
    for v in range(n):
        forwarded[v] *= 0.5
    if len(inputs.source):
        _multicasts(parent, block, inputs, carried, forwarded)
    cost = hops = 0.0
    largest = 1
    for b in range(n):
        if above[b] >= 0:
            cost += price[size[b]] * carried[b]
            hops += carried[b]
            largest = max(largest, size[b])
    busiest = 0.0
    for v in range(n):
        busiest = max(busiest, forwarded[v])
    longest = _longest(parent, block, above, order)
    broken = _broken(parent, block, inputs)
    share = busiest / total
    excess = float(broken)
    if bounds[MAX_DOMAIN] > 0 and largest > bounds[MAX_DOMAIN]:
        for b in range(n):
            if above[b] >= 0 and size[b] > bounds[MAX_DOMAIN]:
                excess += size[b] / bounds[MAX_DOMAIN] - 1.0
    if bounds[MAX_SHARE] >= 0 and share > bounds[MAX_SHARE] + 1e-12:
        for v in range(n):
            over = forwarded[v] / total - bounds[MAX_SHARE]
            if over > 1e-12:
                excess += over / max(bounds[MAX_SHARE], 0.01)
    if bounds[MAX_HOPS] > 0 and longest > bounds[MAX_HOPS]:
        excess += longest / bounds[MAX_HOPS] - 1.0
    figures[COST], figures[HOPS], figures[SHARE] = cost / total, hops / total, share
    figures[DOMAIN], figures[LONGEST], figures[PINS], figures[EXCESS] = largest, longest, broken, excess


@compiled
def _multicasts(parent: Ints, block: Ints, inputs: Inputs, carried: Floats, forwarded: Floats) -> None:
    """Add the multicasts to two arrays: ``carried`` (the number of messages in each domain) and ``forwarded`` (the
    number of messages that each server forwards)."""
    first, member, source, times = inputs.first, inputs.member, inputs.source, inputs.times
    n = len(parent)
    inside = np.zeros(n, np.int32)
    in_block = np.zeros(n, np.int32)
    parts = np.zeros(n, np.int32)
    uses = np.zeros(n, np.int32)
    touched = np.empty(n, np.int32)
    for g in range(len(source)):
        begin, end = first[g], first[g + 1]
        members = end - begin
        count = 0
        for k in range(begin, end):
            v = member[k]
            while v >= 0:
                if inside[v] == 0:
                    touched[count] = v
                    count += 1
                inside[v] += 1
                v = parent[v]
        for k in range(count):
            v = touched[k]
            if parent[v] >= 0:
                in_block[block[v]] += inside[v]
                parts[block[v]] += 1
        for k in range(count):
            v = touched[k]
            if parent[v] < 0:
                continue
            b = block[v]
            if inside[v] < members:
                uses[v] += 1
            if parts[b] > 0:
                outside = in_block[b] < members
                if parts[b] + outside >= 2:
                    carried[b] += times[g]
                if outside:
                    uses[parent[v]] += 1
                parts[b] = 0
        for k in range(count):
            v = touched[k]
            if uses[v] >= 2 and v != source[g]:
                forwarded[v] += times[g]
            uses[v] = 0
            inside[v] = 0
            if parent[v] >= 0:
                in_block[block[v]] = 0


@inner
def _longest(parent: Ints, block: Ints, above: Ints, order: Ints) -> int:
    """Return the largest number of hops between any two servers."""
    n = len(parent)
    high = np.zeros(n, np.int32)
    best = np.full(n, -1, np.int32)
    longest = 0
    for i in range(n - 1, 0, -1):
        v = order[i]
        # Everything below v is done, and so are its own blocks: high[v] is final.
        b, p = block[v], parent[v]
        if best[b] >= 0:
            longest = max(longest, best[b] + high[v] + 1)
            best[b] = max(best[b], high[v])
        else:
            best[b] = high[v]
        reach = high[v] + 1
        longest = max(longest, reach)
        if reach > high[p]:
            high[p] = reach
    # Two blocks of one server: the two highest of them.
    top = np.zeros(n, np.int32)
    for b in range(n):
        if best[b] >= 0:
            p = above[b]
            longest = max(longest, top[p] + best[b] + 1)
            top[p] = max(top[p], best[b] + 1)
    return longest


@compiled
def _broken(parent: Ints, block: Ints, inputs: Inputs) -> int:
    """Return how many pins do not hold."""
    together_first, together, apart, leaves = inputs.together_first, inputs.together, inputs.apart, inputs.leaves
    broken = 0
    for g in range(len(together_first) - 1):
        begin, end = together_first[g], together_first[g + 1]
        held = False
        for k in range(begin, end):
            x = together[k]
            if parent[x] < 0:
                continue
            fits = True
            for m in range(begin, end):
                y = together[m]
                if y != parent[x] and (parent[y] < 0 or block[y] != block[x]):
                    fits = False
                    break
            if fits:
                held = True
                break
        broken += not held
    for k in range(0, len(apart), 2):
        a, b = apart[k], apart[k + 1]
        shared = parent[a] == b or parent[b] == a
        if parent[a] >= 0 and parent[b] >= 0 and block[a] == block[b]:
            shared = True
        broken += shared
    for k in range(len(leaves)):
        v = leaves[k]
        domains = 0
        seen = -1
        several = False
        for c in range(len(parent)):
            if parent[c] == v:
                if seen < 0:
                    seen = block[c]
                elif block[c] != seen:
                    several = True
        domains = (parent[v] >= 0) + (seen >= 0) + several
        broken += domains > 1
    return broken
