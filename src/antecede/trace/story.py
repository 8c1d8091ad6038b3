"""Describe in sentences how a message was overtaken.

An example: ``ann sent X to bob and cy; bob delivered it and sent Y to cy; cy delivered Y before X``.

The same sentences are printed by ``explain``, drawn below a diagram and written into reports.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

Name = Callable[[str], str]
"""A function that returns a readable name of a message or a process."""
Place = Callable[[str, int], str]
"""A function that returns the location of a row in the trace as a text, for example ``index 7``. Its arguments are the
process and the index of the row."""


def clauses(explanation: Mapping[str, Any], title: Name, name: Name = str, at: Place | None = None) -> list[str]:
    """Return the steps by which a message was overtaken, as one clause per step, first to last. If ``at`` is given, the
    clauses also say where each event is recorded."""

    def where(process: str, index: int) -> str:
        return "" if at is None else f" ({at(process, index)})"

    chain = explanation["chain"]
    late, source, target = title(explanation["message"]), name(explanation["from"]), name(explanation["to"])
    first = chain[0]
    sent = f"{source} sent {late}{where(explanation['from'], explanation['send_index'])}"
    if first["message"] == explanation["message"]:
        steps = [f"{sent} to {name(first['to'])} and {target}"]
        delivered = "it"
    else:
        delivered = title(first["message"])
        then = f"{delivered}{where(first['from'], first['send_index'])}"
        steps = [f"{sent} to {target}, then {then} to {name(first['to'])}"]
    for before, link in pairwise(chain):
        there = where(before["to"], before["deliver_index"])
        this = title(link["message"])
        onward = where(link["from"], link["send_index"])
        steps.append(f"{name(link['from'])} delivered {delivered}{there} and sent {this}{onward} to {name(link['to'])}")
        delivered = this
    early = where(explanation["to"], chain[-1]["deliver_index"])
    at_last = where(explanation["to"], explanation["deliver_index"])
    steps.append(f"{target} delivered {delivered}{early} before {late}{at_last}")
    return steps


def sentence(explanation: Mapping[str, Any], title: Name, name: Name = str) -> str:
    """Return the steps by which a message was overtaken, as one sentence."""
    return "; ".join(clauses(explanation, title, name))


def is_causal_chain(explanation: Mapping[str, Any]) -> bool:
    """Return whether :func:`clauses` can describe an explanation. This is possible if the explanation contains a chain
    of messages as in causal order: the sender of each message first delivered the previous message of the chain.
    Explanations of significant order contain another kind of chain."""
    return bool(explanation.get("chain")) and not any("after" in link for link in explanation["chain"])
