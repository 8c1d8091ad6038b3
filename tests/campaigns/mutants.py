"""Which rules does the suite not test? Change the code at random, and see whether a test notices.

    ./run python tests/campaigns/mutants.py --mutants 300 --jobs 2 [--seed 0] [TEST…]

A *mutant* is the package with one change: a comparison or a condition is flipped, a statement is dropped, or a number
is shifted by one. Each mutant runs the tests in a copy of ``src``. It *survives* if no test fails; the survivors are
printed with file, line and change. Not every survivor is an untested rule: some changes make no difference.

The same seed gives the same mutants, as long as the code is the same.
"""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import NamedTuple

_root = Path(__file__).resolve().parents[2]
_parts = ("orders", "link.py", "link", "channel", "server", "store")
"""What is mutated, below ``src/antecede``."""
_tests = (
    *("tests/unit/test_link.py", "tests/unit/test_order_*.py", "tests/unit/test_server_*.py"),
    *("tests/unit/test_store_*.py", "tests/unit/test_driver.py", "tests/properties/test_link.py", "tests/scenarios"),
    *("tests/simulation/test_campaign.py", "tests/simulation/test_servers.py", "tests/properties/test_every_order.py"),
)
_seeds = "60"
"""How many seeds the tests try that try seeds, unless the environment says otherwise."""
_flipped: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_droppable = (ast.Expr, ast.AugAssign, ast.Assign, ast.Delete, ast.Raise, ast.Break, ast.Continue)


class Mutant(NamedTuple):
    path: str
    """Relative to ``src``."""
    line: int
    start: int
    """The bytes from ``start`` to ``end`` are replaced."""
    end: int
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]

    def __str__(self) -> str:
        return f"src/{self.path}:{self.line}: {' '.join(self.before.split())}  →  {self.after}"


def mutants_of(path: str, source: bytes) -> Iterator[Mutant]:
    """Yield all mutants of a file."""
    starts = [0]
    for row in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(row))

    def made(node: ast.expr | ast.stmt, after: str) -> Mutant:
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        return Mutant(path, node.lineno, start, end, source[start:end].decode(), after)

    for node in _within_functions(ast.parse(source)):
        if isinstance(node, ast.Compare):
            for flipped in _flipped[type(node.ops[0])]:
                yield made(
                    node, f"({ast.unparse(ast.Compare(node.left, [flipped(), *node.ops[1:]], node.comparators))})"
                )
        elif isinstance(node, ast.BoolOp):
            operator = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield made(node, f"({ast.unparse(ast.BoolOp(operator, node.values))})")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield made(node, f"({ast.unparse(node.operand)})")
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield made(node, str(node.value + 1))
        elif isinstance(node, _droppable) and not _is_text(node):
            yield made(node, "pass")


def _within_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs when a function is called: no annotations, no defaults, no texts."""
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        for statement in tree.body:
            yield from _run(statement)
    else:
        for child in ast.iter_child_nodes(tree):
            yield from _within_functions(child)


def _run(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.JoinedStr | ast.Assert):
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield from _within_functions(node)
        return
    yield node
    annotation = getattr(node, "annotation", None)
    for child in ast.iter_child_nodes(node):
        if child is not annotation:
            yield from _run(child)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


class Copies:
    """Copies of ``src``, one for each job. A mutant borrows one."""

    def __init__(self, folder: Path, count: int, tests: list[str]) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        self._tests = tests
        self.seconds_max: float | None = None
        for number in range(count):
            shutil.copytree(_root / "src", folder / str(number))
            self._free.put(folder / str(number))

    def survives(self, number: int, mutant: Mutant | None) -> bool:
        """Return whether all tests pass."""
        place = self._free.get()
        try:
            if mutant is None:
                return self._passes(place)
            file = place / mutant.path
            source = file.read_bytes()
            try:
                file.write_bytes(mutant.applied(source))
                # Python compiles a file again if its time has changed by a second.
                os.utime(file, (2_000_000_000 + number,) * 2)
                return self._passes(place)
            finally:
                file.write_bytes(source)
        finally:
            self._free.put(place)

    def _passes(self, place: Path) -> bool:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *self._tests]
        environment = {"ANTECEDE_SEEDS": _seeds, **os.environ, "PYTHONPATH": str(place)}
        with tempfile.TemporaryDirectory() as scratch:
            process = subprocess.Popen(
                [*command, f"--basetemp={scratch}/tests"],
                cwd=_root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                return process.wait(self.seconds_max) == 0
            except subprocess.TimeoutExpired:
                # A mutant that does not end is noticed, too.
                return False
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, 9)
                    process.wait()


def main() -> int:
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tests", nargs="*", metavar="TEST", default=list(_tests))
    parser.add_argument("--mutants", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    package = _root / "src" / "antecede"
    files = sorted(file for part in _parts for file in [package / part, *(package / part).rglob("*.py")])
    every = [
        mutant
        for file in files
        if file.is_file()
        for mutant in mutants_of(str(file.relative_to(package.parent)), file.read_bytes())
    ]
    chosen = Random(given.seed).sample(every, given.mutants)
    tests = [str(path.relative_to(_root)) for test in given.tests for path in sorted(_root.glob(test))]
    with tempfile.TemporaryDirectory(prefix="antecede-mutants-") as folder, ThreadPoolExecutor(given.jobs) as pool:
        copies = Copies(Path(folder), given.jobs, tests)
        begun = time.monotonic()
        if not copies.survives(0, None):
            print("the tests fail without a change: expected a selection that passes", file=sys.stderr)
            return 2
        copies.seconds_max = 3 * given.jobs * (time.monotonic() - begun) + 10
        counts: Counter[str] = Counter()
        for mutant, survives in zip(chosen, pool.map(copies.survives, range(given.mutants), chosen), strict=True):
            counts["survived" if survives else "noticed"] += 1
            print(f"{'SURVIVED' if survives else 'noticed '}  {mutant}", flush=True)
    print(f"{len(every):,} possible mutants; of {given.mutants}: {dict(counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
