"""Agents whose handlers end their process, or never return. A word says how."""

import asyncio
import ctypes
import os
import re
import resource
import signal
import sys
import time
from contextlib import suppress

from live_agents import Counted, Ping, Pong, Report, Word

from antecede import Agent, Context


def _fault() -> None:
    ctypes.string_at(0)


def _hog() -> None:
    # The kernel kills a process that takes all memory; here a limit stands for the machine's.
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    hoard = []
    try:
        while True:
            hoard.append(bytearray(1 << 26))
    except MemoryError:
        os.kill(os.getpid(), signal.SIGKILL)


def _loop() -> None:
    while True:
        pass


def _hold() -> None:
    # It backtracks for years, and never releases the interpreter.
    re.match(r"(a*)*b", "a" * 64)


def _block() -> None:
    time.sleep(3600)


def _leave() -> None:
    # The process that it leaves behind must neither keep the connection of the worker open, nor outlive it.
    number = os.fork()
    if number == 0:
        time.sleep(3600)
    with open("left.pids", "a") as left:
        left.write(f"{number}\n")
    os._exit(7)


def _copy() -> None:
    # The copy returns from the handler as well. It must not answer in the name of the worker.
    os.fork()


def _close() -> None:
    sys.stdin.close()
    with suppress(OSError):
        os.close(0)


HOWS = {
    "exit": lambda: os._exit(3),
    "fault": _fault,
    "hog": _hog,
    "loop": _loop,
    "hold": _hold,
    "block": _block,
    "leave": _leave,
    "copy": _copy,
    "close": _close,
}


class Deadly(Agent):
    """Does what a word says, and counts pings."""

    count: int = 0

    def on_word(self, word: Word, ctx: Context) -> None:
        with open(f"{word.text}.calls", "a") as calls:
            calls.write(f"{os.getpid()}\n")
        HOWS[word.text]()

    def on_ping(self, ping: Ping, ctx: Context) -> None:
        self.count += 1

    def on_report(self, report: Report, ctx: Context) -> None:
        ctx.reply(Counted(count=self.count, twice=0, late=0, last=0))


class Parent(Agent):
    """Creates an agent, sends to it, and counts."""

    count: int = 0

    def on_ping(self, ping: Ping, ctx: Context) -> None:
        self.count += 1
        child = ctx.create(f"child{ping.number}", Deadly())
        ctx.send(child, ping)
        ctx.reply(Pong(number=os.getpid()))

    def on_word(self, word: Word, ctx: Context) -> None:
        raise ValueError(word.text)


class Patient(Agent):
    """Waits without blocking the others."""

    async def on_word(self, word: Word, ctx: Context) -> None:
        with open("patient.calls", "a") as calls:
            calls.write(f"{word.text}\n")
        await asyncio.sleep(3600)

    def on_ping(self, ping: Ping, ctx: Context) -> None:
        ctx.reply(Pong(number=ping.number))
