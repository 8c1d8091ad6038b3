"""The end of a change whose operator is gone: each server finds out by itself whether the change was made.

The coordinator's log decides (:mod:`antecede.server.change.changing`). So after a time without a command of the
attempt:

* the coordinator abandons the change, if it has not committed it. From then on it cannot commit it.
* A server that lets letters wait for the change, but has not staged it, abandons it as well. Without this server there
  is no commit.
* A server that has staged the change must not decide. It asks the coordinator, again and again: it connects, and sends
  a hello with the attempt. The answer is the coordinator's hello, with the number of the change in force there and the
  attempt that is in progress there. If neither of them is this change, the coordinator has abandoned it. Only an answer
  counts: the coordinator may have sent another hello before it took part in the change.

Besides, the first server of the topology sends the history of changes, with the attempts that made them, to a server
that is behind (:mod:`antecede.server.peering.learning`). This is how a server that was down at the commit learns of it.

Why a server may abandon a staged change when the coordinator does not have it: the operator sends the commit only after
every server, the coordinator included, has confirmed that the change is staged there. If the change is not staged at
the coordinator any more, the coordinator refuses the commit. If it is not staged there yet, the commit is never sent,
because a server refuses to confirm an attempt that it has abandoned.
"""

from collections.abc import Callable

from antecede import limits
from antecede.server import AgentServer
from antecede.server.change_items import Abandoned
from antecede.wire import ServerHello


class Deciding:
    """One server's knowledge about the decision of a change in progress."""

    def __init__(self, machine: AgentServer, decide: Callable[[Abandoned], None]) -> None:
        """``decide``: carries out a decision."""
        self._machine = machine
        self._decide = decide
        self._attempt = machine.organisation.attempt
        self._commanded = 0.0
        """The time of the last command of this attempt; 0: none in this life."""
        self._since: float | None = None
        """The time from which the attempt counts as idle: the time of its last command or, if no command came in this
        life, of the first check; None: no attempt is in progress."""
        self._ask_at = 0.0

    def commanded(self, now: float) -> None:
        """Record that a command of the attempt in progress has come, or is being carried out."""
        self._commanded = self._since = now

    def idle(self, now: float) -> float | None:
        """Return the seconds since the last command of the attempt in progress; an hour if none came since the server
        started; None if no attempt is in progress."""
        return None if not self._in_progress else max(0.0, now - self._commanded) if self._commanded else _long_ago

    @property
    def _in_progress(self) -> bool:
        organisation = self._machine.organisation
        return bool(organisation.paused or organisation.staged is not None)

    def watch(self, now: float) -> str:
        """Return the name of the coordinator, if it is another server and it is time to ask it for the decision;
        otherwise return an empty string. If this server is the coordinator, or has not staged the change, abandon the
        change when no command came for too long."""
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

    def heard(self, hello: ServerHello) -> bool:
        """Take a hello of an authenticated server. If it shows that the coordinator has abandoned the change that is
        staged here, abandon this change here, too, and return True."""
        staged = self._machine.organisation.staged
        if staged is None:
            return False
        answer = hello.server == staged.coordinator and bool(hello.asked) and hello.asked == staged.attempt
        if answer and hello.attempt != staged.attempt and hello.change < staged.change:
            self._decide(Abandoned(staged.change, staged.attempt))
            return True
        return False


_long_ago = 3_600.0
