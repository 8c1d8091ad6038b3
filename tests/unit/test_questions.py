"""A question that cannot be answered fails at once and by name; an address never leads into nowhere."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from antecede.engine import Agent, Context, Notification, Timeout, Unanswered
from antecede.errors import RefusedError, UnansweredError, UsageError
from antecede.live import ServerRuntime


class Hello(Notification):
    name: str


class Greeting(Notification):
    text: str


class Nonsense(Notification):
    pass


class Pass(Notification):
    """Ask the greeter something that it does not understand."""


class Tell(Notification):
    pass


class Told(Notification):
    reasons: list[str]


class Greeter(Agent):
    seen: tuple[str, ...] = ()

    def on_hello(self, hello: Hello, ctx: Context) -> None:
        if hello.name == "Eve":
            raise ValueError("not her")
        self.seen = (*self.seen, ctx.sender)
        ctx.reply(Greeting(text=f"Hello {hello.name}"))

    def on_tell(self, tell: Tell, ctx: Context) -> None:
        ctx.reply(Told(reasons=list(self.seen)))


class Asker(Agent):
    reasons: tuple[str, ...] = ()

    def on_pass(self, pass_: Pass, ctx: Context) -> None:
        ctx.ask("greeter@s2", Nonsense(), reply="on_greeting", timeout=60)

    def on_greeting(self, greeting: Greeting, ctx: Context) -> None:
        self.reasons = (*self.reasons, greeting.text)

    def on_unanswered(self, unanswered: Unanswered, ctx: Context) -> None:
        self.reasons = (*self.reasons, unanswered.reason)

    def on_tell(self, tell: Tell, ctx: Context) -> None:
        ctx.reply(Told(reasons=list(self.reasons)))


class OldAsker(Agent):
    """Knows only of timeouts."""

    reasons: tuple[str, ...] = ()

    def on_pass(self, pass_: Pass, ctx: Context) -> None:
        ctx.ask("greeter", Nonsense(), reply="on_greeting", timeout=60)

    def on_greeting(self, greeting: Greeting, ctx: Context) -> None:
        pass

    def on_timeout(self, timeout: Timeout, ctx: Context) -> None:
        self.reasons = (*self.reasons, "timeout")

    def on_tell(self, tell: Tell, ctx: Context) -> None:
        ctx.reply(Told(reasons=list(self.reasons)))


Play = Callable[[ServerRuntime, ServerRuntime], Awaitable[None]]


@pytest.fixture
def played(two_servers: Callable[..., None]) -> Callable[[Play], None]:
    return lambda play: two_servers(play, {"asker": Asker, "old": OldAsker}, {"greeter": Greeter})


def test_a_client_is_told_why(played: Callable[[Play], None]) -> None:
    async def play(near: ServerRuntime, far: ServerRuntime) -> None:
        async with near.bus("alice") as alice:
            with pytest.raises(UnansweredError, match="greeter cannot answer: Greeter has no handler for Nonsense"):
                await alice.ask("greeter", Nonsense(), timeout=60)
            with pytest.raises(UnansweredError, match="Hello does not fit its fields"):
                await alice.inquire("greeter", "Hello", {"name": 7}, timeout=60)
            with pytest.raises(UnansweredError, match="ValueError: not her"):
                await alice.ask("greeter", Hello(name="Eve"), timeout=60)
            assert (await alice.ask("greeter", Hello(name="Ada"), expect=Greeting)).text == "Hello Ada"
        assert len(far.machine.engine.dead) == 3, "they are dead letters all the same"

    played(play)


@pytest.mark.parametrize(
    ("agent", "expected"), [("asker", "Greeter has no handler for Nonsense: it has Hello, Tell"), ("old", "timeout")]
)
def test_an_agent_is_told_why(played: Callable[[Play], None], agent: str, expected: str) -> None:
    async def play(near: ServerRuntime, far: ServerRuntime) -> None:
        async with near.bus("alice") as alice:
            await alice.send(agent, Pass())
            while not far.machine.engine.dead or near.machine.engine.asks:
                await asyncio.sleep(0.01)
            assert (await alice.ask(agent, Tell(), expect=Told)).reasons == [expected]

    played(play)


def test_a_client_that_cannot_handle_a_question(played: Callable[[Play], None]) -> None:
    async def play(near: ServerRuntime, far: ServerRuntime) -> None:
        async with near.bus("alice") as alice, far.bus("bob") as bob:
            bob.on(Hello, lambda hello: None)
            with pytest.raises(UnansweredError, match="client bob has no handler for Nonsense"):
                await alice.ask("bob@s2", Nonsense(), timeout=60)

    played(play)


def test_an_agent_by_name_and_server(played: Callable[[Play], None]) -> None:
    async def play(near: ServerRuntime, far: ServerRuntime) -> None:
        async with near.bus("alice") as alice:
            assert (await alice.ask("greeter@s2", Hello(name="Ada"), expect=Greeting)).text == "Hello Ada"
            await alice.send(["greeter@s2", "greeter"], Hello(name="Bea"))
            await alice.ask("greeter", Tell())
            assert far.driver.retries.done == 3, "one agent gets a multicast once, whatever it is called"
            with pytest.raises(UsageError, match="unknown agent 'greeter@s1': greeter lives on s2"):
                await alice.send("greeter@s1", Hello(name="Ada"))
        assert not far.machine.engine.mailboxes

    played(play)


def test_nobody_takes_the_name_of_an_agent(played: Callable[[Play], None]) -> None:
    async def play(near: ServerRuntime, far: ServerRuntime) -> None:
        for name in ("greeter", "dead-letters"):
            with pytest.raises(RefusedError):
                async with near.bus(name):
                    pass

    played(play)


def test_a_replayed_letter_keeps_its_sender(played: Callable[[Play], None]) -> None:
    async def play(near: ServerRuntime, far: ServerRuntime) -> None:
        async with near.bus("alice") as alice:
            with pytest.raises(UnansweredError):
                await alice.ask("greeter", Hello(name="Eve"), timeout=60)
            (key,) = far.machine.engine.dead
            far.machine.overloaded = True
            far.marks.watch = lambda stopping: None  # type: ignore[method-assign]
            assert far.operations.run("dead-replay", [key])[0] is False, "refused while nothing is taken, not buried"
            assert key in far.machine.engine.dead
            far.machine.overloaded = False
            Greeter.on_hello, before = _gentle, Greeter.on_hello  # type: ignore[method-assign]
            try:
                assert far.operations.run("dead-replay", [key])[0] is True
                seen = (await alice.ask("greeter", Tell(), expect=Told)).reasons
            finally:
                Greeter.on_hello = before  # type: ignore[method-assign]
            assert seen == ["alice@s1"]
        assert not far.machine.engine.dead

    played(play)


def _gentle(self: Greeter, hello: Hello, ctx: Context) -> None:
    self.seen = (*self.seen, ctx.sender)
    # She waits for it no more: the late answer is dropped, not taken for something new.
    ctx.reply(Greeting(text="after all"))


def test_the_mailbox_of_who_never_comes_back(played: Callable[[Play], None]) -> None:
    async def play(near: ServerRuntime, far: ServerRuntime) -> None:
        async with near.bus("alice") as alice:
            for _ in range(300):
                alice.send("bob@s2", Hello(name="Bob"))
            await alice.drain()
            while sum(map(len, far.machine.engine.mailboxes.values())) < 300:
                await asyncio.sleep(0.01)
            assert far.operations.status()["clients"]["away"] == {"bob@s2": 300}
            for address in ("greeter", "carol@s2"):
                assert far.operations.run("mailbox-drop", [address])[0] is False
            async with far.bus("bob"):
                assert far.operations.run("mailbox-drop", ["bob@s2"])[0] is False, "bob is here"
            assert far.operations.mailbox_drop("bob@s2")["dropped"] == 300
            await alice.send("bob@s2", Hello(name="again"))
            while far.operations.status()["mailboxes"] != {"bob@s2": 1}:
                await asyncio.sleep(0.01)
            assert not far.machine.engine.dead
            heard: list[str] = []
            async with far.bus("bob") as bob:
                bob.on(Hello, lambda hello: heard.append(hello.name))
                while not heard:
                    await asyncio.sleep(0.01)
            assert heard == ["again"]

    played(play)
