"""Campaigns: the checks of the other tests with a larger budget. The default run of the tests does not collect them.

    ./run test tests/campaigns/test_servers.py --seeds 10000 --jobs 2 --report servers.json

``--seeds``: how many seeds each campaign plays. ``--first``: the first of them. ``--jobs``: processes. ``--report``: a
file that keeps what was counted; the same command continues there. What one seed is, the campaign says.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from campaigns.driver import Played, Sums, run


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("campaigns")
    group.addoption("--seeds", type=int, default=1, help="seeds of each campaign")
    group.addoption("--first", type=int, default=0, help="the first seed")
    group.addoption("--jobs", type=int, default=1, help="processes of a campaign")
    group.addoption("--report", type=Path, help="keep the results in this file, and continue after those in it")


@pytest.fixture
def campaign(request: pytest.FixtureRequest) -> Callable[[Callable[[int], Played]], Sums]:
    """Return a function that plays all seeds of a campaign, and fails with the first findings."""
    option = request.config.getoption
    terminal = request.config.pluginmanager.getplugin("terminalreporter")
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def show(text: str) -> None:
        if terminal is not None and terminal.isatty:
            with capture.global_and_fixture_disabled():
                terminal.rewrite(text, erase=True)

    def played(play: Callable[[int], Played]) -> Sums:
        name = request.node.name.removeprefix("test_")
        sums = run(name, play, option("seeds"), option("first"), option("jobs"), option("report"), show)
        if terminal is not None:
            with capture.global_and_fixture_disabled():
                terminal.write_line(f"\n{name}: {sums}")
        again = f"./run test '{os.path.relpath(request.path)}::{request.node.name}' --seeds 1 --first"
        last = option("first") + sums.seeds - 1
        assert not sums.found, "\n".join([*sums.found[:20], f"again: {again} {last}"])
        return sums

    return played
