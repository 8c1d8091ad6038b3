"""The array kernel against the orders themselves: the same schedule, the same deliveries, the same figures."""

from math import log
from random import Random
from typing import Any, ClassVar

import numpy as np
import pytest

from antecede.messages import Message
from antecede.orders import parse
from antecede.pipeline.kernels import compiled
from antecede.pipeline.sweep import arrays
from antecede.pipeline.sweep.schedule import PROCESSES_MAX, make
from antecede.simulator.bare import BareWorld
from antecede.simulator.draws import parse_draw, stream
from antecede.simulator.figures import Figures
from antecede.simulator.run import Setup
from antecede.simulator.workloads import SHAPES, Spontaneous

_delays = ("exponential:0.1", "exponential:2", "constant:0.1", "constant:0", "uniform:0,0.5", "pareto:1.1,0.02")
_gaps = ("exponential:0.1", "constant:0.1", "uniform:0,0.2")


class _Deliveries:
    """Writes down who delivered what."""

    weighs: ClassVar[bool] = False

    def __init__(self) -> None:
        self.pairs: list[tuple[int, int]] = []

    def sent(self, process: int, message: Message, sizes: list[int], now: float) -> None:
        pass

    def arrived(self, process: int, message: Message, size: int | None, now: float) -> None:
        pass

    def delivered(self, process: int, message: Message, now: float) -> None:
        self.pairs.append((process, int(message.id[1:])))


def _by_the_order(setup: Setup) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    figures, seen = Figures(setup.warmup), _Deliveries()
    delay = parse_draw(setup.delay, stream(setup.seed, "delay"))
    world = BareWorld(setup.order, setup.processes, delay, figures=figures, observer=seen)
    gap = parse_draw(setup.gap, stream(setup.seed, "gap"))
    destinations = SHAPES[setup.workload](setup.processes, stream(setup.seed, "destinations"))
    world.run(Spontaneous(setup.messages, gap, destinations))
    return figures.report(), seen.pairs


def _by_the_kernel(setup: Setup) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    figures, pairs = arrays.walk(setup, make(setup), record=True)
    return figures.report(), pairs


def _drawn(order: str, seed: int) -> Setup:
    random = Random(f"sweep {seed}")
    messages = random.choice((1, 30, 150, 400))
    return Setup(
        parse(order),
        random.choice((2, 3, 5, 8, 13, 21)),
        messages,
        random.choice(tuple(SHAPES)),
        random.choice(_gaps),
        random.choice(_delays),
        warmup=random.choice((0, messages // 4, messages)),
        seed=seed,
    )


@pytest.mark.parametrize("order", ["matrix", "pruned", "direct", "updates"])
def test_same_deliveries_and_figures_as_the_order(order: str) -> None:
    held = 0.0
    for seed in range(80):
        setup = _drawn(order, seed)
        assert arrays.serves(setup)
        expected, found = _by_the_order(setup), _by_the_kernel(setup)
        assert found == expected, setup
        held += expected[0]["held"]
    assert held > 5, "the schedules hold messages back"


@pytest.mark.parametrize("order", ["matrix", "pruned", "direct", "updates"])
@pytest.mark.parametrize("workload", ["unicast", "multicast"])
def test_same_as_the_order_with_the_most_processes(order: str, workload: str) -> None:
    messages = 2_000 if workload == "unicast" else 60
    setup = Setup(parse(order), PROCESSES_MAX, messages, workload, warmup=messages // 4, seed=7)
    assert _by_the_kernel(setup) == _by_the_order(setup)


@pytest.mark.parametrize("order", ["matrix", "pruned", "direct", "updates"])
def test_arrays_that_are_too_small_are_enlarged(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in ("_slots", "_entries_per_member", "_window"):
        monkeypatch.setattr(arrays, size, 1)
    # Counters pass 127, and some links are slow: rows and logs are needed long after newer ones are known.
    setup = Setup(parse(order), 5, 2_000, "multicast", delay="pareto:1.1,0.02", warmup=100, seed=3)
    assert _by_the_kernel(setup) == _by_the_order(setup)


def test_runs_that_cannot_end_are_errors_and_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_slots", 1)
    monkeypatch.setattr(arrays, "_doublings_max", 2)
    with pytest.raises(arrays.KernelError):
        arrays.simulate(Setup(parse("pruned"), 8, 400))


@pytest.mark.parametrize(
    "settings",
    [
        {"order": parse("fifo")},
        {"processes": PROCESSES_MAX + 1},
        {"loss": 0.1},
        {"fifo_links": True},
        {"workload": "request-reply"},
    ],
)
def test_other_settings_are_left_to_the_simulator(settings: dict[str, Any]) -> None:
    assert not arrays.serves(Setup(**{"order": parse("pruned"), **settings}))


@compiled
def _logarithms(values: Any, out: Any) -> None:
    for at in range(len(values)):
        out[at] = log(values[at])


def test_compiled_logarithms_are_those_of_python() -> None:
    random = Random(5)
    values = np.array([random.random() * 10 ** random.randint(-9, 6) for _ in range(20_000)])
    out = np.zeros_like(values)
    _logarithms(values, out)
    assert out.tolist() == [log(value) for value in values]
