"""Checks whether a server still works: its event loop runs, and it processes waiting inputs.

The event loop records the time several times per second. Other threads read this time, and so they notice when a
handler blocks the event loop. A server that waits for disk space counts as working, because a restart would not help.
The page ``/health`` shows that disk space is missing.
"""

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

from antecede import limits

if TYPE_CHECKING:
    from antecede.live.server import ServerRuntime


class Pulse:
    """Records when the event loop of one server ran, and when the server made progress with its inputs."""

    def __init__(self, runtime: "ServerRuntime") -> None:
        self._runtime = runtime
        self._turned = self._stepped = monotonic()
        """``_turned``: the last time at which the event loop ran. ``_stepped``: the last time at which inputs were
        processed or no input was waiting."""
        self._taken = 0
        self._handle: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Record the time now, and then several times per second."""
        runtime = self._runtime
        self._handle = asyncio.get_running_loop().call_later(_beat_seconds, self.begin)
        self._turned = monotonic()
        if runtime.driver.taken != self._taken or not runtime.unstepped:
            self._taken, self._stepped = runtime.driver.taken, self._turned

    def end(self) -> None:
        """Stop recording the time of the event loop."""
        if self._handle is not None:
            self._handle.cancel()

    def trouble(self) -> str:
        """Return the reason why the server does not work, as one line. Return an empty string if the server works. This
        method may be called from any thread."""
        runtime, now = self._runtime, monotonic()
        if runtime.failed.done():
            return str(runtime.failed.result())
        if now - self._turned > limits.live_seconds_max:
            progress = runtime.reactions.host.progress
            agent = runtime.reactions.reacting or ((progress and progress.running) or ("",))[0]
            blocks = f": a handler of agent {agent} blocks it" if agent else ""
            return f"the event loop has been blocked for {now - self._turned:.0f} s{blocks}"
        if now - self._stepped > limits.live_seconds_max:
            return f"no step for {now - self._stepped:.0f} s, and {runtime.unstepped} inputs wait"
        return runtime.background.trouble()


_beat_seconds = 0.1
