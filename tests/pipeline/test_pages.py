"""The pages of the documentation that use Spark run as printed, on the session of all tests."""

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from antecede import cli
from helpers.pages import PAGES, SPARK, play


@pytest.mark.parametrize("page", [page for page in PAGES if page.name in SPARK], ids=lambda page: page.stem)
def test_a_page_runs_as_printed(page: Path, command: Callable[[str], tuple[int, str, str]], tmp_path: Path) -> None:
    def run(arguments: list[str]) -> tuple[int, str]:
        with redirect_stdout(io.StringIO()) as printed:
            code = cli.run(arguments)
        return code, printed.getvalue()

    def program(text: str) -> str:
        names: dict[str, Any] = {"__name__": "__main__"}
        # The current folder of Java is the one in which the session was started.
        text = text.replace('read.json("', f'read.json("{tmp_path}/')
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(text, str(page), "exec"), names)
        return printed.getvalue()

    play(page, tmp_path, run, {}, program)
