"""The live server and the bus: thin adapters (asyncio) around the classes of :mod:`antecede.server`.

They own sockets, the log's commit thread, clocks and tasks, and no rule of the protocol. *Persist, then send, then
acknowledge* is the driver's gate (:mod:`antecede.server.gate`); what a server does when the disk is full, or when too
much waits, is the driver's too. Here it is carried out.

``server`` and ``process`` run one server; ``tcp`` carries frames; ``client`` is the bus for programs that are no
agents. Another transport offers what ``tcp`` does: a :class:`~antecede.server.connections.Connection` that calls a
:class:`~antecede.server.connections.Receiver`. Nothing above relies on more than this: parts arrive whole, in sequence
and at most once, until the connection ends; what was written to a connection that ended may or may not have arrived.

**The data directory** remembers in its first record whose it is and under which topology. Another server's directory,
or one of another topology, is refused by name.
"""

from antecede.live.server import ServerRuntime

__all__ = ["ServerRuntime"]
