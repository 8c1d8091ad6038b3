"""``antecede verify`` as a person or a script meets it: reports, exit codes, one clear line for what is wrong."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from antecede.cli import verify as command
from antecede.errors import AntecedeError
from antecede.trace import Event, files, write_trace
from helpers.snapshots import Snapshots

_late = [
    Event("p", 0, "send", "x", ("r",)),
    Event("p", 1, "send", "y", ("q",)),
    Event("q", 0, "deliver", "y"),
    Event("q", 1, "send", "z", ("r", "silent")),
    Event("r", 0, "deliver", "z"),
    Event("r", 1, "deliver", "x"),
]
Said = tuple[int, str, str]


def _run(arguments: list[str]) -> int:
    """The command alone, with the exit code that the command line would give it."""
    app = typer.Typer()
    command.register(app)
    app.callback()(lambda: None)
    try:
        return int(typer.main.get_command(app).main(["verify", *arguments], standalone_mode=False) or 0)
    except AntecedeError as error:
        print(error)
        return 2


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run the command in a folder of its own: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    write_trace("late.jsonl", _late)
    write_trace("good.jsonl", _late[:4])

    def run(line: str) -> Said:
        capsys.readouterr()
        code = _run(line.split())
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def _report(said: Said) -> dict[str, Any]:
    report = json.loads(said[1])
    for name in ("seconds", "events_per_second"):
        del report[name]
    return report


def test_report_of_a_violation(run: Callable[..., Said]) -> None:
    said = run("late.jsonl --order fifo,causal,total,synchronous --json")
    assert said[0] == 1
    from antecede import __version__

    assert _report(said) == {
        "version": __version__,
        "engine": "plain",
        "processes": 3,
        "silent": 1,
        "silent_first": ["silent"],
        "rows": 6,
        "events": 6,
        "messages": 3,
        "deliveries": 3,
        "undelivered": 1,
        "complete": True,
        "quarantined": {},
        "readable": True,
        "unread_first": {},
        "nulled": {},
        "nulled_first": {},
        "named": [],
        "orders": {
            "fifo": {"holds": True, "late": 0, "undecided": 0},
            "causal": {
                "holds": False,
                "late": 1,
                "undecided": 0,
                "first": {
                    "message": "x",
                    "from": "p",
                    "to": "r",
                    "send_index": 0,
                    "deliver_index": 1,
                    "overtaken_by": "z",
                },
            },
            "total": {"holds": True, "pairwise": True, "cycle": None},
            "synchronous": {"holds": False, "crown": ["x", "y", "z"]},
        },
        "clocks": {"checked": 0, "disagree": 0, "rule": None},
        "lamport": {"checked": 0, "disagree": 0, "used": False},
        "session_seconds": 0.0,
    }


def test_report_for_a_person(run: Callable[..., Said], reads: Snapshots) -> None:
    code, out, err = run("late.jsonl --order fifo,causal,total,synchronous")
    assert (code, err) == (1, "")
    reads(out)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("good.jsonl", 0),
        ("good.jsonl --strict", 1),
        ("late.jsonl", 1),
        ("late.jsonl --order fifo", 0),
        ("late.jsonl --order total,fifo --engine plain", 0),
    ],
)
def test_exit_codes(run: Callable[..., Said], line: str, code: int) -> None:
    assert run(line)[0] == code


def test_strict_minds_rows_set_aside_but_not_gaps(run: Callable[..., Said]) -> None:
    whole = [Event("p", 5, "send", "x", ("q",)), Event("q", 0, "deliver", "x")]
    write_trace("gap.jsonl", whole)
    assert run("gap.jsonl --strict")[0] == 0
    report = _report(run("gap.jsonl --json"))
    assert (report["quarantined"], report["complete"]) == ({"index_gap": 5}, True)
    Path("gap.jsonl").write_bytes(Path("gap.jsonl").read_bytes() + b"nonsense\n")
    assert run("gap.jsonl --lenient")[0] == 0
    assert run("gap.jsonl --strict")[0] == 1


@pytest.mark.parametrize(
    "line",
    [
        "nowhere.jsonl",
        "late.jsonl --order causal,casual",
        "late.jsonl --engine flink",
        "late.jsonl --engine plain --master local[2]",
        "late.jsonl --conf executor=2",
        "late.jsonl --since yesterday",
        "late.jsonl --processes ,",
        "late.jsonl --order significant",
        "late.jsonl --late late.jsonl/x",
        "late.jsonl --causal sideways",
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(run: Callable[..., Said], reads: Snapshots, line: str) -> None:
    code, out, err = run(line)
    assert (code, err) == (2, "")
    assert out.count("\n") == 1
    reads(out)


def test_nothing_to_judge_is_no_success(run: Callable[..., Said], reads: Snapshots) -> None:
    write_trace("sent.jsonl", _late[:2])
    code, out, err = run("sent.jsonl --json")
    assert code == 2
    assert json.loads(out)["orders"]["causal"] == {"holds": None, "late": 0, "undecided": 0, "first": None}
    reads(err)


def test_rows_set_aside_can_be_looked_at(run: Callable[..., Said]) -> None:
    rows = b"".join(files.encode(event) + b"\n" for event in _late)
    Path("bad.jsonl").write_bytes(rows + b"\xff{\n" + files.encode(Event("r", 7, "deliver", "none")) + b"\n")
    assert run("bad.jsonl --quarantine aside/deep")[0] == 1
    written = [json.loads(line) for line in Path("aside/deep/quarantine.jsonl").read_text().splitlines()]
    assert [(row["file"], row["line"], row["reason"]) for row in written] == [
        ("bad.jsonl", 7, "unreadable_line"),
        ("bad.jsonl", 8, "orphan_delivery"),
    ]
    assert [row["raw"] for row in written] == ["\ufffd{", '{"process":"r","index":7,"kind":"deliver","message":"none"}']


def test_late_deliveries_can_be_looked_at(run: Callable[..., Said]) -> None:
    assert run("late.jsonl --late out")[0] == 1
    assert [json.loads(line) for line in Path("out/late.jsonl").read_text().splitlines()] == [
        {
            "order": "causal",
            "message": "x",
            "from": "p",
            "to": "r",
            "send_index": 0,
            "deliver_index": 1,
            "overtaken_by": "z",
        }
    ]
    assert {path.name for path in Path("out").iterdir()} <= {"late.jsonl", "late.parquet"}


def test_the_same_trace_gives_the_same_bytes(run: Callable[..., Said]) -> None:
    first = _report(run("late.jsonl good.jsonl --json --order fifo,causal,total,synchronous"))
    assert _report(run("good.jsonl late.jsonl --json --order synchronous,total,causal,fifo")) == first
    assert first["quarantined"] == {"duplicate_row": 4}


_any_order = "fifo,causal,total,synchronous"


def _judge_bytes(folder: Path, name: str, data: bytes) -> None:
    (folder / name).write_bytes(data)
    for extra in ([], ["--json", "--quarantine", str(folder), "--late", str(folder)]):
        assert _run([str(folder / name), "--order", _any_order, *extra]) in (0, 1, 2)


@given(st.binary(max_size=300), st.sampled_from(["t.jsonl", "t.jsonl.gz", "t.parquet"]), st.booleans())
def test_any_bytes_are_judged_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str, packed: bool
) -> None:
    _judge_bytes(tmp_path_factory.mktemp("any"), name, gzip.compress(data) if packed else data)


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from("pqrxyz"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("pqrxyz"), inner, max_size=3),
    max_leaves=4,
)
_keys = ("process", "index", "kind", "message", "to", "time", "lamport", "clock", "dead", "other")
_change = st.tuples(st.integers(0, 5), st.sampled_from(_keys), _values)


@given(st.lists(_change, max_size=5), st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=3))
def test_a_damaged_trace_is_judged_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, str, Any]], flips: list[tuple[int, int]]
) -> None:
    rows = [json.loads(files.encode(event)) for event in _late]
    for number, key, value in changes:
        rows[number][key] = value
    data = bytearray(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    for place, byte in flips:
        data[place % len(data)] = byte
    folder = tmp_path_factory.mktemp("damaged")
    _judge_bytes(folder, "t.jsonl", bytes(data))
    if not changes:
        pytest.importorskip("pyarrow")
        write_trace(folder / "good.parquet", _late)
        data = bytearray((folder / "good.parquet").read_bytes())
        for place, byte in flips:
            data[place * 7 % len(data)] = byte
        _judge_bytes(folder, "t.parquet", bytes(data))


def test_what_is_no_trace_is_named(run: Callable[..., Said], reads: Snapshots) -> None:
    Path("picture").write_bytes(b"\x89PNG\r\n\x1a\n" * 9)
    Path("data").mkdir()
    Path("data/segment-000000000001.log").write_bytes(b"\x00antecede\n" * 9)
    for name in ("picture", "data/segment-000000000001.log"):
        code, _, err = run(name)
        assert code == 2
        reads(err)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_who_reads_only_the_beginning_still_gets_the_verdict(tmp_path: Path, root: Path, unbuffered: str) -> None:
    """As in ``antecede verify t.jsonl | head -1`` under ``pipefail``: the reader is gone before the report comes."""
    write_trace(tmp_path / "late.jsonl", _late)
    for form in ([], ["--json"]):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [sys.executable, "-m", "antecede", "verify", str(tmp_path / "late.jsonl"), *form],
            env=dict(os.environ) | {"PYTHONPATH": str(root / "src"), "PYTHONUNBUFFERED": unbuffered},
            stdout=writer, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
        os.close(writer)
        assert (done.returncode, done.stderr) == (1, b"")


def _junk(rows: int) -> None:
    """A trace of 18 good rows and some that are none, in ``junk.jsonl``."""
    good = _late[:3] + [Event("p", index, "local") for index in range(2, 17)]
    write_trace("junk.jsonl", good)
    with open("junk.jsonl", "a") as out:
        out.write("".join(["no row\n", '{"kind":"local"}\n', '{"process":"p","index":0,"kind":"odd"}\n'][:rows]))


def test_a_trace_of_which_one_row_in_ten_is_unreadable_is_judged(run: Callable[..., Said]) -> None:
    _junk(2)
    code, out, err = run("junk.jsonl --json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert (report["readable"], report["orders"]["causal"]["holds"]) == (True, True)


def test_a_trace_of_which_more_rows_are_unreadable_is_not(run: Callable[..., Said], reads: Snapshots) -> None:
    _junk(3)
    code, out, err = run("junk.jsonl")
    assert (code, err.count("\n")) == (2, 1)
    reads(out + err)
    code, out, _ = run("junk.jsonl --json")
    report = json.loads(out)
    assert (code, report["rows"], report["readable"]) == (2, 21, False)
    code, out, err = run("junk.jsonl --lenient")
    assert (code, err) == (0, "")
    reads(out)
    assert run("junk.jsonl --strict")[0] == run("junk.jsonl --strict --lenient")[0] == 1


def test_a_cut_makes_no_trace_unreadable(run: Callable[..., Said]) -> None:
    _junk(2)
    code, out, _ = run("junk.jsonl --processes p,q --json")
    assert (code, json.loads(out)["rows"]) == (0, 20)
    assert json.loads(run("junk.jsonl --processes q --json")[1])["readable"]


def test_a_violation_is_real_whatever_else_cannot_be_read(run: Callable[..., Said]) -> None:
    with open("late.jsonl", "a") as out:
        out.write("no row\n" * 100)
    assert run("late.jsonl")[0] == run("late.jsonl --lenient")[0] == 1


def test_strict_takes_a_clock_that_disagrees_as_a_violation(run: Callable[..., Said]) -> None:
    right = [
        Event("p", 0, "send", "x", ("q",), clock={"p": 1}),
        Event("q", 0, "deliver", "x", clock={"p": 1, "q": 1}),
        Event("q", 1, "local", clock={"p": 1, "q": 2}),
    ]
    write_trace("right.jsonl", right)
    write_trace("wrong.jsonl", [*right, Event("q", 2, "local", clock={"q": 3})])
    assert run("right.jsonl --strict")[0] == 0
    assert (run("wrong.jsonl")[0], run("wrong.jsonl --strict")[0]) == (0, 1)


def _many(name: str, addressed: int, strays: int) -> None:
    """Write a trace with some deliveries at an addressed process, and some at a process that the send does not name."""
    messages = [f"m{number}" for number in range(addressed + strays)]
    to = ["q"] * addressed + ["q+r"] * strays
    sends = [Event("p", at, "send", message, (to[at],)) for at, message in enumerate(messages)]
    write_trace(name, [*sends, *(Event("q", at, "deliver", message) for at, message in enumerate(messages))])


def test_deliveries_that_were_not_checked_are_counted_after_the_verdict(
    run: Callable[..., Said], reads: Snapshots
) -> None:
    _many("strays.jsonl", 3, 2)
    for name in ("strays.jsonl", "good.jsonl"):
        code, out, _ = run(name)
        assert code == 0
        reads(out)


def test_destinations_that_have_no_row_are_named_if_nothing_is_left(run: Callable[..., Said], reads: Snapshots) -> None:
    _many("strays.jsonl", 0, 2)
    code, _, err = run("strays.jsonl")
    assert code == 2
    reads(err)


def test_a_log_of_records_points_to_import(run: Callable[..., Said], reads: Snapshots) -> None:
    Path("raw.jsonl").write_text('{"node": "a", "event": "sent"}\n' * 3)
    code, _, err = run("raw.jsonl")
    assert code == 2
    reads(err)
