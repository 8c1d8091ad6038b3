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
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from threading import Event, Thread
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from antecede.cli.wording import shown_name
from antecede.crashes import escaped
from antecede.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from antecede.diagram import Diagram

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


def write_text(path: str | Path, text: str) -> None:
    """Write a text to a file. Raise :class:`UsageError` if the file cannot be written."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def write_whole(path: str | Path, pieces: Iterable[str]) -> None:
    """Write a file so that other programs see either the complete file or no new file. Raise :class:`UsageError` if the
    file cannot be written."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            with open(temporary, "w", encoding="utf-8", errors="backslashreplace") as out:
                out.writelines(pieces)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def print_diagram(diagram: "Diagram", stream: IO[str]) -> None:
    """Print a diagram. Use colours if the stream is a terminal that can show colours. Use only ASCII characters if the
    stream cannot encode other characters."""
    encoding = (getattr(stream, "encoding", None) or "ascii").lower()
    text = diagram.text(columns(), unicode="utf" in encoding, colour=coloured(stream))
    print(text, file=unguarded(stream))


def write_svgs(diagrams: Sequence["Diagram"], path: str | Path) -> None:
    """Draw several diagrams into one SVG file, one below the other. Print the name of this file on standard error."""
    from antecede.diagram import draw_stack

    write_text(path, draw_stack(diagrams))
    print(f"wrote {shown_name(str(path))}", file=sys.stderr)


ReportStatus = Callable[[str], None]
"""A function that sets the text next to a progress bar, or the text that :func:`status` shows."""

ReportProgress = Callable[[int, int], None]
"""A function that sets two numbers of a progress bar: the number of finished steps, and the number of all steps."""

_pause_seconds = 0.2
_join_seconds = 2.0


@contextmanager
def bar(text: str) -> Iterator[tuple[ReportStatus, ReportProgress]]:
    """Show a progress bar while the context is open. Yield two functions: one sets the text of the bar, the other sets
    its numbers."""
    if not sys.stderr.isatty():
        yield lambda _: None, lambda done, total: None
        return
    from rich.progress import MofNCompleteColumn, Progress

    # The numbers of steps stand between the bar and the percentage.
    about, shape, *rest = Progress.get_default_columns()
    columns = (about, shape, MofNCompleteColumn(), *rest)
    with Progress(*columns, console=rich_console(stderr=True), transient=True) as shown:
        task = shown.add_task(text, total=None)
        yield (
            lambda text: shown.update(task, description=text),
            lambda done, total: shown.update(task, completed=done, total=total),
        )


@contextmanager
def watched(text: str, total: int, done: Callable[[], int]) -> Iterator[None]:
    """Show a progress bar while the context is open. ``done``: a function that returns how many of the ``total`` steps
    are finished. It is called at intervals, in another thread."""
    if not sys.stderr.isatty():
        yield
        return
    with bar(text) as (_, report_progress), _repeated(lambda: report_progress(min(done(), total), total)):
        yield


def line(text: str) -> None:
    """Show a text on a terminal, in place of the text that the previous call showed."""
    if sys.stderr.isatty():
        print(f"\r\033[K{escaped(text)}", end="\r", file=unguarded(sys.stderr), flush=True)


@contextmanager
def _repeated(act: Callable[[], None]) -> Iterator[None]:
    """Call ``act`` at short intervals in another thread while the context is open."""
    ended = Event()

    def watch() -> None:
        while not ended.wait(_pause_seconds):
            act()

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        # What it asks may no longer answer, for instance after Ctrl-C.
        watcher.join(_join_seconds)


class Status:
    """Shows a text on a terminal. While a counter is watched, the text also says how much of the current phase is done,
    and how much time is left.

    Show the progress of long work on a terminal: a text, how much is done, the percentage and the time left. If
    standard error is not a terminal, show nothing.

    * :func:`bar` is for work that reports each step.
    * :func:`watched` is for work that would become slower if it reported each step. The work only counts its steps, and
      another thread reads the counter at intervals.
    * :func:`status` is for work in several phases. The work sets a text for each phase, and may pass a counter of the
      current phase.
    * :func:`line` is for many short pieces of work. Each call shows one line in place of the previous line.
    """

    def __init__(self, show: ReportStatus, text: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._show, self._clock = show, clock
        self(text)

    def __call__(self, text: str) -> None:
        """Begin a phase of the work, and show its text."""
        self._text, self._began = text, self._clock()
        self._show(text)

    @contextmanager
    def watch(self, counter: Callable[[], tuple[int, int] | None]) -> Iterator[None]:
        """Call ``counter`` at intervals while the context is open, and show its two numbers: the finished tasks and all
        tasks. ``counter`` returns None if the numbers are not known."""
        with _repeated(lambda: self.tell(counter())):
            yield

    def tell(self, counted: tuple[int, int] | None) -> None:
        """Show the progress of the current phase. ``counted``: the number of finished tasks and the number of all
        tasks. It is None if these numbers are not known. Then the shown text does not change."""
        if counted is None or not counted[1]:
            return
        done, total = counted
        text = f"{self._text}: {done / total:.0%} ({done:,} of {total:,} tasks)"
        if done:
            left = (self._clock() - self._began) * (total - done) / done
            text += f", {left:.0f} s left"
        self._show(text)


@contextmanager
def status(text: str) -> Iterator[ReportStatus]:
    """Show a text on a terminal while the context is open. Yield a function that changes the text. If standard error is
    a terminal, this function is a :class:`Status`."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with rich_console(stderr=True).status(text) as shown:
        yield Status(lambda text: shown.update(text), text)
