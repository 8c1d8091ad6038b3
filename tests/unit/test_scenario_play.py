"""How a scenario is played: what waits, what moves by itself, what is an error, and when."""

from pathlib import Path

import pytest

from antecede import limits
from antecede.errors import ScenarioError
from antecede.orders import parse
from antecede.simulator.player import Failure, Played, play
from antecede.simulator.scenario import parse_scenario
from antecede.trace import HOP


def _play(text: str, order: str | None = None, *, raw: bool = False) -> Played:
    scenario = parse_scenario(text.replace("; ", "\n").encode(), "f")
    return play(scenario, parse(order) if order else None, raw=raw)


def _fails(text: str, order: str | None = None, *, raw: bool = False) -> ScenarioError:
    with pytest.raises(ScenarioError) as caught:
        _play(text, order, raw=raw)
    return caught.value


def test_failures_name_line_expected_and_actual() -> None:
    result = _play(
        "processes P Q; send x P -> Q; expect Q delivered x; expect Q holds x; expect x not sent; expect stuck"
    )
    assert result.failures == [
        Failure(3, "Q delivered x", "Q delivered nothing"),
        Failure(4, "Q holds x", "Q holds nothing"),
        Failure(5, "x not sent", "x has left P"),
        Failure(6, "stuck", "in transit: x to Q"),
    ]
    assert (result.checked, result.skipped, result.holds) == (4, 0, False)


def test_holds_tells_what_was_delivered_instead() -> None:
    (failure,) = _play("processes P Q; send x P -> Q; arrive x Q; expect Q holds x").failures
    assert failure.actual == "Q holds nothing; it has delivered x"


def test_default_order_and_choice() -> None:
    assert _play("processes P").order == "matrix"
    assert _play("processes P; order pruned").order == "pruned"
    assert _play("processes P; order pruned", "fifo").order == "fifo"


def test_an_option_that_does_not_fit_the_file() -> None:
    assert _fails("processes P; order coordinator member=7").line == 2


# Arrivals.


def test_a_copy_that_is_never_posted() -> None:
    error = _fails("processes P Q R; send x P -> Q; arrive x R; drain")
    assert (error.line, error.reason) == (3, "x to R is never put on the network")


def test_a_copy_that_has_arrived_before() -> None:
    error = _fails("processes P Q; send x P -> Q; arrive x Q; arrive x Q")
    assert (error.line, "has already arrived" in error.reason) == (4, True)


def test_a_copy_that_cannot_arrive_again() -> None:
    error = _fails("processes P Q; send x P -> Q; arrive x Q again")
    assert (error.line, "has not arrived before" in error.reason) == (3, True)


def test_a_lost_copy_that_is_not_resent() -> None:
    error = _fails("processes P Q; send x P -> Q; lose x Q; arrive x Q")
    assert (error.line, "not resent" in error.reason) == (4, True)
    assert _fails("processes P Q; send x P -> Q; lose x Q; arrive x Q; wait 9", raw=True).line == 4


def test_arrive_before_send() -> None:
    assert _play("processes P Q; arrive x Q; send x P -> Q; expect Q delivered x").holds


def test_a_promise_and_its_duplicate() -> None:
    text = (
        "processes P Q; send x P -> Q; send y P -> Q; arrive y Q; "
        "arrive y Q again; expect y not sent; arrive x Q; expect Q delivered x y"
    )
    assert _play(text, "buffer").holds


def test_a_promised_loss() -> None:
    text = (
        "processes P Q R; send x P -> Q; send y P -> R; lose y R; "
        "arrive x Q; expect R delivered; wait 2; arrive y R; expect R delivered y"
    )
    assert _play(text, "buffer").holds


def test_control_packets_wait_only_if_the_file_says_so() -> None:
    text = "processes P Q R; send x P -> Q; send y P -> R; arrive x Q; {}"
    assert _play(text.format("arrive y R; expect R delivered y"), "buffer").holds
    assert _play("control manual; " + text.format("expect y not sent; arrive ack(x,Q) P; arrive y R"), "buffer").holds
    assert _fails("control manual; " + text.format("arrive ack(x,R) P"), "buffer").line == 6


def test_drain_resends_and_ends() -> None:
    result = _play("processes P Q; send x P -> Q; send y P -> Q; lose x Q; drain; expect Q delivered x y; drain")
    assert result.holds
    assert not result.world.flights.flying()


def test_drain_ends_while_a_process_is_down() -> None:
    assert _play(
        "processes P Q; send x P -> Q; crash Q; drain; expect Q delivered; restart Q; drain; expect Q delivered x"
    ).holds


def test_raw_duplicates_reach_the_order() -> None:
    text = "processes P Q; send x P -> Q; arrive x Q; arrive x Q again; expect Q delivered x{}"
    assert _play(text.format(" x"), "none", raw=True).holds
    assert _play(text.format(""), "none").holds
    assert _play(text.format(""), "fifo", raw=True).holds


# Detours and domains.

_detour = "processes C P Q; order coordinator; send x P -> Q; {}"


def test_a_stop_on_a_detour_is_passed_unless_a_later_line_names_it() -> None:
    assert _play(_detour.format("arrive x Q; expect Q delivered x")).holds
    assert _play(_detour.format("expect x not sent")).failures
    assert _play(_detour.format("arrive x C; arrive x Q; expect Q delivered x")).holds
    assert _play(_detour.format("arrive x Q; expect Q delivered; arrive x C; expect Q delivered x")).holds
    assert _play(_detour.format("lose x C; drain; expect Q delivered x")).holds


def test_a_coordinator_that_is_addressed_waits_for_its_arrive() -> None:
    text = (
        "processes C P Q; order coordinator; send x P -> C,Q; "
        "arrive x Q; expect Q delivered; arrive x C; expect Q delivered x"
    )
    assert _play(text).holds


_chain = "domain A S1 S2; domain B S2 S3; "


def test_a_message_is_routed() -> None:
    result = _play(_chain + "send x S1 -> S3; arrive x S3; expect S3 delivered x; expect S2 delivered")
    assert result.holds
    rows = [event for event in result.world.record.events if event.kind == HOP]
    assert [(row.process, row.index, row.message, row.domain, row.hop) for row in rows] == [("S2", 0, "x", "B", 1)]


@pytest.mark.parametrize("order", ["matrix", "lamport"])
def test_a_copy_for_its_own_server_does_not_travel(order: str) -> None:
    """As on live servers: the copy is there at once, or when a total order says so; it cannot be stopped."""
    text = _chain + "send x S1 -> S1,S3; arrive x S1; {}; arrive x S3; expect S3 delivered x; expect S1 delivered x"
    assert _play(text.format("expect S3 delivered"), order).holds
    assert _fails(text.format("lose x S1"), order).line == 5


def test_no_way() -> None:
    assert _fails("domain A S1 S2; domain B S3 S4; send x S1 -> S4").line == 3
    assert _fails("processes S0; domain A S1 S2; send x S1 -> S0").line == 3


def test_a_multicast_where_the_domains_form_no_forest() -> None:
    """Each destination gets a copy of its own, by the shortest way."""
    ring = "domain A S1 S2; domain B S2 S3; domain C S3 S4; domain D S4 S1; send x S1 -> S2,S3,S4; drain; "
    assert _play(ring + "expect S2 delivered x; expect S3 delivered x; expect S4 delivered x").holds


def test_guarantees_across_domains() -> None:
    assert _play(_chain + "drain", "lamport").world.guarantees == {"fifo", "causal"}
    assert _play("domain A S1 S2 fifo; domain B S2 S3").world.guarantees == {"fifo"}
    assert _play("domain A S1 S2", "lamport").world.guarantees == {"fifo", "causal", "total"}


def test_an_order_that_refuses() -> None:
    error = _fails("processes P Q R; send x P -> Q", "vector")
    assert (error.line, "broadcasts only" in error.reason) == (2, True)
    assert _play("processes P Q R; send x P -> Q; expect x refused; expect x not sent", "vector").holds
    assert _fails("processes P Q R; send x P -> Q; expect x refused under matrix", "vector").line == 2
    assert _play("processes P Q R; send x P -> Q; expect x refused", "matrix").failures


# Crashes.


def test_crash_and_restart_must_alternate() -> None:
    assert _fails("processes P; restart P").line == 2
    assert _fails("processes P; crash P; crash P").line == 3
    assert _fails("processes P Q; crash P; send x P -> Q").line == 3


def test_what_is_held_is_lost_in_a_crash_and_comes_again() -> None:
    text = (
        "processes P Q; send x P -> Q; send y P -> Q; arrive y Q; "
        "crash Q; restart Q; arrive x Q; expect Q delivered x; {}"
    )
    assert _play(text.format("wait 1; arrive y Q; expect Q delivered x y")).holds
    assert _play(text.format("drain; expect Q delivered x"), raw=True).holds


def test_a_router_forwards_what_it_took_before_its_crash() -> None:
    assert _play(_chain + "send x S1 -> S3; arrive x S2; crash S2; arrive x S3; expect S3 delivered x", "pruned").holds


# Programs.


def test_what_follows_a_waiting_receive_waits() -> None:
    text = (
        "processes P Q; send x P -> Q; receive Q; send y Q -> P; "
        "expect y not sent; arrive x Q; expect Q delivered x; arrive y P"
    )
    for order in ("matrix", "buffer", "lamport", "none"):
        assert _play(text, order).holds


def test_a_receive_that_nothing_ends() -> None:
    result = _play("processes P Q; receive Q; expect stuck; expect Q delivered")
    assert result.holds
    assert result.world.blocked() == ["Q"]


def test_what_nobody_receives_is_no_block() -> None:
    result = _play(
        "processes P Q; send x P -> Q; send y P -> Q; receive Q; drain; expect Q delivered x; expect Q holds y"
    )
    assert result.holds
    assert not result.world.stuck()


def test_unreceived_packets_are_lost_in_a_crash_and_come_again() -> None:
    text = (
        "processes P Q; send x P -> Q; arrive x Q; crash Q; restart Q; "
        "receive Q; expect Q delivered; wait 1; arrive x Q; expect Q delivered x"
    )
    assert _play(text, "matrix").holds


def test_a_duplicate_is_received_once() -> None:
    for raw in (False, True):
        text = (
            "processes P Q; send x P -> Q; arrive x Q; arrive x Q again; "
            "receive Q; receive Q; arrive x Q again; expect Q delivered x"
        )
        assert _play(text, "matrix", raw=raw).holds
    assert _play(text, "none").holds


def test_programs_of_routers_take_what_is_delivered() -> None:
    text = _chain + "send x S1 -> S3; send y S1 -> S2; receive S2; drain; expect S2 delivered y; expect S3 delivered x"
    assert _play(text, "matrix").holds


# Bounds.


def test_steps_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "processes P Q; send x P -> Q; drain; expect Q delivered x"
    monkeypatch.setattr(limits, "scenario_steps_max", 7)
    assert _play(text).holds
    monkeypatch.setattr(limits, "scenario_steps_max", 2)
    assert "too many steps" in _fails(text).reason


def test_packets_on_their_way_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "scenario_packets_max", 2)
    assert _play("processes P Q R; send x P -> Q,R").holds
    assert _fails("processes P Q R; send x P -> Q,R; lose x Q; send y P -> Q").line == 4


def test_a_wait_ends() -> None:
    error = _fails("processes P Q; crash Q; send x P -> Q; " + "; ".join(["wait 3600"] * 400))
    assert "too many steps" in error.reason


# What is written.


def test_trace_and_verdict(tmp_path: Path) -> None:
    text = "processes P Q R; send x P -> R; send y P -> Q; arrive y Q; send z Q -> R; arrive z R; arrive x R"
    record = _play(text, "fifo").world.record
    rows = [(event.process, event.index, event.kind, event.message, event.to) for event in record.events]
    assert rows[:2] == [("P", 0, "send", "x", ("R",)), ("P", 1, "send", "y", ("Q",))]
    assert rows[-2:] == [("R", 2, "arrive", "x", None), ("R", 3, "deliver", "x", None)]
    verdict = record.judge()
    assert verdict is not None
    assert (verdict.holds("fifo"), verdict.holds("causal")) == (True, False)
    assert "late" in record.diagram().text(80)
    assert record.diagram().svg().startswith("<svg")


def test_a_second_delivery_is_not_judged() -> None:
    record = _play("processes P Q; send x P -> Q; arrive x Q; arrive x Q again", "none", raw=True).world.record
    verdict = record.judge()
    assert record.delivered["Q"] == ["x", "x"]
    assert verdict is not None
    assert verdict.deliveries == 1


def test_a_send_does_not_wait_for_arrivals_that_come_after_it_in_the_file() -> None:
    """m3 waits for the arrival of m2, which stands before it; not for its own, which stands behind it."""
    result = _play(
        "processes P Q; send m1 P -> Q; send m2 P -> P; arrive m2 P; send m3 P -> P; arrive m3 P; arrive m1 Q; "
        "expect P delivered m2 m3",
        "buffer",
    )
    assert result.failures == []


def test_a_send_that_waits_for_a_second_arrival_goes_on_after_it() -> None:
    result = _play(
        "processes P Q; send a P -> Q; arrive a Q again; send b Q -> P; arrive a Q; drain; expect P delivered b"
    )
    assert result.failures == []
