"""``antecede measure`` as a person or a script meets it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from antecede.cli import run as antecede
from antecede.cli.wording import rounded
from antecede.trace import Event, write_trace
from helpers.snapshots import Snapshots

Said = tuple[int, str, str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run a command in a folder of its own: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    write_trace("bare.jsonl", [Event("p", 0, "send", "m", ("q",)), Event("q", 0, "deliver", "m")])
    Path("empty.jsonl").write_bytes(b"")
    Path("binary.jsonl").write_bytes(bytes(range(256)) * 20)

    def run(line: str) -> Said:
        capsys.readouterr()
        code = antecede(line.split())
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_a_simulated_run_from_end_to_end(run: Callable[..., Said]) -> None:
    simulated = json.loads(run("simulate --order pruned --messages 200 --trace t.jsonl --json")[1])
    code, out, err = run("measure t.jsonl --json")
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert report["held"] == simulated["held"]
    assert report["stamp"]["bytes_mean"] == simulated["stamp"]["bytes_mean"]
    assert {"traffic", "stamp", "delay", "held", "hops", "concurrency", "rates"} <= report.keys()


def test_a_routed_run_from_end_to_end(run: Callable[..., Said]) -> None:
    assert run("topology make daisy --servers 7 --size 3 --output t.toml")[0] == 0
    simulated = json.loads(run("simulate --topology t.toml --messages 300 --trace routed.jsonl --json")[1])
    report = json.loads(run("measure routed.jsonl --json")[1])
    assert report["hops"]["mean"] == simulated["hops"]["mean"] > 1
    assert report["hops"]["max"] == 3
    assert report["stamp"]["bytes_mean"] == pytest.approx(simulated["stamp"]["bytes_mean"])
    assert report["stamp"]["bytes_max"] == simulated["stamp"]["bytes_max"]


def test_what_is_not_recorded_is_said_to_be_so(run: Callable[..., Said], reads: Snapshots) -> None:
    code, out, _ = run("measure bare.jsonl")
    assert code == 0
    for figure in ("stamp", "delay", "held", "hops", "significance", "rates"):
        assert any(line.split() == [figure, "not", "recorded"] for line in out.splitlines()), figure
    reads(out)


def test_figures_are_lined_up(run: Callable[..., Said]) -> None:
    run("simulate --order pruned --messages 200 --trace t.jsonl")
    lines = run("measure t.jsonl")[1].splitlines()[1:]
    assert all(line[12] == " " and line[13:].strip() for line in lines)
    assert [line.split()[0] for line in lines if line[0] != " "] == [
        "traffic",
        "stamp",
        "delay",
        "held",
        "hops",
        "concurrency",
        "significance",
        "rates",
    ]


@pytest.mark.parametrize(
    ("value", "said"), [(0, "0"), (0.102905, "0.103"), (0.000445071, "0.000445"), (12345.6, "12,346"), (-2.5, "-2.50")]
)
def test_figures_are_rounded_for_people(value: float, said: str) -> None:
    assert rounded(value) == said


def test_clock_skew_is_not_hidden(run: Callable[..., Said], reads: Snapshots) -> None:
    write_trace("skew.jsonl", [Event("p", 0, "send", "m", ("q",), time=9), Event("q", 0, "deliver", "m", time=1)])
    reads(run("measure skew.jsonl")[1])


@pytest.mark.parametrize(
    "line",
    [
        "measure missing.jsonl",
        "measure empty.jsonl",
        "measure binary.jsonl",
        "measure bare.jsonl --engine abacus",
        "measure bare.jsonl --tables empty.jsonl",
    ],
)
def test_what_is_wrong_is_said_in_one_line(run: Callable[..., Said], line: str, reads: Snapshots) -> None:
    code, _, err = run(line)
    assert code == 2
    reads(err)
    assert err.count("\n") == 1
