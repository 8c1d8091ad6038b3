"""``antecede bench channel``: it runs, names what it measured, skips what is not there; no timing is judged."""

import json

import pytest

from antecede.bench import report
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


def test_what_is_missing_or_fails_is_said_and_the_rest_goes_on() -> None:
    def fails(messages: int, place: str) -> dict[str, float]:
        raise SideError("no luck")

    wanted = [
        Side("absent", "", "per_second", 1.0, fails, modules=("no_such_module",)),
        Side("unlucky", "", "per_second", 1.0, fails),
        Side("fine", "", "per_second", 1.0, lambda messages, place: {"per_second": float(messages)}),
    ]
    told: list[str] = []
    found = report.bench_channel(wanted, 1_000, 2, None, told.append)
    assert [row["skipped"] for row in found["sides"]] == ["not installed: no_such_module", "no luck", None]
    assert found["sides"][2]["samples"] == [1_000.0, 1_000.0]
    assert "skipped: no luck" in report.table(found)
    assert told[0].startswith("absent: skipped")


def test_an_unknown_side_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "channel", "--only", "kafka"]) == 2
    assert "--only kafka: expected some of" in capsys.readouterr().err
