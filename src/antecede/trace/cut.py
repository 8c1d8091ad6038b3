"""A part of a trace: the rows of a range of time, of some of its processes, or both.

Leaving rows out can only shrink happened-before, so every violation that is still found is real. Violations that depend
on rows outside the part are missed; deliveries whose send is outside are reported as orphans, and indices outside as
missing.
"""

import msgspec

from antecede.trace.schema import Event


class Cut(msgspec.Struct, frozen=True):
    """The selected rows: times from ``since`` to before ``until``, these processes; ``None`` means no bound.

    A row without a time is in every range. Rows that cannot be read are always counted.
    """

    since: int | None = None
    until: int | None = None
    processes: tuple[str, ...] | None = None

    def keeps(self, event: Event) -> bool:
        """Return whether an event is selected."""
        if self.processes is not None and event.process not in self.processes:
            return False
        if event.time is None:
            return True
        return (self.since is None or event.time >= self.since) and (self.until is None or event.time < self.until)

    def __bool__(self) -> bool:
        return self != Cut()
