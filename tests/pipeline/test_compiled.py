"""Kernels are compiled once per machine, even if several processes need one at the same moment."""

import os
import subprocess
import sys
from pathlib import Path

_kernels = """
from antecede.pipeline.kernels import compiled

@compiled
def inner(count):
    total = 0.0
    for number in range(count):
        total += number ** 0.5
    return total

@compiled
def outer(count):
    return inner(count) + inner(2 * count)
"""

_program = """
import sys
from kernels_of_a_test import inner, outer
print("ready", flush=True)
sys.stdin.readline()
print(round(outer(4), 3), sum(outer.stats.cache_misses.values()), sum(inner.stats.cache_misses.values()))
"""


def test_one_process_compiles_and_the_others_wait(tmp_path: Path, root: Path) -> None:
    (tmp_path / "kernels_of_a_test.py").write_text(_kernels)
    places = os.pathsep.join((str(tmp_path), str(root / "src")))
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": places}
    (tmp_path / "cache").mkdir(0o700)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _program],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(3)
    ]  # fmt: skip
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = sorted(process.communicate(timeout=300)[0].split() for process in started)
    assert [process.returncode for process in started] == [0, 0, 0]
    assert said == [["17.624", "0", "0"], ["17.624", "0", "0"], ["17.624", "1", "1"]]
