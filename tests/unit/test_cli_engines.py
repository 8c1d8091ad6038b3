"""Which engine ``auto`` takes: by the events and processes that a trace seems to have, not by bytes alone."""

import gzip
import json
from pathlib import Path
from random import Random

import pytest

from antecede.cli import engines
from antecede.cli.engines import chosen_engine
from antecede.trace.sources import Size, size_of


def _lines(count: int, processes: int, padding: str = "") -> bytes:
    rows = [
        {"process": f"p{n % processes}", "index": n // processes, "kind": "local", "x": padding} for n in range(count)
    ]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_size_of_text_and_gzip(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(_lines(20_000, 50))
    size = size_of([str(tmp_path / "a.jsonl")])
    assert size.processes == 50
    assert 18_000 < size.events < 22_000
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(_lines(2_000, 50)))
    assert size_of([str(tmp_path / "a.jsonl.gz")]).processes == 50


def test_processes_that_keep_coming_are_expected_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(_lines(20_000, 20_000, "x" * 60))
    size = size_of([str(tmp_path / "a.jsonl")])
    assert size.processes > 10_000


def test_a_fixed_set_of_processes_is_not_taken_for_a_growing_one(tmp_path: Path) -> None:
    random = Random(3)
    rows = [{"process": f"p{random.randrange(1000)}", "index": n, "kind": "local"} for n in range(40_000)]
    (tmp_path / "a.jsonl").write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    assert 800 < size_of([str(tmp_path / "a.jsonl")]).processes < 1_200


def test_size_of_parquet(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"process": ["a", "b"] * 50, "index": range(100)}), tmp_path / "a.parquet")
    assert size_of([str(tmp_path / "a.parquet")]) == Size(100, 2)


@pytest.mark.parametrize(
    ("events", "processes", "wanted"),
    [(1_000_000, 10, "plain"), (1_000_000, 100_000, "spark"), (20_000, 10_000, "plain"), (50_000_000, 10, "spark")],
)
def test_events_and_processes_decide(events: int, processes: int, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setattr(engines, "size_of", lambda paths: Size(events, processes))
    assert chosen_engine("auto", None, None, ["trace.jsonl"]) == wanted
