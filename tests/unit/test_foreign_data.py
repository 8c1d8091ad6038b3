"""Real traces of other systems, against what is known of them; skipped where they are not at hand."""

from pathlib import Path
from typing import Any

import pytest

from antecede.trace import verify
from antecede.trace.foreign import convert

_data = Path(__file__).resolve().parents[3] / "shared" / "data"
pytestmark = pytest.mark.skipif(not _data.is_dir(), reason="no shared data here")


def _both(name: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    path = _data / name
    if not path.exists():
        pytest.skip(f"no {name} here")
    report = convert([path], folder / "t.jsonl")
    return report, verify([folder / "t.jsonl"])


def test_logs_with_vector_clocks(logged: tuple[str, int, int, int], tmp_path: Path) -> None:
    name, hosts, events, edges = logged
    report, said = _both(f"shiviz/{name}.log", tmp_path)
    assert (report["processes"], report["events"], report["messages"]) == (hosts, events, edges)
    assert (said["processes"], said["messages"], said["deliveries"], said["undelivered"]) == (hosts, edges, edges, 0)
    assert (said["clocks"]["checked"], said["clocks"]["disagree"]) == (events, 0)
    assert (said["orders"]["fifo"]["late"], said["orders"]["causal"]["late"]) == (0, 0)
    assert said["quarantined"] == {}


@pytest.mark.parametrize(("name", "early"), [("messaging-kafka", 3), ("skew", 2)])
def test_zipkin_children_before_their_parent(name: str, early: int, tmp_path: Path) -> None:
    report, said = _both(f"zipkin/{name}.json", tmp_path)
    assert (report["early_children"], report["unreadable"]) == (early, 0)
    assert said["quarantined"] == {}


@pytest.mark.parametrize(("name", "spans", "messages"), [("messaging", 4, 1), ("messaging2", 11, 1), ("yelp", 16, 7)])
def test_zipkin_messages(name: str, spans: int, messages: int, tmp_path: Path) -> None:
    report, said = _both(f"zipkin/{name}.json", tmp_path)
    assert (report["events"], report["messages"], report["unreadable"]) == (spans, messages, 0)
    assert said["complete"]


def test_a_shop_of_microservices(tmp_path: Path) -> None:
    report, said = _both("spans/online-boutique.csv.gz", tmp_path)
    assert (report["events"], report["processes"], report["messages"]) == (16_833, 10, 4_064)
    assert (report["early_messages"], report["cycle"], report["unreadable"]) == (2, 0, 0)
    assert (said["deliveries"], said["complete"]) == (4_064, True)
    # Its calls are synchronous. With each send at the start of its parent span, 804 deliveries would be late.
    for order in ("fifo", "causal"):
        assert (said["orders"][order]["late"], said["orders"][order]["undecided"]) == (0, 0)


def test_an_editing_session(tmp_path: Path) -> None:
    report, said = _both("editing/friendsforever.json.gz", tmp_path)
    assert (report["events"], report["processes"], report["merges"]) == (26_078, 2, 2_258)
    assert (said["deliveries"], said["complete"], said["orders"]["causal"]["late"]) == (report["messages"], True, 0)
