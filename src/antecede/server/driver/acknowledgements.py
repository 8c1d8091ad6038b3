"""The times at which a server acknowledges the frames of its peers."""

from math import inf
from typing import Final


class Acknowledgements:
    """The rules for when a step acknowledges frames.

    Acknowledgements are not urgent: a connection loses nothing until it breaks, and an unacknowledged frame costs its
    sender only a little memory. If each frame were acknowledged immediately, both servers would spend a large part of
    their work on acknowledgements. So acknowledgements wait for a few milliseconds (``_ack_seconds``), or until many
    frames have come (``_frames_together``). After that, the next step sends them, in the same write as its frames. If
    no step comes within another ``_ack_seconds``, the driver takes a step only to send acknowledgements.
    """

    def __init__(self) -> None:
        self.any = False
        """Whether acknowledgements must still be sent: frames have come since the last acknowledgements, or a step has
        postponed acknowledgements."""
        self.wait = False
        """Whether a step postponed acknowledgements, and no step has sent them yet."""
        self.frames = 0
        """The number of frames that have not been acknowledged yet."""
        self.due = inf
        """From this time on, the next step sends the acknowledgements that wait. The value is infinite if no
        acknowledgements wait."""

    def received(self, frames: int) -> None:
        """Count frames that must be acknowledged."""
        self.any = True
        self.frames += frames

    def are_due(self, now: float) -> bool:
        """Return whether the next step must send acknowledgements: enough time has passed, or enough frames came."""
        return now >= self.due or self.frames >= _frames_together

    def stepped(self, waiting: bool, now: float) -> None:
        """Record that a step was taken. ``waiting``: whether this step postponed acknowledgements."""
        self.any = self.wait = waiting
        if not waiting:
            self.frames, self.due = 0, inf
        elif self.due == inf:
            self.due = now + _ack_seconds

    def deadline(self) -> float | None:
        """Return the time at which a step must be taken to send acknowledgements, or None if no acknowledgements
        wait."""
        return None if self.due == inf else self.due + _ack_seconds


_ack_seconds: Final = 0.003
_frames_together: Final = 64
