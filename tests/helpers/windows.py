"""Small bounds for the publishes of clients, so that short schedules reach them."""

import pytest

from antecede import limits
from antecede.server import client


def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a client have a few publishes that are not accepted, in batches of up to three."""
    monkeypatch.setattr(limits, "publish_window_max", 8)
    monkeypatch.setattr(limits, "publish_batch_max", 3)
    monkeypatch.setattr(client, "publish_batch_max", 3)
