"""The figures of a restart, on a small scale; a multicast is stored once."""

from antecede.bench.restart import restart


def test_the_figures_of_a_restart() -> None:
    found = restart(300, 20, 400, 100, lambda done, total: None)
    assert found["single"]["records"] == 300
    assert found["single"]["waiting"] == 1
    crowd = found["crowd"]
    assert crowd["entries"] == 8_000
    # With a full copy for each client it would be more than a megabyte.
    assert crowd["snapshot_bytes"] < 64_000 < crowd["allowed_bytes"]
