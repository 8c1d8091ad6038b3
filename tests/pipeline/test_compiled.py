"""Kernels are compiled once per machine and version, even if several processes need one at the same moment."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import antecede
from antecede.pipeline import kernels
from antecede.pipeline.kernels import source_files

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


_called = """
from typing import NamedTuple
from antecede.pipeline.kernels import inner

class {name}(NamedTuple):
    factor: int

@inner
def scaled(settings, number):
    return {factor} * settings.factor * number
"""

_calling = """
from antecede.pipeline.kernels import compiled
from antecede.pipeline.kernels.called_by_a_test import {name}, scaled

@compiled
def result(settings, number):
    return scaled(settings, number)

print(result({name}(1), 7))
"""


def test_an_upgrade_compiles_all_kernels_again(tmp_path: Path, root: Path) -> None:
    """numba alone would use the old ``scaled`` after the first change, and fail to read its cache after the second."""
    shutil.copytree(root / "src" / "antecede", tmp_path / "antecede", ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path / "antecede" / "pipeline" / "kernels"
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
    calling = folder / "calling_of_a_test.py"
    for name, factor, changed in (("First", 1, calling), ("First", 10, None), ("Second", 100, calling)):
        (folder / "called_by_a_test.py").write_text(_called.format(name=name, factor=factor))
        if changed is not None:
            changed.write_text(_calling.format(name=name))
        program = [sys.executable, "-c", "import antecede.pipeline.kernels.calling_of_a_test"]
        ran = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
        assert (ran.stdout, ran.stderr) == (f"{factor * 7}\n", "")


def test_damaged_files_in_the_cache_are_replaced(tmp_path: Path, root: Path) -> None:
    (tmp_path / "kernels_of_a_test.py").write_text(_kernels)
    places = os.pathsep.join((str(tmp_path), str(root / "src")))
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": places}
    program = "from kernels_of_a_test import inner; print(inner(4), sum(inner.stats.cache_misses.values()))"
    command = [sys.executable, "-c", program]
    found = []
    for damaged in (None, None, "inner-*.nbi", "inner-*.nbc", None):
        if damaged is not None:
            (file,) = (tmp_path / "cache").rglob(f"kernels_of_a_test.{damaged}")
            file.write_bytes(file.read_bytes()[: len(file.read_bytes()) // 2])
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert ran.stderr == ""
        found.append(ran.stdout.split()[1])
    assert found == ["1", "0", "1", "1", "0"]


def test_a_full_disk_only_costs_the_cache(tmp_path: Path, root: Path) -> None:
    (tmp_path / "kernels_of_a_test.py").write_text(_kernels)
    places = os.pathsep.join((str(tmp_path), str(root / "src")))
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": places}
    program = (
        "from kernels_of_a_test import outer; import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)); "
        "print(round(outer(4), 3))"
    )
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("17.624\n", "")
    assert list((tmp_path / "cache").rglob("*.nbc")) == []


def test_kernels_use_only_files_that_are_part_of_their_version() -> None:
    """A constant that a kernel uses is a part of the compiled code."""
    files = source_files()
    assert files
    package = Path(antecede.__file__).resolve().parent.parent
    modules = {".".join(path.relative_to(package).with_suffix("").parts) for path in files} | {kernels.__name__}
    found = []
    for path in files:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        origins = {
            alias.asname or alias.name: node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("antecede")
            for alias in node.names
        }
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            if not {ast.unparse(decorator) for decorator in function.decorator_list} & {"compiled", "inner"}:
                continue
            body = ast.Module(function.body, [])
            used = {node.id for node in ast.walk(body) if isinstance(node, ast.Name)}
            found += [f"{path.name}: {name}" for name in used & origins.keys() if origins[name] not in modules]
    assert found == []


def test_importing_kernels_leaves_the_cache_of_other_functions_where_it_was(tmp_path: Path, root: Path) -> None:
    program = """
import os, numba
before = numba.config.CACHE_DIR, dict(os.environ)
import antecede.pipeline.kernels.match
print((numba.config.CACHE_DIR, dict(os.environ)) == before)
"""
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(root / "src")}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("True\n", "")
