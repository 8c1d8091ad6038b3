"""Every reason for setting a row aside, planted, and what the trace still says."""

from collections import Counter

import pytest

from antecede.trace import Event, Fault, judge, sift
from antecede.trace.quarantine import REASONS, counts


def _rows(text: str) -> list[Event]:
    """``a0 send m b,c`` a line: process and index, kind, message, destinations (``?`` unknown, ``-`` nobody)."""
    rows = []
    for line in text.strip().splitlines():
        place, kind, *rest = line.split()
        to = None
        if len(rest) > 1 and rest[1] != "?":
            to = () if rest[1] == "-" else tuple(sorted(rest[1].split(",")))
        rows.append(Event(place[0], int(place[1:]), kind, rest[0] if rest else None, to))
    return rows


def _reasons(text: str) -> list[str]:
    rows = _rows(text)
    reasons = sift(rows).reasons
    return [reasons.get(number, "") for number in range(len(rows))]


def test_a_good_trace_is_left_alone() -> None:
    assert _reasons("a0 send m a,b\n b0 arrive m\n b1 arrive m\n b2 deliver m\n a1 deliver m\n s0 hop q") == [""] * 6


def test_duplicate_row_keeps_one_and_ignores_other_columns() -> None:
    rows = _rows("a0 send m b\n a0 send m b\n b0 deliver m")
    rows[1] = Event("a", 0, "send", "m", ("b",), extra={"host": 1})
    sifted = sift(rows)
    assert sifted.reasons == {1: "duplicate_row"}
    assert judge(sifted.trace).deliveries == 1


def test_duplicate_index_sets_all_aside() -> None:
    assert _reasons("a0 send m b\n a0 local\n a0 local\n b0 deliver m") == [
        "duplicate_index",
        "duplicate_index",
        "duplicate_row",
        "orphan_delivery",
    ]


def test_a_server_and_an_agent_may_share_a_name() -> None:
    assert _reasons("a0 send m b\n a0 hop m\n b0 deliver m") == [""] * 3


def test_duplicate_send_takes_all_sends_and_deliveries() -> None:
    assert _reasons("a0 send m b\n a1 send m b\n b0 arrive m\n b1 deliver m\n c0 deliver m") == [
        "duplicate_send",
        "duplicate_send",
        "orphan_arrival",
        "duplicate_send",
        "duplicate_send",
    ]


@pytest.mark.parametrize("order", ["0 1", "1 0"])
def test_duplicate_delivery_keeps_the_smallest_index(order: str) -> None:
    first, second = order.split()
    said = _reasons(f"a0 send m b\n b{first} deliver m\n b{second} deliver m")
    assert said == ["", *("" if index == "0" else "duplicate_delivery" for index in (first, second))]


def test_orphans() -> None:
    assert _reasons("b0 arrive m\n b1 deliver m") == ["orphan_arrival", "orphan_delivery"]


def test_not_addressed_is_for_deliveries_at_named_strangers() -> None:
    assert _reasons("a0 send m b\n c0 arrive m\n c1 deliver m") == ["", "", "not_addressed"]
    assert _reasons("a0 send m -\n c0 deliver m") == ["", "not_addressed"]
    assert _reasons("a0 send m ?\n c0 deliver m") == ["", ""]


def test_before_send() -> None:
    assert _reasons("a0 deliver m\n a1 send m a") == ["before_send", ""]
    assert _reasons("a0 send m a\n a1 deliver m") == ["", ""]


_circle = "a0 deliver y\n a1 send x b\n b0 deliver x\n b1 send y a"


def test_cycle() -> None:
    assert _reasons(_circle) == ["cycle", "", "cycle", ""]
    # What comes after a cycle is not on it, and a message that goes round with it is.
    assert _reasons(_circle + "\n b2 send z c\n c0 deliver z") == ["cycle", "", "cycle", "", "", ""]
    inside = "a0 deliver y\n a1 send s a\n a2 deliver s\n a3 send x b\n b0 deliver x\n b1 send y a"
    assert _reasons(inside) == ["cycle", "", "cycle", "", "cycle", ""]


def test_two_cycles_that_share_a_message() -> None:
    text = "a0 deliver y\n a1 deliver z\n a2 send x b,c\n b0 deliver x\n b1 send y a\n c0 deliver x\n c1 send z a"
    assert _reasons(text) == ["cycle", "cycle", "", "cycle", "", "cycle", ""]


def test_one_reason_a_row_in_the_order_of_the_contract() -> None:
    # Orphaned and repeated: the repetition is tested first. Repeated and too early: the early one is what is left.
    assert _reasons("b0 deliver m\n b1 deliver m") == ["orphan_delivery", "duplicate_delivery"]
    assert _reasons("a0 deliver m\n a1 send m a\n a2 deliver m") == ["before_send", "", "duplicate_delivery"]


def test_a_row_set_aside_still_fills_its_place() -> None:
    rows = _rows("a1 send m b,q\n a2 local\n b0 deliver m\n b1 deliver m")
    faults = [Fault("wrong_type", "", "a", 0), Fault("unknown_kind", "", "z", 1), Fault("missing_field", "")]
    sifted = sift(rows, [fault for fault in faults if fault.process is not None])
    assert (sifted.processes, sifted.silent, sifted.events, sifted.missing) == (3, 1, 3, 1)
    assert counts(sifted, Counter(fault.reason for fault in faults)) == {
        "missing_field": 1,
        "wrong_type": 1,
        "unknown_kind": 1,
        "duplicate_delivery": 1,
        "index_gap": 1,
    }


def test_gaps_are_counted_not_walked() -> None:
    sifted = sift([Event("a", 2**63 - 1, "local"), Event("s", 3, "hop", "m")])
    assert counts(sifted, Counter()) == {"index_gap": 2**63 - 1 + 3}
    assert not sifted.reasons


def test_an_edge_that_is_lost_hides_and_never_invents() -> None:
    late = "a0 send x c\n a1 send y b\n b0 deliver y\n b1 send z c\n c0 deliver z\n c1 deliver x"
    assert len(judge(_rows(late)).causal) == 1
    damaged = _rows(late + "\n b0 local")
    assert judge(sift(damaged).trace).causal == []


def test_reasons_are_those_of_the_contract() -> None:
    assert len(set(REASONS)) == 14
