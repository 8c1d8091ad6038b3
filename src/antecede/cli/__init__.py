"""The ``antecede`` command: one line per error, and the same exit codes for all commands.

The exit codes are:

* 0: The command succeeded. If it checks a property, the property holds.
* 1: The command checked a property, and the property does not hold.
* 2: Bad usage, unreadable input or an internal error. One line on standard error says what is wrong. For an internal
  error, this line names the file with the full report (:mod:`antecede.crashes`).
* 130: Ctrl-C ended the command.
* 141: The program that reads the output ended before the command was done.
* 143: SIGTERM ended the command.

A command returns its exit code (or raises ``typer.Exit``). It raises :class:`antecede.errors.AntecedeError` for every
error that comes from outside: from the user, a file or a server. It writes its report to standard output (with
``--json``, as one document), and progress and logs to standard error.

The commands are the modules of this package that have a function ``register(app)``. These modules are found
automatically. They import heavy modules only inside their functions, so that ``--help`` is fast.
"""

import io
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from importlib import import_module
from inspect import cleandoc
from pkgutil import iter_modules
from threading import Timer
from typing import Any

import typer

try:
    from typer.exceptions import TyperException
except ModuleNotFoundError:
    # Before 0.27.3. The command line of FastStream needs 0.27.1 or older.
    from typer._click.exceptions import ClickException as TyperException

from antecede import __version__
from antecede.cli.examples import ALWAYS_JSON, EXAMPLES, FIRST_STEPS, PANELS
from antecede.cli.options import expanded, without_conversion
from antecede.cli.terminal import guarded_output
from antecede.crashes import broken_pipe, crashed, discard_output, interrupted, print_error
from antecede.errors import AntecedeError, similar
from antecede.failures import Terminated


def build(arguments: Sequence[str] = ()) -> typer.Typer:
    """Return the command with its sub-commands. If the first argument names a sub-command, add only this sub-command,
    because the process starts faster without the modules of the others."""
    app = typer.Typer(
        name="antecede",
        help="Send messages between processes in order, and check in a recorded trace that the order was kept.",
        epilog=FIRST_STEPS,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback(invoke_without_command=True)
    def top(
        context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version and exit.")
    ) -> None:
        if version:
            print(f"antecede {__version__}")
            raise typer.Exit
        if context.invoked_subcommand is None:
            print(context.get_help())

    names = sorted(_modules())
    # ``import`` is a keyword of Python, so its module is ``import_``.
    named = [name for name in names if name.rstrip("_") in map(_module_of, arguments[:1])]
    for register in _registers(named) or _registers(names):
        register(app)
    groups = app.registered_groups
    for one in (app, *(group.typer_instance for group in groups if group.typer_instance is not None)):
        for command in one.registered_commands:
            assert command.callback is not None
            command.callback = expanded(command.callback)
    app.registered_commands.sort(key=_rank)
    groups.sort(key=_rank)
    registered: list[Any] = [*app.registered_commands, *groups]
    for info in registered:
        info.rich_help_panel = next((panel for panel, some in PANELS.items() if _name(info) in some), "Other commands")
    return app


def main() -> int:
    """Run the command line of this process, and return the exit code."""
    # The caller may have closed our standard streams; then nothing can be read or written there.
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115 (it stays open to the end)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A name in a trace may contain any character; a terminal that cannot show one gets an escape, not a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    _raise_dropped_interrupts_again()
    terminated = _clean_up_when_terminated()
    code = run(sys.argv[1:])
    return 143 if terminated and code == interrupted else code


def _raise_dropped_interrupts_again() -> None:
    """From now on, send a Ctrl-C or a SIGTERM to this process again if Python drops the signal. Python drops a signal
    if the signal's handler runs inside a destructor or a callback: Python prints the exception of the handler, and
    continues."""
    before = sys.unraisablehook

    def dropped(unraisable: "sys.UnraisableHookArgs") -> None:
        error = unraisable.exc_value
        if isinstance(error, KeyboardInterrupt):
            number = signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT
            later = Timer(_again_seconds, os.kill, (os.getpid(), number))
            later.daemon = True
            with suppress(RuntimeError):
                # The process may be at its end, where no thread starts.
                later.start()
        else:
            before(unraisable)

    sys.unraisablehook = dropped


def _clean_up_when_terminated() -> list[int]:
    """From now on, let SIGTERM end this process as Ctrl-C does, so that unfinished output is removed. Return a list
    that is empty until SIGTERM arrives. Then it contains the number of the signal. A forked process that gets SIGTERM
    ends immediately, and removes nothing."""
    received: list[int] = []
    owner = os.getpid()

    def terminate(number: int, _: object) -> None:
        if os.getpid() != owner:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        received.append(number)
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    return received


def run(arguments: list[str]) -> int:
    """Run one command, and return its exit code. Control characters in what it prints are escaped."""
    with guarded_output():
        return _run(arguments)


def _run(arguments: list[str]) -> int:
    # The exit code if the reader of our output goes away before the command is done.
    code: object = broken_pipe
    try:
        command = _flowing(typer.main.get_command(build(arguments)))
        code = command.main(arguments, prog_name="antecede", standalone_mode=False)
        sys.stdout.flush()
    except TyperException as error:
        return _misused(error)
    except AntecedeError as error:
        return _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = interrupted
    except BrokenPipeError:
        # A verdict that was reached stays the exit code, even if the reader of the report is gone.
        discard_output()
        return code if isinstance(code, int) else 0
    except OSError as error:
        if error.errno is None:
            return crashed(error)
        # Commands name the file in their own errors. The remaining case is standard output that cannot be written.
        discard_output()
        return _fail(f"{error.filename or 'standard output'}: {error.strerror or error}")
    except SystemExit as stop:
        return _stopped(stop)
    except BaseException as error:
        # Python 3.11 wraps an interrupt during the creation of a class, which happens in the imports at the start.
        if not isinstance(error.__cause__, KeyboardInterrupt):
            return crashed(error)
        code = interrupted
    if code == interrupted:
        print_error("interrupted")
    return code if isinstance(code, int) else 0


def _stopped(stop: SystemExit) -> int:
    """Return the exit code of a command that ended with ``sys.exit``. Three callers of ``sys.exit`` are expected:
    Spark's sessions after a signal, typer if a help text cannot be written, and the completion of command lines in a
    shell. Any other call of ``sys.exit`` is reported as an internal error. Otherwise, an unexpected exit code 0 or 1
    would look like the result of a check."""
    if isinstance(stop.__context__, BrokenPipeError):
        discard_output()
        return broken_pipe
    if _completing in os.environ and isinstance(stop.code, int):
        # The shell asked for the possible continuations of a line.
        return stop.code
    return stop.code if isinstance(stop.code, int) and stop.code > 128 else crashed(stop)


def _flowing(command: Any, path: tuple[str, ...] = ()) -> Any:
    """Prepare the help of a command and its sub-commands, and return the command. Remove the line breaks inside
    paragraphs, so that a paragraph fills the width of the terminal. Keep the line break before a line such as "links:
    …" or "0: …", because such lines are the items of a list. Add the examples of each command. Show no type for options
    that take no value."""
    command.help = re.sub(r"(?<!\n)\n(?!\n|(?:[a-z]+|\d+): )", " ", cleandoc(command.help or ""))
    examples = EXAMPLES.get(" ".join(path), [])
    if examples:
        # A paragraph each, since the lines of a paragraph are joined.
        command.epilog = "\n\n".join(["Examples:" if len(examples) > 1 else "Example:", *examples])
    _escape_brackets(command)
    _without_types(command)
    without_conversion(command.params)
    parts = getattr(command, "commands", {})
    options = [option for part in parts.values() for option in part.params if "--json" in option.opts]
    for name, part in parts.items():
        if " ".join((*path, name)) in ALWAYS_JSON and options:
            same = copy(options[0])
            same.expose_value, same.help = False, "This command always prints JSON."
            part.params.append(same)
        _flowing(part, (*path, name))
    return command


def _escape_brackets(command: Any) -> None:
    """Escape brackets when help is printed, because Rich would read ``[hiredis]`` in ``redis[hiredis]`` as a style."""
    made = command.format_help

    def format_help(context: Any, formatter: Any) -> None:
        if command.rich_markup_mode == "rich":
            for one in (command, *command.params, *getattr(command, "commands", {}).values()):
                if getattr(one, "help", None):
                    one.help = re.sub(_markup, r"\\\1", one.help)
            command.epilog = re.sub(_markup, r"\\\1", command.epilog or "")
        made(context, formatter)

    command.format_help = format_help


def _without_types(command: Any) -> None:
    """In the help, show no type for options that take no value. Otherwise typer shows ``--json <bool>``, as if a value
    had to follow."""
    made = command.get_help_option

    def help_option(context: Any) -> Any:
        option = made(context)
        if option is not None:
            option.metavar = ""
            without_conversion([option])
        return option

    command.get_help_option = help_option
    for option in command.params:
        if getattr(option, "is_flag", False):
            option.metavar = ""


def _modules() -> list[str]:
    return [module.name for module in iter_modules(__path__) if not module.name.startswith("_")]


def _registers(names: list[str]) -> list[Callable[[typer.Typer], None]]:
    """Return the ``register`` functions of these modules. A module without this function is not a command: it contains
    code that commands share."""
    modules = [import_module(f"antecede.cli.{name}") for name in names]
    return [module.register for module in modules if hasattr(module, "register")]


def _module_of(command: str) -> str:
    """Return the name of the module that has a command."""
    return {"restore": "backup", "orders": "about", "sample": "about", "up": "serve", "unit": "serve"}.get(
        command, command
    )


def _name(registered: Any) -> str:
    """Return the name of a command, or of a group of commands."""
    return str(registered.name or getattr(getattr(registered, "callback", None), "__name__", ""))


def _rank(registered: Any) -> int:
    known = [one for some in PANELS.values() for one in some]
    name = _name(registered)
    return known.index(name) if name in known else len(known)


_completing = "_ANTECEDE_COMPLETE"
"""The environment variable that a shell sets when it asks for completions."""
_again_seconds = 0.05
"""The time after which a dropped signal is sent again."""

_markup = r"(?<!\\)(\[[a-z#/@][^\[]*?\])"
"""A regular expression that matches brackets that Rich reads as markup."""

_usual = {"antecede client": "list", "antecede dead": "list", "antecede topology": "check"}
"""For each group of commands: the command to suggest if the user gives a topology but no command of the group."""


def _misused(error: TyperException) -> int:
    """Report a usage error, name the help command, and return exit code 2. There is one exception: if the user gave
    only the name of a group of commands, such as ``antecede dead``, the help of the group was already printed. In this
    case, report nothing and return 0."""
    reason = error.format_message().strip()
    if not reason:
        return 0
    context = getattr(error, "ctx", None)
    asked = context.command_path if context is not None else "antecede"
    named = re.match(r"No such command '(.+?)'", reason)
    if named and asked in _usual and (named[1].startswith("tcp://") or named[1].endswith(".toml")):
        # The user gave a topology instead of a command: most likely they want to look at it.
        return _fail(f"{named[0]}: did you mean {asked} {_usual[asked]} {named[1]}?")
    if named and context is not None and "did you mean" not in reason.lower():
        return _fail(f"{named[0]} (see {asked} --help){similar(named[1], getattr(context.command, 'commands', {}))}")
    return _fail(f"{reason.rstrip('.')} (see {asked} --help)")


def _fail(reason: str) -> int:
    print_error(reason)
    return 2
