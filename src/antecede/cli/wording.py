"""How commands that read traces say things: names that a terminal survives, and what was set aside."""

from collections.abc import Mapping
from typing import Any


def shown_name(text: str) -> str:
    """A name from a trace, safe to show on a terminal."""
    return text if text.isprintable() and text else repr(text)


def set_aside(report: Mapping[str, Any], consequence: str) -> list[str]:
    """Which rows were set aside and why, and what follows from it; nothing if there were none."""
    lines = []
    for reason, count in report["quarantined"].items():
        what = "indices are missing" if reason == "index_gap" else "rows set aside"
        lines.append(f"  {reason:<19} {count:,} {what}")
    if not report["complete"]:
        lines.append(f"rows were set aside: {consequence}")
    return lines


def counted(count: int, thing: str) -> str:
    """``1 delivery``, ``2 deliveries``: a number with what it counts, whose plural follows a bar if it is no -s."""
    one, _, many = thing.partition("|")
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def foreign_hint(events: int, paths: list[str]) -> str:
    """What to do with a file that is none of our traces, if we know what it is."""
    from antecede.trace.foreign import recognised

    if events:
        return ""
    found = next((form for path in paths if path != "-" and (form := recognised(path))), None)
    return f" (this is {found}: make it a trace with antecede import)" if found else ""
