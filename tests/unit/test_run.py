"""``./run`` without installing anything: how the lock is cut, how pip's settings are read, which pip is trusted."""

import hashlib
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

_root = Path(__file__).resolve().parents[2]


def _load(name: str, path: Path) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture
def find_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The module, on a machine where nobody has configured pip."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "system"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return _load("find_pip", _root / "tools" / "find_pip.py")


@pytest.fixture
def environment(find_pip: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setitem(sys.modules, "find_pip", find_pip)
    return _load("environment", _root / "tools" / "environment.py")


def _configure(folder: Path, text: str) -> None:
    (folder / "pip").mkdir(parents=True)
    (folder / "pip" / "pip.conf").write_text(text)


def test_settings_come_from_system_user_and_environment_in_that_order(
    find_pip: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _configure(tmp_path / "system", "[global]\ntimeout = 1\nproxy = a\nfind_links = x\n")
    _configure(tmp_path / "home" / ".config", "[global]\ntimeout = 2\nproxy = b\n[install]\nproxy = c\n")
    monkeypatch.setenv("PIP_TIMEOUT", "3")
    found = find_pip.settings()
    assert (found["timeout"], found["proxy"], found["find-links"]) == ("3", "c", "x")


def test_no_configuration_files_when_pip_would_read_none(
    find_pip: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _configure(tmp_path / "system", "[global]\nproxy = a\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert find_pip.settings() == {}


def test_uv_is_used_only_where_pip_has_no_say(find_pip: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_TIMEOUT", "60")
    assert find_pip.uv_is_equal()
    monkeypatch.setenv("PIP_FIND_LINKS", "wheels")
    assert not find_pip.uv_is_equal()


def _index(folder: Path, **wheels: bytes) -> str:
    """An index of files whose page gives each one's hash, but for ``damaged``, which was changed later."""
    page = folder / "simple" / "pip"
    page.mkdir(parents=True)
    links = []
    for version, body in wheels.items():
        name = f"pip-{version.strip('v').replace('_', '.')}-py3-none-any.whl"
        links.append(f'<a href="{name}#sha256={hashlib.sha256(body).hexdigest()}">{name}</a>')
        (page / name).write_bytes(body if body != b"damaged" else b"evil")
    (page / "index.html").write_text("\n".join([*links, '<a href="pip-99.0-py3-none-any.whl">no hash</a>']))
    return (folder / "simple").as_uri()


def test_newest_pip_of_the_index_whose_hash_is_known(
    find_pip: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", _index(tmp_path, v9_0_3=b"old", v23_1=b"new", v10_0=b"middle"))
    assert next(find_pip._from_index("python", str(tmp_path))) == [
        "python",
        str(tmp_path / "pip-23.1-py3-none-any.whl" / "pip"),
    ]
    assert (tmp_path / "pip-23.1-py3-none-any.whl").read_bytes() == b"new"


def test_pip_that_is_not_what_the_index_says_is_not_kept(
    find_pip: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", _index(tmp_path, v23_1=b"damaged"))
    assert list(find_pip._from_index("python", str(tmp_path))) == []
    assert list(tmp_path.glob("pip-*.whl")) == []


def test_parts_of_the_lock_are_the_lock(environment: ModuleType) -> None:
    build, libraries, source = (text for _, text in environment.split_lock())
    assert build.startswith("setuptools==")
    assert source.startswith("pyspark==")
    whole = (_root / "requirements.lock").read_text().splitlines()
    assert sorted(whole) == sorted((build + libraries + source).splitlines())


def test_passwords_are_not_shown(environment: ModuleType) -> None:
    assert environment.hide_password("see http://me:secret@host/simple") == "see http://host/simple"


def test_whole_runs_are_spread_and_single_files_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    run = _load("run", _root / "run")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert run.spread([]) == run.spread(["tests/papers", "-k", "x"]) == ["-n", "3", "--dist", "loadgroup"]
    assert run.spread(["tests/unit/test_x.py::test_y"]) == run.spread(["-n4"]) == run.spread(["--pdb"]) == []


def test_unknown_command_is_one_line_and_exit_2() -> None:
    done = subprocess.run([sys.executable, _root / "run", "nonsense"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "nonsense" in done.stderr
