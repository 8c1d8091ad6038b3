"""The network of simulated servers: virtual time, faults, connections with two ends, and identities.

The parts of one call of ``send`` travel as one frame of real bytes. There is one exception: each message between
servers, and each acknowledgement of such messages, travels as a separate frame. Hellos, welcomes, publishes and letters
arrive in sequence and are not lost unless the connection breaks. Messages between servers, and the acknowledgements of
these messages, may be lost, repeated and reordered even while the connection works. This is worse than any real
connection. But these messages and acknowledgements do not overtake the hello that was sent before them, because a
message that arrives before the hello would end the connection. When a connection breaks, everything in transit on it is
lost.
"""

import hashlib
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop
from random import Random
from typing import Any

import msgspec

from antecede import limits, wire
from antecede.access import Access, Authoriser, Identity, Key
from antecede.access.model import CLIENT, OPERATOR, SERVER
from antecede.access.proof import NONCE_BYTES, SIGNATURE_BYTES, Keyring
from antecede.server.admission import Admission, ConnectionSlot
from antecede.server.connections import NO_HELLO, SILENT, Receiver, serials
from antecede.simulator.kernel import Kernel

_linger_seconds = 0.01
_lossy = (wire.PeerFrames, wire.PeerAck)


# The faults in a world of servers, and their frequency.
#
# Each number of faults is the total for all servers together. Each fault comes at a moment that the seed chooses,
# before the world becomes calm.
#
# A crash comes **between two effects** of a server. An effect is mainly one step, one reaction, one sent frame, or one
# operation of the disk, such as a write or a sync. The seed chooses the effect after which the server crashes. A crash
# may also come while a server is recovering.


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """The kinds of faults in a world, and how often each comes. ``NONE`` has no faults, and ``ROUGH`` has many."""

    crashes: int = 0
    """The number of times that a crash of a server is planned. The server crashes between two effects (for example,
    between two steps or two writes)."""
    stops: int = 0
    """The number of times that a server is stopped gracefully and starts again."""
    powercuts: float = 0.5
    """The probability that a crash without a failed sync is a power cut. A power cut may undo unsynced writes, change
    their sequence, or leave only a part of a write on the disk. In the other crashes only the process is killed. If a
    server has the durability ``os``, its process is killed in all its crashes."""
    broken_syncs: float = 0.0
    """The share of crashes in which a sync of the disk fails."""
    loss: float = 0.0
    """The probability that a frame between servers is lost."""
    duplicates: float = 0.0
    partitions: int = 0
    """The number of times that two servers cannot reach each other for a while."""
    resets: int = 0
    """The number of times that a connection (between two servers, or between a client and its server) breaks and comes
    back."""
    slow_disks: int = 0
    """The number of times that a server's syncs become very slow. They stay slow until the world becomes calm."""
    full_disks: int = 0
    """The number of times that a server's log has no space for more records for a while."""
    overloads: int = 0
    """The number of times that a server is above its high-water mark for a while, so that it refuses publishes."""
    operators: int = 0
    """The number of times that an operator sends a server's dead letters again, or deletes them."""
    client_kills: int = 0
    """The number of times that a client's process is killed. Each time, a new process starts under the same name."""
    takeovers: int = 0
    """The number of times that another process takes a client's name while the client's first process is still
    connected."""
    silences: int = 0
    """The number of connections (between two servers, or between a client and its server) that become silent: after
    some moment, everything that is sent on the connection is lost. Both ends must notice this."""
    stalls: int = 0
    """The number of times that one end of a connection (a server or a client) stops reading for a while."""
    clock_jumps: int = 0
    """The number of times that a server's wall clock is set forward or back."""
    looks: int = 0
    """The number of times that a server does its regular work: it takes a snapshot, deletes log files that are no
    longer needed, and checks its connections."""
    failed_snapshots: float = 0.0
    """The probability that a snapshot cannot be written. The server tries again later."""
    failures: float = 0.0
    """The probability that a reaction of an agent, or a handler of a client, fails at its first try."""
    seconds: float = 1.0
    """The length of the fault period, in seconds of virtual time. After this period the world is calm."""


NONE = Faults()
ROUGH = Faults(
    crashes=4,
    broken_syncs=0.1,
    loss=0.1,
    duplicates=0.05,
    partitions=1,
    resets=2,
    slow_disks=1,
    full_disks=1,
    stalls=2,
    clock_jumps=2,
    looks=3,
    failures=0.05,
)
"""Common faults of servers, disks and connections. Faults of clients are left out, because a client that is killed or
replaced loses publishes that were not accepted. Overloads are left out, because they can change the sequence of a
client's publishes: the client sends a refused publish again later, when newer publishes may already be accepted."""


class Network:
    """Virtual time, and a network with faults. A seed decides what happens to everything that is sent."""

    def __init__(self, random: Random, faults: Faults) -> None:
        self.random = random
        self.faults = faults
        self.calm = True
        """Whether no faults happen now."""
        self.errors: list[str] = []
        """The errors, one line of text each. An error is an event that must not happen, whatever the faults are."""
        self.attended = 0.0
        """The time at which servers and clients last resumed their regular work after a pause."""
        self._kernel = Kernel()

    @property
    def now(self) -> float:
        """Virtual seconds since the world began."""
        return self._kernel.now

    def later(self, seconds: float, call: Callable[..., None], *given: Any) -> None:
        """Call a function with these arguments after this number of virtual seconds."""
        kernel = self._kernel
        kernel.at(kernel.now + seconds, _carry_out, (call, given))

    def at(self, time: float, call: Callable[..., None], *given: Any) -> None:
        """Call a function at this time; calls for the same time run in the sequence in which they were scheduled."""
        self._kernel.at(time, _carry_out, (call, given))

    def unless(self, stale: Callable[[], bool], time: float, call: Callable[[], None]) -> None:
        """Call ``call`` at this time. If ``stale()`` is true at that moment, do not call ``call``, and do not move the
        clock forward."""
        self._kernel.at(time, _carry_out_unless, (stale, call))

    def step(self) -> None:
        """Take the next event. If it is a stale event of ``unless``, the clock does not move."""
        time, _, act, subject = heappop(self._kernel.events)
        if act is not _carry_out_unless or not subject[0]():
            self._kernel.now = time
            act(subject)

    def report_error(self, where: str, reason: str) -> None:
        """Record an error: something has happened that must not happen under any faults."""
        self.errors.append(f"{where}: {reason}")

    def copies(self) -> int:
        """Choose at random how many copies of a frame between two servers arrive: 0, 1 or 2."""
        if self.calm:
            return 1
        if self.random.random() < self.faults.loss:
            return 0
        return 1 + (self.random.random() < self.faults.duplicates)

    def delay(self) -> float:
        """Choose at random how many virtual seconds the network needs for a delivery or a new connection."""
        draw = self.random.random
        return 0.0005 + draw() * 0.002 if draw() < 0.8 else draw() * 0.05


def _carry_out_unless(event: tuple[Callable[[], bool], Callable[[], None]]) -> None:
    event[1]()


def _carry_out(event: tuple[Callable[..., None], tuple[Any, ...]]) -> None:
    call, given = event
    call(*given)


class End:
    """One end of a connection; see :class:`antecede.server.connections.Connection`."""

    def __init__(
        self,
        world: Network,
        remote: str,
        receives: "Callable[[End, list[wire.AnyPart]], None]",
        closed: "Callable[[End, str], None]",
        writable: "Callable[[End], None]",
        effect: Callable[[], None] = lambda: None,
    ) -> None:
        """``receives``: called with parts that arrive. ``closed``: called when the connection has ended. ``writable``:
        called when the output buffer has room again after it was full. ``effect``: called before each sending. The
        server may crash in this call."""
        self.remote = remote
        self.serial = next(serials)
        self.code = ""
        self.binding = b""
        self.certified: tuple[str, ...] = ()
        self.other: End
        self.receiver: Receiver | None = None
        self.slot: ConnectionSlot | None = None
        """The entry for this end in the server's list of incoming connections; None if this end is not the server's end
        of an incoming connection."""
        self.last_sent = self._last_received = world.now
        self.full = False
        self.open = True
        self._world = world
        self._receives = receives
        self._closed = closed
        self._writable = writable
        self._effect = effect
        self._mute = self._abandoned = False
        self._unframer = wire.Unframer()
        self._arrives_at = 0.0
        self._held = self._stalled = self._busy = False
        self._expects_a_reader = False
        self._unread: deque[bytes] = deque()
        self._reason = ""

    @property
    def last_received(self) -> float:
        """The time of the last input, or the current time if this end does not read now.

        While regular work is paused, servers and clients send no pings. A working connection must not be closed because
        of this silence. So for a working connection, the result is never earlier than the end of the last pause.
        """
        if self._paused:
            return self._world.now
        silent = self._mute or self.other._abandoned
        return self._last_received if silent else max(self._last_received, self._world.attended)

    def send(self, parts: Sequence[wire.Part]) -> None:
        """Send parts to the other end."""
        if not self.open:
            return
        self.last_sent = self._world.now
        kept: list[wire.Part] = []
        for part in parts:
            if isinstance(part, _lossy):
                for single in _singly(part):
                    self._effect()
                    for _ in range(self._world.copies()):
                        when = max(self._arrives_at, self._world.now + self._world.delay())
                        self._world.at(when, self.other._arrive, wire.frame([single]))
            else:
                kept.append(part)
        if kept:
            self._effect()
            self._arrives_at = max(self._arrives_at, self._world.now + self._world.delay())
            self._world.at(self._arrives_at, self.other._arrive, wire.frame(kept))

    def close(self, reason: str, final: bool = False, code: str = "") -> None:
        """Send the reason to the other end, and close the connection."""
        if not self.open:
            return
        self.code = code
        if code in (SILENT, NO_HELLO) and not self._mute and not self.other._abandoned:
            self._world.report_error(self.remote, "a connection was closed as silent, although it is not silent")
        self.send([wire.Bye(reason, final, code)])
        self._reason = reason
        self.open = False
        self._world.later(0.0, self.ended, reason)
        if not self._mute:
            self._world.at(max(self._world.now, self._arrives_at) + _linger_seconds, self.other.ended, "")

    def ended(self, reason: str = "") -> None:
        """Mark this end as closed, and call the ``closed`` callback with the reason."""
        self.open = False
        if self.slot is not None:
            self.slot.left()
        if self.receiver is not None:
            self._closed(self, self._reason or reason)
            self.receiver = None

    def vanish(self) -> None:
        """Close this end without a message, as if its process had ended. The other end notices this, unless the
        connection is mute (everything on a mute connection is lost)."""
        self.open = False
        self.receiver = None
        if not self._mute:
            self._world.later(self._world.delay(), self.other.ended, "")

    def mute(self) -> None:
        """Make the connection mute: everything on it is lost from now on, and neither end is informed."""
        self._mute = self.other._mute = True

    @property
    def lingers(self) -> bool:
        """Whether the connection is mute and at least one of its two ends still treats it as open."""
        return self._mute and any(end.open and end.receiver is not None for end in (self, self.other))

    def abandon(self) -> None:
        """Record that the process of this end has ended, so that this end answers nothing from now on. If the
        connection is mute (everything on it is lost), the other end does not notice this."""
        self._abandoned = True
        if self._mute:
            self.receiver = None

    def disconnect(self) -> None:
        """Break the connection: both ends notice, and everything in transit is lost."""
        for end in (self, self.other):
            end.open = False
            self._world.later(0.0, end.ended, "")

    def enter(self, admission: Admission) -> None:
        """Register this end as an incoming connection of its server. The server may close the connection
        immediately."""
        self.slot = admission.enter(self.remote, lambda why, code: self.close(why, code=code), self._world.now)

    def trust(self, *, server: bool) -> None:
        """Allow larger frames, because the other end has proven its identity. ``server``: whether the other end is a
        server; otherwise it is a client."""
        self._unframer.trust(limits.frame_bytes_max if server else limits.client_frame_bytes_max)
        if self.slot is not None:
            self.slot.proved(server=server)

    def busy(self, busy: bool) -> None:
        """Stop reading if ``busy`` is true, and read again if it is false. ``busy``: whether parts that have arrived
        still wait to be handled."""
        self._busy = busy
        self._read_on()

    def hold(self, held: bool) -> None:
        """Stop reading for a while, or continue."""
        self._held = held
        self._read_on()

    def expect_a_reader(self, expected: bool) -> None:
        """Set whether this end stops reading while its own output buffer is full. If ``expected`` is false, this
        end continues to read while the buffer is full."""
        self._expects_a_reader = expected

    def stall(self, stalled: bool) -> None:
        """Stop reading at this end if ``stalled`` is true, so that the output buffer of the other end becomes full.
        Read again if ``stalled`` is false."""
        self._stalled = stalled
        self._read_on()
        self.other._fill(stalled)

    def _fill(self, full: bool) -> None:
        self.full = full
        if not full and self.open and self.receiver is not None:
            self._read_on()
            self._writable(self)

    @property
    def _paused(self) -> bool:
        return self._held or self._stalled or self._busy or (self.full and self._expects_a_reader)

    def _read_on(self) -> None:
        if self._unread and not self._paused:
            self._world.later(0.0, self._read)

    def _read(self) -> None:
        while self._unread and not self._paused:
            self._take(self._unread.popleft())

    def _arrive(self, data: bytes) -> None:
        if self.receiver is None or self._mute:
            return
        if self._paused or self._unread:
            self._unread.append(data)
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        self._last_received = self._world.now
        parts = self._unframer.feed(data)
        while parts and self.receiver is not None:
            self._receives(self, parts)
            parts = self._unframer.more()


def connect(one: End, other: End) -> None:
    """Join two ends, so that they are one connection."""
    one.other, other.other = other, one
    one.binding = other.binding = one.serial.to_bytes(8, "big")


def _singly(part: wire.PeerFrames | wire.PeerAck) -> list[wire.Part]:
    if isinstance(part, wire.PeerAck):
        return [part]
    return [
        wire.PeerFrames(part.domain, part.source, part.target, [number], [body])
        for number, body in zip(part.numbers, part.bodies, strict=True)
    ]


# Keys and identities of a simulated world.
#
# Identities are proven as in a live server; only the signatures are simulated. A signature is a hash of a secret and
# the content. The world knows the secret of every public key, so only the world can check signatures. Servers and
# clients sign only with the keys that they were given.


_tables = {SERVER: "servers", CLIENT: "clients", OPERATOR: "operators"}


class SimulatedKey:
    """A private key whose signatures only the simulated world can check."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.public = "ed25519:" + b64encode(hashlib.sha256(b"public" + secret).digest()).decode()

    def sign(self, content: bytes) -> bytes:
        """Return the signature of this content."""
        return hashlib.blake2b(self._secret + content, digest_size=SIGNATURE_BYTES).digest()


class Seen(msgspec.Struct, frozen=True):
    """A proof that travelled on the network, where an intruder can see it."""

    server: str
    introduction: wire.Introduce
    proof: wire.Proof


class _Watched:
    """A signer that also records its proofs: a simulated intruder sees them on the network, and may send them again."""

    def __init__(self, role: str, name: str, key: SimulatedKey, seen: list[Seen]) -> None:
        self._role = role
        self._name = name
        self._key = key
        self._seen = seen

    def sign(self, content: bytes) -> bytes:
        signature = self._key.sign(content)
        fields = _fields(content)
        if fields[1] == b"dialing":
            made = wire.Introduce(self._role, self._name, "", fields[6])
            self._seen.append(Seen(fields[5].decode(), made, wire.Proof(signature)))
        return signature


def _fields(content: bytes) -> list[bytes]:
    fields = []
    while content:
        size = int.from_bytes(content[:4], "big")
        fields.append(content[4 : 4 + size])
        content = content[4 + size :]
    return fields


class Identities:
    """All keys of one world, and its access file, which all servers share."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._keys: dict[str, SimulatedKey] = {}
        self._of: dict[tuple[str, str], SimulatedKey] = {}
        self.access = Access()
        self.proofs: list[Seen] = []

    def new_key(self) -> SimulatedKey:
        """Return a new key that no identity has yet."""
        key = SimulatedKey(self._random.randbytes(16))
        self._keys[key.public] = key
        return key

    def add(self, role: str, name: str, **permissions: tuple[str, ...]) -> None:
        """Add an identity with a new key and these permissions."""
        key = self._of[(role, name)] = self.new_key()
        self.set(msgspec.structs.replace(Identity(role, name, (Key(key.public),)), **permissions))

    def set(self, identity: Identity) -> None:
        """Add an identity to the access file, or replace it. Servers use the change when they read the file again."""
        table = {**self.access.identities(identity.role), identity.name: identity}
        self.access = msgspec.structs.replace(self.access, **{_tables[identity.role]: table})

    def verify(self, public: str, signature: bytes, content: bytes) -> bool:
        """Return whether the owner of a public key signed this content."""
        key = self._keys.get(public)
        return key is not None and key.sign(content) == signature

    def keyring(self, role: str, name: str, key: SimulatedKey | None = None) -> Keyring:
        """Return a keyring that proves this identity. ``key``: a key to use instead of the identity's own key."""
        signer = _Watched(role, name, key or self._of[(role, name)], self.proofs if key is None else [])
        nonce: Callable[[], bytes] = lambda: self._random.randbytes(NONCE_BYTES)  # noqa: E731
        return Keyring(role, name, signer, self.verify, nonce, lambda: 0.0, lambda: self.access.servers)

    def of_client(self, client: str) -> Keyring:
        """Return the keyring of a client. The name of a temporary client contains the name of its identity."""
        return self.keyring(CLIENT, client.split(".")[1] if wire.is_temporary(client) else client)

    def of_server(self, name: str) -> dict[str, Any]:
        """Return keyword arguments for a server's core (:class:`antecede.server.core.ServerCore`). The
        arguments contain the present access file, and a keyring with which the core proves and checks identities."""
        return {"authoriser": Authoriser(self.access), "keyring": self.keyring(SERVER, name)}
