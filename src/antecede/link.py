"""One end of a connection to one peer: loss, resends and duplicates end here.

**Outgoing.** Every body gets the next number, from 1, and is kept until the peer has acknowledged it. What is not
acknowledged in time is sent again, later and later up to a cap. A frame beyond ``admitted`` would be dropped by the
peer, so its owner keeps it back: ``tick`` hands it out as soon as an acknowledgement makes room. Time is an argument:
``deadline`` says when ``tick`` wants to be called.

**Incoming.** A link does *not* put frames in order, for every order above works on links that reorder. It only says of
a frame whether it is ``FRESH``, a ``DUPLICATE``, or ``DROPPED`` because it lies too far beyond the first number that
is not accepted yet; the next number in sequence is always admitted. A fresh frame is not acknowledged. The owner calls
``accept(number)`` when what the frame brought is durably taken, perhaps much later and out of sequence. An
acknowledgement says *everything up to* ``upto`` *and these few beyond it*, so that one packet which is held back does
not make the peer resend all that came after it.

**What survives a crash** is ``dump``: the last number given, the bodies not acknowledged, the numbers accepted. Frames
that were received and not accepted are not in it: nobody acknowledged them, so the peer brings them again and they are
fresh again. From this follows the owner's one duty: *make the link durable before showing the world what it did*,
that is between ``send`` and the frame leaving, and between ``accept`` and asking for ``ack``. Losing what ``on_ack``
taught costs resends and nothing else.

**Incarnations.** A data directory has a random 64-bit incarnation; everything that travels names the sender's, and the
receiver's as far as it is known (0: not yet). ``hello`` is the first thing on a new connection, made after the old one
has been given up. A peer with another incarnation, or a counter that went back, means that somebody lost data: that is
a :class:`LinkError`, raised before anything has changed, and only an operator's ``forget`` begins anew. An old backup
may have sent so much since that its counter is no longer back; so every start is a *life* with a number of its own, and
a hello says where it began.
"""

from collections.abc import Callable
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any, Final, Self

import msgspec

from antecede import limits
from antecede.errors import LinkError, SnapshotError
from antecede.numbers import Numbers


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One numbered body on its way."""

    source: int
    """The sender's incarnation."""
    target: int
    """The incarnation of the receiver that it is meant for; 0 while the sender does not know it."""
    number: int
    body: Any


class Ack(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All numbers that one end has accepted."""

    source: int
    target: int
    upto: int
    """Everything up to this number."""
    beyond: bytes = b""
    """A bit map, little-endian: bit k stands for the number ``upto + 1 + k``, so bit 0 is always clear."""


class Hello(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where one end stands, told at the beginning of a connection."""

    source: int
    target: int
    sent: int
    """The last number that it gave to a body."""
    accepted: int
    """Everything up to this number is accepted."""
    life: int = 0
    """Drawn anew at every start; 0: not told."""
    base: int = 0
    """What ``sent`` was when this life began."""


class Arrival(Enum):
    """What a link says of a frame."""

    FRESH = "fresh"
    """Seen for the first time: hand the body on, and ``accept`` its number once that is durable."""
    DUPLICATE = "duplicate"
    """Seen before. If it was accepted, the next ``ack`` says so again."""
    DROPPED = "dropped"
    """Beyond the window: as if it had been lost."""


def _no_size(body: Any) -> int:
    return 0


class Link:
    """One end of a connection to one peer."""

    def __init__(
        self,
        incarnation: int,
        *,
        window: int = limits.link_window_frames_max,
        resend_after: float = limits.link_resend_first_seconds,
        resend_cap: float = limits.link_resend_seconds_max,
        size: Callable[[Any], int] = _no_size,
    ) -> None:
        if not 0 < incarnation < 1 << 64:
            raise LinkError(f"incarnation {incarnation}: expected a number from 1 to 2**64 - 1")
        if not 1 <= window <= limits.link_window_frames_max:
            raise LinkError(f"window of {window} frames: expected 1 to {limits.link_window_frames_max}")
        if not 0 < resend_after <= resend_cap:
            raise LinkError(f"resend after {resend_after} s, at most {resend_cap} s: expected 0 < first <= most")
        self.incarnation = incarnation
        self.window = window
        self.resend_after = resend_after
        self.resend_cap = resend_cap
        self.life = 0
        self._size = size
        """The length of a body, where somebody asks for ``unacknowledged_bytes``."""
        self._clear()

    def _clear(self) -> None:
        self.peer = 0
        """The peer's incarnation; 0 while it is not known."""
        self.peer_life = 0
        """The life in which the peer was last met; 0 while it is not known."""
        self.base = 0
        """What ``sent`` was when this end's life began."""
        self.sent = 0
        """The last number given to a body."""
        self._bodies: dict[int, Any] = {}
        self._body_bytes = 0
        self._acknowledged = Numbers()
        # Timers (due, number, back-off). Each kept body up to ``admitted`` has exactly one; those of bodies that were
        # acknowledged since are skipped when they come up. Numbers beyond the peer's window get theirs when it moves.
        self.timers: list[tuple[float, int, float]] = []
        self.admitted = 0
        """The last number that the peer's window has room for; what is beyond need not travel yet."""
        self._accepted = Numbers()
        self._received: set[int] = set()
        self.ack_due = False

    # Outgoing.

    def send(self, body: Any, now: float) -> Frame:
        """Give ``body`` the next number and keep it until it is acknowledged."""
        self.sent = number = self.sent + 1
        self._bodies[number] = body
        self._body_bytes += self._size(body)
        if number == self.admitted + 1 and number <= self._acknowledged.upto + self.window:
            self.admitted = number
            heappush(self.timers, (now + self.resend_after, number, self.resend_after))
        return Frame(self.incarnation, self.peer, number, body)

    def deadline(self) -> float | None:
        """When ``tick`` has something to do; nothing while all is acknowledged."""
        timers = self.timers
        while timers and timers[0][1] not in self._bodies:
            heappop(timers)
        return timers[0][0] if timers else None

    def tick(self, now: float) -> list[Frame]:
        """The overdue frames, to be sent again; if there are very many, the first of them (the deadline stays due)."""
        frames: list[Frame] = []
        timers = self.timers
        while timers and timers[0][0] <= now and len(frames) < limits.link_resend_frames_max:
            _, number, delay = heappop(timers)
            if number in self._bodies:
                frames.append(Frame(self.incarnation, self.peer, number, self._bodies[number]))
                delay = min(2 * delay, self.resend_cap)
                heappush(timers, (now + delay, number, delay))
        return frames

    def on_ack(self, ack: Ack, now: float) -> None:
        """The peer tells what it has accepted. Old news is no error: acknowledgements may overtake each other."""
        self._check_peer("acknowledgement", ack.source, ack.target)
        if ack.target == 0:
            raise LinkError("acknowledgement to nobody: expected this end's incarnation")
        if len(ack.beyond) > _bit_map_bytes_max:
            raise LinkError(f"acknowledgement with a bit map of {len(ack.beyond)} bytes: longer than any window")
        beyond = int.from_bytes(ack.beyond, "little")
        if ack.upto < 0 or beyond & 1:
            raise LinkError(f"acknowledgement up to {ack.upto} that contradicts itself")
        if ack.upto + beyond.bit_length() > self.sent:
            raise LinkError(
                f"acknowledgement of frame {ack.upto + beyond.bit_length()}: only {self.sent} were ever sent; "
                "one of the two ends lost data"
            )
        self.peer = ack.source
        self._settle(ack.upto, beyond, now)

    def _settle(self, upto: int, beyond: int, due: float) -> None:
        """Let go of what the peer has; what its window now has room for is due, for so far it was no use sending it."""
        bodies = self._bodies
        for number in self._acknowledged.merge(upto, beyond):
            if number in bodies:
                self._body_bytes -= self._size(bodies.pop(number))
        horizon = min(self._acknowledged.upto + self.window, self.sent)
        for number in range(self.admitted + 1, horizon + 1):
            if number in bodies:
                heappush(self.timers, (due, number, self.resend_after))
        self.admitted = max(self.admitted, horizon)
        if len(self.timers) > 2 * len(bodies) + 64:
            self.timers = [timer for timer in self.timers if timer[1] in bodies]
            heapify(self.timers)

    # Incoming.

    def receive(self, frame: Frame) -> Arrival:
        """The network hands over a frame. Fresh means *remembered*, not acknowledged."""
        if frame.source != self.peer or frame.target != self.incarnation:
            self._check_peer("frame", frame.source, frame.target)
        number = frame.number
        accepted = self._accepted
        if not 1 <= number <= min(accepted.upto + limits.counter_jump_max, limits.counter_max):
            raise LinkError(f"frame {number} after {accepted.upto} accepted: no peer is that far ahead")
        self.peer = frame.source
        if number in accepted:
            self.ack_due = True
            return Arrival.DUPLICATE
        if number in self._received:
            return Arrival.DUPLICATE
        if number > accepted.upto + self.window:
            return Arrival.DROPPED
        self._received.add(number)
        return Arrival.FRESH

    def accept(self, number: int) -> None:
        """What the fresh frame ``number`` brought is being made durable, together with this link."""
        assert number in self._received, f"frame {number} was never received, or is accepted already"
        self._received.remove(number)
        self._accepted.add(number)
        self.ack_due = True

    def has_accepted(self, number: int) -> bool:
        """Return whether what this frame brought is durably taken."""
        return number in self._accepted

    def refuse(self, number: int) -> None:
        """What the fresh frame ``number`` brought could not be read: as if it had never arrived."""
        self._received.discard(number)

    def ack(self) -> Ack | None:
        """What the peer must be told now, if anything. Ask once what was accepted is durable."""
        if not self.ack_due:
            return None
        self.ack_due = False
        beyond = self._accepted.beyond
        bits = beyond.to_bytes((beyond.bit_length() + 7) // 8, "little")
        return Ack(self.incarnation, self.peer, self._accepted.upto, bits)

    # Beginning, and beginning anew.

    def hello(self) -> Hello:
        """What to say first on a new connection."""
        return Hello(self.incarnation, self.peer, self.sent, self._accepted.upto, self.life, self.base)

    def begin_life(self, life: int) -> None:
        """This end starts, after it has recovered whatever it remembers."""
        self.life = life
        self.base = self.sent

    def on_hello(self, hello: Hello, now: float) -> None:
        """The peer's first word on a new connection: check that both ends remember the same past, then resend."""
        self._check_peer("hello", hello.source, hello.target)
        seen = max(self._accepted.largest, max(self._received, default=0))
        if hello.sent < seen:
            raise LinkError(f"the peer has sent {hello.sent} frames and we have number {seen}: its counter went back")
        if self.peer_life not in (0, hello.life) and hello.life and hello.base < seen:
            # It may have sent as much again since, under the same numbers: those would be taken for duplicates.
            raise LinkError(
                f"the peer began its life with {hello.base} frames sent and we have number {seen} of an earlier one: "
                "it was set back and went its own way"
            )
        if hello.accepted < self._acknowledged.upto:
            raise LinkError(
                f"the peer has accepted {hello.accepted} frames and has acknowledged {self._acknowledged.upto}: "
                "its counter went back"
            )
        if hello.accepted > self.sent:
            raise LinkError(
                f"the peer has accepted {hello.accepted} frames and we have sent {self.sent}: our counter went back"
            )
        self.peer = hello.source
        self.peer_life = hello.life or self.peer_life
        self.timers = []
        self.admitted = self._acknowledged.upto
        self._settle(hello.accepted, 0, now)
        self.ack_due = self._accepted.largest > 0

    def forget(self) -> list[Any]:
        """An operator's decision to begin anew: both directions from 1, with any peer. The bodies that were never
        acknowledged, for the owner to send again or to give up."""
        bodies = list(self._bodies.values())
        self._clear()
        return bodies

    def _check_peer(self, what: str, source: int, target: int) -> None:
        if source == self.peer and target == self.incarnation:
            return
        if not 0 < source < 1 << 64:
            raise LinkError(f"{what} from incarnation {source}: expected a number from 1 to 2**64 - 1")
        if target not in (0, self.incarnation):
            raise LinkError(
                f"{what} meant for incarnation {target:016x} and this is {self.incarnation:016x}: "
                "the peer remembers an end that is gone"
            )
        if self.peer not in (0, source):
            raise LinkError(
                f"{what} from incarnation {source:016x} and the peer was {self.peer:016x}: the peer lost its data"
            )

    # State.

    @property
    def unacknowledged(self) -> int:
        """Bodies kept for resending."""
        return len(self._bodies)

    @property
    def unacknowledged_bytes(self) -> int:
        """The memory that they take."""
        return self._body_bytes + _frame_bytes * len(self._bodies)

    def bodies(self) -> list[Any]:
        """Bodies that the peer has not acknowledged, in sequence."""
        return list(self._bodies.values())

    @property
    def pending(self) -> int:
        """Frames received and not accepted yet."""
        return len(self._received)

    def missing(self, count: int = 8) -> list[int]:
        """The first numbers that have not been received, below one that has."""
        largest = max(self._received, default=0)
        found: list[int] = []
        number = self._accepted.upto + 1
        while number < largest and len(found) < count:
            if number not in self._accepted and number not in self._received:
                found.append(number)
            number += 1
        return found

    def dump(self) -> tuple[int, int, int, dict[int, Any], int, int]:
        """The durable state: incarnations, last number, bodies not acknowledged (as they are), numbers accepted."""
        return self.incarnation, self.peer, self.sent, dict(self._bodies), self._accepted.upto, self._accepted.beyond

    def load(self, state: tuple[int, int, int, dict[int, Any], int, int], now: float) -> None:
        """Become the state that ``dump`` gave; called on a fresh link. All that is not acknowledged is due at once."""
        incarnation, self.peer, self.sent, bodies, upto, beyond = state
        if incarnation != self.incarnation:
            raise SnapshotError(f"link of incarnation {incarnation:016x}: expected {self.incarnation:016x}")
        self._bodies = dict(bodies)
        self._body_bytes = sum(map(self._size, bodies.values()))
        self._accepted = Numbers(upto, beyond)
        first = next(iter(bodies), self.sent + 1)
        # A peer accepts nothing beyond its window, so the gaps among the kept bodies end there.
        last = min(self.sent, first + limits.link_window_frames_max)
        gaps = "".join("0" if number in bodies else "1" for number in range(last, first - 1, -1))
        self._acknowledged = Numbers(first - 1, int(gaps or "0", 2))
        self.admitted = first - 1
        self._settle(first - 1, 0, now)

    def clone(self) -> Self:
        """A twin in the very same state, frames received and timers included; it shares nothing but the bodies."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._bodies = dict(self._bodies)
        twin._acknowledged = Numbers(self._acknowledged.upto, self._acknowledged.beyond)
        twin.timers = list(self.timers)
        twin._accepted = Numbers(self._accepted.upto, self._accepted.beyond)
        twin._received = set(self._received)
        return twin

    def snapshot(self, encode: Callable[[Any], bytes]) -> bytes:
        """The durable state as bytes; ``encode`` makes bytes of a body."""
        incarnation, peer, sent, bodies, upto, beyond = self.dump()
        kept = [(number, encode(body)) for number, body in bodies.items()]
        bits = beyond.to_bytes((beyond.bit_length() + 7) // 8, "little")
        return msgspec.msgpack.encode((incarnation, peer, sent, kept, upto, bits))

    def restore(self, snapshot: bytes, decode: Callable[[bytes], Any], now: float) -> None:
        """Become the state of a snapshot; called on a fresh link."""
        try:
            incarnation, peer, sent, kept, upto, bits = msgspec.msgpack.decode(snapshot, type=_Saved)
        except msgspec.MsgspecError as error:
            raise SnapshotError(f"saved link: {error}") from None
        numbers = [0, *(number for number, _ in kept)]
        rising = all(earlier < later for earlier, later in pairwise(numbers))
        if min(peer, sent, upto) < 0 or not rising or numbers[-1] > sent or len(bits) > _bit_map_bytes_max:
            raise SnapshotError("saved link: its numbers contradict each other")
        bodies = {number: decode(body) for number, body in kept}
        self.load((incarnation, peer, sent, bodies, upto, int.from_bytes(bits, "little")), now)


_Saved = tuple[int, int, int, list[tuple[int, bytes]], int, bytes]
_frame_bytes: Final = 300
"""What a kept body takes besides its own bytes: its head, a place in a dictionary, two numbers and a timer."""
_bit_map_bytes_max: Final = limits.link_window_frames_max // 8 + 1
