"""Explanations of what broke an order: which are given, what they say, and what they admit not to know."""

from pathlib import Path
from typing import Any

import pytest

from antecede.errors import UsageError
from antecede.trace import Event, ExplainRequest, rows_of, verify, write_trace
from antecede.trace.explain import explain

_late = [
    Event("p", 0, "send", "x", ("r", "s")),
    Event("p", 1, "send", "y", ("q",)),
    Event("q", 0, "deliver", "y"),
    Event("q", 1, "send", "z", ("r", "s")),
    Event("r", 0, "deliver", "z"),
    Event("r", 1, "local"),
    Event("r", 2, "deliver", "x"),
    Event("s", 0, "deliver", "z"),
    Event("s", 1, "deliver", "x"),
]
_crossed = [
    Event("a", 0, "send", "m", ("r", "s")),
    Event("b", 0, "send", "n", ("r", "s")),
    Event("r", 0, "deliver", "m"),
    Event("r", 1, "deliver", "n"),
    Event("s", 0, "deliver", "n"),
    Event("s", 1, "deliver", "m"),
]


def _explained(folder: Path, rows: list[Event], **asked: Any) -> dict[str, Any]:
    write_trace(folder / "t.jsonl", rows)
    return explain([folder / "t.jsonl"], ExplainRequest(**asked))


def test_a_late_delivery_is_explained_by_its_chain(tmp_path: Path) -> None:
    report = _explained(tmp_path, _late, first=1)
    assert (report["late"], report["shown"], report["holds"], report["complete"]) == (2, 1, False, True)
    assert report["explanations"] == [
        {
            "message": "x",
            "from": "p",
            "to": "s",
            "send_index": 0,
            "deliver_index": 1,
            "length": 2,
            "chain": [
                {"message": "y", "from": "p", "send_index": 1, "to": "q", "deliver_index": 0},
                {"message": "z", "from": "q", "send_index": 1, "to": "s", "deliver_index": 0},
            ],
        }
    ]
    first = verify([tmp_path / "t.jsonl"])["orders"]["causal"]["first"]
    assert {key: first[key] for key in ("message", "from", "to", "send_index", "deliver_index")}.items() <= report[
        "explanations"
    ][0].items()


def test_a_message_late_at_two_destinations_has_two_explanations(tmp_path: Path) -> None:
    report = _explained(tmp_path, _late, message="x", first=1)
    assert [(said["message"], said["to"]) for said in report["explanations"]] == [("x", "s"), ("x", "r")]
    assert report["message"] == {"id": "x", "sends": 1, "deliveries": 2, "set_aside": 0, "reasons": {}}


def test_a_message_that_is_not_late_needs_no_explanation(tmp_path: Path) -> None:
    report = _explained(tmp_path, _late, message="z")
    assert (report["late"], report["shown"], report["explanations"]) == (2, 0, [])


def test_a_copy_of_the_message_itself_may_begin_the_chain(tmp_path: Path) -> None:
    rows = [
        Event("p", 0, "send", "x", ("q", "r")),
        Event("q", 0, "deliver", "x"),
        Event("q", 1, "send", "reply", ("r",)),
        Event("r", 0, "deliver", "reply"),
        Event("r", 1, "deliver", "x"),
    ]
    (said,) = _explained(tmp_path, rows)["explanations"]
    assert [link["message"] for link in said["chain"]] == ["x", "reply"]
    assert len(rows_of(said)) == 5


def test_a_late_message_to_oneself(tmp_path: Path) -> None:
    rows = [
        Event("p", 0, "send", "own", ("p",)),
        Event("p", 1, "send", "there", ("q",)),
        Event("q", 0, "deliver", "there"),
        Event("q", 1, "send", "back", ("p",)),
        Event("p", 2, "deliver", "back"),
        Event("p", 3, "deliver", "own"),
    ]
    (said,) = _explained(tmp_path, rows)["explanations"]
    assert [link["message"] for link in said["chain"]] == ["there", "back"]


def test_fifo_order_is_explained_by_one_message(tmp_path: Path) -> None:
    rows = [
        *_late,
        Event("p", 2, "send", "one", ("q",)),
        Event("p", 3, "send", "two", ("q",)),
        Event("q", 2, "deliver", "two"),
        Event("q", 3, "deliver", "one"),
    ]
    report = _explained(tmp_path, rows, order="fifo")
    assert report["late"] == 1
    (said,) = report["explanations"]
    assert [link["message"] for link in said["chain"]] == ["two"]


def test_total_order_is_explained_step_by_step(tmp_path: Path) -> None:
    report = _explained(tmp_path, _crossed, order="total")
    assert (report["late"], report["shown"], report["holds"]) == (None, 1, False)
    (said,) = report["explanations"]
    steps = [
        (step["process"], step["message"], step["index"], step["before"], step["before_index"])
        for step in said["circle"]
    ]
    assert steps == [("r", "m", 0, "n", 1), ("s", "n", 0, "m", 1)]
    assert {row.kind for row in rows_of(said)} == {"send", "deliver"}


def test_a_circle_is_made_as_short_as_its_messages_allow(tmp_path: Path) -> None:
    """The witness of the verdict goes through three messages; two of them are crossed already."""
    rows = []
    for process, sequence in {"r": "abc", "s": "bca", "t": "cab"}.items():
        rows += [Event(process, index, "deliver", message) for index, message in enumerate(sequence)]
    rows += [Event("p", index, "send", message, ("r", "s", "t")) for index, message in enumerate("abc")]
    (said,) = _explained(tmp_path, rows, order="total")["explanations"]
    assert said["length"] == len(said["circle"]) == 2


def test_a_crown_names_the_kinds_of_events(tmp_path: Path) -> None:
    rows = [
        Event("p", 0, "send", "x", ("q",)),
        Event("q", 0, "send", "y", ("p",)),
        Event("p", 1, "deliver", "y"),
        Event("q", 1, "deliver", "x"),
    ]
    (said,) = _explained(tmp_path, rows, order="synchronous")["explanations"]
    assert [(step["process"], step["kind"], step["before_kind"]) for step in said["circle"]] == [
        ("p", "send", "deliver"),
        ("q", "send", "deliver"),
    ]
    assert _explained(tmp_path, rows[:1] + rows[3:], order="synchronous")["explanations"] == []


def test_what_was_set_aside_is_said(tmp_path: Path) -> None:
    rows = [*_late, Event("q", 5, "send", "y", ("r",))]
    report = _explained(tmp_path, rows, message="y")
    assert report["complete"] is False
    assert report["quarantined"]["duplicate_send"] == 3
    assert report["message"] == {
        "id": "y",
        "sends": 0,
        "deliveries": 0,
        "set_aside": 3,
        "reasons": {"duplicate_send": 3},
    }


@pytest.mark.parametrize(
    "asked", [{"message": "nope"}, {"order": "random"}, {"first": -1}, {"order": "total", "message": "x"}]
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        _explained(tmp_path, _late, **asked)


def test_the_mail_archive(root: Path) -> None:
    mail = root.parent / "shared" / "data" / "mail" / "git-mail-100k.jsonl.gz"
    if not mail.exists():
        pytest.skip("no mail trace here")
    report = explain([mail], ExplainRequest())
    assert (report["late"], report["shown"]) == (6_377, 10)
    for said in report["explanations"]:
        assert said["chain"][0]["send_index"] >= said["send_index"]
        assert said["chain"][-1]["deliver_index"] < said["deliver_index"]
