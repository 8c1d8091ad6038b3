"""The live server and the bus: thin adapters (asyncio) around the classes of :mod:`antecede.server`.

They own sockets, the log's commit thread, clocks and tasks. They contain no rule of the protocol. The driver's gate
(:mod:`antecede.server.driver.gate`) ensures *persist, then send, then acknowledge*. The driver also decides what
happens when the disk is full, or when the server is overloaded. This package carries out the driver's decisions.

``server`` and ``process`` run one server; ``tcp`` carries frames; ``client`` is the bus for programs that are not
agents. Another transport must offer the same as ``tcp``: a :class:`~antecede.server.connections.Connection` that calls
a :class:`~antecede.server.connections.Receiver`. The code that uses a connection assumes only this: until the
connection ends, the parts (:class:`antecede.wire.Part`) that are sent arrive complete, in sequence and at most once.
After it has ended, the last parts may or may not have arrived.

**The data directory** names its server in its first record, and its log contains the topology in force. A server
refuses the directory of another server. It also refuses a topology file that was never in force and is not staged, if
this file would change something for the server. If the file was in force earlier, the server uses the topology that is
in force now (:mod:`antecede.server.recovery`).
"""

from antecede.live.server import ServerRuntime

__all__ = ["ServerRuntime"]
