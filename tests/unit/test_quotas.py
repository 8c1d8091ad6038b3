"""Quotas of mailboxes: what expires, when, and what never does."""

from typing import Any

import pytest

from antecede import limits
from antecede.engine import ALL_FULL, Reaction
from antecede.errors import TopologyError
from antecede.orders import parse
from antecede.server import AgentServer, Look, Plan, Published, PublishedMany, Reacted, Seen, decode_record
from antecede.topology import Domain, Mailboxes, Quota, Topology, parse_topology


def _server(**named: Any) -> AgentServer:
    mailboxes = Mailboxes(named={name.replace("_", "@"): quota for name, quota in named.items()})
    plan = Plan(Topology([Domain("A", ("s1",))]), {"A": parse("fifo")}, {"a": "s1"}, mailboxes=mailboxes)
    server = AgentServer("s1", plan, 7)
    server.begin("")
    return server


def _send(server: AgentServer, to: str, count: int, size: int = 1) -> None:
    number = server.clients.get("c", 0) + 1
    server.step([PublishedMany("c", number, (to,), "T", [bytes(size)] * count)], 0.0, 0)


def _look(server: AgentServer, clock_ms: int = 0) -> list[Any]:
    record = server.step([Look()], 0.0, clock_ms).record
    return [] if record is None else decode_record(record)


def _waiting(server: AgentServer, agent: str) -> list[int]:
    return [int(letter.id.rpartition(".")[2]) for letter in server.engine.mailboxes.get(agent, ())]


def test_the_oldest_letters_above_the_quota_expire() -> None:
    server = _server(bob_s1=Quota(letters=3))
    _send(server, "bob@s1", 3)
    assert _look(server) == [], "exactly the quota"
    _send(server, "bob@s1", 2)
    _look(server)
    assert _waiting(server, "bob@s1") == [3, 4, 5]
    assert [dead.reason for dead in server.engine.dead.values()] == ["expired: more than 3 letters in the mailbox"] * 2


def test_bytes() -> None:
    server = _server(bob_s1=Quota(bytes=100))
    _send(server, "bob@s1", 4, 25)
    assert _look(server) == []
    _send(server, "bob@s1", 1, 26)
    _look(server)
    assert _waiting(server, "bob@s1") == [3, 4, 5]
    server.step([Reacted("bob@s1", (Reaction(server.engine.mailboxes["bob@s1"][0].id),), None, 0)], 0.0, 0)
    _send(server, "bob@s1", 1, 25)
    assert _look(server) == [], "what was handled no longer counts"


def test_age_counts_across_a_restart() -> None:
    server = _server(bob_s1=Quota(seconds=60))
    _send(server, "bob@s1", 2)
    assert _look(server, 1_000) == [Seen(["bob@s1"], 1_000)]
    _send(server, "bob@s1", 1)
    _look(server, 30_000)
    again = _server(bob_s1=Quota(seconds=60))
    again.restore(server.snapshot(), 0.0)
    assert _look(again, 60_999) == []
    _look(again, 61_000)
    assert _waiting(again, "bob@s1") == [3]
    _look(again, 90_000)
    assert _waiting(again, "bob@s1") == []


def test_what_was_handed_out_does_not_expire() -> None:
    server = _server(a=Quota(letters=2))
    _send(server, "a", 1)
    (first,) = server.engine.mailboxes["a"]
    _send(server, "a", 3)
    assert _look(server) == []
    assert server.engine.quotas.crowded == {"a"}
    step = server.step([Reacted("a", (Reaction(first.id),), None, 0)], 0.0, 0)
    assert _waiting(server, "a") == [3, 4], "as soon as nothing is in its hands, before the next letters are handed out"
    assert [letter.id for letter in step.due[0].letters] == [letter.id for letter in server.engine.mailboxes["a"]]


def test_a_question_that_expires_is_answered() -> None:
    server = _server(bob_s1=Quota(letters=1))
    server.step([Published("c", 1, ("bob@s1",), "T", b"", ask=True)], 0.0, 0)
    _send(server, "bob@s1", 1)
    _look(server)
    (told,) = server.engine.mailboxes["c@s1"]
    assert (told.type, told.answers) == ("Unanswered", "?1")


def test_full_mailboxes_refuse_publishes_of_clients_of_this_server() -> None:
    server = _server(a=Quota(letters=2, full="refuse"))
    _send(server, "a", 2)
    step = server.step([Published("d", 1, ("a",), "T", b""), Published("d", 1, ("bob@s1",), "T", b"")], 0.0, 0)
    refused, accepted = step.replies
    assert (refused.code, refused.retry) == ("mailbox-full", False)  # type: ignore[union-attr]
    assert accepted.number == 1, "others are not affected"


def test_a_mailbox_that_refused_and_became_empty_is_measured_again() -> None:
    """The server looks at mailboxes only from time to time: here, never."""
    server = _server(a=Quota(bytes=100, full="refuse"))
    _send(server, "a", 2, 40)
    _send(server, "a", 1, 40)
    assert _waiting(server, "a") == [1, 2]
    done = tuple(Reaction(letter.id) for letter in server.engine.mailboxes["a"])
    server.step([Reacted("a", done, None, 0)], 0.0, 0)
    _send(server, "a", 1, 1)
    _send(server, "a", 1, 90)
    assert len(_waiting(server, "a")) == 2, "the sizes of handled letters do not count"


@pytest.mark.parametrize("order", ["fifo", "skeen"])
def test_a_full_mailbox_refuses_a_multicast(order: str) -> None:
    """Through a total order, the copy for this server comes back later."""
    mailboxes = Mailboxes(named={"a": Quota(letters=2, full="refuse")})
    plan = Plan(Topology([Domain("A", ("s1", "s2"))]), {"A": parse(order)}, {"a": "s1", "b": "s2"}, mailboxes=mailboxes)
    server = AgentServer("s1", plan, 7)
    server.begin("")
    _send(server, "a", 2)
    replies = server.step([Published("d", 1, ("a", "b"), "T", b"")], 0.0, 0).replies
    assert [reply.code for reply in replies] == ["mailbox-full"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "quota",
    [Quota(letters=3, full="refuse"), Quota(bytes=14, full="refuse"), Quota(letters=3, bytes=12, full="refuse")],
)
def test_a_batch_is_accepted_only_if_all_of_it_fits_and_nothing_accepted_expires(quota: Quota) -> None:
    """A client cannot know which part of a refused batch was accepted."""
    server = _server(a=quota)
    refused = (1, 5, "mailbox-full")
    for to in (("a",), ("bob@s1", "a")):
        (reply,) = server.step([PublishedMany("d", 1, to, "T", [b"1234"] * 5)], 0.0, 0).replies
        assert (reply.number, reply.count, reply.code) == refused, "also if the mailbox is empty"  # type: ignore[union-attr]
    (reply,) = server.step([PublishedMany("d", 1, ("a",), "T", [b"1234"] * 3)], 0.0, 0).replies
    assert reply.number == 3, "exactly to the bound"
    (reply,) = server.step([Published("d", 4, ("a",), "T", b"1234")], 0.0, 0).replies
    assert (reply.number, reply.code) == (4, "mailbox-full")  # type: ignore[union-attr]
    assert _look(server) == []
    assert _waiting(server, "a") == [1, 2, 3]


def test_absent_clients_alone_never_fill_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "backlog_letters_max", 20)
    server = _server()
    for place in range(4):
        _send(server, f"c{place}@s1", 4)
    while _look(server):
        pass
    assert server.backlog().letters == 10
    assert {dead.reason for dead in server.engine.dead.values()} == {ALL_FULL}
    _send(server, "a", 30)
    assert _look(server) == [], "letters of agents are not their fault"


@pytest.mark.parametrize(
    ("lengths", "over", "left"),
    [
        ([5, 5, 5, 5], 8, [3, 3, 3, 3]),
        ([9, 3, 2], 4, [5, 3, 2]),
        ([9, 3, 2], 10, [1, 1, 2]),
        ([9, 8, 1], 13, [2, 2, 1]),
        ([1] * 50, 7, [0] * 7 + [1] * 43),
        ([30], 12, [18]),
        ([2, 1], 3, [0, 0]),
    ],
)
def test_one_check_cuts_the_fullest_mailboxes_to_one_length(
    lengths: list[int], over: int, left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if thousands of mailboxes contain a few letters each. Before, each check cut only one mailbox."""
    monkeypatch.setattr(limits, "backlog_letters_max", 2 * (sum(lengths) - over))
    server = _server()
    for place, length in enumerate(lengths):
        _send(server, f"c{place:02}@s1", length)
    _look(server)
    assert sorted(len(_waiting(server, f"c{place:02}@s1")) for place in range(len(lengths))) == sorted(left)
    assert len(server.engine.dead) == over
    assert _look(server) == []


def test_one_step_lets_a_limited_number_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "drop_letters_max", 3)
    server = _server(bob_s1=Quota(letters=1))
    _send(server, "bob@s1", 9)
    counts = []
    while items := _look(server):
        counts.append(len(items[0].reactions))
    assert counts == [3, 3, 2]


_file = """
[servers]
s1 = "tcp://127.0.0.1:7101"
[domains]
A = { servers = ["s1"] }
[agents]
orders = { server = "s1", class = "shop:Orders"%s }
[mailboxes]
%s
"""


def test_the_settings_of_a_topology_file() -> None:
    settings = 'clients = { letters = 7 }\norders = { seconds = 1.5, full = "refuse" }\n"bob@s1" = { bytes = 9 }'
    file = parse_topology(_file % (', dead_follow = "hold"', settings))
    mailboxes = file.mailboxes
    assert mailboxes.quota("x@s1", False) == Quota(7, limits.mailbox_bytes_max)
    assert mailboxes.quota("orders", True) == Quota(seconds=1.5, full="refuse")
    assert mailboxes.quota("bob@s1", False) == Quota(limits.mailbox_letters_max, 9)
    assert mailboxes.quota("other", True) == Quota()
    assert mailboxes.hold == {"orders"}
    assert parse_topology(file.text()).mailboxes == mailboxes
    assert file.epoch == parse_topology(_file % ("", "")).epoch, "they may change from one start to the next"


@pytest.mark.parametrize(
    "line",
    [
        "clients = 7",
        "clients = { letters = -1 }",
        "clients = { letters = 1.5 }",
        "clients = { letters = true }",
        'clients = { full = "block" }',
        "clients = { size = 1 }",
        "nobody = { letters = 1 }",
        '"bob@s9" = { letters = 1 }',
    ],
)
def test_wrong_settings(line: str) -> None:
    with pytest.raises(TopologyError, match=r"topology:\d+: "):
        parse_topology(_file % ("", line))


def test_a_wrong_dead_follow() -> None:
    with pytest.raises(TopologyError, match="dead_follow"):
        parse_topology(_file % (', dead_follow = "stop"', ""))
    text = (_file % (', dead_follow = "hold"', "")).replace('server = "s1"', 'servers = ["s1"]')
    with pytest.raises(TopologyError, match="object orders: dead_follow is only for agents; remove it"):
        parse_topology(text)


def test_letters_do_not_expire_early_when_the_clock_is_set_forward_and_back() -> None:
    server = _server(bob_s1=Quota(seconds=10))
    _send(server, "bob@s1", 1)
    _look(server, 1_000_000)
    _look(server, 1_009_999)
    assert _waiting(server, "bob@s1") == [1]
    # The clock is set back by 900 s: the age of what waits begins again, and is bounded.
    _look(server, 100_000)
    _send(server, "bob@s1", 1)
    _look(server, 101_500)
    _look(server, 109_999)
    assert _waiting(server, "bob@s1") == [1, 2]
    _look(server, 110_000)
    assert _waiting(server, "bob@s1") == [2], "not before the clock is where it was"
    _look(server, 111_500)
    assert _waiting(server, "bob@s1") == []


def test_a_clock_that_is_set_forward_lets_the_letters_expire_in_their_sequence() -> None:
    server = _server(bob_s1=Quota(seconds=10))
    _send(server, "bob@s1", 1)
    _look(server, 1_000)
    _send(server, "bob@s1", 1)
    _look(server, 100_000)
    assert _waiting(server, "bob@s1") == [2], "what came before the jump is old, what was first seen after it is not"
    _look(server, 110_000)
    assert _waiting(server, "bob@s1") == []
    assert [dead.reason for dead in server.engine.dead.values()] == ["expired: more than 10 s in the mailbox"] * 2
