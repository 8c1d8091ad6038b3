"""What all tests share: how large a budget they have, and how Hypothesis behaves on shared machines."""

import os
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A slow machine is no failure, and a failure must be the same one everywhere: no deadlines, no hidden randomness.
settings.register_profile("house", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

# A shell starts what runs in the background with SIGINT ignored, which our commands then leave so, and so would those
# that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's own folder."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def seeds() -> int:
    """How many random schedules a test may try: small by default, a campaign with ``ANTECEDE_SEEDS=100000``."""
    return int(os.environ.get("ANTECEDE_SEEDS", "300"))
