"""``antecede sample``: copy small example files of every format, so that a reader of the guides can try the
commands."""

import json
from pathlib import Path
from typing import Annotated

import typer

from antecede.cli.options import JSON
from antecede.errors import UsageError
from antecede.samples import SAMPLES, place_of


def register(app: typer.Typer) -> None:
    @app.command()
    def sample(
        name: Annotated[
            list[str] | None,
            typer.Argument(metavar="NAME", help="Names of the samples to copy, or the word all."),
        ] = None,
        to: str = typer.Option(".", metavar="DIR", help="Folder to copy the samples to."),
        as_json: bool = JSON,
    ) -> None:
        """Copy small sample files to the current folder: a trace, the chat of the tutorial, scenarios, logs and spans.

        Without a name, the command lists all samples. If a file exists already and differs from the sample, nothing is
        copied.
        """
        chosen = list(SAMPLES) if name == ["all"] else list(dict.fromkeys(name or ()))
        for one in chosen:
            if one not in SAMPLES:
                raise UsageError(f"no sample {one!r}: expected all, or some of {', '.join(SAMPLES)}")
        copied = _copy([SAMPLES[one].path for one in chosen], Path(to))
        if as_json:
            listed = {one: {"path": s.path, "about": s.about, "command": s.command} for one, s in SAMPLES.items()}
            print(json.dumps({"samples": listed, "copied": copied}, indent=2))
        elif chosen:
            print("\n".join(copied))
            there = "try" if to == "." else f"in {to}, try"
            command = SAMPLES[chosen[0]].command
            print(f"{there}: {command}" if len(chosen) == 1 else "antecede sample NAME prints a command to try")
        else:
            width = max(map(len, SAMPLES))
            print("\n".join(f"{one:<{width}}  {found.about}" for one, found in SAMPLES.items()))
            print("antecede sample NAME copies one here, and prints a command to try")


def _copy(paths: list[str], folder: Path) -> list[str]:
    """Copy samples into ``folder``, and return the paths of all copied files. ``paths``: the names of files and
    folders. If a file exists and differs, raise an error and copy nothing."""
    wanted: dict[Path, bytes] = {}
    for path in paths:
        source = place_of(path)
        if source is None:
            raise UsageError(f"the sample {path} is not here: expected the folder examples beside the package")
        for one in [source] if source.is_file() else sorted(source.iterdir()):
            if one.is_file():
                wanted[folder / one.relative_to(source.parent)] = one.read_bytes()
    try:
        for target, content in wanted.items():
            if target.exists() and target.read_bytes() != content:
                raise UsageError(f"{target}: exists and differs from the sample; remove it, or give --to DIR")
        for target, content in wanted.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be written: {error.strerror}") from None
    return [str(target) for target in wanted]
