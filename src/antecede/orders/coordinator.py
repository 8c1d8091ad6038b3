"""``coordinator``: one member puts all messages into a sequence (Garg §12.3.1).

Garg's rule: *a process that wants to multicast a message simply sends it to the coordinator*, who multicasts it.
Channels to and from the coordinator must be FIFO. Here every packet is numbered on its link (``resequence``), so links
may reorder.

* A member sends its message to the coordinator: the **detour**, a copy with the next number on the link to the
  coordinator.
* The coordinator processes the detours of each member in sequence. For each detour it sends a **final** copy to each
  destination except itself, with the next number on the link to that destination. The links from the coordinator carry
  nothing else, so the numbers are sequence numbers per destination. With global numbers, a member that does not get
  every message would see gaps in the numbers, and would wait for ever for the missing messages.
* Every member, including the sender, delivers the final copies in sequence. A sender that delivered its own message
  immediately would break the order (it did in 1407 of 1500 random runs).
* The coordinator's own messages enter the sequence when they are sent. If the coordinator is a destination of another
  member's message, it sends no final copy to itself: it delivers the message when it processes the detour. If earlier
  copies from the coordinator to itself are still in transit, the message first waits for these copies. A message that
  waits is part of the durable state.

A copy *from* the coordinator is a final copy, and any other copy is a detour. So the stamp needs only a number.

**Why it is right.** Let T(m) be the moment at which m is put into the sequence. Every member delivers in the order of
T, so the order is total. If send(m) happened before send(m'), then T(m) < T(m'). If one member sent both, its detours
are processed in sequence. If the sender of m' delivered m before it sent m', the sequence in time is: T(m), the
delivery of m, the send of m', T(m'). Every other case is a chain of these two. So the order is causal, hence FIFO.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from antecede.errors import OrderError, StampError
from antecede.messages import COPY, PERSIST, Deliver, Effects, Message, Packet, Send, Sent, members_of
from antecede.orders.contract import Option, Reason, pack_message, unpack_message
from antecede.orders.encoding import Reader
from antecede.orders.resequence import SequencedOrder


class Coordinator(SequencedOrder):
    """All messages go through one member, which decides the sequence."""

    name: ClassVar[str] = "coordinator"
    relays: ClassVar[bool] = True
    source: ClassVar[str] = "Garg §12.3.1"
    guarantees = frozenset({"fifo", "causal", "total"})
    options: ClassVar[Mapping[str, Option]] = {"member": Option(0, "the member that puts messages into sequence")}

    def __init__(self, me: int, members: int, **options: object) -> None:
        super().__init__(me, members, **options)
        self.coordinator: int = self.settings["member"]
        if self.coordinator >= members:
            raise OrderError(f"member={self.coordinator}: expected a member number, 0 to {members - 1}")
        self._turn: dict[int, Message] = {}
        """Other members' messages that the coordinator must deliver (used only at the coordinator). They wait until all
        earlier copies that the coordinator sent to itself have arrived. The key is the number of the message on the
        coordinator's link to itself."""

    def send(self, message: Message) -> Effects:
        effects: Effects = [PERSIST, Sent(message)]
        if self.me == self.coordinator:
            for target in members_of(message.to):
                effects.append(Send(self.next_packet(COPY, target, message, message.id)))
        elif message.to:
            effects.append(Send(self.next_packet(COPY, self.coordinator, message, message.id)))
        return effects

    def take(self, packet: Packet, effects: Effects) -> None:
        message = packet.message
        assert message is not None
        if packet.source == self.coordinator:
            effects.append(Deliver(message))
            return
        for target in members_of(message.to & ~(1 << self.me)):
            effects.append(Send(self.next_packet(COPY, target, message, message.id)))
        if message.to >> self.me & 1:
            self.numbered[self.me] += 1
            self._turn[self.numbered[self.me]] = message
            self.resume(self.me, effects)

    def resume(self, source: int, effects: Effects) -> None:
        super().resume(source, effects)
        while source == self.me and self.taken[source] + 1 in self._turn:
            self.taken[source] += 1
            effects.append(Deliver(self._turn.pop(self.taken[source])))
            super().resume(source, effects)

    def waits(self, packet: Packet) -> bool:
        return packet.message in self._turn.values()

    def held(self) -> list[Message]:
        return [*(self._turn[number] for number in sorted(self._turn)), *super().held()]

    def explain_held(self) -> Iterator[tuple[Message, list[Reason]]]:
        for number in sorted(self._turn):
            missing = f"packets {self.taken[self.me] + 1} to {number - 1} that it sent to itself"
            yield self._turn[number], [(self.me, missing)]
        yield from self.explain_early()

    def dependents(self, packet: Packet) -> int:
        return 1

    def read_numbers(self, kind: str, source: int, data: Reader) -> tuple[int, ...]:
        if self.coordinator not in (source, self.me):
            raise StampError(
                f"copy from member {source}: expected a copy from the coordinator, member {self.coordinator}"
            )
        return ()

    def dump(self) -> Any:
        return (*self.dump_links(), [(number, pack_message(self._turn[number])) for number in sorted(self._turn)])

    def load(self, state: Any) -> None:
        numbered, taken, turn = state
        self.load_links((numbered, taken))
        self._turn = {number: unpack_message(message) for number, message in turn}
