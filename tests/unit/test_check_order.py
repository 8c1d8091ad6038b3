"""``check_order``: each planted error fails with a sentence that names it. (Our own orders pass it, as
``tests/properties/test_every_order.py`` shows.)"""

import random
import traceback
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from antecede.errors import OrderError
from antecede.messages import PERSIST, Deliver, Effects, Message, Packet, Send, Sent, Verdict
from antecede.orders import Fifo, Matrix, Order, Reader, Writer
from antecede.simulator.explorer import explore
from antecede.testing import check_order


class Early(Matrix):
    """Delivers too early: it does not wait for messages of third members."""

    def missing(self, packet: Packet) -> tuple[int, int] | None:
        before = self.number(packet) - 1
        return (packet.source, before) if before > self.delivered[packet.source] else None


class Loses(Fifo):
    """Loses every message that was held."""

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        verdict, effects = super().receive(packet)
        return verdict, [effect for effect in effects if not isinstance(effect, Deliver)] if len(
            effects
        ) > 2 else effects


class Twice(Fifo):
    """Does not recognise a packet that arrives again."""

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        if packet.stamp <= self.delivered[packet.source]:
            assert packet.message is not None
            return Verdict.DELIVER, [PERSIST, Deliver(packet.message)]
        return super().receive(packet)


class WrongSize(Fifo):
    def size(self, packet: Packet) -> int:
        return super().size(packet) + (packet.stamp > 2)


class Unwritable(Fifo):
    """Writes a stamp that is not a number."""

    def write_stamp(self, packet: Packet, out: Writer) -> None:
        out.number(packet.stamp if packet.stamp < 3 else None)  # type: ignore[arg-type]


class Unhashable(Matrix):
    """Its stamps are lists."""

    def send(self, message: Message) -> Effects:
        effects = super().send(message)
        return [
            Send(msgspec.structs.replace(e.packet, stamp=list(e.packet.stamp))) if isinstance(e, Send) else e
            for e in effects
        ]


class Lossy(Matrix):
    """Its stamps lose something on the way through bytes."""

    def read_stamp(self, kind: str, source: int, data: Reader) -> Any:
        stamp = super().read_stamp(kind, source, data)
        return stamp[:-1] + stamp[:1] if stamp[0][0] > 1 else stamp


class Trusts(Fifo):
    """Accepts any number."""

    def read_stamp(self, kind: str, source: int, data: Reader) -> int:
        return data.number()


class Loose(Fifo):
    """Accepts bytes after the stamp."""

    def decode(self, kind: str, source: int, data: bytes) -> Any:
        return self.read_stamp(kind, source, Reader(data, self.members))


class Raises(Fifo):
    """Fails on bad bytes with the error of a library."""

    def decode(self, kind: str, source: int, data: bytes) -> Any:
        return msgspec.msgpack.decode(data)

    def encode(self, packet: Packet) -> bytes:
        return msgspec.msgpack.encode(packet.stamp)


class Forgets(Fifo):
    """Saves what it has sent, but not what it has delivered."""

    def dump(self) -> Any:
        return (tuple(self.sent), (0,) * self.members)


class HalfSaved(Fifo):
    """Does not load what it has saved."""

    def load(self, state: Any) -> None:
        self.sent = list(state[0])


class Shares(Fifo):
    """Its clones have the lists of the original."""

    def dump(self) -> Any:
        return [self.sent, self.delivered]

    def load(self, state: Any) -> None:
        self.sent, self.delivered = state


class Undocumented(Fifo):
    def load(self, state: Any) -> None:
        if state[0] == state[1]:
            raise RuntimeError("surprise")
        super().load(state)


class Changing(Fifo):
    """Writes the newest number instead of the stamp's own."""

    def write_stamp(self, packet: Packet, out: Writer) -> None:
        out.number(self.sent[packet.target])


class Dice(Fifo):
    """Draws its numbers."""

    def write_stamp(self, packet: Packet, out: Writer) -> None:
        out.number(packet.stamp)
        out.number(random.randrange(100))

    def read_stamp(self, kind: str, source: int, data: Reader) -> int:
        number = super().read_stamp(kind, source, data)
        data.number()
        return number

    def size(self, packet: Packet) -> int:
        return 2


class Fragile(Fifo):
    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        if packet.stamp == 2:
            raise KeyError(packet.subject)
        return super().receive(packet)


class Hasty(Fifo):
    """Delivers before its step is durable."""

    def receive(self, packet: Packet) -> tuple[Verdict, Effects]:
        verdict, effects = super().receive(packet)
        return verdict, [*effects[1:], *effects[:1]]


class Careless(Fifo):
    """Sends without making anything durable."""

    def send(self, message: Message) -> Effects:
        return super().send(message)[1:]


class Boasting(Fifo):
    guarantees = frozenset({"fifo", "causal"})


class Misspelt(Fifo):
    guarantees = frozenset({"casual"})


class Unfinished(Order):
    name: ClassVar[str] = "unfinished"
    source: ClassVar[str] = "nowhere"
    guarantees = frozenset[str]()

    def send(self, message: Message) -> Effects:
        return [PERSIST, Sent(message)]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (Early, r"a shortest run breaks causal order: (.|\n)*send (.|\n)*expect"),
        (Hasty, "a step returns Deliver before PERSIST: what others have seen must survive a crash"),
        (Careless, "a step returns Send before PERSIST"),
        (Boasting, "a shortest run breaks causal order"),
        (Loses, "a shortest run leaves a message undelivered: "),
        (Twice, "a shortest run breaks the contract: "),
        (Shares, "a step of a clone changes the order that was cloned: load must copy the lists that dump returns"),
        (WrongSize, r"size\(\) of the stamp of copy m\d+, 3, is 2: expected 1, the length of encode\(\)"),
        (Unwritable, r"the stamp of copy m\d+, 3, cannot be written as bytes: TypeError"),
        (Unhashable, "is not hashable: a stamp must be made of tuples"),
        (Lossy, "decode of the stamp .* as it was sent"),
        (Trusts, "decode trusts hostile bytes: .*(far too large|has sent nothing accepts)"),
        (Loose, r"decode trusts hostile bytes: .* refuse every other encoding"),
        (Raises, "decode trusts hostile bytes: .* raises DecodeError: .*; expected StampError"),
        (Forgets, "the snapshot forgets"),
        (HalfSaved, "the snapshot forgets"),
        (Undocumented, "raises RuntimeError: surprise"),
        (Changing, "as it was sent|changed after it was sent"),
        (Dice, "two equal runs give different stamps"),
        (Fragile, r"receive\(copy m\d+\) raises KeyError"),
        (Misspelt, "guarantees .*: expected a frozenset of causal, fifo"),
        (Unfinished, "Unfinished cannot be created: Can't instantiate abstract class"),
        (str, "expected a subclass"),
    ],
)
def test_a_planted_error_is_named(wrong: Any, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_order(wrong, schedules=0) if wrong is not str else check_order(str)  # type: ignore[arg-type]


def test_the_explorer_refuses_an_order_whose_clones_share_their_state() -> None:
    with pytest.raises(OrderError, match="'fifo': a step of a clone changes the order that was cloned: load must copy"):
        explore(Shares, 2, 2)


def test_a_plain_script_shows_the_sentence_and_only_the_calls_of_the_order() -> None:
    shown = []
    for wrong in (Shares, Fragile):
        with pytest.raises(AssertionError) as failed:
            check_order(wrong, schedules=0)
        shown.append("".join(traceback.format_exception(failed.value)))
    assert shown[0].count("  File ") == 2, "this test and check_order"
    assert "During handling" not in shown[0] + shown[1]
    assert shown[1].count("  File ") == 3
    assert "raise KeyError(packet.subject)" in shown[1]


def test_the_guide_lists_the_methods_of_stamps() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "orders.md").read_text(encoding="utf-8")
    for kind, name, hidden in ((Reader, "data", {"finish", "members", "recorded"}), (Writer, "out", {"bytes"})):
        methods = {method for method in vars(kind) if not method.startswith("_")} - hidden
        assert [method for method in sorted(methods) if f"`{name}.{method}(" not in guide] == []
    assert "`data.recorded`" in guide


class LateBloomer(Fifo):
    """Breaks only with more messages than the explorer tries."""

    def missing(self, packet: Packet) -> tuple[int, int] | None:
        return None if packet.stamp > 4 else super().missing(packet)


def test_a_failed_schedule_can_be_repeated() -> None:
    with pytest.raises(
        AssertionError, match=r"schedule \d+ \(.*\): (fifo|undelivered): (.|\n)*seed=(\d+)\) repeats it(.|\n)*▶"
    ) as failed:
        check_order(LateBloomer, schedules=60)
    seed = int(str(failed.value).partition("seed=")[2].partition(")")[0])
    with pytest.raises(AssertionError, match=f"schedule {seed} "):
        check_order(LateBloomer, schedules=1, seed=seed)


def test_an_order_has_options() -> None:
    assert check_order("skeen", schedules=0, states=1_000, causal="true").guarantees == ["causal", "fifo", "total"]
