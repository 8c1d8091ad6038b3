"""``antecede version`` and ``antecede help``."""

import inspect
import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer

from antecede import __version__
from antecede.cli.options import JSON
from antecede.errors import UsageError, similar

_packages = ("msgspec", "typer", "rich", "uvloop", "pyspark", "pyarrow", "numpy", "numba")


def register(app: typer.Typer) -> None:
    @app.command("version")
    def version_(
        as_json: bool = JSON,
    ) -> None:
        """Print the versions of Antecede, Python and the packages that it uses, for a bug report."""
        found = {"antecede": __version__, "python": platform.python_version(), "system": platform.platform()}
        found["packages"] = {name: installed for name in _packages if (installed := _installed(name))}  # type: ignore[assignment]
        if as_json:
            print(json.dumps(found, indent=2))
            return
        packages = ", ".join(f"{name} {installed}" for name, installed in found.pop("packages").items())  # type: ignore[attr-defined]
        print(f"antecede {found['antecede']}, Python {found['python']}, {found['system']}\n{packages}")

    @app.command("help")
    def help_(
        context: typer.Context,
        command: Annotated[
            list[str] | None, typer.Argument(metavar="COMMAND", help="For example: topology check")
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
        if as_json:
            print(json.dumps(_described(at), indent=2))
        else:
            sys.stdout.write(at.get_help() + "\n")


def _described(at: Any) -> dict[str, Any]:
    """Return a command with its arguments, options and the commands below it."""
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
