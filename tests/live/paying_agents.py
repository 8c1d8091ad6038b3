"""Agents with effects outside: each payment is a line with its key in a file, and the first one ends the server."""

import os
import signal
from pathlib import Path

from live_agents import Ping, Pong

from antecede import Agent, Context


class Payer(Agent):
    """Pays in a plain handler."""

    def on_ping(self, ping: Ping, ctx: Context) -> None:
        _pay(ctx, os.getpid())
        ctx.reply(Pong(number=ping.number))


class Slowly(Agent):
    """Pays in an asynchronous handler."""

    async def on_ping(self, ping: Ping, ctx: Context) -> None:
        _pay(ctx, os.getpid())
        ctx.reply(Pong(number=ping.number))


class Apart(Agent):
    """Pays in a worker process."""

    def on_ping(self, ping: Ping, ctx: Context) -> None:
        _pay(ctx, os.getppid())
        ctx.reply(Pong(number=ping.number))


def _pay(ctx: Context, server: int) -> None:
    file = Path(f"{ctx.agent}.keys")
    with file.open("a") as keys:
        keys.write(f"{ctx.reaction_id}\n")
    if len(file.read_text().splitlines()) == 1:
        os.kill(server, signal.SIGKILL)
        signal.pause()
