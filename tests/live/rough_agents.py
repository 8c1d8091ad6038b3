"""Agents and objects that fail in every way that Python knows. What an agent does is what its name says."""

import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
from live_agents import Counted, Ping, Report, Word

from antecede import Agent, Context, ReplicatedObject, operation


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit("not even a text")


def fail(how: str) -> None:
    if how == "exit":
        sys.exit("out of here")
    failures: dict[str, BaseException] = {
        "interrupt": KeyboardInterrupt("stop"),
        "cancel": asyncio.CancelledError("gone"),
        "generator": GeneratorExit("closed"),
        "group": BaseExceptionGroup("several", [ValueError("one"), SystemExit(2)]),
        "mute": Mute(),
        "half": ValueError("half a pair: \ud800"),
    }
    raise failures[how]


HOWS = ("exit", "interrupt", "cancel", "generator", "group", "mute", "half")


class Rough(Agent):
    """Fails as its name says, and counts what it can bear."""

    count: int = 0

    def on_word(self, word: Word, ctx: Context) -> None:
        self.count += 100
        fail(ctx.agent)

    def on_ping(self, ping: Ping, ctx: Context) -> None:
        self.count += 1

    def on_report(self, report: Report, ctx: Context) -> None:
        ctx.reply(Counted(count=self.count, twice=0, late=0, last=0))


class AsyncRough(Rough):
    """The same, after a turn of the event loop."""

    async def on_word(self, word: Word, ctx: Context) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        fail(ctx.agent.removeprefix("async-"))


class Blocking(Agent):
    """Blocks its server until a file is there."""

    def on_word(self, word: Word, ctx: Context) -> None:
        Path(f"{word.text}.began").touch()
        while not Path(word.text).exists():
            time.sleep(0.01)


class Holding(Agent):
    """Answers when a file is there."""

    async def on_ping(self, ping: Ping, ctx: Context) -> None:
        while not Path("go").exists():
            await asyncio.sleep(0.01)
        ctx.reply(ping)


class Item(msgspec.Struct):
    name: str = ""


class BigItem(Item):
    size: int = 0


class Careless(Agent):
    """Assigns what does not fit its fields."""

    number: int = 0
    numbers: list[int] = msgspec.field(default_factory=list)
    item: Item | None = None
    anything: Any = None
    count: int = 0

    def on_word(self, word: Word, ctx: Context) -> None:
        setattr(self, *_assigned[ctx.agent])

    def on_ping(self, ping: Ping, ctx: Context) -> None:
        self.count += 1

    def on_report(self, report: Report, ctx: Context) -> None:
        ctx.reply(Counted(count=self.count, twice=0, late=0, last=0))


_assigned: dict[str, tuple[str, Any]] = {
    "text": ("number", "text"),
    "nested": ("numbers", [1, "two"]),
    "subclass": ("item", BigItem(size=3)),
    "untyped": ("anything", {"key": [Item()]}),
    "lock": ("anything", threading.Lock()),
}


class Register(ReplicatedObject):
    """An object with the same habits."""

    value: int = 0

    @operation(conflicts_with=["assign", "interrupt"])
    def assign(self, value: Any) -> None:
        self.value = value

    @operation(conflicts_with=["interrupt"])
    def interrupt(self) -> None:
        self.value = 1
        raise KeyboardInterrupt("stop")

    @operation(conflicts_with=["assign", "interrupt"])
    def read(self) -> int:
        return self.value
