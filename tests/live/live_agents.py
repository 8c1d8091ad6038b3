"""The agents of the live tests."""

import asyncio

from antecede import Agent, Context, Notification, Timeout


class Ping(Notification):
    number: int


class Parcel(Notification):
    number: int
    body: bytes


class Pong(Notification):
    number: int


class Report(Notification):
    pass


class Counted(Notification):
    count: int
    twice: int
    late: int
    last: int


class Word(Notification):
    text: str


class Echo(Agent):
    """Answers; it has no state."""

    def on_ping(self, ping: Ping, ctx: Context) -> None:
        ctx.reply(Pong(number=ping.number))


class SlowEcho(Agent):
    """Answers after a while."""

    async def on_ping(self, ping: Ping, ctx: Context) -> None:
        await asyncio.sleep(0.05)
        ctx.reply(Pong(number=ping.number))


class Counter(Agent):
    """Counts pings that were numbered 1, 2, 3 …, and knows which came twice or too late."""

    count: int = 0
    last: int = 0
    twice: int = 0
    late: int = 0

    def on_ping(self, ping: Ping, ctx: Context) -> None:
        self.count += 1
        if ping.number == self.last:
            self.twice += 1
        elif ping.number < self.last:
            self.late += 1
        self.last = max(self.last, ping.number)

    def on_parcel(self, parcel: Parcel, ctx: Context) -> None:
        self.on_ping(Ping(number=parcel.number), ctx)

    def on_report(self, report: Report, ctx: Context) -> None:
        ctx.reply(Counted(count=self.count, twice=self.twice, late=self.late, last=self.last))


class Relay(Agent):
    """Passes pings on to the counter."""

    def on_ping(self, ping: Ping, ctx: Context) -> None:
        ctx.send("counter", ping)


class Picky(Agent):
    """Cannot bear the number 13 until it is told to."""

    brave: bool = False
    heard: int = 0

    def on_ping(self, ping: Ping, ctx: Context) -> None:
        if ping.number == 13 and not self.brave:
            raise ValueError("thirteen")
        self.heard += 1

    def on_word(self, word: Word, ctx: Context) -> None:
        self.brave = word.text == "be brave"

    def on_report(self, report: Report, ctx: Context) -> None:
        ctx.reply(Counted(count=self.heard, twice=0, late=0, last=0))


class Asker(Agent):
    """Asks another, and remembers what came of it."""

    answered: int = 0
    timeouts: int = 0

    def on_word(self, word: Word, ctx: Context) -> None:
        ctx.ask(word.text, Ping(number=1), reply="on_pong", timeout=0.3)

    def on_pong(self, pong: Pong, ctx: Context) -> None:
        self.answered += 1

    def on_timeout(self, timeout: Timeout, ctx: Context) -> None:
        self.timeouts += 1

    def on_report(self, report: Report, ctx: Context) -> None:
        ctx.reply(Counted(count=self.answered, twice=self.timeouts, late=0, last=0))


class Mute(Agent):
    """Never answers."""

    def on_ping(self, ping: Ping, ctx: Context) -> None:
        pass


class WordCounter(Agent):
    """Counts words, whatever they say."""

    count: int = 0

    def on_word(self, word: Word, ctx: Context) -> None:
        self.count += 1

    def on_report(self, report: Report, ctx: Context) -> None:
        ctx.reply(Counted(count=self.count, twice=0, late=0, last=0))


class Sleeper(Agent):
    """Takes longer than anybody waits."""

    async def on_ping(self, ping: Ping, ctx: Context) -> None:
        await asyncio.sleep(3_600)


class Lap(Notification):
    """Goes round a ring."""

    left: int
    number: int


class Ring(Agent):
    """Passes laps on to the next of four, and takes its time."""

    passed: int = 0

    async def on_lap(self, lap: Lap, ctx: Context) -> None:
        await asyncio.sleep(0.001)
        self.passed += 1
        place = int(ctx.agent.removeprefix("ring"))
        if lap.left:
            ctx.send(f"ring{(place + 1) % 4}", Lap(left=lap.left - 1, number=lap.number))

    def on_report(self, report: Report, ctx: Context) -> None:
        ctx.reply(Counted(count=self.passed, twice=0, late=0, last=0))
