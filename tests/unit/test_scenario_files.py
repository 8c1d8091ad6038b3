"""Scenario files as text: what is read, what is refused, and in which line."""

import pytest

from antecede import limits
from antecede.errors import ScenarioError, UsageError
from antecede.messages import COPY
from antecede.orders import parse
from antecede.simulator.scenario import (
    ArriveLine,
    ExpectDelivered,
    ExpectHolds,
    ExpectNotSent,
    ExpectStuck,
    LoseLine,
    Parcel,
    ReceiveLine,
    Scenario,
    SendLine,
    WaitLine,
    parse_scenario,
    read,
)


def _parse(*lines: str) -> Scenario:
    return parse_scenario("\n".join(lines).encode(), "f")


def test_statements_have_their_lines() -> None:
    scenario = _parse("# a comment", "processes P Q", "", "send x P -> Q,P  # and another", "arrive x Q again")
    assert scenario.processes == ("P", "Q")
    assert scenario.statements == (SendLine(4, "x", "P", ("Q", "P")), ArriveLine(5, Parcel(COPY, "x"), "Q", True))


@pytest.mark.parametrize("arrow", ["send x P -> Q,P", "send x P->Q,P", "send  x P -> Q , P", "\tsend x P -> Q,P\r"])
def test_blanks_do_not_matter(arrow: str) -> None:
    assert _parse("processes P Q", arrow).statements == (SendLine(2, "x", "P", ("Q", "P")),)


def test_names_may_hold_dots_dashes_and_words_of_the_language() -> None:
    scenario = _parse(
        "processes a.1 b-2 from", "send not a.1 -> b-2,from", "receive from from from", "expect not not sent"
    )
    assert scenario.statements[1] == ReceiveLine(3, "from", "from")
    assert isinstance(scenario.statements[2], ExpectNotSent)


def test_control_packets() -> None:
    scenario = _parse("processes P Q", "control manual", "send x P -> Q", "arrive ack(x, Q) P", "lose token(Q) P")
    assert scenario.manual
    assert scenario.statements[1:] == (
        ArriveLine(4, Parcel("ack", "x", "Q"), "P"),
        LoseLine(5, Parcel("token", "", "Q"), "P"),
    )
    assert str(Parcel("ack", "x", "Q")) == "ack(x,Q)"


def test_expectations() -> None:
    scenario = _parse(
        "processes P Q",
        "send x P -> Q",
        "expect Q delivered",
        "expect Q delivered x under none, fifo",
        "expect Q holds x under skeen:causal=true",
        "expect stuck",
    )
    nothing, some, holds, stuck = scenario.statements[1:]
    assert isinstance(nothing, ExpectDelivered)
    assert nothing.messages == ()
    assert isinstance(some, ExpectDelivered)
    assert some.messages == ("x",)
    assert some.under.guarantees == ("fifo",)
    assert [spec.name for spec in some.under.orders] == ["none"]
    assert isinstance(holds, ExpectHolds)
    assert [str(spec) for spec in holds.under.orders] == ["skeen:causal=true"]
    assert isinstance(stuck, ExpectStuck)


@pytest.mark.parametrize(
    ("under", "order", "counts"),
    [
        ("causal", "matrix", True),
        ("causal", "lamport", True),
        ("causal", "skeen", False),
        ("causal", "skeen:causal=true", True),
        ("total", "skeen", True),
        ("total", "matrix", False),
        ("fifo", "fifo", True),
        ("fifo", "matrix", False),
        ("none,fifo", "none", True),
        ("synchronous", "synchronous", True),
        ("buffer", "buffer:pipelined=true", True),
        ("buffer:pipelined=true", "buffer", False),
        ("buffer:pipelined=true", "buffer:pipelined=true,multicast=hold-delivery", True),
        ("buffer:pipelined=false", "buffer", True),
    ],
)
def test_under(under: str, order: str, counts: bool) -> None:
    (line,) = _parse("processes P", f"expect stuck under {under}").statements
    assert isinstance(line, ExpectStuck)
    spec = parse(order)
    assert line.under.counts([spec], spec.guarantees()) is counts


def test_declarations_count_wherever_they_stand() -> None:
    scenario = _parse("send x P -> Q", "order buffer pipelined=true multicast=hold-delivery", "processes P Q")
    assert scenario.order is not None
    assert str(scenario.order) == "buffer:multicast=hold-delivery,pipelined=true"


def test_domains() -> None:
    scenario = _parse("domain A S1 S2", "domain B S2 S3 pruned", "domain C S3 S4 buffer:pipelined=true")
    assert scenario.processes == ("S1", "S2", "S3", "S4")
    assert [str(domain.order) for domain in scenario.domains] == ["None", "pruned", "buffer:pipelined=true"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("processes P", "named twice"),
        ("processes", "expected processes"),
        ("processes é", "expected a name"),
        ("dance P", "unknown statement 'dance'"),
        ("Send x P -> Q", "unknown statement"),
        ("send x P Q", "expected send"),
        ("send x P ->", "expected send"),
        ("send x P -> Q,", "expected a name"),
        ("send x P -> Q R", "expected a name"),
        ("send x P -> R", "unknown process 'R'"),
        ("send m P -> Q", "already sent in line 2"),
        ("send under P -> Q", "under"),
        ("send (x) P -> Q", "expected a name"),
        ("arrive m", "expected arrive"),
        ("arrive m Q twice", "expected arrive"),
        ("arrive n Q", "unknown message 'n'"),
        ("arrive ack(m,R) Q", "unknown process 'R'"),
        ("arrive ack(,) Q", "expected a name"),
        ("lose m", "expected lose"),
        ("receive", "expected receive"),
        ("receive P to Q", "expected receive"),
        ("drain P", "expected drain"),
        ("wait", "expected wait"),
        ("wait -1", "expected wait"),
        ("wait 1e9", "expected wait"),
        ("wait nan", "expected wait"),
        ("wait ٣", "expected wait"),
        ("crash", "expected crash"),
        ("restart P Q", "expected restart"),
        ("control automatic", "control manual"),
        ("order", "expected order"),
        ("order chaos", "unknown order 'chaos'"),
        ("order buffer speed=9", "no option speed"),
        ("order buffer pipelined", "expected key=value"),
        ("order coordinator member=" + "9" * 5000, "expected key=value"),
        ("domain A", "expected domain"),
        ("domain A P P", "each server once"),
        ("domain A pruned", "each server once"),
        ("domain A P Q buffer:speed=9", "no option speed"),
        ("expect", "expected one of"),
        ("expect P", "expected one of"),
        ("expect P holds", "expected one of"),
        ("expect P delivered n", "unknown message"),
        ("expect stuck under", "expected under"),
        ("expect stuck under chaos", "'chaos'"),
        ("expect stuck under none,", "expected under"),
    ],
)
def test_what_cannot_be_read_is_refused_in_its_line(line: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        _parse("processes P Q", "send m P -> Q", "", line, "drain")
    assert caught.value.line == 4
    assert str(caught.value).startswith("f:4: ")
    assert said in caught.value.reason


def test_a_file_without_processes() -> None:
    with pytest.raises(ScenarioError, match="no processes"):
        _parse("# nothing")


def test_a_file_that_is_no_text() -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(b"processes P\n\n\xff\n", "f")
    assert caught.value.line == 3


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read("no/such/file.txt")
    with pytest.raises(UsageError, match="cannot be read"):
        read("bad\0name")


def test_bytes_at_the_bound() -> None:
    start = b"processes P\n"
    whole = start + b"#" * (limits.scenario_bytes_max - len(start))
    assert parse_scenario(whole, "f").processes == ("P",)
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(whole + b"#", "f")
    assert caught.value.line == 2


def test_processes_at_the_bound() -> None:
    names = [f"P{number}" for number in range(limits.scenario_processes_max + 1)]
    assert len(_parse("processes " + " ".join(names[:-1])).processes) == limits.scenario_processes_max
    with pytest.raises(ScenarioError, match="at most"):
        _parse("processes " + " ".join(names))
    with pytest.raises(ScenarioError, match="at most"):
        _parse("domain A " + " ".join(names))


def test_wait_at_the_bound() -> None:
    (line,) = _parse("processes P", f"wait {limits.scenario_wait_seconds_max}").statements
    assert line == WaitLine(2, limits.scenario_wait_seconds_max)
    with pytest.raises(ScenarioError, match="at most"):
        _parse("processes P", f"wait {limits.scenario_wait_seconds_max + 1}")
