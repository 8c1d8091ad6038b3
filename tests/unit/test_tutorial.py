"""The tutorial and the chat: the application is the one that ships; scenarios people asked for hold."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from chat_story import tell

from antecede import cli
from antecede.samples import SAMPLES
from antecede.trace import judge

_root = Path(__file__).resolve().parents[2]
_text = (_root / "docs" / "tutorial.md").read_text(encoding="utf-8")
_chat = _root / "examples" / "chat"
_asked = _root / "src" / "antecede" / "samples" / "asked"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", _text, re.MULTILINE | re.DOTALL)


def test_the_test_of_the_chat_fails_under_fifo(tmp_path: Path) -> None:
    assert cli.run(["sample", "chat", "--to", str(tmp_path)]) == 0
    file = tmp_path / "chat" / "chat.toml"
    file.write_text('guarantee = "fifo"\n' + file.read_text().replace('"pruned"', '"fifo"'))
    command = [sys.executable, "-m", "pytest", "-q", "--basetemp", str(tmp_path / "base"), "chat/test_chat.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "1 failed" in ran.stdout, ran.stdout + ran.stderr
    assert re.search(r"seed[= ]\d+", ran.stdout)


def test_the_application_is_the_one_that_ships() -> None:
    (listing,) = _blocks("python")
    shipped = (_chat / "chat_room.py").read_text(encoding="utf-8")
    for part in re.split(r"\n\n\n", listing)[1:]:
        assert part.strip() in shipped, part
    (domains,) = _blocks("toml")
    assert domains in (_chat / "chat.toml").read_text()


def test_git_ignores_what_readme_and_tutorial_leave_in_a_clone() -> None:
    ignored = (_root / ".gitignore").read_text(encoding="utf-8").splitlines()
    folders = ("chat", "chat-data", "chat-trace", "asked", "hello-data")
    files = ("chat.svg", "overtaking.txt", "trace.jsonl", "report.html", "report.json")
    assert {f"/{name}/" for name in folders} | {f"/{name}" for name in files} <= set(ignored)


@pytest.mark.parametrize(
    ("order", "backwards"), [("none", 2), ("fifo", 2), ("matrix", 0), ("pruned", 0), ("direct", 0)]
)
def test_an_answer_overtakes_its_question_only_without_causal_order(order: str, backwards: int) -> None:
    story = tell(order)
    assert len(story.reversed()) == len(judge(story.trace, ("causal",)).causal) == backwards
    assert all(len(lines) == 2 for lines in story.screens.values())


def test_the_command_refuses_what_makes_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--name", "ann"], ["--order", "tea"], ["x.toml"], ["x.toml", "--name", "a", "--json"]):
        assert cli.run(["chat", *wrong]) == 2, wrong
        assert capsys.readouterr().err.count("\n") == 1
    assert cli.run(["chat", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    documented = (_root / "docs" / "json.md").read_text(encoding="utf-8").partition("`antecede chat --json`")[2]
    keys = [*report, *report["stories"][0]]
    assert [key for key in keys if f"`{key}`" not in documented.partition("\n## ")[0]] == []


@pytest.mark.parametrize("path", sorted(_asked.glob("*.txt")), ids=lambda path: path.stem)
def test_a_question_asked_elsewhere_has_an_answer(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.match(r"# Asked in https://github\.com/[\w-]+/[\w-]+/issues/\d+", text)
    orders = re.search(r"^# Played under: (.*)$", text, re.MULTILINE)
    assert orders is not None
    assert cli.run(["play", str(path), "--order", orders[1].replace(" ", "")]) == 0, capsys.readouterr()
    assert SAMPLES["asked"].path == "asked"
