"""A trace cannot be recorded without pyarrow: this is said before a server starts."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("command", [("up",), ("serve", "--server", "s1")])
def test_a_trace_without_pyarrow_is_refused_at_the_start(cluster: Callable[..., Any], command: tuple[str, ...]) -> None:
    world = cluster({"A": ["s1"]}, {})
    (world.folder / "sitecustomize.py").write_text("import sys\nsys.modules['pyarrow'] = None\n")
    world.environment["PYTHONPATH"] = f"{world.folder}:{world.environment['PYTHONPATH']}"
    name, *rest = command
    done = world.command(name, str(world.file), *rest, "--data", str(world.folder / "data"), "--trace")
    assert done.returncode == 2
    assert "pyarrow" in done.stderr
    assert len(done.stderr.splitlines()) == 1
