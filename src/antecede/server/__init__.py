"""A server without I/O: one state machine, and what drives and connects it.

``node`` has the state machine, and ``driver`` takes its steps, stores their records and lets output leave. ``core``
puts a whole server together: ``peering`` (other servers), ``entry`` and ``sessions`` (incoming connections and
clients), ``operations`` (operators' commands) and ``participation`` (changes of the topology). ``client`` and
``operator`` are the other ends of connections."""

from antecede.server.inputs import Accepted, Denied, FromPeer, Plan, Refused, Step
from antecede.server.node import CATCHING_UP, AgentServer, Input

__all__ = ["CATCHING_UP", "Accepted", "AgentServer", "Denied", "FromPeer", "Input", "Plan", "Refused", "Step"]
