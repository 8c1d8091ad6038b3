"""One Spark session for the run, and the random traces that every engine is held against.

The traces are those of ``tests/properties/definitions.py``, dressed: with recorded clocks that are right, that tick in
their own way or that lie, and with indices that leave gaps.
"""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec
import pytest

from antecede.trace import Event
from helpers.ports import free_ports

pytest.importorskip("pyspark")
pytest.importorskip("numba")

ALL = ("fifo", "causal", "total", "synchronous")


@pytest.fixture(scope="session")
def connect_port() -> int:
    """A port for Spark Connect that nobody listens at."""
    return free_ports(1)[0]


@pytest.fixture(scope="session")
def running(connect_port: int) -> Iterator[Any]:
    """A Spark session on this machine, which serves Spark Connect as well."""
    from antecede.pipeline import session

    conf = {
        "spark.sql.shuffle.partitions": "3",
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(connect_port),
    }
    with session("local[2]", conf) as started:
        yield started


@pytest.fixture
def command(
    running: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], tuple[int, str, str]]:
    """Run a command in a folder of its own, on the session of all tests: exit code, standard output and error."""
    from antecede.cli import run

    @contextmanager
    def session(master: str | None, conf: dict[str, str], lean: bool) -> Iterator[Any]:
        yield running

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("antecede.pipeline.sessions.session", session)
    monkeypatch.setattr("antecede.pipeline.judge.files.session", session)

    def command(line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(line.split())
        said = capsys.readouterr()
        return code, said.out, said.err

    return command


@pytest.fixture(scope="session")
def connected(running: Any, connect_port: int) -> Iterator[Any]:
    """A Spark Connect session: it has no ``sparkContext``, and its DataFrames have no ``rdd``."""
    pytest.importorskip("grpc")
    from pyspark.sql.connect.session import SparkSession

    spark = SparkSession.builder.remote(f"sc://127.0.0.1:{connect_port}").create()
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def random_trace(root: Path) -> Callable[[int], list[Event]]:
    """A small trace for each seed: ``dressed(definitions.random_trace(SEED), SEED)``; some with assumed rows."""
    path = root / "tests" / "properties" / "definitions.py"
    spec = importlib.util.spec_from_file_location("definitions", path)
    assert spec is not None
    assert spec.loader is not None
    definitions = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(definitions)

    def made(seed: int) -> list[Event]:
        rows = dressed(definitions.random_trace(seed), seed)
        return definitions.with_assumed(rows, seed) if seed % 3 == 2 else rows

    return made


def dressed(rows: list[Event], seed: int) -> list[Event]:
    """The rows with clocks, times and wider indices, as the seed has it."""
    random = Random(f"dress {seed}")
    if random.random() < 0.3:
        factor = random.choice((1000, 10**6, 10**12))
        rows = [msgspec.structs.replace(row, index=row.index * factor) for row in rows]
    if random.random() < 0.4:
        return rows
    style = random.choice(("exact", "own ticks", "lies"))
    clocks: dict[str, dict[str, int]] = {}
    lamport: dict[str, int] = {}
    carried: dict[str | None, tuple[dict[str, int], int]] = {}
    out = []
    for row in rows:
        clock = clocks.setdefault(row.process, {})
        if row.kind == "deliver" and row.message in carried:
            for name, entry in carried[row.message][0].items():
                clock[name] = max(clock.get(name, 0), entry)
            lamport[row.process] = max(lamport.get(row.process, 0), carried[row.message][1])
        lamport[row.process] = lamport.get(row.process, 0) + 1
        clock[row.process] = row.index + 1 if style == "exact" else clock.get(row.process, 0) + random.choice((1, 1, 2))
        if style == "lies" and random.random() < 0.2:
            clock[random.choice(("p0", "p1", "nobody else"))] = random.randint(-1, 9)
        if row.kind == "send":
            carried[row.message] = dict(clock), lamport[row.process]
        said = random.randint(0, 9) if style == "lies" and random.random() < 0.1 else lamport[row.process]
        out.append(
            msgspec.structs.replace(
                row,
                clock=dict(clock) if random.random() < 0.9 else None,
                lamport=said if random.random() < 0.9 else None,
                time=random.randint(0, 99),
            )
        )
    return out


def several(traces: list[list[Event]]) -> list[Event]:
    """Many traces as one: names and ids get the number of the trace that they belong to."""

    def moved(number: int, row: Event) -> Event:
        def name(text: str) -> str:
            return f"{number:03d}/{text}"

        return msgspec.structs.replace(
            row,
            process=name(row.process),
            message=name(row.message) if row.message is not None else None,
            to=tuple(map(name, row.to)) if row.to is not None else None,
            clock={name(key): entry for key, entry in row.clock.items()} if row.clock is not None else None,
        )

    return [moved(number, row) for number, rows in enumerate(traces) for row in rows]


def with_uuids(rows: list[Event]) -> list[Event]:
    """The same rows with UUIDs as message ids."""

    def moved(message: str | None) -> str | None:
        return None if message is None else str(uuid5(NAMESPACE_OID, message))

    return [msgspec.structs.replace(row, message=moved(row.message)) for row in rows]


def bare(rows: list[Event]) -> list[Event]:
    """The same rows without clocks, times and assumed positions."""
    return [msgspec.structs.replace(row, clock=None, lamport=None, time=None, assumed=None) for row in rows]


def judged(report: dict[str, Any]) -> dict[str, Any]:
    """A report without what differs from run to run or from engine to engine."""
    # Only files have places to name: that both engines name the same ones is tested by itself.
    besides = ("version", "engine", "session_seconds", "seconds", "events_per_second", "unread_first", "nulled_first")
    return {key: value for key, value in report.items() if key not in besides}


@pytest.fixture(scope="session")
def spoken() -> Any:
    """The functions above, for tests that are not in this module's folder by import."""

    class Spoken:
        ALL = ALL
        dressed = staticmethod(dressed)
        several = staticmethod(several)
        with_uuids = staticmethod(with_uuids)
        bare = staticmethod(bare)
        judged = staticmethod(judged)

    return Spoken
