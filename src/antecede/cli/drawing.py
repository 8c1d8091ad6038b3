"""Show the space-time diagrams of a command: in the terminal, fitted to the terminal's width, or in an SVG file."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from antecede.cli.terminal import coloured, columns, unguarded
from antecede.cli.wording import shown_name
from antecede.cli.writing import write_text
from antecede.diagram import Diagram


def print_diagram(diagram: Diagram, stream: IO[str]) -> None:
    """Print a diagram. Use colours if the stream is a terminal that can show colours. Use only ASCII characters if the
    stream cannot encode other characters."""
    encoding = (getattr(stream, "encoding", None) or "ascii").lower()
    text = diagram.text(columns(), unicode="utf" in encoding, colour=coloured(stream))
    print(text, file=unguarded(stream))


def write_svgs(diagrams: Sequence[Diagram], path: str | Path) -> None:
    """Draw several diagrams into one SVG file, one below the other. Print the name of this file on standard error."""
    from antecede.diagram.svg import draw_stack

    write_text(path, draw_stack(diagrams))
    print(f"wrote {shown_name(str(path))}", file=sys.stderr)
