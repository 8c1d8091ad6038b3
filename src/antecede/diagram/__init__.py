"""Space-time diagrams of a computation: for the terminal, and as SVG.

The caller gives the events of all processes in one global sequence. The events of one process stay in their order.
(`from_events` makes such a sequence from the rows of a trace.) The diagram shows which messages were sent to which
processes, which messages had to wait after their arrival, and which messages were delivered late. This package does not
find the late deliveries: the caller passes them.
"""

from antecede.diagram.computation import Diagram, Event, from_events, of_explanation, printable
from antecede.diagram.svg import Box, Layout, Place, draw_stack, label_boxes
from antecede.trace.schema import Event as Row

__all__ = [
    "Box",
    "Diagram",
    "Event",
    "Layout",
    "Place",
    "Row",
    "draw_stack",
    "from_events",
    "label_boxes",
    "of_explanation",
    "printable",
]
