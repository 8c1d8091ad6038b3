"""The bus over a line that we hold in our hands: numbers, batches, refusals, broken connections."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from antecede import limits
from antecede.channel import Letter
from antecede.engine import Notification
from antecede.errors import ClosedError, OverloadError, RefusedError, UsageError
from antecede.live.client import Bus, Ticket


class Note(Notification):
    number: int


class Other(Notification):
    pass


class Blob(Notification):
    body: bytes


class Line:
    """Writes down what the bus says."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.published: list[tuple[int, tuple[str, ...], str, int, bool]] = []
        self.dones: list[tuple[list[str], str]] = []
        self.listens = 0
        self.last = 0

    async def open(self) -> None:
        self.bus.welcomed("alice@s1", self.last)

    def publish(self, ticket: Ticket, last: bool) -> None:
        self.published.append((ticket.number, ticket.to, ticket.kind, len(ticket.bodies), ticket.ask))

    def done(self, letters: list[str], dead: str) -> None:
        self.dones.append((letters, dead))

    def listen(self) -> None:
        self.listens += 1

    async def close(self) -> None:
        pass


def played(play: Callable[[Bus, Line], Awaitable[None]], last: int = 0) -> None:
    async def main() -> None:
        lines: list[Line] = []

        def line(bus: Bus) -> Line:
            lines.append(Line(bus))
            lines[0].last = last
            return lines[0]

        bus = Bus("alice", line)
        await bus.__aenter__()
        async with asyncio.timeout(10):
            await play(bus, lines[0])

    asyncio.run(main())


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_what_is_sent_together_shares_a_batch() -> None:
    async def play(bus: Bus, line: Line) -> None:
        tickets = [bus.send("a", Note(number=n)) for n in range(3)]
        bus.send("b", Note(number=3))
        bus.send("b", Other())
        bus.send(("b", "a", "b"), Other())
        await turn()
        assert line.published == [
            (18, ("a",), "Note", 3, False),
            (21, ("b",), "Note", 1, False),
            (22, ("b",), "Other", 1, False),
            (23, ("a", "b"), "Other", 1, False),
        ]
        bus.accepted(21)
        for ticket in tickets:
            await ticket
        assert bus.outstanding == 2
        bus.accepted(23)
        await bus.drain()

    played(play, last=17)


def test_a_batch_has_a_bound() -> None:
    async def play(bus: Bus, line: Line) -> None:
        for number in range(limits.publish_batch_max + 1):
            bus.send("a", Note(number=number))
        await turn()
        assert [count for _, _, _, count, _ in line.published] == [limits.publish_batch_max, 1]

    played(play)


def test_many_in_one_call_have_one_ticket_and_share_batches() -> None:
    async def play(bus: Bus, line: Line) -> None:
        bus.send("a", Note(number=0))
        notes = [Note(number=number) for number in range(1, limits.publish_batch_max + 2)]
        ticket = bus.send_many("a", [*notes, Other(), Other()])
        single = bus.send_many(("b", "a", "b"), iter([Other()]))
        await turn()
        batch = limits.publish_batch_max
        assert line.published == [
            (1, ("a",), "Note", batch, False),
            (batch + 1, ("a",), "Note", 2, False),
            (batch + 3, ("a",), "Other", 2, False),
            (batch + 5, ("a", "b"), "Other", 1, False),
        ]
        bus.accepted(batch + 3)
        assert not ticket.settled
        bus.accepted(batch + 4)
        await ticket
        assert (ticket.settled, single.settled) == (True, False)
        await bus.send_many("a", [])

    played(play)


def test_large_notifications_in_one_call_are_several_batches() -> None:
    async def play(bus: Bus, line: Line) -> None:
        bus.send_many("a", [Blob(body=bytes(limits.train_bytes_max // 3)) for _ in range(7)])
        bus.send_many("a", [Blob(body=bytes(limits.train_bytes_max + 1)) for _ in range(2)])
        await turn()
        counts = [count for _, _, _, count, _ in line.published]
        assert sum(counts) == 9
        assert max(counts) <= 3, "no batch is much longer than a train"

    played(play)


def test_of_many_none_is_sent_if_one_cannot_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(bus: Bus, line: Line) -> None:
        fine = [Note(number=number) for number in range(3)]
        long = type("x" * 401, (Other,), {})()
        for to, some, error in (
            ("a", [*fine, "text"], "str is not a Notification"),
            ("a", [*fine, Blob(body=bytes(limits.letter_bytes_max))], "notification of"),
            ("a", [*fine, long], "notification type of 401 characters"),
            ("a" * 201, fine, "address of 201 characters"),
            ([], fine, "without a destination"),
            ("a", [fine[0]] * (limits.publish_many_max + 1), "16385 notifications in one call: expected at most 16384"),
        ):
            with pytest.raises(UsageError, match=error):
                bus.send_many(to, some)  # type: ignore[arg-type]
        await turn()
        assert not line.published
        bus.send_many("a", [fine[0]] * limits.publish_many_max)
        monkeypatch.setattr(limits, "publish_window_max", limits.publish_many_max + 2)
        with pytest.raises(OverloadError, match="16384 publishes are not accepted yet"):
            bus.send_many("a", fine)
        bus.send_many("a", fine[:2])
        assert bus.outstanding == limits.publish_many_max + 2
        bus.gone(ClosedError("over"))
        with pytest.raises(ClosedError):
            bus.send_many("a", fine)

    played(play)


def test_a_refusal_among_many_is_raised_by_their_ticket() -> None:
    async def play(bus: Bus, line: Line) -> None:
        ticket = bus.send_many("a", [Note(number=1), Other(), Note(number=2)])
        await turn()
        bus.accepted(1)
        bus.refused(2, UsageError("no such thing"), retry=False)
        bus.accepted(2)
        with pytest.raises(UsageError, match="no such thing"):
            await ticket
        await bus.drain()

    played(play)


def test_what_the_server_would_refuse_is_not_sent() -> None:
    async def play(bus: Bus, line: Line) -> None:
        with pytest.raises(UsageError, match="notification type of 401 characters"):
            bus.post("a", "x" * 401, {})
        with pytest.raises(UsageError, match="4097 destinations"):
            bus.post([f"a{number}" for number in range(4_097)], "T", {})
        with pytest.raises(UsageError, match="address of 201 characters"):
            bus.post("a" * 201, "T", {})
        with pytest.raises(UsageError, match="notification of 8388613 bytes"):
            await bus.inquire("a", "T", {"x": bytes(limits.letter_bytes_max - 3)})
        await turn()
        assert not line.published

    played(play)


def test_too_many_outstanding() -> None:
    async def play(bus: Bus, line: Line) -> None:
        for number in range(limits.publish_window_max):
            bus.send("a", Note(number=number))
        with pytest.raises(OverloadError, match="not accepted yet"):
            bus.send("a", Note(number=0))
        waiting = asyncio.ensure_future(bus.ready())
        await turn()
        assert not waiting.done()
        bus.accepted(limits.publish_window_max // 2)
        await waiting
        bus.send("a", Note(number=0))

    played(play)


def test_a_refused_publish_takes_nothing_with_it() -> None:
    async def play(bus: Bus, line: Line) -> None:
        good = bus.send("a", Note(number=0))
        bad = bus.send("nobody", Note(number=1))
        after = bus.send("a", Note(number=2))
        await turn()
        bus.accepted(1)
        await good
        line.published.clear()
        bus.refused(2, UsageError("unknown agent"), False)
        with pytest.raises(UsageError, match="unknown agent"):
            await bad
        await turn()
        assert line.published == [(2, ("a",), "Note", 1, False)], "numbered anew"
        bus.accepted(2)
        await after
        await bus.drain()

    played(play)


def test_the_first_refusal_that_nobody_awaited_is_raised_by_drain() -> None:
    async def play(bus: Bus, line: Line) -> None:
        sent = {bus.send(f"a{n}", Note(number=1)): f"unknown agent a{n}." for n in range(100)}
        await turn()
        for reason in sent.values():
            bus.refused(1, UsageError(reason), False)
        with pytest.raises(UsageError, match=r"unknown agent a0\."):
            await bus.drain()

    played(play)


def test_after_an_overload_nothing_overtakes_the_refused_publish() -> None:
    async def play(bus: Bus, line: Line) -> None:
        for to in "abc":
            bus.send(to, Note(number=0))
        await turn()
        bus.accepted(1)
        line.published.clear()
        bus.refused(2, OverloadError("catching up"), True)
        bus.send("d", Note(number=0))
        assert bus.trouble == "catching up"
        ready = asyncio.ensure_future(bus.ready())
        while not line.published:
            await asyncio.sleep(0.01)
        assert not ready.done()
        bus.accepted(2)
        await ready
        assert line.published == [(2 + place, (to,), "Note", 1, False) for place, to in enumerate("bcd")]
        bus.accepted(4)
        await bus.drain()

    played(play)


def test_after_a_broken_connection_only_the_rest_is_sent_again() -> None:
    async def play(bus: Bus, line: Line) -> None:
        tickets = [bus.send("a", Note(number=n)) for n in range(4)]
        bus.send("b", Note(number=4))
        await turn()
        line.published.clear()
        bus.welcomed("alice@s1", 2)
        assert line.published == [(3, ("a",), "Note", 2, False), (5, ("b",), "Note", 1, False)]
        bus.accepted(5)
        for ticket in tickets:
            await ticket
        assert bus.outstanding == 0

    played(play)


def test_somebody_else_used_the_name() -> None:
    async def play(bus: Bus, line: Line) -> None:
        ticket = bus.send("a", Note(number=1))
        await turn()
        bus.welcomed("alice@s1", 40)
        with pytest.raises(UsageError, match="alice@s1: another client publishes under the same name"):
            await ticket

    played(play)


def test_the_end_of_a_bus_ends_all_waiting() -> None:
    async def play(bus: Bus, line: Line) -> None:
        ticket = bus.send("a", Note(number=1))
        question = asyncio.ensure_future(bus.ask("a", Note(number=2)))
        closed = asyncio.ensure_future(bus.until_closed())
        await turn()
        bus.gone(RefusedError("wrong token"))
        for waiting in (ticket, question, closed):
            with pytest.raises(RefusedError, match="wrong token"):
                await waiting
        with pytest.raises(RefusedError):
            bus.send("a", Note(number=3))

    played(play)


def _letter(id_: str, kind: str = "Note", answers: str = "", **fields: Any) -> Letter:
    return Letter(id_, "somebody", ("alice@s1",), kind, msgspec.msgpack.encode(fields), answers=answers)


def test_questions_and_answers() -> None:
    async def play(bus: Bus, line: Line) -> None:
        question = asyncio.ensure_future(bus.ask("a", Note(number=1), expect=Note, timeout=5))
        late = asyncio.ensure_future(bus.ask("a", Note(number=2), timeout=0.01))
        await turn()
        assert line.listens == 1
        assert [number for number, *_ in line.published] == [1, 2]
        bus.accepted(2)
        bus.delivered([_letter("x1", answers="?1", number=9), _letter("x2", answers="?77", number=1)])
        assert (await question).number == 9
        assert line.dones == [(["x1", "x2"], "")]
        with pytest.raises(TimeoutError):
            await late
        bus.delivered([_letter("x3", answers="?2", number=9)])
        assert line.dones[-1] == (["x3"], "")

    played(play)


def test_a_question_keeps_its_answer_when_it_is_numbered_anew() -> None:
    async def play(bus: Bus, line: Line) -> None:
        bad = bus.send("nobody", Note(number=1))
        question = asyncio.ensure_future(bus.ask("a", Note(number=1), timeout=5))
        await turn()
        bus.refused(1, UsageError("unknown agent"), False)
        with pytest.raises(UsageError):
            await bad
        bus.accepted(1)
        bus.delivered([_letter("x1", answers="?1", number=9)])
        assert (await question).fields == {"number": 9}

    played(play)


def test_letters_are_handled_in_sequence_and_once() -> None:
    async def play(bus: Bus, line: Line) -> None:
        heard: list[int] = []

        async def slow(note: Note) -> None:
            await asyncio.sleep(0)
            heard.append(note.number)

        bus.on(Note, slow)
        bus.delivered([_letter("x1", number=1), _letter("x2", number=2)])
        while not line.dones:
            await asyncio.sleep(0)
        bus.welcomed("alice@s1", 0)
        bus.delivered([_letter("x2", number=2), _letter("x3", number=3), _letter("x4", "Other")])
        while len(line.dones) < 2:
            await asyncio.sleep(0)
        assert heard == [1, 2, 3]
        assert line.dones == [(["x1", "x2"], ""), (["x2", "x3", "x4"], "client alice has no handler for Other")]

    played(play)


@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError, GeneratorExit])
def test_a_failing_handler_is_tried_again(monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]) -> None:
    monkeypatch.setattr(limits, "reaction_pause_seconds", 0.0)

    async def play(bus: Bus, line: Line) -> None:
        tries: list[int] = []

        def fail(note: Note, letter: Letter) -> None:
            tries.append(note.number)
            raise kind("no")

        bus.on(Note, fail)
        bus.delivered([_letter("x1", number=1)])
        while not line.dones:
            await asyncio.sleep(0)
        assert tries == [1] * limits.reaction_tries_max
        (letters, reason) = line.dones[0]
        assert letters == ["x1"]
        assert reason.startswith(f"{kind.__name__}: no (test_client.py:")
        assert reason.endswith(" in fail)")

    played(play)


def test_bad_usage() -> None:
    async def play(bus: Bus, line: Line) -> None:
        with pytest.raises(UsageError, match="without a destination"):
            bus.send((), Note(number=1))
        with pytest.raises(UsageError, match="not a Notification"):
            bus.send("a", object())  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="at most"):
            bus.post("a", "Note", {"data": b"x" * limits.letter_bytes_max})
        await bus.close()
        with pytest.raises(ClosedError):
            bus.send("a", Note(number=1))

    played(play)


def test_a_broken_connection_while_a_handler_waits() -> None:
    """What was handled for a connection that is gone is said again for the new one, and nothing else with it."""

    async def play(bus: Bus, line: Line) -> None:
        may_go = asyncio.Event()
        heard: list[int] = []

        async def handler(note: Note) -> None:
            await may_go.wait()
            heard.append(note.number)

        bus.on(Note, handler)
        letters = [_letter("s1.1.1", number=1), _letter("s1.1.2", number=2)]
        bus.delivered(letters)
        await turn()
        bus.welcomed("alice@s1", 0)
        bus.delivered(letters)
        may_go.set()
        await turn()
        assert heard == [1, 2]
        said = [letter for letters, _ in line.dones for letter in letters]
        assert said == ["s1.1.1", "s1.1.2"], "the server compares this with what it handed out, in sequence"

    played(play)


def test_a_server_that_lost_what_it_had_accepted() -> None:
    async def play(bus: Bus, line: Line) -> None:
        ticket = bus.send("a", Note(number=1))
        await turn()
        bus.accepted(1)
        await ticket
        bus.welcomed("alice@s1", 0)
        with pytest.raises(RefusedError, match="lost its data: it had accepted 1 publishes and now has 0"):
            await bus.send("a", Note(number=2))

    played(play)
