"""The faults in a world of servers, and their frequency.

Each number of faults is the total for all servers together. Each fault comes at a moment that the seed chooses, before
the world becomes calm.

A crash comes **between two effects** of a server. An effect is mainly one step, one reaction, one sent frame, or one
operation of the disk, such as a write or a sync. The seed chooses the effect after which the server crashes. A crash
may also come while a server is recovering.
"""

import msgspec


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """The kinds of faults in a world, and how often each comes. ``NONE`` has no faults, and ``ROUGH`` has many."""

    crashes: int = 0
    """The number of times that a crash of a server is planned. The server crashes between two effects (for example,
    between two steps or two writes)."""
    stops: int = 0
    """The number of times that a server is stopped gracefully and starts again."""
    powercuts: float = 0.5
    """The probability that a crash without a failed sync is a power cut. A power cut may undo unsynced writes, change
    their sequence, or leave only a part of a write on the disk. In the other crashes only the process is killed. If a
    server has the durability ``os``, its process is killed in all its crashes."""
    broken_syncs: float = 0.0
    """The share of crashes in which a sync of the disk fails."""
    loss: float = 0.0
    """The probability that a frame between servers is lost."""
    duplicates: float = 0.0
    partitions: int = 0
    """The number of times that two servers cannot reach each other for a while."""
    resets: int = 0
    """The number of times that a connection (between two servers, or between a client and its server) breaks and comes
    back."""
    slow_disks: int = 0
    """The number of times that a server's syncs become very slow. They stay slow until the world becomes calm."""
    full_disks: int = 0
    """The number of times that a server's log has no space for more records for a while."""
    overloads: int = 0
    """The number of times that a server is above its high-water mark for a while, so that it refuses publishes."""
    operators: int = 0
    """The number of times that an operator sends a server's dead letters again, or deletes them."""
    client_kills: int = 0
    """The number of times that a client's process is killed. Each time, a new process starts under the same name."""
    takeovers: int = 0
    """The number of times that another process takes a client's name while the client's first process is still
    connected."""
    silences: int = 0
    """The number of connections (between two servers, or between a client and its server) that become silent: after
    some moment, everything that is sent on the connection is lost. Both ends must notice this."""
    old_versions: float = 0.0
    """The probability that a process of a server or a client uses only the oldest version of the wire protocol.
    The version is chosen at random each time that a process starts."""
    stalls: int = 0
    """The number of times that one end of a connection (a server or a client) stops reading for a while."""
    clock_jumps: int = 0
    """The number of times that a server's wall clock is set forward or back."""
    looks: int = 0
    """The number of times that a server does its regular work: it takes a snapshot, deletes log files that are no
    longer needed, and checks its connections."""
    failed_snapshots: float = 0.0
    """The probability that a snapshot cannot be written. The server tries again later."""
    failures: float = 0.0
    """The probability that a reaction of an agent, or a handler of a client, fails at its first try."""
    seconds: float = 1.0
    """The length of the fault period, in seconds of virtual time. After this period the world is calm."""


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
replaced loses publishes that were not accepted. Overloads are left out, because they can change the sequence of a
client's publishes: the client sends a refused publish again later, when newer publishes may already be accepted."""
