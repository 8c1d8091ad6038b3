"""The faults in a world of servers, and their frequency.

Counts are for all servers together. Until the world is calm, each fault comes at a moment that the seed chooses. A
crash comes **between two effects**: an effect is one step, one append, write or sync, or one frame that leaves. A crash
may also come while a server is recovering. The seed chooses the effect after which the server crashes.
"""

import msgspec


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """The faults of a world; ``NONE`` has none and ``ROUGH`` has many."""

    crashes: int = 0
    """The number of crashes of servers, each between two effects."""
    stops: int = 0
    """The number of times that a server is stopped gracefully and starts again."""
    powercuts: float = 0.5
    """The share of crashes in which unsynced writes are lost, torn or reordered. In the other crashes the process is
    killed."""
    broken_syncs: float = 0.0
    """The share of crashes in which the disk fails."""
    loss: float = 0.0
    """Share of the frames between servers that are lost."""
    duplicates: float = 0.0
    partitions: int = 0
    """The number of times that two servers cannot reach each other for a while."""
    resets: int = 0
    """The number of times that a connection, of a server or a client, breaks and comes back."""
    slow_disks: int = 0
    """The number of times that a server's syncs take very long for a while."""
    full_disks: int = 0
    """The number of times that a server's log has no space for more records for a while."""
    overloads: int = 0
    """The number of times that a server is above its high-water mark for a while, so that it refuses publishes."""
    operators: int = 0
    """The number of times that an operator sends a server's dead letters again, or takes them off the list."""
    client_kills: int = 0
    """The number of times that a client's process is killed; another one starts under the same name."""
    takeovers: int = 0
    """The number of times that another process takes a client's name while the first is still connected."""
    silences: int = 0
    """The number of connections, of servers or clients, on which everything is lost from some moment on. Both ends must
    notice this."""
    old_versions: float = 0.0
    """Share of the lives of servers and clients in which they use only the oldest wire version."""
    stalls: int = 0
    """The number of times that one end of a connection, of a server or a client, stops reading for a while."""
    clock_jumps: int = 0
    """The number of times that a server's wall clock is set forward or back."""
    looks: int = 0
    """The number of times that a server does its regular work: it takes a snapshot, deletes log files that are no
    longer needed, and checks its connections."""
    failed_snapshots: float = 0.0
    """Share of the snapshots that cannot be written, and are tried again later."""
    failures: float = 0.0
    """Share of the reactions that fail at their first try."""
    seconds: float = 1.0
    """The length of the fault period, in virtual time; after it the world is calm."""


NONE = Faults()
ROUGH = Faults(
    crashes=4,
    broken_syncs=0.1,
    loss=0.1,
    duplicates=0.05,
    partitions=1,
    resets=2,
    slow_disks=1,
    full_disks=1,
    stalls=2,
    clock_jumps=2,
    looks=3,
    failures=0.05,
)
"""Common faults of servers, disks and connections. Faults of clients are left out, because a client that is killed or
replaced loses publishes that were not accepted. Overloads are left out, because a client sends refused publishes again
later, after its newer ones."""
