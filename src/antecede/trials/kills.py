"""Kill -9 under load: random servers, routers too, at random moments, several at a time, also while they recover.

A few of the victims are stopped gracefully instead: a snapshot is written, and clients are refused for a moment.
"""

import asyncio

from antecede.trials.rounds import Round
from antecede.walks.processes import STOPPED


class Kills(Round):
    """A round of kills."""

    async def strike(self, victim: str) -> None:
        if self.random.random() < _graceful:
            code = await asyncio.to_thread(self.processes.stop, victim)
            if code not in STOPPED:
                self.found.append(f"{victim} stopped with exit code {code}")
            self.faults["stops"] += 1
        else:
            self.processes.kill(victim)
            self.faults["kills"] += 1
        self.lost(victim)


_graceful = 0.1
