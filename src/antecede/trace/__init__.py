"""Traces: the event schema, readers and writers, and the *plain oracle* (the code that judges without Spark whether a
trace keeps an order).

This package knows recorded events and the definition of happened-before. It must not import servers, orders or Spark,
because it judges the results of all three.

* :class:`Event` is one row; :class:`TraceWriter` writes a trace; :func:`read_events` reads one.
* :func:`judge` gets a trace of well-formed events. It decides, directly from the definitions, which orders the trace
  keeps. :func:`needless_delays` finds messages that were held without need.
* :func:`verify` reads traces from outside, sets aside rows that are certainly wrong, and returns the full report.
"""

from antecede.trace.clocks import check_clocks, check_lamport
from antecede.trace.conflicts import Conflicts, conflicts_in, read_conflicts
from antecede.trace.epochs import Area, Epoch, Epochs, epochs_in, epochs_of
from antecede.trace.explain import Chains, ExplainRequest, Link, rows_of
from antecede.trace.exporting import export, view_of
from antecede.trace.files import TraceWriter, write_trace
from antecede.trace.matched import Matched, match
from antecede.trace.oracle import Delay, cycle_in, judge, needless_delays, pasts
from antecede.trace.quarantine import sift
from antecede.trace.races import Declared, Wanted, find_races
from antecede.trace.report import read_events, verify
from antecede.trace.schema import (
    ARRIVE,
    DELIVER,
    HOP,
    LOCAL,
    NEEDED,
    SEND,
    Event,
    Fault,
    Mended,
    Metadata,
    Nulled,
    event_of,
    metadata_bytes,
    metadata_of,
)
from antecede.trace.significant import Explainer, Instances, judge_significant
from antecede.trace.sources import Cut, load, trace_files
from antecede.trace.streaming import Arrays, Lanes, judge_large
from antecede.trace.titles import Titles, short_id
from antecede.trace.verdicts import ORDERS, Late, Verdict

__all__ = [
    "ARRIVE",
    "DELIVER",
    "HOP",
    "LOCAL",
    "NEEDED",
    "ORDERS",
    "SEND",
    "Area",
    "Arrays",
    "Chains",
    "Conflicts",
    "Cut",
    "Declared",
    "Delay",
    "Epoch",
    "Epochs",
    "Event",
    "ExplainRequest",
    "Explainer",
    "Fault",
    "Instances",
    "Lanes",
    "Late",
    "Link",
    "Matched",
    "Mended",
    "Metadata",
    "Nulled",
    "Titles",
    "TraceWriter",
    "Verdict",
    "Wanted",
    "check_clocks",
    "check_lamport",
    "conflicts_in",
    "cycle_in",
    "epochs_in",
    "epochs_of",
    "event_of",
    "export",
    "find_races",
    "judge",
    "judge_large",
    "judge_significant",
    "load",
    "match",
    "metadata_bytes",
    "metadata_of",
    "needless_delays",
    "pasts",
    "read_conflicts",
    "read_events",
    "rows_of",
    "short_id",
    "sift",
    "trace_files",
    "verify",
    "view_of",
    "write_trace",
]
