"""One end of a link to one peer in one domain: it resends lost frames, finds duplicates, and survives reconnections.

**Outgoing.** Every body (the content of one frame) gets the next number, from 1. The link keeps the body until the peer
has acknowledged it. A body that is not acknowledged in time is sent again, with increasing pauses up to a limit. The
peer drops frames whose numbers are too large (beyond its *window*). So the link's owner (the server) sends only frames
up to ``admitted``, the number of the newest outgoing frame in the window. Later frames wait here. When an
acknowledgement has moved the window, ``tick`` returns them. A link has no clock: its callers pass the current time, and
``deadline`` returns the time at which they must call ``tick``.

**Incoming.** A link does *not* put frames in sequence, because the orders (:mod:`antecede.orders`) do not need this. It
only classifies each frame as ``FRESH``, ``DUPLICATE`` or ``DROPPED``. A frame is dropped if its number is too far
beyond the first number that is not accepted yet. The next number in sequence is never dropped. A fresh frame is not
acknowledged immediately. The owner calls ``accept(number)`` in the step that records the content of the frame, perhaps
much later and out of sequence. An acknowledgement contains ``upto`` (all frames up to this number are accepted) and
single accepted numbers after it. So if one frame is missing, the peer need not resend all frames after it.

**After a crash** a link continues with the content of ``dump``: the number of the newest outgoing frame, the
unacknowledged bodies, the accepted numbers. ``dump`` does not contain frames that were received but not accepted. The
peer sends such frames again, and they are fresh again. Therefore the owner has one duty: *make the link durable before
anything leaves*. After ``send``, the link must be durable before the frame leaves. After ``accept``, the link must be
durable before the acknowledgement leaves. After ``on_ack``, the link need not be durable, because a crash then has only
one effect: some frames are sent again.

**Incarnations.** Each data directory has an *incarnation*, a random 64-bit number. Each frame, acknowledgement and
hello contains the incarnations of its sender and of its receiver (0 while it is not known). ``hello`` is the first
message on a new connection, except for proofs of identity. A new connection is made only when the old one has been
given up. If the peer's incarnation has changed, or a counter is smaller than before, one of the two ends lost data.
Then the link raises a :class:`LinkError` and changes nothing. Only ``forget``, on an operator's command, starts the
link again.

**Lives.** If an old copy of a data directory is put back, its counter of sent frames is too small. The next hello can
show this to the peer. But before this hello, the server may already use old numbers again for new frames. After enough
new frames, the counter looks correct again. Therefore every start of a server begins a *life* with its own number, and
a hello contains the value of the counter when the life began. The peer compares this value with the numbers that it has
received.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Final, Self

import msgspec

from antecede import limits
from antecede.errors import LinkError, SnapshotError


class Numbers:
    """A set of positive numbers that needs only a few bytes if they are added nearly in sequence. It contains all
    numbers from 1 to ``upto``. The bit map ``beyond`` shows which larger numbers it contains; the lowest bit stands for
    ``upto + 1``."""

    __slots__ = ("beyond", "upto")

    def __init__(self, upto: int = 0, beyond: int = 0) -> None:
        self.upto = upto
        self.beyond = beyond
        if beyond & 1:
            self._advance()

    def __contains__(self, number: int) -> bool:
        return number <= self.upto or bool(self.beyond >> (number - self.upto - 1) & 1)

    @property
    def largest(self) -> int:
        """The largest number in the set, or 0."""
        return self.upto + self.beyond.bit_length()

    def add(self, number: int) -> None:
        """Add one number that is not in the set."""
        if number == self.upto + 1 and not self.beyond:
            self.upto = number
            return
        self.beyond |= 1 << (number - self.upto - 1)
        if self.beyond & 1:
            self._advance()

    def merge(self, upto: int, beyond: int) -> Sequence[int]:
        """Add all numbers of another set, given by its ``upto`` and ``beyond``. Return the numbers that are new to this
        set. The result may also contain some numbers that this set already had."""
        if not beyond and not self.beyond:
            fresh, self.upto = range(self.upto + 1, upto + 1), max(self.upto, upto)
            return fresh
        shift = upto - self.upto
        if shift < 0:
            # An acknowledgement that was overtaken by a later one can still contain numbers beyond it.
            beyond >>= -shift
            shift = 0
        known = self.beyond >> shift
        found = list(range(self.upto + 1, self.upto + shift + 1))
        self.upto += shift
        found.extend(self.upto + 1 + position for position in _ones(beyond & ~known))
        self.beyond = known | beyond
        if self.beyond & 1:
            self._advance()
        return found

    def _advance(self) -> None:
        """Increase ``upto`` as long as the next number is in the set."""
        run = (~self.beyond & (self.beyond + 1)).bit_length() - 1
        self.beyond >>= run
        self.upto += run


def _ones(bits: int) -> Iterator[int]:
    """Yield the positions of all bits that are 1 in a bit map, in ascending order. The time is proportional to the
    length of the map."""
    text = bin(bits)[:1:-1]
    position = text.find("1")
    while position >= 0:
        yield position
        position = text.find("1", position + 1)


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One numbered body in transit on a link."""

    source: int
    """The sender's incarnation."""
    target: int
    """The receiver's incarnation; 0 while the sender does not know it."""
    number: int
    body: bytes


class Ack(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An acknowledgement: the numbers of all frames that one end has accepted."""

    source: int
    target: int
    upto: int
    """All frames with numbers up to this one are accepted."""
    beyond: bytes = b""
    """A bit map, little-endian: bit k is set if the frame ``upto + 1 + k`` is accepted. Bit 0 is always clear, because
    otherwise ``upto`` would be larger."""


class Hello(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The state of one end, sent at the beginning of a connection."""

    source: int
    target: int
    sent: int
    """The number of the newest frame of the end that sends this hello."""
    accepted: int
    """The sender of this hello has accepted all frames up to this number."""
    life: int = 0
    """A random number that the sender's server chooses at each start; 0 if it is not known."""
    base: int = 0
    """The value of ``sent`` when the sender's server started, that is, when its current life began."""


class Arrival(Enum):
    """The result of ``Link.receive``: how the link classified a frame."""

    FRESH = "fresh"
    """The frame is new. The link's owner must use the body, and must call ``accept`` with the frame's number in the
    step that records the body."""
    DUPLICATE = "duplicate"
    """The frame has already arrived once. If it was accepted, the next ``ack`` acknowledges it again."""
    DROPPED = "dropped"
    """The number of the frame is beyond the window. The link ignores the frame, and the peer sends it again later."""


FRESH: Final = Arrival.FRESH
"""The most frequent result as a separate name, for speed. The lookup ``Arrival.FRESH`` takes longer than everything
else that a link does with a frame."""


class Link:
    """One end of a link to one peer: numbers and resends outgoing frames, and classifies incoming frames."""

    window = limits.link_window_frames_max
    """The largest distance between an incoming number and ``upto``, the number up to which all frames are accepted.
    Frames at a larger distance are dropped."""
    resend_cap = limits.link_resend_seconds_max

    def __init__(self, incarnation: int, resend_after: float = limits.link_resend_first_seconds) -> None:
        if not 0 < incarnation < 1 << 64:
            raise LinkError(f"incarnation {incarnation}: expected a number from 1 to 2**64 - 1")
        if not 0 < resend_after <= self.resend_cap:
            raise LinkError(f"first resend after {resend_after} s: expected more than 0, at most {self.resend_cap} s")
        self.incarnation = incarnation
        self.resend_after = resend_after
        self.life = 0
        self._clear()

    def _clear(self) -> None:
        self.peer = 0
        """The peer's incarnation; 0 while it is not known."""
        self.peer_life = 0
        """The number of the peer's life (one run of its server), from its last hello; 0 while it is not known."""
        self.base = 0
        """The value of ``sent`` when the server of this end started, that is, when its current life began."""
        self.sent = 0
        """The number of the newest outgoing frame; 0 before the first frame."""
        self._bodies: dict[int, bytes] = {}
        self._body_bytes = 0
        self._acknowledged = Numbers()
        # Timers (due, number, back-off). Each kept body up to ``admitted`` has exactly one. Timers of bodies that have
        # since been acknowledged are skipped. Numbers beyond the peer's window get a timer when the window moves.
        self.timers: list[tuple[float, int, float]] = []
        self.admitted = 0
        """The number of the newest outgoing frame in the peer's window. Frames with larger numbers wait."""
        self._accepted = Numbers()
        self._received: set[int] = set()
        self.ack_due = False

    # Outgoing.

    def send(self, body: bytes, now: float) -> Frame:
        """Give ``body`` the next number, keep the body until the peer acknowledges it, and return the frame. The caller
        sends the frame only if its number is at most ``admitted``; otherwise ``tick`` returns the frame later."""
        self.sent = number = self.sent + 1
        self._bodies[number] = body
        self._body_bytes += len(body)
        if number == self.admitted + 1 and number <= self._acknowledged.upto + self.window:
            self.admitted = number
            heappush(self.timers, (now + self.resend_after, number, self.resend_after))
        return Frame(self.incarnation, self.peer, number, body)

    def deadline(self) -> float | None:
        """Return the time at which ``tick`` must be called next; None while everything is acknowledged."""
        timers = self.timers
        while timers and timers[0][1] not in self._bodies:
            heappop(timers)
        return timers[0][0] if timers else None

    def tick(self, now: float) -> list[Frame]:
        """Return the frames to send now: frames that were not acknowledged in time, and frames that the peer's window
        did not admit before. One call returns at most ``link_resend_frames_max`` frames; the next call returns more."""
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
        """Handle the peer's acknowledgement. An outdated acknowledgement is not an error, because acknowledgements may
        overtake each other."""
        self._check_peer("acknowledgement", ack.source, ack.target)
        if ack.target == 0:
            raise LinkError("acknowledgement for incarnation 0: expected the incarnation of this end")
        if len(ack.beyond) > _bit_map_bytes_max:
            raise LinkError(
                f"acknowledgement with a bit map of {len(ack.beyond)} bytes: expected at most {_bit_map_bytes_max}"
            )
        beyond = int.from_bytes(ack.beyond, "little")
        if ack.upto < 0 or beyond & 1:
            raise LinkError(f"acknowledgement up to {ack.upto}: the number is negative, or bit 0 of the bit map is set")
        if ack.upto + beyond.bit_length() > self.sent:
            raise LinkError(
                f"acknowledgement of frame {ack.upto + beyond.bit_length()}: this end has sent only {self.sent}, "
                "so one of the two ends lost data"
            )
        self.peer = ack.source
        self._settle(ack.upto, beyond, now)

    @property
    def acknowledged(self) -> tuple[int, bytes]:
        """The frames that the peer has acknowledged, as two values: the number up to which all frames are acknowledged,
        and a bit map of the acknowledged frames after it, like ``Ack.beyond``."""
        beyond = self._acknowledged.beyond
        return self._acknowledged.upto, beyond.to_bytes((beyond.bit_length() + 7) // 8, "little")

    def settle(self, upto: int, beyond: bytes) -> None:
        """Forget the frames that the peer has acknowledged. The two arguments are the two values of ``acknowledged``.
        They may come from another process, which has a copy of this link."""
        self._settle(upto, int.from_bytes(beyond, "little"), 0.0)

    def _settle(self, upto: int, beyond: int, due: float) -> None:
        """Forget the bodies that the peer has acknowledged. After this, the peer's window may admit frames that were
        not sent yet. ``tick`` returns these frames at the time ``due`` or later."""
        bodies = self._bodies
        for number in self._acknowledged.merge(upto, beyond):
            if number in bodies:
                self._body_bytes -= len(bodies.pop(number))
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
        """Classify a frame that came from the network. The link remembers a ``FRESH`` frame, but does not acknowledge
        it yet."""
        if frame.source != self.peer or frame.target != self.incarnation:
            self._check_peer("frame", frame.source, frame.target)
        number = frame.number
        accepted = self._accepted
        if number != accepted.upto + 1 or number > limits.counter_max:
            if not 1 <= number <= min(accepted.upto + limits.counter_jump_max, limits.counter_max):
                raise LinkError(
                    f"frame {number}, but this end has accepted the frames up to {accepted.upto}: a correct peer does "
                    "not send this number"
                )
            if number in accepted:
                self.peer, self.ack_due = frame.source, True
                return Arrival.DUPLICATE
            if number > accepted.upto + self.window:
                self.peer = frame.source
                return Arrival.DROPPED
        self.peer = frame.source
        if number in self._received:
            return Arrival.DUPLICATE
        self._received.add(number)
        return FRESH

    def accept(self, number: int) -> None:
        """Mark the fresh frame ``number`` as accepted. The caller does this in the step that makes the frame's content
        and this link durable."""
        assert number in self._received, f"frame {number} was never received, or is accepted already"
        self._received.remove(number)
        self._accepted.add(number)
        self.ack_due = True

    def has_accepted(self, number: int) -> bool:
        """Return whether the frame with this number was accepted."""
        return number in self._accepted

    def refuse(self, number: int) -> None:
        """Forget the fresh frame ``number``, as if it had never arrived. The caller does this if it cannot read the
        frame's content."""
        self._received.discard(number)

    def ack(self) -> Ack | None:
        """Return the next acknowledgement; None if there is nothing to acknowledge. The acknowledgement must not leave
        before the accepted frames are durable. In a server, :mod:`antecede.server.driver` ensures this."""
        if not self.ack_due:
            return None
        self.ack_due = False
        beyond = self._accepted.beyond
        bits = beyond.to_bytes((beyond.bit_length() + 7) // 8, "little")
        return Ack(self.incarnation, self.peer, self._accepted.upto, bits)

    # Start and restart.

    def hello(self) -> Hello:
        """Return the message that this end must send first on a new connection, except for proofs of identity."""
        return Hello(self.incarnation, self.peer, self.sent, self._accepted.upto, self.life, self.base)

    def begin_life(self, life: int) -> None:
        """Begin a new life with the random number ``life``. A server calls this at each start, after recovery."""
        self.life = life
        self.base = self.sent

    def on_hello(self, hello: Hello, now: float) -> None:
        """Handle the peer's hello on a new connection. Raise LinkError if the hello contradicts the state of this
        end. Otherwise, all unacknowledged frames in the peer's window become due: ``tick`` returns them."""
        self._check_peer("hello", hello.source, hello.target)
        seen = max(self._accepted.largest, max(self._received, default=0))
        if hello.sent < seen:
            raise LinkError(
                f"the peer says that it has sent {hello.sent} frames, but this end has received its frame {seen}: "
                "the peer's counter went back"
            )
        if self.peer_life not in (0, hello.life) and hello.life and hello.base < seen:
            # It may have sent that many frames again under the same numbers, which would count as duplicates.
            raise LinkError(
                f"the peer restarted after frame {hello.base}, but this end had already received frame {seen} from it: "
                "the peer was restored from an old backup"
            )
        if hello.accepted < self._acknowledged.upto:
            raise LinkError(
                f"the peer says that it has accepted {hello.accepted} frames, but it had acknowledged "
                f"{self._acknowledged.upto}: the peer's counter went back"
            )
        if hello.accepted > self.sent:
            raise LinkError(
                f"the peer has accepted {hello.accepted} frames, but this end sent only {self.sent}: this end lost data"
            )
        self.peer = hello.source
        self.peer_life = hello.life or self.peer_life
        self.timers = []
        self.admitted = self._acknowledged.upto
        self._settle(hello.accepted, 0, now)
        self.ack_due = self._accepted.largest > 0

    def forget(self) -> list[bytes]:
        """Reset the link by decision of an operator. The numbers start from 1 again in both directions, and the peer
        may have any incarnation. Return the unacknowledged bodies. The owner of the link sends these bodies again or
        gives them up."""
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
                f"{what} for incarnation {target:016x}, but this end has {self.incarnation:016x}: "
                "the peer remembers an earlier data directory of this end"
            )
        if self.peer not in (0, source):
            raise LinkError(
                f"{what} from incarnation {source:016x}, but the peer had {self.peer:016x}: the peer lost its data"
            )

    # State.

    @property
    def unacknowledged(self) -> int:
        """The number of bodies that are kept for resends, because the peer has not acknowledged them yet."""
        return len(self._bodies)

    @property
    def unacknowledged_bytes(self) -> int:
        """The memory, in bytes, of the bodies that the peer has not acknowledged yet."""
        return self._body_bytes + _frame_bytes * len(self._bodies)

    def bodies(self) -> list[bytes]:
        """Return the bodies that the peer has not acknowledged, in sequence."""
        return list(self._bodies.values())

    @property
    def pending(self) -> int:
        """The number of frames that were received but are not accepted yet."""
        return len(self._received)

    def missing(self, count: int = 8) -> list[int]:
        """Return at most ``count`` missing numbers, the smallest first. A number is missing if its frame has not
        arrived, but a frame with a larger number has arrived and is not accepted yet."""
        largest = max(self._received, default=0)
        found: list[int] = []
        number = self._accepted.upto + 1
        while number < largest and len(found) < count:
            if number not in self._accepted and number not in self._received:
                found.append(number)
            number += 1
        return found

    def dump(self) -> tuple[int, int, int, dict[int, bytes], int, int]:
        """Return the durable state: the incarnations of the two ends, the number of the newest outgoing frame, the
        unacknowledged bodies by number, the number up to which all incoming frames are accepted, and a bit map of the
        accepted frames after this number."""
        return self.incarnation, self.peer, self.sent, dict(self._bodies), self._accepted.upto, self._accepted.beyond

    def load(self, state: tuple[int, int, int, dict[int, bytes], int, int], now: float) -> None:
        """Load a state from ``dump`` into a new link. The unacknowledged frames become due at the time ``now``."""
        incarnation, self.peer, self.sent, bodies, upto, beyond = state
        if incarnation != self.incarnation:
            raise SnapshotError(f"link of incarnation {incarnation:016x}: expected {self.incarnation:016x}")
        self._bodies = dict(bodies)
        self._body_bytes = sum(map(len, bodies.values()))
        self._accepted = Numbers(upto, beyond)
        first = next(iter(bodies), self.sent + 1)
        # A peer accepts nothing beyond its window, so the gaps among the kept bodies end there.
        last = min(self.sent, first + limits.link_window_frames_max)
        gaps = "".join("0" if number in bodies else "1" for number in range(last, first - 1, -1))
        self._acknowledged = Numbers(first - 1, int(gaps or "0", 2))
        self.admitted = first - 1
        self._settle(first - 1, 0, now)

    def snapshot(self) -> bytes:
        """Return the durable state (see ``dump``) as bytes."""
        incarnation, peer, sent, bodies, upto, beyond = self.dump()
        bits = beyond.to_bytes((beyond.bit_length() + 7) // 8, "little")
        return msgspec.msgpack.encode((incarnation, peer, sent, list(bodies.items()), upto, bits))

    def restore(self, snapshot: bytes, now: float) -> None:
        """Load the state from a snapshot of a link into this new link."""
        try:
            incarnation, peer, sent, kept, upto, bits = msgspec.msgpack.decode(snapshot, type=_Saved)
        except msgspec.MsgspecError as error:
            raise SnapshotError(f"unreadable saved link: {error}") from None
        numbers = [0, *(number for number, _ in kept)]
        rising = all(earlier < later for earlier, later in pairwise(numbers))
        if min(peer, sent, upto) < 0 or not rising or numbers[-1] > sent or len(bits) > _bit_map_bytes_max:
            raise SnapshotError("saved link: its numbers contradict each other")
        self.load((incarnation, peer, sent, dict(kept), upto, int.from_bytes(bits, "little")), now)


class SavedLink(msgspec.Struct, frozen=True):
    """The durable state of one end of a link, for code that compares both ends."""

    incarnation: int
    peer: int
    sent: int
    bodies: dict[int, bytes]
    accepted: Numbers

    @classmethod
    def read(cls, snapshot: bytes) -> Self:
        """Decode a snapshot that ``Link.snapshot`` has made."""
        link = Link(_any_incarnation)
        link.incarnation = msgspec.msgpack.decode(snapshot, type=_Saved)[0]
        link.restore(snapshot, 0.0)
        return cls(link.incarnation, link.peer, link.sent, link._bodies, link._accepted)

    def under(self, incarnation: int, peer: int) -> bytes:
        """Return a snapshot of this link with other incarnations: ``incarnation`` for this end, and ``peer`` for the
        other end. A restored server needs this, because it has a new incarnation."""
        link = Link(incarnation)
        link.load((incarnation, peer, self.sent, self.bodies, self.accepted.upto, self.accepted.beyond), 0.0)
        return link.snapshot()


_any_incarnation: Final = 1
_Saved = tuple[int, int, int, list[tuple[int, bytes]], int, bytes]
_frame_bytes: Final = 300
"""The memory that a kept body needs in addition to its own bytes: the header of the object, an entry in a dictionary,
two numbers and a timer."""
_bit_map_bytes_max: Final = limits.link_window_frames_max // 8 + 1
