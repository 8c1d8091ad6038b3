"""Space-time diagrams of a computation: for the terminal, and as SVG.

A diagram is given events in one global sequence that agrees with every process's own (`from_events` makes one from the
rows of a trace), and draws what a person asks of a run: who sent what to whom, what arrived and had to wait, what was
delivered late. It knows nothing of orders; who is late is told by the caller.
"""

from antecede.diagram.computation import Diagram, Event, Row, from_events

__all__ = ["Diagram", "Event", "Row", "from_events"]
