"""Raise the limit of open file descriptors as far as the system allows, and leave some descriptors for the log.

A process begins with a soft limit, often 1,024. The process may raise this limit up to a hard limit. Every connection
and every open file needs a descriptor. Therefore the number of connections is kept below the limit, so that the log can
still open files.
"""

import resource

from antecede import limits
from antecede.errors import UsageError


def raise_limit() -> None:
    """Raise this process's soft limit to the number of descriptors that a server may need, as far as the hard limit
    allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.descriptors_wanted if hard == resource.RLIM_INFINITY else min(limits.descriptors_wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_possible(dialed: int) -> int:
    """Return how many incoming connections this process may have at the same time. The number is limited, so that
    enough descriptors remain for the log and for ``dialed`` outgoing connections. Raise UsageError if too few
    descriptors remain for incoming connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits.connections_max
    room = soft - limits.descriptors_reserved - dialed
    if room < _connections_min:
        needed = limits.descriptors_reserved + dialed + _connections_min
        raise UsageError(f"this process may open only {soft} files, but needs {needed}: raise the limit (ulimit -n)")
    return min(limits.connections_max, room)


_connections_min = 32
