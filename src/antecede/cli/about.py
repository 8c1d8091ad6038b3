"""``antecede version`` and ``antecede help``."""

import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from antecede import __version__
from antecede.errors import UsageError, similar

_packages = ("msgspec", "typer", "rich", "uvloop", "pyspark", "pyarrow", "numpy", "numba")


def register(app: typer.Typer) -> None:
    @app.command("version")
    def version_(as_json: bool = typer.Option(False, "--json", help="One JSON document on standard output.")) -> None:
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
        command: Annotated[list[str] | None, typer.Argument(metavar="COMMAND", help="A command, as words.")] = None,
    ) -> None:
        """Show the help of a command; without one, the list of all commands."""
        at = context.parent
        assert at is not None
        for word in command or []:
            known = getattr(at.command, "commands", {})
            if word not in known:
                raise UsageError(f"no command {word!r} in {at.command_path}{similar(word, known)}")
            at = type(at)(known[word], info_name=word, parent=at)
        sys.stdout.write(at.get_help() + "\n")


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
