"""The guide to ``antecede export``: every command in it runs as printed, and the bounds are those of the code."""

import re
import shlex
from pathlib import Path

import pytest

from antecede import cli, limits
from antecede.trace.exporting.shiviz import PATTERN

_root = Path(__file__).resolve().parents[2]
_text = (_root / "docs" / "guide" / "export.md").read_text(encoding="utf-8")


def test_every_command_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", _text, re.MULTILINE | re.DOTALL)
    printed = []
    for block in re.findall(r"^```sh\n(.*?)^```$", _text, re.MULTILINE | re.DOTALL):
        for command in block.replace("\\\n", " ").splitlines():
            line, _, remark = command.partition("  #")
            assert cli.run(shlex.split(line)[1:]) == (1 if "exit 1" in remark else 0), line
            printed.append(capsys.readouterr().out)
    assert shown in printed
    assert f"--pattern '{PATTERN}'" in _text


def test_the_bounds_are_those_of_the_code() -> None:
    told = dict(re.findall(r"^\| `(\w+)` \|.*\| ([\d,]+) events \|$", _text, re.MULTILINE))
    assert told == {form: f"{most:,}" for form, most in limits.export_events_max.items()}
