"""The stages and kernels, without Spark, against the plain oracle on random traces.

``ANTECEDE_SEEDS`` sets how many. Splits down to a line, buckets down to one, walks in segments down to one, blocks of
lanes down to one, and ids mixed into as little as four bits must make no difference. A failure names its seed.
"""

import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from antecede.pipeline.flow import Here
from antecede.pipeline.judge.files import write_late, write_quarantine
from antecede.pipeline.judge.trace import Trace, verdict_on
from antecede.pipeline.kernels.texts import WIDE, hash_texts, number
from antecede.pipeline.match import Scratch, spans
from antecede.pipeline.pieces import Region, read_matched
from antecede.pipeline.read.encode import Layout
from antecede.pipeline.read.rows import as_texts, hashed_ids, narrowed, numbered_ids
from antecede.pipeline.read.splits import plan, read
from antecede.trace import Event, verify, write_trace


def _paths(directory: Path, rows: list[Event], seed: int) -> list[str]:
    """The trace as one file or two, of any format."""
    endings = (".jsonl", ".parquet", ".jsonl.gz")
    cut = len(rows) // 2 if seed % 4 == 3 else 0
    pieces = [rows[:cut], rows[cut:]] if cut else [rows]
    paths = [str(directory / f"{k}{endings[(seed + k) % 3]}") for k in range(len(pieces))]
    for path, piece in zip(paths, pieces, strict=True):
        write_trace(path, piece)
    return paths


def _traced(paths: list[str], seed: int, numbered: bool = False) -> Trace:
    layout = Layout(
        places=1 + seed % 3,
        buckets=1 + seed % 5,
        narrow=WIDE if seed % 2 else 15 >> seed % 5,
        numbered=numbered,
        region_events=(1 << 24, 1, 3, 16)[seed % 4],
    )
    return Trace(Here(), plan(paths, tasks=3, rows_max=7, bytes_max=150 + seed % 97), layout)


def test_stages_say_what_the_oracle_says(
    tmp_path: Path,
    random_trace: Callable[[int], list[Event]],
    seeds: int,
    spoken: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: set[str] = set()
    for seed in range(seeds):
        # With and without a thread that walks ahead.
        monkeypatch.setattr("antecede.pipeline.match._ahead_events_min", (1 << 20, 0)[seed % 2])
        rows = random_trace(seed)
        paths = _paths(tmp_path, spoken.with_uuids(rows) if seed % 7 < 4 else rows, seed)
        wanted = spoken.judged(verify(paths, spoken.ALL))
        options = {"segments": 1 + seed % 7, "lanes_max": (None, 1, 2)[seed % 3]}
        found = verdict_on(_traced(paths, seed), spoken.ALL, **options).report
        assert spoken.judged(found) == wanted, f"seed {seed}"
        seen |= wanted["quarantined"].keys() | {str(wanted["clocks"]["rule"])}
        seen |= {order for order, entry in wanted["orders"].items() if entry["holds"] is False}
    assert seeds < 100 or seen >= {
        *("duplicate_row", "duplicate_index", "duplicate_send", "duplicate_delivery", "orphan_delivery"),
        *("orphan_arrival", "not_addressed", "before_send", "cycle", "index_gap"),
        *("exact", "order", "fifo", "causal", "total", "synchronous"),
    }


def test_every_late_delivery_and_every_row_set_aside_is_the_oracles(
    tmp_path: Path, random_trace: Callable[[int], list[Event]], seeds: int, spoken: Any
) -> None:
    import json

    import pyarrow.parquet as pq

    for seed in range(seeds // 5):
        paths = _paths(tmp_path, random_trace(seed), seed)
        here, there = tmp_path / "here", tmp_path / "there"
        verify(paths, spoken.ALL, here, here)
        trace = _traced(paths, seed, numbered=True)
        outcome = verdict_on(trace, spoken.ALL, every_late=True, lanes_max=1 + seed % 3)
        write_quarantine(trace, outcome, str(there))
        write_late(outcome.late, str(there))
        assert _rows(there / "quarantine.jsonl") == _rows(here / "quarantine.jsonl"), f"seed {seed}"
        found = sorted(map(json.dumps, pq.read_table(there / "late.parquet").to_pylist()))
        assert found == _rows(here / "late.jsonl", json.dumps), f"seed {seed}"


def _rows(path: Path, shown: Callable[[Any], str] = str) -> list[str]:
    import json

    return sorted(shown(json.loads(line)) for line in path.read_text().splitlines())


def test_texts_are_numbered_exactly_however_few_bits_are_kept() -> None:
    random = np.random.default_rng(5)
    texts = [bytes(random.integers(97, 100, random.integers(0, 12)).astype(np.uint8)).decode() for _ in range(3000)]
    column = pa.array(texts)
    offsets = np.frombuffer(column.buffers()[1], np.int32)[: len(texts) + 1]
    data = np.frombuffer(column.buffers()[2], np.uint8)
    for narrow in (WIDE, 15, 1, 0):
        hashed, code = np.zeros(len(texts), np.uint64), np.zeros(len(texts), np.int32)
        hash_texts(offsets, data, np.uint64(narrow), hashed)
        count = number(offsets, data, hashed, code)
        assert count == len(set(texts))
        assert len({*zip(code.tolist(), texts, strict=True)}) == count


def test_uuids_are_their_sixteen_bytes_and_nothing_else_is() -> None:
    usual = [str(UUID(int=Random(7).getrandbits(128) >> k)) for k in range(0, 128, 3)]
    column = pa.array(usual)
    short = narrowed(column)
    assert short.type == pa.binary(16)
    assert as_texts(short).to_pylist() == usual
    assert as_texts(short[3:9]).to_pylist() == usual[3:9]
    assert (hashed_ids(short, WIDE) == hashed_ids(column, WIDE)).all(), "either form leads to the same bucket"
    assert numbered_ids(pa.concat_arrays([short, short]), np.zeros(2 * len(short), np.uint64))[1] == len(usual)
    for place in range(36):
        for other in "0afgAF-:@`/ \x7f\xe9":
            text = usual[0][:place] + other + usual[0][place + 1 :]
            wanted = pa.binary(16) if _usual.fullmatch(text) else pa.string()
            assert narrowed(pa.array([usual[1], text])).type == wanted, text
    for texts in ([usual[0], None], [usual[0][:-1], usual[1] + "0"], []):
        assert narrowed(pa.array(texts, pa.string())).type == pa.string()


_usual = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def test_ids_of_both_forms_meet_in_one_bucket(tmp_path: Path, spoken: Any) -> None:
    """A file of UUIDs alone and one with other ids beside them: the same message is found in both."""
    ids = [str(UUID(int=k << 64 | k)) for k in range(40)]
    sends = [Event("p", k, "send", id_, ("q",)) for k, id_ in enumerate(ids)]
    delivers = [Event("q", k, "deliver", id_) for k, id_ in enumerate([*ids[5:], *ids[:5], ids[10].upper()])]
    for name, rows in (("a.parquet", sends), ("b.parquet", delivers)):
        write_trace(tmp_path / name, rows)
    paths = [str(tmp_path)]
    for seed in range(8):
        found = verdict_on(_traced(paths, seed), spoken.ALL).report
        assert spoken.judged(found) == spoken.judged(verify(paths, spoken.ALL))
        assert found["orders"]["causal"]["late"] == 5
        assert found["quarantined"] == {"orphan_delivery": 1}


@pytest.mark.parametrize("step", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_splits_of_lines_give_each_line_once(tmp_path: Path, step: int, end: bytes) -> None:
    lines = [b'{"process":"p","index":%d,"kind":"local"}' % k for k in range(9)] + [b"", b"  ", b"not json", b'{"a":1}']
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(lines) + end)
    whole = [said for items in read(plan([str(path)]).splits[0]) for _, _, said in items]
    given = plan([str(path)])
    size = path.stat().st_size
    from antecede.pipeline.read.splits import Split

    pieces = [Split(k, 0, str(path), "lines", a, min(a + step, size)) for k, a in enumerate(range(0, size, step))]
    assert given.files == [str(path)]
    assert [said for piece in pieces for items in read(piece) for _, _, said in items] == whole


def test_large_arrays_live_in_files_and_can_be_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antecede.pipeline.match._mapped_bytes_min", 1000)
    scratch = Scratch(str(tmp_path))
    array = scratch.array((100, 7), np.int32, -1)
    array[3] = 5
    scratch.rest()
    assert (array[3] == 5).all()
    assert (array[4] == -1).all()
    assert not list(tmp_path.iterdir()), "the file has no name, so it is gone with the process"


def test_each_region_is_assembled_once_and_from_its_own_rows(tmp_path: Path) -> None:
    """Else a large trace would be read and written as a whole for every bucket."""
    path = str(tmp_path / "t.parquet")
    sends = [Event("p", k, "send", f"m{k}", ("q",)) for k in range(400)]
    write_trace(path, [*sends, *(Event("q", k, "deliver", f"m{k}") for k in range(400))])
    trace = Trace(Here(), plan([path]), Layout(places=2, buckets=7, region_events=50))
    pieces = [piece for piece in map(read_matched, _blobs(trace.matched())) if isinstance(piece, Region)]
    order = [piece.number for piece in pieces]
    assert len(set(order)) > 10
    assert order == sorted(order)
    for piece in pieces:
        assert piece.first == 50 * piece.number
        assert {*piece.sent, *piece.delivered} <= {*range(50)}


def _blobs(parts: Any) -> list[bytes]:
    return list(parts.stream(lambda blobs: blobs, [0]))


def test_processes_are_looked_at_in_groups_of_bounded_size() -> None:
    offsets = np.cumsum([0, 3, 0, 4, 9, 1, 1, 0])
    assert list(spans(offsets, 7)) == [(0, 3), (3, 4), (4, 7)]
    assert list(spans(offsets, 1)) == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 7)]
    assert list(spans(np.zeros(1, np.int64))) == []


@pytest.fixture(autouse=True)
def _small_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antecede.pipeline.match._mapped_bytes_min", 64)
