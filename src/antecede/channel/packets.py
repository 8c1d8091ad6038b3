"""Encodes the packets of an order as bytes, and decodes them. Links send the bytes in frames, and the log stores them.

A packet contains its stamp as opaque bytes of limited length, with the name of the order and the version of the stamp.
So the receiver recognises a packet of another order, or of another version of the order, and does not misread it.
Nothing from the network is trusted: kinds, members, sizes and stamps are checked by the code that uses them.
"""

import msgspec

from antecede import limits
from antecede.errors import StampError, WireError
from antecede.messages import COPY, Message, Packet
from antecede.orders.contract import Order


class _Body(msgspec.Struct, frozen=True, array_like=True, gc=False):
    order: str
    version: int
    kind: str
    subject: str
    stamp: bytes
    source: int = 0
    to: bytes = b""
    payload: bytes = b""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Body)


def encode_packet(order: Order, packet: Packet) -> tuple[bytes, int]:
    """Return the bytes of a packet, and the length of the stamp in them."""
    message, (name, version) = packet.message, order.packet_format
    stamp = order.encode(packet)
    if message is None:
        body = _Body(name, version, packet.kind, packet.subject, stamp)
    else:
        to = message.to.to_bytes((order.members + 7) // 8, "little")
        body = _Body(name, version, COPY, message.id, stamp, message.source, to, message.payload)
    return _encoder.encode(body), len(stamp)


def decode_packet(order: Order, peer: int, data: bytes, recorded: bool = False) -> Packet:
    """Decode a packet that member ``peer`` sent to member ``order.me``. ``recorded``: whether the packet comes from the
    log."""
    try:
        body = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"unreadable packet: {error}") from None
    name, version = order.packet_format
    if body.order != name or body.version != version:
        raise WireError(f"packet of order {body.order} version {body.version}: expected order {name} version {version}")
    if len(body.subject) > limits.message_id_chars_max:
        raise WireError(f"message id of {len(body.subject)} characters: expected at most {limits.message_id_chars_max}")
    message = _message(order, peer, body) if body.kind == COPY else None
    decode = order.decode_recorded if recorded else order.decode
    return Packet(body.kind, peer, order.me, message, body.subject, decode(body.kind, peer, body.stamp))


def _message(order: Order, peer: int, body: _Body) -> Message:
    to = int.from_bytes(body.to, "little")
    if to & ~order.everyone or not to:
        raise StampError("message without destinations, or with a destination that is not a member of the domain")
    source = body.source
    if source != peer or not to >> order.me & 1:
        if not 0 <= source < order.members:
            raise StampError(f"message from member {source}: expected 0 to {order.members - 1}")
        if not order.relays:
            raise StampError(
                f"member {peer} sent a message of member {source} to member {order.me}: with this order, member {peer} "
                "may send only its own messages, and only to their destinations"
            )
    return Message(body.subject, source, to, body.payload)


class Copy(msgspec.Struct, frozen=True, gc=False):
    """A copy of a message for a reader that does not have the domain's order, such as the recorder of a trace. Without
    the order, the stamp cannot be decoded, so only the length of the stamp is stored."""

    subject: str
    source: int
    to: int
    stamp_bytes: int
    payload: bytes


def copy_of(data: bytes) -> Copy | None:
    """Return the copy of a message that a packet contains, or None if the packet is a control packet. The content of
    the packet is not checked here: the server has made the packet itself, or has checked it on acceptance."""
    try:
        body = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"unreadable packet: {error}") from None
    if body.kind != COPY:
        return None
    return Copy(body.subject, body.source, int.from_bytes(body.to, "little"), len(body.stamp), body.payload)
