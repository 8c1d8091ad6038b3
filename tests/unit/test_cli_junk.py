"""Every place of the command line that takes a file, given everything that is not one: exit code 2 (or a verdict where
there is one), one line on standard error, no traceback."""

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from antecede import cli

_topology = """
[servers]
s1 = "tcp://127.0.0.1:1"
[domains]
A = { servers = ["s1"] }
"""
_unprivileged = 65534
_row = {"process": "p", "index": 0, "kind": "send", "message": "m", "to": ["q"]}
_commands = [
    "play {}",
    "play good.scenario --svg {}/x",
    "play good.scenario --trace {}/x.jsonl",
    "simulate --messages 5 --topology {}",
    "simulate --messages 5 --trace {}/x.jsonl",
    "simulate --messages 5 --svg {}/x",
    "explore --program {}",
    "verify {} --engine plain --json",
    "verify good.jsonl --conflicts {}",
    "verify good.jsonl --quarantine {}/x",
    "verify good.jsonl --late {}/x",
    "explain {} --engine plain --json",
    "explain good.jsonl --order significant --conflicts {}",
    "measure {} --engine plain --json",
    "measure good.jsonl --conflicts {}",
    "measure good.jsonl --tables {}/x",
    "import {}",
    "import good.jsonl --to {}/x.jsonl",
    "inspect {}",
    "inspect {} --records",
    "send {} agent Hello",
    "send good.toml agent Hello --authority {}",
    "serve {} --server s1 --data data",
    "serve good.toml --server s1 --data data --certificate {} --key {} --authority {}",
    "status {}",
    "status good.toml --authority {}",
    "up {} --data data",
    "dead list {}",
    "dead show {} 1",
    "objects call {} account deposit 1",
    "objects conflicts {}",
    "objects simulate --trace {}/x.jsonl",
    "topology check {} --json",
    "topology show good.toml --svg {}/x",
    "topology forget {} A",
    "topology make bus --servers 4 -o {}/x",
    "races {} --engine plain",
    "plan {} --engine plain",
    "export {} --to dot",
    "report {} -o report.html --engine plain",
    "acknowledge {}",
    "client list {}",
    "client remove {} carol@s1",
    "dead replay {} 1",
    "backup {} backup",
    "backup good.toml backup --data {}",
    "restore {} new",
    "topology apply {} --data data",
    "topology apply good.toml --data {}",
    "topology history --data {}",
    "topology abort --data {}",
    "credentials show {}",
    "unit {}",
    "unit good.toml -o {}/x",
    "serve good.toml --server s1 --data data --access {}",
]
_values = ["", "nonsense", "-1", "0", "nan", "9" * 23, "a\nb", "\udcff"]
_numbers = [
    "dead list good.toml --first 1 --after {}",
    "serve good.toml --server s1 --data data --keep-log {}",
    "serve good.toml --server s1 --data data --keep-trace-size {}",
    "serve good.toml --server s1 --data data --metrics {}",
    "serve good.toml --server {} --data data",
    "unit good.toml --server {}",
    "help {}",
]


def _missing(path: Path) -> None:
    """No file at all."""


def _directory(path: Path) -> None:
    path.mkdir()


def _file(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


_junk: dict[str, Callable[[Path], object]] = {
    "missing": _missing,
    "directory": _directory,
    "empty": _file(b""),
    "binary": _file(bytes(range(256)) * 40),
    "Parquet by its first bytes": _file(b"PAR1" + bytes(100) + b"PAR1"),
    "table of wrong types": _file(b'{"servers": 3, "spans": {"a": 1}, "*": [[1]], "rounds": 5, "resourceSpans": 1}\n'),
    "deep": _file(b"[" * 50_000),
    "wrong topology": _file(b"servers = 3\n[domains]\nA = 7\n"),
    "wrong rows": _file(b"\n".join(json.dumps(_row | {key: [{}]}).encode() for key in _row)),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # A crash would leave its report here, and nowhere else.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    # A command that starts a server sets up the log of this process, on a stream that ends with the test.
    logger = logging.getLogger("antecede")
    for name in ("handlers", "propagate", "level"):
        monkeypatch.setattr(logger, name, getattr(logger, name))
    (tmp_path / "good.toml").write_text(_topology)
    (tmp_path / "good.scenario").write_text("processes P1 P2\nsend x P1 -> P2\narrive x P2\n")
    delivery = {"process": "q", "index": 0, "kind": "deliver", "message": "m"}
    (tmp_path / "good.jsonl").write_text(json.dumps(_row) + "\n" + json.dumps(delivery) + "\n")
    return tmp_path


@pytest.mark.parametrize("kind", _junk)
def test_a_file_that_is_not_what_it_should_be(kind: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _junk[kind](folder / "junk")
    wrong = []
    for line in _commands:
        if kind in ("missing", "directory") and "{}/x" in line:
            # A new file or folder can be made there.
            continue
        capfd.readouterr()
        code = cli.run([word.format("junk") for word in line.split()])
        err = capfd.readouterr().err
        if code != 2 or err.count("\n") != 1 or "Traceback" in err or "internal error" in err:
            wrong.append(f"{line}: exit {code}: {err}")
    assert wrong == []


def test_values_that_make_no_sense(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for line in _numbers:
        for value in _values:
            if line.startswith("help") and not value:
                continue
            capfd.readouterr()
            code = cli.run([word.format(value) for word in line.split()])
            err = capfd.readouterr().err
            if code != 2 or err.count("\n") != 1 or "Traceback" in err or "internal error" in err:
                wrong.append(f"{line} {value!r}: exit {code}: {err}")
    assert wrong == []


@contextmanager
def _not_root(folder: Path) -> Iterator[None]:
    """Stop being root for a while: root may read everything."""
    root = os.geteuid() == 0
    if root:
        folder.chmod(0o755)
        os.seteuid(_unprivileged)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_file_that_may_not_be_read(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    commands = [[word.format("junk") for word in line.split()] for line in _commands]
    (folder / "junk").write_text("")
    for command in commands:
        # Everything that commands import is imported while it may be read.
        cli.run(command)
    (folder / "junk").chmod(0)
    said = []
    with _not_root(folder):
        for command in commands:
            capfd.readouterr()
            said.append((cli.run(command), capfd.readouterr().err))
    for command, (code, err) in zip(commands, said, strict=True):
        assert (code, err.count("\n"), "internal error" in err) == (2, 1, False), (command, err)
