"""The results of a campaign (a series of rounds). A file keeps them, so that the campaign can be interrupted and
continued."""

import json
import os
from pathlib import Path
from typing import Any

from antecede.errors import UsageError


class Report:
    """The results of the rounds of one campaign, oldest first. They are saved in the file ``path``. If this file
    already exists, its rounds are read at the start. If ``path`` is None, nothing is saved."""

    def __init__(self, path: str | None, kind: str) -> None:
        self.kind = kind
        self.rounds: list[dict[str, Any]] = []
        self._path = None if path is None else Path(path)
        if self._path is not None and self._path.exists():
            self.rounds = self._read(self._path)

    def _read(self, path: Path) -> list[dict[str, Any]]:
        try:
            document = json.loads(path.read_text())
            kind, rounds = document["campaign"], document["rounds"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} is not the report of a campaign ({error}): name another file") from None
        if kind != self.kind:
            raise UsageError(f"{path} is a report of the campaign {kind}, expected {self.kind}: name another file")
        return list(rounds)

    def total(self, key: str) -> int:
        """Return the sum of the figure ``key`` over all rounds."""
        return sum(int(one.get(key, 0)) for one in self.rounds)

    @property
    def found(self) -> list[str]:
        """All errors, each with the seed of its round."""
        return [f"seed {one['seed']}: {line}" for one in self.rounds for line in one["found"]]

    def next_seed(self, first: int) -> int:
        """Return the seed of the next round. It is larger than all seeds so far, and at least ``first``."""
        return max([first, *(int(one["seed"]) + 1 for one in self.rounds)])

    def add(self, round_: dict[str, Any]) -> None:
        """Add the result of a round. If the report has a file, also write the file before this method returns."""
        self.rounds.append(round_)
        if self._path is not None:
            text = json.dumps({"campaign": self.kind, "rounds": self.rounds}, indent=1)
            beside = self._path.with_name(self._path.name + ".new")
            beside.write_text(text)
            os.replace(beside, self._path)
