"""The graceful stop of a server, in four parts.

1. Accept no more publishes and no more connections.
2. Wait until the work in progress has ended, but not longer than allowed.
3. Close all connections, and process the inputs that are left (the last steps of the driver).
4. Write a snapshot, so that the next start has nothing to replay.

No guarantee depends on a graceful stop. If the stop interrupts some work, the result is the same as when the process is
killed: the work is in the log, or it was not accepted.
"""

from antecede.server.core import ServerCore
from antecede.server.upkeep import Snapshot


class Shutdown:
    """One graceful stop. The code that runs the server calls the methods in the order in which they are written
    here."""

    def __init__(self, core: ServerCore, reason: str, until: float) -> None:
        """Accept no more publishes and no more connections. Work in progress may continue until the time ``until``."""
        self._core = core
        self._reason = reason
        self._until = until
        core.stop(reason)

    def waits(self, now: float) -> bool:
        """Return whether to wait for work in progress. During this wait, the driver continues to take steps."""
        core = self._core
        return core.driver.busy and now < self._until and not core.failure

    def leave(self) -> None:
        """Close all connections. Ignore the results of reactions that are still in progress: these reactions run again
        after the next start."""
        self._core.leave(self._reason)

    @property
    def steps_left(self) -> bool:
        """True if the driver must take another step before the snapshot, because some inputs are not processed yet."""
        driver = self._core.driver
        return bool(driver.inputs) and driver.can_step and not self._core.failure

    def snapshot(self) -> Snapshot | None:
        """Return a snapshot of the state after the last step. Return None if the server has failed, or if the log does
        not contain all steps because the disk is full."""
        core = self._core
        return None if core.driver.behind or core.failure else core.upkeep.final()
