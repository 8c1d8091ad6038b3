"""Agents whose handlers last longer than the server wants, or leave something behind."""

import asyncio
import os
import time
from contextlib import suppress

from live_agents import Counted, Parcel, Ping, Report, Word

from antecede import Agent, Context


class Raiser(Agent):
    """Cannot bear parcels."""

    def on_parcel(self, parcel: Parcel, ctx: Context) -> None:
        raise ValueError("too heavy")

    def on_ping(self, ping: Ping, ctx: Context) -> None:
        ctx.reply(ping)


class Circular(Agent):
    """Leaves a reference cycle with each parcel."""

    def on_parcel(self, parcel: Parcel, ctx: Context) -> None:
        cycle: list[object] = [parcel]
        cycle.append(cycle)

    def on_ping(self, ping: Ping, ctx: Context) -> None:
        ctx.reply(ping)


class Deaf(Agent):
    """Goes on, whoever cancels it."""

    async def on_ping(self, ping: Ping, ctx: Context) -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.2)


class Forking(Agent):
    """Forks; both processes return from the handler, or the copy stays for a while."""

    count: int = 0

    def on_ping(self, ping: Ping, ctx: Context) -> None:
        self.count += 1
        os.fork()
        ctx.reply(ping)

    def on_word(self, word: Word, ctx: Context) -> None:
        pid = os.fork()
        if not pid:
            time.sleep(60)
            os._exit(0)
        with open("copy.pid", "w") as file:
            file.write(str(pid))
        ctx.reply(word)

    def on_report(self, report: Report, ctx: Context) -> None:
        ctx.reply(Counted(count=self.count, twice=0, late=0, last=0))


class AsyncForking(Forking):
    async def on_ping(self, ping: Ping, ctx: Context) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        Forking.on_ping(self, ping, ctx)
        await asyncio.sleep(0)


class Late(Agent):
    """Sends after its reaction has ended, and tells what came of it."""

    async def on_word(self, word: Word, ctx: Context) -> None:
        self._task = asyncio.create_task(_send_later(word, ctx))


async def _send_later(word: Word, ctx: Context) -> None:
    await asyncio.sleep(0.05)
    raised = "nothing"
    try:
        ctx.send("nobody", word)
    except Exception as error:
        raised = getattr(error, "code", type(error).__name__)
    with open("late.txt", "w") as file:
        file.write(raised)


class Nobody(Agent):
    def on_word(self, word: Word, ctx: Context) -> None: ...


class Creator(Agent):
    """Creates an agent of the given name."""

    def on_word(self, word: Word, ctx: Context) -> None:
        ctx.create(word.text, Nobody())
        ctx.reply(word)
