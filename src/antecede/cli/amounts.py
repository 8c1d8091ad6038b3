"""Amounts on the command line: a time such as 30d or 12h, a size such as 20GB."""

import re
from typing import TYPE_CHECKING

from antecede.errors import UsageError

if TYPE_CHECKING:
    from antecede.cli.options import Serving
    from antecede.live.recorder import Keep

_seconds = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_bytes = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_amount = re.compile(r"(\d{1,12})\s*([A-Za-z]+)")


def seconds(option: str, text: str | None) -> float | None:
    """Read a time such as 30d. Return it in seconds, or None if ``text`` is None. Error messages begin with
    ``option``."""
    return None if text is None else float(_read(option, text, _seconds, "a time such as 30d, 12h, 90m or 60s"))


def size(option: str, text: str | None) -> int | None:
    """Read a size such as 20GB. Return it in bytes, or None if ``text`` is None. Error messages begin with
    ``option``."""
    return None if text is None else _read(option, text, _bytes, "a size such as 20GB or 500MB")


def check_serving(options: "Serving") -> "Keep":
    """Check the options of a server. Return the limits of age and size for its trace and its log."""
    from antecede import limits
    from antecede.live.recorder import Keep
    from antecede.recording.segments import check_converter

    if options.log not in ("text", "json"):
        raise UsageError(f"--log {options.log}: expected text or json")
    keep = Keep(
        seconds("--keep-trace", options.keep_trace),
        size("--keep-trace-size", options.keep_trace_size),
        seconds("--keep-log", options.keep_log),
        size("--keep-log-size", options.keep_log_size),
    )
    if keep.log_bytes is not None and keep.log_bytes > limits.store_log_bytes_max // 2:
        raise UsageError(
            f"--keep-log-size {options.keep_log_size}: expected at most {limits.store_log_bytes_max // 2 >> 30} GiB "
            f"({limits.store_log_bytes_max // 2} bytes), which is half of the maximum size of a log"
        )
    if options.trace:
        check_converter()
    if not options.trace and (options.keep_trace or options.keep_trace_size):
        raise UsageError(f"--keep-trace{'' if options.keep_trace else '-size'}: there is no trace without --trace")
    return keep


def _read(option: str, text: str, units: dict[str, int], expected: str) -> int:
    found = _amount.fullmatch(text.strip())
    if found is None or found[2] not in units:
        raise UsageError(f"{option} {text}: expected {expected}")
    return int(found[1]) * units[found[2]]
