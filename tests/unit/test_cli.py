"""The command line's own promises: one line an error, exit codes, help, and commands found by being there."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pytest
import typer

from antecede import cli
from antecede.errors import TraceError
from helpers.snapshots import Snapshots


def _with(monkeypatch: pytest.MonkeyPatch, command: object) -> None:
    """A house with one more command, ``try``, that does as told."""
    build = cli.build

    def more(arguments: Sequence[str] = ()) -> typer.Typer:
        app = build()
        app.command("try")(command)  # type: ignore[type-var]
        return app

    monkeypatch.setattr(cli, "build", more)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(arguments) == 0
    said = capsys.readouterr()
    assert "orders" in said.out
    assert said.err == ""


def test_help_fills_the_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def attempt() -> None:
        """Try.

        A sentence that our source has
        broken in two.
        one: of a list,
        two: of a list.
        """

    _with(monkeypatch, attempt)
    assert cli.run(["try", "--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    wanted = ["A sentence that our source has broken in two.", "one: of a list,", "two: of a list."]
    assert [line for line in lines if line in wanted] == wanted


def test_a_command_of_a_group_is_not_one_of_the_house(capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    assert cli.run(["objects", "call", "--help"]) == 0
    assert cli.run(["call", "--help"]) == 2
    reads(capsys.readouterr().err)


def test_version(capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    assert cli.run(["--version"]) == 0
    reads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["--nonsense"],
        ["orders", "--nonsense"],
        ["orders", "surplus"],
        ["try", "one"],
        ["try"],
    ],
)
def test_bad_usage_is_one_line_and_exit_2(
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    reads: Snapshots,
) -> None:
    def attempt(count: int) -> int:
        return count

    _with(monkeypatch, attempt)
    assert cli.run(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("antecede: ")
    assert said.err.count("\n") == 1
    reads(said.err)


@pytest.mark.parametrize("code", [0, 1, 2, 7])
def test_a_commands_code_is_the_exit_code(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def returns() -> int:
        return code

    def leaves() -> None:
        raise typer.Exit(code)

    for command in (returns, leaves):
        with monkeypatch.context() as patch:
            _with(patch, command)
            assert cli.run(["try"]) == code


def test_an_error_from_outside_is_one_line_even_if_its_text_is_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, reads: Snapshots
) -> None:
    def fails() -> None:
        raise TraceError("bad\nfile: expected\n  rows")

    _with(monkeypatch, fails)
    assert cli.run(["try"]) == 2
    reads(capsys.readouterr().err)


def test_interruption_leaves_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, reads: Snapshots
) -> None:
    def stopped() -> None:
        raise KeyboardInterrupt

    _with(monkeypatch, stopped)
    assert cli.run(["try"]) == 130
    reads(capsys.readouterr().err)


def test_an_interrupt_that_meets_the_making_of_a_class(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, reads: Snapshots
) -> None:
    class Interrupted:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    def attempt() -> None:
        type("Made", (), {"field": Interrupted()})

    _with(monkeypatch, attempt)
    assert cli.run(["try"]) == 130
    reads(capsys.readouterr().err)


@pytest.mark.parametrize("option", ["coordinator:member=" + "9" * 5_000, "coordinator:member=-1"])
def test_numbers_without_end_are_refused(option: str, capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    assert cli.run(["simulate", "--order", option]) == 2
    reads(capsys.readouterr().err)


@pytest.mark.parametrize("name", ["", "/", "."])
def test_a_trace_needs_a_name(name: str, capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    assert cli.run(["simulate", "--messages", "1", "--trace", name]) == 2
    reads(capsys.readouterr().err)


def test_a_diagram_of_too_much_is_refused_before_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["simulate", "--messages", "1000000000", "--diagram"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("arguments", [["--version"], ["orders"], ["orders", "--json"], ["--help"]])
def test_output_that_nobody_takes_is_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "antecede", *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (2, "antecede: standard output: No space left on device\n")


def test_closed_standard_streams_are_no_traceback() -> None:
    command = f"{sys.executable} -m antecede orders <&- >&- && {sys.executable} -m antecede verify - <&- >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_a_topology_in_place_of_a_command_is_understood(capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    assert cli.run(["dead", "bank.toml"]) == 2
    assert capsys.readouterr().err.endswith("did you mean antecede dead list bank.toml?\n")
    assert cli.run(["dead", "lst"]) == 2
    reads(capsys.readouterr().err)


def test_values_have_the_types_of_their_options(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[tuple[object, ...]] = []

    def attempt(
        text: str,
        more: Annotated[list[str] | None, typer.Argument()] = None,
        number: Annotated[int, typer.Option(min=1)] = 3,
        share: float = 0.5,
        name: str | None = None,
        some: Annotated[list[str] | None, typer.Option()] = None,
        numbers: Annotated[list[int] | None, typer.Option()] = None,
        path: Path | None = None,
        flag: bool = False,
    ) -> None:
        got.append((text, more, number, share, name, some, numbers, path, flag))

    _with(monkeypatch, attempt)
    assert cli.run(["try", "7"]) == 0
    options = {"--number": "9", "--share": "1", "--name": "1", "--numbers": "4", "--path": "."}
    given = [text for option in options.items() for text in option]
    assert cli.run(["try", "7", "8", *given, "--some", "2", "--some", "3", "--flag"]) == 0
    assert got == [
        ("7", None, 3, 0.5, None, None, None, None, False),
        ("7", ["8"], 9, 1.0, "1", ["2", "3"], [4], Path(), True),
    ]
    assert [type(value) for value in got[1][2:4]] == [int, float]
    for wrong in (["--number", "x"], ["--number", "0"], ["--numbers", "x"], []):
        assert cli.run(["try", *(["7"] if wrong else []), *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_command_that_gets_texts_starts_without_pydantic() -> None:
    command = "from antecede.cli import run; run(['serve', 'no.toml', '--server', 's1', '--durability', 'memory'])"
    program = f"{command}; import sys; print('pydantic' in sys.modules, 'asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False True\n", done.stderr
