"""The end of a change whose operator is gone: each server finds out by itself whether the change was made.

The coordinator's log decides (:mod:`antecede.server.change.changing`). If a server gets no command of the attempt for
some time, it acts as follows:

* If this server is the coordinator and has not committed the change, it abandons the change. After that, it cannot
  commit the change.
* A server that pauses for the change, but has not staged it, abandons the change as well. This is safe, because the
  change cannot be committed unless this server stages it.
* Any other server that has staged the change must not decide. It asks the coordinator repeatedly: it connects, and
  sends a hello with the attempt. The coordinator answers with its own hello. This hello says which change is in force
  at the coordinator, and which attempt is in progress. If the coordinator has not put the change into force, and does
  not work on it, the coordinator has abandoned it. Only a hello that answers the question is used, because the
  coordinator may have sent an earlier hello before it took part in the change.

A server that was down at the commit learns about the commit in another way. The first server of the topology sends the
history of changes, with the attempts that made them, to servers that have missed changes
(:mod:`antecede.server.peering.learning`).

Suppose that a change is staged on this server, but neither staged nor in force at the coordinator. Then this server can
safely abandon the change, for the following reason. The operator sends the commit only after every server, the
coordinator included, has confirmed that it has staged the change. If the coordinator has abandoned the change, the
coordinator refuses the commit. If the coordinator has not staged the change yet, the commit is never sent, because this
server refuses to confirm an attempt that it has abandoned.
"""

from collections.abc import Callable

from antecede import limits
from antecede.server import AgentServer
from antecede.server.items import Abandoned
from antecede.wire import ServerHello


class Deciding:
    """Finds out, for one server, how a change in progress ends if its operator sends no commands."""

    def __init__(self, machine: AgentServer, decide: Callable[[Abandoned], None]) -> None:
        """``decide``: a function that abandons a change. Its argument names the change."""
        self._machine = machine
        self._decide = decide
        self._attempt = machine.organisation.attempt
        self._commanded = 0.0
        """The time of the last command of the attempt, or 0 if no command has come since the server started."""
        self._since: float | None = None
        """The time from which the seconds without a command are counted. It is the latest of three times: the last
        command of the attempt, the first check of the attempt, and this server's last decision to abandon the change.
        It is None if no change is in progress."""
        self._ask_at = 0.0

    def commanded(self, now: float) -> None:
        """Record that a command of the attempt in progress has come, or is being carried out."""
        self._commanded = self._since = now

    def idle(self, now: float) -> float | None:
        """Return the seconds since the last command of the attempt in progress. If no command has come since the server
        started, return 3600, as if the last command came an hour ago. Return None if no attempt is in progress."""
        return None if not self._in_progress else max(0.0, now - self._commanded) if self._commanded else _long_ago

    @property
    def _in_progress(self) -> bool:
        organisation = self._machine.organisation
        return bool(organisation.paused or organisation.staged is not None)

    def watch(self, now: float) -> str:
        """Watch the change in progress. If this server is the coordinator, or has not staged the change, it may decide:
        it abandons the change if no command has come for ``limits.change_idle_seconds_max``. Any other server must ask
        the coordinator. If it is time to ask, return the name of the coordinator. In all other cases, return an empty
        string."""
        organisation = self._machine.organisation
        if not self._in_progress:
            self._since = None
            return ""
        if self._since is None or organisation.attempt != self._attempt:
            self._since, self._attempt = now, organisation.attempt
        staged = organisation.staged
        if staged is not None and staged.coordinator != self._machine.name:
            if now >= max(self._ask_at, self._since + limits.change_ask_seconds):
                self._ask_at = now + limits.change_ask_seconds
                return staged.coordinator
        elif now - self._since > limits.change_idle_seconds_max:
            self._since = now
            number = organisation.paused if staged is None else staged.change
            self._decide(Abandoned(number, organisation.attempt))
        return ""

    def receive_hello(self, hello: ServerHello) -> bool:
        """Process a hello of an authenticated server. If a change is staged here, the hello may show that the
        coordinator has abandoned this change. In this case, also abandon the change here, and return True. Otherwise
        return False."""
        staged = self._machine.organisation.staged
        if staged is None:
            return False
        answer = hello.server == staged.coordinator and bool(hello.asked) and hello.asked == staged.attempt
        if answer and hello.attempt != staged.attempt and hello.change < staged.change:
            self._decide(Abandoned(staged.change, staged.attempt))
            return True
        return False


_long_ago = 3_600.0
