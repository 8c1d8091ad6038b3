"""``antecede version`` and ``antecede help``."""

import inspect
import json
import platform
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
