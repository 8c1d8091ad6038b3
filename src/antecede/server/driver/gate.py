"""The gate: output leaves a server only when all records that were made before this output are durable.

The rule is *persist, then send, then acknowledge* (Laumay et al. §5). One queue contains all frames, acknowledgements,
replies to clients, letters for clients, and the first messages of a session or a connection (welcome, hello). Output
that is put into the queue must wait until the newest record at that time is durable. This record may still wait for
space on the disk. The output of a step without a record waits as well. For example, suppose that such a step repeats
the acknowledgement of a frame. An earlier step accepted this frame, and the record of the earlier step may not be
durable yet.

All output for one receiver leaves in the sequence of the queue. Output for another receiver may leave earlier or later.
For example, replies to clients leave before frames that wait for the same record. The queue also contains function
calls. When such a call opens a new connection or session, all output for the previous connection or session has already
left.

There is one exception: some answers do not wait, because the server will give them again, unchanged, after a crash
(``Calls.sure``). Such an answer leaves immediately, unless a function call is in the queue. In that case the answer
waits like other output. If an answer leaves immediately, delayed replies (:mod:`antecede.server.driver.delayed`) leave
together with it, but only if their record is durable and the queue is empty (``is_open``).

Some output does not pass through the gate: pings, proofs of identity, and the answer to an operator if the operator's
command changed nothing. Most connections are also closed without the gate. But if a peer has sent a wrong frame, the
connection to this peer is closed through the gate, so that this server's hello leaves first (``Peering.fault``).
"""

from collections import deque
from collections.abc import Callable

from antecede.channel.consumer import Outgoing
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
        """The number of the newest record. This record may still wait for space on the disk."""
        self.durable = durable
        """All records up to this number are durable."""
        self._send = send
        self._reply = reply
        self.waiting: deque[_Waiting] = deque()
        """The output that has not left yet."""
        self.calls = 0
        """The number of function calls that wait in the queue; ``call`` adds them."""

    def put(self, outgoing: list[Outgoing], replies: list[Reply]) -> None:
        """Put output into the queue. The output leaves when all records that exist now are durable. The replies leave
        before the frames."""
        self.waiting.append((self.last, outgoing, replies, None))

    def call(self, call: Callable[[], None]) -> bool:
        """Put a function into the queue. It is called when all records that exist now are durable, and all earlier
        entries of the queue have left. Return whether the first entry of the queue may leave now."""
        self.waiting.append((self.last, [], [], call))
        self.calls += 1
        return self.waiting[0][0] <= self.durable

    def is_open(self, record: int) -> bool:
        """Return whether output that waits only for this record may leave immediately. It may leave if the record is
        durable and the queue is empty, because then no earlier output waits."""
        return record <= self.durable and not self.waiting

    def open(self, durable: int) -> None:
        """Send the output that waited for the records up to the number ``durable``, because these records are durable
        now. Call the functions that waited for them, too. Do both in the sequence of the queue."""
        if durable > self.durable:
            self.durable = durable
        durable, waiting = self.durable, self.waiting
        while waiting and waiting[0][0] <= durable:
            _, outgoing, replies, call = waiting.popleft()
            if call is None and waiting and waiting[0][0] <= durable:
                # New lists: these belong to the step that made them.
                outgoing, replies = [*outgoing], [*replies]
                while call is None and waiting and waiting[0][0] <= durable:
                    _, frames, more_replies, call = waiting.popleft()
                    outgoing += frames
                    replies += more_replies
            if replies:
                self._reply(replies)
            if outgoing:
                self._send(outgoing)
            if call is not None:
                self.calls -= 1
                call()
