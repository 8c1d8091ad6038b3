"""Causal dead-lettering: letters that follow from a dead letter wait until an operator decides about the dead letter.

Letter B *follows from* letter A if B depends causally on A. Suppose that a letter dies at an agent with the setting
``dead_follow = "hold"``. Then the agent's letters that follow from the dead letter are held: both the letters that
already wait, and the letters that come later. All other letters are handled meanwhile. An operator buries (deletes)
the dead letter, or sends it again. Then the held letters are handed out. If the dead letter was sent again, it is
handed out before them.

**Stamps decide** whether a letter may follow from another. In a domain, letters travel in *trains*: a train is one
message that contains several letters (:mod:`antecede.channel.letters`). The stamp of a train shows the train's past
(:class:`Past`): the messages on which the train depends. For each server of the domain, the stamp contains the number
of the newest such message from this server. The domains form a forest, so there is only one route between two servers.
Suppose that a letter follows from a dead letter, and that both came through the same domain. Then the train of the
letter depends on the train of the dead letter, and the stamps show this dependency. But stamps show dependencies
between the messages of servers, not between the letters of agents. So they show only that a letter *may* follow from
the dead letter. Every such letter is held. In three cases the stamps show nothing, and the letter is also held.
(1) The letter or the dead letter was sent on this server. (2) The two letters came through different domains. (3) The
domain has an order without such stamps. A letter that may follow from a *held* letter is also held, because it must not
overtake the held letter.

A letter that the agent sent to itself does not follow from the dead letter. (The agent sends letters only when it
reacts to a letter, and it did not react to the dead letter.) Such a letter is held in two cases only. (1) Another
letter from the agent to itself is dead or held. (2) The letter is a multicast, and one of the dead or held letters has
no stamp. Timers are not messages and are never held.

A letter that an operator sent again is never held, because the operator has decided about it. Such a letter does not
follow from any held letter, so it cannot overtake a letter on which it depends. This is true because a special client,
named ``dead-letters``, publishes all such letters, and receives nothing. So such a letter follows only from letters
that were sent again earlier, and these are never held.
"""

from collections.abc import Iterable

import msgspec

from antecede.channel.letters import Letter, Past


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

    agents: list[str] = []
    pasts: dict[str, Past] = {}
    blocks: dict[str, list[str]] = {}
    held: dict[str, list[Letter]] = {}
    numbers: dict[str, int] = {}
    newest: int = 0
    since: dict[str, int] = {}


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
