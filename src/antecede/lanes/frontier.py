"""What a message says about its past: one position per lane, in one header.

A *lane* is what a broker keeps in sequence and numbers by itself: a partition of Kafka, a stream of JetStream or Redis.
A *frontier* has one position per lane, and means that everything up to there may be a cause. So the broker's own
positions are the clock: nobody counts members or agrees on anything, members may come and go, and a header is complete
in itself, hence also for replays and for groups that join late.

    antecede: 1#17 orders=1041 payments#17=77

is the header of a message whose own key lies on track 17. Keys are hashed to 64 *tracks*; ``payments#17=77`` stands for
the messages of track 17 up to position 77, and ``orders=1041`` for all messages up to there. A message without a key
counts for all tracks. The producer puts the track of the message into the header, so that both ends agree on it.

**Safe.** A context merges the header *and* the position of everything that it receives, and the position of everything
that it sends as soon as the broker has acknowledged it. By induction, its frontier dominates everything in its past. A
position counts only from its acknowledgement on, because nobody knows it earlier. Therefore two publishes that are not
awaited one after the other are concurrent.

**Nothing lost.** What a crashed process knew is lost, but whatever it was, it lay below the present ends of all lanes.
So a context starts *in doubt* and makes no headers until the ends were merged; any message sent later is younger than
they are. The same holds after a publish whose outcome is unknown (unless it is repeated with the same id until its
position is known), and when a lane comes from another member of the group.

**Bounded.** ``decode`` accepts at most ``ENTRIES`` entries and ``LENGTH`` characters, and reads anything else as a
message without causes, with a ``problem`` to warn of. ``encode`` never exceeds these bounds: it merges tracks into
their lane (the maximum dominates them), and refuses the publish if there are still too many entries.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal
from urllib.parse import quote, unquote
from zlib import crc32

HEADER = "antecede"
TRACKS = 64
ENTRIES = 256
LENGTH = 8192
# Enough for ids of Redis, which are ``milliseconds << 64 | sequence``.
LARGEST = (1 << 128) - 1
ALL = -1

Scope = Literal["service", "key", "message"]
Key = str | bytes | int | None

# A name is a quoted lane, with or without its track.
_entry = r"[!-\"$-<>-~]{1,256}(?:#(?:[0-5]?[0-9]|6[0-3]))?=[0-9]{1,39}"
_header = re.compile(rf"1(?:#([0-5]?[0-9]|6[0-3]))?((?: {_entry})*)")


class LanesError(Exception):
    """A mistake that the caller can correct; ``code`` names it for programs."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def track_of(key: Key) -> int | None:
    """The track of a key. Keys are hashed as bytes, so that ``"a"`` and ``b"a"`` are the same key at both ends."""
    if key is None:
        return None
    return crc32(key if isinstance(key, bytes) else str(key).encode(errors="surrogatepass")) % TRACKS


@lru_cache(4096)
def name_of(lane: str, track: int | None = None) -> str:
    """The name of a lane, or of one track of it, in headers. Names of lanes should contain the id of their broker."""
    name = quote(lane, safe="!$&'()*+,-./:;<>?@[]^_`{|}~")
    if not 0 < len(name) <= 256:
        raise LanesError("lane-name", f"The name of a lane must have 1 to 256 characters when quoted: {lane!r}.")
    return name if track is None else f"{name}#{track}"


def lane_of(name: str) -> str:
    """The lane that a name in a header stands for."""
    return unquote(name.partition("#")[0])


@dataclass(slots=True)
class Stamp:
    """The content of a header: the causes of a message (positions by name), and the track of its key."""

    causes: dict[str, int]
    track: int | None = None
    problem: str | None = None
    """Why a header could not be read."""

    @property
    def text(self) -> str:
        """The header. Raises ``LanesError`` if it would exceed the bounds."""
        return encode(self.causes, self.track)


def encode(causes: Mapping[str, int], track: int | None = None) -> str:
    """Write a header, within its bounds."""
    for merged in (False, True):
        kept = coarse(causes) if merged else causes
        if len(kept) <= ENTRIES:
            own = "1" if track is None else f"1#{track}"
            text = " ".join([own, *[f"{name}={position}" for name, position in kept.items()]])
            if len(text) <= LENGTH:
                return text
    raise LanesError(
        "too-many-lanes", f"A header has at most {ENTRIES} entries and {LENGTH} characters. Use scope 'message'."
    )


def decode(text: str | bytes | None) -> Stamp:
    """Read a header. A header that is missing has no causes; one that cannot be read has none either, and a problem."""
    if text is None:
        return Stamp({})
    if isinstance(text, bytes):
        text = text[: LENGTH + 1].decode("latin-1")
    if not isinstance(text, str) or len(text) > LENGTH or text.count(" ") > ENTRIES:
        return Stamp({}, problem="The header exceeds its bounds.")
    match = _header.fullmatch(text)
    if match is None:
        return Stamp({}, problem="The header cannot be read.")
    causes: dict[str, int] = {}
    for entry in match[2].split():
        name, _, digits = entry.partition("=")
        position = int(digits)
        if position > causes.get(name, -1):
            causes[name] = position
    return Stamp(causes, int(match[1]) if match[1] else None)


def coarse(causes: Mapping[str, int]) -> dict[str, int]:
    """The same frontier without tracks. It dominates the given one."""
    merged: dict[str, int] = {}
    for name, position in causes.items():
        lane = name.partition("#")[0]
        if position > merged.get(lane, -1):
            merged[lane] = position
    return merged


def merge(into: dict[str, int], causes: Mapping[str, int]) -> None:
    """Raise ``into`` to the maximum of both."""
    for name, position in causes.items():
        if position > into.get(name, -1):
            into[name] = position


class _Past:
    """What all runs of one context share. What concerns only one track is apart from what concerns all."""

    __slots__ = ("doubts", "general", "settled", "tracks")

    def __init__(self, doubts: int) -> None:
        self.general: dict[str, int] = {}
        self.tracks: dict[int, dict[str, int]] = {}
        self.doubts = doubts
        self.settled = 0


class Context:
    """The past of whoever publishes.

    ``scope`` says whose past counts: that of the instance (``service``), that of the instance with the same key
    (``key``), or only the run of one handler (``message``). Before a handler is called, ``run`` gives the context for
    its publishes.

        stamp = context.header(key)              # refuses while context.doubts
        position = publish(…, stamp.text)        # wait for the broker's acknowledgement
        context.sent(stamp, lane, position)      # or context.doubt(), if the outcome is unknown
    """

    def __init__(self, scope: Scope = "service") -> None:
        if scope not in ("service", "key", "message"):
            raise LanesError("scope", f"A scope is 'service', 'key' or 'message', not {scope!r}.")
        self.scope = scope
        # A run of a handler starts from its message only: there is nothing to lose in a crash.
        self._past = _Past(0 if scope == "message" else 1)
        # The track of the run, in addition to those of its messages.
        self._own: int | None = None

    def run(self, track: int | None = None) -> "Context":
        """The context for one run of a handler, whose message has this track."""
        if self.scope == "service":
            return self
        context = Context(self.scope)
        if self.scope == "key":
            context._past = self._past
            context._own = ALL if track is None else track
        return context

    @property
    def doubts(self) -> int:
        """Not 0 while causes may be missing. Read the ends of all lanes, and give this number to ``merge``."""
        return self._past.doubts if self._past.doubts > self._past.settled else 0

    def doubt(self) -> None:
        """Causes may be missing from now on: a publish ended without an answer, or a lane came from another member."""
        self._past.doubts += 1

    def header(self, key: Key = None) -> Stamp:
        """The stamp of the next message."""
        if self.doubts:
            raise LanesError("in-doubt", "Merge the ends of all lanes before the next publish.")
        track = track_of(key)
        return Stamp(self._known(track), track)

    def token(self, key: Key = None) -> str:
        """The past as text, for a row of a database or a request by HTTP. ``merge`` takes it."""
        return encode(self.header(key).causes)

    def saw(self, lane: str, position: int, causes: Mapping[str, int], track: int | None = None) -> None:
        """Take this message into the past: its handler starts. Impossible causes must be gone (``Box`` drops them)."""
        self._record(track, causes, name_of(lane, None if self.scope == "service" else track), position)

    def sent(self, stamp: Stamp, lane: str, position: int) -> bool:
        """The broker has acknowledged a message at this position.

        Everything in the stamp existed before the message. So if the message is not above its own causes, the lane went
        back: it was made again, or an entry was forged. The answer is then True, and all entries of the lane have been
        replaced by this position."""
        plain, mine = name_of(lane), name_of(lane, None if self.scope == "service" else stamp.track)
        back = position <= max(stamp.causes.get(plain, -1), stamp.causes.get(mine, -1))
        if back:
            for frontier in (self._past.general, *self._past.tracks.values()):
                for name in [name for name in frontier if name.partition("#")[0] == plain]:
                    del frontier[name]
            stamp = Stamp({n: p for n, p in stamp.causes.items() if n.partition("#")[0] != plain}, stamp.track)
        self._record(stamp.track, stamp.causes if self.scope == "key" else {}, mine, position)
        return back

    def merge(self, more: str | Mapping[str, int], key: Key = None, settles: int = 0) -> None:
        """Take a token, or positions by lane (for example the ends of all lanes), into the past.

        ``settles`` is the value that ``doubts`` had before the ends were read. It must have been read from the leaders,
        with all lanes to which this program or its handlers publish, and all that they read."""
        if isinstance(more, str):
            stamp = decode(more)
            if stamp.problem:
                raise LanesError("token", stamp.problem)
            causes = stamp.causes
        else:
            causes = {name_of(lane): position for lane, position in more.items()}
        self._record(track_of(key), causes)
        self._past.settled = max(self._past.settled, settles)

    def _tracks(self, track: int | None) -> set[int]:
        """The tracks that an event of this run concerns; empty for all."""
        if track is None or self._own == ALL:
            return set()
        return {track} if self._own is None else {track, self._own}

    def _known(self, track: int | None) -> dict[str, int]:
        past = self._past
        known = dict(past.general)
        if past.tracks:
            for one in self._tracks(track) or past.tracks:
                merge(known, past.tracks.get(one, {}))
        return known

    def _record(self, track: int | None, causes: Mapping[str, int], name: str = "", position: int = 0) -> None:
        """Add causes, and the entry of the message itself, to what the tracks of this event know."""
        past = self._past
        if self.scope != "key":
            frontiers: Iterable[dict[str, int]] = (past.general,)
        elif tracks := self._tracks(track):
            frontiers = [past.tracks.setdefault(one, {}) for one in tracks]
        else:
            # An event without a key follows everything, and everything later follows it.
            past.general, past.tracks = self._known(None), {}
            frontiers = (past.general,)
        for frontier in frontiers:
            merge(frontier, causes)
            if name and position > frontier.get(name, -1):
                frontier[name] = position
            if len(frontier) > ENTRIES:
                smaller = coarse(frontier)
                frontier.clear()
                frontier.update(smaller)
