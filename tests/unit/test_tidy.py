"""The source itself, held to what a machine can check of the house style (TigerBeetle's *tidy* test is the model).

Layers are import-linter's part, types mypy's, layout ruff's. Here: every module states its idea, no file outgrows its
idea, nothing is left for later, nothing names a machine or a registry, and what the documents point at exists.
"""

import ast
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_root = Path(__file__).resolve().parents[2]
_lines_max = 450
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
    return sorted(root / name for name in names if (root / name).is_file())


_files = _project_files()
_python = [path for path in _files if path.suffix == ".py" or path == _root / "run"]
_source = [path for path in _python if path.is_relative_to(_root / "src")]
_documents = [path for path in _files if path.suffix == ".md"]


def _each(paths: list[Path]) -> Callable[..., object]:
    return pytest.mark.parametrize("path", paths, ids=lambda path: str(path.relative_to(_root)))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


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


@_each(_python)
def test_module_states_its_idea(path: Path) -> None:
    said = ast.get_docstring(ast.parse(_text(path)))
    assert said or not _text(path).strip(), "expected a docstring that states the module's idea"


@_each(_python)
def test_file_is_one_idea(path: Path) -> None:
    assert len(_text(path).splitlines()) <= _lines_max


@_each(_source)
def test_public_classes_and_functions_of_a_module_are_documented(path: Path) -> None:
    """Methods may be explained by the contract they fulfil; what a module offers by itself is not."""
    body = ast.parse(_text(path)).body
    public = [n for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef) and not n.name.startswith("_")]
    silent = [node.name for node in public if not ast.get_docstring(node)]
    # A command's module has one entry, the same in all of them; cli/__init__.py says what it is.
    assert [name for name in silent if not (name == "register" and path.parent.name == "cli")] == []


@_each(_python)
def test_nothing_is_pickled(path: Path) -> None:
    assert _pickles & set(_imports(ast.parse(_text(path)))) == set()


@_each(_python)
def test_no_error_is_swallowed_whole(path: Path) -> None:
    handlers = [node for node in ast.walk(ast.parse(_text(path))) if isinstance(node, ast.ExceptHandler)]
    assert [node.lineno for node in handlers if node.type is None] == []


@_each(_files)
def test_text_is_clean(path: Path) -> None:
    """UTF-8, a newline at the end and only one, no tabs, no blanks at the ends of lines."""
    text = _text(path)
    assert _lines(path, re.compile(r"\t|\r|[ \t]$")) == []
    assert not text or (text.endswith("\n") and not text.endswith("\n\n"))


@_each(_files)
def test_nothing_is_left_for_later(path: Path) -> None:
    assert _lines(path, re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")) == []


@_each(_files)
def test_no_path_of_one_machine(path: Path) -> None:
    folders = "|".join(("root", "work", "Users", "home/[a-z]+", "opt"))
    assert _lines(path, re.compile(rf"(?<![\w.}}>)\]*-])/({folders})/")) == []


@_each(_files)
def test_every_reference_can_be_followed(path: Path) -> None:
    """A paper is cited by its authors; a document that is not in the project is not cited at all."""
    assert (
        _lines(path, re.compile(r"\b(" + "|".join(("READ" + "INGS", "DES" + "IGN", "PE" + r"ERS\.md")) + r")\b")) == []
    )


@_each(_files)
def test_no_registry_is_named(path: Path) -> None:
    """Where packages come from is the configuration of whoever installs them."""
    registries = "|".join(("py" + r"pi\.(org|io)", "python" + r"hosted\.org", "index-url *=", "artifact" + r"ory\."))
    assert _lines(path, re.compile(registries)) == []


@pytest.mark.parametrize("name", ["run", "requirements.lock", "tools/find_pip.py", ".ci/run", "pyproject.toml"])
def test_installation_knows_no_address(name: str) -> None:
    assert _lines(_root / name, re.compile(r"\w+://\w")) == []


@_each(_documents)
def test_links_of_documents_lead_somewhere(path: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", _text(path), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", prose)
    inside = [target.partition("#")[0] for target in targets if not re.match(r"\w+:", target)]
    assert [target for target in inside if target and not (path.parent / target).exists()] == []


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
