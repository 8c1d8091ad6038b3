"""Options that several commands share: how a command identifies itself to servers, and what the commands that start
servers have in common."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, NamedTuple

import typer

TOKEN = typer.Option(None, "--token-file", metavar="FILE", help="The servers' token.")
AUTHORITY = typer.Option(
    None, "--authority", metavar="FILE", help="TLS: the authority that signs the servers' certificates."
)
CREDENTIALS = typer.Option(
    None,
    "--credentials",
    metavar="DIR",
    help="A folder of antecede credentials. Default: credentials/ beside the topology, if access.toml is there too.",
)

_serving = {
    "durability": typer.Option("disk", help="disk (survives a power cut), os (a kill) or memory (nothing)."),
    "token_file": typer.Option(None, metavar="FILE", help="A token that clients and peers must present."),
    "certificate": typer.Option(None, metavar="FILE", help="TLS: the certificate of the servers (PEM)."),
    "key": typer.Option(None, metavar="FILE", help="TLS: its key (PEM)."),
    "authority": AUTHORITY,
    "credentials": CREDENTIALS,
    "access": typer.Option(
        None,
        metavar="FILE",
        help="Who may do what. Default: access.toml beside the topology, if there is one. SIGHUP: read it again.",
    ),
    "insecure": typer.Option(
        False, "--insecure", help="Allow connections from other machines in plain text, without TLS."
    ),
    "trace": typer.Option(False, "--trace", help="Record a trace; check it with antecede verify DIR."),
    "keep_trace": typer.Option(None, metavar="TIME", help="Delete files of the trace older than this, such as 30d."),
    "keep_trace_size": typer.Option(
        None, metavar="SIZE", help="While the trace exceeds this size, such as 20GB, delete its oldest files."
    ),
    "keep_log": typer.Option(None, metavar="TIME", help="Keep the log for this time, even if it is not needed."),
    "keep_log_size": typer.Option(None, metavar="SIZE", help="Keep this much of the log, even if it is not needed."),
    "log": typer.Option("text", help="text or json, one line per event, on standard error."),
}


class Serving(NamedTuple):
    """The options of every server."""

    durability: str
    token_file: str | None
    certificate: str | None
    key: str | None
    authority: str | None
    credentials: str | None
    access: str | None
    insecure: bool
    trace: bool
    keep_trace: str | None
    keep_trace_size: str | None
    keep_log: str | None
    keep_log_size: str | None
    log: str

    def arguments(self) -> list[str]:
        """Return these options as arguments of ``antecede serve``."""
        words = []
        for name, value in self._asdict().items():
            option = f"--{name.replace('_', '-')}"
            words += [option] if value is True else [option, value] if isinstance(value, str) else []
        return words


def serving(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of every server to a command. It receives them as its parameter ``options``."""
    own = [one for one in signature(command).parameters.values() if one.name != "options"]
    shared = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=option, annotation=Serving.__annotations__[name])
        for name, option in _serving.items()
    ]

    @wraps(command)
    def run(**given: Any) -> int:
        options = Serving(**{name: given.pop(name) for name in Serving._fields})
        return command(**given, options=options)

    parameters = [*(one.replace(kind=Parameter.KEYWORD_ONLY) for one in own), *shared]
    run.__signature__ = Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    run.__annotations__ = {**{one.name: one.annotation for one in parameters}, "return": int}
    return run
