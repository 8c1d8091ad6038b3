"""The format of the log: a replay makes the same frames again; a list of destinations is in a train and in a record
once."""

import msgspec
import pytest

from antecede import limits
from antecede.channel import Letter, decode_train, encode_train
from antecede.engine import Outbound, Reaction
from antecede.errors import AgentError, StoreError, WireError
from antecede.link import Frame
from antecede.orders import parse
from antecede.server import (
    AgentServer,
    FromPeer,
    Handled,
    Listed,
    Plan,
    Published,
    PublishedMany,
    Reacted,
    Step,
    decode_record,
    encode_record,
    recover,
)
from antecede.topology import Domain, Topology

_to = ("x", "y", "z")


def _server(name: str = "s1") -> AgentServer:
    homes = {"topic": "s1", "x": "s2", "y": "s2", "z": "s2"}
    return AgentServer(name, Plan(Topology([Domain("A", ("s1", "s2"))]), {"A": parse("pruned")}, homes), int(name[1:]))


def _steps(server: AgentServer) -> list[Step]:
    """Take steps that send several letters to the same destinations."""
    steps = [
        server.step(
            [
                Published("c", 1, _to, "Word", b"1"),
                Published("c", 2, _to, "Word", b"2"),
                Published("c", 3, ("x",), "Word", b"3"),
            ],
            *(0.0, 5),
        ),
        server.step(
            [
                PublishedMany("c", 4, ("y", "z"), "Word", [b"4", b"5"]),
                Published("c", 6, ("topic",), "Word", b"6"),
                Published("c", 7, ("topic",), "Word", b"7"),
            ],
            *(0.0, 5),
        ),
    ]
    outbound = (Outbound(_to, "Word", b"r"), Outbound(("x",), "Word", b"q"))
    reactions = tuple(Reaction(letter.id, outbound) for letter in server.engine.mailboxes["topic"])
    return [*steps, server.step([Reacted("topic", reactions, b"state", 5)], 0.0, 5)]


def _busy() -> tuple[AgentServer, list[bytes]]:
    """A server and its log."""
    server = _server()
    records = [server.begin("epoch")]
    for step in _steps(server):
        assert step.record is not None
        records.append(step.record)
    return server, records


def _bodies(server: AgentServer) -> list[bytes]:
    """The unacknowledged frames to s2."""
    return list(server.channel.consumers["A"].links["s2"].bodies())


def test_frames_are_made_again() -> None:
    server, records = _busy()
    again = _server()
    for record in records:
        again.replay(record, 0.0)
    assert again.snapshot() == server.snapshot()
    recover(again, None, [], "epoch", 0.0)
    assert _bodies(again) == _bodies(server)


def test_a_new_life_gives_no_number_again() -> None:
    """A letter of a lost step may have been handled: its id must not be that of another letter."""
    server, records = _busy()
    lost = server.step([Published("c", 8, ("topic",), "Word", b"8")], 0.0, 5)
    again = _server()
    first = recover(again, None, records, "epoch", 0.0)
    other = again.step([Published("d", 1, ("topic",), "Word", b"9")], 0.0, 5)
    ids = {due.letters[-1].id for step in (lost, other) for due in step.due}
    assert len(ids) == 2
    third = _server()
    recover(third, None, [*records, first], "epoch", 0.0)
    another = third.step([Published("d", 1, ("topic",), "Word", b"9")], 0.0, 5)
    assert another.due[0].letters[-1].id not in ids


def test_a_record_has_each_list_once() -> None:
    to = tuple(f"agent{number}" for number in range(100))
    items: list[Published | PublishedMany | Reacted] = [
        Published("c", 1, to, "Word", b"1"),
        PublishedMany("c", 2, to, "Word", [b"2", b"3"]),
        Published("c", 4, ("\0" + "0",), "Word", b"4"),
        Published("c", 5, ("x",), "Word", b"5"),
        Reacted("topic", (Reaction("m1", (Outbound(to, "Word", b"6"),)), Reaction("m2")), None, 5),
    ]
    record = encode_record(list(items), share=True)
    assert record.count(b"agent99") == 1
    read = decode_record(record)
    assert read == items
    assert read[0].to is read[1].to  # type: ignore[union-attr]
    broken = msgspec.msgpack.encode([Listed([]), Published("c", 1, ("\0" + "7",), "Word", b"1")])
    with pytest.raises(StoreError, match="unreadable record"):
        decode_record(broken)


def test_a_train_with_lists_is_read_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    letters = [Letter(str(number), "s", _to, "T", b"", context="c") for number in range(3)]
    letters.insert(1, Letter("one", "s", ("x",), "T", b"", "?1"))
    train = encode_train(letters)
    assert train.count(b"z") == 1
    read = decode_train(train)
    assert read == letters
    assert read[0].to is read[2].to
    for end in range(2, len(train)):
        with pytest.raises(WireError, match="unreadable train"):
            decode_train(train[:end])
    beyond = msgspec.msgpack.encode((3, [], [["1", "s", 0, "T", b""]]))
    with pytest.raises(WireError, match="refers to list 0 of destinations, counted from 0, but the train has 0 lists"):
        decode_train(beyond)
    monkeypatch.setattr(limits, "train_copies_max", 10)
    assert decode_train(train) == letters
    monkeypatch.setattr(limits, "train_copies_max", 9)
    with pytest.raises(WireError, match="more than 9 destinations"):
        decode_train(train)


@pytest.mark.parametrize("most", [3, 4, 7])
def test_a_train_has_no_more_destinations_than_its_receiver_accepts(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "train_copies_max", most)
    server, receiver = _server(), _server("s2")
    server.begin("epoch")
    many = server.step([PublishedMany("c", 1, _to, "Word", [b"1", b"2", b"3"])], 0.0, 5)
    single = server.step([Published("c", number, _to, "Word", b"x") for number in (4, 5, 6)], 0.0, 5)
    for step in (many, single):
        for one in step.outgoing:
            assert isinstance(one.content, Frame)
            assert not receiver.step([FromPeer("A", "s1", one.content)], 0.0, 5).faults
    assert len(receiver.engine.mailboxes["z"]) == 6


def test_letters_that_were_handled_plainly_are_the_same_as_their_reactions() -> None:
    short, long = _busy()[0], _busy()[0]
    records = []
    for server in (short, long):
        step = server.step([PublishedMany("c", 8, ("topic",), "Word", [b"1", b"2", b"3", b"4"])], 0.0, 5)
        ids = [letter.id for letter in server.engine.mailboxes["topic"]]
        assert step.due[0].letters[-1].id == ids[-1]
        server.step([Handled("topic", ids[1:3], b"wrong", 7)], 0.0, 7)
        done = Handled("topic", ids[:3], b"new", 0)
        done_long = Reacted("topic", done.reactions, b"new", 0)
        records.append(server.step([done if server is short else done_long], 0.0, 7).record)
    assert short.snapshot() == long.snapshot()
    assert records[0] is not None
    assert records[1] is not None
    assert decode_record(records[0]) == [Handled("topic", ids[:3], b"new", 7)]
    assert len(records[0]) < len(records[1])
    again = _busy()[0]
    again.step([PublishedMany("c", 8, ("topic",), "Word", [b"1", b"2", b"3", b"4"])], 0.0, 5)
    again.replay(records[0], 0.0)
    assert again.snapshot() == short.snapshot()
    with pytest.raises(AgentError, match="not its next letters"):
        again.replay(records[0], 0.0)
