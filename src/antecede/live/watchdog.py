"""The watchdog thread of a server process. The rules are in :class:`antecede.server.watchdog.Watchdog`.

A handler that calls C code without releasing the interpreter lock stops this thread as well. So the thread sets an
alarm of ``faulthandler``, and postpones the alarm every few seconds. The alarm has its own thread, which does not need
the interpreter lock. If the alarm is not postponed in time, it writes the stacks of all threads and ends the process.
The agents have limits for the time of a reaction. The alarm waits for the largest of these limits, plus some seconds.
"""

import faulthandler
import os
import sys
from threading import Event, Thread, main_thread
from time import monotonic
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from antecede.server.watchdog import Slow, Watchdog

if TYPE_CHECKING:
    from antecede.live.server import ServerRuntime


class TooLong(Exception):
    """A handler or an operation runs too long; the traceback shows where it is."""


class WatchdogThread:
    """Watches the handlers of the server in this process, and the operations of its objects."""

    def __init__(self, runtime: "ServerRuntime") -> None:
        self._runtime = runtime
        self._reactions = Watchdog(runtime.reaction_limit)
        self._operations = Watchdog(runtime.reaction_limit)
        self._stopped = Event()
        self._thread = Thread(target=self._watch, name="watchdog", daemon=True)
        self._watched = main_thread().ident or 0
        self._postponed = 0.0

    def start(self) -> None:
        """Start watching."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching: the server is about to end."""
        self._stopped.set()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        while not self._stopped.wait(_look_seconds):
            try:
                self._look(monotonic())
            except Exception as error:
                self._runtime.background.failed("watchdog", error)

    def _look(self, now: float) -> None:
        if now - self._postponed > _postpone_seconds:
            self._postponed = now
            self._postpone()
        progress = self._runtime.reactions.host.progress
        if progress is not None:
            slow = self._reactions.look(progress.running, progress.number, now)
            if slow is not None:
                reason = "the process ends, and a try of the letter is counted"
                self._report("reaction", slow, {"agent": slow.name, "letter": slow.part}, reason)
        slow = self._operations.look(*self._runtime.machine.calls.computing(), now)
        if slow is not None:
            reason = "the process ends; the call comes again if its caller or another server still has it"
            self._report("operation", slow, {"object": slow.name, "operation": slow.part}, reason)

    def _postpone(self) -> None:
        try:
            seconds = self._runtime.topology.reactions.longest + _grace_seconds
            faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or sys.stderr)
        except (OSError, ValueError, AttributeError):
            # Standard error is not a file.
            return

    def _report(self, kind: str, slow: Slow, names: dict[str, str], reason: str) -> None:
        """Log that a handler or an operation is slow, and end the process if it has run too long. ``kind``:
        ``reaction`` or ``operation``."""
        frame = sys._current_frames().get(self._watched)
        what = f"a handler of {slow.name}" if kind == "reaction" else f"operation {slow.part} of {slow.name}"
        raised = TooLong(f"{what} runs for {slow.seconds:.0f} s").with_traceback(_traceback(frame))
        seconds = round(slow.seconds, 1)
        self._runtime.log.warning(f"{kind}-slow", raised=raised, **names, seconds=seconds)
        if slow.ends:
            self._runtime.log.error(f"{kind}-too-long", **names, seconds=seconds, reason=reason)
            os._exit(2)


def _traceback(frame: FrameType | None) -> TracebackType | None:
    found = None
    while frame is not None:
        found = TracebackType(found, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return found


_look_seconds = 0.25
_postpone_seconds = 2.0
_grace_seconds = 10.0
