"""Logs with vector clocks: patterns that read them, and the messages that the clocks imply."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antecede import limits
from antecede.errors import TraceError, UsageError
from antecede.trace import Event, read_events, verify
from antecede.trace.foreign import PRESETS, LoggedEvent, Pattern, choose, convert
from helpers.snapshots import Snapshots

_two = [
    ('a {"a":1}', "starts"),
    ('a {"a":2}', "sends to b"),
    ('b {"b":1}', "starts"),
    ('b {"a":2, "b":2}', "receives from a and answers"),
    ('a {"a":3, "b":2}', "receives"),
]
_govector = "".join(f"{who}\n{event}\n" for who, event in _two)


def _import(folder: Path, text: str | bytes, **more: Any) -> tuple[dict[str, Any], list[Event]]:
    log = folder / "the.log"
    log.write_bytes(text if isinstance(text, bytes) else text.encode())
    report = convert([log], folder / "t.jsonl", **more)
    return report, read_events([folder / "t.jsonl"])[0]


def test_cross_edges_become_messages(tmp_path: Path) -> None:
    report, events = _import(tmp_path, _govector)
    assert (report["processes"], report["events"], report["messages"], report["rows"]) == (2, 5, 2, 8)
    assert report["files"] == [
        {"file": str(tmp_path / "the.log"), "format": "shiviz", "pattern": "govector", "events": 5}
    ]
    assert [(e.process, e.index, e.kind, e.message, e.to, e.clock, (e.extra or {}).get("event")) for e in events] == [
        ("a", 0, "local", None, None, None, "(the log begins)"),
        ("a", 1, "local", None, None, {"a": 1}, "starts"),
        ("a", 2, "send", "a:2->b", ("b",), {"a": 2}, "sends to b"),
        ("a", 3, "deliver", "b:2->a", None, {"a": 3, "b": 2}, "receives"),
        ("b", 0, "local", None, None, None, "(the log begins)"),
        ("b", 1, "local", None, None, {"b": 1}, "starts"),
        ("b", 2, "deliver", "a:2->b", None, {"a": 2, "b": 2}, "receives from a and answers"),
        ("b", 3, "send", "b:2->a", ("a",), None, None),
    ]


def test_rows_of_an_event_that_receives_and_sends(tmp_path: Path) -> None:
    """The clock stands on the delivery, so that what was received is in it and what was sent after it."""
    _, events = _import(tmp_path, _govector)
    rows = [(e.kind, e.message, e.clock is not None) for e in events if e.process == "b"]
    assert rows[-2:] == [("deliver", "a:2->b", True), ("send", "b:2->a", False)]
    assert verify([tmp_path / "t.jsonl"])["clocks"] == {"checked": 5, "disagree": 0, "rule": "order"}


def test_what_a_third_host_told_is_no_edge(tmp_path: Path) -> None:
    log = 'a {"a":1}\nx\nb {"a":1,"b":1}\nx\nc {"a":1,"b":1,"c":1}\nx\n'
    _, events = _import(tmp_path, log)
    assert sorted(e.message or "" for e in events if e.kind == "deliver") == ["a:1->b", "b:1->c"]


def test_several_new_hosts_at_once_are_several_deliveries(tmp_path: Path) -> None:
    log = 'a {"a":1}\nx\nb {"b":1}\nx\nc {"a":1,"b":1,"c":1}\nboth\n'
    report, events = _import(tmp_path, log)
    rows = [(e.kind, e.message, e.clock) for e in events if e.process == "c" and e.message]
    assert rows == [("deliver", "a:1->c", None), ("deliver", "b:1->c", {"a": 1, "b": 1, "c": 1})]
    assert report["messages"] == 2


def _logs(seed: int, hosts: int = 4, steps: int = 60) -> list[tuple[str, dict[str, int], str]]:
    """A run with vector clocks, in which every event may receive several messages and send several."""
    dice = random.Random(seed)
    names = [f"h{i}" for i in range(hosts)]
    clocks: dict[str, dict[str, int]] = {name: {} for name in names}
    air: list[tuple[str, dict[str, int]]] = []
    lines = []
    for step in range(steps):
        host = dice.choice(names)
        clock = dict(clocks[host])
        for copy in [copy for copy in air if copy[0] == host and dice.random() < 0.5]:
            air.remove(copy)
            clock = {name: max(clock.get(name, 0), copy[1].get(name, 0)) for name in {*clock, *copy[1]}}
        clock[host] = clock.get(host, 0) + 1
        clocks[host] = clock
        air += [(name, clock) for name in names if name != host and dice.random() < 0.2]
        lines.append((host, clock, f"step {step}"))
    dice.shuffle(lines)
    return lines


def _written(lines: list[tuple[str, dict[str, int], str]]) -> str:
    return "".join(f"{host} {json.dumps(clock)}\n{event}\n" for host, clock, event in lines)


def test_clocks_of_random_runs_agree_and_nothing_is_late(tmp_path: Path) -> None:
    rules = set()
    for seed in range(60):
        lines = _logs(seed, steps=8 + seed)
        report, _ = _import(tmp_path, _written(lines))
        assert report["events"] == len(lines)
        said = verify([tmp_path / "t.jsonl"])
        assert (said["clocks"]["checked"], said["clocks"]["disagree"]) == (len(lines), 0), seed
        assert (said["orders"]["fifo"]["late"], said["orders"]["causal"]["late"]) == (0, 0)
        assert said["complete"]
        rules.add(said["clocks"]["rule"])
    assert rules == {"exact", "order"}


def test_clocks_agree_where_events_were_not_logged(tmp_path: Path) -> None:
    unlogged = 0
    for seed in range(40):
        lines = [line for number, line in enumerate(_logs(seed)) if number % 5]
        report, _ = _import(tmp_path, _written(lines))
        unlogged += report["unlogged"]
        said = verify([tmp_path / "t.jsonl"])
        assert said["clocks"] == {"checked": len(lines), "disagree": 0, "rule": said["clocks"]["rule"]}, seed
    assert unlogged


def test_a_clock_that_was_tampered_with_disagrees(tmp_path: Path) -> None:
    caught = 0
    for seed in range(20):
        lines = _logs(seed)
        at = next(i for i, (host, clock, _) in enumerate(lines) if len(clock) > 2)
        host, clock, event = lines[at]
        forgotten = max(name for name in clock if name != host)
        lines[at] = host, {name: entry for name, entry in clock.items() if name != forgotten}, event
        _import(tmp_path, _written(lines))
        said = verify([tmp_path / "t.jsonl"])
        caught += said["clocks"]["disagree"] > 0 or not said["complete"]
    assert caught == 20


def test_most_but_not_all_own_entries_at_index_plus_one(tmp_path: Path) -> None:
    """Without an opening row verify would compare by the wrong rule: only the last rows are pushed on."""
    quiet = "".join(f'a {{"a":{i}}}\nx\n' for i in range(1, 21))
    log = quiet + 'b {"b":1}\nx\nc {"c":1}\nx\na {"a":21,"b":1,"c":1}\nboth\na {"a":22,"b":1,"c":1}\nx\n'
    _, events = _import(tmp_path, log)
    assert [e.index for e in events if (e.extra or {}).get("event") == "(the log begins)"] == [0, 0, 0]
    assert verify([tmp_path / "t.jsonl"])["clocks"] == {"checked": 24, "disagree": 0, "rule": "order"}


def test_a_clock_that_counts_events_beyond_the_end_of_a_log(tmp_path: Path) -> None:
    """By the rule for complete logs, this clock would disagree."""
    _import(tmp_path, 'a {"a":1}\nx\nb {"b":1,"a":2}\ny\n')
    assert verify([tmp_path / "t.jsonl"])["clocks"] == {"checked": 2, "disagree": 0, "rule": "order"}


_samples = {
    "govector": 'a {"a":1}\none\na {"a":2}\ntwo\n',
    "govector-time": '1700000000000000001 a {"a":1}\none\n1700000000000000002 a {"a":2}\ntwo\n',
    "event-first": 'one\na {"a":1}\ntwo\na {"a":2} \n',
    "tsviz": '5 one\na {"a":1}\n6 two\na {"a":2}\n',
    "akka": '[INFO] [d] [t] [akka://X/user/a] {"a" : 1} one\n[WARN] [d] [t] [akka://X/user/a] {"a" : 2} two\n',
    "one-line": 'a {"a":1} one\na {"a":2} two\n',
}


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_is_recognised(name: str, tmp_path: Path) -> None:
    report, events = _import(tmp_path, _samples[name])
    assert report["files"][0]["pattern"] == name
    assert [(e.extra or {})["event"] for e in events] == ["one", "two"]
    assert report["unreadable"] == 0
    if name == "tsviz":
        assert [e.time for e in events] == [5, 6]
    if name == "akka":
        assert (events[1].extra or {})["level"] == "WARN"


def test_a_log_that_lost_its_end_is_read_the_right_way_round(tmp_path: Path) -> None:
    for name, cut in (
        ("event-first", 'one\na {"a":1}\ntwo\na {"a":2}\nthree\n'),
        ("govector", _govector + 'a {"a":4}\n'),
    ):
        report, _ = _import(tmp_path, cut)
        assert (report["files"][0]["pattern"], report["unreadable"]) == (name, 1)


def test_line_ends_of_windows_a_byte_order_mark_and_blank_lines(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf" + _govector.replace("\n", "\r\n").encode() + b"\r\n  \r\n"
    report, events = _import(tmp_path, text)
    assert (report["events"], report["unreadable"]) == (5, 0)
    assert not any("\r" in str(e.extra) for e in events)


def test_a_pattern_in_the_words_of_javascript_and_over_several_lines(tmp_path: Path) -> None:
    log = '## a\nhello\n{"a":1}\n## b\nthere\n{"a":1,"b":1}\n'
    pattern = r"## (?<host>\w+)\n(?<event>.*)\n(?<clock>{.*})"
    report, events = _import(tmp_path, log, pattern=pattern)
    assert (report["events"], report["messages"], report["unreadable"]) == (2, 1, 0)
    assert [(e.extra or {})["event"] for e in events] == ["hello", "there"]


def test_a_pattern_may_begin_within_a_line_and_name_our_columns(tmp_path: Path) -> None:
    log = 'noise a: {"a":1} | x | 7\nonly noise\nmore b: {"a":1,"b":1} | y | 8\n'
    report, events = _import(tmp_path, log, pattern=r"(?<host>\w+): (?<clock>{.*}) \| (?<event>.*) \| (?<index>.)")
    assert (report["events"], report["unreadable"]) == (2, 1)
    assert report["unreadable_first"] == [f"{tmp_path / 'the.log'}:2: no event: the pattern does not match"]
    assert [(e.extra or {})["index_"] for e in events] == ["7", "8"]


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "(?P<host>a)",
        "(?<event>.)(?<host>.)",
    ],
)
def test_patterns_that_cannot_be_meant(pattern: str, reads: Snapshots) -> None:
    with pytest.raises(UsageError) as caught:
        Pattern("given", pattern)
    reads(str(caught.value))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('a {"a":"1"}', "not a map from host to number"),
        ('a {"a":1.5}', "not a map from host to number"),
        ("a {a:1}", "not a map from host to number"),
        ('a {"a":-1}', "not an int64 from 0"),
        ('a {"a":99999999999999999999}', "not a map|not an int64"),
        ('a {"b":1}', "no entry for its own host"),
        ('a {"a":0}', "no entry for its own host"),
        ('a {"a":2}', "already has an event 2"),
    ],
)
def test_lines_that_say_nothing_are_counted_with_their_place(line: str, said: str, tmp_path: Path) -> None:
    report, _ = _import(tmp_path, _govector + line + "\nx\n")
    assert (report["events"], report["unreadable"]) == (5, 1)
    (first,) = report["unreadable_first"]
    assert first.startswith(f"{tmp_path / 'the.log'}:11: ")
    assert any(part in first for part in said.split("|"))


def test_only_the_first_few_are_shown(tmp_path: Path) -> None:
    report, _ = _import(tmp_path, _govector + "".join(f"noise\n{i}\n" for i in range(50)))
    assert report["unreadable"] == 100
    assert len(report["unreadable_first"]) == 5


def test_a_line_at_the_bound_and_one_beyond(tmp_path: Path) -> None:
    bound = limits.foreign_line_bytes_max
    fits = 'a {"a":4}' + " " * (bound - 9)
    report, _ = _import(tmp_path, _govector + fits + "\nx\n" + fits.replace("4", "5") + ' \nb {"b":3}\nlast')
    assert report["events"] == 7
    assert report["unreadable"] == 1
    assert report["unreadable_first"][0].endswith(f":13: longer than {bound} bytes")


def test_more_events_than_an_import_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: Snapshots) -> None:
    monkeypatch.setattr(limits, "foreign_events_max", 5)
    _import(tmp_path, _govector)
    monkeypatch.setattr(limits, "foreign_events_max", 4)
    with pytest.raises(TraceError) as caught:
        _import(tmp_path, _govector)
    reads(str(caught.value))
    monkeypatch.setattr(limits, "foreign_events_max", 5)
    monkeypatch.setattr(limits, "foreign_clock_entries_max", 6)
    with pytest.raises(TraceError) as caught:
        _import(tmp_path, _govector)
    reads(str(caught.value))


def test_a_log_of_each_process_makes_one_trace(tmp_path: Path) -> None:
    for host in "ab":
        (tmp_path / f"{host}.log").write_text("".join(f"{w}\n{e}\n" for w, e in _two if w[0] == host))
    report = convert([tmp_path], tmp_path / "out.jsonl")
    assert [file["events"] for file in report["files"]] == [3, 2]
    assert (report["processes"], report["messages"]) == (2, 2)


@given(st.lists(st.text(st.sampled_from('ab {}":1,\n\x00é'), max_size=30), max_size=12))
def test_presets_read_any_lines(texts: list[str]) -> None:
    lines = [(number, text.encode()) for number, text in enumerate(texts, 1)]
    chosen = choose(lines)
    for name, text in PRESETS.items():
        for said in Pattern(name, text).read(lines):
            assert isinstance(said, LoggedEvent) or 1 <= said[0] <= len(texts)
    assert chosen is None or chosen.name in PRESETS
