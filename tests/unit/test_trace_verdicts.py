"""The verdicts on small traces that a person can follow, and on real ones."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from antecede.errors import TraceError
from antecede.trace import Event, check_clocks, check_lamport, judge, match, needless_delays, verify
from helpers.snapshots import Snapshots


def _trace(**lines: str) -> list[Event]:
    """``p="x>q,r ?x !x ."``: p sends x to q and r, x arrives, x is delivered, a local event."""
    events = []
    for process, text in lines.items():
        for index, word in enumerate(text.split()):
            if word == ".":
                events.append(Event(process, index, "local"))
            elif word[0] in "?!":
                events.append(Event(process, index, "arrive" if word[0] == "?" else "deliver", word[1:]))
            else:
                message, to = word.split(">")
                events.append(Event(process, index, "send", message, tuple(filter(None, to.split(",")))))
    return events


def test_garg_figure_12_1_a_chain_overtakes_a_message() -> None:
    events = _trace(p="x>r y>q", q="!y z>r", r="!z !x")
    verdict = judge(events)
    assert [verdict.holds(order) for order in verdict.orders] == [True, False, True, False]
    assert verdict.as_json()["causal"]["first"] == {
        "message": "x",
        "from": "p",
        "to": "r",
        "send_index": 0,
        "deliver_index": 1,
        "overtaken_by": "z",
    }


def test_the_first_late_delivery_is_least_in_index_then_process() -> None:
    events = _trace(p="x>q,r,s y>q,r,s", q="!y . !x", r="!y !x", s="!y !x")
    assert [late.to for late in judge(events).fifo] == ["r", "s", "q"]


def test_a_message_to_oneself_is_late_by_what_came_back() -> None:
    assert judge(_trace(p="x>p y>p !y !x")).holds("causal") is False
    assert judge(_trace(p="x>p y>p !x !y")).holds("causal") is True
    # The own send alone, however many events ago, makes nothing late; what a peer sent back in answer to it does.
    assert judge(_trace(p="x>p y>q !x", q="!y")).holds("causal") is True
    assert judge(_trace(p="x>p y>q !z !x", q="!y z>p")).holds("causal") is False


def test_happened_before_does_not_flow_through_arrivals() -> None:
    assert judge(_trace(p="x>r y>q", q="?y z>r !y", r="!z !x")).holds("causal") is True


def test_total_order_and_who_disagrees() -> None:
    pair = judge(_trace(p="a>r,s", q="b>r,s", r="!a !b", s="!b !a"))
    assert pair.as_json()["total"] == {"holds": False, "pairwise": False, "cycle": ["a", "b"]}
    three = judge(_trace(p="a>s,u", q="b>s,t", r="c>t,u", s="!a !b", t="!b !c", u="!c !a"))
    assert three.as_json()["total"] == {"holds": False, "pairwise": True, "cycle": ["a", "b", "c"]}


def test_synchronous_order_and_its_crown() -> None:
    assert judge(_trace(p="x>q !y", q="y>p !x")).as_json()["synchronous"] == {"holds": False, "crown": ["x", "y"]}
    assert judge(_trace(p="x>q !y", q="!x y>p")).as_json()["synchronous"] == {"holds": True, "crown": None}
    # A message to oneself with another between its two events cannot be one instant.
    assert judge(_trace(p="x>p y>q !x", q="!y")).as_json()["synchronous"]["crown"] == ["x", "y"]


def test_nothing_to_judge_is_neither_good_nor_bad() -> None:
    verdict = judge(_trace(p="x>q y>q", q="."))
    assert {verdict.holds(order) for order in verdict.orders} == {None}
    assert verdict.undelivered == 2
    assert verdict.as_json()["total"] == {"holds": None, "pairwise": None, "cycle": None}


def test_events_of_a_circle_are_no_trace(reads: Snapshots) -> None:
    with pytest.raises(TraceError) as caught:
        judge(_trace(p="!y x>q", q="!x y>p"))
    reads(str(caught.value))
    with pytest.raises(TraceError) as caught:
        judge(_trace(p="!x x>p"))
    reads(str(caught.value))


def test_needless_delay() -> None:
    def held(**lines: str) -> list[tuple[str, str]]:
        return [(delay.process, delay.message) for delay in needless_delays(_trace(**lines))]

    assert held(p="x>q", q="?x !x") == []
    assert held(p="x>q", q="?x . !x") == [("q", "x")]
    assert held(p="x>q", q=". ?x") == [("q", "x")]
    # y must wait for x: until x is delivered it is held with reason, and other deliveries take no time.
    assert held(p="x>q y>q", q="?y . ?x !x !y") == []
    assert held(p="x>q y>q", q="?y . ?x !x . !y") == [("q", "y")]
    assert held(p="x>q y>q", q="?y .") == []
    assert held(p="x>q y>r z>q", q="?z !z", r="") == []


def test_lamport_clocks() -> None:
    events = [
        Event("p", 0, "send", "x", ("q",), lamport=5),
        Event("p", 1, "local", lamport=5),
        Event("q", 0, "local", lamport=1),
        Event("q", 1, "deliver", "x", lamport=5),
        Event("q", 2, "local"),
        Event("q", 3, "local", lamport=6),
    ]
    assert check_lamport(match(events)) == {"checked": 5, "disagree": 2, "used": False}
    assert check_lamport(match(events[:1])) == {"checked": 1, "disagree": 0, "used": True}
    assert check_lamport(match([])) == {"checked": 0, "disagree": 0, "used": False}


def _shared(root: Path, name: str) -> Path:
    path = root.parent / "shared" / "data" / name
    if not path.exists():
        pytest.skip("the real traces are not beside the project")
    return path


def test_the_git_mailing_list(root: Path) -> None:
    report = verify([_shared(root, "mail/git-mail-100k.jsonl.gz")], ("fifo", "causal", "total"))
    assert {name: report[name] for name in ("processes", "events", "messages", "deliveries", "undelivered")} == {
        "processes": 2913,
        "events": 269014,
        "messages": 100000,
        "deliveries": 169014,
        "undelivered": 0,
    }
    assert report["complete"]
    assert report["orders"]["fifo"] == {"holds": False, "late": 4419, "undecided": 0}
    assert report["orders"]["causal"]["late"] == 6377
    assert report["orders"]["total"]["holds"] is False


def _from_clocks(rows: list[tuple[str, dict[str, int]]]) -> list[Event]:
    """A trace whose messages are the knowledge that its vector clocks gained from one event to the next.

    The logged events keep their clocks. Messages are events between them without one, so clocks don't count by index.
    """
    lines: dict[str, list[dict[str, int]]] = {}
    for host, clock in rows:
        lines.setdefault(host, []).append(clock)
    logged = {(host, clock[host]): clock for host, clock in rows}
    before: dict[tuple[str, int], list[Event]] = {}
    after: dict[tuple[str, int], list[Event]] = {}
    for host, clocks in lines.items():
        known: dict[str, int] = {}
        for clock in sorted(clocks, key=lambda clock: clock[host]):
            gained = [peer for peer in clock if peer != host and clock[peer] > known.get(peer, 0)]
            for peer in gained:
                # What another message brought along needed none of its own.
                if all(logged[other, clock[other]].get(peer, 0) < clock[peer] for other in gained if other != peer):
                    message = f"{peer} {clock[peer]} {host}"
                    after.setdefault((peer, clock[peer]), []).append(Event(peer, 0, "send", message))
                    before.setdefault((host, clock[host]), []).append(Event(host, 0, "deliver", message))
            known = clock
    events = []
    for host, clocks in lines.items():
        line: list[Event] = []
        for clock in sorted(clocks, key=lambda clock: clock[host]):
            place = host, clock[host]
            line += [*before.get(place, []), Event(host, 0, "local", clock=clock), *after.get(place, [])]
        events += [Event(e.process, 10_000 + i, e.kind, e.message, clock=e.clock) for i, e in enumerate(line)]
    return events


def test_clocks_of_real_systems(root: Path, logged: tuple[str, int, int, int]) -> None:
    name, hosts, events, edges = logged
    text = _shared(root, f"shiviz/{name}.log").read_text(encoding="utf-8")
    pattern = r"^.*/user/(\w+)\] (\{.*?\})" if "broadcast" in name else r"^(\S+) (\{.*\}) *$"
    rows = [(host, json.loads(clock)) for host, clock in re.findall(pattern, text, re.MULTILINE)]
    trace = match(_from_clocks(rows))
    assert (len(trace.lines), trace.deliveries) == (hosts, edges)
    assert check_clocks(trace) == {"checked": events, "disagree": 0, "rule": "order"}
    assert judge(trace, ("causal",)).holds("causal")
    first: Any = next(event for event in trace.lines[-1] if event.clock)
    first.clock[trace.names[0]] = 1_000_000
    assert check_clocks(trace)["disagree"] > 0
