"""A client's publishes without a line: what is sent, when, and what is sent again."""

from unittest.mock import MagicMock

import pytest

from antecede import limits, wire
from antecede.errors import AntecedeError, ClosedError, OverloadError, UsageError
from antecede.server import ClientLine, Publishing, Ticket

Sent = tuple[int, int, bool]
"""The first number of a batch, its number of publishes, and whether nothing else is published at this moment."""


class _Client:
    """Notes what is sent, which flushes are asked for, and what is settled."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.flushes = 0
        self.pauses: list[float] = []
        self.settled: list[tuple[int, str]] = []
        self.publishing: Publishing[Ticket] = Publishing(
            Ticket, self._settled, self._send, self._flush_soon, self.pauses.append
        )

    def _settled(self, ticket: Ticket, error: AntecedeError | None) -> None:
        self.settled.append((ticket.number, "" if error is None else error.code))

    def _send(self, ticket: Ticket, last: bool) -> None:
        self.sent.append((ticket.number, len(ticket.bodies), last))

    def _flush_soon(self) -> None:
        self.flushes += 1

    def publish(self, *to: str) -> None:
        for one in to:
            self.publishing.put(one, "Note", b"x")

    def take_sent(self) -> list[Sent]:
        sent, self.sent = self.sent, []
        return sent


def test_a_batch_is_sent_by_the_flush_or_by_what_does_not_fit() -> None:
    client = _Client()
    client.publish("a", "a", "b", "b", "b")
    assert client.take_sent() == [(1, 2, False)], "the second destination needs another batch"
    assert client.flushes == 1, "one flush is for all batches of this moment"
    client.publishing.flush()
    client.publishing.flush()
    assert client.take_sent() == [(3, 3, True)]
    client.publish("b")
    assert client.flushes == 2
    client.publishing.send(client.publishing.ask("a", "Question", b"?"))
    assert client.take_sent() == [(6, 1, False), (7, 1, False)]
    assert client.publishing.numbering.last == 7


def test_a_list_of_destinations_shares_a_batch_like_a_tuple() -> None:
    client = _Client()
    for _ in range(3):
        client.publishing.put(["a", "b"], "Note", b"x")
    client.publishing.put(("a", "b"), "Note", b"x")
    client.publishing.flush()
    assert client.take_sent() == [(1, 4, True)]


@pytest.mark.parametrize(
    ("body", "fits"), [(b"", limits.publish_batch_max), (bytes(limits.train_bytes_max // 2), 3), (b"x" * 2**21, 1)]
)
def test_a_batch_is_full(body: bytes, fits: int) -> None:
    one, many = _Client(), _Client()
    for _ in range(2 * fits):
        one.publishing.put(("a", "b"), "Note", body)
    many.publishing.put_many(("a", "b"), [("Note", "", [body] * (2 * fits))])
    for client in (one, many):
        client.publishing.flush()
        assert client.sent == [(1, fits, False), (1 + fits, fits, True)]


def test_a_welcome_and_a_refusal_let_the_rest_be_sent_again() -> None:
    client = _Client()
    client.publish("a", "a", "b", "c", "c")
    publishing = client.publishing
    publishing.flush()
    client.publish("d")
    client.take_sent()
    assert publishing.welcomed(1) is None
    assert client.take_sent() == [(2, 1, False), (3, 1, False), (4, 2, False)], "not the batch that is being filled"
    assert publishing.refused(2, UsageError("no"), False) is None
    assert client.take_sent() == [(2, 1, False), (3, 2, False)]
    assert client.settled == [(2, "usage")]
    publishing.accepted(4)
    publishing.flush()
    assert client.take_sent() == [(5, 1, True)], "it was being filled all the time"
    publishing.accepted(5)
    assert publishing.numbering.outstanding == 0


def test_after_an_overload_everything_is_sent_again_in_sequence() -> None:
    """A program that awaits nothing leaves no hole."""
    client = _Client()
    publishing = client.publishing
    client.publish(*"abcd")
    publishing.flush()
    client.take_sent()
    publishing.accepted(1)
    for pause in (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        assert publishing.refused(2, OverloadError("later"), True) is None
        assert client.pauses.pop() == pytest.approx(pause)
        assert publishing.overload == "later"
        client.publish("e")
        publishing.flush()
        assert client.take_sent() == [], "nothing overtakes the refused publish"
        publishing.resend()
        assert client.take_sent() == [(2, 1, False)]
    publishing.accepted(2)
    assert publishing.overload == ""
    assert client.take_sent() == [(3, 1, False), (4, 1, False)]
    assert publishing.refused(3, UsageError("no"), False) is None
    assert client.take_sent() == [(3, 1, False), (4, 1, False)], "the other publish has failed"
    publishing.accepted(4)
    assert publishing.held
    assert client.take_sent() == [(number, 1, False) for number in range(5, 9)]
    publishing.accepted(8)
    publishing.accepted(10)
    assert not publishing.held
    assert client.settled == [(1, ""), (2, ""), (3, "usage"), *((number, "") for number in range(3, 11))]


def test_a_new_connection_ends_the_pause() -> None:
    client = _Client()
    client.publish(*"ab")
    client.publishing.flush()
    client.take_sent()
    client.publishing.refused(1, OverloadError("later"), True)
    assert client.publishing.welcomed(0) is None
    assert client.take_sent() == [(1, 1, False), (2, 1, False)]
    client.publishing.resend()
    assert client.take_sent() == []


def test_a_server_that_lost_its_data_gets_nothing() -> None:
    client = _Client()
    client.publish("a")
    client.publishing.flush()
    client.publishing.accepted(1)
    client.take_sent()
    assert isinstance(client.publishing.welcomed(0), AntecedeError)
    assert client.sent == []


def test_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "publish_window_max", 8)
    client = _Client()
    publishing, numbering = client.publishing, client.publishing.numbering
    client.publish("a", "b", "a", "b", "a")
    assert not numbering.crowded, "four are sent; the batch that is being filled is not counted"
    publishing.flush()
    assert numbering.crowded
    client.publish("a", "b", "c")
    with pytest.raises(OverloadError, match="8 publishes are not accepted yet"):
        client.publish("d")
    with pytest.raises(OverloadError):
        publishing.check_room(1)
    publishing.accepted(4)
    assert not numbering.crowded
    publishing.check_room(4)
    client.publish("d")
    assert numbering.last == 9


def test_nothing_is_published_after_the_end() -> None:
    client = _Client()
    client.publish("a", "b")
    assert str(client.publishing.fail(ClosedError("first"))) == "first"
    assert str(client.publishing.fail(ClosedError("second"))) == "first"
    assert client.settled == [(1, "error"), (2, "error")]
    for publish in (lambda: client.publish("a"), lambda: client.publishing.check_room(1)):
        with pytest.raises(ClosedError, match="first"):
            publish()
    client.publishing.flush()
    assert client.sent == [(1, 1, False)]


def test_what_a_full_connection_did_not_take_is_not_written_before_the_next_welcome() -> None:
    """The owner repeats it after the welcome. If it came twice, the refusal of the second copy would count for another
    publish, which has its number by then."""
    owner, first, second = MagicMock(), MagicMock(full=False), MagicMock(full=False)
    owner.name = "alice"
    line = ClientLine(owner, "", lambda: None, lambda: 0.0, lambda: 0.5)
    line.opened(first)
    line.received([wire.Welcome("s1", "alice@s1", 0)])
    first.full = True
    line.publish(Ticket(1, "nobody", ("nobody",), "Note", False), True)
    assert first.send.call_count == 1, "the hello"
    line.closed("reset", 1.0)
    line.opened(second)
    line.writable()
    assert [type(part) for call in second.send.call_args_list for part in call.args[0]] == [wire.ClientHello]
