"""A part of a trace. The part can be limited to a range of time, to some processes, or to both.

If rows are left out, happened-before may no longer hold for some pairs of events, but it never holds for additional
pairs. So every violation that is still found is real. Violations that depend on rows outside the part are not found. A
delivery whose send is outside the part is reported as an orphan, and the indices of rows outside the part are reported
as missing.
"""

import msgspec

from antecede.trace.schema import Event


class Cut(msgspec.Struct, frozen=True):
    """The selected rows: the rows of the given processes with ``since`` ≤ time < ``until``. A field that is None
    restricts nothing.

    A row without a time is in every range. A row that cannot be read is not checked against the selection. It is always
    counted in the report.
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
