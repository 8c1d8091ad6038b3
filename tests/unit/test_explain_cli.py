"""``antecede explain`` as a person or a script meets it."""

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from antecede.cli import run as antecede
from antecede.trace import Event, write_trace

_late = [
    Event("p", 0, "send", "x", ("r",)),
    Event("p", 1, "send", "y", ("q",)),
    Event("q", 0, "deliver", "y"),
    Event("q", 1, "send", "z", ("r",)),
    Event("r", 0, "deliver", "z"),
    Event("r", 1, "deliver", "x"),
]
Said = tuple[int, str, str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run the command in a folder of its own: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    write_trace("late.jsonl", _late)
    write_trace("good.jsonl", _late[:4])

    def run(line: str) -> Said:
        capsys.readouterr()
        code = antecede(["explain", *line.split()])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_each_step_is_a_sentence_and_one_explanation_is_drawn(run: Callable[..., Said]) -> None:
    code, out, err = run("late.jsonl")
    assert (code, err) == (0, "")
    lines = [line.strip() for line in out.splitlines()]
    assert lines[0] == "1 of 3 deliveries is late under causal order"
    sentences = [
        "1  r delivered x late:",
        "p sent x (index 0) to r, then y (index 1) to q;",
        "q delivered y (index 0) and sent z (index 1) to r;",
        "r delivered z (index 0) before x (index 1)",
    ]
    at = lines.index(sentences[0])
    assert lines[at : at + 4] == sentences
    assert "delivered late" in out


def test_the_json_document(run: Callable[..., Said]) -> None:
    code, out, _ = run("late.jsonl --json --engine plain")
    report = json.loads(out)
    assert code == 0
    assert (report["engine"], report["late"], report["shown"]) == ("plain", 1, 1)
    assert {"message", "from", "to", "length", "chain"} <= report["explanations"][0].keys()
    assert report["explanations"][0]["chain"][0].keys() == {"message", "from", "send_index", "to", "deliver_index"}


def test_nothing_late_is_no_error(run: Callable[..., Said]) -> None:
    assert run("good.jsonl") == (0, "causal order holds: no delivery is late\n", "")
    assert run("late.jsonl --first 0")[0] == 0
    code, out, _ = run("late.jsonl --message z")
    assert (code, out.splitlines()[-1]) == (0, "z: 0 of its 1 delivery late")


def test_the_svg_shows_just_the_events_involved(run: Callable[..., Said], tmp_path: Path) -> None:
    noise = [Event("q", 2, "send", "noise", ("u",)), Event("u", 0, "deliver", "noise")]
    write_trace("noisy.jsonl", [*_late, *noise])
    assert run("noisy.jsonl --svg out.svg")[0] == 0
    drawn = ElementTree.parse(tmp_path / "out.svg")
    said = " ".join(drawn.getroot().itertext())
    assert "delivers x late" in said
    assert "noise" not in said
    assert "u:" not in said


def test_several_explanations_share_one_svg(run: Callable[..., Said], tmp_path: Path) -> None:
    again = [Event(f"{row.process}'", row.index, row.kind, f"{row.message}'", row.to and ("r'",)) for row in _late]
    again[1] = Event("p'", 1, "send", "y'", ("q'",))
    write_trace("two.jsonl", [*_late, *again])
    code, out, _ = run("two.jsonl --svg two.svg")
    assert code == 0
    assert out.count("late:") == 2
    assert "delivered late" not in out, "several are drawn only if asked for"
    titles = [text.text for text in ElementTree.parse(tmp_path / "two.svg").iter() if text.get("class") == "title"]
    assert titles == ["r delivered x late", "r' delivered x' late"]
    assert "delivered late" in run("two.jsonl --diagram")[1]


def test_circles_are_told_in_steps(run: Callable[..., Said]) -> None:
    rows = [Event("p", 0, "send", "x", ("q",)), Event("q", 0, "send", "y", ("p",))]
    write_trace("crown.jsonl", [*rows, Event("p", 1, "deliver", "y"), Event("q", 1, "deliver", "x")])
    code, out, _ = run("crown.jsonl --order synchronous")
    assert code == 0
    assert "p sends x (index 0) before it delivers y (index 1)" in out
    assert "total order holds" in run("crown.jsonl --order total")[1]


def test_what_was_set_aside_is_said(run: Callable[..., Said]) -> None:
    write_trace("torn.jsonl", [*_late, Event("r", 2, "deliver", "lost")])
    out = run("torn.jsonl")[1]
    assert "orphan_delivery     1 row set aside" in out
    assert "every chain is real" in out
    assert "lost: 1 row set aside (1 orphan_delivery)\n" in run("torn.jsonl --message lost")[1]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("late.jsonl --message nope", "message 'nope' is not in the trace"),
        ("missing.jsonl", "no such file"),
        ("empty.jsonl", "no valid delivery among 0 events"),
        ("binary.jsonl", "no valid delivery among 0 events"),
        ("late.jsonl --order best", "'best' is not one of"),
        ("late.jsonl --engine abacus", "--engine must be one of"),
        ("late.jsonl --order total --message x", "--message is only for"),
        ("late.jsonl --first -1", "expected 0 or more"),
        ("late.jsonl --svg nowhere/out.svg", "cannot be written"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(run: Callable[..., Said], line: str, reason: str) -> None:
    Path("empty.jsonl").write_bytes(b"")
    Path("binary.jsonl").write_bytes(bytes(range(256)) * 20)
    code, _, err = run(line)
    assert code == 2
    assert reason in err
    assert err.count("\n") == 1


def test_names_cannot_command_the_terminal(run: Callable[..., Said]) -> None:
    write_trace(
        "evil.jsonl",
        [
            Event("p\x1b[31m", 0, "send", "a\nb", ("q",)),
            Event("p\x1b[31m", 1, "send", "c", ("q",)),
            Event("q", 0, "deliver", "c"),
            Event("q", 1, "deliver", "a\nb"),
        ],
    )
    out = run("evil.jsonl --svg evil.svg")[1]
    assert "\x1b" not in out
    assert "'a\\nb'" in out


@pytest.mark.parametrize("name", ["imported.jsonl", "imported.parquet"])
def test_an_imported_trace_leads_back_to_the_log(run: Callable[..., Said], name: str) -> None:
    write_trace(name, [msgspec.structs.replace(e, extra={"source": f"{e.process}.log:{e.index + 7}"}) for e in _late])
    out = run(name)[1]
    assert "p sent x (index 0, p.log:7) to r, then y (index 1, p.log:8) to q;\n" in out
    assert "r delivered z (index 0, r.log:7) before x (index 1, r.log:8)\n" in out
    report = json.loads(run(f"{name} --json")[1])
    assert {"process": "r", "index": 1, "source": "r.log:8"} in report["sources"]
    # A trace that was not imported has no such places.
    assert json.loads(run("late.jsonl --json")[1])["sources"] == []


def test_several_explanations_name_the_option_that_draws_them(run: Callable[..., Said]) -> None:
    again = [Event("p", 2, "send", "x2", ("s",)), Event("p", 3, "send", "y2", ("s",))]
    again += [Event("s", 0, "deliver", "y2"), Event("s", 1, "deliver", "x2")]
    write_trace("pair.jsonl", [*_late, *again])
    assert "(--diagram draws each explanation)\n" in run("pair.jsonl")[1]
    assert "(--diagram" not in run("pair.jsonl --diagram")[1]
