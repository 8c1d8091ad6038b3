"""Eight agents on the eight servers of snowflake.toml pass tokens to each other, a million messages between all pairs.

    antecede up examples/snowflake.toml --data snow --trace        # in one terminal, until Ctrl-C
    python examples/snowflake.py --messages 1000000                # in another
    antecede verify snow                                           # causal, 0 undelivered

Every agent numbers its messages to each other agent, and checks the numbers that it receives. So the application itself
also detects lost, duplicated and reordered messages, whatever happens to the servers.
"""

import argparse
import asyncio
import sys
import time

from msgspec import field

import antecede
from antecede import Agent, AntecedeError, Context, Notification

names = [f"flake{number}" for number in range(1, 9)]


class Start(Notification):
    tokens: list[int]
    """For each token, the number of messages that it causes."""


class Token(Notification):
    number: int
    """Its number among the messages from its sender to its receiver, from 1."""
    left: int


class Report(Notification):
    pass


class Seen(Notification):
    received: dict[str, int]
    wrong: int


class Flake(Agent):
    turn: int = 0
    sent: dict[str, int] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)
    wrong: int = 0

    def on_start(self, start: Start, ctx: Context) -> None:
        for left in start.tokens:
            self._pass_on(left, ctx)

    def on_token(self, token: Token, ctx: Context) -> None:
        expected = self.received.get(ctx.sender, 0) + 1
        self.wrong += token.number != expected
        self.received[ctx.sender] = token.number
        self._pass_on(token.left, ctx)

    def on_report(self, report: Report, ctx: Context) -> None:
        ctx.reply(Seen(received=self.received, wrong=self.wrong))

    def _pass_on(self, left: int, ctx: Context) -> None:
        if not left:
            return
        others = [name for name in names if name != ctx.agent]
        self.turn += 1
        to = others[self.turn % len(others)]
        self.sent[to] = self.sent.get(to, 0) + 1
        ctx.send(to, Token(number=self.sent[to], left=left - 1))


async def main(address: str, messages: int, in_flight: int) -> int:
    """Start the tokens, watch them, and print the result; return the exit code."""
    async with antecede.connect(address, name="snowflake") as bus:
        before = await _seen(bus)
        already = sum(sum(seen.received.values()) for seen in before.values())
        count = max(len(names), min(in_flight, messages))
        lives = [messages // count + (k < messages % count) for k in range(count)]
        started = time.monotonic()
        for k, name in enumerate(names):
            await bus.send(name, Start(tokens=lives[k :: len(names)]))
        arrived = 0
        while arrived < messages:
            await asyncio.sleep(1.0)
            seen = await _seen(bus)
            arrived = sum(sum(one.received.values()) for one in seen.values()) - already
            seconds = time.monotonic() - started
            print(f"{arrived:>12,} of {messages:,} messages, {arrived / seconds:,.0f}/s", file=sys.stderr)
    pairs = sum(len(one.received) for one in seen.values())
    wrong = sum(one.wrong for one in seen.values())
    rate = f"{arrived:,} messages between {pairs} pairs in {seconds:.1f} s, {arrived / seconds:,.0f}/s"
    print(f"{rate}: {wrong} lost, duplicated or out of order")
    return 0 if arrived == messages and not wrong else 1


async def _seen(bus: antecede.Bus) -> dict[str, Seen]:
    """Return what every agent has received so far."""
    answers = [bus.ask(name, Report(), expect=Seen, timeout=60) for name in names]
    return dict(zip(names, await asyncio.gather(*answers), strict=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--in-flight", type=int, default=2_000, help="number of messages in transit at a time")
    parser.add_argument("--server", default="tcp://127.0.0.1:7201", help="the server to start from")
    given = parser.parse_args()
    try:
        sys.exit(asyncio.run(main(given.server, given.messages, given.in_flight)))
    except AntecedeError as error:
        sys.exit(f"snowflake: {error}")
