"""Dead letters: letters that could not be handled. Each is kept, with the reason, until an operator decides about it.

Dead letters are kept in the sequence in which they died, and each has a number in that sequence. A command of an
operator applies to all dead letters, or to those that fit a :class:`Choice`. There may be very many dead letters, so
they are read in pages (:func:`page_of`). There are limits for the number of letters on a page, for their bytes, and for
the number of letters that are examined. A page contains the number of the last letter that was examined, and the next
page begins after that number. So pages stay correct when dead letters before or after them are added or removed.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

import msgspec

from antecede import limits
from antecede.channel.letters import Letter, Past


class Dead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A letter to which its agent could not react, with the reason."""

    agent: str
    letter: Letter
    reason: str
    number: int = 0
    """The position of this letter in the sequence of all dead letters of this server, from 1."""
    since_ms: int = 0
    """The server time at which the letter died, in milliseconds."""

    @property
    def key(self) -> str:
        """The name that operators use to replay or delete (bury) this letter."""
        return f"{self.letter.id} {self.agent}"


class Choice(msgspec.Struct, frozen=True):
    """The conditions with which an operator selects dead letters. A field that is empty or 0 is not a condition."""

    agent: str = ""
    type: str = ""
    reason: str = ""
    """A text that must occur in the reason of the dead letter."""
    before_ms: int = 0
    """The dead letter must have died before this server time, in milliseconds."""

    def admits(self, dead: Dead) -> bool:
        """Return whether a dead letter meets all conditions."""
        return (
            (not self.agent or dead.agent == self.agent)
            and (not self.type or dead.letter.type == self.type)
            and (not self.reason or self.reason in dead.reason)
            and (not self.before_ms or dead.since_ms < self.before_ms)
        )


class Page(msgspec.Struct):
    """One page of the dead letters that fit a :class:`Choice`."""

    letters: list[Dead]
    upto: int
    """The number of the last dead letter that was examined. The next page begins after it."""
    more: bool
    """Whether there are dead letters after ``upto`` that must still be examined."""


class Range(msgspec.Struct, frozen=True):
    """The dead letters that are examined for one page, and how much the page may contain."""

    after: int = 0
    """Only dead letters with a larger number than this are examined."""
    last: int = 0
    """Dead letters with a larger number than this are not examined. If this field is 0, there is no such limit."""
    letters_max: int = 1_000
    size_max: int = 1 << 20
    examined_max: int = 20_000


def page_of(
    dead: Mapping[str, Dead], choice: Choice, within: Range, size: Callable[[Dead], int] = lambda dead: 0
) -> Page:
    """Return the next page of the dead letters that fit ``choice``. ``size`` returns the size of one dead letter. The
    sum of the sizes on a page is limited. But the first letter of a page may be larger than this limit, so that a page
    is never empty because of a large letter."""
    page = Page([], within.after, False)
    total = examined = 0
    for one in dead.values():
        if one.number <= within.after:
            continue
        if within.last and one.number > within.last:
            break
        examined += 1
        admitted = choice.admits(one)
        added = size(one) if admitted else 0
        full = page.letters and (len(page.letters) >= within.letters_max or total + added > within.size_max)
        if (admitted and full) or examined > within.examined_max:
            page.more = True
            break
        if admitted:
            total += added
            page.letters.append(one)
        page.upto = one.number
    return page


# Causal dead-lettering: letters that follow from a dead letter wait until an operator decides about the dead letter.
#
# Letter B *follows from* letter A if B depends causally on A. Suppose that a letter dies at an agent with the setting
# ``dead_follow = "hold"``. Then the agent's letters that follow from the dead letter are held: both the letters that
# already wait, and the letters that come later. All other letters are handled meanwhile. An operator buries (deletes)
# the dead letter, or sends it again. Then the held letters are handed out. If the dead letter was sent again, it is
# handed out before them.
#
# **Stamps decide** whether a letter may follow from another. In a domain, letters travel in *trains*: a train is one
# message that contains several letters (:mod:`antecede.channel.letters`). The stamp of a train shows the train's past
# (:class:`Past`): the messages on which the train depends. For each server of the domain, the stamp contains the
# number of the newest such message from this server. The domains form a forest, so there is only one route between
# two servers. Suppose that a letter follows from a dead letter, and that both came through the same domain. Then the
# train of the letter depends on the train of the dead letter, and the stamps show this dependency. But stamps show
# dependencies between the messages of servers, not between the letters of agents. So they show only that a letter
# *may* follow from the dead letter. Every such letter is held. In three cases the stamps show nothing, and the letter
# is also held. (1) The letter or the dead letter was sent on this server. (2) The two letters came through different
# domains. (3) The domain has an order without such stamps. A letter that may follow from a *held* letter is also
# held, because it must not overtake the held letter.
#
# A letter that the agent sent to itself does not follow from the dead letter. (The agent sends letters only when it
# reacts to a letter, and it did not react to the dead letter.) Such a letter is held in two cases only. (1) Another
# letter from the agent to itself is dead or held. (2) The letter is a multicast, and one of the dead or held letters
# has no stamp. Timers are not messages and are never held.
#
# A letter that an operator sent again is never held, because the operator has decided about it. Such a letter does
# not follow from any held letter, so it cannot overtake a letter on which it depends. This is true because a special
# client, named ``dead-letters``, publishes all such letters, and receives nothing. So such a letter follows only from
# letters that were sent again earlier, and these are never held.


class _Barrier(msgspec.Struct):
    """A summary of the dead and held letters of one agent. Each later letter is compared with this summary. The result
    shows whether the later letter may depend on one of the dead or held letters."""

    least: dict[tuple[str, int], int]
    """(domain, member) → the number of the first message from this member that contained a dead or held letter. The
    member is a server of the domain, given as its position in the domain."""
    sources: set[str]
    everything: bool = False
    """Whether one of the dead or held letters has no stamp. Then every later letter may follow from it."""


class SavedFollowing(msgspec.Struct, frozen=True, array_like=True):
    """The durable state of a :class:`Following`. The attributes of that class explain the fields."""

    agents: list[str]
    pasts: dict[str, Past]
    blocks: dict[str, list[str]]
    held: dict[str, list[Letter]]
    numbers: dict[str, int]
    newest: int
    since: dict[str, int]


class Following:
    """Decides which letters on one server are held because of a dead letter, and keeps the held letters."""

    def __init__(self) -> None:
        self.agents: set[str] = set()
        """The agents with ``dead_follow = "hold"``."""
        self.pasts: dict[str, Past] = {}
        """For each letter that waits, is held or is dead at one of ``agents``: the messages on which the letter may
        depend. A key is ``LETTER-ID AGENT``."""
        self.blocks: dict[str, dict[str, Letter]] = {}
        """For each agent, the dead letters about which an operator has to decide. The key of a dead letter has the form
        ``LETTER-ID AGENT`` (see ``Dead.key``)."""
        self.held: dict[str, list[Letter]] = {}
        """For each agent, its held letters in the sequence in which they came."""
        self.numbers: dict[str, int] = {}
        """For each letter of one of ``agents``, its number in the sequence in which letters came. A key has the form
        ``LETTER-ID AGENT``."""
        self.newest = 0
        self.since: dict[str, int] = {}
        """For each held letter of a mailbox with a time limit, the server time in milliseconds at which its waiting
        time begins. A key is ``LETTER-ID AGENT``."""
        self._barriers: dict[str, _Barrier] = {}

    def came(self, agent: str, letter: Letter) -> None:
        """Give a number to a letter that came for one of ``agents``. A dead letter that was sent again gets its old
        number, so that it is still before the letters that follow from it."""
        replayed = [key for key, dead in self.blocks.get(agent, {}).items() if dead.id == letter.replays]
        if replayed:
            self.numbers[f"{letter.id} {agent}"] = self.numbers.get(replayed[0], 0)
        else:
            self.newest += 1
            self.numbers[f"{letter.id} {agent}"] = self.newest

    def gone(self, key: str) -> None:
        """Forget a letter. Call this method when the letter has left the mailbox, and is neither held nor dead."""
        self.pasts.pop(key, None)
        self.numbers.pop(key, None)
        self.since.pop(key, None)

    def keep(self, domains: set[str]) -> None:
        """Keep only the entries of ``pasts`` for letters that came through one of ``domains``. The other entries are
        not valid, because a change of the topology has removed their domains or restarted the stamps of these domains.
        A letter without an entry is treated like a letter that may depend on a dead letter."""
        for key in [key for key, past in self.pasts.items() if past.domain not in domains]:
            del self.pasts[key]
        self._barriers.clear()

    def seen(self, agent: str, clock_ms: int) -> None:
        """Record ``clock_ms`` as the time at which the held letters of an agent began to wait. A letter that already
        has an earlier recorded time keeps this time. A recorded time may also be later than ``clock_ms``, because the
        clock was set back. Then ``clock_ms`` replaces it."""
        for letter in self.held.get(agent, ()):
            key = f"{letter.id} {agent}"
            self.since[key] = min(self.since.get(key, clock_ms), clock_ms)

    def is_held(self, agent: str, letter: str) -> bool:
        """Return whether ``letter`` is the id of an agent's first held letter."""
        held = self.held.get(agent)
        return held is not None and held[0].id == letter

    def expire(self, agent: str) -> Letter:
        """Remove the first held letter of an agent, because this letter has expired; return it."""
        held = self.held[agent]
        letter = held.pop(0)
        if not held:
            del self.held[agent]
        self._barriers.pop(agent, None)
        self.gone(f"{letter.id} {agent}")
        return letter

    def block(self, agent: str, key: str, letter: Letter, waiting: Iterable[Letter]) -> list[Letter]:
        """Record a dead letter of an agent. From now on, hold the agent's letters that may follow from it. Return those
        letters of ``waiting`` that need not be held."""
        self.blocks.setdefault(agent, {})[key] = letter
        return self._hold_required(agent, list(waiting), self.held.pop(agent, []))

    def unblock(self, agent: str, key: str) -> list[Letter]:
        """Record that an operator has decided about a dead letter. Return the held letters that may be handled now."""
        blocks = self.blocks.get(agent)
        if blocks is None or blocks.pop(key, None) is None:
            return []
        self.gone(key)
        if not blocks:
            del self.blocks[agent]
        return self._hold_required(agent, self.held.pop(agent, []), [])

    def _hold_required(self, agent: str, letters: list[Letter], held: list[Letter]) -> list[Letter]:
        """Hold those of ``letters`` that must be held, and return the others in their sequence. ``held``: letters that
        stay held. Each letter is compared only with dead and held letters that came before it, because it cannot follow
        from later ones."""
        self._barriers.pop(agent, None)
        barrier = _Barrier({}, set())
        free: set[str] = set()
        stays = {id(letter) for letter in (*self.blocks.get(agent, {}).values(), *held)}
        dead = {id(letter) for letter in self.blocks.get(agent, {}).values()}
        everyone = [*self.blocks.get(agent, {}).values(), *held, *letters]
        for letter in sorted(everyone, key=lambda one: self.numbers.get(f"{one.id} {agent}", 0)):
            if id(letter) not in stays and not self._may_follow(agent, letter, barrier):
                free.add(letter.id)
                continue
            self._add(barrier, agent, letter)
            if id(letter) not in dead:
                self.held.setdefault(agent, []).append(letter)
        return [letter for letter in letters if letter.id in free]

    def holds(self, agent: str, letter: Letter) -> bool:
        """Hold a letter that has just come, if it may follow from a dead or held letter. Return whether the letter is
        held."""
        if agent not in self.blocks or not self._may_follow(agent, letter, self._barrier(agent)):
            return False
        self.held.setdefault(agent, []).append(letter)
        self._add(self._barrier(agent), agent, letter)
        return True

    def undecided(self, agent: str) -> int:
        """Return how many held letters of an agent are perhaps independent of its dead letters. These are the held
        letters whose senders sent none of the dead letters."""
        sources = {letter.source for letter in self.blocks.get(agent, {}).values()}
        return sum(letter.source not in sources for letter in self.held.get(agent, ()))

    def _may_follow(self, agent: str, letter: Letter, barrier: _Barrier) -> bool:
        if letter.replays:
            return False
        if letter.source == agent:
            # Its multicasts may be part of a total order, in which nothing may overtake a held letter.
            several = len(letter.to) > 1 and barrier.everything
            return not _is_timer(letter) and (several or agent in barrier.sources)
        past = self.pasts.get(f"{letter.id} {agent}")
        if not barrier.sources:
            return False
        if barrier.everything or past is None or letter.source in barrier.sources:
            return True
        return any(
            domain != past.domain or past.counts[member] >= number for (domain, member), number in barrier.least.items()
        )

    def _barrier(self, agent: str) -> _Barrier:
        barrier = self._barriers.get(agent)
        if barrier is None:
            barrier = self._barriers[agent] = _Barrier({}, set())
            for letter in (*self.blocks.get(agent, {}).values(), *self.held.get(agent, ())):
                self._add(barrier, agent, letter)
        return barrier

    def _add(self, barrier: _Barrier, agent: str, letter: Letter) -> None:
        barrier.sources.add(letter.source)
        past = self.pasts.get(f"{letter.id} {agent}")
        if past is None:
            barrier.everything = True
            return
        place = (past.domain, past.source)
        barrier.least[place] = min(barrier.least.get(place, past.counts[past.source]), past.counts[past.source])

    def count(self) -> int:
        """Return the number of held letters of all agents."""
        return sum(map(len, self.held.values()))

    def dump(self) -> SavedFollowing:
        """Return the durable state, for :meth:`load`."""
        blocks = {agent: list(keys) for agent, keys in self.blocks.items()}
        held = {agent: list(letters) for agent, letters in self.held.items()}
        numbers = (dict(self.numbers), self.newest, dict(self.since))
        return SavedFollowing(sorted(self.agents), dict(self.pasts), blocks, held, *numbers)

    def load(self, saved: SavedFollowing, letters: dict[str, Letter]) -> None:
        """Load the durable state that ``dump`` returned. ``letters``: the dead letters, by ``Dead.key``."""
        self.agents, self.pasts = set(saved.agents), dict(saved.pasts)
        self.blocks = {agent: {key: letters[key] for key in keys} for agent, keys in saved.blocks.items()}
        self.held = {agent: list(held) for agent, held in saved.held.items()}
        self.numbers, self.newest, self.since = dict(saved.numbers), saved.newest, dict(saved.since)


def _is_timer(letter: Letter) -> bool:
    return letter.id.rpartition(".")[2].startswith("t")


# Counts how often a handler ended the server's process. The counts survive the crash.
#
# A *life* of a server lasts from one start of its process to the end of this process. A *try* is one attempt to
# handle a letter. If a handler raises an exception, the try is counted in memory
# (:mod:`antecede.server.driver`). A handler can also end the process, by ``os._exit``, a fault in a C
# library, lack of memory, or a loop that the watchdog ends. Such a handler leaves no exception. So the server writes
# each handler call in progress, with its letter, to shared memory (:mod:`antecede.server.progress`). If a life ends
# uncleanly, the first record of the next life counts one try for the letter whose handler was running. If no handler
# was running, all handler calls in progress were waiting (``await``). Then one try is counted for the letter of each
# of these calls.
#
# A letter with a try that was counted in this way is a **suspect**. It is handed out alone, so that other letters are
# not affected. Only one suspect is handled at a time. So if the process ends again, it is clear which letter is the
# cause.
#
# A handler may run before the log record that contains its letter is durable. If the process then ends, the log does
# not have the letter, and the sender sends it again. A peer sends the letter with its old id. But if a client of this
# server publishes the letter again, the letter gets a new id, and the count for the old id does not apply. So if a
# handler call of an agent is counted, the agent is **careful** in the next life: its letters are handed out one at a
# time, and handled only when they are durable. If the next life also ends during a handler call (of this agent or
# another agent), the agent stays careful for one more life. Without this rule, two agents could alternate without
# end: agent A ends the first life, agent B ends the second life, agent A ends the third life, and so on.


class Tries:
    """Counts how often the process of a server ended while a letter was being handled. Also contains the suspects and
    the careful agents (see the module)."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """Letter → how often the process ended during the handler call for this letter. A key is ``LETTER-ID AGENT``.
        Some of these letters may not have arrived again since the process ended."""
        self.life = 0
        """The number of the last life (run of the server's process) whose unclean end was counted. The server uses this
        number to count each end only once."""
        self.careful: set[str] = set()
        """The agents that are careful in this life (run of the server's process). The letters of a careful agent are
        handed out one at a time. Each letter is handled only when it is durable."""
        self._before: set[str] = set()
        """The agents that were careful in the last life (see ``careful``). If that life ended during handler calls,
        these agents are careful in this life, too."""
        self.letters: dict[str, dict[str, None]] = {}
        """For each agent, the ids of its letters that are suspects. A suspect is handed out alone."""

    def ended(self, life: int, calls: Iterable[tuple[str, str]]) -> None:
        """Record that a life (run of the server's process) ended uncleanly. For each of these handler calls, count one
        try of its letter. ``life``: the number of this life. ``calls``: pairs (agent, id of the letter)."""
        self.life = life
        self.careful |= self._before
        for agent, letter in calls:
            key = f"{letter} {agent}"
            self.counts[key] = self.counts.pop(key, 0) + 1
            self.careful.add(agent)
            self.suspect(agent, letter)
        while len(self.counts) > limits.tried_letters_max:
            # Most of these letters never came again: their senders gave them other ids.
            letter, _, agent = next(iter(self.counts)).partition(" ")
            self.settled(agent, letter)

    def resumed(self) -> None:
        """Record that a new life (run of the server's process) begins. At first, no agent is careful in the new life.
        If the last life ended during handler calls, ``ended`` is called next and makes agents careful."""
        self._before, self.careful = self.careful, set()

    def suspect(self, agent: str, letter: str) -> None:
        """Make this letter a suspect: from now on, it is handed out alone."""
        self.letters.setdefault(agent, {})[letter] = None

    def settled(self, agent: str, letter: str) -> None:
        """Record that a letter was handled or is dead, so it is not a suspect any longer."""
        letters = self.letters.get(agent)
        if letters is not None and letter in letters:
            del letters[letter]
            self.counts.pop(f"{letter} {agent}", None)
            if not letters:
                del self.letters[agent]

    def of(self, agent: str, letter: str) -> int:
        """Return how often the process ended during the handler call for this letter."""
        return self.counts.get(f"{letter} {agent}", 0)

    def is_suspect(self, agent: str, letter: str) -> bool:
        """Return whether this letter is a suspect, that is, whether it is handed out alone."""
        return letter in self.letters.get(agent, ())

    def is_careful(self, agent: str, letter: str) -> bool:
        """Return whether this letter must be durable before it is handled."""
        return agent in self.careful or self.is_suspect(agent, letter)

    def together(self, agent: str, mailbox: deque[Letter]) -> int:
        """Return how many letters from the head of this agent's mailbox may be handed out in one batch."""
        if agent in self.careful:
            return 1
        suspects = self.letters.get(agent)
        if suspects is None:
            return limits.reactions_together_max
        for place, letter in enumerate(islice(mailbox, limits.reactions_together_max)):
            if letter.id in suspects:
                return max(place, 1)
        return limits.reactions_together_max

    def load(self, counts: dict[str, int], life: int, careful: Iterable[str]) -> None:
        """Load the durable state. The parameters are the saved values of the attributes with the same names."""
        self.counts, self.life, self.careful = dict(counts), life, set(careful)
        for key in self.counts:
            letter, _, agent = key.partition(" ")
            self.suspect(agent, letter)
