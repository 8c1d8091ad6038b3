"""Random runs of groups of objects on faulty networks, and their verdicts.

Each seed gives one :class:`~antecede.objects.simulation.workload.Workload` with random settings. Its run is correct if
four conditions hold:

1. No delivery broke a rule of significant order, the order that the objects guarantee. The checker of this order uses
   only the trace. It does not know the protocol.
2. Every message was delivered exactly once, nothing is blocked, and every root ended as planned. The effects of a root
   are at all objects that it called, or at none.
3. The final states are the same as if the roots had run one after the other.
4. Conflicting roots with the same home began in the sequence in which they were started.
"""

import msgspec

from antecede.objects import Site
from antecede.objects.simulation.serial import unserial
from antecede.objects.simulation.workload import Driver, Ended, Workload
from antecede.trace import DELIVER, LOCAL, match
from antecede.trace.conflicts import conflicts_in
from antecede.trace.significant import judge_significant


class Judged(msgspec.Struct):
    """One run, and what is wrong with it."""

    seed: int
    ended: Ended | None
    findings: dict[str, list[str]]
    """The problems of the run, by kind. ``error``: the run raised an exception. ``stuck``: for example, a message was
    not delivered, something is blocked or not atomic, or the parts of a state do not agree. ``serial``: the result is
    not the same as if the roots had run one after the other. ``admission``: a root began before an older conflicting
    root of the same home. Any other kind is the name of a rule of significant order that a delivery broke."""

    def __str__(self) -> str:
        first = "; ".join(f"{kind}: {texts[0]}" for kind, texts in self.findings.items())
        return f"seed {self.seed}: {first or 'nothing found'}"


def play(seed: int, *, site: type[Site] = Site, workload: Workload | None = None) -> Judged:
    """Run a workload, and judge the run. If ``workload`` is None, the workload is drawn at random from ``seed``."""
    driver = Driver(workload or Workload.drawn(seed), site)
    try:
        ended = driver.run()
    except Exception as error:
        # A broken variant may do anything; this, too, is a finding.
        return Judged(seed, None, {"error": [repr(error)]})
    findings: dict[str, list[str]] = {}
    if ended.problems:
        findings["stuck"] = ended.problems
    elif wrong := unserial(ended):
        findings["serial"] = wrong
    if overtaken := overtaking(ended):
        findings["admission"] = overtaken
    for rule, text in broken(ended):
        findings.setdefault(rule, []).append(text)
    return Judged(seed, ended, findings)


def overtaking(ended: Ended) -> list[str]:
    """Find conflicting roots of one process that began in the wrong order: the root that was started later began
    first. Return a text for each such pair. Only the first try of each root is examined. Later tries may begin in
    another order, because a root may be aborted to let an older root continue."""
    found: list[str] = []
    begun: dict[str, list[tuple[int, str, str]]] = {}
    for event in ended.events:
        root = event.instance or ""
        if event.kind != LOCAL or event.type != "begin" or "/" in root or "~" in root:
            continue
        operation, number = event.operation or "", int(root.rpartition(".")[2])
        here = begun.setdefault(event.process, [])
        found += [
            f"{other} begins at {event.process} before {root}, which is older"
            for later, other, earlier in here
            if later > number and ended.relation.conflict(earlier, operation)
        ]
        here.append((number, root, operation))
    return found


def broken(ended: Ended) -> list[tuple[str, str]]:
    """Return a pair (rule, text) for each delivery that broke a rule of significant order. Use only the trace."""
    trace = match(ended.events)
    if not any(event.kind == DELIVER and event.instance for event in ended.events):
        return []
    verdict = judge_significant(trace, conflicts_in(ended.conflicts(), "conflicts"), every_overtaker=True)
    return [(one.rule, f"{one.message} is late at {one.to}, overtaken by {one.overtaken_by}") for one in verdict.late]
