"""Publishes at the machine: numbers without gaps, batches, repeats; records in pieces; a domain that begins anew."""

from antecede import limits
from antecede.link import Hello
from antecede.orders import parse
from antecede.server import (
    Accepted,
    AgentServer,
    Forgot,
    FromPeer,
    Met,
    Plan,
    Published,
    PublishedMany,
    Refused,
    decode_record,
    joined,
    pieces_of,
)
from antecede.topology import Domain, Topology


def _server(name: str = "s1", order: str = "pruned") -> AgentServer:
    topology = Topology([Domain("A", ("s1", "s2"))])
    return AgentServer(name, Plan(topology, {"A": parse(order)}, {"x": "s2", "here": "s1"}), 1 if name == "s1" else 2)


def _many(number: int, count: int, to: str = "x") -> PublishedMany:
    return PublishedMany("c", number, (to,), "T", [b"%d" % n for n in range(number, number + count)])


def test_a_gap_is_passed_over_in_silence() -> None:
    server = _server()
    step = server.step([Published("c", 2, ("x",), "T", b"")], 0.0, 0)
    assert step.record is None
    assert not step.replies


def test_after_a_refusal_nothing_is_taken_until_it_is_numbered_anew() -> None:
    server = _server()
    refused = Published("c", 1, ("nobody",), "T", b"")
    step = server.step([refused, Published("c", 2, ("x",), "T", b"2"), _many(3, 2)], 0.0, 0)
    assert [(type(reply), reply.number) for reply in step.replies] == [(Refused, 1)]
    assert step.record is None
    step = server.step([Published("c", 1, ("x",), "T", b"2"), _many(2, 2)], 0.0, 0)
    assert [reply.number for reply in step.replies] == [1, 3]


def test_repeats_are_answered_and_not_sent() -> None:
    server = _server()
    server.step([_many(1, 5)], 0.0, 0)
    step = server.step([_many(1, 5), Published("c", 2, ("x",), "T", b"")], 0.0, 0)
    assert step.record is None
    assert step.replies == [Accepted("c", 5), Accepted("c", 5)]
    step = server.step([_many(4, 4)], 0.0, 0)
    assert step.record is not None
    assert decode_record(step.record) == [_many(6, 2)], "only what is new"


def test_a_batch_is_what_single_publishes_would_have_been() -> None:
    one, many = _server(), _server()
    singles = [Published("c", n, ("here",), "T", b"%d" % n) for n in range(1, 6)]
    first = one.step(singles, 0.0, 0)
    second = many.step([_many(1, 5, "here")], 0.0, 0)
    assert first.due == second.due
    assert one.snapshot() == many.snapshot()
    again = _server()
    assert second.record is not None
    again.replay(second.record, 0.0)
    assert again.snapshot() == many.snapshot()


def test_whom_a_link_met_survives() -> None:
    server = _server()
    step = server.step([FromPeer("A", "s2", Hello(77, 0, 0, 0))], 0.0, 0)
    assert step.record is not None
    assert decode_record(step.record) == [Met("A", "s2", 77)]
    again = _server()
    again.replay(step.record, 0.0)
    step = again.step([FromPeer("A", "s2", Hello(78, 0, 0, 0))], 0.0, 0)
    assert "lost its data" in again.stopped["A", "s2"]
    assert [fault[:2] for fault in step.faults] == [("A", "s2")]


def test_a_domain_that_begins_anew_sends_again_what_nobody_acknowledged() -> None:
    for order in ("pruned", "matrix", "coordinator", "token", "skeen", "lamport", "buffer", "synchronous"):
        sender, receiver = _server("s1", order), _server("s2", order)
        records = [sender.step([_many(1, 3)], 0.0, 0).record]
        step = sender.step([Forgot("A", 1)], 0.0, 0)
        records.append(step.record)
        receiver.step([Forgot("A", 1)], 0.0, 0)
        found: list[str] = []
        outgoing = [("s1", one) for one in step.outgoing]
        while outgoing:
            source, one = outgoing.pop(0)
            at = receiver if one.peer == "s2" else sender
            step = at.step([FromPeer("A", source, one.content)], 0.0, 0)
            outgoing += [(at.name, two) for two in step.outgoing]
            found += [letter.body.decode() for due in step.due for letter in due.letters]
        assert found == ["1", "2", "3"], order
        again = _server("s1", order)
        for record in records:
            assert record is not None
            again.replay(record, 0.0)
        assert again.channel.consumers["A"].generation == 1


def test_records_in_pieces() -> None:
    long = bytes(range(256)) * (limits.record_piece_bytes_max // 128)
    pieces = pieces_of(long)
    assert len(pieces) == 3 - (len(long) % limits.record_piece_bytes_max == 0)
    assert all(len(piece) <= limits.record_piece_bytes_max + 2 for piece in pieces)
    assert list(joined([b"\x90", *pieces, b"\x91"])) == [b"\x90", long, b"\x91"]
    assert list(joined([*pieces[:-1], b"\x90"])) == [b"\x90"], "a record without its end never took place"
    assert list(joined([pieces[0], *pieces])) == [long]
    assert pieces_of(b"\x90" * limits.record_piece_bytes_max) == [b"\x90" * limits.record_piece_bytes_max]
