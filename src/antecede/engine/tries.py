"""Tries that survive a crash: letters whose handlers were in progress when the process ended.

An exception of a handler is counted in memory (:mod:`antecede.server.driver.retries`). A handler that ends the process
(``os._exit``, a fault in a C library, lack of memory, a loop that the watchdog ends) leaves no exception. So each
handler call in progress is named in shared memory (:mod:`antecede.server.progress`), with its letter. After an unclean
end, the first record of the next life counts one try for each of these letters, and for no other letter.

Such a letter is a **suspect**: it is handed out alone, so that other letters are not affected, and only one suspect
runs at a time, so that the next unclean end shows which letter is the cause.

A handler may run before the record that has its letter is durable. If the process then ends, the letter comes again:
from a peer under its old id, from a client of this server under a new one. So an agent whose call was in progress at an
unclean end is **careful** in the next life: its letters are handed out one at a time, and handled only when they are
durable. It stays careful as long as each life ends during a call of any agent: otherwise two agents could end the
process alternately.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice

from antecede import limits
from antecede.channel.letters import Letter


class Tries:
    """The suspects of one server."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """How often the process ended during a call, by letter and agent. It is possible that the letter has not come
        again yet."""
        self.life = 0
        """The life whose unclean end was counted last, so that it is not counted twice."""
        self.careful: set[str] = set()
        """The agents that are careful in this life."""
        self._before: set[str] = set()
        """The careful agents of the last life, while a new life begins."""
        self.letters: dict[str, dict[str, None]] = {}
        """For each agent the suspects, which run alone."""

    def ended(self, life: int, calls: Iterable[tuple[str, str]]) -> None:
        """Record that a life ended while these calls, (agent, letter), were in progress."""
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
        """Record that a life begins. No agent is careful in it, unless ``ended`` reports that the last life ended
        during calls."""
        self._before, self.careful = self.careful, set()

    def suspect(self, agent: str, letter: str) -> None:
        """Hand out this letter alone from now on."""
        self.letters.setdefault(agent, {})[letter] = None

    def settled(self, agent: str, letter: str) -> None:
        """Record that a letter was handled, or is dead."""
        letters = self.letters.get(agent)
        if letters is not None and letter in letters:
            del letters[letter]
            self.counts.pop(f"{letter} {agent}", None)
            if not letters:
                del self.letters[agent]

    def of(self, agent: str, letter: str) -> int:
        """Return how often the process ended during a call for this letter."""
        return self.counts.get(f"{letter} {agent}", 0)

    def is_suspect(self, agent: str, letter: str) -> bool:
        """Return whether this letter is a suspect, which is handled alone."""
        return letter in self.letters.get(agent, ())

    def is_careful(self, agent: str, letter: str) -> bool:
        """Return whether this letter is handled only when it is durable."""
        return agent in self.careful or self.is_suspect(agent, letter)

    def together(self, agent: str, mailbox: deque[Letter]) -> int:
        """Return how many letters of this agent may be handed out in one batch."""
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
        """Load the durable state."""
        self.counts, self.life, self.careful = dict(counts), life, set(careful)
        for key in self.counts:
            letter, _, agent = key.partition(" ")
            self.suspect(agent, letter)
