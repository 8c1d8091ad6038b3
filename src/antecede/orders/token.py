"""``token``: the right to number messages moves between the members (Garg §12.3.1, last paragraph).

Garg's rule: *the token assigns sequence numbers to broadcasts, and messages are delivered only in this sequence order.*
The text leaves open how the token moves and what happens to a multicast that does not go to all members.

* The token contains, for each destination, the number of the last message for it. A message takes the next number of
  each of its destinations. One global number would leave gaps at members that are not addressed, and block them.
* Only the holder numbers messages. A message sent by another member waits in its sender's output queue.
* The token moves only on request, so that an idle system sends nothing. If a member has a message in its queue and no
  open request, it broadcasts a ``request``. The requests of a member are numbered 1, 2, 3 … The token contains, for
  each member, the number of the last request that was *served*. A request is open while its number is larger than this
  number. So requests and the token may arrive in any sequence. (This is based on Suzuki and Kasami's algorithm for
  mutual exclusion.)
* When a member receives the ``token``, it numbers and sends all messages in its queue, and marks its own request as
  served. Then it passes the token to the next member with an open request. (The members are examined in the order of
  their numbers; member 0 follows the last member.) If no member has an open request, the holder keeps the token until a
  request comes. At the beginning, member 0 has the token.
* Each member delivers its messages in the sequence of their numbers for this member, without gaps.

**No starvation.** A request reaches all members, so from some moment on every holder of the token knows that the
request is open. From then on, each holder passes the token to a member that is nearer to the requester in the order of
member numbers. So the token need not contain a queue of waiting members, unlike in Suzuki and Kasami's algorithm.

**Why it is right.** Let T(m) be the moment at which m is numbered. There is only one token, so the moments of all
messages form one sequence, and every member delivers its messages in this sequence. If send(m) happened before
send(m'), then T(m) < T(m'), for the following reasons. If one member sent both messages, it numbers m before m',
because its queue does not change the sequence of the messages. If the sender of m' delivered m before it sent m', then
T(m) is before this delivery, and T(m') is after the send of m'. Every other case is a chain of these two cases. So the
order is causal, and hence FIFO.

**One token.** Each pass increases the token's own number. A token that is not newer than the last one seen is a
duplicate. A request has no effect if it was received before, or if a newer request of the same member arrived earlier.
For such a token or request, the verdict is ``DUPLICATE``.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar

from antecede.errors import StampError
from antecede.messages import (
    COPY,
    PERSIST,
    Accept,
    Deliver,
    Effects,
    Message,
    Packet,
    Send,
    Sent,
    Verdict,
    members_of,
)
from antecede.orders.contract import PlainOrder, Reason, pack_message, unpack_message
from antecede.orders.encoding import Reader

REQUEST = "request"
TOKEN = "token"


class Token(PlainOrder):
    """An order with one token: only the member that holds the token may give numbers to messages, and messages are
    delivered in the order of these numbers."""

    name: ClassVar[str] = "token"
    source: ClassVar[str] = "Garg §12.3.1"
    guarantees = frozenset({"fifo", "causal", "total"})
    needs: ClassVar[frozenset[str]] = frozenset({"control packets"})
    controls: ClassVar[tuple[str, ...]] = (REQUEST, TOKEN)

    def __init__(self, me: int, members: int, **options: object) -> None:
        super().__init__(me, members, **options)
        self.delivered = 0
        """The number of the last message delivered here."""
        self.requested = [0] * members
        """For each member, including this one: the number of its last request that is known here."""
        self.passes = 0
        """The number of the last token seen here."""
        self.holding = me == 0
        self.numbers = [0] * members
        """According to the last token seen: the number of the last message for each member."""
        self.served = [0] * members
        """According to the last token seen: the number of the last served request of each member."""
        self._queue: deque[Message] = deque()
        self._held: dict[int, Packet] = {}

    def send(self, message: Message) -> Effects:
        effects: Effects = [PERSIST, Sent(message)]
        if not message.to:
            return effects
        if self.holding:
            self._post(message, effects)
            return effects
        self._queue.append(message)
        if self.requested[self.me] == self.served[self.me]:
            self.requested[self.me] += 1
            for target in range(self.members):
                if target != self.me:
                    effects.append(Send(self.control(REQUEST, target, "", (self.requested[self.me],))))
        return effects

    def _post(self, message: Message, effects: Effects) -> None:
        for target in members_of(message.to):
            self.numbers[target] += 1
            effects.append(Send(Packet(COPY, self.me, target, message, message.id, (self.numbers[target],))))

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        if packet.kind == COPY:
            return self._receive_copy(packet)
        effects: Effects = [PERSIST]
        if packet.kind == REQUEST:
            (number,) = packet.stamp
            if number <= self.requested[packet.source]:
                return Verdict.DUPLICATE, []
            self.requested[packet.source] = number
        else:
            if packet.stamp[0] <= self.passes:
                return Verdict.DUPLICATE, []
            self.holding = True
            self.passes = packet.stamp[0]
            self.numbers = list(packet.stamp[1 : 1 + self.members])
            self.served = list(packet.stamp[1 + self.members :])
            self.served[self.me] = self.requested[self.me]
            while self._queue:
                self._post(self._queue.popleft(), effects)
        if self.holding:
            self._pass_on(effects)
        return Verdict.DELIVER, effects

    def _pass_on(self, effects: Effects) -> None:
        for step in range(1, self.members):
            following = (self.me + step) % self.members
            if self.requested[following] > self.served[following]:
                self.holding = False
                self.passes += 1
                stamp = (self.passes, *self.numbers, *self.served)
                effects.append(Send(self.control(TOKEN, following, "", stamp)))
                return

    def _receive_copy(self, packet: Packet) -> tuple[Verdict, Effects]:
        number: int = packet.stamp[0]
        if number <= self.delivered or number in self._held:
            return Verdict.DUPLICATE, []
        if number > self.delivered + 1:
            self._held[number] = packet
            return Verdict.HOLD, []
        assert packet.message is not None
        effects: Effects = [PERSIST, Deliver(packet.message)]
        self.delivered = number
        while following := self._held.pop(self.delivered + 1, None):
            assert following.message is not None
            self.delivered += 1
            effects += (Accept(following), Deliver(following.message))
        return Verdict.DELIVER, effects

    def explain_held(self) -> Iterator[tuple[Message, list[Reason]]]:
        for number, packet in sorted(self._held.items()):
            if packet.message is not None:
                yield packet.message, [(self.me, f"messages {self.delivered + 1} to {number - 1} of its sequence")]

    def explain_unposted(self) -> list[Reason]:
        return [(self.me, f"the token (its request {self.requested[self.me]} is open)")]

    def held_packets(self) -> list[Packet]:
        return [self._held[number] for number in sorted(self._held)]

    def unposted(self) -> list[tuple[Message, int]]:
        return [(message, target) for message in self._queue for target in members_of(message.to)]

    def dependents(self, packet: Packet) -> int:
        return 1 if packet.kind == COPY else 0

    def read_stamp(self, kind: str, source: int, data: Reader) -> tuple[int, ...]:
        if kind == TOKEN:
            return self._read_token(source, data)
        number = data.counter(self.delivered if kind == COPY else self.requested[source])
        if number == 0:
            raise StampError(f"number 0 in the stamp of a {kind}: expected 1 or more")
        if source == self.me and (kind == REQUEST or number > self.numbers[source]):
            raise StampError(f"{kind} {number} from ourselves: no such packet was sent")
        return (number,)

    def _read_token(self, source: int, data: Reader) -> tuple[int, ...]:
        passes = data.ordinal(self.passes, "token number")
        numbers = [data.counter(known) for known in self.numbers]
        served = [data.counter(known) for known in self.served]
        if source == self.me:
            raise StampError("token from ourselves: expected one from another member")
        if passes > self.passes:
            if self.holding:
                raise StampError(f"token {passes} from member {source}, but we hold token {self.passes}")
            if any(new < old for new, old in zip(numbers + served, self.numbers + self.served, strict=True)):
                raise StampError(
                    f"token {passes} from member {source}: a counter in it is smaller than in token {self.passes}"
                )
            if served[self.me] != self.served[self.me] or self.requested[self.me] == self.served[self.me]:
                raise StampError(f"token {passes} from member {source}, but we have no open request for the token")
        return (passes, *numbers, *served)

    def dump(self) -> Any:
        return (
            self.delivered,
            tuple(self.requested),
            self.passes,
            self.holding,
            tuple(self.numbers),
            tuple(self.served),
            [pack_message(message) for message in self._queue],
        )

    def load(self, state: Any) -> None:
        self.delivered, requested, self.passes, self.holding, numbers, served, queue = state
        self.requested, self.numbers, self.served = map(list, (requested, numbers, served))
        self._queue = deque(map(unpack_message, queue))
