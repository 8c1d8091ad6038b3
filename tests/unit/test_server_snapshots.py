"""Snapshots of a server: each letter once."""

import msgspec
import pytest

from antecede import limits
from antecede.channel import Destinations, Letter
from antecede.engine import Alarm, Birth, Engine, Outbound, Reaction
from antecede.errors import SnapshotError
from antecede.orders import parse
from antecede.server import (
    AgentServer,
    FromPeer,
    LetterTable,
    Plan,
    Published,
    PublishedMany,
    Reacted,
    SavedLetters,
    decode_state,
    unpacked,
)
from antecede.topology import Domain, Topology

_absent = ("x@s2", "y@s2", "z@s2")


def _server(name: str = "s2") -> AgentServer:
    plan = Plan(Topology([Domain("A", ("s1", "s2"))]), {"A": parse("coordinator")}, {"a": "s2", "b": "s1"})
    return AgentServer(name, plan, int(name[1:]))


def _busy() -> AgentServer:
    """Return a server that has something of everything: multicasts in mailboxes, a dead letter, timers, an open
    question, a born agent, an own letter on its way through a total order and one that waits for it."""
    server = _server()
    server.begin("epoch")
    publishes = [
        Published("c", 1, ("a",), "Word", b"1"),
        Published("c", 2, ("a",), "Odd", b"2"),
        Published("c", 3, _absent, "Word", b"3", context="00-trace"),
        Published("c", 4, _absent, "Word", b"4", True),
    ]
    server.step(list(publishes), 0.0, 0)
    asked = Outbound(("b",), "Ask", b"?", "on_answer", 5000)
    reactions = (
        Reaction("s2.000002.1", (asked,), (Alarm(9000, "Ring", b"!"),), (Birth("kid", "m:Kid", b"k"),)),
        Reaction("s2.000002.2", dead="no handler"),
    )
    server.step([Reacted("a", reactions, b"state", 100)], 0.0, 100)
    last = [Published("c", 5, ("a", "b"), "Word", b"5"), Published("c", 6, ("a",), "Word", b"6")]
    server.step(list(last), 0.0, 200)
    return server


def _shares(engine: Engine) -> bool:
    """Return whether the mailboxes of the absent share letters, and the letters their destinations."""
    first, *others = (engine.mailboxes[agent] for agent in _absent)
    same = all(one is other for mailbox in others for one, other in zip(first, mailbox, strict=True))
    return same and first[0].to is first[1].to


def test_a_snapshot_gives_the_state_again_and_shares_what_was_shared() -> None:
    before, after = _busy(), _server()
    after.restore(before.snapshot(), 0.0, "epoch")
    assert after.engine.dump() == before.engine.dump()
    assert (after.timers.waiting, after.clients) == (before.timers.waiting, before.clients)
    assert after.channel.returns.dump() == before.channel.returns.dump()
    assert list(after.engine.dead) == list(before.engine.dead)
    assert _shares(after.engine)
    assert after.snapshot() == before.snapshot()


def test_a_snapshot_is_in_proportion_to_its_letters() -> None:
    """It has the bodies once, a few bytes for each mailbox entry, and some for each letter and name."""
    server = _server()
    to = tuple(f"absent-{number:04}@s2" for number in range(500))
    empty = len(server.snapshot())
    server.step([PublishedMany("c", 1, to, "Word", [bytes(100)] * 70)], 0.0, 0)
    entries = 70 * len(to)
    assert sum(map(len, server.engine.mailboxes.values())) == entries
    assert len(server.snapshot()) - empty <= 70 * (100 + 64) + 8 * entries + 64 * len(to)


def test_a_damaged_snapshot_is_refused() -> None:
    whole = _busy().snapshot()
    for data in (b"", b"\x99", b"\x80", whole[:-1], b"\xc1" + whole):
        with pytest.raises(SnapshotError, match="unreadable snapshot of server s2"):
            _server().restore(data, 0.0)
    for name, value in (
        ("mailboxes", {"a": [99]}),
        ("timers", [[1, 2, "a", 99]]),
        ("dead", [["a", 99, "reason"]]),
        ("away", [[1, 99]]),
        ("format", 2),
        ("mailboxes", {"a": [-1]}),
    ):
        values = msgspec.msgpack.decode(whole)
        values[name] = value
        with pytest.raises(SnapshotError):
            unpacked(decode_state(msgspec.msgpack.encode(values)))


def test_a_damaged_table_of_letters_is_refused() -> None:
    good = SavedLetters(["a"], [[0]], ["1"], [0], [0], [0], [b""], [])
    assert good.letters() == [Letter("1", "a", ("a",), "a", b"")]
    for name, value in (
        ("sources", [1]),
        ("to", [1]),
        ("lists", [[1]]),
        ("types", []),
        ("marks", [(1, "", "", "", "")]),
    ):
        with pytest.raises(SnapshotError):
            msgspec.structs.replace(good, **{name: value}).letters()


def test_equal_letters_are_stored_once_and_others_with_their_id_are_kept_apart() -> None:
    one = Letter("1", "s", ("a", "b"), "T", b"x", ask="q")
    equal = msgspec.structs.replace(one, to=("a", "b"))
    other = msgspec.structs.replace(one, body=b"y")
    table = LetterTable()
    assert [table.position(letter) for letter in (one, equal, other, one, other)] == [0, 0, 1, 0, 1]
    assert table.saved().letters() == [one, other]


# Destinations in memory.


def _one_list(engine: Engine, agent: str) -> bool:
    return len({id(letter.to) for letter in engine.mailboxes[agent]}) == 1


def test_letters_share_their_destinations_live_and_replayed() -> None:
    """Also those of different records, and those that a peer sent."""
    sender, receiver, replayed = _server("s1"), _server("s2"), _server("s2")
    to = ("x@s1", "x@s2", "y@s2")
    for number in range(1, 5):
        copy = tuple("".join(list(name)) for name in to)
        published = Published("c", number, copy, "Word", b"")
        step = sender.step([published], 0.0, 0)
        for _ in range(3):
            inputs = [FromPeer("A", "s1", one.content) for one in step.outgoing]
            answer = receiver.step(list(inputs), 0.0, 0)
            if answer.record is not None:
                replayed.replay(answer.record, 0.0)
            back = [FromPeer("A", "s2", one.content) for one in answer.outgoing]
            step = sender.step(list(back), 0.0, 0)
    for server in (sender, receiver, replayed):
        agent = f"x@{server.name}"
        assert len(server.engine.mailboxes[agent]) == 4
        assert _one_list(server.engine, agent), server.name


def test_shared_destinations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "shared_addresses_max", 6)
    destinations = Destinations()
    one, two, three = ("a", "b"), ("c", "d", "e", "f"), ("g", "h")

    def copied(to: tuple[str, ...]) -> tuple[str, ...]:
        return (*to[:1], *to[1:])

    assert [destinations.shared(to) for to in (one, two)] == [one, two]
    assert destinations.shared(copied(one)) is one
    assert destinations.shared(three) is three, "at the bound the others are forgotten"
    assert destinations.shared(copied(three)) is three
    again = copied(one)
    assert destinations.shared(again) is again
