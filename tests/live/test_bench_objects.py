"""``antecede bench objects``: it runs, names what it measured, skips what is not there; no timing is judged."""

import json

import pytest

from antecede.bench import objects
from antecede.cli import run


def test_a_round_in_memory_without_etcd(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "program", lambda name: None)
    command = ["bench", "objects", "--calls", "20", "--kinds", "compatible,unconfirmed,nested", "--under-way", "1"]
    assert run([*command, "--states", "1000", "--disk", "no", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["side"], row["kind"]) for row in found["rows"]] == [
        ("ours", "compatible"),
        ("floor", "compatible"),
        ("ours", "unconfirmed"),
        ("ours", "nested"),
    ]
    assert all(row["per_second"] > 0 for row in found["rows"])
    assert 6 <= found["rows"][0]["frames"] < 7
    assert 2 <= found["rows"][2]["frames"] < 3
    assert "etcd-server" in found["skipped"]["etcd"]
    assert "etcd: skipped: not installed" in objects.table(found)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--kinds", "odd"], "--kinds odd: expected some of compatible"),
        (["--under-way", "0"], "--under-way '0': expected numbers of at least 1"),
        (["--states", "1,x"], "--states '1,x': expected numbers"),
        (["--disk", "maybe"], "--disk maybe: expected yes, no or both"),
        (["--etcd", "/no/such/program"], "--etcd /no/such/program: expected the path of a program that can be run"),
    ],
)
def test_bad_options_are_refused(capsys: pytest.CaptureFixture[str], options: list[str], reason: str) -> None:
    assert run(["bench", "objects", *options]) == 2
    assert reason in capsys.readouterr().err
