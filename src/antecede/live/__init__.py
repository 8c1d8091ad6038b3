"""The live server and the bus: thin adapters (asyncio) around the classes of :mod:`antecede.server`.

They own sockets, the log's commit thread, clocks and tasks, but contain no rules of the protocol. The driver
(:mod:`antecede.server.driver`) makes the decisions, and this package carries them out. For example, the driver decides
what happens when the disk is full, or when the server is overloaded. The driver's gate
(:mod:`antecede.server.driver`) ensures *persist, then send, then acknowledge*.

``server`` and ``process`` run one server, ``tcp`` sends and receives frames, and ``client`` is the bus for programs
that are not agents. A transport that replaces ``tcp`` must offer the same as ``tcp``: a
:class:`~antecede.server.connections.Connection` that calls a :class:`~antecede.server.connections.Receiver`. The code
that uses a connection assumes only this: until the connection ends, the connection delivers the sent parts
(:class:`antecede.wire.Part`) completely, in sequence and at most once. When a connection ends, its last parts may be
lost.

**The data directory** contains the log. The first record of the log names the server, and the log contains the topology
in force. A server does not start with the data directory of another server. It also does not start if the topology file
contains a different topology, and the difference concerns this server. There are two exceptions: the topology in the
file was in force earlier, or belongs to a change that this server has prepared (staged). In both cases, the server
starts, and uses the topology that is in force now (:mod:`antecede.server.recovery`).
"""

from antecede.live.server import ServerRuntime

__all__ = ["ServerRuntime"]
