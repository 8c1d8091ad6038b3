"""Restarts of the planner as Spark tasks find the same plans as in this process."""

from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("numba")

from antecede.pipeline.planning import plans
from antecede.pipeline.planning.model import model_of
from antecede.pipeline.planning.problem import Bounds, Pins, Problem
from antecede.pipeline.planning.search import on_spark, search
from antecede.pipeline.planning.traffic import Traffic


def test_spark_tasks_find_the_same_plan(running: Any) -> None:
    servers = [f"s{number}" for number in range(7)]
    pairs = {(a, b): float(1 + (a * b) % 5) for a in range(7) for b in range(7) if a != b}
    problem = Problem(Traffic(servers, pairs, {}), model_of("paper", "matrix"), Bounds(max_share=0.4), Pins())
    told: list[tuple[int, int]] = []
    here = search(problem, 3)
    there = search(problem, 3, on_spark(running.context), lambda done, all_: told.append((done, all_)))
    assert plans.domains_of(there.best.plan) == plans.domains_of(here.best.plan)
    assert [one.figures for one in there.front] == [one.figures for one in here.front]
    assert told[-1][0] == told[-1][1] >= len(told) - 1
