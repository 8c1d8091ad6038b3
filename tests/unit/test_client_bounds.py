"""What clients and operators may send, at the bounds: checked by the library, and again by the server."""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from antecede import limits, wire
from antecede.channel import envelope_fault
from antecede.cli.servers import read_token
from antecede.errors import UsageError
from antecede.live import ServerRuntime
from antecede.live.server import LocalSession
from antecede.server import Input, PublishedMany, take_inputs
from antecede.topology import parse_topology

_topology = """
    [servers]
    s1 = "tcp://127.0.0.1:7191"
    s2 = "tcp://127.0.0.1:7192"
    [domains]
    A = { servers = ["s1", "s2"] }
"""


def _with_a_server(play: Callable[[ServerRuntime], Awaitable[None]], token: str = "") -> None:
    async def main() -> None:
        runtime = ServerRuntime(parse_topology(_topology), "s1", durability="memory", token=token)
        await play(runtime)

    asyncio.run(main())


def test_envelopes() -> None:
    address = "x" * limits.address_chars_max
    assert not envelope_fault((address,) * limits.publish_to_max, "x" * limits.type_chars_max)
    assert "destinations" in envelope_fault((address,) * (limits.publish_to_max + 1), "x")
    assert "address" in envelope_fault((address + "x",), "x")
    assert "type" in envelope_fault((address,), "x" * (limits.type_chars_max + 1))


def test_the_longest_frame_of_a_client_library() -> None:
    """A batch that is nearly full, and then gets its longest notification."""
    to = tuple(f"{number:064}@{'s' * 64}" for number in range(limits.publish_to_max))
    bodies = [bytes(limits.train_bytes_max // 1_023)] * 1_023 + [bytes(limits.letter_bytes_max)]
    kind, context = "x" * limits.type_chars_max, "x" * limits.trace_context_chars_max
    publish = wire.Publish(limits.counter_max, to, kind, bodies, False, context)
    assert len(wire.frame([publish])) < limits.client_frame_bytes_max


def test_a_client_may_be_as_far_ahead_as_its_window() -> None:
    async def play(runtime: ServerRuntime) -> None:
        runtime.machine.clients["alice"] = 7
        last = 7 + limits.publish_window_max + limits.publish_batch_max
        malformed = runtime.core.sessions.malformed
        assert not malformed("alice", wire.Publish(last - 1, ("a",), "T", [b"", b""]))
        assert "expected at most" in malformed("alice", wire.Publish(last, ("a",), "T", [b"", b""]))
        context = "x" * limits.trace_context_chars_max
        assert not malformed("alice", wire.Publish(8, ("a",), "T", [b""], context=context))
        assert "trace context" in malformed("alice", wire.Publish(8, ("a",), "T", [b""], context=context + "x"))

    _with_a_server(play)


def test_a_step_takes_a_bounded_number_of_copies_however_short() -> None:
    for to, count in ((("a",), 1_024), (("a", "b", "c", "d"), 256)):
        inputs = deque[Input](PublishedMany("alice", 1, to, "T", [b""] * count) for _ in range(1_000))
        assert len(take_inputs(inputs)) * count * len(to) == limits.step_letters_max


def test_a_batch_for_many_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small frame can ask for millions of copies: they are made step by step, and the marks are looked at between."""
    submitted: list[PublishedMany] = []

    async def play(runtime: ServerRuntime) -> None:
        sessions = runtime.core.sessions
        session = LocalSession(sessions, runtime.bus("alice"))
        sessions.begin(session)
        monkeypatch.setattr(runtime.driver, "feed", submitted.append)
        to = tuple(f"a{number}@s1" for number in range(limits.publish_to_max))
        bodies = [b"%d" % number for number in range(limits.publish_batch_max)]
        sessions.publish(session, 1, to, "T", bodies, False, "")
        assert {len(one.bodies) * len(one.to) for one in submitted} == {limits.step_letters_max}
        assert [one.number for one in submitted] == list(range(1, 1_025, 16))
        assert [body for one in submitted for body in one.bodies] == bodies
        submitted.clear()
        sessions.publish(session, 1, to[:64], "T", bodies, False, "")
        assert [one.bodies for one in submitted] == [bodies]

    _with_a_server(play)


def test_remembered_plans_are_bounded_by_their_addresses() -> None:
    async def play(runtime: ServerRuntime) -> None:
        channel = runtime.machine.channel
        for number in range(200):
            channel.check(tuple(f"a{number}.{place}@s1" for place in range(limits.publish_to_max)))
        assert sum(map(len, channel._sound)) <= 262_144
        assert sum(len(to) for _, to in channel._plans) <= 262_144

    _with_a_server(play)


def test_arguments_of_requests() -> None:
    async def play(runtime: ServerRuntime) -> None:
        run = runtime.operations.run
        most = limits.message_id_chars_max + 1 + limits.address_chars_max
        assert "no dead letter" in json.loads(run("dead-show", ["x" * most])[1])
        assert "expected at most" in json.loads(run("dead-show", ["x" * (most + 1)])[1])
        for generation in ("9" * 20, "9" * 400, "-1", "x", "", "0"):
            assert "expected a number larger than 0" in json.loads(run("forget", ["A", generation])[1])

    _with_a_server(play)


def test_a_hello_that_nobody_would_read_is_refused_at_the_start(tmp_path: Path) -> None:
    async def play(runtime: ServerRuntime) -> None: ...

    _with_a_server(play, "x" * limits.token_bytes_max)
    with pytest.raises(UsageError, match="the hello between s1 and s2 has"):
        _with_a_server(play, "x" * limits.hello_bytes_max)
    path = tmp_path / "token"
    path.write_text("x" * limits.token_bytes_max)
    assert len(read_token(str(path))) == limits.token_bytes_max
    path.write_text("x" * (limits.token_bytes_max + 1))
    with pytest.raises(UsageError, match="expected at most"):
        read_token(str(path))
