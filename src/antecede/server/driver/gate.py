"""The gate: nothing leaves a server before everything that was recorded before it is durable.

*Persist, then send, then acknowledge* (Laumay et al. §5): frames, acknowledgements, replies to clients, letters for
clients, welcomes and hellos all pass through one queue. Each of them waits for the record that was the newest one when
it was put into the queue, even if this record still waits for space on the disk. (This is also true for the output of a
step without a record, because such a step may acknowledge again what an earlier step accepted.) Nothing overtakes
anything. So when a call in the queue opens a new connection or session, all output for the previous one has already
left.

There is one exception: answers that the server will give again, unchanged, after a crash (``Calls.sure``). Such an
answer leaves at once, unless a call is in the queue: then it waits like other output. Replies that wait for other
output (:mod:`antecede.server.driver.company`) leave together with such an answer, if the gate ``is_open`` for the
record of these replies.
"""

from collections import deque
from collections.abc import Callable

from antecede.channel import Outgoing
from antecede.server.inputs import Accepted, Refused

Reply = Accepted | Refused
_Waiting = tuple[int, list[Outgoing], list[Reply], Callable[[], None] | None]


class Gate:
    """The queue of all output that waits for the log."""

    def __init__(
        self,
        last: int,
        durable: int,
        send: Callable[[list[Outgoing]], None],
        reply: Callable[[list[Reply]], None],
    ) -> None:
        self.last = last
        """The number of the newest record, including one that waits for space on the disk."""
        self.durable = durable
        """All records up to this number are durable."""
        self._send = send
        self._reply = reply
        self.waiting: deque[_Waiting] = deque()
        """The output that has not left yet."""
        self.calls = 0
        """How many calls wait in the queue."""

    def put(self, outgoing: list[Outgoing], replies: list[Reply]) -> None:
        """Let this output leave when everything recorded so far is durable; replies leave before frames."""
        self.waiting.append((self.last, outgoing, replies, None))

    def call(self, call: Callable[[], None]) -> bool:
        """Make this call when everything recorded so far is durable, after everything that is in the queue already.
        Return whether the first entry of the queue may leave now."""
        self.waiting.append((self.last, [], [], call))
        self.calls += 1
        return self.waiting[0][0] <= self.durable

    def is_open(self, record: int) -> bool:
        """Return whether output that waits only for this record may leave at once: the record is durable, and the queue
        is empty, so the output overtakes nothing."""
        return record <= self.durable and not self.waiting

    def open(self, durable: int) -> None:
        """Record that all records up to ``durable`` are durable. Let the output that waited for them leave, in
        sequence."""
        if durable > self.durable:
            self.durable = durable
        durable, waiting = self.durable, self.waiting
        while waiting and waiting[0][0] <= durable:
            _, outgoing, replies, call = waiting.popleft()
            if call is None and waiting and waiting[0][0] <= durable:
                # New lists: these belong to the step that made them.
                outgoing, replies = [*outgoing], [*replies]
                while call is None and waiting and waiting[0][0] <= durable:
                    _, frames, told, call = waiting.popleft()
                    outgoing += frames
                    replies += told
            if replies:
                self._reply(replies)
            if outgoing:
                self._send(outgoing)
            if call is not None:
                self.calls -= 1
                call()
