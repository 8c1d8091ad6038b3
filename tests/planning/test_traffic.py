"""Traffic by server, the planner's bounds at their limits, and what a replay charges."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antecede import limits
from antecede.cli import run as antecede
from antecede.pipeline.planning.problem import Problem, model_of
from antecede.pipeline.planning.report import replay
from antecede.pipeline.planning.search import effort, search
from antecede.pipeline.planning.traffic import Traffic, of_trace
from antecede.trace import Event, match


def _multicasts(count: int) -> Traffic:
    """As many different multicasts, the first sent most often."""
    rows, index = [], 0
    for number in range(count):
        for _ in range(count - number):
            rows.append(Event("p", index, "send", f"m{index}", ("a", f"b{number}")))
            index += 1
    return of_trace(match(rows), lambda name: name)


def test_of_many_different_multicasts_the_heaviest_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "plan_multicasts_max", 3)
    exact = _multicasts(3)
    assert sorted(exact.multicasts.values()) == [1, 2, 3]
    more = _multicasts(4)
    assert len(more.multicasts) == 3
    assert more.messages == pytest.approx(10)
    assert max(more.multicasts.values()) == pytest.approx(4 * 10 / 9)


def test_a_front_is_no_longer_than_its_bound(monkeypatch: pytest.MonkeyPatch, problem: Callable[..., Problem]) -> None:
    asked = problem(3, 10, False)
    whole = search(asked, 1).front
    assert len(whole) > 2
    monkeypatch.setattr(limits, "plan_front_max", 2)
    assert [one.figures for one in search(asked, 1).front] == [one.figures for one in whole[:2]]


def test_work_is_bounded_by_steps_not_by_the_clock(
    monkeypatch: pytest.MonkeyPatch, problem: Callable[..., Problem]
) -> None:
    asked = problem(1, 10, False)
    steps = effort(asked, 6)
    assert steps == 400 * 10 + 4_000
    assert steps * (2 * 6 + 3) * asked.work() <= limits.plan_work_max
    monkeypatch.setattr(limits, "plan_work_max", asked.work() * 15 * 1_000)
    assert effort(asked, 6) == 1_000


def test_a_file_longer_than_its_bound_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "from,to,messages\na,b,1\n"
    (tmp_path / "m.csv").write_text(text)
    monkeypatch.setattr(limits, "plan_file_bytes_max", len(text))
    assert antecede(["plan", str(tmp_path / "m.csv")]) == 0
    monkeypatch.setattr(limits, "plan_file_bytes_max", len(text) - 1)
    assert antecede(["plan", str(tmp_path / "m.csv")]) == 2
    assert "longer than" in capsys.readouterr().err


def test_break_even_is_looked_for_up_to_its_bound() -> None:
    """Without stamps no bus pays off; with matrices one does, and not below the number that is named."""
    assert model_of("cpu", "buffer").break_even(64) is None
    matrix = model_of("cpu", "matrix")
    even = matrix.break_even(limits.plan_break_even_servers_max)
    assert even is not None
    assert matrix.break_even(even) == even
    assert matrix.break_even(even - 1) is None


def test_what_stays_within_a_server_is_free(traffic: Callable[..., Traffic]) -> None:
    rows = [
        Event("a", 0, "send", "m0", ("b",)),
        Event("a", 1, "send", "m1", ("c",)),
        Event("a", 2, "send", "m2", ("b", "c")),
        Event("a", 3, "send", "m3", ()),
    ]
    found = of_trace(match(rows), {"a": "s1", "b": "s1", "c": "s2"}.__getitem__)
    assert (found.servers, found.pairs, found.multicasts, found.local) == (["s1", "s2"], {(0, 1): 2.0}, {}, 2.0)


def test_a_replay_charges_each_domain_once() -> None:
    """A multicast to three servers, two of them behind a router: two domains, whatever the number of copies."""
    sent = Traffic(["r", "s", "t", "u"], {}, {(0, (1, 2, 3)): 50.0})
    domains = {"d1": ["r", "s"], "d2": ["s", "t", "u"]}
    done: Any = replay(sent, domains, model_of("paper", "matrix"), 13.0, 1_000, 1)
    assert (done.messages, done.hops, done.stamp, done.cost) == (
        50,
        pytest.approx(2),
        pytest.approx(13),
        pytest.approx(13),
    )
    assert replay(sent, domains, model_of("paper", "matrix"), 13.0, 0, 1) is None


def test_a_replay_of_all_messages_is_the_prediction(
    problem: Callable[..., Problem], traffic: Callable[..., Any]
) -> None:
    """In the paper's accounting a matrix has s² counters, and the whole traffic is sent, each message once."""
    from antecede.pipeline.planning import search as plans
    from antecede.pipeline.planning.problem import Bounds, Pins

    for seed in (2, 3, 6):
        sent = traffic(seed, 7)
        model = model_of("paper", "matrix")
        asked = Problem(sent, model, Bounds(), Pins())
        plan = plans.plan_of([[0, 1, 2], [2, 3], [3, 4, 5, 6]], 7)
        domains = {f"d{n}": [asked.servers[s] for s in own] for n, own in enumerate(plans.domains_of(plan))}
        done: Any = replay(sent, domains, model, 10.0, 10_000, 1)
        assert done.messages == sent.messages
        assert done.cost == pytest.approx(asked.figures(plan).cost)


def test_the_busiest_and_the_parts() -> None:
    sent = Traffic(["a", "b", "c", "d", "e"], {(0, 1): 5.0, (2, 3): 9.0, (3, 4): 1.0}, {})
    assert sent.busiest(2).servers == ["c", "d"]
    assert sent.busiest(2).pairs == {(0, 1): 9.0}
    assert sent.parts() == [[0, 1], [2, 3, 4]]
    assert sent.parts([("b", "e")]) == [[0, 1, 2, 3, 4]]


def test_messages_to_servers_that_are_left_out_are_dropped() -> None:
    """Neither a unicast nor a multicast to other servers becomes one that stayed within its server."""
    sent = Traffic(["a", "b", "c", "d"], {(0, 1): 90.0, (0, 2): 3.0}, {(0, (1, 3)): 2.0, (0, (2, 3)): 5.0}, 7.0)
    kept = sent.busiest(2)
    assert (kept.servers, kept.pairs, kept.multicasts, kept.local) == (["a", "b"], {(0, 1): 92.0}, {}, 7.0)
