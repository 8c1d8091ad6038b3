"""Labels of notifications: computed by the sender, carried beside the message, never in its way."""

import logging
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from antecede import Agent, Context, Notification, Topic, limits
from antecede.channel import Letter
from antecede.labels import clean, label_in, tail_in, tail_of, trace_in
from antecede.server import Projection, projection
from antecede.testing import Faults, World
from antecede.trace import Event, Titles, short_id, write_trace
from antecede.trace.titles import named

_topology = """
[servers]
s1 = "tcp://127.0.0.1:7101"
s2 = "tcp://127.0.0.1:7102"
s3 = "tcp://127.0.0.1:7103"
[domains]
A = { servers = ["s1", "s2"] }
B = { servers = ["s2", "s3"] }
[agents]
here = { server = "s1", class = "x:Repeater" }
there = { server = "s3", class = "x:Repeater" }
news = { server = "s2", class = "antecede:Topic" }
"""


class Said(Notification):
    text: str

    def label(self) -> str:
        return self.text


class Plain(Notification):
    label: str = "a field, not a method"


class Odd(Notification):
    how: str

    def label(self) -> Any:
        if self.how == "raise":
            raise ValueError("no label today")
        if self.how == "exit":
            raise SystemExit(3)
        return {
            "number": 7,
            "nothing": None,
            "surrogate": "a\ud800b",
            "long": "x y" * 100_000,
            "lines": " a\n\tb\x1b ",
        }[self.how]


class Repeater(Agent):
    def on_said(self, said: Said, ctx: Context) -> None:
        if not said.text.startswith("again "):
            ctx.reply(Said(text=f"again {said.text}"))

    def on_odd(self, odd: Odd, ctx: Context) -> None:
        if ctx.sender.startswith("ann"):
            ctx.multicast(["here", "there"], odd)

    def on_plain(self, plain: Plain, ctx: Context) -> None:
        pass


def _world() -> World:
    return World(_topology, agents={"here": Repeater, "there": Repeater, "news": Topic}, seed=1, faults=Faults())


def test_sends_and_deliveries_of_servers_have_the_class_and_the_label() -> None:
    world = _world()
    world.send("ann@s1", "there", Said(text="where is q5?"))
    world.send("ann@s1", "here", Plain())
    world.run()
    rows = [row for row in world.trace() if row.kind in ("send", "deliver")]
    said = sorted((row.process, row.kind, row.notification, row.label) for row in rows if row.process != "ann@s1")
    assert said == [
        ("here", "deliver", "Plain", None),
        ("there", "deliver", "Said", "where is q5?"),
        ("there", "send", "Said", "again where is q5?"),
    ]
    sent = {(row.notification, row.label) for row in rows if (row.process, row.kind) == ("ann@s1", "send")}
    assert sent == {("Said", "where is q5?"), ("Plain", None)}
    routed = next(row for row in rows if (row.kind, row.process) == ("deliver", "there"))
    assert routed.stamp_bytes is not None
    assert routed.held is False
    here = next(row for row in rows if (row.kind, row.process) == ("deliver", "here"))
    assert (here.stamp_bytes, here.held) == (None, None), "a letter within a server has no packet"
    assert [row.held for row in world.trace() if row.kind == "hop"] == [False, False]


@pytest.mark.parametrize("how", ["raise", "exit", "number", "nothing", "surrogate", "long", "lines"])
def test_a_label_never_disturbs_a_send(how: str, caplog: pytest.LogCaptureFixture) -> None:
    from antecede import labels

    labels._failed.clear()
    with caplog.at_level(logging.WARNING, "antecede.labels"):
        world = _world()
        for _ in range(3):
            world.send("ann@s1", "here", Odd(how=how))
        world.run()
    rows = world.trace()
    assert sum(row.kind == "deliver" for row in rows) == 9
    expected = {"surrogate": "a\ufffdb", "lines": "a b\ufffd"}.get(how)
    if how == "long":
        expected = ("x y" * 40)[: limits.notification_label_chars_max - 1] + "…"
    assert {row.label for row in rows if row.kind != "hop"} == {expected}
    assert {row.notification for row in rows if row.kind != "hop"} == {"Odd"}
    failures = [record for record in caplog.records if "Odd.label()" in record.getMessage()]
    assert len(failures) == (0 if expected else 1), "once per class"


def test_a_topic_and_a_replay_keep_the_label() -> None:
    letter = Letter("s1.000000.1", "ann@s1", ("here",), "Said", b"", context=f"trace{tail_of(Said(text='hi'))}")
    agents = Context("news", "s2", letter)
    agents.forward(["here"], letter)
    assert agents.outbound[0].context == "\nhi"
    from antecede.server import sent_again

    assert sent_again(letter, "op", 1, ("here",)).context == "\nhi"


def test_the_label_follows_the_trace_context() -> None:
    assert tail_of(Plain()) == ""
    for agents, trace, label in (
        ("", "", None),
        ("00-1", "00-1", None),
        ("\nx", "", "x"),
        ("00-1\nx y", "00-1", "x y"),
    ):
        assert (trace_in(agents), label_in(agents)) == (trace, label)
        assert trace_in(agents) + tail_in(agents) == agents
    # A peer may send anything.
    assert label_in("t\n" + "\n\x1b[31m" * 99) == clean("\x1b[31m " * 99)
    assert len(label_in("\n" + "y" * 999) or "") == limits.notification_label_chars_max


def test_labels_survive_a_restart_and_the_end_of_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that continues from a saved place has the same rows as one that reads everything."""
    world = _world()
    for number in range(20):
        world.send("ann@s1", ["here", "there"], Said(text=f"q{number}"))
    world.run()
    logs = world._world.logs()
    records = logs.records["s1"]
    plan, machine = world._world.plan, world._world.servers["s1"].machine
    for cut in range(len(records)):
        whole = Projection("s1", machine.incarnation, plan.topology, plan.homes)
        first = Projection("s1", machine.incarnation, plan.topology, plan.homes)
        second = Projection("s1", machine.incarnation, plan.topology, plan.homes)
        rows = [row for record in records for row in whole.rows(record)]
        again = [row for record in records[:cut] for row in first.rows(record)]
        second.load(first.save())
        assert again + [row for record in records[cut:] for row in second.rows(record)] == rows
    assert all(row.notification for row in rows if row.kind in ("send", "deliver"))
    assert not whole._letters, "nothing is remembered after its last delivery"
    # At the bound the oldest letters are forgotten: their rows lack the texts, and nothing else changes.
    monkeypatch.setattr(projection, "trace_pending_letters_max", 1)
    short = Projection("s1", machine.incarnation, plan.topology, plan.homes)
    fewer = [row for record in records for row in short.rows(record)]
    plain = {"notification": None, "label": None, "stamp_bytes": None, "held": None}
    assert [msgspec.structs.replace(row, **plain) for row in fewer] == [
        msgspec.structs.replace(row, **plain) for row in rows
    ]


def test_a_place_of_an_earlier_version_can_be_continued() -> None:
    one = Projection("s1", 7)
    for saved in ((one.prefix, 3, 0, {"a": 4}), (one.prefix, 3, 0, {"a": 4}, None)):
        one.load(msgspec.msgpack.encode(saved))
        assert (one.numbers, one.indices) == (3, {"a": 4})


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.parquet"])
def test_texts_are_read_back_and_found_for_a_report(tmp_path: Any, name: str) -> None:
    path = str(tmp_path / name)
    rows = [
        Event("p", n, "send", f"s1.5f9c8a.{n}", ("q",), notification="Said", label=f'a: "b" \\ {n}') for n in range(3)
    ]
    rows += [Event("q", 0, "deliver", "s1.5f9c8a.1", notification="Said", held=True, stamp_bytes=4)]
    write_trace(path, rows)
    from antecede.trace import read_events

    assert read_events([path])[0] == rows
    found = named(["s1.5f9c8a.1", "s1.5f9c8a.9"], [path])
    assert found == [{"message": "s1.5f9c8a.1", "notification": "Said", "label": 'a: "b" \\ 1'}]
    write_trace(str(tmp_path / "plain.jsonl"), [Event("p", 0, "send", "s1.5f9c8a.1", ("q",))])
    assert named(["s1.5f9c8a.1"], [str(tmp_path / "plain.jsonl")]) == []


def test_names_of_messages() -> None:
    ids = ["s1.5f9c8a.2", "s1.5f9c8a.3", "s1.5f9c8a.4", "m7", "3f2504e0-4f89-11d3-9a0c-0305e82c3301"]
    titles = Titles(
        [
            {"message": ids[0], "notification": "Said", "label": "answer to q5?"},
            {"message": ids[1], "notification": "Said", "label": "answer to q5?"},
            {"message": ids[2], "notification": "Plain", "label": None},
        ]
    )
    assert [titles(one) for one in ids[:4]] == [
        'Said "answer to q5?" (s1…2)',
        'Said "answer to q5?" (s1…3)',
        "Plain (s1…4)",
        "m7",
    ]
    assert titles.brief(ids[0]) == '"answer to q5?" …2', "two messages with the same label are told apart"
    assert titles.brief(ids[2]) == "Plain s1…4"
    assert short_id(ids[4]) == "3f2504e0…82c3301"


def test_texts_are_used_by_no_verdict(tmp_path: Any) -> None:
    """Rows that differ only in a text for people are the same row."""
    from antecede.trace import sift

    rows = [
        Event("p", 0, "send", "m", ("q",), notification="A", label="x"),
        Event("p", 0, "send", "m", ("q",), notification="B"),
    ]
    assert sift(rows).reasons == {1: "duplicate_row"}
    held = [Event("q", 0, "deliver", "m", held=True), Event("q", 0, "deliver", "m", held=False)]
    assert set(sift([rows[0], *held]).reasons.values()) == {"duplicate_index"}


def test_a_class_without_a_label_is_not_looked_at_twice() -> None:
    """The sender's fast path is one look-up in a table, as before there were labels."""
    from antecede.engine import agents

    letter = Letter("s1.000000.1", "ann@s1", ("here",), "Said", b"")
    for notification in (Plain(), Said(text="x")):
        Context("here", "s1", letter).send("there", notification)
    assert Plain in agents._plain
    assert Said not in agents._plain
    done = subprocess.run(
        [sys.executable, "-c", "import antecede.engine.agents as c; print(len(c._plain))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "0\n"
