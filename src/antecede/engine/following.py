"""Causal dead-lettering: letters that follow from a dead letter wait until an operator has decided about it.

If a letter dies at an agent with ``dead_follow = "hold"``, letters to this agent that follow from it (that is, depend
on it) are held: those that wait already, and those that come later. An operator buries the dead letter, or sends it
again; then the held letters are handed out, after the letter that was sent again. Letters that do not follow from it
are handled meanwhile.

**Stamps decide** whether a letter follows from another. A letter that came through a domain has the past of its train
(:class:`Past`): for each member the newest of its messages that the train follows from. Routes are unique in a forest.
So if a letter follows from a dead letter, its train follows from the train of the dead letter, or it came through
another domain. Stamps are about servers, not about agents. So they can only show that a letter *may* follow; then it is
held. A letter is also held if the stamps cannot decide: it was sent on this server, it came through another domain than
the dead letter, or the order has no such stamps. A letter that may follow from a *held* letter is held as well, so
order is kept.

A letter from the agent itself does not follow, because the agent did not react to the dead letter. It is held only if
another letter from the agent itself is dead or held, or if it is a multicast and the stamps cannot decide. Timers are
not messages and are never held. A letter that an operator sent again is never held either, because the operator has
decided. It names its first sender, but the client that publishes it is ``dead-letters``, and this client receives
nothing. So the letter follows only from letters that were sent again earlier. If one of these were held, later ones
would overtake it.
"""

from collections.abc import Iterable

import msgspec

from antecede.channel.letters import Letter, Past


class _Barrier(msgspec.Struct):
    """The properties of an agent's dead and held letters with which later letters are compared."""

    least: dict[tuple[str, int], int]
    """For each domain and member: the number of the first message that carried one of the letters."""
    sources: set[str]
    everything: bool = False
    """Whether one of the letters has no stamp, so that every later letter may follow from it."""


class SavedFollowing(msgspec.Struct, frozen=True, array_like=True):
    """The durable state of :class:`Following`; see there."""

    agents: list[str] = []
    pasts: dict[str, Past] = {}
    blocks: dict[str, list[str]] = {}
    held: dict[str, list[Letter]] = {}
    numbers: dict[str, int] = {}
    newest: int = 0
    since: dict[str, int] = {}


class Following:
    """The held letters of one server."""

    def __init__(self) -> None:
        self.agents: set[str] = set()
        """Agents with ``dead_follow = "hold"``."""
        self.pasts: dict[str, Past] = {}
        """The past of each letter that waits, is held or is dead at one of these agents, by letter and agent."""
        self.blocks: dict[str, dict[str, Letter]] = {}
        """For each agent the dead letters about which an operator has to decide, by key."""
        self.held: dict[str, list[Letter]] = {}
        """For each agent its held letters, in the sequence in which they came."""
        self.numbers: dict[str, int] = {}
        """The sequence in which the letters of these agents came, by letter and agent."""
        self.newest = 0
        self.since: dict[str, int] = {}
        """The server time from which each held letter of a mailbox with a limit of time waits, by letter and agent."""
        self._barriers: dict[str, _Barrier] = {}

    def came(self, agent: str, letter: Letter) -> None:
        """Number a letter that came for one of the agents. A dead letter that was sent again keeps its number, so that
        letters that followed from it still follow."""
        replayed = [key for key, dead in self.blocks.get(agent, {}).items() if dead.id == letter.replays]
        if replayed:
            self.numbers[f"{letter.id} {agent}"] = self.numbers.get(replayed[0], 0)
        else:
            self.newest += 1
            self.numbers[f"{letter.id} {agent}"] = self.newest

    def gone(self, key: str) -> None:
        """Forget a letter that no longer waits, and is neither held nor dead."""
        self.pasts.pop(key, None)
        self.numbers.pop(key, None)
        self.since.pop(key, None)

    def keep(self, domains: set[str]) -> None:
        """Forget the pasts of letters that came through domains outside ``domains``, because such domains begin again.
        A letter without a past counts as one that follows."""
        for key in [key for key, past in self.pasts.items() if past.domain not in domains]:
            del self.pasts[key]
        self._barriers.clear()

    def seen(self, agent: str, clock_ms: int) -> None:
        """Record ``clock_ms`` as the time from which the held letters of an agent wait, if no time is recorded for them
        yet. If the clock was set back, the other held letters wait from this time on, too."""
        for letter in self.held.get(agent, ()):
            key = f"{letter.id} {agent}"
            self.since[key] = min(self.since.get(key, clock_ms), clock_ms)

    def is_held(self, agent: str, letter: str) -> bool:
        """Return whether this is the first held letter of an agent."""
        held = self.held.get(agent)
        return held is not None and held[0].id == letter

    def expire(self, agent: str) -> Letter:
        """Remove the first held letter of an agent, which is now dead, and return it."""
        held = self.held[agent]
        letter = held.pop(0)
        if not held:
            del self.held[agent]
        self._barriers.pop(agent, None)
        self.gone(f"{letter.id} {agent}")
        return letter

    def block(self, agent: str, key: str, letter: Letter, waiting: Iterable[Letter]) -> list[Letter]:
        """From now on, hold letters that follow from this one. Of the letters that wait, return those that need not be
        held."""
        self.blocks.setdefault(agent, {})[key] = letter
        return self._sift(agent, list(waiting), self.held.pop(agent, []))

    def unblock(self, agent: str, key: str) -> list[Letter]:
        """Record that an operator has decided about a dead letter; return the letters that may now be handled."""
        blocks = self.blocks.get(agent)
        if blocks is None or blocks.pop(key, None) is None:
            return []
        self.gone(key)
        if not blocks:
            del self.blocks[agent]
        return self._sift(agent, self.held.pop(agent, []), [])

    def _sift(self, agent: str, letters: list[Letter], held: list[Letter]) -> list[Letter]:
        """Return the letters that need not be held, in their sequence. Each is compared only with dead and held letters
        that came before it: it cannot follow from later ones."""
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
        """Hold a letter that has just come, if it may follow from a dead or a held one; return whether it is held."""
        if agent not in self.blocks or not self._may_follow(agent, letter, self._barrier(agent)):
            return False
        self.held.setdefault(agent, []).append(letter)
        self._add(self._barrier(agent), agent, letter)
        return True

    def undecided(self, agent: str) -> int:
        """Return how many of an agent's held letters are not from the sender of a dead letter. These may follow from a
        dead letter, or not."""
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
        """Return how many letters are held."""
        return sum(map(len, self.held.values()))

    def dump(self) -> SavedFollowing:
        """Return the durable state."""
        blocks = {agent: list(keys) for agent, keys in self.blocks.items()}
        held = {agent: list(letters) for agent, letters in self.held.items()}
        numbers = (dict(self.numbers), self.newest, dict(self.since))
        return SavedFollowing(sorted(self.agents), dict(self.pasts), blocks, held, *numbers)

    def load(self, saved: SavedFollowing, letters: dict[str, Letter]) -> None:
        """Load the durable state. ``letters``: the dead letters, by key."""
        self.agents, self.pasts = set(saved.agents), dict(saved.pasts)
        self.blocks = {agent: {key: letters[key] for key in keys} for agent, keys in saved.blocks.items()}
        self.held = {agent: list(held) for agent, held in saved.held.items()}
        self.numbers, self.newest, self.since = dict(saved.numbers), saved.newest, dict(saved.since)


def _is_timer(letter: Letter) -> bool:
    return letter.id.rpartition(".")[2].startswith("t")
