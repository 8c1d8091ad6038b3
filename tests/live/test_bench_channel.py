"""``antecede bench channel``: it runs, names what it measured, skips what is not there; no timing is judged."""

import json
from pathlib import Path

import pytest

from antecede.bench import report, versions
from antecede.bench.channel import Side, sides
from antecede.bench.children import SideError
from antecede.cli import run


def test_the_sides_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "channel", "--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [side.name for side in sides]
    assert {target.side for target in report.targets} <= set(listed)
    assert {target.against for target in report.targets if target.against} <= set(listed)


def test_a_round_of_our_own_sides_and_floors(capsys: pytest.CaptureFixture[str]) -> None:
    names = [
        "durable",
        "durable-clients",
        "floor-64",
        "stateful",
        "accepted",
        "exchange",
        "floor-exchange",
        "ping-pong",
        "ping-pong-client",
    ]
    command = ["bench", "channel", "--rounds", "1", "--messages", "1000", "--json", "--only", ",".join(names)]
    assert run(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["sides"]] == [side.name for side in sides if side.name in names]
    assert all(row["skipped"] is None and row["median"] > 0 for row in found["sides"]), found
    ratios = {(row["side"], row["against"]): row for row in found["ratios"]}
    assert ("exchange", "floor-exchange") in ratios
    assert ("durable", "redis-pipelined") not in ratios


def test_a_comparison_with_redis_has_clients_at_both_ends_too() -> None:
    assert [side.name for side in report.chosen("durable,redis-pipelined")] == [
        "durable",
        "durable-clients",
        "redis-pipelined",
    ]
    assert [side.name for side in report.chosen("durable,floor-1")] == ["durable", "floor-1"]


def test_what_is_missing_or_fails_is_said_and_the_rest_goes_on() -> None:
    def fails(messages: int, place: str) -> dict[str, float]:
        raise SideError("no luck")

    wanted = [
        Side("absent", "", 1.0, fails, modules=("no_such_module",)),
        Side("unlucky", "", 1.0, fails),
        Side("fine", "", 1.0, lambda messages, place: {"per_second": float(messages)}),
    ]
    told: list[str] = []
    found = report.bench_channel(wanted, 1_000, 2, None, told.append)
    assert [row["skipped"] for row in found["sides"]] == ["not installed: no_such_module", "no luck", None]
    assert found["sides"][2]["samples"] == [1_000.0, 1_000.0]
    assert "skipped: no luck" in report.table(found)
    assert told[0].startswith("absent: skipped")


def test_this_version_against_itself(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "channel", "--against", str(root), "--rounds", "2", "--messages", "1000"]
    assert run([*command, "--sides", "durable", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["sides"]] == ["durable"]
    assert isinstance(found["interpreter"]["optimized"], bool)
    for name in versions.FIGURES:
        figure = found["sides"][0][name]
        assert len(figure["ratios"]) == 2
        assert figure["low"] / 3 <= 1 <= figure["high"] * 3
    text = versions.comparison_table(found)
    assert "95 % interval" in text
    assert "optimizations" in text or "debug" in text


def test_a_client_with_permissions_against_one_without(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cryptography")
    command = ["bench", "channel", "--permissions", "--rounds", "1", "--messages", "1000"]
    assert run([*command, "--sides", "ping-pong-client", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["against"] == "no permissions"
    assert [row["name"] for row in found["sides"]] == ["ping-pong-client"]
    assert all(found["sides"][0][name]["this"] > 0 for name in versions.FIGURES)
    assert run([*command, "--sides", "durable"]) == 2
    assert "--only durable: with --permissions, expected some of accepted" in capsys.readouterr().err


def test_what_cannot_be_compared_is_refused(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "channel", "--against", str(tmp_path)]) == 2
    assert "no src/antecede there" in capsys.readouterr().err
    assert run(["bench", "channel", "--against", str(root), "--sides", "floor-1"]) == 2
    assert "expected some of durable" in capsys.readouterr().err


def test_the_interval_of_a_ratio() -> None:
    assert versions.interval([1.0]) == (None, None)
    low, high = versions.interval([0.9, 1.0, 1.1, 1.0, 1.0])
    assert low is not None
    assert high is not None
    # Student's t for 4 degrees of freedom, 2.776, on the logarithms.
    assert (low, high) == pytest.approx((0.9138, 1.0900), abs=0.001)


def test_an_unknown_side_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "channel", "--only", "kafka"]) == 2
    assert "--only kafka: expected some of" in capsys.readouterr().err
