"""Epochs in a trace: each is judged by what its topology guaranteed, in every engine."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from antecede import pipeline
from antecede.cli import build
from antecede.errors import TraceError
from antecede.server import first_epoch, next_epoch
from antecede.topology import parse_topology
from antecede.trace import DELIVER, SEND, Area, Epoch, Epochs, Event, Metadata, epochs_in, verify, write_trace
from antecede.trace.epochs import united
from helpers.snapshots import Snapshots


class _Rows:
    """Rows of a trace, process by process."""

    def __init__(self) -> None:
        self.rows: list[Event] = []
        self.next: dict[str, int] = {}

    def _add(self, process: str, kind: str, message: str, to: tuple[str, ...] | None = None) -> None:
        index = self.next[process] = self.next.get(process, -1) + 1
        self.rows.append(Event(process, index, kind, message, to))

    def send(self, process: str, message: str, *to: str) -> None:
        self._add(process, SEND, message, to)

    def deliver(self, process: str, message: str) -> None:
        self._add(process, DELIVER, message)

    def since(self) -> dict[str, int]:
        """Return the next index of each process."""
        return {process: last + 1 for process, last in self.next.items()}

    def overtake(self, name: str) -> None:
        """Let a chain a → b → c overtake a message a → c: FIFO order holds, and causal order does not."""
        self.send("a", f"{name}1", "c")
        self.send("a", f"{name}2", "b")
        self.deliver("b", f"{name}2")
        self.send("b", f"{name}3", "c")
        self.deliver("c", f"{name}3")
        self.deliver("c", f"{name}1")


def _written(folder: Path, first: str, second: str, late: str) -> tuple[Path, _Rows, list[dict[str, Any]]]:
    """Write a trace with two epochs; ``late``: the epochs in which causal order is broken."""
    rows = _Rows()
    rows.send("a", "first", "b")
    rows.deliver("b", "first")
    if "0" in late:
        rows.overtake("x")
    since = rows.since()
    rows.send("a", "last", "c")
    rows.deliver("c", "last")
    if "1" in late:
        rows.overtake("y")
    epochs: list[dict[str, Any]] = [
        {"change": 0, "guarantee": first},
        {"change": 1, "guarantee": second, "since": since},
    ]
    path = folder / "trace.jsonl"
    write_trace(path, rows.rows, Metadata(epochs=epochs))
    write_trace(folder / "trace.parquet", rows.rows, Metadata(epochs=epochs))
    return path, rows, epochs


def _reports(path: Path, rows: _Rows, epochs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the verdict, after comparing that of all engines and inputs."""
    plain = verify([path])
    table = pa.Table.from_pylist(
        [{"process": e.process, "index": e.index, "kind": e.kind, "message": e.message, "to": e.to} for e in rows.rows]
    )
    framed = pipeline.verify(table, epochs=epochs)
    parquet = verify([path.with_suffix(".parquet")])
    for other in (framed, parquet):
        assert {key: other[key] for key in ("orders", "epochs")} == {key: plain[key] for key in ("orders", "epochs")}
    return plain


@pytest.mark.parametrize(
    ("first", "second", "late", "violations", "excused"),
    [
        ("fifo", "causal", "0", 0, 1),
        ("fifo", "causal", "1", 1, 0),
        ("fifo", "causal", "01", 1, 1),
        ("causal", "fifo", "0", 1, 0),
        ("causal", "fifo", "1", 0, 1),
        ("causal", "causal", "01", 2, 0),
        # Nobody guarantees it: then the question is what happened.
        ("fifo", "fifo", "01", 2, 0),
        ("none", "fifo", "0", 1, 0),
    ],
)
def test_each_epoch_is_judged_by_its_guarantee(
    first: str, second: str, late: str, violations: int, excused: int, tmp_path: Path
) -> None:
    written = _written(tmp_path, first, second, late)
    report = _reports(*written)
    causal = report["orders"]["causal"]
    assert (causal["late"], causal["not_guaranteed"]) == (violations, excused)
    assert causal["holds"] is (violations == 0)
    assert (causal["first"] is None) == (violations == 0)
    assert report["orders"]["fifo"]["holds"] is True
    by_epoch = [one["orders"]["causal"] for one in report["epochs"]]
    assert sum(one["late"] for one in by_epoch) == violations
    assert sum(one["not_guaranteed"] for one in by_epoch) == excused
    for at, one in enumerate(by_epoch):
        assert one["late"] + one["not_guaranteed"] == late.count(str(at))
    # Without epochs every late delivery counts.
    assert verify([written[0]], everywhere=True)["orders"]["causal"]["late"] == len(late)


def test_the_first_violation_is_the_first_that_breaks_a_guarantee(tmp_path: Path) -> None:
    report = _reports(*_written(tmp_path, "fifo", "causal", "01"))
    assert report["orders"]["causal"]["first"]["message"] == "y1"


def test_between_two_epochs_the_weaker_guarantee_holds(tmp_path: Path) -> None:
    rows = _Rows()
    rows.send("a", "m", "c")
    since = rows.since()
    rows.send("a", "n", "b")
    rows.deliver("b", "n")
    rows.send("b", "o", "c")
    rows.deliver("c", "o")
    rows.deliver("c", "m")
    for guarantees, late in ((("causal", "fifo"), 0), (("fifo", "causal"), 0), (("causal", "causal"), 1)):
        epochs = [{"change": at, "guarantee": one} for at, one in enumerate(guarantees)]
        epochs[1]["since"] = since
        write_trace(tmp_path / "trace.jsonl", rows.rows, Metadata(epochs=epochs))
        write_trace(tmp_path / "trace.parquet", rows.rows, Metadata(epochs=epochs))
        report = _reports(tmp_path / "trace.jsonl", rows, epochs)
        assert report["orders"]["causal"]["late"] == late, guarantees
        assert [one["orders"]["causal"]["late"] for one in report["epochs"]] == [late, 0]


def test_the_route_of_a_message_decides(tmp_path: Path) -> None:
    """Domain A is only FIFO; a message that does not pass it is guaranteed causal order."""
    rows = _Rows()
    rows.overtake("x")
    domains = {"A": {"servers": ["s1", "s2"], "guarantee": "fifo"}, "B": {"servers": ["s2", "s3", "s4"]}}
    domains["B"]["guarantee"] = "causal"
    for homes, late in (({"a": "s2", "b": "s3", "c": "s4"}, 1), ({"a": "s1", "b": "s3", "c": "s4"}, 0)):
        epochs = [{"change": 0, "guarantee": "fifo", "domains": domains, "agents": homes}]
        write_trace(tmp_path / "trace.jsonl", rows.rows, Metadata(epochs=epochs))
        write_trace(tmp_path / "trace.parquet", rows.rows, Metadata(epochs=epochs))
        assert _reports(tmp_path / "trace.jsonl", rows, epochs)["orders"]["causal"]["late"] == late


def test_the_command_says_what_each_epoch_guaranteed(tmp_path: Path) -> None:
    path, _, _ = _written(tmp_path, "fifo", "causal", "0")
    result = CliRunner().invoke(build(), ["verify", str(path)], standalone_mode=False)
    assert result.return_value == 0, result.output
    assert "causal       holds where it was guaranteed\n" in result.output
    unguaranteed = "1 delivery late under causal order, which was not guaranteed"
    assert f"epoch 0      guarantee fifo: {unguaranteed}\n" in result.output
    assert "epoch 1      guarantee causal: kept\n" in result.output
    result = CliRunner().invoke(build(), ["verify", str(path), "--everywhere", "--json"], standalone_mode=False)
    assert result.return_value == 1
    assert "epochs" not in json.loads(result.output)


def test_several_files_list_their_own_processes() -> None:
    one = [Epoch(0, "fifo"), Epoch(1, "causal", {"a": 3}), Epoch(2, "fifo", {"a": 5})]
    other = [Epoch(0, "fifo"), Epoch(1, "causal", {"b": 2}), Epoch(2, "fifo")]
    epochs = united([one, other])
    assert epochs is not None
    assert [epochs.of("a", index) for index in range(6)] == [0, 0, 0, 1, 1, 2]
    # It had no event in epoch 1, so its next one is in epoch 2.
    assert [epochs.of("b", index) for index in range(4)] == [0, 0, 2, 2]
    # It began after the last change.
    assert epochs.of("c", 0) == 2


def test_a_route_through_a_removed_server() -> None:
    areas = {"A": Area(("s1", "s2"), "causal"), "B": Area(("s2", "s3"), "fifo")}
    epochs = Epochs([Epoch(4, "fifo", domains=areas, moved={"s9": "s2"})])
    assert epochs.guaranteed("causal", 0, 0, "alice@s1", "bob@s9")
    assert not epochs.guaranteed("causal", 0, 0, "alice@s1", "bob@s3")
    assert not epochs.guaranteed("causal", 0, 0, "alice@s1", "bob@unknown")
    assert not epochs.guaranteed("causal", -1, 0, "alice@s1", "bob@s9")


def test_epochs_of_two_systems_are_refused(reads: Snapshots) -> None:
    with pytest.raises(TraceError) as caught:
        united([[Epoch(0, "fifo", epoch="abc")], [Epoch(0, "fifo", epoch="def")]])
    reads(str(caught.value))


@pytest.mark.parametrize(
    "document",
    [
        "fifo",
        [{"change": 0}],
        [{"change": 0, "guarantee": "some"}],
        [{"change": -1, "guarantee": "fifo"}],
        [{"change": 0, "guarantee": "fifo", "since": {"a": "3"}}],
    ],
)
def test_unreadable_epochs(document: Any, tmp_path: Path, reads: Snapshots) -> None:
    with pytest.raises(TraceError) as caught:
        epochs_in(document, "metadata")
    reads(str(caught.value))
    write_trace(tmp_path / "t.jsonl", [Event("a", 0, SEND, "m", ("b",))], Metadata(epochs=document))
    with pytest.raises(TraceError) as caught:
        verify([tmp_path / "t.jsonl"])
    reads(str(caught.value))
    assert verify([tmp_path / "t.jsonl"], everywhere=True)["messages"] == 1


def test_a_server_that_a_change_adds_lists_only_the_epochs_since_then() -> None:
    """Also if an agent came there with an index, before the server itself had any events."""
    alone = '[servers]\ns1 = "tcp://127.0.0.1:7101"\n[domains]\nA = { servers = ["s1"] }\n'
    new = parse_topology(alone.replace("[domains]", 's2 = "tcp://127.0.0.1:7102"\n[domains]'), "new")
    old = parse_topology(alone, "old")
    added = next_epoch(first_epoch(new), new, 1, {"greeter": 4}, 0)
    assert [(one.change, one.since) for one in added] == [(1, {"greeter": 4})]
    kept = next_epoch(first_epoch(old), new, 1, {"greeter": 4}, 0)
    assert [(one.change, one.since) for one in kept] == [(0, {}), (1, {"greeter": 4})]
