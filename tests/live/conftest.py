"""Real servers: separate processes, real sockets, a real disk."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.clusters import Cluster

sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Make clusters; whatever still runs at the end is killed."""
    made: list[Cluster] = []

    def make(domains: dict[str, list[str]], agents: dict[str, tuple[str, str]]) -> Cluster:
        folder = tmp_path / f"cluster{len(made)}"
        folder.mkdir()
        made.append(Cluster(folder, domains, agents))
        return made[-1]

    yield make
    for one in made:
        for process in one.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
