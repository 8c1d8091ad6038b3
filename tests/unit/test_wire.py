"""Frames: parts survive, whatever the pieces they come in; what no peer can have sent is refused."""

import struct

import msgspec
import pytest

from antecede import limits, wire
from antecede.errors import WireError
from antecede.wire import Accepted, Bye, Deliver, Done, PeerFrames, Ping, Publish, Unframer, agree, frame, frames

_parts = [
    Publish(3, ("a", "b"), "Order", [b"x", b"y"]),
    PeerFrames("A", 1, 2, [1, 2], [b"one", b"two"]),
    Accepted(7),
    Done(["s1.1"], "why"),
    Ping(),
    Bye("so long", True),
]


def test_parts_survive() -> None:
    assert Unframer().feed(frame(_parts)) == _parts


def test_any_pieces() -> None:
    data = frame(_parts) + frame([Ping()] * 20)
    unframer, found = Unframer(), []
    for at in range(len(data)):
        found += unframer.feed(data[at : at + 1])
    assert found == [*_parts, *[Ping()] * 20]


def test_frames_are_split_where_they_have_enough() -> None:
    large = [Deliver(b"x" * (limits.frame_bytes_wanted // 2 + 1)) for _ in range(4)]
    written = frames(large)
    assert len(written) == 4
    assert [part for one in written for part in Unframer().feed(one)] == large
    assert len(frames([Accepted(1)] * 100)) == 1
    assert frames([]) == []


def test_bounds() -> None:
    Unframer().feed(struct.pack(">IB", limits.frame_bytes_max + 1, wire.VERSION))
    with pytest.raises(WireError, match="announced"):
        Unframer().feed(struct.pack(">IB", limits.frame_bytes_max + 2, wire.VERSION))
    stranger = Unframer(limits.hello_bytes_max)
    with pytest.raises(WireError, match="announced"):
        stranger.feed(struct.pack(">IB", limits.hello_bytes_max + 2, wire.VERSION))
    with pytest.raises(WireError, match="expected at most"):
        frame([Deliver(b"x" * limits.frame_bytes_max)])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x91",
        b"\x91\x91\x63",
        msgspec.msgpack.encode([[6, "no number"]]),
        b"\x91" * 100_000,
        b"\x91\xa1\xff",
    ],
)
def test_what_is_no_frame(body: bytes) -> None:
    with pytest.raises(WireError):
        Unframer().feed(struct.pack(">IB", len(body) + 1, wire.VERSION) + body)


@pytest.mark.parametrize("version", [0, wire.VERSION + 1, 255])
def test_other_versions(version: int) -> None:
    with pytest.raises(WireError, match="wire version"):
        Unframer().feed(struct.pack(">IB", 2, version) + b"\x90")


def test_versions_are_agreed_on() -> None:
    assert agree(wire.VERSION + 3, wire.VERSION) == wire.VERSION
    with pytest.raises(WireError):
        agree(wire.VERSION + 3, wire.VERSION + 1)
    with pytest.raises(WireError):
        agree(wire.VERSION_OLDEST - 1, 0)
