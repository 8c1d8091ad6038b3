"""The trace has the delivery of a letter before what its client published while it handled the letter."""

import asyncio
from pathlib import Path

import pytest

import antecede
from antecede.live import ServerRuntime
from antecede.orders import parse
from antecede.recording.segments import project_directory
from antecede.server import AgentServer, Plan
from antecede.server.items import Handled, Published, Read, decode_record
from antecede.server.projection import Projection
from antecede.server.words import Reading
from antecede.topology import Domain, Topology, parse_topology
from antecede.trace import Event, judge
from helpers.ports import free_ports
from helpers.systems import run_bounded


def _server() -> AgentServer:
    topology = Topology([Domain("A", ("s1", "s2"))])
    return AgentServer("s1", Plan(topology, {"A": parse("pruned")}, {"x": "s2"}), 1)


def _publish(number: int, to: str = "c@s1", client: str = "b") -> Published:
    return Published(client, number, (to,), "T", b"")


def _rows(rows: list[Event]) -> list[tuple[str, str | None]]:
    return [(row.kind, row.message) for row in rows if row.process == "c@s1"]


def test_letters_that_were_begun_are_delivered_before_the_publish() -> None:
    server, projection, rows = _server(), Projection("s1", 1), list[Event]()
    records: list[bytes] = []

    def step(*inputs: object) -> list[object]:
        record = server.step(list(inputs), 0.0, 5).record  # type: ignore[arg-type]
        if record is None:
            return []
        records.append(record)
        rows.extend(projection.rows(record))
        return [item for item in decode_record(record) if isinstance(item, Read)]

    step(*(_publish(number) for number in range(1, 5)))
    first, second, third, fourth = (letter.id for letter in server.engine.mailboxes["c@s1"])
    assert step(Reading("c@s1", second), _publish(1, "x", "c")) == [Read("c@s1", [first, second], 5)]
    assert step(Reading("c@s1", second), Reading("c@s1", first), _publish(2, "x", "c")) == [], "known already"
    # The next position in the trace, and a new server, know them, too.
    again = Projection("s1", 1)
    again.load(projection.save())
    projection = again
    restored = _server()
    restored.restore(server.snapshot(), 0.0)
    assert restored.engine.read == server.engine.read == {"c@s1": second}
    step(Handled("c@s1", [first], None, 5))
    assert step(Reading("c@s1", third), _publish(3, "x", "c")) == [Read("c@s1", [third], 5)]
    step(Handled("c@s1", [second, third, fourth], None, 5))
    assert step(Reading("c@s1", fourth), Reading("c@s1", "forged"), _publish(4, "x", "c")) == [], "it was handled"
    sent = [letter for kind, letter in _rows(rows) if kind == "send"]
    assert _rows(rows) == [
        *(("deliver", first), ("deliver", second), ("send", sent[0]), ("send", sent[1])),
        *(("deliver", third), ("send", sent[2]), ("deliver", fourth), ("send", sent[3])),
    ]
    replayed = _server()
    for record in records:
        replayed.replay(record, 0.0)
    assert replayed.snapshot() == server.snapshot()


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
    rows = list(project_directory(data, file))
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
