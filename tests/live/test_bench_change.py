"""``antecede bench change``: the command measures round trips around real changes, on a small scale."""

from pathlib import Path

from antecede.bench.change import WINDOWS, Settings, bench_change, table


def test_the_figures_of_a_change(tmp_path: Path) -> None:
    report = bench_change(Settings(2, 1, 40, 0.3, "os"), str(tmp_path), lambda done, total: None)
    assert tuple(report["windows"]) == WINDOWS
    for row in report["windows"].values():
        assert row["round_trips"] > 2
        assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["longest_ms"]
    ratio = report["ratios"]["p99"]
    assert ratio["value"] == report["windows"]["change"]["p99_ms"] / report["windows"]["dry_run"]["p99_ms"]
    assert ratio["low"] <= ratio["value"] <= ratio["high"]
    assert table(report).count(" ms") == 12
    assert not list(tmp_path.iterdir()), "nothing is left behind"
