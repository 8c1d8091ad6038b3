"""Compiled loops over arrays. They know numbers only: no rows, no names, no Spark.

A kernel is compiled once on a machine and kept in a cache directory, since compiling all of them takes some ten
seconds and Spark starts many Python processes. numba's cache is a directory of files that are *executed* when they are
read, so it must belong to us alone: the one that ``NUMBA_CACHE_DIR`` names, else one below the user's own cache, else
(no home, a read-only home) one in the temporary directory that nobody else can have prepared.
"""

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

F = TypeVar("F", bound=Callable[..., object])


def cache_directory() -> str:
    """A directory of our own in which compiled kernels are kept."""
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


os.environ.setdefault("NUMBA_CACHE_DIR", cache_directory())

import numba  # noqa: E402 (numba reads the variable when it is imported)

# Whoever imported numba before us has fixed its directory already; ours must hold for our kernels all the same.
setattr(numba.config, "CACHE_DIR", os.environ["NUMBA_CACHE_DIR"])  # noqa: B010 (numba types it away)


def compiled(function: F) -> F:
    """Compile a kernel when it is first called, and keep the result on disk."""
    return cast(F, numba.njit(cache=True, nogil=True)(function))
