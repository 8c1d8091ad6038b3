"""``antecede sweep``: its grids, its cells as Spark tasks, what is kept when it is killed, and what it reports."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from math import sqrt
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from antecede import limits
from antecede.cli import run as antecede
from antecede.cli.sweep import studied
from antecede.errors import UsageError
from antecede.pipeline import sweep as tasks
from antecede.pipeline.planning.problem import SIZES, STAMP_BYTES
from antecede.pipeline.sweep import (
    STUDIES,
    Cell,
    Grid,
    Row,
    cells_of,
    half_width,
    measured,
    results,
    stamp_table,
    student,
    study,
    summary,
)

Said = tuple[int, str, str]


_small = "--order matrix --order fifo --processes 3,5 --seeds 3 --receives 20 --warmup-receives 5"


def test_one_row_for_each_cell(command: Callable[..., Said]) -> None:
    code, out, err = command(f"sweep {_small} --json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert (document["cells"], document["done"], document["kept"], document["failed"]) == (12, 12, 0, 0)
    rows = pq.read_table(document["table"]).to_pylist()
    assert list(rows[0]) == list(Row.__struct_fields__)
    assert {(row["order"], row["processes"], row["seed"]) for row in rows} == {
        (order, n, seed) for order in ("matrix", "fifo") for n in (3, 5) for seed in (1, 2, 3)
    }
    assert {row["engine"] for row in rows} == {"simulator"}
    assert not any(Path("sweep/cells").iterdir())
    for row in msgspec.convert(rows, list[Row])[::5]:
        cell = msgspec.convert({name: getattr(row, name) for name in Cell.__struct_fields__}, Cell)
        again = measured(cell, studied)
        assert msgspec.structs.replace(again, seconds=row.seconds) == row


def test_means_and_intervals_over_the_seeds(command: Callable[..., Said]) -> None:
    document = json.loads(command(f"sweep {_small} --json")[1])
    rows = pq.read_table(document["table"]).to_pylist()
    for entry in document["summary"]:
        values = [
            row["latency_mean"]
            for row in rows
            if (row["order"], row["processes"]) == (entry["order"], entry["processes"])
        ]
        mean = sum(values) / 3
        # t of two degrees of freedom, as printed in any table.
        reach = 4.302653 * sqrt(sum((value - mean) ** 2 for value in values) / 2) / sqrt(3)
        found = entry["figures"]["latency_mean"]
        assert [found[name] for name in ("mean", "low", "high")] == pytest.approx([mean, mean - reach, mean + reach])
        assert entry["runs"] == 3
    lines = command(f"sweep {_small}")[1].splitlines()
    assert lines[0] == "12 of 12 cells done (12 of them by an earlier command): sweep/table.parquet"
    assert lines[1].split()[:3] == ["order", "processes", "runs"]
    assert len(lines) == 2 + 4 + 1


def test_intervals_by_hand() -> None:
    assert half_width([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2.776445 * sqrt(2.5) / sqrt(5))
    assert half_width([7.0]) is None
    table = {1: 12.706205, 2: 4.302653, 3: 3.182446, 4: 2.776445, 9: 2.262157, 30: 2.042272, 121: 1.979764}
    assert {freedom: student(freedom) for freedom in table} == pytest.approx(table, abs=1e-6)


def test_replay_commands_give_the_same_figures(
    command: Callable[..., Said], capsys: pytest.CaptureFixture[str]
) -> None:
    grid = "--order updates --shape flat --shape star --workload multicast --delay uniform:0,0.2 --seeds 1"
    document = json.loads(command(f"sweep {grid} --receives 20 --warmup-receives 2 --json")[1])
    for row in pq.read_table(document["table"]).to_pylist():
        for line in row["command"].split(" && "):
            capsys.readouterr()
            assert antecede([*shlex.split(line)[1:], *(["--json"] if " simulate " in line else [])]) == 0
        figures = json.loads(capsys.readouterr().out)
        assert (figures["stamp"]["bytes_total"], figures["deliveries"]) == (row["bytes_total"], row["deliveries"])
        assert figures["latency"]["mean"] == row["latency_mean"]


def test_conflicts_are_a_study_of_objects(command: Callable[..., Said], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command("sweep paper004 --seeds 1 --scale 0.01 --workload unicast --json")
    document = json.loads(out)
    assert (code, document["done"]) == (0, 2 * 6 + 2)
    row = next(row for row in pq.read_table(document["table"]).to_pylist() if row["density"] == 0.25)
    capsys.readouterr()
    assert antecede([*shlex.split(row["command"])[1:], "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["study"]
    assert (found["order"], found["stamp_bytes_mean"]) == (row["order"], row["bytes_mean"])
    assert found["compatible"]["latency_seconds"] == row["compatible_latency"]


def _planted(how: str) -> Callable[[Any, bytes], bytes]:
    def task(study: Any, given: bytes) -> bytes:
        import os

        from antecede.pipeline.sweep import _task

        if b'"seed":2' not in given:
            return _task(study, given)
        if how == "raises":
            return _task(study, given.replace(b'"fifo"', b'"fido"'))
        os._exit(3)

    return task


@pytest.mark.parametrize("how", ["raises", "dies"])
def test_a_failing_cell_is_named_and_loses_nothing_else(
    command: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    grid = "--order fifo --processes 3 --seeds 4 --receives 20 --json"
    with monkeypatch.context() as planted:
        planted.setattr(tasks, "_task", _planted(how))
        code, out, err = command(f"sweep {grid}")
    document = json.loads(out)
    assert (code, document["done"], document["failed"]) == (1, 3, 1)
    (failure,) = document["failures"]
    replay = "antecede simulate --order fifo --processes 3 --messages 660 --warmup 600 --seed 2"
    assert failure["command"] == replay
    (line,) = err.splitlines()
    assert line.startswith("antecede: cell failed: ")
    assert line.endswith(f"repeat it with: {replay}")
    assert how != "raises" or "unknown order 'fido'" in line
    code, out, err = command(f"sweep {grid}")
    assert (code, err) == (0, "")
    assert (json.loads(out)["kept"], json.loads(out)["done"]) == (3, 4)


def test_a_killed_sweep_goes_on_where_it_was(command: Callable[..., Said], tmp_path: Path, root: Path) -> None:
    grid = "--order fifo --processes 4 --seeds 30 --receives 1000 --json"
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(root / "src")}
    started = [sys.executable, "-m", "antecede", "sweep", *grid.split(), "--master", "local[1]"]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(started, env=environment, stdout=log, stderr=log)
        deadline = time.monotonic() + 900
        cells = tmp_path / "sweep" / "cells"
        while process.poll() is None and not list(cells.glob("*.json")) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = {file.name: msgspec.json.decode(file.read_bytes(), type=Row) for file in cells.glob("*.json")}
    assert before or (tmp_path / "sweep" / "table.parquet").exists(), (tmp_path / "log").read_text()
    # What a kill in the middle of a write leaves.
    (cells / "half.json.new").write_bytes(b'{"key":')
    document = json.loads(command(f"sweep {grid}")[1])
    assert (document["done"], document["failed"]) == (30, 0)
    assert document["kept"] >= max(1, len(before))
    table = {row.key: row for row in msgspec.convert(pq.read_table(document["table"]).to_pylist(), list[Row])}
    assert len(table) == 30
    assert all(table[row.key] == row for row in before.values())
    assert not any(cells.iterdir())


def test_rows_of_other_grids_stay(command: Callable[..., Said]) -> None:
    command("sweep --order fifo --processes 3 --seeds 2 --receives 5")
    document = json.loads(command("sweep --order fifo --processes 4 --seeds 2 --receives 5 --json")[1])
    assert document["cells"] == 2
    assert [row["processes"] for row in pq.read_table(document["table"]).to_pylist()] == [3, 3, 4, 4]


def test_a_grid_in_a_file(command: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'orders = ["fifo"]\nprocesses = [3]\ndelays = ["constant:0.1", "constant:0.2"]\nseeds = 2\nreceives = 5\n'
    )
    document = json.loads(command("sweep mine.toml --json")[1])
    assert document["table"] == "sweep-mine/table.parquet"
    assert [entry["delay"] for entry in document["summary"]] == ["constant:0.1", "constant:0.2"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("paper999", "unknown study 'paper999': expected paper000, paper002, paper003, paper004, stamps"),
        ("--processes 10,x", "--processes 10,x: expected numbers"),
        ("--processes 1", "processes 1: expected 2 or more"),
        ("--processes 5000", "expected 2 to 4096"),
        ("--seeds 0", "seeds 0: expected 1 to"),
        ("--seeds 9999 --processes 2,3,4,5,6,7,8,9,10,11,12", "cells: expected at most 100,000"),
        ("--scale 0", "--scale 0: expected more than 0"),
        ("--scale nan", "--scale nan: expected more than 0"),
        ("--order fido", "unknown order 'fido'"),
        ("--order vector", "supports broadcasts only"),
        ("--workload chaos", "unknown workload 'chaos'"),
        ("--delay soon", "unknown distribution 'soon'"),
        ("--shape ring", "unknown shape 'ring'"),
        ("--receives -1", "receives -1: expected 0 to"),
        ("--receives 1e9", "messages 8000001600: expected 0 to"),
        ("paper004 --gap soon", "density 0, seed 5: unknown distribution 'soon'"),
        ("paper004 --gap constant:1", "needs gaps and delays of exponential:0.1"),
        ("paper004 --shape bus", "needs the workload unicast or multicast, and the shape flat"),
        ("absent.toml", "absent.toml: cannot be read: No such file"),
        ("torn.toml", "torn.toml: not a TOML file"),
        ("odd.toml", "odd.toml: Object contains unknown field `order`: expected the keys orders, processes"),
        ("long.toml", "long.toml: longer than 1048576 bytes"),
        ("--out taken", "taken: cannot be written"),
        ("--out foreign", "table.parquet: not a table of results (made by: antecede sweep)"),
        ("--conf x=1", "--conf: expected spark.KEY=VALUE"),
    ],
)
def test_bad_grids_are_one_line(
    line: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("torn.toml").write_text('orders = ["fifo"')
    Path("odd.toml").write_text('order = ["fifo"]')
    Path("long.toml").write_text("#" * (limits.sweep_file_bytes_max + 1))
    Path("taken").write_text("")
    Path("foreign").mkdir()
    Path("foreign/table.parquet").write_text("mine")
    assert antecede(["sweep", *line.split()]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert reason in said.err
    assert Path("foreign/table.parquet").read_text() == "mine"


def test_without_spark_it_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("antecede.pipeline.missing", lambda: ["pyspark"])
    assert antecede(["sweep", "paper003"]) == 2
    assert capsys.readouterr().err == "antecede: the spark engine needs pyspark: install antecede[spark]\n"


def test_nobody_else_writes_there_meanwhile(tmp_path: Path) -> None:
    with (
        results(str(tmp_path)),
        pytest.raises(UsageError, match="another sweep writes there"),
        results(str(tmp_path)),
    ):
        pass


@pytest.mark.parametrize("name", STUDIES)
def test_studies_can_be_run(name: str) -> None:
    for scale in (0.001, 1.0):
        cells = cells_of(study(name), {}, scale)
        assert len({cell.key for cell in cells}) == len(cells)


def test_the_papers_size() -> None:
    (grid, *_) = STUDIES["paper003"]
    found = {(cell.processes, cell.workload): cell for cell in grid.cells(1.0)}
    # 10,000 and 50,000 receives per process; a multicast is received by half of them in the mean.
    assert (found[10, "unicast"].warmup, found[10, "unicast"].messages) == (100_000, 600_000)
    assert (found[50, "multicast"].warmup, found[50, "multicast"].messages) == (20_000, 120_000)
    assert grid.seeds == 5
    assert max(STUDIES["paper000"][0].processes) == 1_000


def test_progress_in_numbers() -> None:
    cells = list(Grid(("fifo",), seeds=4).cells(1.0))
    progress = tasks.Progress(cells, 6)
    assert progress.text() == "6 of 10 cells, 0%"
    progress.count(cells[0], False)
    assert progress.text(progress._began + 40.0) == "7 of 10 cells, 25%, 2 min left"
    progress.count(cells[1], True)
    assert progress.text(progress._began + 40.0) == "7 of 10 cells, 50%, 1 failed, 40 s left"


def test_the_planner_s_stamps_are_those_of_the_study() -> None:
    sizes = SIZES[:5]
    cells = cells_of(study("stamps"), {"processes": sizes}, 1.0)
    found = stamp_table(summary([measured(cell, studied) for cell in cells]))
    assert {order: tuple(by_size.values()) for order, by_size in found.items()} == {
        order: known[: len(sizes)] for order, known in STAMP_BYTES.items()
    }
