"""The keys of JSON documents are those of ``docs/json.md``: none is missing there, and none is only there."""

import json
import re
from pathlib import Path

import pytest

from antecede.cli import run
from antecede.trace import Event, write_trace

_root = Path(__file__).resolve().parents[2]
_rows = [
    Event("p", 0, "send", "x", ("r",), 10),
    Event("p", 1, "send", "y", ("q",), 20),
    Event("q", 0, "deliver", "y", None, 30),
    Event("q", 1, "send", "z", ("r",), 40),
    Event("r", 0, "deliver", "z", None, 50),
    Event("r", 1, "deliver", "x", None, 60),
]


def _sections() -> dict[str, str]:
    text = (_root / "docs" / "json.md").read_text(encoding="utf-8")
    parts = re.split(r"^## `antecede ([a-z ]+?)(?: --json)?`.*$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _documented(section: str) -> set[str]:
    """The keys in the first column of a section's first table."""
    found: set[str] = set()
    rows = re.search(r"^\| key \|.*?(?=\n\n|\Z)", section, re.MULTILINE | re.DOTALL)
    assert rows, "a table of keys"
    for line in rows[0].splitlines()[2:]:
        first = re.split(r"(?<!\\)\|", line)[1]
        # What follows a key in brackets explains it.
        found |= set(re.findall(r"`([a-z_]+)(?:\.[a-z_0-9]+)?`", re.sub(r"\([^)]*\)", "", first)))
    return found


@pytest.mark.parametrize(
    "line",
    [
        "verify late.jsonl",
        "explain late.jsonl",
        "races late.jsonl",
        "measure late.jsonl",
        "report late.jsonl",
        "simulate --messages 20",
        "topology check snowflake.toml",
        "topology show snowflake.toml",
        "topology make bus --servers 4",
    ],
)
def test_keys_are_documented(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_trace("late.jsonl", _rows)
    Path("snowflake.toml").write_text((_root / "examples" / "snowflake.toml").read_text())
    assert run([*line.split(), "--json"]) in (0, 1)
    document = json.loads(capsys.readouterr().out)
    words = line.split()
    name = " ".join(words[:2]) if words[0] == "topology" else words[0]
    assert _documented(_sections()[name]) == document.keys()


def test_keys_of_explanations_and_races(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_trace("late.jsonl", _rows)
    for command, key in (("explain", "explanations"), ("races", "races")):
        run([command, "late.jsonl", "--json", *(["--assume", "none"] if command == "races" else [])])
        for one in json.loads(capsys.readouterr().out)[key]:
            for name in one:
                assert f"`{name}`" in _sections()[command], (command, name)
