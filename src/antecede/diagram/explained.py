"""The diagram of an explanation: only the events that the explanation names, with the late delivery marked.

:mod:`antecede.trace.explain` describes the form of an explanation. The form is the same for all engines.
"""

from typing import Any

from antecede.diagram.computation import Diagram, from_events
from antecede.trace.explain import is_causal_chain, rows_of, sentence
from antecede.trace.titles import Titles, short_id


def of_explanation(explanation: dict[str, Any], titles: Titles | None = None) -> Diagram:
    """Return the diagram of an explanation. It shows a late message and the chain of messages that overtook it, or the
    messages of a cycle."""
    titles = titles or Titles()
    rows = rows_of(explanation)
    length = explanation["length"]
    if "chain" not in explanation:
        return from_events(rows, title=f"a cycle of {length} messages", names=titles.brief)
    chain = explanation["chain"]
    way = [explanation["from"], *(end for link in chain for end in (link["from"], link["to"]) if end is not None)]
    message, to = explanation["message"], explanation["to"]
    called, target = titles(message), short_id(to, 40)
    caption = (
        sentence(explanation, titles.quoted, lambda name: short_id(name, 40)) if is_causal_chain(explanation) else ""
    )
    return from_events(
        rows,
        processes=list(dict.fromkeys(way)),
        late={(message, to)},
        title=f"{target} delivered {called} late",
        caption=caption,
        names=titles.brief,
    )
