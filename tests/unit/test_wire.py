"""Frames: parts survive, whatever the pieces they come in; what no peer can have sent is refused."""

import struct

import msgspec
import pytest

from antecede import limits, wire
from antecede.errors import WireError
from antecede.wire import Accepted, Bye, Deliver, Done, PeerFrames, Ping, Publish, Unframer, frame, frames

_parts = [
    Publish(3, ("a", "b"), "Order", [b"x", b"y"]),
    PeerFrames("A", 1, 2, [1, 2], [b"one", b"two"]),
    Accepted(7),
    Done(["s1.1"], "why"),
    Ping(),
    Bye("so long", True),
]


def _trusted(bytes_max: int = limits.frame_bytes_max) -> Unframer:
    unframer = Unframer()
    unframer.trust(bytes_max)
    return unframer


def test_parts_survive() -> None:
    assert _trusted().feed(frame(_parts)) == _parts


def test_any_pieces() -> None:
    data = frame(_parts) + frame([Ping()] * 20)
    unframer, found = _trusted(), []
    for at in range(len(data)):
        found += unframer.feed(data[at : at + 1])
    assert found == [*_parts, *[Ping()] * 20]


def test_frames_are_split_where_they_have_enough() -> None:
    large = [Deliver(b"x" * (limits.frame_bytes_wanted // 2 + 1)) for _ in range(4)]
    written = frames(large)
    assert len(written) == 4
    assert [part for one in written for part in _trusted().feed(one)] == large
    assert len(frames([Accepted(1)] * 100)) == 1
    assert frames([]) == []


@pytest.mark.parametrize("bytes_max", [limits.frame_bytes_max, limits.client_frame_bytes_max])
def test_bounds(bytes_max: int) -> None:
    _trusted(bytes_max).feed(struct.pack(">IB", bytes_max + 1, wire.VERSION))
    with pytest.raises(WireError, match="announced") as raised:
        _trusted(bytes_max).feed(struct.pack(">IB", bytes_max + 2, wire.VERSION))
    assert raised.value.code == "frame-length"


def test_bounds_of_a_stranger() -> None:
    Unframer().feed(struct.pack(">IB", limits.hello_bytes_max + 1, wire.VERSION))
    with pytest.raises(WireError, match="announced"):
        Unframer().feed(struct.pack(">IB", limits.hello_bytes_max + 2, wire.VERSION))
    assert Unframer().feed(frame([Ping()])) == [Ping()]
    for parts in ([], [Ping(), Ping()]):
        with pytest.raises(WireError):
            Unframer().feed(frame(parts))


def test_a_stranger_is_read_frame_by_frame() -> None:
    """The first frame may be a hello, after which the next may be longer and have more parts."""
    unframer = Unframer()
    assert unframer.feed(frame([Ping()]) + frame(_parts) + frame(_parts)) == [Ping()]
    unframer.trust()
    assert unframer.more() == [*_parts, *_parts]
    assert unframer.more() == []
    assert not unframer.pending


def test_no_frame_is_written_that_is_too_long() -> None:
    with pytest.raises(WireError, match="expected at most"):
        frame([Deliver(b"x" * limits.frame_bytes_max)])


def _entries(count: int, entry: bytes) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + entry * count


def _frame_of(body: bytes) -> bytes:
    return struct.pack(">IB", len(body) + 1, wire.VERSION) + body


_empty = b"\xc4\x00"


@pytest.mark.parametrize(
    ("most", "begin", "entry", "end"),
    [
        (limits.frame_parts_max, b"", b"\x91\x0b", b""),
        (limits.publish_batch_max, b"\x91\x95\x06\x01\x91\xa1a\xa1T", _empty, b""),
        (limits.publish_to_read_max, b"\x91\x95\x06\x01", b"\xa1a", b"\xa1T\x91" + _empty),
        (limits.done_letters_max, b"\x91\x93\x0a", b"\xa1a", b"\xa0"),
        (limits.request_arguments_max, b"\x91\x94\x0e\xa0\xa0", b"\xa1a", b""),
        (limits.frame_entries_max, b"\x91\x96\x02\xa1A\x01\x01", b"\x01", b"\x91" + _empty),
        (limits.frame_entries_max, b"\x91\x96\x02\xa1A\x01\x01\x91\x01", _empty, b""),
    ],
)
def test_lists_have_bounds(most: int, begin: bytes, entry: bytes, end: bytes) -> None:
    """What is too long is refused before its entries are decoded, however many they are."""
    assert _trusted().feed(_frame_of(begin + _entries(most, entry) + end))
    for more in (most + 1, 2**32 - 1):
        head = b"\xdd" + more.to_bytes(4, "big")
        with pytest.raises(WireError, match="Expected `array` of length") as raised:
            _trusted().feed(_frame_of(begin + head + entry + end))
        assert raised.value.code == "unreadable"


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


@pytest.mark.parametrize("version", [0, wire.VERSION - 1, wire.VERSION + 1, 255])
def test_other_versions(version: int) -> None:
    with pytest.raises(WireError, match="wire version"):
        Unframer().feed(struct.pack(">IB", 2, version) + b"\x90")


def test_a_proof_has_a_bounded_size() -> None:
    """Before the other end has proved anything, it may send short values only."""
    most = limits.proof_bytes_max
    for part in (wire.Introduce("client", "a", "", b"x" * most), wire.Proof(b"x" * most)):
        assert Unframer().feed(frame([part])) == [part]
    for part in (wire.Introduce("client", "a", "", b"x" * (most + 1)), wire.Proof(b"x" * (most + 1))):
        with pytest.raises(WireError, match="unreadable"):
            Unframer().feed(frame([part]))
