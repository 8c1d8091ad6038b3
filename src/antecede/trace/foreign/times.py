"""Convert the times in logs, which are numbers or dates, to nanoseconds since 1970.

If a number has no unit, the unit is chosen so that the time is near the present. So 1,700,000,000 is in seconds,
1,700,000,000,000 is in milliseconds, and so on. A date is in ISO 8601 or a similar form. It may have a space instead of
the T, slashes instead of dashes, and a comma before the fraction. A date without an offset is in UTC. Digits beyond
nanoseconds are dropped, and nothing is rounded.
"""

import re
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from antecede.trace.schema import INT64_MAX

UNITS: Final = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
"""The units in which a log may write a time as a number. The values are the lengths of the units in nanoseconds."""

_epoch = datetime(1970, 1, 1, tzinfo=UTC)
_number = re.compile(r"[+-]?[0-9]{1,30}(?:\.[0-9]{0,30})?")
_date = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9})\d*)?)?"
    r"\s*(?:(Z|z|UTC|GMT)|([+-])(\d\d):?(\d\d)?)?",
    re.ASCII,
)


def unit_of(number: int | Decimal) -> int:
    """Guess the unit of a time from the size of its number, so that the time is near the present. Return the length of
    the unit in nanoseconds."""
    size = number if number >= 0 else -number
    return next((unit for bound, unit in ((10**17, 1), (10**14, 1_000), (10**11, 10**6)) if size >= bound), 10**9)


def nanoseconds(value: Any, form: str = "auto") -> int | None:
    """Return a time in nanoseconds, or ``None`` if the value is not a time.

    ``form`` is ``auto``, one of :data:`UNITS`, or a format of ``strptime`` for dates in other forms.
    """
    if type(value) is str:
        text = value.strip()
        if form != "auto" and form not in UNITS:
            return _formatted(text, form)
        if not _number.fullmatch(text):
            return _written(text)
        value = text
    elif type(value) not in (int, float):
        return None
    try:
        number = value if type(value) is int else Decimal(str(value))
        if not isinstance(number, int) and not number.is_finite():
            return None
        return _bounded(int(number * UNITS.get(form, 0) or number * unit_of(number)))
    except (InvalidOperation, OverflowError, ValueError):
        return None


def _written(text: str) -> int | None:
    found = _date.fullmatch(text)
    if found is None:
        return None
    *parts, fraction, _, sign, hours, minutes = found.groups()
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0)) * (-1 if sign == "-" else 1)
    try:
        moment = datetime(*(int(part or 0) for part in parts), tzinfo=timezone(offset))  # type: ignore[misc,arg-type]
    except ValueError:
        return None
    return _bounded((moment - _epoch) // timedelta(seconds=1) * 10**9 + int((fraction or "0").ljust(9, "0")))


def _formatted(text: str, form: str) -> int | None:
    try:
        return since_1970(datetime.strptime(text, form))
    except ValueError:
        return None


def since_1970(moment: datetime) -> int | None:
    """Return a moment in nanoseconds since 1970. If the result does not fit into 64 bits, return ``None``. A moment
    without an offset is in UTC."""
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return _bounded((moment - _epoch) // timedelta(microseconds=1) * 1_000)


def _bounded(time: int) -> int | None:
    return time if abs(time) <= INT64_MAX else None
