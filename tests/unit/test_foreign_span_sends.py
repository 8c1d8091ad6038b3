"""Where the messages between imported spans were sent, and what that can prove."""

import json
from pathlib import Path
from typing import Any

import pytest

from antecede.trace import verify
from antecede.trace.foreign import convert


def _zipkin(
    span: str, service: str, start: int, parent: str | None = None, kind: str | None = None, **more: Any
) -> dict[str, Any]:
    said = {"traceId": "t", "id": span, "timestamp": start, "localEndpoint": {"serviceName": service}, **more}
    if parent:
        said["parentId"] = parent
    if kind:
        said["kind"] = kind
    return said


def _import(folder: Path, spans: Any) -> dict[str, Any]:
    (folder / "spans.json").write_text(json.dumps(spans))
    return convert([folder / "spans.json"], folder / "t.jsonl")


@pytest.mark.parametrize("names", [("api", "cart", "mail"), ("mail", "cart", "api"), ("cart", "mail", "api")])
def test_calls_one_after_the_other_are_in_order_whatever_the_services_are_called(
    names: tuple[str, str, str], tmp_path: Path
) -> None:
    """The first call reaches the third service by way of the second, and only then does the root call it itself."""
    first, second, third = names
    spans = [
        _zipkin("1", first, 0, duration=100),
        _zipkin("2", second, 10, "1", duration=20),
        _zipkin("3", third, 15, "2", duration=5),
        _zipkin("4", third, 50, "1", duration=5),
    ]
    _import(tmp_path, spans)
    said = verify([tmp_path / "t.jsonl"], ("fifo", "causal", "synchronous"))
    for order in ("fifo", "causal"):
        assert (said["orders"][order]["holds"], said["orders"][order]["undecided"]) == (True, 0)
    assert said["orders"]["synchronous"]["holds"]


def test_short_spans_of_producers_prove_that_a_message_was_overtaken(tmp_path: Path) -> None:
    spans = [
        _zipkin("1", "a", 10, None, "PRODUCER", duration=1),
        _zipkin("2", "a", 20, None, "PRODUCER", duration=1),
        _zipkin("3", "b", 50, "2", "CONSUMER"),
        _zipkin("4", "b", 60, "1", "CONSUMER"),
    ]
    _import(tmp_path, spans)
    assert verify([tmp_path / "t.jsonl"])["orders"]["fifo"] == {"holds": False, "late": 1, "undecided": 0}
    # If the first was still being sent when the second was, or the clock is not one clock, nothing is proven.
    (tmp_path / "t.jsonl").unlink()
    spans[0]["duration"] = 30
    _import(tmp_path, spans)
    assert verify([tmp_path / "t.jsonl"])["orders"]["fifo"] == {"holds": True, "late": 0, "undecided": 0}
    (tmp_path / "t.jsonl").unlink()
    spans[0]["duration"] = 1
    spans[3]["localEndpoint"]["ipv4"] = "10.0.0.2"
    report = _import(tmp_path, spans)
    assert report["assumed"] == {"several_instances": 2}
    assert verify([tmp_path / "t.jsonl"])["orders"]["fifo"] == {"holds": True, "late": 0, "undecided": 1}
