"""Every command and code block of the README and the documentation runs as printed; ``tests/helpers/pages.py`` says
how. Pages that use Spark are played by ``tests/pipeline/test_pages.py``."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from antecede import cli
from helpers.pages import EXEMPT, PAGES, ROOT, SPARK, blocks, play


def _allow_less(folder: Path) -> None:
    """Step 4 of the guide to permissions."""
    access = folder / "access.toml"
    text = access.read_text(encoding="utf-8")
    place = text.index("[clients.alice]")
    access.write_text(text[:place] + text[place:].replace('send = ["*"]', 'send = ["orders"]', 1), encoding="utf-8")


def _forget_a_conflict(folder: Path) -> None:
    """The mistake that the guide to objects looks for."""
    file = folder / "accounts.py"
    above, declared, below = file.read_text(encoding="utf-8").rpartition('["audit", "withdraw"]')
    assert declared
    file.write_text(f'{above}["withdraw"]{below}', encoding="utf-8")


BEFORE: dict[str, dict[str, Callable[[Path], None]]] = {
    "docs/guide/security.md": {"kill -HUP PID": _allow_less},
    "docs/guide/objects.md": {"$ antecede objects conflicts accounts.py": _forget_a_conflict},
}
"""What the text asks the reader to do before a block."""


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in SPARK and blocks(page)], ids=lambda page: page.stem
)
def test_a_page_runs_as_printed(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)

    def command(arguments: list[str]) -> tuple[int, str]:
        capsys.readouterr()
        code = cli.run(arguments)
        captured = capsys.readouterr()
        return code, captured.out if code == 0 else captured.out + captured.err

    try:
        play(page, tmp_path, command, dict(BEFORE.get(str(page.relative_to(ROOT)), {})))
    finally:
        # Applications of other pages have the same names.
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
                del sys.modules[name]


def test_every_exemption_names_a_block() -> None:
    used = {(block.page, block.begins(EXEMPT.get(block.page, {}))) for page in PAGES for block in blocks(page)}
    stale = [(page, text) for page, listed in EXEMPT.items() for text in listed if (page, text) not in used]
    assert stale == []


def test_every_block_has_a_language() -> None:
    assert [f"{block.page}:{block.line}" for page in PAGES for block in blocks(page) if not block.language] == []
