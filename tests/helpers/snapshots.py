"""What people read, in files under ``tests/snapshots``: one section per text.

A test calls the fixture ``reads`` with a text that a person reads. ``./run test --update`` writes the texts, and a
reviewer reads the change. Delete a file before an update to remove the sections of tests that are gone.
"""

import fcntl
import re
from pathlib import Path

_title = re.compile(r"^===== (.*)\n", re.MULTILINE)


class Snapshots:
    """The texts of one test."""

    def __init__(self, file: Path, test: str, hidden: dict[str, str], update: bool) -> None:
        self._file, self._test, self._update = file, test, update
        self._hidden = hidden
        """What differs between two runs, as a regular expression, and what stands for it."""
        self._count = 0

    def __call__(self, text: str) -> None:
        """Compare a text with its section, or write the section."""
        self._count += 1
        title = self._test if self._count == 1 else f"{self._test} ({self._count})"
        for pattern, name in self._hidden.items():
            text = re.sub(pattern, name, text)
        text = "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
        if self._update:
            self._write(title, text)
            return
        known = _sections(self._file)
        assert title in known, f"no snapshot: ./run test --update {self._file.stem}"
        assert text == known[title], "if this is what people shall read: ./run test --update"

    def _write(self, title: str, text: str) -> None:
        self._file.parent.mkdir(exist_ok=True)
        with open(self._file, "a") as file:
            # Tests of one file may run in several processes.
            fcntl.flock(file, fcntl.LOCK_EX)
            sections = _sections(self._file) | {title: text}
            whole = "".join(f"===== {name}\n{said}\n\n" for name, said in sorted(sections.items()))
            self._file.write_text(whole.rstrip("\n") + "\n")


def _sections(file: Path) -> dict[str, str]:
    """Return the texts of a file by their titles."""
    if not file.exists():
        return {}
    parts = _title.split(file.read_text())
    return {title: text.strip("\n") for title, text in zip(parts[1::2], parts[2::2], strict=True)}
