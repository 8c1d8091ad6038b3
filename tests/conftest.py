"""What all tests share: how large a budget they have, and how Hypothesis behaves on shared machines."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A slow machine is no failure, and a failure must be the same one everywhere: no deadlines, no hidden randomness.
settings.register_profile("house", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")


def pytest_configure() -> None:
    """Let interrupts through to the processes that tests start: a shell starts its background jobs with SIGINT ignored,
    and children inherit that."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            # Only the main thread may change it.
            with suppress(ValueError):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's own folder."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def seeds() -> int:
    """How many random schedules a test may try: small by default, a campaign with ``ANTECEDE_SEEDS=100000``."""
    return int(os.environ.get("ANTECEDE_SEEDS", "300"))
