"""Campaigns on groups of objects: a seed, a workload, a bad network; the verdict comes from the trace.

Each seed is one :class:`~antecede.objects.simulation.workload.Workload` whose settings are all drawn. The run is
judged three times. First, from the trace alone, by the checker of significant order, which does not know this protocol.
Second, by conditions that need no order: everything is delivered, once; nothing is blocked; every root ends as planned,
and takes effect everywhere or nowhere. Third, by whether the objects end as if the roots had run one after the other.
"""

from collections import Counter

import msgspec

from antecede.objects import Site
from antecede.objects.simulation.serial import unserial
from antecede.objects.simulation.workload import Driver, Ended, Workload
from antecede.trace import DELIVER, match
from antecede.trace.conflicts import conflicts_in
from antecede.trace.significant import judge_significant


class Judged(msgspec.Struct):
    """One run, and what is wrong with it."""

    seed: int
    ended: Ended | None
    findings: dict[str, list[str]]
    """By kind: ``stuck`` (not delivered, blocked, not atomic), ``serial`` (not as if the roots had run one after the
    other), the rules of significant order, ``error``."""

    def __str__(self) -> str:
        first = "; ".join(f"{kind}: {texts[0]}" for kind, texts in self.findings.items())
        return f"seed {self.seed}: {first or 'nothing found'}\n  replay: antecede objects campaign --seed {self.seed}"


def play(seed: int, *, site: type[Site] = Site, workload: Workload | None = None) -> Judged:
    """Play one seed and judge it."""
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
    for rule, text in broken(ended):
        findings.setdefault(rule, []).append(text)
    return Judged(seed, ended, findings)


def broken(ended: Ended) -> list[tuple[str, str]]:
    """The rules of significant order that a run broke, from its trace alone."""
    trace = match(ended.events)
    if not any(event.kind == DELIVER and event.instance for event in ended.events):
        return []
    verdict = judge_significant(trace, conflicts_in(ended.conflicts(), "conflicts"), every_overtaker=True)
    return [(one.rule, f"{one.message} is late at {one.to}, overtaken by {one.overtaken_by}") for one in verdict.late]


def campaign(seeds: range, site: type[Site] = Site) -> tuple[Counter[str], list[Judged]]:
    """Play many seeds; return counts, and the first five runs with findings."""
    counts: Counter[str] = Counter()
    failed: list[Judged] = []
    for seed in seeds:
        judged = play(seed, site=site)
        counts["runs"] += 1
        counts.update(judged.findings.keys())
        if judged.ended is not None:
            counts["deliveries"] += sum(event.kind == DELIVER for event in judged.ended.events)
            counts["roots"] += len(judged.ended.answers)
            counts["wounds"] += judged.ended.wounds
        if judged.findings:
            counts["failed"] += 1
            if len(failed) < 5:
                failed.append(judged)
    return counts, failed
