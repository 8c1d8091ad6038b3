"""One driver for all campaigns: seeds → worker processes → report.

A campaign is a function that plays one seed and returns its counts and findings. The seeds are played in several
processes, their counts are added up in the sequence of the seeds, and the first findings end the campaign. A report
file keeps the sums, so that the same command continues an interrupted campaign, or makes a finished one longer.
"""

import json
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

Played = tuple[Mapping[str, int], list[str]]
"""What one seed gives: counts, and a text for each finding."""

_save_seconds = 1.0


class Sums(msgspec.Struct):
    """What is known of one campaign."""

    first: int = 0
    seeds: int = 0
    """The number of seeds that were played, from ``first`` on."""
    seconds: float = 0.0
    counts: dict[str, int] = {}
    largest: dict[str, int] = {}
    """Figures of which the largest matters, such as peaks of memory. Their names end with ``_max``."""
    found: list[str] = []

    def add(self, played: Played) -> None:
        counts, found = played
        self.seeds += 1
        self.found += found
        for name, count in counts.items():
            if name.endswith("_max"):
                self.largest[name] = max(self.largest.get(name, 0), count)
            else:
                self.counts[name] = self.counts.get(name, 0) + count

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {count:,}" for name, count in (self.counts | self.largest).items() if count)
        return f"{self.seeds:,} seeds in {self.seconds:,.0f} s: {figures or 'nothing'}"


def run(
    name: str,
    play: Callable[[int], Played],
    seeds: int,
    first: int = 0,
    jobs: int = 1,
    report: Path | None = None,
    show: Callable[[str], None] = lambda text: None,
) -> Sums:
    """Play ``seeds`` seeds in total, from ``first`` on; those in the report count."""
    sums = _read(report, name, first)
    before, begun, saved = sums.seconds, monotonic(), 0.0
    with _players(play, jobs) as played_all:
        for played in played_all(range(first + sums.seeds, first + seeds)) if not sums.found else ():
            sums.add(played)
            sums.seconds = round(before + monotonic() - begun, 1)
            if sums.found or sums.seeds == seeds or monotonic() - saved > _save_seconds:
                saved = monotonic()
                _write(report, name, sums)
                show(f"{name}: {sums}")
            if sums.found:
                break
    return sums


@contextmanager
def _players(play: Callable[[int], Played], jobs: int) -> Iterator[Callable[[range], Iterator[Played]]]:
    if jobs == 1:
        yield partial(map, partial(_played, play))
        return
    # Forked workers know the function, even if its module is a test.
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("fork"))
    try:
        yield lambda seeds: pool.map(partial(_played, play), seeds, chunksize=max(1, min(50, len(seeds) // jobs // 20)))
    finally:
        pool.shutdown(cancel_futures=True)


def _played(play: Callable[[int], Played], seed: int) -> Played:
    try:
        counts, found = play(seed)
    except Exception:
        return {}, [f"seed {seed}: {traceback.format_exc()}"]
    return counts, [text if text.startswith("seed ") else f"seed {seed}: {text}" for text in found]


def _document(path: Path | None) -> dict[str, Any]:
    return {} if path is None or not path.exists() else json.loads(path.read_text())


def _read(path: Path | None, name: str, first: int) -> Sums:
    kept = _document(path).get(name)
    sums = Sums(first) if kept is None else msgspec.convert(kept, Sums)
    assert sums.first == first, f"{path}: {name} begins with seed {sums.first}, expected --first {sums.first}"
    return sums


def _write(path: Path | None, name: str, sums: Sums) -> None:
    if path is not None:
        beside = path.with_name(path.name + ".new")
        beside.write_text(json.dumps(_document(path) | {name: msgspec.to_builtins(sums)}, indent=1))
        os.replace(beside, path)
