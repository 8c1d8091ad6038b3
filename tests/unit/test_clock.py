"""Server time, and the wall clock in traces."""

import pytest

from antecede.engine import Reaction
from antecede.server import Clock, Clocked, Projection, Reacted, Times, encode_record


@pytest.mark.parametrize(
    ("logged", "ahead", "wall", "expected"),
    [
        (0, 0, 5_000, 5_000),  # A new log.
        (5_000, 0, 8_000, 8_000),  # Three seconds later.
        (5_000, 0, 1_000, 5_000),  # The wall clock was set back while the server was down.
        (5_000, -3_600_000, 5_000 - 3_600_000 + 2_000, 7_000),  # It was set back by an hour before that.
        (5_000, 3_600_000, 5_000, 5_000),  # It was ahead, and is right again: nobody knows how long that took.
    ],
)
def test_server_time_at_a_start(logged: int, ahead: int, wall: int, expected: int) -> None:
    clock = Clock()
    clock.times = Times(logged, ahead)
    clock.start(100.0, wall)
    assert clock.at(100.0, wall) == expected
    # From there on only the monotonic clock counts.
    assert clock.at(101.5, wall - 7_200_000) == expected + 1_500


def test_a_small_drift_is_not_logged_and_a_jump_is() -> None:
    clock = Clock()
    clock.start(0.0, 1_000)
    assert not clock.differs(3_000, 3_002)
    assert clock.differs(3_000, 3_003)
    clock.set(Clocked(3_000, 3_003))
    assert not clock.differs(4_000, 4_004)
    assert clock.times == Times(3_000, 3)


def test_a_trace_has_the_wall_clock() -> None:
    projection = Projection("s1", 1)
    reacted = Reacted("a@s1", (Reaction("s1.000001.1"),), None, 5_000)
    projection.rows(encode_record([Clocked(4_000, 3_604_000)]))
    again = Projection("s1", 1)
    again.load(projection.save())
    assert [row.time for row in again.rows(encode_record([reacted]))] == [3_605_000 * 1_000_000]
