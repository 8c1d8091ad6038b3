"""The rules of ``objects``: which of two messages must be delivered first.

All of this concerns messages that have arrived at one object (Enokido, Higaki, Takizawa §3.3 and §4.3, as interpreted
in :mod:`antecede.orders.objects`).
"""

from typing import Any

import msgspec

from antecede.messages import COMMIT, REQUEST, RESPONSE, Label, Message
from antecede.orders.contract import pack_message, unpack_message
from antecede.orders.objects_stamp import Stamp
from antecede.orders.relation import Relation

PLAIN = Label(REQUEST, "", "*", "", "*")
"""The label that the rules use for a message without a label. The rules treat such a message as a request from one
process to another, and each process as one operation instance that never ends."""


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """A message that has arrived, and the facts about it that the rules need. It waits for its delivery, or it is a
    delivered request whose instance has not begun yet."""

    source: int
    message: Message
    stamp: Stamp
    label: Label
    times: dict[int, int]
    """The clocks in the message's vector, by member."""

    @property
    def several(self) -> bool:
        """Whether the message goes to several objects."""
        return self.message.to & (self.message.to - 1) != 0

    @property
    def event(self) -> tuple[int, int, int]:
        return (self.stamp.clock, self.source, self.stamp.no)


def waiting_for(source: int, message: Message, stamp: Stamp) -> Waiting:
    """Create the ``Waiting`` for a message that has arrived. The label is taken from the stamp."""
    times = {member: clock for member, clock, _ in stamp.vector}
    return Waiting(source, msgspec.structs.replace(message, label=stamp.label), stamp, stamp.label or PLAIN, times)


def saved(waiting: Waiting) -> Any:
    """Return a waiting message as plain values, for a snapshot."""
    return (waiting.source, pack_message(waiting.message), msgspec.to_builtins(waiting.stamp))


def restored(state: Any) -> Waiting:
    """Return a waiting message from its state in a snapshot."""
    source, message, stamped = state
    return waiting_for(source, unpack_message(message), msgspec.convert(stamped, Stamp))


class Rules:
    """The rules that decide whether one message must wait for another message. ``relation`` says which operations
    conflict."""

    def __init__(self, relation: Relation, members: int) -> None:
        self.relation = relation
        self.members = members

    def lasts(self, label: Label) -> bool:
        """Return whether the vectors of later messages can contain the event number of a message with this label. If
        they cannot, no later message depends on this message. The result is False if the label names no instance, and
        its two operations conflict with no operation."""
        sender, receiver = (label.by_instance, label.by_operation), (label.instance, label.operation)
        return any(instance or self.relation.matters(operation) for instance, operation in (sender, receiver))

    def agreed(self, label: Label, to: int) -> bool:
        """Return whether rule 2 of :mod:`antecede.orders.objects` applies to a message with this label and the
        destinations ``to``. By this rule, all destinations deliver such messages in the same sequence if their
        operations conflict."""
        return label.type == REQUEST and to & (to - 1) != 0 and self.relation.matters(label.operation)

    def needed(self, waiting: Waiting) -> list[tuple[int, int]]:
        """Return pairs (member, time). For each pair, the message must wait until all messages that the member sent up
        to this time have arrived (stability)."""
        label = waiting.label
        if self.agreed(label, waiting.message.to):
            # The times in its own vector are smaller than its own time.
            return [(member, waiting.stamp.clock) for member in range(self.members)]
        return [] if self.free(label) else list(waiting.times.items())

    def free(self, label: Label) -> bool:
        """Return whether it is certain that a message with this label need not wait for any other message."""
        if label.type == REQUEST:
            return not self.relation.matters(label.operation) and label.instance != PLAIN.instance
        return label.type == COMMIT or (label.type == RESPONSE and not label.several)

    def before(self, earlier: Waiting, later: Waiting) -> bool:
        """Return whether ``earlier`` must be delivered before ``later``; both messages have arrived."""
        one, other = earlier.label, later.label
        same = one.instance == other.instance != ""
        if not same and (other.type != REQUEST or not self.relation.conflict(one.operation, other.operation)):
            return False
        if self.precedes(earlier, later):
            return True
        return (
            one.type == other.type == REQUEST
            and earlier.several
            and later.several
            and self.relation.conflict(one.operation, other.operation)
            and earlier.event < later.event
        )

    def precedes(self, earlier: Waiting, later: Waiting) -> bool:
        """Return whether ``earlier`` significantly precedes ``later``. It does if no entry of its receipt vector RV is
        larger than the entry for the same object in the vector V of ``later``."""
        times = later.times
        if earlier.stamp.clock > times.get(earlier.source, 0):
            return False
        return all(time <= times.get(member, 0) for member, time in earlier.times.items())
