"""Options that several commands share: one by one, or as a group that a command takes as one parameter."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any, NamedTuple

import typer

JSON = typer.Option(False, "--json", help="Print one JSON document on standard output.")

WHERE = typer.Argument(..., metavar="TOPOLOGY|ADDRESS", help="A topology file, or tcp://HOST:PORT.")
TOPOLOGY = typer.Argument(..., metavar="TOPOLOGY", help="A topology file (TOML).")
CLIENT = typer.Option(
    None,
    metavar="NAME",
    help="The client's durable name. Default: a temporary client, deleted when the command ends.",
)

TRACES = typer.Argument(
    ..., metavar="TRACE", help="Files, folders, data directories of servers, patterns; - is standard input."
)
SINCE = typer.Option(None, "--since", metavar="TIME", help="Only rows from this time on.")
UNTIL = typer.Option(None, "--until", metavar="TIME", help="Only rows before this time.")
PROCESSES = typer.Option(None, "--processes", metavar="A,B,…", help="Only rows of these processes.")
CONFLICTS = typer.Option(
    None, "--conflicts", metavar="FILE", help="The table of conflicting operations, if the trace has none."
)
ENGINE = typer.Option("auto", "--engine", help="The engine: auto, plain (in the process of this command) or spark.")
MASTER = typer.Option(None, "--master", metavar="URL", help="The Spark master.")
CONF = typer.Option(None, "--conf", metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")

_authority = typer.Option(
    None, "--authority", metavar="FILE", help="TLS: the authority that signs the servers' certificates."
)
_credentials = typer.Option(
    None,
    "--credentials",
    metavar="DIR",
    help="The folder that antecede credentials made, or the folder of one identity in it. Default: credentials/ beside "
    "the topology, if access.toml is beside the topology, too.",
)


class Keys(NamedTuple):
    """The options by which a command identifies itself to servers."""

    token_file: str | None = typer.Option(None, metavar="FILE", help="A file with the servers' token.")
    authority: str | None = _authority
    credentials: str | None = _credentials


class Serving(NamedTuple):
    """The options of every server."""

    durability: str = typer.Option(
        "disk", help="disk (survives a power cut), os (survives a kill), memory (survives neither)."
    )
    token_file: str | None = typer.Option(
        None, metavar="FILE", help="A file with the token that clients and peers must send."
    )
    certificate: str | None = typer.Option(None, metavar="FILE", help="TLS: the certificate of the servers (PEM).")
    key: str | None = typer.Option(None, metavar="FILE", help="TLS: the key of the certificate (PEM).")
    authority: str | None = _authority
    credentials: str | None = _credentials
    access: str | None = typer.Option(
        None,
        metavar="FILE",
        help="Who may do what. Default: access.toml beside the topology, if it exists. It is read again on SIGHUP.",
    )
    insecure: bool = typer.Option(
        False,
        "--insecure",
        help="Allow plain-text connections from other machines. Also allow a start if credentials/ exists, but "
        "access.toml does not.",
    )
    trace: bool = typer.Option(False, "--trace", help="Record a trace; check it with antecede verify DIR.")
    keep_trace: str | None = typer.Option(
        None, metavar="TIME", help="Delete trace files that are older than this, such as 30d. Default: no limit."
    )
    keep_trace_size: str | None = typer.Option(
        None,
        metavar="SIZE",
        help="While the trace exceeds this size, such as 20GB, delete its oldest files. Default: no limit.",
    )
    keep_log: str | None = typer.Option(
        None,
        metavar="TIME",
        help="Keep log segments that recovery no longer needs, until they are older than this, such as 7d. Default: "
        "delete them, unless --keep-log-size is given.",
    )
    keep_log_size: str | None = typer.Option(
        None,
        metavar="SIZE",
        help="Keep such segments up to this size, such as 2GB. With --keep-log, both limits apply.",
    )
    log: str = typer.Option("text", help="text or json, one line per event, on standard error.")

    def arguments(self) -> list[str]:
        """Return these options as arguments of ``antecede serve``."""
        words = []
        for name, value in self._asdict().items():
            option = f"--{name.replace('_', '-')}"
            words += [option] if value is True else [option, value] if isinstance(value, str) else []
        return words


KEYS, SERVING = Keys(), Serving()
"""Defaults of parameters that are groups of options."""


def expanded(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command whose parameters are options only. A parameter whose type is a NamedTuple is replaced by one
    option for each of its fields."""
    groups = {name: kind for name, kind in command.__annotations__.items() if hasattr(kind, "_field_defaults")}
    if not groups:
        return command
    parameters: list[Parameter] = []
    for one in signature(command).parameters.values():
        own = one.replace(kind=Parameter.KEYWORD_ONLY)
        fields = groups[one.name].__annotations__ if one.name in groups else {}
        defaults = one.annotation._field_defaults if fields else {}
        options = [own.replace(name=name, default=defaults[name], annotation=kind) for name, kind in fields.items()]
        parameters += options or [own]

    @wraps(command)
    def run(**given: Any) -> Any:
        for name, group in groups.items():
            given[name] = group(*(given.pop(field) for field in group._fields))
        return command(**given)

    run.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run
