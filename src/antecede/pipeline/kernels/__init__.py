"""Compiled loops over arrays. They know only numbers: no rows, no names, no Spark.

A kernel is compiled once per machine and kept in a cache directory, because compiling all of them takes about ten
seconds and Spark starts many Python processes. numba *executes* the files in its cache directory when it reads them, so
only this user may be able to write there. The directory is the one in ``NUMBA_CACHE_DIR``, otherwise one below the
user's own cache, otherwise (no home, a read-only home) one in the temporary directory that no other user can have
prepared.
"""

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

F = TypeVar("F", bound=Callable[..., object])


def cache_directory() -> str:
    """Return a directory for compiled kernels that only this user can write."""
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

# If numba was imported before, it has already fixed its directory; our kernels must use ours.
setattr(numba.config, "CACHE_DIR", os.environ["NUMBA_CACHE_DIR"])  # noqa: B010 (numba types it away)


def compiled(function: F) -> F:
    """Compile a kernel when it is first called, and keep the result on disk."""
    return cast(F, numba.njit(cache=True, nogil=True)(function))
