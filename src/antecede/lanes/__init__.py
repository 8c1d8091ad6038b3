"""Causal order over a broker that you already have: Kafka, NATS JetStream, Redis Streams, RabbitMQ.

``frontier`` has the header and what a producer knows of its past; ``box`` decides when a consumer's handlers may start.
Both are sans-I/O and use the standard library only. Everything that needs an event loop or a client library is in the
other modules, and this module imports none of them.
"""

from antecede.lanes.box import Arrival, Box, Question, Verdict
from antecede.lanes.frontier import Context, LanesError, Stamp, decode, track_of

__all__ = ["Arrival", "Box", "Context", "LanesError", "Question", "Stamp", "Verdict", "decode", "track_of"]
