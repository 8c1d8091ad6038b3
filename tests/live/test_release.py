"""What is released: a wheel and a source archive that install and run, and one version everywhere.

By default the wheel is unpacked and run with this Python and its packages. ``ANTECEDE_RELEASE=1`` installs it, and the
source archive, with all dependencies on every supported Python that is found.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from antecede import __version__

_root = Path(__file__).resolve().parents[2]


def test_there_is_one_version() -> None:
    cited = re.search(r"^version: (.+)$", (_root / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert cited[1] == __version__
    project = (_root / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in project
    written = [path for path in (_root / "src").rglob("*.py") if __version__ in path.read_text(encoding="utf-8")]
    assert written == [_root / "src" / "antecede" / "__init__.py"]
    assert f"## {__version__.partition('.dev')[0]}" in (_root / "CHANGELOG.md").read_text()


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source archive, built from a copy without anything that is not committed."""
    folder = tmp_path_factory.mktemp("release")
    source = folder / "source"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=_root, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if not name.startswith("tests/") and (_root / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(_root / name, source / name)
    venv.create(folder / "builder", with_pip=True)
    python = folder / "builder" / "bin" / "python"
    got = subprocess.run(
        [python, "-m", "pip", "install", "-q", "hatchling"], capture_output=True, text=True, check=False
    )
    if got.returncode:
        pytest.skip(f"no build backend: {got.stderr.strip().splitlines()[-1:]}")
    subprocess.run([python, "-m", "hatchling", "build", "-d", str(folder)], cwd=source, check=True, capture_output=True)
    (wheel,), (archive,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, archive


def test_the_wheel_runs_and_has_what_users_need(archives: tuple[Path, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(archives[0]) as wheel:
        names = wheel.namelist()
        wheel.extractall(tmp_path / "here")
        (about,) = (wheel.read(name).decode() for name in names if name.endswith("METADATA"))
    assert "antecede/py.typed" in names
    assert not [name for name in names if "trial" in name or name.startswith("tests")]
    assert f"Version: {__version__}" in about
    assert {"spark", "plan", "metrics", "telemetry", "docs"} <= set(re.findall(r"^Provides-Extra: (\w+)", about, re.M))
    program = "import antecede, sys; print(antecede.__file__); from antecede.cli import run; sys.exit(run(['version']))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "here")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert str(tmp_path / "here") in done.stdout
    assert f"antecede {__version__}" in done.stdout
    # The examples are data of the wheel; their commands work without a clone.
    for command in ("chat --json", "demo --no-spark --json", "sample chat", "topology check chat/chat.toml"):
        done = subprocess.run(
            [sys.executable, "-m", "antecede", *command.split()], cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(tmp_path / "here")}, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stderr}"
    alias = subprocess.run(
        [sys.executable, "-m", "antecede", "bench", "hop"], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "here")}, check=False,
    )  # fmt: skip
    assert (alias.returncode, alias.stderr.count("\n")) == (2, 1)
    with tarfile.open(archives[1]) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "CITATION.cff", "docs/guide/agents.md", "src/antecede/cli/verify.py"} <= files
    assert not [name for name in files if name.startswith((".venv", "tests", "build"))]


def _python(minor: int) -> str | None:
    """Return a Python of this version that runs: the command, or one that pyenv has installed."""
    installed = sorted(
        Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/3.{minor}.*/bin/python")
    )
    for one in filter(None, [shutil.which(f"python3.{minor}"), *map(str, installed)]):
        # The command may be pyenv's stand-in, which fails if this version is not selected.
        if not subprocess.run([one, "-c", ""], capture_output=True, check=False).returncode:
            return one
    return None


@pytest.mark.skipif(not os.environ.get("ANTECEDE_RELEASE"), reason="only before a release: ANTECEDE_RELEASE=1")
@pytest.mark.parametrize("minor", [11, 12, 13, 14])
def test_it_installs_on_every_python(archives: tuple[Path, Path], minor: int, tmp_path: Path) -> None:
    found = _python(minor)
    if found is None:
        pytest.skip(f"no Python 3.{minor} here")
    for number, archive in enumerate(archives):
        folder = tmp_path / str(number)
        subprocess.run([found, "-m", "venv", str(folder)], check=True)
        subprocess.run([folder / "bin" / "pip", "install", "-q", str(archive)], check=True)
        command = folder / "bin" / "antecede"
        done = subprocess.run([command, "version"], capture_output=True, text=True, check=True)
        assert f"antecede {__version__}, Python 3.{minor}." in done.stdout
        trace = tmp_path / "run.jsonl"
        subprocess.run(
            [command, "simulate", "--messages", "50", "--trace", str(trace)], check=True, capture_output=True
        )
        subprocess.run([command, "verify", str(trace)], check=True, capture_output=True)
    # The plug-in is found by its entry point.
    subprocess.run([folder / "bin" / "pip", "install", "-q", "pytest"], check=True)
    (tmp_path / "test_own.py").write_text(
        "def test_order(antecede_recording):\n"
        "    ann, bob = map(antecede_recording.process, ('ann', 'bob'))\n"
        "    ann.sent('x', to='bob')\n"
        "    bob.delivered('x')\n"
    )
    done = subprocess.run(
        [folder / "bin" / "python", "-m", "pytest", "test_own.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
