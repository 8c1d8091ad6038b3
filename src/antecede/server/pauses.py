"""Pauses between tries: how long to wait after a failure, and after how many failures to give up.

If a **handler** of an agent or a client fails, it is tried again a few times. Each pause is twice as long as the one
before. After the last try, the letter becomes a dead letter. A **server** that cannot be reached, or refuses us, is
dialed again for as long as we need this server. The pauses grow up to a bound, and a part of each pause is random. So
if many clients and servers lose the connection to the same server, they do not dial it at the same moment.
"""

from typing import Final

from antecede import limits


def is_last_try(tries: int) -> bool:
    """Return whether to give up after a handler has failed ``tries`` times."""
    return tries >= limits.reaction_tries_max


def pause_after(tries: int) -> float:
    """Return the number of seconds between the last failure of a handler and its next try. ``tries``: the number of
    failures so far."""
    return float(limits.reaction_pause_seconds * 2 ** (tries - 1))


class Backoff:
    """The pauses before one server is dialed again."""

    __slots__ = ("_pause",)

    def __init__(self) -> None:
        self._pause = _first_seconds

    def next(self, random: float) -> float:
        """Return how many seconds to wait before the next dial: from half of the pause (``random`` is 0) to the whole
        pause (``random`` is 1). Then double the pause, up to ``dial_seconds_max``."""
        seconds = self._pause * (1 + random) / 2
        self._pause = min(2 * self._pause, limits.dial_seconds_max)
        return seconds

    def grow_to(self, seconds: float) -> None:
        """Set the next pause to at least ``seconds``."""
        self._pause = max(self._pause, seconds)

    def reset(self) -> None:
        """Make the next pause the shortest one, because the server can be used again."""
        self._pause = _first_seconds


_first_seconds: Final = 0.05
