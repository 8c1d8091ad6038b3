"""Compiled loops over arrays. They know only numbers: no rows, no names, no Spark.

A kernel is compiled once per machine and kept in a cache directory. The reason: compiling all kernels takes about ten
seconds, and Spark starts many Python processes. When numba reads the files in its cache directory, it *executes* them.
So the directory must be one in which only this user can write. If ``NUMBA_CACHE_DIR`` is set, it contains the path of
the directory. Otherwise the directory is below the user's cache directory. If that directory cannot be used (for
example, because the user has no home directory), a directory in the system's temporary directory is used.

Each version of the kernels has its own folder in this directory. Without these folders, numba would compile a function
again only if the file of this function has changed. After an upgrade, a kernel could then still contain the previous
version of another function that it calls, and give wrong results. The index of the cache could also refer to a class
that does not exist any more.

The workers of a session all need a new kernel at the same moment. One worker compiles the kernel while the others wait.
Then the others read it from the cache. Without this rule, numba would compile the kernel in each worker. If two workers
then wrote to the cache at the same moment, the kernel of one of them would be lost.
"""

import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core.compiler_lock import global_compiler_lock
from numpy.typing import NDArray

from antecede import __version__

F = TypeVar("F", bound=Callable[..., object])

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Words = NDArray[np.uint64]
Floats = NDArray[np.float64]


def cache_directory() -> str:
    """Return a directory for compiled kernels. Only this user can write in it."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    for directory in (
        Path(home) / "antecede" / "numba",
        Path(tempfile.gettempdir()) / f"antecede-numba-{os.getuid()}",
    ):
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            about = directory.stat(follow_symlinks=False)
        except OSError:
            continue
        ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022
        if directory.is_absolute() and ours and os.access(directory, os.W_OK):
            return str(directory)
    return tempfile.mkdtemp(prefix="antecede-numba-")


def source_files() -> list[Path]:
    """Return the files whose content influences compiled kernels. If the package is not in a folder (for example, if it
    is in a zip file), the list is empty."""
    files = sorted(Path(__file__).resolve().parents[1].rglob("*.py"))
    return [file for file in files if _decorators.search(file.read_bytes())]


_decorators = re.compile(rb"^ *@(compiled|inner)$", re.MULTILINE)


def _version_folder() -> str:
    """Return the name of the folder with the compiled kernels of this version."""
    digest = sha256(__version__.encode())
    for file in source_files():
        digest.update(b"\0" + file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


_directory = os.path.join(os.environ.get("NUMBA_CACHE_DIR") or cache_directory(), _version_folder())


@contextmanager
def _cached_below(directory: str) -> Iterator[None]:
    """Let the kernels that are decorated in the ``with`` block keep their code in this directory. numba reads the
    setting when it decorates a function. The setting of the program that imports us stays as it is."""
    before = getattr(numba.config, "CACHE_DIR")  # noqa: B009 (numba types it away)
    setattr(numba.config, "CACHE_DIR", directory)  # noqa: B010
    try:
        yield
    finally:
        setattr(numba.config, "CACHE_DIR", before)  # noqa: B010


def compiled(function: F) -> F:
    """Compile a kernel when it is first called, and keep the result on disk."""
    with _cached_below(_directory):
        kernel: Any = numba.njit(cache=True, nogil=True)(function)
    if kernel is function:
        # NUMBA_DISABLE_JIT is set, to look for an error.
        return function
    _survive_damage(kernel._cache)
    compile_ = kernel.compile
    turn = _Turn(Path(kernel.stats.cache_path) / f"{function.__module__}.{function.__qualname__}.lock")

    def compile_once(signature: Any) -> Any:
        with turn.taken():
            # This looks into the cache first.
            return compile_(signature)

    kernel.compile = compile_once
    return cast(F, kernel)


def _survive_damage(cache: Any) -> None:
    """Change the cache of a kernel so that the kernel works in spite of errors in the cache. If the cache files cannot
    be read, the kernel is compiled again. (A power failure can damage the files, because numba does not sync them.) If
    the cache files cannot be written, for example because the disk is full, the kernel runs anyway."""
    load, save = cache.load_overload, cache.save_overload

    def load_if_readable(*arguments: Any) -> Any:
        try:
            return load(*arguments)
        except Exception:
            # What a damaged pickle raises depends on the damage.
            with suppress(OSError):
                cache.flush()
            return None

    def save_if_possible(*arguments: Any) -> None:
        with suppress(OSError):
            save(*arguments)

    cache.load_overload, cache.save_overload = load_if_readable, save_if_possible


def inner(function: F) -> F:
    """Compile a function that only kernels call. The function becomes a part of each kernel that calls it. Python
    cannot call it, and it has no separate cache file. This saves a fifth of the time that a large kernel needs to
    compile."""
    bare: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast(F, numba.njit(nogil=True, **bare)(function))


class _Turn:
    """A lock, so that only one process at a time compiles a given kernel. Every process first takes the lock of a
    kernel, and then the locks of the kernels that this kernel calls. So there can be no deadlock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._depth = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for the lock, and hold it while the body of the ``with`` statement runs."""
        # One thread of a process compiles at a time. It must not wait for a lock that another thread holds.
        with global_compiler_lock:
            file = -1 if self._depth else self._locked()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if file >= 0:
                    os.close(file)

    def _locked(self) -> int:
        """Open and lock the lock file. Return its descriptor, or −1 if the file cannot be opened. If the file cannot be
        locked, for example because the file system has no locks, return the descriptor anyway. The process then
        compiles without the lock."""
        file = -1
        with suppress(OSError):
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
        return file
