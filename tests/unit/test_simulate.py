"""``simulate``: its document, its determinism, its refusals."""

import json
from pathlib import Path

import pytest

from antecede.cli import run
from antecede.errors import AntecedeError
from antecede.orders import names, parse
from antecede.simulator.run import WORKLOADS, Setup, simulate


@pytest.mark.parametrize("order", names())
@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_order_delivers_every_workload(order: str, workload: str) -> None:
    if order == "vector" and workload != "broadcast":
        with pytest.raises(AntecedeError, match="broadcasts only"):
            simulate(Setup(parse(order), 4, 40, workload))
        return
    figures = simulate(Setup(parse(order), 4, 40, workload))
    assert figures["undelivered"] == 0
    assert figures["deliveries"] >= figures["messages"]


def test_the_document_has_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["simulate", "--order", "matrix", "--processes", "5", "--messages", "50", "--warmup", "10", "--json"]) == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert set(document) >= {
        "order", "processes", "messages", "deliveries", "undelivered", "held", "stamp", "latency", "seconds",
    }  # fmt: skip
    assert set(document["stamp"]) >= {"dependents_mean", "bytes_mean", "bytes_max", "paper_bytes_mean"}
    assert document["messages"] == 40
    assert document["stamp"]["dependents_mean"] == 25
    assert document["stamp"]["paper_bytes_mean"] == 100


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.jsonl" for number in range(3)]
    for file, seed in zip(files, ("7", "7", "8"), strict=True):
        arguments = [
            "--messages",
            "60",
            "--multicast",
            "--seed",
            seed,
            "--loss",
            "0.1",
            "--trace",
            str(file),
        ]
        assert run(["simulate", *arguments]) == 0
    assert files[0].read_bytes() == files[1].read_bytes() != files[2].read_bytes()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--order", "nonsense"],
        ["--order", "buffer:pipelined=maybe"],
        ["--order", "matrix:x=1"],
        ["--processes", "1"],
        ["--processes", "-3"],
        ["--messages", "-1"],
        ["--warmup", "2000"],
        ["--gap", "never"],
        ["--delay", "uniform:2,1"],
        ["--delay", "pareto:0,1"],
        ["--loss", "1.5"],
        ["--loss", "0.1", "--fifo-links"],
        ["--multicast", "--broadcast"],
        ["--workload", "gossip"],
        ["--order", "vector"],
        ["--trace", "run.txt"],
        ["--trace", "no/such/folder/run.jsonl"],
    ],
)
def test_what_cannot_be_meant_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
