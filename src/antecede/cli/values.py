"""Pass command-line values to a command without pydantic, if the values need no conversion.

typer converts every value with pydantic, even a text for an option that is a text. Loading pydantic takes longer than
most commands. So a value that already has the type of its option goes to the command unchanged. typer converts only
other values, for example the text "5" for an option that is a number.
"""

from collections.abc import Iterable
from typing import Any


def without_conversion(options: Iterable[Any]) -> None:
    """Change these options so that typer converts fewer values. If a value already has the type of its option, typer
    does not convert it."""
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
