"""Traces: the event schema, readers and writers, and the *plain oracle* (the code that judges without Spark whether a
trace keeps an order).

This package knows recorded events and the definition of happened-before. It must not import servers, orders or Spark,
because it judges the results of all three.

* :class:`Event` is one row; :class:`TraceWriter` writes a trace; :func:`read_events` reads one.
* :func:`judge` gets a trace of well-formed events. It decides, directly from the definitions, which orders the trace
  keeps. :func:`needless_delays` finds messages that were held without need.
* :func:`verify` reads traces from outside, sets aside rows that are certainly wrong, and returns the full report.
"""

from antecede.trace.files import TraceWriter, write_trace
from antecede.trace.matched import Matched, match
from antecede.trace.oracle import Delay, judge, needless_delays
from antecede.trace.report import read_events, verify
from antecede.trace.schema import ARRIVE, DELIVER, HOP, LOCAL, SEND, Event, Metadata
from antecede.trace.verdicts import ORDERS, Late, Verdict

__all__ = [
    "ARRIVE",
    "DELIVER",
    "HOP",
    "LOCAL",
    "ORDERS",
    "SEND",
    "Delay",
    "Event",
    "Late",
    "Matched",
    "Metadata",
    "TraceWriter",
    "Verdict",
    "judge",
    "match",
    "needless_delays",
    "read_events",
    "verify",
    "write_trace",
]
