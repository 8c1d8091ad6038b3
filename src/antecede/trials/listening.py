"""The log messages of servers in a trial, and why connections were closed."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from antecede import limits


class Ear(logging.Handler):
    """Keeps the reasons in log messages, and exceptions."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: set[str] = set()
        self.exceptions: list[str] = []

    def heard(self, reason: str) -> bool:
        """Return whether a message had this reason; the log cuts long texts, and names links in other fields."""
        shown = reason[: limits.log_text_chars_max] + "…"
        stopped = reason.partition(" is stopped: ")[2] or reason
        return not self.reasons.isdisjoint({reason, shown, stopped})

    def emit(self, record: logging.LogRecord) -> None:
        self.reasons.add(str(getattr(record, "fields", {}).get("reason", "")))
        if record.exc_info:
            self.exceptions.append(self.format(record))


@contextmanager
def listening() -> Iterator[Ear]:
    """Capture the log messages of servers, and hide them from other handlers."""
    logger = logging.getLogger("antecede")
    before = (logger.handlers, logger.propagate, logger.level)
    ear = Ear()
    logger.handlers, logger.propagate = [ear], False
    logger.setLevel(logging.INFO)
    try:
        yield ear
    finally:
        logger.handlers, logger.propagate = before[0], before[1]
        logger.setLevel(before[2])
