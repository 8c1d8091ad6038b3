"""What a held message waits for, as its order tells people: complete, never empty, and true."""

import pytest

from antecede.messages import COPY, Deliver, Message, Packet, Send, mask_of
from antecede.orders import Order, parse


class _Group:
    """Members of one order, and packets on their way that arrive in any sequence."""

    def __init__(self, name: str, members: int) -> None:
        self.orders: list[Order] = [parse(name).create(me, members) for me in range(members)]
        self.air: list[Packet] = []
        self.delivered: list[list[str]] = [[] for _ in range(members)]

    def do(self, member: int, effects: list[object]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self.air.append(effect.packet)
            elif isinstance(effect, Deliver):
                self.delivered[member].append(effect.message.id)

    def send(self, id_: str, source: int, *to: int) -> None:
        self.do(source, list(self.orders[source].send(Message(id_, source, mask_of(to)))))

    def arrive(self, packet: Packet) -> None:
        self.air.remove(packet)
        self.do(packet.target, list(self.orders[packet.target].receive(packet)[1]))

    def copy(self, id_: str, target: int) -> Packet:
        return next(one for one in self.air if one.kind == COPY and one.subject == id_ and one.target == target)


@pytest.mark.parametrize("name", ["matrix", "updates", "pruned", "direct"])
def test_all_predecessors_are_named_and_go_as_they_come(name: str) -> None:
    """0 and 1 send to 3; 2 has heard of both, and its message to 3 is first there (Garg Fig. 12.1, twice)."""
    group = _Group(name, 4)
    group.send("x", 0, 3)
    group.send("y", 1, 3)
    group.send("a", 0, 2)
    group.send("b", 1, 2)
    group.arrive(group.copy("a", 2))
    group.arrive(group.copy("b", 2))
    group.send("z", 2, 3)
    group.arrive(group.copy("z", 3))

    def missing() -> list[int]:
        return [member for _, reasons in group.orders[3].explain_held() for member, _ in reasons]

    assert missing() == [0, 1]
    _, reasons = next(group.orders[3].explain_held())
    assert reasons[0][1] == "message 1, the last one delivered is 0"
    group.arrive(group.copy("x", 3))
    assert missing() == [1]
    group.arrive(group.copy("y", 3))
    assert missing() == []
    assert group.delivered[3] == ["x", "y", "z"]


def test_who_has_not_voted() -> None:
    group = _Group("skeen", 3)
    group.send("x", 0, 1, 2)
    group.arrive(group.copy("x", 1))
    assert next(group.orders[1].explain_held())[1] == [(0, "its final timestamp")]


def test_who_has_not_acknowledged() -> None:
    group = _Group("lamport", 3)
    group.send("x", 0, 0, 1)
    group.arrive(group.copy("x", 0))
    assert next(group.orders[0].explain_held())[1] == [(1, "its acknowledgement"), (2, "its acknowledgement")]
    group.arrive(group.copy("x", 1))
    group.arrive(next(packet for packet in group.air if packet.kind == "ack"))
    assert next(group.orders[0].explain_held())[1] == [(2, "its acknowledgement")]
    assert next(group.orders[1].explain_held())[1] == [(0, "its report that all members have this message")]
