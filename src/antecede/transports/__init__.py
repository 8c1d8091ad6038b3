"""What carries frames between processes. A transport knows sockets and :mod:`antecede.wire`; it knows no servers.

:mod:`~antecede.transports.tcp` is the one that every server has. Another one offers the same two things: a
:class:`~antecede.transports.contract.Connection` that takes lists of parts, and calls into a
:class:`~antecede.transports.contract.Receiver`. Nothing above relies on more than this: parts arrive whole, in sequence
and at most once, until the connection ends; what was written to a connection that ended may or may not have arrived.
"""

from antecede.transports.contract import Connection, Receiver

__all__ = ["Connection", "Receiver"]
