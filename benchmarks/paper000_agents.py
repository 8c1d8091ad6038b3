"""The agents of ``./run bench paper000`` (Laumay et al. §6.1).

Every server has one agent that answers each ping with a pong. The main agent sends pings to one or to all of these
agents, and measures the time until all answers are back.

A round begins when the handler of the main agent sends the pings. It ends when the main agent handles the last answer.
The times are kept only in memory, so a run that is interrupted cannot be continued.
"""

from time import perf_counter

from antecede import Agent, Context, Notification


class Begin(Notification):
    """The request to the main agent to measure rounds, and to report the times to the sender of the request. ``to``:
    the agents that get the pings. ``rounds``: the number of rounds."""

    to: list[str]
    rounds: int


class Ping(Notification):
    """The message that the main agent sends in a round."""

    number: int


class Pong(Notification):
    """The answer to a ping."""

    number: int


class Measured(Notification):
    """The report of the main agent: the duration of each round, in seconds."""

    seconds: list[float]


class Echo(Agent):
    """An agent that answers each ping with a pong."""

    def on_ping(self, ping: Ping, ctx: Context) -> None:
        ctx.reply(Pong(number=ping.number))


class _Run:
    """The state of the measurement that is in progress."""

    def __init__(self, begin: Begin, asker: str) -> None:
        self.to = begin.to
        self.left = begin.rounds
        self.asker = asker
        self.number = 0
        self.awaited = 0
        self.started = 0.0
        self.seconds: list[float] = []

    def send(self, ctx: Context) -> None:
        """Begin the next round."""
        self.number += 1
        self.left -= 1
        self.awaited = len(self.to)
        self.started = perf_counter()
        ctx.multicast(self.to, Ping(number=self.number))


class Main(Agent):
    """The agent that measures rounds. In each round it sends a ping to the given agents. The round ends when all of
    them have answered."""

    def on_begin(self, begin: Begin, ctx: Context) -> None:
        _runs[:] = [_Run(begin, ctx.sender)]
        _runs[0].send(ctx)

    def on_pong(self, pong: Pong, ctx: Context) -> None:
        run = _runs[0] if _runs else None
        if run is None or pong.number != run.number:
            return
        run.awaited -= 1
        if run.awaited:
            return
        run.seconds.append(perf_counter() - run.started)
        if run.left:
            run.send(ctx)
        else:
            ctx.send(run.asker, Measured(seconds=run.seconds))
            _runs.clear()


_runs: list[_Run] = []
