"""Functions with which commands write files."""

import os
from collections.abc import Iterable
from pathlib import Path

from antecede.errors import UsageError


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
