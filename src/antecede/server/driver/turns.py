"""The interface between the driver of a server and its adapters: a turn's work, and the time of a commit."""

from enum import Enum
from typing import Final

import msgspec

from antecede.engine import React


class Turn(msgspec.Struct, gc=False):
    """The adapter's work after a turn, in this sequence."""

    records: list[bytes]
    """FIRST append these to the log, in this sequence, and report with ``appended``. Everything that depends on them
    waits in the gate until they are durable. If the log has no space for one, stop there: the next turn returns it
    again."""
    reactions: list[React]
    """THEN run these (agents are independent of each other), and report each with ``reacted``. They need not wait for
    the records, because their results are part of the record of an open step, or of a later record."""


class Commit(Enum):
    """The time to commit the log, after a run of turns."""

    HERE = "here"
    """The adapter commits at once, in its own thread, because something waits for the records, and there is no other
    work."""
    SOON = "soon"
    """The commit thread commits, together with records that come meanwhile."""
    LATER = "later"
    """Not now: nothing waits for the records. They are committed with a later record, or at the deadline."""


HERE: Final = Commit.HERE
SOON: Final = Commit.SOON
LATER: Final = Commit.LATER
"""Separate names for the members of :class:`Commit`. Every turn uses them, and finding a member of an enumeration takes
as long as ten other instructions."""
