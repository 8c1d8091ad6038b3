"""Groups of objects on bad networks: 3–6 objects, nested calls, conflicts from none to all, loss, duplicates, crashes.

Everything is delivered, nothing is blocked for ever, no conflicting pair comes in different orders at two objects, no
significant precedence is broken, and every root lasts everywhere or nowhere. The campaign is
``tests/campaigns/test_objects_simulated.py``.
"""

import os

import msgspec
import pytest

from antecede.orders import Objects, OrderSpec
from antecede.simulator import schedules as plain
from antecede.simulator.groups import Workload, play
from antecede.trace import Metadata, verify, write_trace

RUNS = int(os.environ.get("ANTECEDE_SEEDS", "1000"))


@pytest.mark.parametrize("part", range(4))
def test_nothing_is_broken_and_nothing_is_stuck(part: int) -> None:
    each = RUNS // 4
    wounds = roots = 0
    for seed in range(part * each, (part + 1) * each):
        judged = play(seed)
        assert not judged.findings, str(judged)
        assert judged.ended is not None
        wounds += judged.ended.wounds
        roots += len(judged.ended.answers)
    assert wounds
    assert roots > each


def test_the_runs_are_as_varied_as_they_say() -> None:
    drawn = [Workload.drawn(seed) for seed in range(400)]
    assert {one.objects for one in drawn} == {3, 4, 5, 6}
    assert {one.depth for one in drawn} == {0, 1, 2, 3}
    assert {one.density for one in drawn} >= {0.0, 1.0}
    assert max(one.loss for one in drawn) > 0.15
    assert any(one.crash and one.loss and one.duplicate for one in drawn)
    assert {one.clocks for one in drawn} == {"eager", "asked"}
    assert {bool(one.partition) for one in drawn} == {one.timeout is None for one in drawn} == {True, False}


def test_the_same_seed_gives_the_same_trace() -> None:
    one, other = play(7).ended, play(7).ended
    assert one is not None
    assert other is not None
    assert one.events == other.events


def test_what_is_given_up_leaves_nothing_behind() -> None:
    """A short time limit, and much contention: some roots are given up, and nothing of them lasts anywhere."""
    given_up = 0
    for seed in range(40):
        workload = Workload(seed, density=1.0, depth=2, roots=10, gap="constant:0.0", loss=0.1, timeout=1.0)
        judged = play(seed, workload=workload)
        assert not judged.findings, str(judged)
        assert judged.ended is not None
        given_up += sum(answer.late for answer in judged.ended.answers.values())
    assert given_up


def test_conflicting_everything_still_ends() -> None:
    """One operation that conflicts with itself, deep nesting, many objects to a call: all there is."""
    for seed in range(10):
        workload = Workload(
            seed, objects=4, operations=1, density=1.0, depth=3, roots=6, several=0.6, gap="constant:0.0"
        )
        judged = play(seed, workload=workload)
        assert not judged.findings, str(judged)


def test_many_roots_are_not_taken_for_a_run_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """They need more frames than any run of a few roots that ends. The bound of such a run is a tenth here, so that
    fewer roots exceed it."""
    monkeypatch.setattr("antecede.simulator.groups._travels_max", 6_000)
    judged = play(1, workload=Workload(1, roots=30))
    assert not judged.findings, str(judged)
    assert judged.ended is not None
    assert len(judged.ended.answers) == 30
    monkeypatch.setattr("antecede.simulator.groups._travels_each_max", 1)
    assert play(1, workload=Workload(1, roots=30)).findings


def test_a_trace_can_be_verified_by_whoever_reads_it(tmp_path: object) -> None:
    ended = play(3).ended
    assert ended is not None
    path = f"{tmp_path}/objects.jsonl"
    write_trace(path, ended.events, Metadata(order="objects", conflicts=ended.conflicts()))
    report = verify([path], ("significant",))
    assert report["orders"]["significant"]["holds"]
    assert report["complete"]


class Plain(Objects):
    """Without labels a process is one instance, so significant order is causal order; and conflicting multicasts come
    in one order everywhere."""

    guarantees = frozenset({"fifo", "causal", "total"})


@pytest.mark.parametrize("clocks", ["eager", "asked"])
def test_without_labels_it_is_causal_and_total(clocks: str) -> None:
    for seed in range(300):
        outcome = plain.play(OrderSpec(Plain, {"clocks": clocks}), seed)
        assert not outcome.findings, str(outcome)


def test_without_labels_and_conflicts_it_is_causal() -> None:
    class Causal(Objects):
        guarantees = frozenset({"fifo", "causal"})

    for seed in range(300):
        outcome = plain.play(OrderSpec(Causal, {"conflicts": "none"}), seed)
        assert not outcome.findings, str(outcome)


def test_conflicts_make_it_slower_and_nothing_else() -> None:
    """The same requests with and without conflicts: without, nobody is wounded and nothing is tried again."""
    calm = play(1, workload=msgspec.structs.replace(Workload(1), density=0.0)).ended
    busy = play(1, workload=msgspec.structs.replace(Workload(1), density=1.0)).ended
    assert calm is not None
    assert busy is not None
    assert calm.wounds == 0 < busy.wounds
    assert {answer.tries for answer in calm.answers.values()} == {1}
