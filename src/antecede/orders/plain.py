"""Plain stamps: short rows of whole numbers.

An order that uses control packets (a coordinator, a token, votes, locks) needs little data in each packet: a sequence
number, a timestamp, a count. Its stamps are tuples of whole numbers, written one after the other. Each order reads and
validates them itself, because only it knows which numbers a correct peer can have sent.
"""

from antecede.messages import Packet
from antecede.orders.contract import Order
from antecede.orders.encoding import Writer, number_size


class PlainOrder(Order):
    """An order whose stamps are tuples of whole numbers."""

    def write_stamp(self, packet: Packet, out: Writer) -> None:
        for number in packet.stamp:
            out.number(number)

    def size(self, packet: Packet) -> int:
        return sum(map(number_size, packet.stamp))

    def paper_bytes(self, packet: Packet) -> int:
        return 4 * len(packet.stamp)
