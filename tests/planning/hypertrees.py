"""Every tree of domains over a few servers, as the kernel takes plans: 29 for 4 servers, 1,722,681 for 8.

A tree of domains is a tree of servers with the children of each server split into blocks
(:mod:`antecede.pipeline.planning.kernel`). Trees come from Prüfer codes, partitions from restricted growth strings.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

COUNTS = {2: 1, 3: 4, 4: 29, 5: 311, 6: 4_447, 7: 79_745, 8: 1_722_681}
"""How many there are (OEIS A030019)."""


@cache
def hypertrees(servers: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Parents and blocks of all of them, one in each row."""
    parents, blocks = [], []
    for parent in _trees(servers):
        children: dict[int, list[int]] = {}
        for server, above in enumerate(parent):
            if above >= 0:
                children.setdefault(above, []).append(server)
        # A block is numbered by its first server, so that numbers differ between parents.
        choices = [list(_partitions(tuple(own))) for own in children.values()]
        for chosen in product(*choices):
            block = [0] * servers
            for some in chosen:
                for server, number in some:
                    block[server] = number
            parents.append(parent)
            blocks.append(block)
    return np.array(parents, np.int32), np.array(blocks, np.int32)


@cache
def _partitions(items: tuple[int, ...]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """All partitions of some servers, as (server, first server of its block)."""
    if not items:
        return ((),)
    found = []
    for rest in _partitions(items[:-1]):
        last = items[-1]
        for number in sorted({number for _, number in rest}):
            found.append((*rest, (last, number)))
        found.append((*rest, (last, last)))
    return tuple(found)


def _trees(servers: int) -> Iterator[list[int]]:
    """All labelled trees, as the parent of each server when 0 is the root."""
    for code in product(range(servers), repeat=max(0, servers - 2)):
        degree = [1] * servers
        for server in code:
            degree[server] += 1
        edges: list[list[int]] = [[] for _ in range(servers)]
        for server in code:
            leaf = degree.index(1)
            edges[leaf].append(server)
            edges[server].append(leaf)
            degree[leaf] -= 1
            degree[server] -= 1
        one, other = (server for server, left in enumerate(degree) if left == 1)
        edges[one].append(other)
        edges[other].append(one)
        parent = [-1] * servers
        waiting = [0]
        for server in waiting:
            for near in edges[server]:
                if near != parent[server]:
                    parent[near] = server
                    waiting.append(near)
        yield parent
