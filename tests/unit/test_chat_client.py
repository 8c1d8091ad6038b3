"""The client of the chat: it leaves when the input ends, with or without its server."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import chat_client
import msgspec
import pytest
from chat_client import Chat, Typed
from chat_room import Members, Said

from antecede.errors import ClosedError
from antecede.live import ServerRuntime
from antecede.live.client import Bus, Ticket
from antecede.live.client.line import connect
from antecede.topology import parse_topology
from helpers.ports import free_ports


class _Line:
    """A server that accepts publishes until its ``room`` for them is used up."""

    def __init__(self, bus: Bus, room: int) -> None:
        self.bus = bus
        self.room = room
        self.said: list[str] = []

    async def open(self) -> None:
        self.bus.welcomed("ann@s1", 0)

    def publish(self, ticket: Ticket, last: bool) -> None:
        if ticket.number > self.room:
            return
        asyncio.get_running_loop().call_soon(self.bus.accepted, ticket.number)
        if ticket.kind.endswith("Said"):
            self.said.append(msgspec.msgpack.decode(ticket.bodies[0], type=Said).text)

    def done(self, letters: list[str], dead: str) -> None:
        pass

    def listen(self) -> None:
        pass

    async def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_client, "leave_seconds", 0.2)


def _chat(room: int, write: Callable[[int], None], *, joined: bool = True) -> tuple[list[str], list[str]]:
    """Chat with a server that accepts ``room`` publishes; return what was shown, and what the server accepted."""
    shown: list[str] = []
    lines: list[_Line] = []

    def line(bus: Bus) -> _Line:
        lines.append(_Line(bus, room))
        return lines[0]

    async def main() -> None:
        output, given = os.pipe()
        async with Bus("ann", line) as bus:
            chat = Chat(bus, "kitchen", shown.append)
            if joined:
                chat._changed(Members(names=("ann@s1", "bob@s2")), None)  # type: ignore[arg-type]
            write(given)
            os.close(given)
            try:
                await asyncio.wait_for(chat.run(Typed(output)), 30)
            finally:
                os.close(output)

    try:
        asyncio.run(main())
    except ClosedError as error:
        shown.append(f"end: {error}")
    return shown, lines[0].said


def test_all_lines_are_accepted_before_it_leaves() -> None:
    shown, said = _chat(10**6, lambda end: os.write(end, b"one\n\n two \nthree") and None)
    assert said == ["one", "two", "three"]
    assert shown == ["(in the kitchen: ann, bob)"]


def test_lines_that_the_server_does_not_accept_are_counted() -> None:
    shown, said = _chat(2, lambda end: os.write(end, b"one\ntwo\nthree\n") and None)
    assert said == ["one"]
    assert shown[1:] == [
        "(2 lines were not accepted yet: waiting 0.2 seconds more; Ctrl-C ends at once)",
        "end: no answer from the server: 2 lines were not accepted, and ann is still a member of the kitchen",
    ]


def test_a_room_that_does_not_answer_is_left() -> None:
    shown, said = _chat(10**6, lambda end: os.write(end, b"one\n") and None, joined=False)
    assert said == []
    assert shown[1:] == ["end: no answer from the server: 1 line was not accepted, and ann did not join the kitchen"]


def test_a_second_ctrl_d_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_client, "leave_seconds", 1000.0)
    shown: list[str] = []

    async def main() -> None:
        ours, theirs = os.openpty()
        typed = Typed(theirs)
        os.write(ours, b"one\n\x04")
        await asyncio.wait_for(typed.ended.wait(), 30)
        assert (typed.waiting, typed.ended_again.is_set()) == (1, False)
        os.write(ours, b"\x04")
        async with Bus("ann", lambda bus: _Line(bus, 0)) as bus:
            await asyncio.wait_for(typed.ended_again.wait(), 30)
            await asyncio.wait_for(Chat(bus, "kitchen", shown.append).run(typed), 30)

    with pytest.raises(ClosedError, match="1 line was not accepted"):
        asyncio.run(main())


def test_a_client_reports_once_that_its_server_is_gone_and_that_it_is_back(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    where = f"tcp://127.0.0.1:{port}"
    file = parse_topology(f'[servers]\ns1 = "{where}"\n[domains]\nA = {{ servers = ["s1"], order = "pruned" }}')
    events: list[str] = []

    async def server() -> ServerRuntime:
        runtime = ServerRuntime(file, "s1", str(tmp_path / "s1"), durability="os", agents={})
        await runtime.start()
        return runtime

    async def reported(count: int) -> None:
        while len(events) < count:
            await asyncio.sleep(0.01)

    async def main() -> None:
        running = await server()
        async with asyncio.timeout(60), connect(where, name="ann", waits=events.append, resumes=events.append) as bus:
            for stops in (1, 2):
                await running.stop()
                await reported(2 * stops - 1)
                running = await server()
                await reported(2 * stops)
            await bus.close()
            await running.stop()

    asyncio.run(main())
    gone = f"{where} (connection refused; is `antecede up` or `antecede serve` running?)"
    assert events == [gone, where, gone, where]
