"""The seeds of a search for a planted bug: the seed that found it in an earlier run comes first.

``tests/planted/seeds.json`` contains such seeds for the slow searches. It only saves time: if a seed in it no longer
finds the bug, because a world has changed, the search tries all others. To write the entries of some tests again:
``ANTECEDE_WRITE_SEEDS=1 ./run test -n 0 tests/planted``.
"""

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_file = Path(__file__).resolve().parents[1] / "planted" / "seeds.json"
_writing = "ANTECEDE_WRITE_SEEDS" in os.environ
_quick = 5
"""A search that finds its bug within this number of schedules needs no entry."""


_found: dict[str, list[int]] = {}


@cache
def _known() -> dict[str, list[int]]:
    return json.loads(_file.read_text())


def seeds(budget: int) -> Iterator[int]:
    """Yield all seeds below ``budget``, those that found the bug of the current test in an earlier run first."""
    known = [] if _writing else [seed for seed in _known().get(_test(), ()) if seed < budget]
    yield from known
    yield from (seed for seed in range(budget) if seed not in known)


def note(seed: int) -> None:
    """Note that this seed has found the bug of the current test, if the file is being written."""
    if _writing:
        _found.setdefault(_test(), []).append(seed)
        slow = {test: seeds for test, seeds in {**_known(), **_found}.items() if max(seeds) >= _quick}
        _file.write_text(json.dumps(slow, indent=1, sort_keys=True) + "\n")


def _test() -> str:
    return os.environ["PYTEST_CURRENT_TEST"].rpartition("/")[2].rpartition(" ")[0]
