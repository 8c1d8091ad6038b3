"""Options that several commands share: single options, and groups of options. A command takes a whole group as one
parameter."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any, NamedTuple

import typer

JSON = typer.Option(False, "--json", help="Print one JSON document.")

WHERE = typer.Argument(..., metavar="TOPOLOGY|ADDRESS", help="Topology file, or tcp://HOST:PORT.")
TOPOLOGY = typer.Argument(..., metavar="TOPOLOGY", help="Topology file (TOML).")
CLIENT = typer.Option(
    None,
    metavar="NAME",
    help="Name of the client. The server keeps this client and its mailbox. Default: a temporary client, deleted at "
    "the end.",
)

TRACES = typer.Argument(
    ...,
    metavar="TRACE",
    help="The trace: files, folders, patterns or data directories of servers; - is standard input.",
)
SINCE = typer.Option(None, "--since", metavar="TIME", help="Read only rows from this time on.")
UNTIL = typer.Option(None, "--until", metavar="TIME", help="Read only rows before this time.")
PROCESSES = typer.Option(None, "--processes", metavar="A,B,…", help="Read only rows of these processes.")
CONFLICTS = typer.Option(
    None,
    "--conflicts",
    metavar="FILE",
    help="File with the table of conflicting operations, if the trace has no such table.",
)
ENGINE = typer.Option("auto", "--engine", help="Engine that reads the trace: auto, plain (no Spark) or spark.")
MASTER = typer.Option(None, "--master", metavar="URL", help="URL of the Spark master.")
CONF = typer.Option(None, "--conf", metavar="KEY=VALUE", help="Spark setting; may be repeated.")

_authority = typer.Option(
    None,
    "--authority",
    metavar="FILE",
    help="TLS: certificate of the authority that signed the servers' certificates (PEM).",
)
_credentials = typer.Option(
    None,
    "--credentials",
    metavar="DIR",
    help="Folder with the keys of one identity (server, client or operator), or of all identities. Default: "
    "credentials/ in the folder of the topology file, if this folder also contains access.toml.",
)


class Keys(NamedTuple):
    """The options by which a command identifies itself to servers."""

    token_file: str | None = typer.Option(None, metavar="FILE", help="File with the servers' token.")
    authority: str | None = _authority
    credentials: str | None = _credentials


class Serving(NamedTuple):
    """The options that ``antecede serve`` and ``antecede up`` share: they apply to every server that the command
    runs."""

    durability: str = typer.Option(
        "disk",
        help="Durability of the data: disk (survives a power cut), os (survives a kill) or memory (survives neither).",
    )
    token_file: str | None = typer.Option(
        None, metavar="FILE", help="File with the token that clients and peers must send."
    )
    certificate: str | None = typer.Option(None, metavar="FILE", help="TLS: certificate of the servers (PEM).")
    key: str | None = typer.Option(None, metavar="FILE", help="TLS: key of the certificate (PEM).")
    authority: str | None = _authority
    credentials: str | None = _credentials
    access: str | None = typer.Option(
        None,
        metavar="FILE",
        help="File that lists who may do what. SIGHUP makes a server read the file again. Default: access.toml in the "
        "folder of the topology file, if it exists.",
    )
    insecure: bool = typer.Option(
        False,
        "--insecure",
        help="Allow plain-text connections from other machines. Also allow a start if credentials/ exists but "
        "access.toml is missing.",
    )
    trace: bool = typer.Option(
        False, "--trace", help="Record a trace in the data directory. To check the trace, run `antecede verify DIR`."
    )
    keep_trace: str | None = typer.Option(
        None,
        metavar="TIME",
        help="Delete trace files that are older than this time, such as 30d. Default: keep all trace files.",
    )
    keep_trace_size: str | None = typer.Option(
        None,
        metavar="SIZE",
        help="Delete the oldest trace files when all files together exceed this size, such as 20GB. Default: keep "
        "all trace files.",
    )
    keep_log: str | None = typer.Option(
        None,
        metavar="TIME",
        help="Keep old log segments, which a restart does not need, for this time, such as 7d. Default: delete them.",
    )
    keep_log_size: str | None = typer.Option(
        None,
        metavar="SIZE",
        help="Keep old log segments up to this total size, such as 2GB. With --keep-log, both limits apply.",
    )
    log: str = typer.Option("text", help="Log format on standard error: text or json.")

    def arguments(self) -> list[str]:
        """Return these options as arguments of ``antecede serve``."""
        words = []
        for name, value in self._asdict().items():
            option = f"--{name.replace('_', '-')}"
            words += [option] if value is True else [option, value] if isinstance(value, str) else []
        return words


KEYS, SERVING = Keys(), Serving()
"""The default values of parameters of the types :class:`Keys` and :class:`Serving`."""


def expanded(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace each group of options of a command by single options, and return the resulting command. A group is a
    parameter whose type is a NamedTuple. Each field of the NamedTuple becomes one option."""
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
