"""The shared memory of a simulated server. It contains a list of the handler calls in progress.

This memory survives a kill. In the simulation it also survives a power cut, because its file may survive on a real
disk. But after a power cut the computer has another boot id, so the server ignores the calls in the memory. The memory
is written by :class:`antecede.server.progress.Progress`, as in a live server. This module also records which calls were
in progress at each kill. With these records, the simulation checks that the logs count one failed try for each such
call.
"""

from typing import TYPE_CHECKING

import msgspec

from antecede.engine import React
from antecede.engine.host import Outcome
from antecede.errors import AgentError
from antecede.server.progress import Interrupted, Progress, interrupted, size_of
from antecede.store.simulated import PowerCut

if TYPE_CHECKING:
    from antecede.simulator.servers.server import SimulatedServer

Call = tuple[str, str]


class Ended(BaseException):
    """Raised in a handler to simulate that this handler ends its process."""


class End(msgspec.Struct):
    """The end of one life of a server while handler calls were in progress. A *life* is the time from one start of the
    server to the next. Either the server was killed, or one of its handlers ended the process."""

    life: int
    calls: frozenset[Call]
    """The handler calls for which the next life must count a failed try in its log. After a kill, these are all calls
    that were in progress. If a handler ended the process, this is only the call of this handler. A call is a pair: the
    agent, and the letter's id."""
    lost: bool = False
    """Whether a power cut came before the next life could safely record these calls. If so, the log may lack the failed
    tries of these calls."""


class SharedMemory:
    """The shared memory of one server, through all its lives (a life is the time from one start to the next)."""

    def __init__(self) -> None:
        self._content = bytearray()
        self._boot = 1
        self._life = 0
        self.progress: Progress | None = None
        self._calls: dict[int, Call] = {}
        self._struck: tuple[Call, bytes] | None = None
        self._spared: dict[str, str] = {}
        """For each agent, the id of a letter. The agent's handler for this letter has just ended the agent's worker
        process."""
        self.ends: list[End] = []
        self.strikes: dict[str, int] = {}
        """The number of times that the handler of a letter ended the process of a server or a worker. A key is
        ``LETTER-ID AGENT``."""

    def ended(self) -> Interrupted:
        """Return the handler calls that were in progress when the server's process ended. The server reads these calls
        from this memory at its next start."""
        return interrupted(bytes(self._content), str(self._boot))

    def begin(self, life: int) -> Progress:
        """Begin a new life of the server (the time from one start to the next). From now on, this memory contains only
        the handler calls of this life."""
        self._content = bytearray(size_of(1))
        self.progress = Progress(self._content, str(self._boot), life, self._grow)
        self._life = life
        return self.progress

    def _grow(self, size: int) -> bytearray:
        self._content += bytes(size - len(self._content))
        return self._content

    def waits(self, due: React, server: "SimulatedServer") -> int:
        """Record that a handler call has begun, and now waits while other calls run. Return the number of the call's
        slot (its place in the memory)."""
        assert self.progress is not None
        suspects = server.machine.engine.tries
        slot, letter = self.progress.begin(due.agent), due.letters[-1].id
        both = [call for call in (*self._calls.values(), (due.agent, letter)) if suspects.is_suspect(*call)]
        if suspects.is_suspect(due.agent, letter) and len(both) > 1:
            server.world.report_error(
                server.name, f"two letters that may have ended a process run at the same time: {both}"
            )
        self.progress.at(slot, letter)
        self._calls[slot] = (due.agent, letter)
        return slot

    def goes_on(self, slot: int) -> None:
        """Record that the handler call in this slot (its place in the memory) has ended."""
        assert self.progress is not None
        self.progress.end(slot)
        del self._calls[slot]

    def strike(self, agent: str, letter: str) -> None:
        """Raise Ended, to simulate that the handler of this letter ends its process now."""
        key = f"{letter} {agent}"
        self.strikes[key] = self.strikes.get(key, 0) + 1
        self._struck = ((agent, letter), bytes(self._content))
        raise Ended

    def survived(self, due: React, outcome: Outcome, server: "SimulatedServer") -> Outcome:
        """Return the outcome of a batch. If a handler of the batch ended the server's process, raise PowerCut instead.
        If a handler ended only a worker process, return an outcome with an error and without any reactions."""
        struck, self._struck = self._struck, None
        if struck is None:
            return outcome
        call, content = struck
        if due.agent not in server.isolated:
            self._content = bytearray(content)
            self._calls = {0: call}
            server.how = "kill"
            raise PowerCut
        server.host.forget(due.agent)
        self._spared[due.agent] = call[1]
        place = [letter.id for letter in due.letters].index(call[1])
        return Outcome(due.agent, [], None, AgentError("the worker process ended"), place)

    def settled(self, agent: str, server: "SimulatedServer") -> None:
        """Check the count of failed tries of an agent, after the outcome of a batch was reported. If the handler of one
        letter in the batch ended the worker process, a failed try may be counted only for this letter. Report an error
        if a failed try was counted for another letter."""
        letter = self._spared.pop(agent, None)
        tried = server.core.driver.retries.tries.get(agent)
        if letter is not None and tried is not None and tried[0] != letter:
            server.world.report_error(
                server.name, f"{letter} ended the worker process of {agent}, but a try was counted for {tried[0]}"
            )

    def gone(self, how: str) -> None:
        """Record the end of the process. ``how``: ``kill``, ``power`` (a power cut), ``sync`` (a failed disk) or
        ``stop`` (graceful)."""
        calls, progress = frozenset(self._calls.values()), self.progress
        self._calls, self._spared, self.progress = {}, {}, None
        if how == "power":
            self._boot += 1
            for end in self.ends if progress is None else ():
                end.lost = True
        elif how == "kill":
            if calls:
                self.ends.append(End(self._life, calls))
        elif progress is not None:
            progress.clear()

    def replaced(self) -> None:
        """Empty this memory, because its file is in the data directory, which was replaced."""
        self._content = bytearray()
        self.ends.clear()
