"""The log messages of a server: one line per event, for people or as JSON.

12:31:07.220 s1 peer-connected peer=s2 remote=127.0.0.1:51334
{"time": "2026-01-31T12:31:07.220+00:00", "level": "info", "server": "s1", "event": "peer-connected", …}
"""

import errno
import json
import logging
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from antecede import limits
from antecede.failures import traceback_of

logger = logging.getLogger("antecede.server")


class ServerLog:
    """Writes the log messages of one server."""

    def __init__(self, server: str) -> None:
        self._server = server

    def info(self, event: str, **fields: Any) -> None:
        """Log something that an operator may want to know."""
        logger.info(event, extra={"server": self._server, "fields": fields})

    def warning(self, event: str, *, raised: BaseException | None = None, **fields: Any) -> None:
        """Log something that an operator should look at; ``raised``: an exception, logged with its traceback."""
        logger.warning(event, exc_info=raised, extra={"server": self._server, "fields": fields})

    def error(self, event: str, **fields: Any) -> None:
        """Log something that prevents the server from doing its work."""
        logger.error(event, extra={"server": self._server, "fields": fields})


class _Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC)
        fields = getattr(record, "fields", {})
        server = getattr(record, "server", record.name)
        shown = "".join(f" {key}={_plain(value)}" for key, value in fields.items())
        mark = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()} "
        text = f"{when:%H:%M:%S}.{when.microsecond // 1000:03d} {server} {mark}{record.getMessage()}{shown}"
        raised = _raised(record)
        # Indented, so that no text of an exception looks like an event.
        return "\n".join(
            [text, *("    " + line for line in ("" if raised is None else traceback_of(raised)).splitlines())]
        )


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "server": getattr(record, "server", ""),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        raised = _raised(record)
        if raised is not None:
            document["traceback"] = traceback_of(raised)
        return json.dumps(document, default=str)


def _raised(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None


def _plain(value: Any) -> str:
    """Return a value as text on one line. A value from outside may contain line breaks, and must not look like several
    log messages."""
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if " " in text or not text.isprintable() or not text else text


def write_logs(style: str = "text") -> None:
    """Write the log messages of the whole package to standard error; ``style``: ``text`` or ``json``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if style == "json" else _Line())
    root = logging.getLogger("antecede")
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    root.propagate = False


# The audit log on disk: two files of bounded size. New lines are appended to the newer file.
#
# A file that cannot be written does not stop the server: the server logs the error once, and tries again with the
# next line.


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
