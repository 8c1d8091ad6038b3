"""A part of a trace: a span of time, some of its processes.

Leaving rows out can only shrink happened-before, so whatever is still found is real; what hung on the rows outside is
missed, deliveries whose send is outside are orphans, and their indices are missing ones.
"""

import msgspec

from antecede.trace.schema import Event


class Cut(msgspec.Struct, frozen=True):
    """Which rows are looked at: times from ``since`` to before ``until``, these processes; ``None`` is no bound.

    A row without a time is in every span of time. Rows that are no events are always counted.
    """

    since: int | None = None
    until: int | None = None
    processes: tuple[str, ...] | None = None

    def keeps(self, event: Event) -> bool:
        """Whether an event is looked at."""
        if self.processes is not None and event.process not in self.processes:
            return False
        if event.time is None:
            return True
        return (self.since is None or event.time >= self.since) and (self.until is None or event.time < self.until)

    def __bool__(self) -> bool:
        return self != Cut()
