"""The witness of a log: decides when a group without records should vouch for the last one.

Only a later group can prove that a group was durable. Without one, a last group that the disk has lost looks like a
torn write, and would be removed without a word. So a server that has nothing to write for a moment adds an empty group,
seldom enough that it costs nothing under load. One is enough: nothing depends on an empty group, so none vouches for it
and an idle server writes nothing.
"""

from antecede import limits


class Witness:
    """Decides for one log."""

    def __init__(self) -> None:
        self.wrote_at = 0.0
        """The time of the last record."""
        self._not_before = 0.0

    def due(self, durable: bool, unvouched: bool, now: float) -> bool:
        """Return whether the log should vouch for its last group now. ``durable``: all records are."""
        quiet = durable and now - self.wrote_at >= limits.witness_after_seconds
        if not (unvouched and quiet and now >= self._not_before):
            return False
        self._not_before = now + limits.witness_seconds
        return True
