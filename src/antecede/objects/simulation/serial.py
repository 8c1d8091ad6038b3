"""Check that a run ends as if its roots had run alone, one after the other.

Significant order determines the sequence in which messages are delivered. Locks and intentions
(:mod:`antecede.objects.replay`) hide the effects of a root until it commits, and then apply the effects as if the root
had run alone. The checker of significant order examines only messages. This module checks the effects. Suppose that
instances of two roots conflict at an object. The trace shows which of these instances began first. The root of this
instance must come before the other root. There must be *one* sequence of all roots that fulfils all these conditions.
The roots are then computed in that sequence, on plain dictionaries and without any protocol. This must lead to the same
final states of the objects.
"""

from graphlib import CycleError, TopologicalSorter

from antecede.objects.simulation.workload import Ended, Plan, changed
from antecede.orders.relation import Relation
from antecede.trace import LOCAL


def unserial(ended: Ended) -> list[str]:
    """Compute the roots one after the other, in a sequence that agrees with the trace. Return a text for each object
    whose final state is not the same as in the run. If no sequence agrees with the trace, return one text that reports
    this fact."""
    try:
        order = list(TopologicalSorter(_earlier(ended)).static_order())
    except CycleError as error:
        return [f"each of {', '.join(error.args[1])} must come before the next, because their instances conflict"]
    cells: dict[str, dict[str, int]] = {name: {} for name in ended.names}
    for root in order:
        home, plan = ended.lasting[root]
        _compute((home,), plan, ended.relation, cells)
    return [
        f"{name} ends with {ended.cells[name]}: expected {cells[name]}, after {', '.join(order)}"
        for name in ended.names
        if ended.cells[name] != cells[name]
    ]


def _earlier(ended: Ended) -> dict[str, set[str]]:
    """Return, for each committed root, the roots that must come before it. Root A must come before root B if, at some
    object, an instance of A began before a conflicting instance of B."""
    committed = {(event.process, event.instance) for event in ended.events if _is(event.type, "commit", event.kind)}
    before: dict[str, set[str]] = {root: set() for root in ended.lasting}
    begun: dict[str, set[tuple[str, str]]] = {name: set() for name in ended.names}
    for event in ended.events:
        if not _is(event.type, "begin", event.kind) or (event.process, event.instance) not in committed:
            continue
        root = (event.instance or "").partition("/")[0].partition("~")[0]
        operation = event.operation or ""
        here = begun[event.process]
        before.setdefault(root, set()).update(
            other for other, earlier in here if other != root and ended.relation.conflict(earlier, operation)
        )
        here.add((root, operation))
    return before


def _is(type_: str | None, wanted: str, kind: str) -> bool:
    return kind == LOCAL and type_ == wanted


def _compute(at: tuple[str, ...], plan: Plan, relation: Relation, cells: dict[str, dict[str, int]]) -> None:
    """Compute an operation: first its nested calls, then the operation itself at each of the objects in ``at``. All
    these objects make the same nested calls, so each nested call is computed only once. Calls that fail have no effect
    and are left out."""
    for to, called in plan.calls:
        if not called.fails:
            _compute(to, called, relation, cells)
    for name in at:
        changed(cells[name], relation, plan.operation, plan.tag)
