"""A peer may bring only letters whose sender lives behind that link; the others are dropped, live and in a replay."""

import pytest

from antecede.channel import Letter, encode_packet, encode_train
from antecede.link import Frame
from antecede.messages import Message, Send
from antecede.orders import parse
from antecede.server import AgentServer, FromPeer, Plan
from antecede.topology import Domain, Topology

_homes = {"a1": "s1", "a2": "s2", "a3": "s3", "a4": "s4"}


def _server(name: str = "s2", order: str = "pruned") -> AgentServer:
    """s1 and s4 share domain A with s2, and s3 is behind s2 in domain B."""
    topology = Topology([Domain("A", ("s1", "s2", "s4")), Domain("B", ("s2", "s3"))])
    plan = Plan(topology, {"A": parse(order), "B": parse("pruned")}, _homes)
    server = AgentServer(name, plan, int(name[1:]))
    server.begin("epoch")
    return server


def _frame(order: str, source: str, letters: list[Letter]) -> Frame:
    """A frame in which s1 sends these letters to s2 in domain A."""
    members = ("s1", "s2", "s4")
    protocol = parse(order).create(members.index(source), len(members))
    effects = protocol.send(Message("0.1", members.index(source), 0b010, encode_train(letters)))
    packet = next(effect.packet for effect in effects if isinstance(effect, Send))
    return Frame(1, 0, 1, encode_packet(protocol, packet)[0])


def _letter(source: str) -> Letter:
    return Letter(f"x.{source}", source, ("a2",), "Word", b"\x80")


def _given(server: AgentServer, senders: list[str]) -> tuple[list[str], list[tuple[str, str, str]], bytes | None]:
    step = server.step([FromPeer("A", "s1", _frame("pruned", "s1", list(map(_letter, senders))))], 0.0, 0)
    return [letter.source for letter in server.engine.mailboxes.get("a2", ())], step.faults, step.record


@pytest.mark.parametrize("sender", ["a1", "carol@s1", "child@s1"])
def test_senders_behind_the_peer(sender: str) -> None:
    assert _given(_server(), [sender, sender])[:2] == ([sender, sender], [])


@pytest.mark.parametrize("sender", ["a2", "a3", "a4", "bob@s2", "bob@s3", "bob@s4", "bob@s9", "nobody", "bob@", ""])
def test_senders_elsewhere(sender: str) -> None:
    server = _server()
    arrived, faults, record = _given(server, ["a1", sender, "a1"])
    assert arrived == ["a1", "a1"], "the others of the train arrive"
    assert faults == [
        ("A", "s1", f"letter of {sender} from s1: the route from its sender does not lead through this member")
    ]
    assert record is not None
    again = _server()
    again.replay(record, 0.0)
    assert [letter.source for letter in again.engine.mailboxes["a2"]] == ["a1", "a1"]
    assert again.step([], 0.0, 0).faults == [], "a replay blames nobody again"


def test_members_of_a_relaying_domain_relay_for_each_other() -> None:
    """But they cannot bring letters of servers behind the other domains of the receiver."""
    for sender, arrives in (("a1", True), ("a4", True), ("a3", False), ("bob@s3", False)):
        server = _server(order="coordinator")
        frame = _frame("coordinator", "s1", [_letter(sender)])
        step = server.step([FromPeer("A", "s1", frame)], 0.0, 0)
        assert bool(server.engine.mailboxes) is arrives, (sender, step.faults)


@pytest.mark.parametrize("order", ["pruned", "matrix", "updates", "lamport"])
def test_two_packets_with_one_number(order: str) -> None:
    """s1 lies: two of its messages have the same number, and both arrive too early. The order takes the second for a
    repeat. The log has the second first, because the first is held; replay must not choose it instead."""

    def frames(text: str) -> list[Frame]:
        protocol = parse(order).create(0, 3)
        made = []
        for number in (1, 2):
            letter = Letter(f"x.{number}{text}", "a1", ("a2",), "Word", text.encode())
            effects = protocol.send(Message(f"0.{number}", 0, 0b010, encode_train([letter])))
            packets = [effect.packet for effect in effects if isinstance(effect, Send)]
            packet = next(packet for packet in packets if packet.message is not None)
            made.append(Frame(1, 0, number, encode_packet(protocol, packet)[0]))
        return made

    (first, held), (_, repeat) = frames("honest"), frames("forged")
    repeat = Frame(1, 0, 3, repeat.body)
    server, records = _server(order=order), []
    for frame in (held, repeat, first):
        step = server.step([FromPeer("A", "s1", frame)], 0.0, 0)
        assert step.faults == []
        if step.record is not None:
            records.append(step.record)
    again = _server(order=order)
    for record in records:
        again.replay(record, 0.0)
    for one in (server, again):
        assert one.channel.consumers["A"].links["s1"].has_accepted(3)
        if order != "lamport":
            assert [letter.body for letter in one.engine.mailboxes["a2"]] == [b"honest", b"honest"]
    assert again.channel.consumers["A"].order.dump() == server.channel.consumers["A"].order.dump()
