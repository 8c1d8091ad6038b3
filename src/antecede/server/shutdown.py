"""The graceful stop of a server, in four parts: take nothing more from outside; wait until the work in progress has
ended, but not longer than allowed; close all connections and take the steps that are left; write a snapshot, so that
the next start has nothing to replay.

No guarantee depends on a graceful stop. If the stop interrupts some work, this work is in the log or was not accepted,
as after a kill.
"""

from antecede.server.core import ServerCore
from antecede.server.upkeep import Snapshot


class Shutdown:
    """One stop; an adapter calls the methods in the order in which they are written here."""

    def __init__(self, core: ServerCore, reason: str, until: float) -> None:
        """Take nothing more from outside; work in progress may take until the time ``until``."""
        self._core = core
        self._reason = reason
        self._until = until
        core.stop(reason)

    def waits(self, now: float) -> bool:
        """Return whether to wait for work in progress; the driver's turns continue meanwhile."""
        core = self._core
        return core.driver.busy and now < self._until and not core.failure

    def leave(self) -> None:
        """End the work that is still in progress, and close all connections."""
        self._core.leave(self._reason)

    @property
    def steps_left(self) -> bool:
        """Whether the driver must take another turn before the snapshot, because inputs are left."""
        driver = self._core.driver
        return bool(driver.inputs) and driver.can_step and not self._core.failure

    def snapshot(self) -> Snapshot | None:
        """Return the last snapshot; None if the log does not have all steps, because its disk is full or has failed."""
        core = self._core
        return None if core.driver.behind or core.failure else core.upkeep.final()
