"""``antecede play`` as people meet it: exit codes, one line an error, JSON, trace and drawing."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from antecede import cli
from antecede.messages import Packet
from antecede.orders import Fifo
from antecede.trace import verify
from helpers.snapshots import Snapshots

_chain = """# Garg fig. 12.1
processes P1 P2 P3
send x P1 -> P3
send y P1 -> P2
arrive y P2
send z P2 -> P3
arrive z P3
expect P3 holds z under causal
expect P3 delivered z under none,fifo
arrive x P3
expect P3 delivered x z
"""


@pytest.fixture
def chain(tmp_path: Path) -> str:
    path = tmp_path / "chain.txt"
    path.write_text(_chain)
    return str(path)


def test_all_expectations_hold(chain: str, capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    assert cli.run(["play", chain]) == 0
    said = capsys.readouterr()
    reads(said.out)
    assert said.err == ""


def test_one_fails(chain: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["play", chain, "--order", "fifo"]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{chain}:11: expected P3 delivered x z; actual: P3 delivered z x (under fifo)"
    assert second == "chain.txt under fifo: 1 of 2 expectations fails, 1 for other orders"


def test_a_file_without_expectations(tmp_path: Path, capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    path = tmp_path / "plain.txt"
    path.write_text("processes P Q\nsend x P -> Q\narrive x Q\n")
    assert cli.run(["play", str(path), "--order", "none"]) == 0
    reads(capsys.readouterr().out)
    path.write_text(path.read_text() + "expect Q delivered\n")
    assert cli.run(["play", str(path), "--order", "none"]) == 1
    assert capsys.readouterr().out.endswith("plain.txt under none: 1 of 1 expectation fails\n")


class Hurried(Fifo):
    """Forgets to wait, so that an earlier message comes too late and counts as a repeat."""

    def missing(self, packet: Packet) -> tuple[int, int] | None:
        return None


def test_a_message_that_is_dropped_as_a_repeat_is_not_drawn_as_held(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antecede.orders.fifo.Fifo", Hurried)
    path, picture = tmp_path / "late.txt", tmp_path / "late.svg"
    path.write_text("processes P Q\nsend x P -> Q\nsend y P -> Q\narrive y Q\narrive x Q\n")
    assert cli.run(["play", str(path), "--order", "fifo", "--diagram", "--svg", str(picture)]) == 0
    drawn = capsys.readouterr().out
    assert "dropped as a repeat" in drawn
    assert "held" not in drawn
    assert "Q: delivers y, drops x." in picture.read_text()


def test_several_orders(chain: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["play", chain, "--order", "matrix,pruned", "--order", "direct"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["order", "failed", "fifo", "causal", "total", "sync", "delivered"]
    assert [row.split()[1:4] for row in rows] == [["0", "of", "2"]] * 3
    assert [row.split()[0] for row in rows] == ["matrix", "pruned", "direct"]


def test_options_in_a_comma_list(chain: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = "buffer:pipelined=true,multicast=hold-delivery,skeen:causal=true,none"
    cli.run(["play", chain, "--order", asked, "--json"])
    plays = json.loads(capsys.readouterr().out)["plays"]
    names = ["buffer:multicast=hold-delivery,pipelined=true", "skeen:causal=true", "none"]
    assert [entry["order"] for entry in plays] == names


def test_json(chain: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["play", chain, "--order", "fifo", "--json"]) == 1
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert list(document) == ["file", "raw", "holds", "plays"]
    assert (document["file"], document["raw"], document["holds"]) == (chain, False, False)
    assert document["plays"] == [
        {
            "order": "fifo",
            "guarantees": ["fifo"],
            "holds": False,
            "checked": 2,
            "skipped": 1,
            "failures": [{"line": 11, "expected": "P3 delivered x z", "actual": "P3 delivered z x"}],
            "delivered": {"P1": [], "P2": ["y"], "P3": ["z", "x"]},
            "held": {},
            "unposted": [],
            "blocked": [],
            "stuck": False,
            "kept": {"fifo": True, "causal": False, "total": True, "synchronous": False},
        }
    ]


def test_a_play_that_cannot_be(chain: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["play", chain, "--order", "matrix,vector", "--json"]) == 2
    said = capsys.readouterr()
    good, bad = json.loads(said.out)["plays"]
    assert good["holds"]
    assert bad == {"order": "vector", "error": said.err.removeprefix("antecede: ").rstrip("\n")}
    assert said.err.startswith(f"antecede: {chain}:3: order vector supports broadcasts only")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-file.txt"], "no-such-file.txt: cannot be read: No such file or directory"),
        (["CHAIN", "--order", "chaos"], "unknown order 'chaos'"),
        (
            ["CHAIN", "--order", "mine:Mine"],
            "; to use your own order, install it as an entry point: docs/guide/orders.md",
        ),
        (["CHAIN", "--order", "buffer:speed=1"], "no option speed"),
        (["CHAIN", "--order", "coordinator:member=9"], "member=9"),
        (["CHAIN", "--order", "coordinator:member=" + "9" * 5000], "--order"),
        (["CHAIN", "--order", "none,fifo", "--trace", "t.jsonl"], "one --order"),
        (["CHAIN", "--svg", "no/such/folder/x.svg"], "cannot be written"),
        (["CHAIN", "--trace", "no/such/folder/x.jsonl"], "cannot be written"),
        (["CHAIN", "--trace", "x.csv"], ".jsonl"),
        ([], "FILE"),
    ],
)
def test_bad_usage(arguments: list[str], said: str, chain: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["play", *(chain if word == "CHAIN" else word for word in arguments)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("antecede: ")
    assert said in error
    assert error.count("\n") == 1


def test_bad_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    path = tmp_path / "bad.txt"
    path.write_text("processes P Q\nsend x P => Q\n")
    assert cli.run(["play", str(path)]) == 2
    reads(capsys.readouterr().err)


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(_chain.encode())))
    assert cli.run(["play", "-"]) == 0
    reads(capsys.readouterr().out)


def test_drawings(chain: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], reads: Snapshots) -> None:
    picture = tmp_path / "chain.svg"
    assert cli.run(["play", chain, "--order", "none", "--diagram", "--svg", str(picture)]) == 1
    reads(capsys.readouterr().out)
    assert picture.read_text().startswith("<svg")


def test_story(chain: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["play", chain, "--verbose"]) == 0
    said = capsys.readouterr().out
    assert "   7  arrive z P3\n        z arrives at P3\n        P3 holds z\n" in said


def test_trace_can_be_verified(chain: str, tmp_path: Path) -> None:
    for order, late in (("none", 1), ("matrix", 0)):
        path = tmp_path / f"{order}.jsonl"
        cli.run(["play", chain, "--order", order, "--trace", str(path)])
        report = verify([str(path)], ("fifo", "causal"), None, None)
        assert report["complete"]
        assert report["orders"]["causal"]["late"] == late


def test_raw(tmp_path: Path) -> None:
    path = tmp_path / "twice.txt"
    path.write_text("processes P Q\norder none\nsend x P -> Q\narrive x Q\narrive x Q again\nexpect Q delivered x\n")
    assert cli.run(["play", str(path)]) == 0
    assert cli.run(["play", str(path), "--raw"]) == 1
