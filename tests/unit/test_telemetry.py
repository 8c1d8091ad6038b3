"""Spans: one a reaction, linked to the span that its letter was sent in; nothing where nobody traces."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from antecede import limits, telemetry
from antecede.channel import Letter
from antecede.engine import Agent, Context, Notification
from antecede.errors import RefusedError, UnansweredError
from antecede.live import ServerRuntime
from antecede.live.client.line import connect

pytest.importorskip("opentelemetry.sdk")


class Ping(Notification):
    number: int


class Pong(Notification):
    number: int


class Relay(Agent):
    """Passes a ping on, and says so to whoever listens."""

    def on_ping(self, ping: Ping, ctx: Context) -> None:
        from opentelemetry import trace

        with trace.get_tracer("application").start_as_current_span("inside"):
            ctx.send("echo", ping)


class Echo(Agent):
    async def on_ping(self, ping: Ping, ctx: Context) -> None:
        await asyncio.sleep(0)
        if ping.number == 13:
            raise ValueError("thirteen")
        ctx.send("alice@s1", Pong(number=ping.number))


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An SDK that keeps spans in memory, set up for one test."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield kept
    provider.shutdown()


Play = Callable[[ServerRuntime, ServerRuntime], Awaitable[None]]


@pytest.fixture
def played(two_servers: Callable[..., None]) -> Callable[[Play], None]:
    return lambda play: two_servers(play, {"relay": Relay}, {"echo": Echo})


@pytest.mark.parametrize("remote", [True, False])
def test_a_chain_of_spans(played: Callable[[Play], None], exporter: Any, remote: bool) -> None:
    """alice's request → relay → echo → alice's handler, each linked to the one before, over a socket or without."""
    from opentelemetry import trace

    async def play(near: ServerRuntime, far: ServerRuntime) -> None:
        address = str(near.topology.servers["s1"])
        bus = connect(address, name="alice") if remote else near.bus("alice")
        heard: list[int] = []
        async with bus as alice:
            alice.on(Pong, lambda pong: heard.append(pong.number))
            with trace.get_tracer("application").start_as_current_span("request"):
                first = alice.send("relay", Ping(number=1))
            second = alice.send("relay", Ping(number=2))
            assert first is not second, "what was sent in different spans shares no batch"
            while len(heard) < 2:
                await asyncio.sleep(0.01)

    played(play)
    spans = exporter.get_finished_spans()
    request = next(span for span in spans if span.name == "request")
    chains = []
    for span in [span for span in spans if span.name == "react relay"]:
        chain = [span]
        for name in ("react echo", "react alice"):
            before = chain[-1].context.span_id
            chain.append(next(s for s in spans if s.name == name and s.links and s.links[0].context.span_id == before))
        chains.append(chain)
    assert len(chains) == 2
    assert [link.context.span_id for link in chains[0][0].links] == [request.context.span_id]
    assert not chains[1][0].links, "what was sent in no span is linked to none"
    assert all(span.parent is None for chain in chains for span in chain), "a reaction is not a child of its cause"
    inside = [span for span in spans if span.name == "inside"]
    assert {span.parent.span_id for span in inside} == {chain[0].context.span_id for chain in chains}
    relay = chains[0][0]
    assert relay.kind is trace.SpanKind.CONSUMER
    assert relay.attributes["messaging.system"] == "antecede"
    assert relay.attributes["messaging.operation.type"] == "process"
    assert relay.attributes["messaging.destination.name"] == "relay"
    assert relay.attributes["messaging.message.id"].startswith("s1.")
    assert relay.attributes["antecede.notification"] == "Ping"
    assert relay.attributes["antecede.server"] == "s1"
    assert relay.status.is_ok


def test_what_fails_and_what_dies(played: Callable[[Play], None], exporter: Any) -> None:
    async def play(near: ServerRuntime, far: ServerRuntime) -> None:
        async with near.bus("alice") as alice:
            with pytest.raises(UnansweredError):
                await alice.ask("echo", Ping(number=13))
            with pytest.raises(UnansweredError):
                await alice.inquire("echo", "Nonsense", {})

    played(play)
    echoes = [span for span in exporter.get_finished_spans() if span.name == "react echo"]
    assert [span.attributes["error.type"] for span in echoes] == [
        *["ValueError"] * limits.reaction_tries_max,
        "dead letter",
    ]
    assert not any(span.status.is_ok for span in echoes)
    assert echoes[0].events[0].name == "exception"


def test_a_context_that_is_none(played: Callable[[Play], None], exporter: Any) -> None:
    """What a letter from elsewhere says is not trusted: nonsense is no link, and too much of it is refused."""
    spans = telemetry.spans("s1")
    assert spans is not None
    right = f"00-{'ab' * 16}-{'cd' * 8}-01"
    for text, links in ((right, 1), ("nonsense", 0), (f"00-{'0' * 32}-{'cd' * 8}-01", 0), (right + "x" * 200, 0)):
        begun = spans.open("echo", Letter("s1.1", "alice@s1", ("echo",), "Ping", b"", context=text))
        assert len(begun[0].links) == links  # type: ignore[attr-defined]
        spans.end(begun, "", None)

    async def play(near: ServerRuntime, far: ServerRuntime) -> None:
        alice = await connect(str(near.topology.servers["s1"]), name="alice").__aenter__()
        alice._tracing = lambda: "x" * (limits.trace_context_chars_max + 1)
        ticket = alice.send("echo", Ping(number=1))
        with pytest.raises(RefusedError, match="malformed publish"):
            await ticket
        await alice.close()

    played(play)


def test_nothing_without_an_sdk(played: Callable[[Play], None], monkeypatch: pytest.MonkeyPatch) -> None:
    assert telemetry.spans("s1") is None
    assert telemetry.current() is None

    async def play(near: ServerRuntime, far: ServerRuntime) -> None:
        assert near.reactions.host.watches == []
        monkeypatch.setitem(sys.modules, "opentelemetry", None)
        assert telemetry.spans("s1") is None, "nor without the package"
        async with near.bus("alice") as alice:
            heard: list[int] = []
            alice.on(Pong, lambda pong: heard.append(pong.number))
            await alice.send("echo", Ping(number=1))
            while not heard:
                await asyncio.sleep(0.01)

    played(play)
