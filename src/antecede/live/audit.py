"""The audit log on disk: two files of bounded size. New lines are appended to the newer file.

A file that cannot be written does not stop the server: the server logs the error once, and tries again with the next
line.
"""

import errno
import os
from pathlib import Path

from antecede import limits
from antecede.live.logs import ServerLog


class AuditFile:
    """Appends lines to ``FILE``. When ``FILE`` is full, the previous ``FILE.1`` is deleted, ``FILE`` is renamed to
    ``FILE.1``, and a new ``FILE`` is begun."""

    def __init__(self, path: str | Path, log: ServerLog, bytes_max: int = limits.audit_bytes_max) -> None:
        self._path = Path(path)
        self._log = log
        self._bytes_max = bytes_max
        self._failed = False

    def write(self, line: str) -> None:
        """Append a line to the audit log."""
        data = line.encode() + b"\n"
        try:
            # Only the owner may read who connects.
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                size = os.fstat(file).st_size
                full = size + len(data) > self._bytes_max
                if not full and os.write(file, data) < len(data):
                    # The disk is full. Half a line would spoil the next one.
                    os.ftruncate(file, size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(file)
            if full:
                os.replace(self._path, self._path.with_name(self._path.name + ".1"))
                self.write(line)
            self._failed = False
        except OSError as error:
            if not self._failed:
                self._failed = True
                self._log.error("audit-failed", file=str(self._path), reason=str(error))
