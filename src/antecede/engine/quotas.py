"""Quotas limit how much may wait in each mailbox, and decide which letters expire when a mailbox exceeds its limits.

A receiver that is slow or absent must not slow others down, so its mailbox has a quota: a limit for the number of
letters, for their bytes, and for the time that a letter may wait (:mod:`antecede.topology.file`). There is also a
limit for all mailboxes of clients together. If a mailbox is above its quota, letters **expire from the head** of the
mailbox: the oldest letters become dead letters, with the reason. So each letter is either delivered once, or dead with
a reason. Letters leave a mailbox in the sequence in which they came, even when they expire. For example, if letter B
depends on letter A and came after A, then B never expires before A.

**Letters that were handed out do not expire.** While an agent or a client handles letters of its mailbox, nothing
expires from this mailbox. If the mailbox is above its quota during this time, it is *crowded*, and no further letters
are handed out. Exception: if a client is disconnected or silent for too long, its letters can expire
(:mod:`antecede.server.sessions`).

**Held letters** wait because they depend on a dead letter (:mod:`antecede.engine.dead`). They count towards the
quota of their mailbox. Among the held letters and the letters in the mailbox, the oldest letters expire first.

The log records which letters expired, so a replay of the log does not decide this again. But the replay must restore
the time at which each letter began to wait. So the server sometimes writes an item to the log, with the current time
and the names of some mailboxes. The item means: the new letters in these mailboxes began to wait at this time
(``Engine.quotas.seen``).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from math import inf
from operator import itemgetter
from typing import Final

import msgspec

from antecede import limits
from antecede.channel.letters import Footprint, Letter, plain_bytes
from antecede.topology import Mailboxes, Quota

# Counts the letters in mailboxes, and their memory. Both numbers are exact when they are requested. Between two
# requests, counting takes almost no time.
#
# Most letters are handled soon, so a letter is counted only if it is still in its mailbox when the numbers are
# requested. The letters of one mailbox are counted in groups of consecutive letters, called *runs*. For each run,
# only the number of letters and the number of their bytes are kept. So removing letters costs time per run, not per
# letter. If letters of a run were removed, the next request counts the remaining letters of this run again. A
# multicast may also be in other mailboxes. So if a run contains a multicast, the letters of this run are counted one
# by one.


class _Run(msgspec.Struct, gc=False):
    """Consecutive letters of one mailbox that were counted together."""

    letters: int
    bytes: int | None
    """The bytes of these letters. If one of the letters is a multicast, the value is ``None``, and each letter of the
    run is added to the footprint individually."""
    begun: bool = False
    """Whether letters of this run were removed since ``bytes`` was counted."""


class Counting:
    """Counts the letters in the mailboxes of one engine."""

    def __init__(self) -> None:
        self.footprint = Footprint()
        """The number and the memory of all counted letters. Other parts of the server add held letters and timers to
        this footprint."""
        self.changed: set[str] = set()
        """The agents whose mailboxes must be counted again: new letters may have come, or some of the
        counted letters were removed."""
        self.runs: dict[str, list[_Run]] = {}
        """For each agent, the counted letters of its mailbox, from the head of the mailbox on."""

    def look(self, mailboxes: dict[str, deque[Letter]]) -> None:
        """Count the letters that came since the last call. If some letters of a *run* (a group of letters that were
        counted together) were removed, count the remaining letters of this run again."""
        changed = list(self.changed)
        self.changed.clear()
        for agent in changed:
            mailbox = mailboxes.get(agent)
            if mailbox is not None:
                self._count(self.runs.setdefault(agent, []), mailbox)

    def _count(self, runs: list[_Run], mailbox: deque[Letter]) -> None:
        footprint = self.footprint
        if runs and runs[0].begun and runs[0].bytes is not None:
            left = plain_bytes(list(islice(mailbox, runs[0].letters)))
            assert left is not None, "a run without multicasts cannot get one later"
            footprint.bytes += left - runs[0].bytes
            runs[0] = _Run(runs[0].letters, left)
        fresh = len(mailbox) - sum(run.letters for run in runs)
        arrived = list(islice(reversed(mailbox), fresh))
        arrived.reverse()
        for start in range(0, fresh, _run_letters):
            letters = arrived[start : start + _run_letters]
            size = plain_bytes(letters)
            runs.append(_Run(len(letters), size))
            if size is None:
                for letter in letters:
                    footprint.add(letter)
            else:
                footprint.entries += len(letters)
                footprint.bytes += size

    def taken(self, agent: str, letters: list[Letter]) -> None:
        """Record that these letters were removed from the head of the agent's mailbox. The agent must be in
        ``runs``."""
        runs = self.runs[agent]
        start = 0
        while runs and start < len(letters):
            run = runs[0]
            count = min(run.letters, len(letters) - start)
            if run.bytes is None:
                for letter in letters[start : start + count]:
                    self.footprint.remove(letter)
            else:
                self.footprint.entries -= count
            start += count
            run.letters -= count
            run.begun = True
            if not run.letters:
                del runs[0]
                self.footprint.bytes -= run.bytes or 0
        if runs:
            self.changed.add(agent)
        else:
            del self.runs[agent]


_run_letters = 256
"""The largest number of letters in one *run* (a group of letters that are counted together). After a removal, at most
this many letters are counted again."""


_Mailbox = deque[Letter]
_Held = dict[str, list[Letter]]
_empty: _Mailbox = deque()


class Excess(msgspec.Struct, frozen=True):
    """A decision that the oldest letters of an agent or client must expire, because a limit is exceeded. ``letters`` is
    the number of these letters."""

    agent: str
    letters: int
    reason: str


class _Size(msgspec.Struct, gc=False):
    """The number and the bytes of the letters that were counted in a mailbox. Letters that came after the count are not
    included."""

    letters: int = 0
    bytes: int = 0


class Quotas:
    """The quotas of one server's mailboxes, and the number, bytes and ages of the letters in these mailboxes."""

    def __init__(self, settings: Mailboxes, is_agent: Callable[[str], bool]) -> None:
        """``is_agent``: returns whether an address belongs to an agent of this server, not to a client."""
        self.settings = settings
        self.is_agent = is_agent
        self.handed: dict[str, int] = {}
        """For each client: the number of letters that were handed out to the client and are still in its mailbox. After
        a restart, this number is an estimate. :mod:`antecede.server.sessions` sets this number."""
        self.crowded: set[str] = set()
        """The mailboxes that are above their quota, and whose first letters are being handled now. No letter can expire
        from these mailboxes."""
        self.ages: dict[str, deque[list[int]]] = {}
        """For each mailbox with a time limit: its letters in groups, beginning at the head of the mailbox. A group is
        [time in milliseconds at which these letters began to wait, number of these letters]. Letters behind the last
        group have no recorded time yet. This field is durable."""
        self.expired: dict[str, int] = {}
        """Mailbox → how many of its letters expired since the last log message about expired letters. After each such
        message, the dictionary is cleared."""
        self.known: dict[str, Quota] = {}
        """Mailbox → its quota. The method ``of`` adds a mailbox. A mailbox is removed when it becomes empty. All
        mailboxes in ``crowded`` and ``ages`` are also in ``known``."""
        self._sizes: dict[str, _Size] = {}

    def use(self, settings: Mailboxes) -> None:
        """Use these settings from now on. Keep the sizes and ages that are recorded for mailboxes."""
        self.settings = settings
        for agent in self.known:
            self.known[agent] = settings.quota(agent, self.is_agent(agent))

    # Changes of mailboxes.

    def taken(self, agent: str, letters: list[Letter], emptied: bool = False) -> None:
        """Record that these letters were removed from the head of a mailbox. ``emptied``: whether the mailbox is empty
        now."""
        if agent in self.handed:
            left = self.handed[agent] - len(letters)
            if left > 0:
                self.handed[agent] = left
            else:
                del self.handed[agent]
        size = self._sizes.get(agent)
        if size is not None:
            counted = letters[: size.letters]
            size.letters -= len(counted)
            size.bytes -= sum([len(letter.body) for letter in counted])
        runs, count = self.ages.get(agent), len(letters)
        while runs and count:
            part = min(count, runs[0][1])
            runs[0][1] -= part
            count -= part
            if not runs[0][1]:
                runs.popleft()
        if emptied:
            self.emptied(agent)

    def emptied(self, agent: str) -> None:
        """Record that a mailbox is empty now."""
        self.known.pop(agent, None)
        self._sizes.pop(agent, None)
        self.ages.pop(agent, None)
        self.crowded.discard(agent)

    def seen(self, agent: str, letters: int, clock_ms: int) -> None:
        """Record ``clock_ms`` as the time at which the new letters of a mailbox began to wait. Letters are new if they
        came after the last call for this mailbox. If the clock was set back, the recorded times of older letters may be
        later than ``clock_ms``. Replace these times with ``clock_ms``. Without this replacement, the age of these
        letters would not grow until the clock reaches its old value. ``letters``: the number of all letters in the
        mailbox."""
        self.of(agent)
        runs = self.ages.setdefault(agent, deque())
        for run in runs:
            run[0] = min(run[0], clock_ms)
        fresh = letters - sum(run[1] for run in runs)
        if fresh > 0:
            runs.append([clock_ms, fresh])

    # Questions.

    def of(self, agent: str) -> Quota:
        """Return the quota of a mailbox, and keep it in ``known`` until the mailbox becomes empty."""
        quota = self.known.get(agent)
        if quota is None:
            quota = self.known[agent] = self.settings.quota(agent, self.is_agent(agent))
        return quota

    def unseen(self, mailboxes: dict[str, _Mailbox], clock_ms: int) -> list[str]:
        """Return the mailboxes for which ``seen`` must be called. A mailbox without a time limit is never returned.
        There are three reasons for a call. (1) No time is recorded for the mailbox. (2) The last recorded time is at
        least a second ago, and letters have come after that time. (3) The clock was set back, and the last recorded
        time is at least a second in the future."""
        found = []
        for agent, mailbox in mailboxes.items():
            if self.of(agent).seconds:
                runs = self.ages.get(agent)
                later = 0 if not runs else clock_ms - runs[-1][0]
                fresh = later >= _seen_ms and sum(run[1] for run in runs or ()) < len(mailbox)
                if not runs or fresh or later <= -_seen_ms:
                    found.append(agent)
        return found

    def unseen_held(self, held: _Held, since: dict[str, int]) -> list[str]:
        """Return the agents for which two things are true: their letters have a time limit, and at least one of their
        held letters has no entry in ``since``. A held letter waits because it depends on a dead letter. A key of
        ``since`` is ``LETTER-ID AGENT``."""
        timed = [agent for agent in held if self.of(agent).seconds]
        return [agent for agent in timed if any(f"{letter.id} {agent}" not in since for letter in held[agent])]

    def refusal(self, to: tuple[str, ...], bodies: list[bytes], mailboxes: dict[str, _Mailbox], held: _Held) -> str:
        """Return the reason why new letters from a client of this server are refused, or an empty text if there is
        room. The new letters are refused if a mailbox with the setting ``full = "refuse"`` does not have room for
        all of them. The server must call this method before it accepts the new letters. If the server accepted them
        first, earlier letters would expire to make room. ``to``: the destinations on this server."""
        for address in to:
            quota = self.known.get(address) or self.settings.quota(address, self.is_agent(address))
            if quota.full != "refuse":
                continue
            mailbox, behind = mailboxes.get(address, _empty), held.get(address, ())
            letters = len(mailbox) + len(behind)
            room = quota.letters - letters if quota.letters else len(bodies)
            if quota.bytes:
                size = sum([len(letter.body) for letter in behind]) + sum(map(len, bodies))
                size += self._bytes(address, mailbox) if mailbox else 0
                room = room if size <= quota.bytes else 0
            if room < len(bodies):
                fewer = f"; {len(bodies)} more do not fit: send fewer together, or" if len(bodies) > 1 else ":"
                return f"the mailbox of {address} is full, with {_counted(letters, 'letter')}{fewer} try again later"
        return ""

    def look_held(
        self,
        held: _Held,
        mailboxes: dict[str, _Mailbox],
        numbers: dict[str, int],
        since: dict[str, int],
        reacting: Callable[[str], bool],
        clock_ms: int,
    ) -> Iterator[tuple[Excess, Iterable[Letter]]]:
        """Yield pairs (excess, letters). The excess says how many letters at the head of ``letters`` must expire now.
        The letters are either the held letters of an agent, or the mailbox of an agent that has held letters. (A
        held letter waits because it depends on a dead letter.) ``numbers``: the number of each letter; a letter that
        came later has a larger number. ``since``: for each held letter, the time at which it began to wait. A key of
        ``numbers`` and ``since`` is ``LETTER-ID AGENT``.

        The oldest letters expire first. A held letter may depend on an older letter that is still in the mailbox. So a
        held letter never expires before an older letter in the mailbox.
        """
        for agent, letters in held.items():
            quota, mailbox = self.of(agent), mailboxes.get(agent, _empty)
            if not quota.limited:
                continue
            size = sum([len(one.body) for one in letters]) + self._bytes(agent, mailbox)
            count, reason = _over(quota, len(letters) + len(mailbox), size, chain(letters, mailbox))
            expire, why, older = count, reason, _older(letters, mailbox, numbers, agent)
            if quota.seconds:
                latest = clock_ms - quota.seconds * 1000
                keys = [f"{letter.id} {agent}" for letter in letters]
                late = next((place for place, key in enumerate(keys) if since.get(key, clock_ms) > latest), len(keys))
                expire, why = max((count, reason), (late, _too_old(quota)), key=itemgetter(0))
            if expire and older:
                yield Excess(agent, min(expire, older, limits.drop_letters_max), why), letters
            behind = _older(mailbox, letters[older:], numbers, agent) if count > older and not reacting(agent) else 0
            if behind:
                yield Excess(agent, min(count - older, behind, limits.drop_letters_max), reason), mailbox

    def look(
        self, mailboxes: dict[str, _Mailbox], reacting: Callable[[str], bool], clock_ms: int, memory_bytes: int
    ) -> Iterator[Excess]:
        """Yield an :class:`Excess` for each mailbox in which letters must expire now, and record the crowded mailboxes.
        ``memory_bytes``: the bytes of memory that the letters in mailboxes, the held letters and the timers use. A
        multicast in several mailboxes is counted only once."""
        letters = size = 0
        fullest: list[tuple[int, str]] = []
        self.crowded.clear()
        for agent, mailbox in mailboxes.items():
            quota, client = self.of(agent), not self.is_agent(agent)
            excess = self._excess(agent, mailbox, quota, clock_ms) if quota.limited else None
            busy = agent in self.handed if client else reacting(agent)
            if excess is not None:
                if busy:
                    self.crowded.add(agent)
                else:
                    yield excess
            elif client and not busy:
                fullest.append((len(mailbox), agent))
            if client:
                letters += len(mailbox)
                size += self._bytes(agent, mailbox)
        share = limits.mailbox_clients_share_max
        over = letters - int(share * limits.backlog_letters_max)
        room = share * limits.backlog_letter_bytes_max
        if min(size, memory_bytes) > room:
            over = max(over, letters // _slice)
        if over > 0:
            yield from _levelled(fullest, min(over, limits.drop_letters_max))

    def _excess(self, agent: str, mailbox: _Mailbox, quota: Quota, clock_ms: int) -> Excess | None:
        size = self._bytes(agent, mailbox) if quota.bytes else 0
        count, reason = _over(quota, len(mailbox), size, mailbox)
        if quota.seconds:
            late = 0
            for seen_ms, letters in self.ages.get(agent, ()):
                if seen_ms + quota.seconds * 1000 > clock_ms:
                    break
                late += letters
            if late > count:
                count, reason = late, _too_old(quota)
        return Excess(agent, min(count, limits.drop_letters_max), reason) if count else None

    def _bytes(self, agent: str, mailbox: _Mailbox) -> int:
        # Only the sizes of mailboxes in ``known`` are reduced when letters leave.
        self.of(agent)
        size = self._sizes.get(agent)
        if size is None:
            size = self._sizes[agent] = _Size()
        fresh = len(mailbox) - size.letters
        if fresh:
            size.bytes += sum([len(letter.body) for letter in islice(reversed(mailbox), fresh)])
            size.letters = len(mailbox)
        return size.bytes

    def dump(self) -> dict[str, list[tuple[int, int]]]:
        """Return the durable part: for each mailbox, pairs (time at which letters began to wait, number of these
        letters)."""
        return {agent: [(run[0], run[1]) for run in runs] for agent, runs in self.ages.items() if runs}

    def load(self, saved: dict[str, list[tuple[int, int]]]) -> None:
        """Load the durable part that ``dump`` returned."""
        self.ages = {agent: deque([list(run) for run in runs]) for agent, runs in saved.items()}
        for agent in self.ages:
            self.of(agent)


def _older(letters: Iterable[Letter], others: Sequence[Letter], numbers: dict[str, int], agent: str) -> int:
    """Count the letters at the head of ``letters`` that are older than all letters in ``others``. Both begin with the
    oldest letter. ``numbers``: as in ``look_held``."""
    first = numbers.get(f"{others[0].id} {agent}", 0) if others else inf
    count = 0
    for letter in letters:
        if numbers.get(f"{letter.id} {agent}", 0) > first:
            break
        count += 1
    return count


def _over(quota: Quota, count: int, size: int, letters: Iterable[Letter]) -> tuple[int, str]:
    """Return how many letters at the head of ``letters`` must expire because there are too many letters or bytes. Also
    return the reason. ``count``, ``size``: the number and the bytes of all letters."""
    many = count - quota.letters if quota.letters else 0
    over, place = size - quota.bytes if quota.bytes else 0, 0
    if over > 0:
        for place, letter in enumerate(letters, 1):
            over -= len(letter.body)
            if over <= 0 or place >= limits.drop_letters_max:
                break
    if place > max(many, 0):
        return place, f"expired: more than {_counted(quota.bytes, 'byte')} in the mailbox"
    return (many, f"expired: more than {_counted(quota.letters, 'letter')} in the mailbox") if many > 0 else (0, "")


def _levelled(fullest: list[tuple[int, str]], count: int) -> Iterator[Excess]:
    """Shorten the longest mailboxes to about the same length: yield an :class:`Excess` for each of them. In total,
    ``count`` letters expire, or all letters if there are fewer. ``fullest``: the length and the name of each mailbox
    from which letters may expire."""
    fullest.sort(reverse=True)
    total = level = 0
    for place, (length, _) in enumerate(fullest, 1):
        total += length
        level = max(0, total - count) // place
        if place < len(fullest) and level >= fullest[place][0]:
            break
    for length, agent in fullest:
        expire = min(length - level, count)
        if expire <= 0:
            break
        count -= expire
        yield Excess(agent, expire, ALL_FULL)


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _too_old(quota: Quota) -> str:
    return f"expired: more than {quota.seconds:g} s in the mailbox"


ALL_FULL: Final = "expired: the mailboxes of all clients together are full"
_seen_ms: Final = 1_000
_slice: Final = 16
"""A divisor. If the letters in the mailboxes of clients take too much memory, at most 1/16 of these letters expires at
each check. If there are also too many letters, more of them may expire."""
