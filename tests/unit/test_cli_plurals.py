"""One is one: what commands count is in the singular where there is one of it."""

import json
from pathlib import Path

import pytest

from antecede import cli

_rows = [
    {"process": "a", "index": 0, "kind": "send", "message": "m", "to": ["b"], "time": 9},
    {"process": "b", "index": 1, "kind": "deliver", "message": "m", "time": 1},
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _rows))
    Path("one.log").write_text('a {"a":1}\nalone\n')
    orphan = {"process": "b", "index": 2, "kind": "deliver", "message": "lost"}
    clocked = [row | {"lamport": row["time"]} for row in _rows]
    Path("orphan.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*clocked, orphan]))
    Path("own.log").write_text("a s 1\nb d 1\n")
    Path("spans.csv").write_text("trace_id,span_id,parent_id,service,start\nt,1,,a,1\nt,2,1,b,2\n")


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("verify t.jsonl --engine plain", "index_gap           1 index is missing"),
        ("verify orphan.jsonl --engine plain", "1 of 2 deliveries was not checked: every violation is real"),
        ("verify orphan.jsonl --engine plain", "lamport      2 checked, 1 disagrees with the events"),
        ("verify orphan.jsonl --engine plain", '"holds" covers only the other delivery\n'),
        ("import one.log", "1 row, not written: give --to"),
        (
            "import own.log --send s --deliver d --pattern (?P<process>.).(?P<kind>.).(?P<message>.)",
            "2 records: 1 send, 1 delivery (with a recorded send), 0 local events; 2 processes\n",
        ),
        ("import spans.csv", "1 row at an assumed position: a delivery that is late only because of such rows is"),
        ("import one.log --to o.jsonl", "1 row written to o.jsonl"),
        ("measure t.jsonl --engine plain", "1 of 1 delivery comes before its send by the clocks"),
        ("simulate --order fifo --processes 2 --messages 1 --seed 1", "fifo: 2 processes, 1 message\n"),
        ("explore --order fifo --processes 2 --messages 1", "fifo holds in every run of 2 processes and 1 message"),
    ],
)
def test_one_is_one(command: str, wanted: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(command.split()) in (0, 1)
    assert wanted in capsys.readouterr().out


def test_one_row_of_parquet(capsys: pytest.CaptureFixture[str]) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"process": ["a"], "index": [0], "kind": ["local"]}), "t.parquet")
    assert cli.run(["verify", "t.parquet", "--dry-run"]) == 0
    assert ", 1 row\n" in capsys.readouterr().out
    assert cli.run(["verify", "t.parquet"]) == 2
    assert "no valid delivery among 1 event\n" in capsys.readouterr().err
