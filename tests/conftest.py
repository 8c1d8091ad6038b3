"""What all tests share: how large a budget they have, and how Hypothesis behaves on shared machines."""

import gc
import os
import re
import signal
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import antecede
from helpers.snapshots import Snapshots

# A slow machine is no failure, and a failure must be the same one everywhere: no deadlines, no hidden randomness.
settings.register_profile("house", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

# The JVMs of tests live for seconds: the optimizing compiler and a collector with threads of its own would take half of
# their time, and never give it back.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Tests start hundreds of processes. Without bytecode on disk, each of them would compile our modules again, which takes
# longer than most of what they are started for.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="Write the texts that people read to tests/snapshots.")


def pytest_configure() -> None:
    """Let interrupts through to the processes that tests start: a shell starts its background jobs with SIGINT ignored,
    and children inherit that."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            # Only the main thread may change it.
            with suppress(ValueError):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """Keep the thousands of collected tests out of every later search for garbage: they stay until the end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Spread tests over the processes one by one, but run all that use the Spark session in the same process, so that
    only one session is started and gets warm. The checks of the source share what they parsed."""
    from xdist.scheduler import LoadScopeScheduling

    class Spread(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if _uses_spark(file):
                return "spark"
            return file if file in _together else nodeid

    # The marks of xdist 3.8 have no effect with pytest 9.
    return Spread(config, log) if config.getoption("dist") == "loadgroup" else None


_together = ("tests/unit/test_tidy.py",)


@cache
def _uses_spark(file: str) -> bool:
    """Whether some test of this file takes the session of ``tests/pipeline/conftest.py``."""
    text = (Path(__file__).parent.parent / file).read_text() if file.startswith("tests/pipeline/") else ""
    return re.search(r"^ *(def .*\b)?(running|connected|command): ", text, re.MULTILINE) is not None


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's own folder."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture
def reads(request: pytest.FixtureRequest, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Snapshots:
    """Compare what people read with its snapshot (:mod:`helpers.snapshots`)."""
    monkeypatch.setenv("COLUMNS", "100")
    module = request.path.stem.removeprefix("test_")
    subject = "cli" if module.endswith("_cli") else module.partition("_")[0]
    hidden = {
        re.escape(str(tmp_path)): "FOLDER",
        re.escape(str(root)): "PROJECT",
        re.escape(antecede.__version__): "VERSION",
        r"127\.0\.0\.1:\d{5}": "127.0.0.1:PORT",
        r"[\d.,]+ s, [\d,]+ events/s, ": "",
    }
    file = root / "tests" / "snapshots" / f"{subject}.txt"
    return Snapshots(file, f"{module} {request.node.name}", hidden, request.config.getoption("update"))


@pytest.fixture(scope="session")
def seeds() -> int:
    """How many random schedules a test may try: small by default, a campaign with ``ANTECEDE_SEEDS=100000``."""
    return int(os.environ.get("ANTECEDE_SEEDS", "300"))
