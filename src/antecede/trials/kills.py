"""Kill -9 under load: random servers, routers too, at random moments, several at a time, also while they recover.

A few of the victims are stopped gracefully instead: a snapshot is written, and clients are refused for a moment.
"""

from antecede.trials.rounds import Round


class Kills(Round):
    """A round of kills."""

    async def strike(self, victim: str) -> None:
        await self.end(victim, self.random.random() < _graceful)


_graceful = 0.1
