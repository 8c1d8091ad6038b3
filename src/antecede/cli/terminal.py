"""What commands print. Control characters in printed texts are escaped (:func:`guarded_output`).

The lines of a report are coloured and wrapped on a terminal, and unchanged in a file or pipe.

Colours follow the convention of https://no-color.org: if the environment variable ``NO_COLOR`` is not empty, there are
no colours. There are also no colours if ``TERM`` is ``dumb``. A line that is too long for the terminal is wrapped.
The continuation of the line is indented, so that a list stays readable even at 60 columns.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from textwrap import wrap
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from antecede.crashes import escaped

if TYPE_CHECKING:
    from rich.console import Console

_good, _bad, _quiet = "32", "1;31", "2"
_styles = [
    (re.compile(r"^(\w+ +)(holds)$"), _good),
    (re.compile(r"^(\w+ +)(violated.*)$"), _bad),
    (re.compile(r"^(\w+ order )(holds)(?=:)"), _good),
    (re.compile(r"^(\w+ order )(is broken)(?=:)"), _bad),
    (re.compile(r"^(.* (?:is|are) )(late)(?= under )"), _bad),
    (re.compile(r"^( *\d+  .* )(late)(?=:$)"), _bad),
    (re.compile(r"^()(no races)(?=:)"), _good),
    (re.compile(r"^()([\d.,]+ s, [\d,]+ events/s, .*|engine \w+)$"), _quiet),
]
"""Patterns for the lines of a report, each with a colour. If a line matches, the text of the pattern's second group is
printed in this colour."""


class _Guarded:
    """A stream that escapes control characters. ``rich_proxied_file`` is the stream below it: Rich, which prints help,
    tables and progress, looks for this attribute and writes its own control sequences there."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(escaped(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def guarded_output() -> Iterator[None]:
    """Escape control characters in everything that is printed while the context is open. What a command itself sends
    to control the terminal passes through :func:`unguarded` or :func:`rich_console`."""
    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast(TextIO, _Guarded(out)), cast(TextIO, _Guarded(err))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err


def unguarded(stream: IO[str]) -> IO[str]:
    """Return the stream to which colours and cursor movements can be written."""
    return getattr(stream, "rich_proxied_file", stream)


def rich_console(**settings: Any) -> "Console":
    """Return a console of Rich that escapes the control characters of the texts that it shows."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class GuardedConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=escaped(segment.text))

    return GuardedConsole(**settings)


def coloured(stream: IO[str]) -> bool:
    """Return True if the stream is a terminal that can show colours, and ``NO_COLOR`` is empty or not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def columns() -> int:
    """Return the width of the terminal in columns, but at least 20. If the width is not known, return 100."""
    return max(20, shutil.get_terminal_size((100, 24)).columns)


def show(lines: Iterable[str], stream: IO[str] | None = None) -> None:
    """Print the lines of a report. On a terminal, wrap and colour the lines."""
    stream = sys.stdout if stream is None else stream
    if not stream.isatty():
        print("\n".join(lines), file=stream)
        return
    paints = coloured(stream)
    for line in lines:
        for part in _wrapped(line, columns()):
            print(_painted(escaped(part)) if paints else escaped(part), file=unguarded(stream))


def tell(report: dict[str, Any], as_json: bool, lines: Callable[[dict[str, Any]], Iterable[str]]) -> None:
    """Print a report: as one JSON document, or as the lines of text that ``lines`` makes from it."""
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        show(lines(report))


def _wrapped(line: str, width: int) -> Iterator[str]:
    if len(line) <= width:
        yield line
        return
    # Continued below the text, behind a number or the name of a figure.
    lead = re.match(r" *(?:\d+  )?(?:[\w/]+ {2,})?", line)
    indent = min(len(lead[0]) if lead else 0, width // 3)
    yield from wrap(
        line,
        width,
        subsequent_indent=" " * (indent + (2 if indent == 0 else 0)),
        drop_whitespace=True,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def _painted(line: str) -> str:
    for pattern, code in _styles:
        if match := pattern.match(line):
            start, end = match.span(2)
            return f"{line[:start]}\x1b[{code}m{line[start:end]}\x1b[0m{line[end:]}"
    return line
