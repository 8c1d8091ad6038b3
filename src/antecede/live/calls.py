"""A file in the data directory with the handler calls that are in progress (:mod:`antecede.server.progress`).

After a crash, the server reads from this file which handlers were running. Each of these calls can count as a failed
try of its letter (the message that the handler got). The file is mapped into memory and never synced, so recording a
call costs no I/O. The disk space for the file is allocated before the file is mapped, because writing to a mapped file
without disk space would end the process. A server also works without this file, for example if it has no data
directory, if the disk is full, or if the file system is unsuitable. Without the file, a crash of the server never
counts as a failed try of a letter.
"""

import mmap
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from antecede.server.inputs import Log
from antecede.server.progress import ENDED_WELL, Interrupted, Memory, Progress, interrupted, size_of


class CallsFile:
    """The file in which one server records its handler calls in progress."""

    def __init__(self, directory: str | None, log: Log) -> None:
        self._path = directory and f"{directory}/{NAME}"
        self._log = log
        self._boot = boot_id()
        self._file = -1
        self._progress: Progress | None = None

    def ended(self) -> Interrupted:
        """Return the handler calls that count as failed tries, because they were in progress when the previous process
        of this server crashed (:func:`antecede.server.progress.interrupted`). After a normal stop or a boot of the
        computer, there are none."""
        if self._path is None:
            return ENDED_WELL
        try:
            return interrupted(Path(self._path).read_bytes(), self._boot)
        except OSError:
            return ENDED_WELL

    def begin(self, life: int) -> Progress:
        """Make the file empty, and return the object that records handler calls in it. ``life``: the number of this
        start of the server. The calls from ``ended`` must already be in the log, because this method deletes them from
        the file."""
        memory: Memory | None = None
        if self._path is not None:
            with suppress(OSError):
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                memory = self._grow(size_of(_slots))
            if memory is None:
                self._log.warning("calls-not-named", reason=f"{self._path} cannot be used")
        self._progress = Progress(memory or bytearray(size_of(_slots)), self._boot, life, self._grow)
        return self._progress

    def _grow(self, size: int) -> Memory | None:
        if self._file < 0:
            return None
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, 0, size)
            else:
                os.pwrite(self._file, bytes(size - os.fstat(self._file).st_size), os.fstat(self._file).st_size)
            return mmap.mmap(self._file, size)
        except (OSError, ValueError):
            return None

    def copied(self) -> None:
        """Write nothing to the file from now on: this process is a copy of the server's process."""
        if self._progress is not None:
            self._progress.detach()

    def close(self) -> None:
        """Clear and delete the file. The server calls this when it ends for a known reason, not by a crash. So the next
        start does not count the calls in progress as failed tries of their letters."""
        if self._progress is not None:
            self._progress.clear()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            with suppress(OSError):
                os.unlink(str(self._path))


def boot_id() -> str:
    """Return the id of the current boot of the machine; empty if the system has no such id."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    if sys.platform == "darwin":
        with suppress(OSError, subprocess.SubprocessError):
            asked = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
            return subprocess.run(asked, capture_output=True, text=True, timeout=5, check=False).stdout.strip()
    return ""


NAME = "calls"
_slots = 16
