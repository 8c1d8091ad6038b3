"""What carries frames between processes. A transport knows sockets and :mod:`antecede.wire`; it knows no servers.

:mod:`~antecede.transports.tcp` is the one that every server has. Another one offers the same two things: a
:class:`~antecede.server.connections.Connection` that takes lists of parts, and calls into a
:class:`~antecede.server.connections.Receiver`. Nothing above relies on more than this: parts arrive whole, in sequence
and at most once, until the connection ends; what was written to a connection that ended may or may not have arrived.
"""

from antecede.server.connections import Connection, Receiver

__all__ = ["Connection", "Receiver"]
