"""The source itself, held to what a machine can check of the house style (TigerBeetle's *tidy* test is the model).

Layers are import-linter's part, types mypy's, layout ruff's. Here: nothing is left for later, nothing names a machine
or a registry, and what the documents point at exists.
"""

import ast
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

_root = Path(__file__).resolve().parents[2]
_pickles = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}


def _project_files(root: Path = _root) -> list[Path]:
    """Return what belongs to the project: what git tracks, or without git all that is not hidden or generated.

    A file that was not added yet is somebody's note, log or data, and none of the project's business.
    """
    names: list[str] = []
    if shutil.which("git"):
        asked = ["git", "ls-files", "--cached", "-z"]
        names = subprocess.run(asked, cwd=root, capture_output=True, text=True, check=False).stdout.split("\0")
    if "pyproject.toml" not in names:
        folders = [root / name for name in ("src", "tests", "tools", "docs", "examples", ".ci")]
        found = [path for folder in folders for path in folder.rglob("*") if "__pycache__" not in path.parts]
        names = [str(path.relative_to(root)) for path in [*found, *root.iterdir()]]
        names = [name for name in names if name == ".ci/run" or not Path(name).name.startswith(".")]
    # Pictures are not text.
    return sorted(root / name for name in names if (root / name).is_file() and not name.endswith(".png"))


_files = _project_files()
_python = [path for path in _files if path.suffix == ".py" or path == _root / "run"]
_source = [path for path in _python if path.is_relative_to(_root / "src")]
_documents = [path for path in _files if path.suffix == ".md"]


def _offenders(paths: list[Path], wrong: Callable[[Path], object]) -> dict[str, object]:
    """The files that break a rule, and how."""
    found = {str(path.relative_to(_root)): wrong(path) for path in paths}
    return {name: how for name, how in found.items() if how}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(_text(path))


def _lines(path: Path, wrong: re.Pattern[str]) -> list[str]:
    """The lines of a file in which something is found that should not be there."""
    numbered = enumerate(_text(path).splitlines(), 1)
    return [f"{path.relative_to(_root)}:{number}: {line.strip()}" for number, line in numbered if wrong.search(line)]


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_there_is_something_to_check() -> None:
    assert _root / "src" / "antecede" / "messages.py" in _source
    assert _root / "run" in _python
    assert _documents


def test_an_untracked_file_is_not_checked(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for name in ("pyproject.toml", "src/tracked.py"):
        (tmp_path / name).write_text("")
    assert len(_project_files(tmp_path)) == 2, "without git, all files count"
    if not shutil.which("git"):
        return
    for command in (["init", "-q"], ["add", "pyproject.toml", "src/tracked.py"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "src" / "notes.py").write_bytes(b"\xff\tno module \n\n")
    assert _project_files(tmp_path) == [tmp_path / "pyproject.toml", tmp_path / "src" / "tracked.py"]


def test_nothing_is_pickled() -> None:
    assert _offenders(_python, lambda path: _pickles & set(_imports(_tree(path)))) == {}


def test_no_error_is_swallowed_whole() -> None:
    def bare(path: Path) -> list[int]:
        return [node.lineno for node in ast.walk(_tree(path)) if isinstance(node, ast.ExceptHandler) and not node.type]

    assert _offenders(_python, bare) == {}


def test_text_is_clean() -> None:
    """UTF-8, a newline at the end and only one, no tabs, no blanks at the ends of lines."""

    def unclean(path: Path) -> object:
        text = _text(path)
        ends = not text or (text.endswith("\n") and not text.endswith("\n\n"))
        return _lines(path, re.compile(r"\t|\r|[ \t]$")) or not ends

    assert _offenders(_files, unclean) == {}


def test_nothing_is_left_for_later() -> None:
    later = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
    assert _offenders(_files, lambda path: _lines(path, later)) == {}


def test_no_path_of_one_machine() -> None:
    folders = "|".join(("root", "work", "Users", "home/[a-z]+", "opt"))
    machine = re.compile(rf"(?<![\w.}}>)\]*-])/({folders})/")
    assert _offenders(_files, lambda path: _lines(path, machine)) == {}


def test_every_reference_can_be_followed() -> None:
    """A paper is cited by its authors; a document that is not in the project is not cited at all."""
    elsewhere = re.compile(r"\b(" + "|".join(("READ" + "INGS", "DES" + "IGN", "PE" + r"ERS\.md")) + r")\b")
    assert _offenders(_files, lambda path: _lines(path, elsewhere)) == {}


def test_no_registry_is_named() -> None:
    """Where packages come from is the configuration of whoever installs them."""
    names = ("py" + r"pi\.(org|io)", "python" + r"hosted\.org", "index-url *=", "artifact" + r"ory\.")
    registries = re.compile("|".join(names))
    assert _offenders(_files, lambda path: _lines(path, registries)) == {}


@pytest.mark.parametrize("name", ["run", "requirements.lock", "tools/find_pip.py", ".ci/run", "pyproject.toml"])
def test_installation_knows_no_address(name: str) -> None:
    assert _lines(_root / name, re.compile(r"\w+://\w")) == []


def test_links_of_documents_lead_somewhere() -> None:
    def lost(path: Path) -> list[str]:
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", _text(path), flags=re.DOTALL)
        targets = re.findall(r"\]\(([^)\s]+)\)", prose)
        inside = [target.partition("#")[0] for target in targets if not re.match(r"\w+:", target)]
        return [target for target in inside if target and not (path.parent / target).exists()]

    assert _offenders(_documents, lost) == {}


def _plain_name(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()  # type: ignore[index]


def _locked() -> dict[str, str]:
    entries = re.split(r"\n(?=\S)", _text(_root / "requirements.lock").strip())
    return {entry.partition("==")[0]: entry for entry in entries}


def test_lock_has_what_the_project_asks_for() -> None:
    project = tomllib.loads(_text(_root / "pyproject.toml"))
    asked = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["spark"]]
    asked += [name for group in project["dependency-groups"].values() for name in group]
    assert {_plain_name(requirement) for requirement in asked} - set(_locked()) == set()


def test_lock_checks_every_package() -> None:
    for name, entry in _locked().items():
        assert re.fullmatch(r"[a-z0-9-]+", name), name
        assert re.match(r"[a-z0-9-]+==[\w.]+( ; [^\n]+?)?( \\\n    --hash=sha256:[0-9a-f]{64})+$", entry), name


def test_dependencies_are_argued_for() -> None:
    project = tomllib.loads(_text(_root / "pyproject.toml"))
    said = _text(_root / "docs" / "dependencies.md")
    extras = project["project"]["optional-dependencies"]
    asked = [*project["project"]["dependencies"], *(r for name, rs in extras.items() if name != "all" for r in rs)]
    asked += [name for group in project["dependency-groups"].values() for name in group]
    assert [name for name in map(_plain_name, asked) if not re.search(rf"\b{re.escape(name)}\b", said)] == []


def test_all_is_every_other_extra() -> None:
    extras = tomllib.loads(_text(_root / "pyproject.toml"))["project"]["optional-dependencies"]
    assert set(extras["all"][0].partition("[")[2].rstrip("]").split(",")) == set(extras) - {"all"}
