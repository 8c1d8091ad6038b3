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

from antecede.pipeline.kernels import Bytes, Floats, Ints, compiled, inner

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


# Compiled code for small changes of a plan (*moves*). Each move changes a tree of domains into another tree of domains.
#
# The moves are: relocate a subtree, merge or split domains, exchange a parent and its child, swap two servers, choose
# another root. They change the arrays ``parent`` and ``block`` of a plan. The random numbers are generated here
# (xorshift), so that the same seed gives the same plan on every machine.


State = NDArray[np.uint64]


@compiled
def random(state: State) -> float:
    """Return the next random number (at least 0, less than 1), by xorshift64*."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0


@inner
def _free_block(parent: Ints, block: Ints, used: Bytes) -> int:
    """Return the smallest number that no block has. (A block consists of those children of a server that are in the
    same domain.) The number is less than the number of servers, because there are always fewer blocks than servers."""
    n = len(parent)
    for b in range(n):
        used[b] = 0
    for v in range(n):
        if parent[v] >= 0:
            used[block[v]] = 1
    for b in range(n):
        if not used[b]:
            return b
    return 0


@compiled
def reroot(parent: Ints, block: Ints, root: int, used: Bytes) -> None:
    """Make the server ``root`` the root of the tree. The domains do not change."""
    n = len(parent)
    path = np.empty(n, np.int32)
    count = 0
    v = root
    while v >= 0:
        path[count] = v
        count += 1
        v = parent[v]
    # From the old root down: the domain between path[k] and path[k - 1] gets path[k - 1] as its head.
    for k in range(count - 1, 0, -1):
        upper, lower = path[k], path[k - 1]
        b = block[lower]
        for x in range(n):
            if parent[x] == upper and block[x] == b and x != lower:
                parent[x] = lower
        parent[upper] = lower
        block[upper] = b
        parent[lower] = -1


@inner
def _is_below(parent: Ints, v: int, top: int) -> bool:
    while v >= 0:
        if v == top:
            return True
        v = parent[v]
    return False


@compiled
def _exchange(parent: Ints, block: Ints, a: int, b: int) -> None:
    """Exchange the places of two servers in the tree. The servers may be a parent and its child."""
    for x in range(len(parent)):
        if parent[x] == a:
            parent[x] = b
        elif parent[x] == b:
            parent[x] = a
    parent[a], parent[b] = parent[b], parent[a]
    block[a], block[b] = block[b], block[a]


@compiled
def move(
    parent: Ints,
    block: Ints,
    near: Ints,
    near_first: Ints,
    state: State,
    used: Bytes,
) -> bool:
    """Make one small random change to a plan, in place. Return False if the chosen change was not possible; then the
    plan is unchanged.

    ``near`` lists, for each server, the servers with which it exchanges messages. Entries with many messages come
    first. Two servers are chosen for a change. The first is random. In 60 % of the calls the second is chosen from the
    list of the first server, otherwise it is random too.
    """
    n = len(parent)
    kind = random(state)
    v = int(random(state) * n)
    t = int(random(state) * n)
    if random(state) < 0.6 and near_first[v + 1] > near_first[v]:
        # The square makes the busiest ones more likely.
        some = random(state)
        t = near[near_first[v] + int(some * some * (near_first[v + 1] - near_first[v]))]
    if t == v:
        return False
    if kind < 0.45:
        return _relocate(parent, block, v, t, state, used)
    if kind < 0.60:
        # Merge the domain above v with one below it, or move some of a domain's servers into one below v.
        if parent[v] < 0:
            return False
        if random(state) < 0.5:
            return _merge_down(parent, block, v, t)
        return _split_off(parent, block, v, state, used)
    if kind < 0.72:
        # Merge two blocks of one server, or split one.
        if parent[v] < 0:
            return False
        p = parent[v]
        if random(state) < 0.5:
            for k in range(n):
                x = (t + k) % n
                if parent[x] == p and block[x] != block[v]:
                    old = block[x]
                    for y in range(n):
                        if parent[y] == p and block[y] == old:
                            block[y] = block[v]
                    return True
            return False
        alone = True
        for x in range(n):
            if x != v and parent[x] == p and block[x] == block[v]:
                alone = False
                break
        if alone:
            return False
        free = _free_block(parent, block, used)
        old = block[v]
        block[v] = free
        if random(state) < 0.5:
            for x in range(n):
                if x != v and parent[x] == p and block[x] == old and random(state) < 0.5:
                    block[x] = free
        return True
    if kind < 0.82:
        if parent[v] < 0:
            return False
        _exchange(parent, block, v, parent[v])
        return True
    if kind < 0.95:
        _exchange(parent, block, v, t)
        return True
    if parent[v] < 0:
        return False
    reroot(parent, block, v, used)
    return _relocate(parent, block, t, int(random(state) * n), state, used) or True


@inner
def _relocate(parent: Ints, block: Ints, v: int, t: int, state: State, used: Bytes) -> bool:
    """Move the server v and its subtree to the server t. Put v into the domain of t and its parent, into a domain of t
    and its children, or into a new domain of t and v. Return False if this is not possible or changes nothing."""
    if parent[v] < 0 or v == t or _is_below(parent, t, v):
        return False
    way = random(state)
    if way < 0.4 and parent[t] >= 0:
        if parent[v] == parent[t] and block[v] == block[t]:
            return False
        parent[v], block[v] = parent[t], block[t]
        return True
    if way < 0.7:
        start = int(random(state) * len(parent))
        for k in range(len(parent)):
            c = (start + k) % len(parent)
            if parent[c] == t and c != v:
                if parent[v] == t and block[v] == block[c]:
                    return False
                parent[v], block[v] = t, block[c]
                return True
    parent[v] = t
    # It may share its old number with the former members of its block; with a new number it is a separate block.
    block[v] = _free_with(parent, block, v, used)
    return True


@inner
def _free_with(parent: Ints, block: Ints, v: int, used: Bytes) -> int:
    n = len(parent)
    for b in range(n):
        used[b] = 0
    for x in range(n):
        if x != v and parent[x] >= 0:
            used[block[x]] = 1
    for b in range(n):
        if not used[b]:
            return b
    return 0


@inner
def _merge_down(parent: Ints, block: Ints, v: int, t: int) -> bool:
    """Merge two domains of v: a domain of v and some of its children, and the domain of v and its parent. The children
    in the first domain become children of v's parent. Return False if v has no children."""
    n = len(parent)
    chosen = -1
    if parent[t] == v:
        chosen = block[t]
    else:
        for x in range(n):
            if parent[x] == v:
                chosen = block[x]
                break
    if chosen < 0:
        return False
    p, b = parent[v], block[v]
    for x in range(n):
        if parent[x] == v and block[x] == chosen:
            parent[x], block[x] = p, b
    return True


@inner
def _split_off(parent: Ints, block: Ints, v: int, state: State, used: Bytes) -> bool:
    """Move some siblings of v (children of the same parent, in the same block) to a new domain below v."""
    n = len(parent)
    p, b = parent[v], block[v]
    share = random(state)
    free = -1
    for x in range(n):
        if x != v and parent[x] == p and block[x] == b and random(state) < share:
            if free < 0:
                free = _free_block(parent, block, used)
            parent[x], block[x] = v, free
    return free >= 0


# Compiled code that searches for a good plan by simulated annealing.
#
# The search minimises log(cost) + penalty. The *excess* of a plan measures by how much the plan breaks its bounds and
# pins. The penalty is 0 for a plan without excess. For all other plans it is strictness · (excess + 0.05), where the
# strictness is a weight. Each step changes the plan by random moves. During the search the temperature falls and the
# strictness rises. If no better plan is found during a fifth of the search, the search continues from its best plan.
# The result is the cheapest plan without excess or, if every plan has excess, the plan with the least excess.


@inner
def _energy(figures: Floats, strictness: float) -> float:
    excess = figures[EXCESS]
    return float(np.log(figures[COST] + 1e-300) + (strictness * (excess + 0.05) if excess > 1e-9 else 0.0))


@compiled
def better(one: Floats, other: Floats) -> bool:
    """Compare the figures of two plans. Return whether the first plan is better. The plan with less excess over the
    bounds and pins is better. If both have the same excess, the cheaper plan is better."""
    if (one[EXCESS] > 1e-9) != (other[EXCESS] > 1e-9):
        return bool(one[EXCESS] <= 1e-9)
    if one[EXCESS] > 1e-9 and abs(one[EXCESS] - other[EXCESS]) > 1e-9:
        return bool(one[EXCESS] < other[EXCESS])
    return bool(one[COST] < other[COST] * (1.0 - 1e-12))


@compiled
def anneal(
    parent: Ints,
    block: Ints,
    steps: int,
    hot: float,
    cold: float,
    seed: int,
    near: Ints,
    near_first: Ints,
    inputs: Inputs,
    best_parent: Ints,
    best_block: Ints,
    best: Floats,
) -> None:
    """Search for a better plan, starting from the plan ``parent`` and ``block``. Write the best plan found to
    ``best_parent`` and ``best_block``, and its figures to ``best``."""
    n = len(parent)
    state = np.array([seed * 2654435769 + 88172645463325252], np.uint64)
    used = np.zeros(n, np.uint8)
    now_parent, now_block = parent.copy(), block.copy()
    now, new = np.zeros(FIGURES), np.zeros(FIGURES)
    evaluate(now_parent, now_block, inputs, now)
    best_parent[:], best_block[:], best[:] = now_parent, now_block, now
    new_parent, new_block = now_parent.copy(), now_block.copy()
    since = 0
    for step in range(steps):
        new_parent[:] = now_parent
        new_block[:] = now_block
        changed = move(new_parent, new_block, near, near_first, state, used)
        while changed and random(state) < 0.25:
            changed = move(new_parent, new_block, near, near_first, state, used) or changed
        if not changed:
            continue
        evaluate(new_parent, new_block, inputs, new)
        part = step / steps
        heat = hot * (cold / hot) ** part
        strictness = 1.0 + 19.0 * part
        gain = _energy(now, strictness) - _energy(new, strictness)
        if gain >= 0 or random(state) < np.exp(gain / heat):
            now_parent, new_parent = new_parent, now_parent
            now_block, new_block = new_block, now_block
            now, new = new, now
            if better(now, best):
                best_parent[:], best_block[:], best[:] = now_parent, now_block, now
                since = step
        if step - since > steps // 5:
            # Nothing better for a fifth of the search: return to the best plan and continue from there, cooler.
            now_parent[:], now_block[:], now[:] = best_parent, best_block, best
            since = step
