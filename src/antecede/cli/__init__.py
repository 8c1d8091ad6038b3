"""The ``antecede`` command: one module a command, one line an error, three exit codes.

0: done, and the property asked about holds. 1: it is violated. 2: bad usage or unreadable input, said in one line on
standard error. A command returns its exit code; it raises :class:`antecede.errors.AntecedeError` for anything wrong
from outside. Reports go to standard output (``--json``: one document), progress and logs to standard error.

Command modules import what is heavy inside their functions, so that ``--help`` is instant.
"""

import os
import sys
from importlib import import_module

import click
import typer

from antecede import __version__
from antecede.errors import AntecedeError

_commands = ["demo", "play", "simulate", "explore", "orders", "verify", "bench"]
"""Modules of this package, each with a function ``register(app)``, in the order of ``--help``."""


def build() -> typer.Typer:
    """The command with all its sub-commands."""
    app = typer.Typer(
        name="antecede",
        help="Messages in which nothing arrives before what it follows from; and the proof, from the recorded trace.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback(invoke_without_command=True)
    def top(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
        if version:
            print(f"antecede {__version__}")
            raise typer.Exit

    for name in _commands:
        import_module(f"antecede.cli.{name}").register(app)
    return app


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; its exit code."""
    try:
        code = typer.main.get_command(build()).main(arguments, prog_name="antecede", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return 2
    except click.ClickException as error:
        return _fail(error.format_message())
    except AntecedeError as error:
        return _fail(str(error))
    except (KeyboardInterrupt, click.Abort):
        print("antecede: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output went away; nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code if isinstance(code, int) else 0


def _fail(reason: str) -> int:
    print("antecede: " + " ".join(reason.split()), file=sys.stderr)
    return 2
