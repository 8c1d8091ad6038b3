"""Chunks of time against the plain oracle: cuts, halos, tiers, and counters at their bound.

Chunks are as short as one event, halos as short as none, and cuts come from every proposal that there is, and from an
order of the events, one cut behind each. A failure names its seed.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from antecede.pipeline.flow import Here, HereParts
from antecede.pipeline.judge import chunks
from antecede.pipeline.judge.chunks import Cuts, Grain, dealt, planned
from antecede.pipeline.judge.trace import Trace, verdict_on
from antecede.pipeline.kernels.cuts import lower
from antecede.pipeline.kernels.texts import WIDE
from antecede.pipeline.match import Lines, Walk
from antecede.pipeline.pieces import Dealt, Deliveries, Timed, pack, pack_struct, read_dealt, read_judged, unpack
from antecede.pipeline.read.encode import Layout
from antecede.pipeline.read.splits import plan
from antecede.trace import Event, verify, write_trace


def _grain(seed: int) -> Grain:
    return Grain(
        chunk_events=(1, 2, 3, 5, 9, 40)[seed % 6],
        chunk_units=(1, 2, 8)[seed // 6 % 3],
        halo_units=(0, 1, 2)[seed // 18 % 3],
        segments=1 + seed % 7,
        lanes_max=(None, 1, 2)[seed % 3],
    )


def _traced(path: Path, seed: int) -> Trace:
    narrow = WIDE if seed % 2 else 15 >> seed % 5
    layout = Layout(places=1 + seed % 3, buckets=1 + seed % 5, narrow=narrow, timed=seed % 4 < 2)
    return Trace(Here(), plan([str(path)], tasks=3, rows_max=7, bytes_max=150 + seed % 97), layout)


def _every_cut(lines: Lines) -> bytes:
    """A cut behind each event, in the order of a walk; the lines must have no circles."""
    walk = Walk(lines, 5)
    bounds = []
    at = np.zeros(lines.processes, np.int64)
    for count in walk:
        for process, begin, end in zip(*(column[:count] for column in walk.segments), strict=True):
            for position in range(begin + 1, end + 1):
                at[process] = lines.index_at(lines.offsets[[process]] + position - 1)[0] + 1
                bounds.append(at.copy())
    return pack({"bounds": np.array(bounds, np.int64).reshape(len(bounds), lines.processes).ravel()})


def busy_trace(seed: int) -> list[Event]:
    """Some hundred events of a few processes: links that reorder a little or a lot, self-sends, multicasts, losses,
    destinations unknown or none, and some messages that take their time."""
    random = Random(f"busy {seed}")
    names = [f"p{k}" for k in range(random.randint(2, 6))]
    window = random.choice((1, 2, 4, 10, 40))
    lost, slow = random.choice((0.0, 0.1)), random.choice((0.0, 0.05, 0.2))
    rows: list[Event] = []
    counts = dict.fromkeys(names, 0)

    def add(process: str, kind: str, message: str | None, to: tuple[str, ...] | None = None) -> None:
        moment = len(rows) * 10 + random.randint(-15, 15)
        rows.append(Event(process, counts[process], kind, message, to, time=moment))
        counts[process] += 1

    air: list[tuple[str, str]] = []
    kept: list[tuple[str, str]] = []
    for number in range(random.randint(20, 80)):
        sender = random.choice(names)
        to = tuple(sorted(random.sample(names, random.choice((0, 1, 1, 1, 2, len(names))))))
        add(sender, "send", f"m{number}", None if random.random() < 0.1 else to)
        for name in to:
            if random.random() >= lost:
                (kept if random.random() < slow else air).append((name, f"m{number}"))
        while len(air) > window:
            add(*_with("deliver", air.pop(random.randrange(len(air)))))
        if random.random() < 0.05:
            add(random.choice(names), "local", None)
    for copy in random.sample(air, len(air)) + random.sample(kept, len(kept)):
        add(*_with("deliver", copy))
    return rows


def _with(kind: str, copy: tuple[str, str]) -> tuple[str, str, str]:
    return copy[0], kind, copy[1]


def test_chunks_say_what_the_oracle_says(
    tmp_path: Path, random_trace: Callable[[int], list[Event]], seeds: int, spoken: Any
) -> None:
    path = tmp_path / "t.parquet"
    late = 0
    for seed in range(seeds):
        write_trace(path, random_trace(seed) if seed % 2 else spoken.dressed(busy_trace(seed), seed))
        wanted = spoken.judged(verify([path], spoken.ALL))
        trace = _traced(path, seed)
        found = verdict_on(trace, spoken.ALL, causal="chunks", grain=_grain(seed)).report
        assert spoken.judged(found) == wanted, f"seed {seed}"
        late += wanted["orders"]["causal"]["late"]
    assert seeds < 100 or late > 1000


def test_every_event_a_unit(tmp_path: Path, seeds: int, spoken: Any) -> None:
    path = tmp_path / "t.parquet"
    tiers: set[int] = set()
    for seed in range(seeds // 3):
        write_trace(path, busy_trace(seed))
        trace = _traced(path, seed)
        bounds = unpack(trace.on_lines(_every_cut))["bounds"].reshape(-1, len(trace.names)).T
        cuts = Cuts.of(bounds, trace.ends)
        assert cuts.units == trace.rows, f"seed {seed}"
        outcome = verdict_on(trace, ("fifo", "causal"), True, "chunks", grain=_grain(seed), cuts=cuts)
        assert spoken.judged(outcome.report) == spoken.judged(verify([path], late=tmp_path)), f"seed {seed}"
        rows = [msgspec.json.decode(line) for line in (tmp_path / "late.jsonl").read_bytes().splitlines()]
        assert _sorted(outcome.late) == _sorted(rows), f"seed {seed}"
        unit = np.arange(cuts.units, dtype=np.int32)
        tiers |= set(_grain(seed).tier_of(np.zeros_like(unit), unit)[0].tolist())
    assert seeds < 100 or tiers >= {0, 1, 2, 3}


def _sorted(rows: Any) -> list[Any]:
    return sorted(rows, key=lambda row: msgspec.json.encode(sorted(row.items())))


def test_a_cycle_lies_within_a_chunk_and_is_told_once(
    tmp_path: Path, random_trace: Callable[[int], list[Event]], seeds: int, spoken: Any
) -> None:
    path = tmp_path / "t.parquet"
    rows = [
        Event("a", 0, "deliver", "y"),
        Event("a", 1, "send", "x", ("b",)),
        Event("b", 0, "deliver", "x"),
        Event("b", 1, "send", "y", ("a",)),
    ]
    for seed in range(20):
        among = spoken.several([busy_trace(seed), rows, busy_trace(seed + 1), rows])
        write_trace(path, among)
        wanted = spoken.judged(verify([path]))
        assert wanted["quarantined"] == {"cycle": 4}
        found = verdict_on(_traced(path, seed), ("fifo", "causal"), causal="chunks", grain=_grain(seed)).report
        assert spoken.judged(found) == wanted, f"seed {seed}"


def _forgetful(packed: Any, plan: Any) -> Any:
    """Deal the rows, but leave out the messages that are sent in a halo."""
    for number, blob in dealt(packed, plan):
        said = read_dealt(blob)
        task = plan.tasks[number]
        core = plan.cuts.edge(task.core) - plan.cuts.edge(task.start)
        keep = said.deliveries.sent < core[said.deliveries.source]
        yield number, pack_struct(Dealt(number, said.deliveries.some(keep), said.mine[keep]))


def test_a_halo_that_carries_nothing_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoken: Any) -> None:
    path = tmp_path / "t.parquet"
    missed = whole = 0
    for seed in range(30):
        write_trace(path, busy_trace(seed))
        wanted = verify([path])["orders"]["causal"]["late"]
        grain = Grain(chunk_events=8, chunk_units=2)
        trace = _traced(path, seed)
        with monkeypatch.context() as planted:
            planted.setattr(chunks, "dealt", _forgetful)
            found = verdict_on(trace, ("causal",), causal="chunks", grain=grain).report["orders"]["causal"]["late"]
        missed += wanted - found
        whole += wanted
    assert missed > whole // 20


@pytest.mark.parametrize("sends", [65_534, 65_535, 65_536, 70_000])
@pytest.mark.parametrize("halo", [0, 3])
def test_counters_at_their_bound(sends: int, halo: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process sends, the last two are delivered the wrong way round; behind the core it sends some more."""
    found = _late_of_the_last_two(sends, halo)
    assert found == 1
    assert chunks.counter_type(np.array([sends])) == (np.uint16 if sends <= 65_535 else np.int32)
    monkeypatch.setattr(chunks, "counter_type", lambda core: np.uint16)
    assert _late_of_the_last_two(sends, halo) == (1 if sends <= 65_535 else 0), "a counter that wraps must be seen to"


def _late_of_the_last_two(sends: int, halo: int) -> int:
    delivered = np.array([sends - 1, sends - 2, *range(sends, sends + halo)])
    receiver, sender = np.ones(len(delivered), np.int32), np.zeros(len(delivered), np.int32)
    piece = Timed(2, sends + halo, Deliveries(receiver, np.arange(len(delivered)), sender, delivered))
    ends = np.array([sends + halo, len(delivered)])
    parts = HereParts([(0, pack_struct(piece))], 1)
    # One cut, right behind the last send and before all deliveries: they are the halo.
    cuts = Cuts.of(np.array([[sends], [0]]), ends)
    grain = Grain(chunk_units=1)
    what = planned(parts, [0], ends, np.zeros(0, np.int32), 2 * sends, grain, cuts, orders=("causal",))
    assert len(what.tasks) == 2
    tasks = parts.scatter(partial(dealt, plan=what), [0], 2)
    said = tasks.scatter(partial(chunks.judged, plan=what), [0, 1], 65).gather(chunks.merged, [0])
    return int(read_judged(said[0]).causal_late)


def test_cuts_are_the_greatest_consistent_ones(seeds: int) -> None:
    for seed in range(seeds // 10):
        random = np.random.default_rng(seed)
        rows = [row for row in busy_trace(seed) if row.kind != "local"]
        names = sorted({row.process for row in rows})
        number = {name: k for k, name in enumerate(names)}
        sent = {row.message: (number[row.process], row.index) for row in rows if row.kind == "send"}
        edges = [(number[row.process], row.index, *sent[row.message]) for row in rows if row.kind == "deliver"]
        bounds = np.sort(random.integers(0, 40, (len(names), 5)), axis=1)
        wanted = bounds.copy()
        for k in range(bounds.shape[1]):
            while broken := [(q, j) for q, j, p, i in edges if j < wanted[q, k] and i >= wanted[p, k]]:
                q, j = broken[0]
                wanted[q, k] = j
        columns = [np.array(column) for column in zip(*edges, strict=True)]
        lower(bounds, columns[0].astype(np.int32), columns[1], columns[2].astype(np.int32), columns[3])
        assert (bounds == wanted).all(), f"seed {seed}"
