"""The planner on Spark: restarts as tasks, and traces that Spark reads, give the same plans as in this process."""

import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("numba")

from antecede.pipeline.planning import search as plans
from antecede.pipeline.planning.problem import Bounds, Pins, Problem, model_of
from antecede.pipeline.planning.search import on_spark, search
from antecede.pipeline.planning.traffic import Traffic
from antecede.trace import Event, Metadata, write_trace

Said = tuple[int, str, str]


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


def test_both_engines_use_the_topology_in_the_metadata(command: Callable[[str], Said]) -> None:
    command("topology make bus --servers 9 --order matrix -o bus.toml")
    command("simulate --topology bus.toml --messages 300 --trace t.jsonl")
    assert _plan(command, "spark", "t.jsonl") == _plan(command, "plain", "t.jsonl")


def test_both_engines_find_the_servers_of_agents(command: Callable[[str], Said]) -> None:
    """The metadata name the servers of agents; server s4 is idle. A topology with objects is refused."""
    topology = {
        "servers": {f"s{n}": f"tcp://127.0.0.1:710{n}" for n in range(1, 5)},
        "domains": {"all": [["s1", "s2", "s3", "s4"], "matrix"]},
        "agents": {"clerk": ["s2", "shop:Clerk"]},
        "guarantee": "causal",
    }
    rows = [
        Event("ann@s1", 0, "send", "m1", ("clerk",)),
        Event("clerk", 0, "deliver", "m1"),
        Event("clerk", 1, "send", "m2", ("bob@s3",)),
        Event("bob@s3", 0, "deliver", "m2"),
        Event("cy@s2", 0, "send", "m3", ("clerk",)),
        Event("clerk", 2, "deliver", "m3"),
    ]
    write_trace("t.jsonl", rows, Metadata(topology=topology))
    plain = _plan(command, "plain", "t.jsonl")
    assert (plain["servers"], plain["messages"], plain["local"]) == (4, 2, 1)
    assert _plan(command, "spark", "t.jsonl") == plain
    topology["objects"] = {"cart": {}}
    write_trace("objects.jsonl", rows, Metadata(topology=topology))
    for engine in ("plain", "spark"):
        code, _, err = command(f"plan objects.jsonl --engine {engine}")
        assert code == 2
        assert "cannot split a domain with replicated objects" in err


def _plan(command: Callable[[str], Said], engine: str, source: str) -> dict[str, Any]:
    code, out, err = command(f"plan {source} --model paper --engine {engine} --sample 100 --json")
    assert code == 0, err
    return {**json.loads(out), "seconds": None}
