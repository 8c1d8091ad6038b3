"""Conditions on all processes together: every process has finished, and their histories do not contradict each
other."""

from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from antecede.simulator.explorer.local import UNSENT, Finding, Local
from antecede.simulator.explorer.scope import Scope


def unfinished(process: int, local: Local, wanted: int, idle: bool, scope: Scope) -> Finding | None:
    """Check a process at a moment when nothing is in flight. Return a finding if the process has not finished,
    otherwise None. A process has finished when it has delivered all messages addressed to it (``wanted``, a bit mask),
    has sent all messages of its application, and holds no message (``idle``)."""
    missing = wanted & ~local.delivered
    if missing:
        bit = missing.bit_length() - 1
        return Finding("undelivered", process, bit, "nothing is in flight, and {process} has not delivered {message}")
    if UNSENT in local.befores:
        bit = scope.bit(process, local.befores.index(UNSENT))
        return Finding("undelivered", process, bit, "nothing is in flight, and {message} of {process} was never sent")
    if not idle:
        return Finding("undelivered", process, -1, "nothing is in flight, and {process} still holds a message")
    return None


def crossed(histories: tuple[tuple[int, ...], ...], guarantees: frozenset[str]) -> Finding | None:
    """Return a finding if the histories of all processes together break the guarantee ``total`` or ``synchronous``;
    otherwise None. Only the guarantees in ``guarantees`` are checked."""
    if "total" in guarantees:
        circle = _circle([[bit for bit in history if bit >= 0] for history in histories])
        if circle:
            return Finding("total", -1, -1, f"no sequence agrees with all deliveries: {circle}")
    if "synchronous" in guarantees:
        circle = _circle([[max(bit, ~bit) for bit in history] for history in histories])
        if circle:
            return Finding("synchronous", -1, -1, f"the messages cannot be drawn as vertical arrows: {circle}")
    return None


def _circle(lines: list[list[int]]) -> str:
    """Return a cycle of messages as a text of their bit numbers, for example ``[0] before [3] before [0]``. Return an
    empty text if there is no cycle. Each message of the cycle comes directly before the next one in one of the
    sequences ``lines``."""
    graph: dict[int, set[int]] = {}
    for line in lines:
        for earlier, later in pairwise(line):
            if earlier != later:
                graph.setdefault(later, set()).add(earlier)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " before ".join(f"[{bit}]" for bit in error.args[1])
    return ""
