"""The trace has the delivery of a letter before what its client published while it handled the letter."""

import asyncio
from pathlib import Path

import pytest

import antecede
from antecede.engine import Reaction
from antecede.live import ServerRuntime
from antecede.orders import parse
from antecede.server import (
    AgentServer,
    Begun,
    Handled,
    Plan,
    Projection,
    Published,
    PublishedMany,
    Reacted,
    decode_record,
    encode_record,
)
from antecede.topology import Domain, Topology, parse_topology
from antecede.trace import Event, judge
from helpers.ports import free_ports
from helpers.recordings import project_directory
from helpers.systems import run_bounded


def _server() -> AgentServer:
    topology = Topology([Domain("A", ("s1", "s2"))])
    return AgentServer("s1", Plan(topology, {"A": parse("pruned")}, {"x": "s2"}), 1)


def _publish(number: int, to: str = "c@s1", client: str = "b", *begun: str) -> Published:
    return Published(client, number, (to,), "T", b"", begun=tuple(Begun(0, (letter,)) for letter in begun))


def _rows(rows: list[Event]) -> list[tuple[str, str | None]]:
    return [(row.kind, row.message) for row in rows if row.process == "c@s1"]


def test_letters_that_were_begun_are_delivered_before_the_publish() -> None:
    server, projection, rows = _server(), Projection("s1", 1), list[Event]()
    records: list[bytes] = []

    def step(*inputs: Published | PublishedMany | Handled) -> list[Begun]:
        record = server.step(list(inputs), 0.0, 5).record
        assert record is not None
        records.append(record)
        rows.extend(projection.rows(record))
        items = decode_record(record)
        return [one for item in items if isinstance(item, Published | PublishedMany) for one in item.begun]

    step(*(_publish(number) for number in range(1, 6)))
    first, second, third, fourth, fifth = (letter.id for letter in server.engine.mailboxes["c@s1"])
    assert step(_publish(1, "x", "c", second)) == [Begun(0, (first, second), 5)]
    assert step(_publish(2, "x", "c", second), _publish(3, "x", "c", first)) == [], "they are recorded"
    # The next position in the trace, and a new server, know them, too.
    again = Projection("s1", 1)
    again.load(projection.save())
    projection = again
    restored = _server()
    restored.restore(server.snapshot(), 0.0)
    assert restored.engine.read == server.engine.read == {"c@s1": second}
    step(Handled("c@s1", [first], None, 5))
    claims = (Begun(0, (second,)), Begun(1, (third,)), Begun(3, (fourth,)))
    many = PublishedMany("c", 4, ("x",), "T", [b"4", b"5", b"6", b"7"], begun=claims)
    assert step(many) == [Begun(1, (third,), 5), Begun(3, (fourth,), 5)]
    step(Handled("c@s1", [second, third], None, 5))
    died = Reacted("c@s1", (Reaction(fourth, dead="no handler"), Reaction(fifth)), None, 5)
    server.step([died], 0.0, 5)
    rows.extend(projection.rows(encode_record([died])))
    assert step(_publish(8, "x", "c", fifth, "forged")) == [], "it was handled"
    sent = [letter for kind, letter in _rows(rows) if kind == "send"]
    assert _rows(rows) == [
        *(("deliver", first), ("deliver", second), ("send", sent[0]), ("send", sent[1]), ("send", sent[2])),
        *(("send", sent[3]), ("deliver", third), ("send", sent[4]), ("send", sent[5]), ("deliver", fourth)),
        *(("send", sent[6]), ("local", None), ("deliver", fifth), ("send", sent[7])),
    ]
    assert [(row.dead, row.extra) for row in rows if row.kind == "local"] == [(True, {"letter": fourth})]
    replayed = _server()
    for record in [*records[:-1], encode_record([died]), records[-1]]:
        replayed.replay(record, 0.0)
    assert replayed.engine.dump() == server.engine.dump()


def test_a_part_of_a_batch_that_the_server_has_is_not_recorded_again() -> None:
    server = _server()
    server.step([_publish(1), _publish(2)], 0.0, 5)
    first, second = (letter.id for letter in server.engine.mailboxes["c@s1"])
    bodies = [b"1", b"2", b"3"]
    server.step([PublishedMany("c", 1, ("x",), "T", bodies[:2], begun=(Begun(0, (first,)),))], 0.0, 5)
    claims = (Begun(0, (first,)), Begun(1, (first,)), Begun(2, (second,)))
    record = server.step([PublishedMany("c", 1, ("x",), "T", bodies, begun=claims)], 0.0, 5).record
    assert record is not None
    assert decode_record(record) == [PublishedMany("c", 3, ("x",), "T", [b"3"], begun=(Begun(0, (second,), 5),))]


class Ask(antecede.Notification):
    number: int


class Reply(antecede.Notification):
    number: int


@pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
def test_a_client_that_replies_in_its_handler(tmp_path: Path, local: bool) -> None:
    """Ann asks everybody; ben replies to everybody within his handler. The trace shows that a reply follows from its
    question."""
    [port] = free_ports(1)
    file = parse_topology(
        f'[servers]\ns1 = "tcp://127.0.0.1:{port}"\n[domains]\nA = {{ servers = ["s1"] }}\n'
        '[agents]\nall = { server = "s1", class = "antecede:Topic" }\n'
    )
    data = str(tmp_path / "s1")

    async def main() -> None:
        server = ServerRuntime(file, "s1", data, trace=True)
        await server.start()
        try:

            def bus(name: str) -> antecede.Bus:
                return server.bus(name) if local else antecede.connect(f"tcp://127.0.0.1:{port}", name=name)

            async with bus("ann") as ann, bus("ben") as ben:
                replies: list[int] = []
                done = asyncio.Event()

                def heard(received: antecede.Received) -> None:
                    if received.type == "Reply":
                        replies.append(received.fields["number"])
                        if len(replies) == 20:
                            done.set()

                async def reply(received: antecede.Received) -> None:
                    if received.type == "Ask":
                        ben.send("all", Reply(number=received.fields["number"]))
                        await asyncio.sleep(0)
                        await ben.send("all", Reply(number=-received.fields["number"]))

                await ann.subscribe("all", heard)
                await ben.subscribe("all", reply)
                for number in range(1, 11):
                    await ann.send("all", Ask(number=number))
                await done.wait()
        finally:
            await server.stop()

    run_bounded(main)
    rows = list(project_directory(data))
    verdict = judge(rows)
    assert verdict.holds("causal")
    asked = {
        row.message for row in rows if row.process == "ann@s1" and row.kind == "send" and row.notification == "Ask"
    }
    assert len(asked) == 10
    begun, sends = 0, 0
    for row in rows:
        if row.process == "ben@s1" and row.kind == "deliver" and row.notification == "Ask":
            begun += 1
        elif row.process == "ben@s1" and row.kind == "send" and row.notification == "Reply":
            assert begun == sends // 2 + 1, "a reply comes after its question, and before the next one"
            sends += 1
    assert (begun, sends) == (10, 20)
