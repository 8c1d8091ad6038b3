"""The guide to ``antecede import``: every command in it runs as printed, and prints what the guide shows."""

import re
import shlex
from pathlib import Path

import pytest

from antecede import cli

_root = Path(__file__).resolve().parents[2]
_text = (_root / "docs" / "guide" / "import.md").read_text(encoding="utf-8")


def _blocks() -> list[tuple[str, str]]:
    """The fenced blocks of the guide, by language."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", _text, re.MULTILINE | re.DOTALL)


def test_every_command_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    commands = shown = 0
    printed = ""
    for language, block in _blocks():
        if language == "text" and printed:
            # Several commands may stand in one block; what is shown is what the last one prints.
            assert printed.rstrip("\n").endswith(block.rstrip("\n")), f"the guide shows otherwise:\n{printed}"
            shown += 1
        if language != "sh":
            printed = ""
            continue
        for command in block.replace("\\\n", " ").splitlines():
            line, _, remark = command.partition("  #")
            arguments = shlex.split(line)
            assert arguments[0] == "antecede", line
            wanted = 1 if "exit 1" in remark else 0
            assert cli.run(arguments[1:]) == wanted, f"{line}\n{capsys.readouterr()}"
            printed = capsys.readouterr().out
            commands += 1
    assert (commands, shown) == (28, 2)


def test_the_example_of_the_issue_is_a_mapping_file_of_the_guide(tmp_path: Path) -> None:
    from antecede.trace.foreign import read_mapping

    (toml,) = [block for language, block in _blocks() if language == "toml"]
    (tmp_path / "kept.toml").write_text(toml)
    kept = read_mapping(str(tmp_path / "kept.toml"))
    assert (kept.send, kept.deliver, kept.map["message"]) == ("Send.*", "Receive.*", "event.msg.id")


def test_the_report_is_documented(tmp_path: Path) -> None:
    from antecede.trace.foreign import Mapping, convert_mapped

    log = tmp_path / "log.jsonl"
    log.write_text('{"p": "a", "k": "s", "m": "1", "t": "b"}\n{"p": "b", "k": "d", "m": "1"}\n')
    names = {"process": "p", "kind": "k", "message": "m", "to": "t"}
    report = convert_mapped([log], Mapping(map=names, send="s", deliver="d"))
    documented = (_root / "docs" / "json.md").read_text(encoding="utf-8")
    section = documented.partition("### `antecede import --map … --json`")[2].partition("\n## ")[0]
    assert section
    assert [key for key in report if f"`{key}`" not in section] == []
