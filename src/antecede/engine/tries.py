"""Counts how often a handler ended the server's process. The counts survive the crash.

A *life* of a server lasts from one start of its process to the end of this process. A *try* is one attempt to handle a
letter. If a handler raises an exception, the try is counted in memory (:mod:`antecede.server.driver.retries`). A
handler can also end the process, by ``os._exit``, a fault in a C library, lack of memory, or a loop that the watchdog
ends. Such a handler leaves no exception. So the server writes each handler call in progress, with its letter, to shared
memory (:mod:`antecede.server.progress`). If a life ends uncleanly, the first record of the next life counts one try for
the letter whose handler was running. If no handler was running, all handler calls in progress were waiting (``await``).
Then one try is counted for the letter of each of these calls.

A letter with a try that was counted in this way is a **suspect**. It is handed out alone, so that other letters are not
affected. Only one suspect is handled at a time. So if the process ends again, it is clear which letter is the cause.

A handler may run before the log record that contains its letter is durable. If the process then ends, the log does not
have the letter, and the sender sends it again. A peer sends the letter with its old id. But if a client of this server
publishes the letter again, the letter gets a new id, and the count for the old id does not apply. So if a handler call
of an agent is counted, the agent is **careful** in the next life: its letters are handed out one at a time, and handled
only when they are durable. If the next life also ends during a handler call (of this agent or another agent), the agent
stays careful for one more life. Without this rule, two agents could alternate without end: agent A ends the first life,
agent B ends the second life, agent A ends the third life, and so on.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice

from antecede import limits
from antecede.channel.letters import Letter


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
