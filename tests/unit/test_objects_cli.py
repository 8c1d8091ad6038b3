"""``antecede objects``: groups that are run and studied from the command line."""

import json
from typing import Any

from antecede.cli import run


def test_a_group_can_be_run_from_the_command_line(tmp_path: Any, capsys: Any) -> None:
    trace = str(tmp_path / "objects.jsonl")
    assert run(["objects", "simulate", "--roots", "10", "--loss", "0.2", "--trace", trace, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["roots"] == 10
    assert report["findings"] == {}
    assert run(["verify", trace, "--order", "significant"]) == 0
    assert run(["objects", "simulate", "--roots", "3"]) == 0
    said = capsys.readouterr().out
    assert "4 objects, 3 operations started by users: 3 committed, 0 undone" in said
    assert said.endswith("holds: nothing out of order, lost or blocked\n")


def test_a_study_from_the_command_line(capsys: Any) -> None:
    size = ["--processes", "4", "--messages", "40", "--warmup", "5"]
    assert run(["objects", "study", *size, "--json"]) == 0
    study = json.loads(capsys.readouterr().out)["study"]
    none = [row for row in study if row["density"] == 0.0 and row["order"].startswith("objects")]
    assert [row["compatible"]["held"] for row in none] == [0.0, 0.0]
    assert run(["objects", "study", *size, "--unicast"]) == 0
    assert "pruned" in capsys.readouterr().out
    assert run(["objects", "study", "--messages", "5", "--warmup", "5"]) == 2
    assert "--warmup 5 must be smaller than --messages 5" in capsys.readouterr().err
