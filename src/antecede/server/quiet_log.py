"""Limits the log messages that a server writes for operators. Clients, peers and unknown programs cannot cause more
messages than the limit.

Every kind of event has its own budget of lines, so that many lines about one kind do not hide another kind. A line
above the budget is counted and not written. The next line about that kind of event, or a summary, contains the count. A
long text in a line is cut, because other processes can send texts of any length.
"""

from collections.abc import Callable
from typing import Any

from antecede import limits
from antecede.access.rates import Bucket
from antecede.server.inputs import Log


class QuietLog:
    """A log for operators that limits the number of lines for each kind of event. It counts the lines that it leaves
    out."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.clock: Callable[[], float] = lambda: 0.0
        self._budgets: dict[str, Bucket] = {}
        self._left_out: dict[str, int] = {}
        self._report_at = 0.0

    def info(self, event: str, **fields: Any) -> None:
        """Log something that an operator may want to know, unless the budget for this kind of event is used up."""
        if self._allowed(event, fields):
            self._log.info(event, **fields)

    def warning(self, event: str, *, raised: BaseException | None = None, **fields: Any) -> None:
        """Log something that an operator should look at, unless the budget for this kind of event is used up.
        ``raised``: an exception to log with its traceback."""
        if self._allowed(event, fields):
            self._log.warning(event, raised=raised, **fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log an error that prevents the server from doing its work, unless the budget for this kind of event is used
        up."""
        if self._allowed(event, fields):
            self._log.error(event, **fields)

    def report(self, now: float) -> None:
        """Write how many lines were left out, at most once per ``log_report_seconds``. Call this method about once per
        second."""
        if self._left_out and now >= self._report_at:
            self._report_at = now + limits.log_report_seconds
            counts, self._left_out = self._left_out, {}
            fields: dict[str, Any] = {event.replace("-", "_"): count for event, count in counts.items()}
            self._log.warning("lines-left-out", **fields)

    def _allowed(self, event: str, fields: dict[str, Any]) -> bool:
        budget = self._budgets.get(event)
        if budget is None:
            budget = self._budgets[event] = Bucket(limits.log_lines_per_second)
        if not budget.holds(self.clock()):
            self._left_out[event] = self._left_out.get(event, 0) + 1
            return False
        budget.take(1)
        for key, value in fields.items():
            if isinstance(value, str) and len(value) > limits.log_text_chars_max:
                fields[key] = value[: limits.log_text_chars_max] + "…"
        if left_out := self._left_out.pop(event, 0):
            fields["left_out"] = left_out
        return True
