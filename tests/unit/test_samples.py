"""``antecede sample``: there is one for every format, and the command that it names works."""

import json
import shlex
from pathlib import Path

import pytest

from antecede import cli
from antecede.samples import SAMPLES
from antecede.trace import verify
from antecede.trace.foreign import FORMATS, convert, recognised
from helpers.snapshots import Snapshots

_root = Path(__file__).resolve().parents[2]


def test_every_command_of_a_sample_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["sample", "all"]) == 0
    for name, sample in SAMPLES.items():
        assert (tmp_path / sample.path).exists(), name
        arguments = shlex.split(sample.command)
        assert cli.run(arguments[1:]) == 0, f"{name}: {capsys.readouterr().err}"
        out = capsys.readouterr().out
        assert " 0 sends" not in out, name


def test_every_format_has_a_sample(tmp_path: Path) -> None:
    assert cli.run(["sample", "all", "--to", str(tmp_path)]) == 0
    found = {recognised(str(tmp_path / sample.path)) for sample in SAMPLES.values()}
    # A log of GoVector is recognised as one with vector clocks.
    assert found >= set(FORMATS) - {"govector"}


def test_the_trace_shows_a_late_message_and_cloudevents_an_undecided_one(tmp_path: Path) -> None:
    assert cli.run(["sample", "trace", "cloudevents", "--to", str(tmp_path)]) == 0
    assert verify([tmp_path / "trace.jsonl"])["orders"]["causal"]["first"]["message"] == "question"
    report = convert([tmp_path / "cloudevents.jsonl"], tmp_path / "events-trace.jsonl")
    assert (report["messages"], report["rows"], report["assumed"]) == (2, 7, {"delivered_before_effect": 3})
    causal = verify([tmp_path / "events-trace.jsonl"])["orders"]["causal"]
    assert (causal["holds"], causal["undecided"]) == (True, 1)


def _event(**more: object) -> str:
    return json.dumps({"specversion": "1.0", "type": "t", **more}) + "\n"


def test_cloudevents_are_counted_when_they_are_odd(tmp_path: Path) -> None:
    early, later = "2026-03-01T10:00:00Z", "2026-03-01T10:00:09Z"
    lines = [
        _event(id="1", source="a", time=later),
        _event(id="1", source="a", time=later),
        _event(id="2", source="b", time=early, causationid="1"),
        _event(id="3", source="b", time=later, causationid="1"),
        _event(id="4", source="b", time=later, causationid="unknown"),
        _event(id="5", source="b", time=later, causationid="5"),
        _event(id="x", source="c"),
        _event(id="x", source="d"),
        _event(id="6", source="d", causationid="x"),
        _event(id="7", source="b", time=later, causationid="x"),
        _event(id=8, source="b"),
        "[]\n",
    ]
    (tmp_path / "e.jsonl").write_text("".join(lines))
    report = convert([tmp_path / "e.jsonl"], tmp_path / "trace.jsonl")
    counts = {key: report[key] for key in ("events", "messages", "duplicates", "without_parent", "early_messages")}
    assert counts == {"events": 9, "messages": 1, "duplicates": 1, "without_parent": 2, "early_messages": 1}
    assert report["unreadable"] == 2
    assert verify([tmp_path / "trace.jsonl"])["complete"]
    (tmp_path / "batch.json").write_text("[" + ",".join(lines[:3]) + "]")
    assert convert([tmp_path / "batch.json"])["events"] == 2


def test_a_file_that_differs_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    assert cli.run(["sample", "shop", "--to", str(tmp_path)]) == 0
    assert cli.run(["sample", "shop", "--to", str(tmp_path)]) == 0
    (tmp_path / "shop.log").write_text("mine")
    assert cli.run(["sample", "zipkin", "shop", "--to", str(tmp_path)]) == 2
    reads(capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["shop.log"]
    assert cli.run(["sample", "tea"]) == 2
    assert cli.run(["sample", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    documented = (_root / "docs" / "json.md").read_text(encoding="utf-8").partition("`antecede sample --json`")[2]
    assert [key for key in (*report, *report["samples"]["shop"]) if f"`{key}`" not in documented[:400]] == []
