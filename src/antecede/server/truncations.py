"""Truncations of a server's log. A *torn write* is a write that a crash interrupted. A truncation is the removal
of a torn write during recovery.

A torn write is normal after a power cut, and nothing in it was ever confirmed. But a durable group of records may be
damaged later. If no later group proves that this group was durable, the damage looks like a torn write, and recovery
removes confirmed data. So the log contains an item for every truncation. ``status`` shows each truncation until an
operator has checked the disk and acknowledges the truncation.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from antecede.server.items import Acknowledged, Truncated

CutItem = Truncated | Acknowledged
"""Log items that are about truncations."""


def truncated(cuts: Iterable[msgspec.Struct], wall_ms: int) -> list[Truncated]:
    """Return the items for the torn writes that the store removed. Each of the ``cuts`` is an
    :class:`antecede.store.recovery.Cut`. Its fields are copied to a :class:`Truncated`, together with ``wall_ms``: the
    time of the wall clock, in milliseconds."""
    return [Truncated(**msgspec.structs.asdict(cut), wall_ms=wall_ms) for cut in cuts]


class Truncations:
    """The truncations that no operator has acknowledged."""

    def __init__(self) -> None:
        self.open: list[Truncated] = []
        self.newest = 0
        """The largest group number of any truncation in the log, even if the truncation was acknowledged. It is 0 if
        the log contains no truncation."""

    def unknown(self, cuts: list[Truncated]) -> list[Truncated]:
        """Return those of the ``cuts`` that the log does not contain yet. After a crash, the store may report a
        truncation that is already in the log."""
        return [cut for cut in cuts if cut.group > self.newest]

    def apply(self, item: CutItem) -> None:
        """Apply an item of the log: a truncation, or an acknowledgement of all truncations up to a group."""
        if isinstance(item, Truncated):
            self.open.append(item)
            self.newest = max(self.newest, item.group)
        else:
            self.open = [cut for cut in self.open if cut.group > item.upto]

    def status(self) -> list[dict[str, Any]]:
        """Return the truncations that ``status`` shows to an operator."""
        return [msgspec.structs.asdict(cut) for cut in self.open]
