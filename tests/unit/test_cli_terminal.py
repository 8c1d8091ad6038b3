"""Reports on a terminal: in colour if the reader wants colours, and never wider than the terminal."""

import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antecede.cli import run
from antecede.cli.terminal import coloured, show
from antecede.trace import Event, write_trace


class _Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


_late = [
    Event("a-service-with-a-long-name", 0, "send", "s1.5f9c8a.1", ("r",), notification="Said", label="who is coming?"),
    Event("a-service-with-a-long-name", 1, "send", "s1.5f9c8a.2", ("q",), notification="Said", label="and when?"),
    Event("q", 0, "deliver", "s1.5f9c8a.2"),
    Event("q", 1, "send", "s2.000001.1", ("r",), notification="Said", label="everybody is, at eight o'clock sharp"),
    Event("r", 0, "deliver", "s2.000001.1"),
    Event("r", 1, "deliver", "s1.5f9c8a.1"),
]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Terminal:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    write_trace("late.jsonl", _late)
    return _Terminal()


def _run(terminal: _Terminal, line: str) -> int:
    with redirect_stdout(terminal):
        return run([*line.split(), "late.jsonl", "--engine", "plain"])


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("line", ["verify", "explain", "explain --diagram", "measure", "races --assume none"])
def test_sixty_columns_are_enough(terminal: _Terminal, line: str) -> None:
    _run(terminal, line)
    lines = _plain(terminal.getvalue()).splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) <= 60, max(lines, key=len)


def test_verdicts_are_coloured_and_messages_have_names(terminal: _Terminal) -> None:
    assert _run(terminal, "verify") == 1
    out = terminal.getvalue()
    assert "fifo         \x1b[32mholds\x1b[0m" in out
    assert "\x1b[1;31mviolated: 1 late delivery\x1b[0m" in out
    words = " ".join(_plain(out).split())
    assert 'r at index 1 delivers Said "who is coming?" (s1…1)' in words


def test_the_headings_of_explanations_are_coloured(terminal: _Terminal) -> None:
    assert _run(terminal, "explain") == 0
    assert "is \x1b[1;31mlate\x1b[0m under causal order" in terminal.getvalue()
    write_trace(
        "late.jsonl",
        [
            *(Event("p", number, "send", name, ("q", "r")) for number, name in enumerate("ab")),
            *(Event("q", number, "deliver", name) for number, name in enumerate("ab")),
            *(Event("r", number, "deliver", name) for number, name in enumerate("ba")),
        ],
    )
    assert _run(terminal, "explain --order total") == 0
    assert "total order \x1b[1;31mis broken\x1b[0m: these messages form a cycle" in terminal.getvalue()


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colours_if_they_are_not_wanted(terminal: _Terminal, monkeypatch: Any, name: str, value: str) -> None:
    assert coloured(terminal)
    monkeypatch.setenv(name, value)
    assert not coloured(terminal)
    _run(terminal, "explain")
    assert "\x1b" not in terminal.getvalue()
    assert "delivered late" in terminal.getvalue()


def test_elsewhere_lines_stay_as_they_are() -> None:
    stream = io.StringIO()
    show(["causal       holds", "x " * 200], stream)
    assert stream.getvalue() == "causal       holds\n" + "x " * 200 + "\n"


_hostile = "x\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e"
"""A text with which a client would set the title of a terminal, clear its screen and turn the letters of a line."""
_executed = re.compile("[\x00-\x08\x0b-\x1f\x80-\x9f\u202e]")

_scenario = """processes P1 P2
send m\x1b[2J P1 -> P2
arrive m\x1b[2J P2
expect P2 delivered nothing
"""


@pytest.mark.parametrize(
    "line",
    [
        "verify trace.jsonl --engine plain",
        "explain trace.jsonl --engine plain --diagram",
        "explain trace.jsonl --engine plain --message {hostile}",
        "races trace.jsonl --engine plain",
        "measure trace.jsonl --engine plain",
        "verify {hostile}.jsonl",
        "play {hostile}.txt",
        "play scenario.txt --order fifo --diagram --verbose",
        "play scenario.txt",
        "topology check bad.toml",
        "topology show bad.toml",
        "import trace.jsonl --to {hostile}/out.jsonl",
        "{hostile}",
        "verify --{hostile}",
        "verify trace.jsonl --engine {hostile}",
    ],
)
@pytest.mark.parametrize("to_terminal", [False, True])
def test_no_command_prints_control_characters(
    line: str, to_terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names, labels and reasons come from clients, files and servers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    renamed = {"who is coming?": _hostile, "s2.000001.1": f"s2{_hostile}", "r": f"r{_hostile}"}
    rows = []
    for event in _late:
        changed = {
            key: renamed.get(getattr(event, key), getattr(event, key)) for key in ("process", "message", "label")
        }
        to = tuple(renamed.get(one, one) for one in event.to or ()) or None
        rows.append(msgspec.structs.replace(event, **changed, to=to, notification=event.notification and _hostile))
    write_trace("trace.jsonl", rows)
    Path("scenario.txt").write_text(_scenario)
    Path("bad.toml").write_text('[servers]\n"s\\u001b[2J" = "tcp://127.0.0.1:1"\n[domains]\nA = { servers = ["s"] }\n')
    out, err = (_Terminal() if to_terminal else io.StringIO()), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        run([word.format(hostile=_hostile) for word in line.split(" ")])
    printed = out.getvalue() + err.getvalue()
    assert printed
    assert not _executed.findall(printed), printed


def test_json_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = _hostile + "\x7f"
    write_trace("late.jsonl", [msgspec.structs.replace(row, notification=name) for row in _late])
    out = _Terminal()
    with redirect_stdout(out):
        assert run(["explain", "late.jsonl", "--engine", "plain", "--json"]) == 0
    assert name in {one["notification"] for one in json.loads(out.getvalue())["named"]}
