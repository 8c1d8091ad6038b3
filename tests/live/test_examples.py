"""What the README prints is what happens, and the examples do what they say; on ports that are free."""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_root = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def place(cluster: Callable[..., Any]) -> Any:
    """A world in whose folder lie the examples, with addresses that nobody uses."""
    world = cluster({"A": [f"s{number}" for number in range(8)]}, {})
    shutil.copytree(_root / "examples", world.folder / "examples")
    for file in (world.folder / "examples").glob("*.toml"):
        text = file.read_text()
        for address, port in zip(re.findall(r"127\.0\.0\.1:\d+", text), world.ports.values(), strict=False):
            text = text.replace(address, f"127.0.0.1:{port}")
        file.write_text(text)
    return world


def _up(world: Any, *arguments: str) -> None:
    """``antecede up``, in the background until the test is over."""
    world.processes["up"] = subprocess.Popen(
        [sys.executable, "-m", "antecede", *arguments],
        env=world.environment,
        cwd=world.folder,
        stdout=subprocess.DEVNULL,
        stderr=(world.folder / "up.log").open("wb"),
    )


def _down(world: Any) -> None:
    world.processes["up"].send_signal(signal.SIGTERM)
    assert world.processes["up"].wait(30) == 0, world.log("up")


def test_the_bank_agrees_under_three_orders(place: Any) -> None:
    command = [sys.executable, "examples/bank.py", "--operations", "300", "--branches", "5", "--json"]
    done = subprocess.run(
        command, env=place.environment, cwd=place.folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert list(rows) == ["pruned", "skeen", "objects"]
    assert all(row["alike"] and row["accounts"] == rows["skeen"]["accounts"] for row in rows.values())
    assert rows["pruned"]["disputed"] > 0
    assert rows["skeen"]["disputed"] == rows["objects"]["disputed"] == 0
    assert rows["objects"]["remarks"]["held"] == 0


def test_the_bank_is_open(place: Any) -> None:
    _up(place, "up", "examples/bank.toml", "--data", "bank", "--trace")
    status = ("status", "examples/bank.toml", "--json")
    place.until(lambda: place.command(*status).returncode == 0, f"all well: {place.log('up')}", 60)
    addresses = re.findall(r"tcp://[\d.:]+", (place.folder / "examples" / "bank.toml").read_text())
    done = subprocess.run(
        [sys.executable, "examples/bank.py", "live", "--operations", "5", "--servers", *addresses],
        env=place.environment,
        cwd=place.folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "45 calls by 9 tellers" in done.stdout
    audits = [line.partition(": ")[2] for line in done.stdout.splitlines() if line.startswith("audit at ")]
    called = place.command("objects", "call", "examples/bank.toml", "anna", "audit", "--server", "s2")
    assert f"'anna': {called.stdout.strip()}," in audits[0]
    failed = place.command("objects", "call", "examples/bank.toml", "anna", "deposit", "much")
    assert (failed.returncode, "Expected `int`, got `str`" in failed.stderr) == (2, True)
    assert len(audits) == 3
    assert len(set(audits)) == 1
    _down(place)
    done = place.command("verify", "bank", "--order", "significant", "--engine", "plain")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_snowflake_exchanges_messages_between_all_pairs(place: Any) -> None:
    _up(place, "up", "examples/snowflake.toml", "--data", "snow", "--trace")
    status = ("status", "examples/snowflake.toml", "--json")
    place.until(lambda: place.command(*status).returncode == 0, f"all well: {place.log('up')}", 60)
    address = re.findall(r"tcp://[\d.:]+", (place.folder / "examples" / "snowflake.toml").read_text())[0]
    done = subprocess.run(
        [sys.executable, "examples/snowflake.py", "--messages", "20000", "--server", address],
        env=place.environment,
        cwd=place.folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "20,000 messages between 56 pairs" in done.stdout
    assert "0 lost, duplicated or out of order" in done.stdout
    _down(place)
    report = json.loads(place.command("verify", "snow", "--engine", "plain", "--json").stdout)
    assert report["complete"]
    assert report["undelivered"] == 0
    assert report["messages"] >= 20_000
    assert report["orders"]["causal"]["holds"]
