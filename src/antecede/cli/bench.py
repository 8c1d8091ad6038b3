"""``antecede bench``: in a clone, run a benchmark of the folder ``benchmarks``, as ``./run bench`` does."""

import os
import subprocess
import sys
from pathlib import Path

import typer

from antecede.errors import UsageError

_arguments = typer.Argument(None, metavar="NAME OPTIONS")


def register(app: typer.Typer) -> None:
    @app.command(hidden=True, add_help_option=False, context_settings={"ignore_unknown_options": True})
    def bench(arguments: list[str] = _arguments) -> int:
        """Run a benchmark of this clone."""
        root = Path(__file__).resolve().parents[3]
        if not (root / "benchmarks" / "__main__.py").is_file():
            raise UsageError("the benchmarks are not in the package: expected a clone, where ./run bench runs them")
        paths = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-m", "benchmarks", *(arguments or [])]
        return subprocess.call(command, env={**os.environ, "PYTHONPATH": paths})
