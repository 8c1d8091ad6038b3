"""``antecede races`` as a person or a script meets it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from antecede.cli import run as antecede
from antecede.trace import Event, Metadata, write_trace
from helpers.snapshots import Snapshots

_kept = [
    Event("p", 0, "send", "x", ("r",), time=0),
    Event("p", 1, "send", "y", ("q",), time=1_000_000),
    Event("q", 0, "deliver", "y", time=5_000_000),
    Event("q", 1, "send", "z", ("r",), time=6_000_000),
    Event("r", 0, "arrive", "x", time=20_000_000),
    Event("r", 1, "deliver", "x", time=30_000_000),
    Event("r", 2, "arrive", "z", time=60_000_000),
    Event("r", 3, "deliver", "z", time=60_000_000),
]
Said = tuple[int, str, str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run the command in a folder of its own: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    write_trace("kept.jsonl", _kept)

    def run(line: str) -> Said:
        capsys.readouterr()
        code = antecede(["races", *line.split()])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_a_race_is_told_with_the_delay_that_breaks_it(run: Callable[..., Said], reads: Snapshots) -> None:
    code, out, _ = run("kept.jsonl")
    assert code == 0
    reads(out)


def test_the_document(run: Callable[..., Said]) -> None:
    code, out, _ = run("kept.jsonl --json")
    report = json.loads(out)
    assert code == 0
    assert (report["pairs"], report["shown"], report["untimed"], report["late"]) == (1, 1, 0, 0)
    assert (report["guarantee"], report["declared_by"], report["resolution_seconds"]) == ("fifo", "default", 0.001)
    (race,) = report["races"]
    assert (race["first"], race["second"], race["at"], race["slack_seconds"]) == ("x", "z", "r", 0.04)
    assert [link["message"] for link in race["chain"]] == ["y", "z"]


def test_within_is_inclusive(run: Callable[..., Said]) -> None:
    assert json.loads(run("kept.jsonl --within 0.04 --json")[1])["pairs"] == 1
    assert json.loads(run("kept.jsonl --within 0.0399 --json")[1])["pairs"] == 0


@pytest.mark.parametrize(
    ("order", "expected"),
    [("none", "none"), ("fifo", "fifo"), ("pruned", "causal"), ("pruned, fifo", "fifo"), ("unheard-of", "none")],
)
def test_the_metadata_declare_the_guarantee(run: Callable[..., Said], order: str, expected: str) -> None:
    """Of several orders the weakest counts; an order that nobody knows promises nothing."""
    write_trace("kept.jsonl", _kept, Metadata(order=order))
    report = json.loads(run("kept.jsonl --json")[1])
    assert (report["guarantee"], report["declared_by"]) == (expected, "metadata")
    assert report["pairs"] == (0 if expected == "causal" else 1)
    assert json.loads(run("kept.jsonl --assume fifo --json")[1])["declared_by"] == "assume"


def test_domains_in_a_circle_declare_nothing(run: Callable[..., Said]) -> None:
    ring = {"domains": {"A": [["p", "q"], "pruned"], "B": [["q", "r"], "pruned"], "C": [["r", "p"], "pruned"]}}
    write_trace("kept.jsonl", _kept, Metadata(order="pruned", topology=ring))
    assert json.loads(run("kept.jsonl --json")[1])["guarantee"] == "none"


def test_causal_order_has_no_races_and_says_so(run: Callable[..., Said], reads: Snapshots) -> None:
    code, out, _ = run("kept.jsonl --assume causal")
    assert code == 0
    reads(out)


def test_without_times_the_slack_is_unknown(run: Callable[..., Said], reads: Snapshots) -> None:
    write_trace("kept.jsonl", [Event(e.process, e.index, e.kind, e.message, e.to) for e in _kept])
    report = json.loads(run("kept.jsonl --json")[1])
    assert (report["pairs"], report["untimed"], report["resolution_seconds"]) == (1, 1, None)
    assert report["races"][0]["slack_seconds"] is None
    reads(run("kept.jsonl")[1])


@pytest.mark.parametrize(
    "line",
    [
        "kept.jsonl --assume total",
        "kept.jsonl --first -1",
        "kept.jsonl --within -1",
        "nowhere.jsonl",
        "empty.jsonl",
    ],
)
def test_what_cannot_be_meant_is_one_line(run: Callable[..., Said], line: str, reads: Snapshots) -> None:
    Path("empty.jsonl").write_text("")
    code, _, err = run(line)
    assert code == 2
    reads(err)
    assert len(err.splitlines()) == 1
