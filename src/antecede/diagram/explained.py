"""The diagram of an explanation: just the events that it names, with the late delivery marked.

An explanation comes from :mod:`antecede.trace.explain`, or from another engine in the same form.
"""

from typing import Any

from antecede.diagram.computation import Diagram, from_events
from antecede.diagram.layout import shorten
from antecede.trace.explain import rows_of


def of_explanation(explanation: dict[str, Any]) -> Diagram:
    """Draw an overtaking chain, or messages in a cycle."""
    rows = rows_of(explanation)
    length = explanation["length"]
    if "chain" not in explanation:
        return from_events(rows, title=f"a cycle of {length} messages")
    chain = explanation["chain"]
    way = [explanation["from"], *(end for link in chain for end in (link["from"], link["to"]) if end is not None)]
    message, to = explanation["message"], explanation["to"]
    called, source, target = (shorten(explanation[key], 40) for key in ("message", "from", "to"))
    messages = "1 message" if length == 1 else f"{length:,} messages"
    title = f"{called} from {source} to {target}, overtaken by {messages}"
    return from_events(rows, processes=list(dict.fromkeys(way)), late={(message, to)}, title=title)
