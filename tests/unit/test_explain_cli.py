"""``antecede explain`` as a person or a script meets it."""

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from antecede.cli import run as antecede
from antecede.trace import Event, write_trace
from helpers.snapshots import Snapshots

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


def test_each_step_is_a_sentence_and_one_explanation_is_drawn(run: Callable[..., Said], reads: Snapshots) -> None:
    code, out, err = run("late.jsonl")
    assert (code, err) == (0, "")
    reads(out)


def test_the_json_document(run: Callable[..., Said]) -> None:
    code, out, _ = run("late.jsonl --json --engine plain")
    report = json.loads(out)
    assert code == 0
    assert (report["engine"], report["late"], report["shown"]) == ("plain", 1, 1)
    assert {"message", "from", "to", "length", "chain"} <= report["explanations"][0].keys()
    assert report["explanations"][0]["chain"][0].keys() == {"message", "from", "send_index", "to", "deliver_index"}


@pytest.mark.parametrize("line", ["good.jsonl", "late.jsonl --first 0", "late.jsonl --message z"])
def test_nothing_late_is_no_error(run: Callable[..., Said], reads: Snapshots, line: str) -> None:
    code, out, err = run(line)
    assert (code, err) == (0, "")
    reads(out)


def test_the_svg_shows_just_the_events_involved(run: Callable[..., Said], tmp_path: Path) -> None:
    noise = [Event("q", 2, "send", "noise", ("u",)), Event("u", 0, "deliver", "noise")]
    write_trace("noisy.jsonl", [*_late, *noise])
    assert run("noisy.jsonl --svg out.svg")[0] == 0
    drawn = ElementTree.parse(tmp_path / "out.svg")
    said = " ".join(drawn.getroot().itertext())
    assert "delivers x late" in said
    assert "noise" not in said
    assert "u:" not in said


def test_several_explanations_share_one_svg(run: Callable[..., Said], reads: Snapshots, tmp_path: Path) -> None:
    again = [Event(f"{row.process}'", row.index, row.kind, f"{row.message}'", row.to and ("r'",)) for row in _late]
    again[1] = Event("p'", 1, "send", "y'", ("q'",))
    write_trace("two.jsonl", [*_late, *again])
    code, out, _ = run("two.jsonl --svg two.svg")
    assert code == 0
    reads(out)
    titles = [text.text for text in ElementTree.parse(tmp_path / "two.svg").iter() if text.get("class") == "title"]
    assert titles == ["r delivered x late", "r' delivered x' late"]
    reads(run("two.jsonl --diagram")[1])


def test_circles_are_told_in_steps(run: Callable[..., Said], reads: Snapshots) -> None:
    rows = [Event("p", 0, "send", "x", ("q",)), Event("q", 0, "send", "y", ("p",))]
    write_trace("crown.jsonl", [*rows, Event("p", 1, "deliver", "y"), Event("q", 1, "deliver", "x")])
    code, out, _ = run("crown.jsonl --order synchronous")
    assert code == 0
    reads(out)
    reads(run("crown.jsonl --order total")[1])


def test_what_was_set_aside_is_said(run: Callable[..., Said], reads: Snapshots) -> None:
    write_trace("torn.jsonl", [*_late, Event("r", 2, "deliver", "lost")])
    reads(run("torn.jsonl")[1])
    reads(run("torn.jsonl --message lost")[1])


@pytest.mark.parametrize(
    "line",
    [
        "late.jsonl --message nope",
        "missing.jsonl",
        "empty.jsonl",
        "binary.jsonl",
        "late.jsonl --order best",
        "late.jsonl --engine abacus",
        "late.jsonl --order total --message x",
        "late.jsonl --first -1",
        "late.jsonl --svg nowhere/out.svg",
    ],
)
def test_what_is_wrong_is_said_in_one_line(run: Callable[..., Said], reads: Snapshots, line: str) -> None:
    Path("empty.jsonl").write_bytes(b"")
    Path("binary.jsonl").write_bytes(bytes(range(256)) * 20)
    code, _, err = run(line)
    assert code == 2
    assert err.count("\n") == 1
    reads(err)


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
    assert "a\nb" not in out


@pytest.mark.parametrize("name", ["imported.jsonl", "imported.parquet"])
def test_an_imported_trace_leads_back_to_the_log(run: Callable[..., Said], reads: Snapshots, name: str) -> None:
    write_trace(name, [msgspec.structs.replace(e, extra={"source": f"{e.process}.log:{e.index + 7}"}) for e in _late])
    reads(run(name)[1])
    report = json.loads(run(f"{name} --json")[1])
    assert {"process": "r", "index": 1, "source": "r.log:8"} in report["sources"]
    # A trace that was not imported has no such places.
    assert json.loads(run("late.jsonl --json")[1])["sources"] == []
