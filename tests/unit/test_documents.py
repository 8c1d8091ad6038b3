"""The source of the documentation site: complete, without dead links, and generated from the code."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from antecede import limits

_root = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("documents", _root / "tools" / "documents.py")
assert _spec is not None
assert _spec.loader is not None
documents: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(documents)
_code = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("site")
    documents.write(folder)
    return folder


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as mkdocs makes them."""
    plain = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    heads = re.findall(r"^#+ (.*)$", plain, re.MULTILINE)
    texts = [re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head)).strip().lower() for head in heads]
    return {re.sub(r"[\s-]+", "-", text) for text in texts}


def test_no_link_is_dead(site: Path) -> None:
    dead = []
    for page in site.rglob("*.md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", _code.sub("code", page.read_text(encoding="utf-8"))):
            path, _, anchor = target.partition("#")
            if "://" in target:
                continue
            file = (page.parent / path).resolve() if path else page
            if not file.exists() or (anchor and anchor not in _anchors(file)):
                dead.append(f"{page.relative_to(site)}: {target}")
    assert not dead


def test_every_page_is_in_the_menu_and_the_menu_has_no_other(site: Path) -> None:
    listed = set(re.findall(r": ([\w/]+\.md)$", (_root / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed == {str(page.relative_to(site)) for page in site.rglob("*.md")}


def test_every_limit_is_listed_with_its_reason(site: Path) -> None:
    page = (site / "limits.md").read_text(encoding="utf-8")
    names = [
        name
        for name, value in vars(limits).items()
        if not name.startswith("_") and name != "Final" and not isinstance(value, ModuleType)
    ]
    assert names
    for name in names:
        row = re.search(rf"^\| `{name}` \| ([\w.,+ -]+) \| (.+) \|$", page, re.MULTILINE)
        assert row, name
        assert len(row[2]) > 10, name


def test_every_command_is_listed_with_its_options(site: Path) -> None:
    page = (site / "cli.md").read_text(encoding="utf-8")
    for part in ("## antecede verify", "### antecede topology check", "`--quarantine DIR`", "antecede races data"):
        assert part in page


def test_generated_pages_are_not_committed() -> None:
    assert not [name for name in ("cli.md", "limits.md", "api", "index.md") if (_root / "docs" / name).exists()]


def test_the_reference_names_modules_that_exist() -> None:
    for _, modules in documents.API.values():
        for module in modules:
            assert importlib.util.find_spec(module), module


def test_a_dead_link_is_kept_and_so_found(tmp_path: Path) -> None:
    origin = {"index.md": _root / "README.md"}
    text = "[a](docs/nothing.md) [b](LICENSE) [`c`](docs/nothing.md) `[d](x)`"
    assert documents._linked(text, "index.md", origin) == "[a](docs/nothing.md) b [`c`](docs/nothing.md) `[d](x)`"


def test_pages_load_nothing_from_outside() -> None:
    spec = importlib.util.spec_from_file_location("site_hooks", _root / "tools" / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    page = '<head><script src="https://unpkg.com/iframe-worker/shim"></script></head>'
    for made in (hooks.on_post_page(page), hooks.on_post_template(page)):
        assert "https://" not in made
        assert "window.Worker" in made


def test_every_command_of_the_papers_names_a_test_or_a_scenario_that_exists() -> None:
    text = (_root / "docs" / "papers.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:garg|mattern|jang|laumay)-[\w-]*…?)`", text)
    assert named
    found = [name for name in named if not [*(_root / "tests" / "scenarios").glob(name.replace("…", "*") + ".txt")]]
    found += [path for path in re.findall(r"`(tests/[\w/.-]+)`", text) if not (_root / path).exists()]
    assert found == []
    rows = re.findall(
        r"^\| claim \| our result \| repeat with \|\n\|---\|---\|---\|\n((?:\|.*\n)+)", text, re.MULTILINE
    )
    assert rows
    assert [row for table in rows for row in table.splitlines() if row.count(" | ") < 2 or row.endswith("|  |")] == []
