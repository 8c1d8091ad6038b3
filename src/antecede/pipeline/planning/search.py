"""The search for good plans: it runs simulated annealing many times, from good start plans, and combines the results.

Each run of the annealing is a separate task, with a start plan and a random seed. Tasks run two at a time in threads of
this process (the kernel does not hold the interpreter's lock), or as Spark tasks. The number of tasks and the number of
their steps depend only on the problem and never on the clock. So the same seed gives the same plan on every machine.

The **Pareto front** consists of the plans that no other plan beats in all three figures: cost, hops and the load of the
busiest router. It is chosen from the results of all tasks, the reference plans, and the simple plans that were tried
before the first task. Some tasks are needed only for the front. They search for plans in which the busiest router
forwards less than in the best plan.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np

from antecede import limits
from antecede.pipeline.planning import annealing, kernel, plans
from antecede.pipeline.planning.problem import Bounds, Figures, Plan, Problem

ReportProgress = Callable[[int, int], None]
"""A function that is called after each task, with the number of finished tasks and the number of all tasks."""

_hot, _warm, _cold = 0.15, 0.04, 0.0004
"""Temperatures of the annealing. A task begins at ``_hot`` or, if it only improves the best plan, at ``_warm``. Every
task ends at ``_cold``. For example, at a temperature of 0.04, a change that increases the cost by 4 % is accepted with
a probability of about 37 % (1/e)."""


class Task(msgspec.Struct, frozen=True):
    """The input of one run of the annealing: the start plan (``parent`` and ``block``), the random seed, the number of
    steps, and the temperature at the start (``heat``)."""

    parent: bytes
    block: bytes
    seed: int
    steps: int
    heat: float
    share: float | None = None
    """A tighter bound for the share of all messages that the busiest router forwards. It replaces the requested bound
    ``max_share``."""


class Candidate(msgspec.Struct, frozen=True):
    """A plan and its figures."""

    plan: Plan
    figures: Figures


class Outcome(msgspec.Struct):
    """The result of a search."""

    best: Candidate
    references: dict[str, Candidate | None]
    front: list[Candidate]


Run = Callable[[Problem, Sequence[Task]], Iterator[tuple[bytes, bytes]]]
"""A function that runs tasks. It returns the parents and the blocks of the best plan of each task, in the order of the
tasks."""


def search(
    problem: Problem, seed: int, run: "Run | None" = None, report_progress: ReportProgress = lambda done, all_: None
) -> Outcome:
    """Search for plans. Return the best plan, the reference plans for comparison, and the Pareto front."""
    references = dict(_references(problem))
    starts = [one.plan for one in references.values() if one is not None]
    starts += [plans.plan_of(domains, problem.n) for domains in plans.communities(problem, seed)]
    steps = effort(problem, len(starts))
    carry_out = run or here
    found = [one for one in references.values() if one is not None]
    # Two more from the best of them, cooler, each with another random seed, and three for the front.
    total = len(starts) + 2 + 3
    done = 0

    def collect(wanted: Sequence[Task]) -> list[Candidate]:
        nonlocal done
        ended = []
        for parent, block in carry_out(problem, wanted):
            plan = np.frombuffer(parent, np.int32).copy(), np.frombuffer(block, np.int32).copy()
            ended.append(Candidate(plan, problem.figures(plan)))
            done += 1
            report_progress(done, total)
        return ended

    found += collect(_tasks(starts, steps, seed, _hot))
    best = choose(found)
    found += collect(_tasks([best.plan] * 2, steps * len(starts) // 2, seed + 1, _warm))
    best = choose(found)
    if best.figures.feasible:
        lower_shares = [best.figures.busiest_share * share for share in (0.7, 0.4, 0.2)]
        wanted = _tasks([best.plan] * len(lower_shares), steps, seed + 2, _hot)
        pairs = zip(wanted, lower_shares, strict=True)
        found += collect([msgspec.structs.replace(task, share=share) for task, share in pairs])
    report_progress(total, total)
    return Outcome(choose(found), references, front_of(found))


def effort(problem: Problem, starts: int) -> int:
    """Return the number of steps of each task. Large problems get fewer steps."""
    evaluations = limits.plan_work_max / problem.work()
    per_task = int(evaluations / (2 * starts + 3))
    return max(200, min(per_task, 400 * problem.n + 4_000))


def _tasks(starts: Iterable[Plan], steps: int, seed: int, heat: float) -> list[Task]:
    return [
        Task(parent.tobytes(), block.tobytes(), 1_000_003 * seed + number, steps, heat)
        for number, (parent, block) in enumerate(starts)
    ]


def annealed(problem: Problem, task: Task) -> tuple[bytes, bytes]:
    """Run one task; return the best plan's parents and blocks."""
    if task.share is not None:
        problem = problem.bounded(msgspec.structs.replace(problem.bounds, max_share=task.share))
    parent, block = np.frombuffer(task.parent, np.int32), np.frombuffer(task.block, np.int32)
    best_parent, best_block, best = parent.copy(), block.copy(), np.zeros(kernel.FIGURES)
    given = parent, block, task.steps, task.heat, _cold, task.seed, problem.near, problem.near_first
    annealing.anneal(*given, problem.inputs, best_parent, best_block, best)
    return best_parent.tobytes(), best_block.tobytes()


def here(problem: Problem, tasks: Sequence[Task]) -> Iterator[tuple[bytes, bytes]]:
    """Run tasks in this process, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(lambda task: annealed(problem, task), tasks)


def on_spark(context: Any) -> Run:
    """Return a function that runs each task as a Spark task."""

    def run(problem: Problem, tasks: Sequence[Task]) -> Iterator[tuple[bytes, bytes]]:
        shared = context.broadcast(problem)
        work = context.parallelize(list(tasks), max(1, len(tasks)))
        yield from work.map(lambda task: annealed(shared.value, task)).collect()
        shared.destroy()

    return run


def _references(problem: Problem) -> Iterator[tuple[str, Candidate | None]]:
    """Yield the name and the plan of each reference plan. The result of the search is compared with these plans. A
    reference plan may break the bounds. The plan is None if it needs igraph and igraph is not installed."""
    servers = problem.n
    known: dict[str, plans.Domains | None] = {
        "flat": plans.flat(servers),
        "bus": plans.bus(servers),
        "blocks": plans.blocks(problem),
        "star": plans.best_star(problem),
    }
    for name, domains in known.items():
        if domains is None:
            yield name, None
        else:
            plan = plans.plan_of(domains, servers)
            yield name, Candidate(plan, problem.figures(plan))


def choose(found: Sequence[Candidate]) -> Candidate:
    """Return the best plan in ``found``. The plans are compared by their excess over the bounds, then by cost, then by
    hops, then by the load of the busiest router."""
    return min(found, key=_rank)


def _rank(one: Candidate) -> tuple[float, ...]:
    return (0.0 if one.figures.feasible else one.figures.excess, *_axes(one))


def front_of(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the feasible plans that no other plan beats: at most ``limits.plan_front_max`` plans, the cheapest first.
    A plan is beaten if another plan is at least as good in all three figures: cost, hops and the load of the busiest
    router. Of several equal plans, only the first is kept."""
    feasible = sorted((one for one in found if one.figures.feasible), key=_axes)
    front: list[Candidate] = []
    for one in feasible:
        if not any(all(a <= b for a, b in zip(_axes(other), _axes(one), strict=True)) for other in front):
            front.append(one)
    return front[: limits.plan_front_max]


def _axes(one: Candidate) -> tuple[float, float, float]:
    """Return the cost, the hops and the share of the busiest router. The values are rounded, so that rounding errors do
    not make two plans different."""
    figures = one.figures
    return float(f"{figures.cost:.11g}"), float(f"{figures.hops_mean:.11g}"), float(f"{figures.busiest_share:.11g}")


def violated(figures: Figures, bounds: Bounds) -> str | None:
    """Return the bound that a plan breaks most, as a text with the limit and the plan's value. All pins together are
    treated as one more bound. If the plan breaks no bound and no pin, return ``None``."""
    found = []
    if bounds.max_domain is not None and figures.largest > bounds.max_domain:
        found.append(
            (figures.largest / bounds.max_domain, f"max-domain {bounds.max_domain}: {figures.largest} servers")
        )
    if bounds.max_share is not None and figures.busiest_share > bounds.max_share + 1e-12:
        over = figures.busiest_share / max(bounds.max_share, 0.01)
        found.append(
            (over, f"max-share {bounds.max_share:g}: a router forwards a share of {figures.busiest_share:.3g}")
        )
    if bounds.max_hops is not None and figures.longest > bounds.max_hops:
        found.append((figures.longest / bounds.max_hops, f"max-hops {bounds.max_hops}: {figures.longest} hops"))
    if figures.broken_pins:
        found.append((1.0 + figures.broken_pins, f"pins: {figures.broken_pins} of them broken"))
    return max(found)[1] if found else None
