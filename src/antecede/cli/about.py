"""Commands about Antecede itself: ``version``, ``help``, ``orders`` and ``sample``."""

import inspect
import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from antecede import __version__
from antecede.cli.options import JSON
from antecede.errors import UsageError, similar
from antecede.samples import SAMPLES, place_of

_packages = ("msgspec", "typer", "rich", "uvloop", "pyspark", "pyarrow", "numpy", "numba")


def register(app: typer.Typer) -> None:
    @app.command("version")
    def version_(
        as_json: bool = JSON,
    ) -> None:
        """Print the versions of Antecede, Python and the packages that Antecede uses, for a bug report."""
        python, system = platform.python_version(), platform.platform()
        packages = {name: installed for name in _packages if (installed := _installed(name))}
        found = {"antecede": __version__, "python": python, "system": system, "packages": packages}
        listed = ", ".join(f"{name} {installed}" for name, installed in packages.items())
        text = f"antecede {__version__}, Python {python}, {system}\n{listed}"
        print(json.dumps(found, indent=2) if as_json else text)

    @app.command("help")
    def help_(
        context: typer.Context,
        command: Annotated[
            list[str] | None, typer.Argument(metavar="COMMAND", help="The command, for example: topology check")
        ] = None,
        as_json: bool = JSON,
    ) -> None:
        """Show the help of a command; without a command, list the commands."""
        at = context.parent
        assert at is not None
        for word in command or []:
            known = getattr(at.command, "commands", {})
            if word not in known:
                raise UsageError(f"no command {word!r} in {at.command_path}{similar(word, known)}")
            at = type(at)(known[word], info_name=word, parent=at)
        print(json.dumps(_described(at), indent=2) if as_json else at.get_help())

    _register_orders(app)
    _register_sample(app)


def _described(at: Any) -> dict[str, Any]:
    """Return the help of a command as a JSON document, with its arguments, options and sub-commands."""
    parameters = [
        {"names": [*one.opts], "required": one.required, "help": getattr(one, "help", None) or ""}
        for one in at.command.params
        if not getattr(one, "hidden", False)
    ]
    below = {name: one.get_short_help_str(200) for name, one in getattr(at.command, "commands", {}).items()}
    text = inspect.cleandoc(at.command.help or "")
    return {"command": at.command_path, "help": text, "parameters": parameters, "commands": below}


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _register_orders(app: typer.Typer) -> None:
    @app.command()
    def orders(
        as_json: bool = JSON,
    ) -> None:
        """List the ordering protocols: what each one guarantees and needs, and which control packets it sends."""
        from antecede.crashes import print_error
        from antecede.errors import OrderError
        from antecede.orders import names, parse

        rows: list[dict[str, Any]] = []
        for name in names():
            try:
                spec = parse(name)
            except OrderError as error:
                # An order of another package that cannot be used does not hide the others.
                print_error(str(error))
                continue
            kind = spec.kind
            rows.append(
                {
                    "name": name,
                    "guarantees": sorted(spec.guarantees()),
                    "needs": sorted(kind.needs),
                    "controls": list(kind.controls),
                    "options": {
                        option: {"default": o.default, "choices": list(o.choices), "help": o.help}
                        for option, o in kind.options.items()
                    },
                    "source": kind.source,
                }
            )
        if as_json:
            print(json.dumps({"orders": rows}, indent=2))
            return
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in ("order", "guarantees", "control packets", "options", "from"):
            # An option with a line break in the middle of a word could not be copied.
            table.add_column(column, overflow="fold", no_wrap=column in ("order", "options"))
        for row in rows:
            options = "\n".join(f"{option}={str(o['default']).lower()}" for option, o in row["options"].items())
            table.add_row(
                row["name"],
                (", ".join(row["guarantees"]) or "–") + (" (broadcasts only)" if "broadcast" in row["needs"] else ""),
                ", ".join(row["controls"]) or "–",
                options or "–",
                row["source"],
            )
        Console().print(table)


def _register_sample(app: typer.Typer) -> None:
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
