"""The help of the command line: grouped, with examples that work, and helpful when something is misspelt."""

import json
import os
import re
import shlex
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from antecede import __version__
from antecede.cli import build, run
from antecede.cli.examples import ALWAYS_JSON, EXAMPLES, PANELS
from antecede.cli.options import expanded
from helpers.snapshots import Snapshots


def _commands(command: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    parts = getattr(command, "commands", None)
    if parts is None:
        return {" ".join(path): command}
    shown = {key: part for key, part in parts.items() if not part.hidden}
    return {name: one for key, part in shown.items() for name, one in _commands(part, (*path, key)).items()}


@pytest.fixture(scope="module")
def commands() -> dict[str, Any]:
    from antecede.cli import _flowing

    return _commands(_flowing(typer.main.get_command(build())))


def test_every_command_has_a_purpose_and_examples(commands: dict[str, Any]) -> None:
    named = {name for some in PANELS.values() for name in some}
    assert {name.split()[0] for name in commands} <= named
    assert not commands.keys() - EXAMPLES.keys()
    assert set(ALWAYS_JSON) <= commands.keys()


def test_every_example_is_a_command_line_that_is_understood(commands: dict[str, Any]) -> None:
    for name, examples in EXAMPLES.items():
        if name not in commands:
            continue
        for example in examples:
            words = shlex.split(example)
            path = ["antecede", *name.split()]
            assert words[: len(path)] == path, example
            context = commands[name].make_context(name, words[len(path) :])
            assert context is not None, example


def test_reports_have_json(commands: dict[str, Any]) -> None:
    without = {name for name, one in commands.items() if not any("--json" in option.opts for option in one.params)}
    # These two run until they are stopped, and have --log json.
    assert without == {"serve", "up"}


@pytest.mark.parametrize(
    "line",
    [
        "verfy x",
        "help topology chek",
        "simulate --order prune",
        "verify x --order casual",
        "explain x --order casual",
    ],
)
def test_a_misspelt_name_is_recognised(line: str, capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    assert run(line.split()) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    reads(said)


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["antecede"] == __version__
    assert run(["version"]) == 0
    assert capsys.readouterr().out.startswith(f"antecede {__version__}, Python 3.")
    assert run(["help", "dead", "list"]) == 0
    assert "--first" in capsys.readouterr().out
    assert run([]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.index("First steps") < out.index("Judge a trace") < out.index("Run servers")
    assert "antecede demo" in out


def test_a_shell_can_complete() -> None:
    asked = {"_ANTECEDE_COMPLETE": "complete_bash", "COMP_WORDS": "antecede ver", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "antecede"], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    assert sorted(done.stdout.split()) == ["verify", "version"]
    assert (done.returncode, done.stderr) == (0, "")


_topology = """
[servers]
s1 = "tcp://127.0.0.1:7101"
[domains]
A = {{ servers = ["s1"] }}
[agents]
a = {{ server = "s1", class = "{kind}" }}
"""


def test_classes_of_a_topology_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reads: Snapshots
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "checked_shop.py").write_text(
        "from antecede import Agent, Context, Notification\n\nclass Order(Notification):\n    pass\n\n"
        "class Orders(Agent):\n    def on_order(self, order: Order, ctx: Context) -> None:\n        pass\n"
    )
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text(_topology.format(kind="checked_shop:Orders"))
    bad.write_text(_topology.format(kind="checked_shop:Ordres"))
    assert run(["topology", "check", str(bad)]) == 0, "without --classes nothing is imported"
    capsys.readouterr()
    assert run(["topology", "check", str(good), "--classes", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["classes"] == {"a": {"class": "checked_shop:Orders", "handles": ["Order"]}}
    assert run(["topology", "check", str(bad), "--classes"]) == 2
    reads(capsys.readouterr().err)


def test_options_without_a_value_show_no_type(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["verify"], ["dead", "list"]):
        assert run([*words, "--help"]) == 0
        assert "<bool>" not in capsys.readouterr().out


def test_no_bracket_of_a_help_text_is_lost(commands: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Rich reads some words in brackets as markup and does not print them."""
    found = 0
    for name, command in commands.items():
        texts = [command.help or "", command.epilog or "", *(getattr(one, "help", "") or "" for one in command.params)]
        brackets = {one for text in texts for one in re.findall(r"\[[^\[\]]*\]", text)}
        if brackets:
            assert run([*name.split(), "--help"]) == 0
            printed = re.sub(r"[\s│]+", "", capsys.readouterr().out)
            lost = [one for one in brackets if re.sub(r"\s+", "", one) not in printed]
            assert not lost, name
            assert "\\[" not in printed, name
            found += len(brackets)
    assert found > 3, "redis[hiredis], local[*], [[operation, operation], …] and others"


def test_a_parameter_that_is_a_group_of_options_stands_for_them_in_its_place() -> None:
    class Pair(NamedTuple):
        one: int = typer.Option(1)
        other: str = typer.Option("b")

    def command(first: int = 0, pair: Pair = Pair(), last: int = 0) -> tuple[int, Pair, int]:  # noqa: B008
        return first, pair, last

    assert list(signature(expanded(command)).parameters) == ["first", "one", "other", "last"]
    assert expanded(command)(first=5, one=6, other="c", last=7) == (5, Pair(6, "c"), 7)
    assert expanded(build) is build, "there are no groups"
