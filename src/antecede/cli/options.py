"""Options that several commands share: single options, and groups of options. A command takes a whole group as one
parameter."""

import re
from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from antecede.errors import UsageError

if TYPE_CHECKING:
    from antecede.live.recorder import Keep

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


def without_conversion(options: Iterable[Any]) -> None:
    """Change these options so that typer converts fewer values. If a value already has the type of its option, typer
    does not convert it.

    typer converts every value with pydantic, even a text for an option that is a text. Loading pydantic takes longer
    than most commands. So a value that already has the type of its option goes to the command unchanged. typer converts
    only other values, for example the text "5" for an option that is a number.
    """
    for option in options:
        # typer keeps its converter there. An option without that stays as it is.
        if getattr(option, "_runtime_param", option) is None:
            option._runtime_param = _Values()


class _Values:
    """A replacement for typer's converter of one option."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value for the command. A value that needs no conversion is returned unchanged. Any other value is
        converted by typer."""
        about = param.type_descriptor
        kind, several = about.annotation, param.multiple or param.nargs == -1
        plain = about.parameter_info.parser is None and not (about.is_path or about.is_file)
        if plain and not several and (value is None or (kind in (str, int, float) and type(value) is kind)):
            return value
        if plain and several and kind == list[str] and isinstance(value, list | tuple):
            return [str(one) for one in value]
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


_seconds = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_bytes = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_amount = re.compile(r"(\d{1,12})\s*([A-Za-z]+)")


def seconds(option: str, text: str | None) -> float | None:
    """Read a time such as 30d. Return it in seconds, or None if ``text`` is None. Error messages begin with
    ``option``."""
    return None if text is None else float(_read(option, text, _seconds, "a time such as 30d, 12h, 90m or 60s"))


def size(option: str, text: str | None) -> int | None:
    """Read a size such as 20GB. Return it in bytes, or None if ``text`` is None. Error messages begin with
    ``option``."""
    return None if text is None else _read(option, text, _bytes, "a size such as 20GB or 500MB")


def check_serving(options: "Serving") -> "Keep":
    """Check the options of a server. Return the limits of age and size for its trace and its log.

    Amounts on the command line: a time such as 30d or 12h, a size such as 20GB.
    """
    from antecede import limits
    from antecede.live.recorder import Keep
    from antecede.recording.segments import check_converter

    if options.log not in ("text", "json"):
        raise UsageError(f"--log {options.log}: expected text or json")
    keep = Keep(
        seconds("--keep-trace", options.keep_trace),
        size("--keep-trace-size", options.keep_trace_size),
        seconds("--keep-log", options.keep_log),
        size("--keep-log-size", options.keep_log_size),
    )
    if keep.log_bytes is not None and keep.log_bytes > limits.store_log_bytes_max // 2:
        raise UsageError(
            f"--keep-log-size {options.keep_log_size}: expected at most {limits.store_log_bytes_max // 2 >> 30} GiB "
            f"({limits.store_log_bytes_max // 2} bytes), which is half of the maximum size of a log"
        )
    if options.trace:
        check_converter()
    if not options.trace and (options.keep_trace or options.keep_trace_size):
        raise UsageError(f"--keep-trace{'' if options.keep_trace else '-size'}: there is no trace without --trace")
    return keep


def _read(option: str, text: str, units: dict[str, int], expected: str) -> int:
    found = _amount.fullmatch(text.strip())
    if found is None or found[2] not in units:
        raise UsageError(f"{option} {text}: expected {expected}")
    return int(found[1]) * units[found[2]]
