"""Many dead letters: pages, filters, and one record per step."""

from typing import Any

import msgspec
import pytest

from antecede import limits
from antecede.channel import Letter
from antecede.engine import Choice, Range, Reaction, page_of
from antecede.errors import MissingError, OverloadError, UsageError
from antecede.orders import parse
from antecede.server import AgentServer, Buried, BuriedMany, DeadLetters, Plan, Reacted, decode_record
from antecede.topology import Domain, Topology


def _server(letters: int, body: bytes = b"\x80") -> AgentServer:
    """A server with this number of dead letters, half of them of agent a."""
    plan = Plan(Topology([Domain("A", ("s1",))]), {"A": parse("fifo")}, {"a": "s1", "b": "s1"})
    server = AgentServer("s1", plan, 7)
    server.begin("")
    for number in range(letters):
        letter = Letter(f"x.{number}", "alice@s1", ("ab"[number % 2],), f"T{number % 3}", body)
        server.engine.clock_ms = 1_000 * number
        server.engine.set_aside("ab"[number % 2], letter, f"KeyError: {number}")
    return server


def _commands(server: AgentServer, records: list[list[Any]]) -> DeadLetters:
    def change(given: Any) -> None:
        record = server.step([given], 0.0, 1).record
        assert record is not None
        records.append(decode_record(record))

    return DeadLetters(server, change)


def _all_pages(dead: DeadLetters, command: str, *chosen: str) -> list[dict[str, Any]]:
    pages: list[dict[str, Any]] = []
    upto, last, more = 0, 0, True
    while more:
        page = dead.commands[command][1](str(upto), str(last), "0", *(chosen or ("", "", "", "0")))
        pages.append(page)
        upto, last, more = page["upto"], last or page["last"], page["more"]
    return pages


def test_pages_stay_right_while_letters_come_and_go() -> None:
    engine = _server(10).engine
    one = page_of(engine.dead, Choice(), Range(0, 0, 3))
    assert [dead.number for dead in one.letters] == [1, 2, 3]
    for dead in one.letters:
        engine.bury(dead.key)
    engine.set_aside("a", Letter("y.1", "bob@s1", ("a",), "T", b""), "late")
    two = page_of(engine.dead, Choice(), Range(one.upto, 0, 3))
    assert [dead.number for dead in two.letters] == [4, 5, 6]
    three = page_of(engine.dead, Choice(), Range(two.upto, 10, 30))
    assert [dead.number for dead in three.letters] == [7, 8, 9, 10], "number 11 died after the request began"
    assert not three.more


@pytest.mark.parametrize(
    ("choice", "numbers"),
    [
        (Choice(), [1, 2, 3, 4, 5, 6]),
        (Choice(agent="b"), [2, 4, 6]),
        (Choice(type="T0"), [1, 4]),
        (Choice(reason=": 3"), [4]),
        (Choice(before_ms=2_000), [1, 2]),
        (Choice(agent="b", type="T0"), [4]),
    ],
)
def test_filters(choice: Choice, numbers: list[int]) -> None:
    assert [dead.number for dead in page_of(_server(6).engine.dead, choice, Range()).letters] == numbers


def test_a_page_ends_at_each_of_its_bounds() -> None:
    dead = _server(10).engine.dead
    assert page_of(dead, Choice(type="none"), Range(examined_max=4)).upto == 4
    assert page_of(dead, Choice(type="none"), Range(examined_max=4)).more
    large = page_of(dead, Choice(), Range(size_max=25), lambda one: 10)
    assert (len(large.letters), large.more) == (2, True)
    assert len(page_of(dead, Choice(), Range(size_max=5), lambda one: 10).letters) == 1, "one letter always fits"
    exact = page_of(dead, Choice(), Range(letters_max=10))
    assert (len(exact.letters), exact.more) == (10, False)


def test_many_are_buried_in_records_of_limited_size() -> None:
    count = 2 * limits.drop_letters_max + 1
    server, records = _server(count), []
    pages = _all_pages(_commands(server, records), "dead-bury-page")
    assert [page["buried"] for page in pages] == [limits.drop_letters_max, limits.drop_letters_max, 1]
    assert [[type(item) for item in record] for record in records] == [[BuriedMany]] * 3
    assert not server.engine.dead


def test_many_are_sent_again_and_leave_the_list_in_the_same_record() -> None:
    server, records = _server(limits.dead_page_letters_max + 5), []
    pages = _all_pages(_commands(server, records), "dead-replay-page", "a", "", "", "0")
    assert sum(page["replayed"] for page in pages) == len(records[0]) - 1 == len(server.engine.mailboxes["a"])
    assert [type(record[-1]) for record in records] == [BuriedMany] * len(pages)
    assert {dead.agent for dead in server.engine.dead.values()} == {"b"}
    again = AgentServer("s1", server.plan, 7)
    again.engine.load(_server(limits.dead_page_letters_max + 5).engine.dump())
    for record in records:
        for item in record:
            again._apply(item, 0.0)
    assert again.engine.dump() == server.engine.dump()


def test_large_letters_are_sent_again_a_few_at_a_time() -> None:
    server, records = _server(5, bytes(limits.dead_page_bytes_max)), []
    pages = _all_pages(_commands(server, records), "dead-replay-page")
    assert [page["replayed"] for page in pages] == [1, 1, 1, 1, 1]


def test_a_letter_that_dies_again_is_not_sent_for_ever() -> None:
    server, records = _server(3), []
    dead = _commands(server, records)
    first = dead.replay_page("0", "0", "1", "", "", "", "0")
    (letter,) = server.engine.mailboxes["a"]
    server.step([Reacted("a", (Reaction(letter.id, dead="again"),), None, 5)], 0.0, 5)
    upto, more = first["upto"], True
    while more:
        page = dead.replay_page(str(upto), str(first["last"]), "1", "", "", "", "0")
        upto, more = page["upto"], page["more"]
    assert [one.number for one in server.engine.dead.values()] == [4]


def test_destinations_that_are_gone_and_an_overloaded_server() -> None:
    server, records = _server(2), []
    server.engine.set_aside("gone", Letter("z.1", "alice@s1", ("gone",), "T", b""), "no such agent")
    dead = _commands(server, records)
    page = dead.replay_page("0", "0", "0", "", "", "", "0")
    assert (page["replayed"], page["skipped"], page["dead"]) == (2, 1, 1)
    server.overloaded = True
    with pytest.raises(OverloadError):
        dead.replay_page("0", "0", "0", "", "", "", "0")
    assert dead.bury_page("0", "0", "0", "", "", "", "0")["buried"] == 1, "an overloaded server can get rid of letters"


def test_bad_requests() -> None:
    dead = _commands(_server(2), [])
    for number in ("", "-1", "x", "9" * 20, "٣"):
        with pytest.raises(UsageError):
            dead.page(number, "0", "0", "", "", "", "0")
    with pytest.raises(MissingError):
        dead.show("nobody")
    assert dead.show("x.1")["place"] == dead.show("x.1 b")["place"] == "s1:2"


def test_fields_that_are_too_long_are_not_shown() -> None:
    long = msgspec.msgpack.encode({"text": "x" * limits.dead_shown_bytes_max})
    shown = _commands(_server(1, long), []).show("x.0")
    assert (shown["fields"], shown["length"]) == (None, len(long))


def test_numbers_survive_a_snapshot() -> None:
    server = _server(4)
    server.step([Buried(next(iter(server.engine.dead)))], 0.0, 0)
    again = AgentServer("s1", server.plan, 7)
    again.restore(server.snapshot(), 0.0)
    assert again.engine.dump() == server.engine.dump()
    assert again.engine.deaths == 4
