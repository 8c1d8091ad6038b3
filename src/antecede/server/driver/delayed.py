"""Output that is not urgent waits for other output, and leaves together with it. If both outputs go to the same
receiver, the receiver wakes up only once, and takes both outputs in one step.

Two kinds of output are not urgent. The first kind is a message that commits an operation, if the operation conflicts
with no other operation. Nothing waits for this commit, so the message leaves together with the next frame. The second
kind is a reply that informs a client that its call was accepted. The client waits only for the answer to the
call, so the reply leaves together with this answer. If no other output comes, the message or the reply leaves alone
after a few milliseconds.
"""

from collections.abc import Callable
from typing import Final

from antecede.channel.consumer import Outgoing
from antecede.link import Ack
from antecede.objects.calls import Calls
from antecede.server.inputs import Accepted, Refused, Step

_Replies = list[Accepted | Refused]


class DelayedOutput:
    """The output that is not urgent, and therefore waits in a server until other output leaves."""

    def __init__(self) -> None:
        self._frames: list[Outgoing] = []
        self._replies: _Replies = []
        self.recorded = 0
        """The number of a record. The waiting replies may leave when this record is durable. This record was the newest
        one when the last of these replies came."""
        self.leave_at: float | None = None
        """The time at which the waiting output must leave, or None if nothing waits."""

    def __bool__(self) -> bool:
        return self.leave_at is not None

    def admit(
        self, step: Step, calls: Calls, lives: Callable[[str], bool], now: float, recorded: int
    ) -> tuple[list[Outgoing], _Replies]:
        """Take the output of a step, on a server that has objects. Return the frames and replies that leave now. The
        others wait. ``lives``: returns whether an address belongs to an agent of this server, not to a client.
        ``recorded``: the number of the newest record."""
        frames, replies = step.outgoing, step.replies
        if self.leave_at is None and not (frames and frames[0].unhurried) and not (replies and replies[0].unhurried):
            return frames, replies
        letters = not all(lives(due.agent) or calls.are_sure(due.letters) for due in step.due)
        return self.gather(frames, replies, letters, now, recorded, bool(calls.sure))

    def gather(
        self,
        frames: list[Outgoing],
        replies: _Replies,
        letters: bool,
        now: float,
        recorded: int = 0,
        sure: bool = False,
    ) -> tuple[list[Outgoing], _Replies]:
        """Take the output of a step. Return the frames and replies that leave now, in their sequence. The others wait.
        ``letters``: whether letters for clients leave after this call. If so, the replies leave now, too. ``recorded``:
        the number of the newest record. ``sure``: whether the step has answers that leave before this record is
        durable. If so, the step's acknowledgements are not urgent: they wait, so that the record need not be synced
        immediately. The caller can skip this call if no output waits, the first frame is urgent (not ``unhurried``),
        and the first reply is urgent. In this case, all output leaves now."""
        due = self.leave_at is not None and now >= self.leave_at - _early_seconds
        if frames or self._frames:
            self._frames += frames
            urgent = due or not all(one.unhurried or (sure and isinstance(one.content, Ack)) for one in frames)
            frames, self._frames = (self._frames, []) if urgent else ([], self._frames)
        if replies or self._replies:
            self._replies += replies
            self.recorded = recorded if replies else self.recorded
            urgent = due or letters or not all(one.unhurried for one in replies)
            replies, self._replies = (self._replies, []) if urgent else ([], self._replies)
        if not (self._frames or self._replies):
            self.leave_at = None
        elif self.leave_at is None:
            self.leave_at = now + _company_seconds
        return frames, replies

    def take_replies(self) -> _Replies:
        """Remove and return the replies that wait. The caller sends them together with an answer that does not wait for
        the log."""
        replies, self._replies = self._replies, []
        if not self._frames:
            self.leave_at = None
        return replies


_company_seconds: Final = 0.004
_early_seconds: Final = 0.001
"""A time in seconds. If an alarm is too early by at most this time, it is treated like an alarm that is on time."""
