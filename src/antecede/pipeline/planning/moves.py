"""Compiled code for small changes of a plan (*moves*). Each move changes a tree of domains into another tree of
domains.

The moves are: relocate a subtree, merge or split domains, exchange a parent and its child, swap two servers, choose
another root. They change the arrays ``parent`` and ``block`` of a plan (:mod:`antecede.pipeline.planning.kernel`). The
random numbers are generated here (xorshift), so that the same seed gives the same plan on every machine.
"""

import numpy as np
from numpy.typing import NDArray

from antecede.pipeline.kernels import compiled, inner

Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]
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
