"""Measured claims of the papers, re-measured: stamp sizes (Jang et al. §6) and the latency of ``buffer`` (Mattern).

Set-up of the stamp study: exponential send gaps of mean 0.1 s, multicasts to a uniform number 1 … n − 1 of others,
exponential non-FIFO delay of mean 0.1 s, a quarter of the run as warm-up; the paper counts 4 bytes a timestamp and 2 an
id. ``docs/papers.md`` has the figures for all n; here n = 10, the mean over messages of the mean over their copies.
"""

from functools import cache
from typing import Any

import pytest

from antecede.orders import parse
from antecede.simulator.run import Setup, simulate


@cache
def _stamps(order: str, workload: str, processes: int = 10, messages: int = 8_000) -> dict[str, Any]:
    setup = Setup(parse(order), processes, messages, workload, warmup=messages // 4, seed=3)
    report: dict[str, Any] = simulate(setup)
    assert report["undelivered"] == 0
    return report["stamp"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(("workload", "dependents", "size"), [("unicast", 21, 107), ("multicast", 14, 82)])
def test_pruned_stamps_weigh_what_was_measured(workload: str, dependents: int, size: int) -> None:
    """The pruned protocol at n = 10, within 5 %."""
    stamp = _stamps("pruned", workload)
    assert stamp["dependents_mean"] == pytest.approx(dependents, rel=0.05)
    assert stamp["paper_bytes_mean"] == pytest.approx(size, rel=0.05)


@pytest.mark.parametrize("workload", ["unicast", "multicast"])
def test_encoded_stamps_are_a_third_smaller_than_counted(workload: str) -> None:
    stamp = _stamps("pruned", workload)
    assert stamp["bytes_mean"] <= 0.65 * stamp["paper_bytes_mean"]


@pytest.mark.parametrize("workload", ["unicast", "multicast"])
def test_matrix_stamps_are_the_whole_matrix(workload: str) -> None:
    """§6.2: RST carries n² counters of 4 bytes, whatever happens."""
    stamp = _stamps("matrix", workload, messages=2_000)
    assert stamp["dependents_mean"] == 100
    assert stamp["paper_bytes_mean"] == 400


@pytest.mark.parametrize("workload", ["unicast", "multicast"])
def test_pruned_is_the_smallest_of_the_causal_orders(workload: str) -> None:
    """§6: fewer dependents than RST and than PRS."""
    pruned = _stamps("pruned", workload)["dependents_mean"]
    assert pruned < _stamps("direct", workload, messages=2_000)["dependents_mean"]
    assert pruned < _stamps("matrix", workload, messages=2_000)["dependents_mean"]


@pytest.mark.parametrize(("processes", "sends_each", "dearer"), [(20, 400, False), (30, 250, True)])
def test_prs_costs_more_than_rst_for_unicast_above_25(processes: int, sends_each: int, dearer: bool) -> None:
    """003 §6: the two curves cross near n = 25, in the paper's own accounting.

    It takes a steady state to see it: the sets of direct predecessors go on growing for some hundred sends of each
    process. After a hundred sends each, PRS is still below RST at n = 30 and at n = 50.
    """
    messages = processes * sends_each
    setup = Setup(parse("direct"), processes, messages, "unicast", warmup=messages // 2, seed=1)
    assert (simulate(setup)["stamp"]["paper_bytes_mean"] > 4 * processes**2) == dearer


@pytest.mark.parametrize(
    ("gap", "latency", "tolerance"),
    [(20.0, 1.17, 0.05), (5.0, 2.0, 0.1), (2.2, 14.0, 0.5)],
)
def test_one_message_per_round_trip_is_the_limit_of_the_buffer_protocol(
    gap: float, latency: float, tolerance: float
) -> None:
    """Mattern, Fünfrocken §3: latency in one-way delays at send gaps of that many one-way delays.

    An output buffer is a queue whose service time is a round trip, the sum of two exponential delays: by Pollaczek and
    Khinchine the latency is 1 + 3 λ / (1 − 2 λ) with λ = 1 / gap, 1.17, 2.0 and, in the long run, 16.
    """
    setup = Setup(parse("buffer"), 10, 20_000, gap=f"exponential:{gap}", delay="exponential:1", warmup=2_000, seed=1)
    report = simulate(setup)
    assert report["undelivered"] == 0
    assert report["latency"]["mean"] == pytest.approx(latency, rel=tolerance)


def test_matrix_never_waits_for_a_round_trip() -> None:
    """002 §5: the same load costs a causal order with stamps next to nothing."""
    setup = Setup(parse("matrix"), 10, 5_000, gap="exponential:2.2", delay="exponential:1", seed=1)
    assert simulate(setup)["latency"]["mean"] < 1.5
