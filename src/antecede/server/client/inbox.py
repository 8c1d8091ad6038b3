"""The letters that a client receives, without I/O: when each letter is handled, tried again, given up and reported.

Letters are handled one after the other, in their sequence. Each letter is reported to the server as done **after its
handler has returned**. Until a letter is reported, the server keeps it, and hands it out again on the next connection.
If a letter that was already handled comes again, it is reported as done again, and its handler is not called.

A handler that fails is called again after a pause, which grows with each try. Meanwhile later letters wait. If the last
try fails, the letter is reported as dead, with the reason. An answer to one of the client's own questions needs no
handler. The program gets the answer after all earlier letters are handled.

While ``waiting`` is true, the owner of the inbox (a bus, or a simulated client) calls ``next``:

    letter = inbox.next(now)

If ``letter`` is None, the owner waits until ``deadline``, or for more letters. Otherwise the owner calls the handler of
the letter, and then reports the result by one of these calls:

    inbox.handled()
    inbox.failed(reason, now)
    inbox.dead(reason)
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from antecede import limits
from antecede.channel.letters import Letter
from antecede.server.connections import is_last_try, pause_after


class Inbox:
    """The letters that one client receives, on all its connections, one connection after the other."""

    def __init__(
        self,
        answered: Callable[[Letter], None],
        done: Callable[[list[str], str], None],
        begins: Callable[[str], None],
    ) -> None:
        """``answered``: a function that handles an answer. ``done``: a function that reports the ids of letters to the
        server as done. If the last of these letters is dead (given up), the second argument of ``done`` is the reason.
        Otherwise this argument is empty. ``begins``: a function that is called with a letter's id before a handler
        gets the letter."""
        self._answered = answered
        self._done = done
        self._begins = begins
        self._letters: deque[Letter] = deque()
        """Letters that were delivered on this connection and are not yet handled."""
        self._reported: list[str] = []
        """The ids of the letters that were handled on this connection and must still be reported as done."""
        self._handled: dict[str, str] = {}
        """The id of a letter that was handled recently → the reason why the letter is dead, or an empty text if it is
        not dead."""
        self._current: Letter | None = None
        """The letter whose handler runs, or will be called again after a pause. It is None if there is no such
        letter."""
        self._outdated = False
        """Whether the current letter arrived on an earlier connection, not on the present one."""
        self._tries = 0
        self._try_at = 0.0
        self.running = False
        """Whether a handler runs."""

    def begin(self) -> None:
        """Record that a new connection has begun. Forget the letters that still wait, and the ids that were not yet
        reported as done. The server sends all these letters again."""
        self._letters.clear()
        self._reported.clear()
        self._outdated = True

    def delivered(self, letters: list[Letter]) -> None:
        """Add letters that have arrived. If all earlier letters have been handled, the answers at the beginning of
        ``letters`` are handled immediately."""
        if not self._letters and self._current is None:
            answers = 0
            while answers < len(letters) and letters[answers].answers:
                self._answered(letters[answers])
                answers += 1
            if answers:
                self._done([letter.id for letter in letters[:answers]], "")
                letters = letters[answers:]
        self._letters.extend(letters)

    @property
    def waiting(self) -> bool:
        """Whether there is a letter that must still be handled, or must still be reported as handled."""
        return bool(self._letters or self._current or self._reported)

    def next(self, now: float) -> Letter | None:
        """Return the letter whose handler must be called now. Return None if no letter needs a handler, or if the next
        letter must wait until it is tried again."""
        if self._current is None:
            self._current = self._take()
        if self._current is None or now < self._try_at:
            self._report("")
            return None
        self.running = True
        self._begins(self._current.id)
        return self._current

    def deadline(self) -> float | None:
        """Return the time at which the handler of the current letter must be called again. Return None if a handler
        runs, or if there is no current letter."""
        return None if self._current is None or self.running else self._try_at

    def handled(self) -> None:
        """Record that the handler has returned."""
        self.dead("")

    def failed(self, reason: str, now: float) -> None:
        """Record that the handler failed. If this was the last try, the letter is dead. Otherwise the handler is called
        again after a pause."""
        self._tries += 1
        if is_last_try(self._tries):
            self.dead(reason)
        else:
            self.running = False
            self._try_at = now + pause_after(self._tries)

    def dead(self, reason: str) -> None:
        """End the handling of the current letter. If ``reason`` is empty, the letter was handled. Otherwise the letter
        is dead for this reason."""
        letter = self._current
        assert letter is not None
        self._current, self.running = None, False
        self._settle(letter, reason, self._outdated)

    def _take(self) -> Letter | None:
        """Remove letters from the queue until one of them needs a handler, and return this letter. Return None if no
        letter in the queue needs a handler. The other removed letters are answers, or were already handled. This method
        processes them."""
        self._outdated, self._tries, self._try_at = False, 0, 0.0
        while self._letters:
            letter = self._letters.popleft()
            if letter.id in self._handled:
                self._settle(letter, self._handled[letter.id], outdated=False)
            elif letter.answers:
                self._begins(letter.id)
                self._answered(letter)
                self._settle(letter, "", outdated=False)
            else:
                return letter
        return None

    def _settle(self, letter: Letter, dead: str, outdated: bool) -> None:
        self._handled[letter.id] = dead
        if len(self._handled) > _handled_max:
            del self._handled[next(iter(self._handled))]
        if not outdated:
            # Otherwise the letter comes again on the next connection, and is reported then.
            self._reported.append(letter.id)
            if dead or len(self._reported) >= _done_together:
                self._report(dead)

    def _report(self, dead: str) -> None:
        if self._reported:
            reported, self._reported = self._reported, []
            self._done(reported, dead)


_done_together: Final = 256
_handled_max: Final = 4 * limits.reactions_together_max
