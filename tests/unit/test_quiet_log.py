"""The log of a server stays within bounds."""

from typing import Any

from antecede import limits
from antecede.server import QuietLog


class _Lines:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    def warning(self, event: str, *, raised: BaseException | None = None, **fields: Any) -> None:
        self.lines.append((event, fields))

    error = info


def test_a_flood_of_one_event_is_counted_and_hides_no_other() -> None:
    lines, now = _Lines(), 100.0
    log = QuietLog(lines)
    log.clock = lambda: now
    for _ in range(100_000):
        log.warning("client-refused", claims="x" * 100_000)
    log.error("disk-full", reason="no space")
    assert [event for event, _ in lines.lines] == ["client-refused"] * limits.log_lines_per_second + ["disk-full"]
    assert max(len(fields.get("claims", "")) for _, fields in lines.lines) == limits.log_text_chars_max + 1
    now += 1.0
    log.warning("client-refused", claims="y")
    assert lines.lines[-1] == (
        "client-refused",
        {"claims": "y", "left_out": 100_000 - limits.log_lines_per_second},
    )


def test_what_was_left_out_is_reported_now_and_then() -> None:
    lines = _Lines()
    log = QuietLog(lines)
    for _ in range(limits.log_lines_per_second + 5):
        log.info("peer-lost", peer="s2")
    before = len(lines.lines)
    log.report(50.0)
    log.report(50.5)
    assert lines.lines[before:] == [("lines-left-out", {"peer_lost": 5})]
