"""Option values that need no conversion are passed on without pydantic.

typer converts every value with pydantic, even a text that stays a text. Loading pydantic takes longer than most
commands. So values that already have the type of their option are passed on as they are. typer converts only the
others, for example the text of a number.
"""

from collections.abc import Iterable
from typing import Any


def without_conversion(options: Iterable[Any]) -> None:
    """Let these options pass on values that already have their type, without typer's conversion."""
    for option in options:
        # typer keeps its converter there. An option without that stays as it is.
        if getattr(option, "_runtime_param", option) is None:
            option._runtime_param = _Values()


class _Values:
    """A replacement for typer's converter of one option."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value that a command gets."""
        about = param.type_descriptor
        kind, several = about.annotation, param.multiple or param.nargs == -1
        plain = about.parameter_info.parser is None and not (about.is_path or about.is_file)
        if plain and not several and (value is None or (kind in (str, int, float) and type(value) is kind)):
            return value
        if plain and several and kind == list[str] and isinstance(value, list | tuple):
            return [str(one) for one in value]
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)
