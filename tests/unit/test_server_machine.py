"""The machine of an agent server, where random worlds of servers once found it wrong."""

from collections.abc import Iterator

import msgspec

from antecede.channel import Letter
from antecede.engine import STALE, Engine, Question, Reaction, Timeout
from antecede.orders import parse
from antecede.server import AgentServer, FromPeer, Plan, Published, Reacted
from antecede.topology import Domain, Topology


def _letter(id_: str, answers: str) -> Letter:
    return Letter(id_, "b", ("a",), "Answer", b"", answers=answers)


def test_an_answer_and_the_timeout_of_one_question_are_not_both_handled() -> None:
    engine = Engine()
    engine.asks = {"q": Question("a", "on_answer"), "r": Question("a", "on_answer")}
    for letter in (_letter("1", "q"), _letter("2", "r"), _letter("3", "q"), _letter("4", "")):
        engine.deliver("a", letter)
    (due,) = engine.due()
    assert due.handlers == ("on_answer", "on_answer", STALE, "")
    engine.finish("a", tuple(Reaction(letter.id) for letter in due.letters), None)
    engine.deliver("a", _letter("5", "r"))
    assert engine.due()[0].handlers == (STALE,)


class _Pair:
    """Servers that exchange what they send when told to, and nothing else."""

    def __init__(self, domains: dict[str, tuple[str, ...]], order: str, homes: dict[str, str]) -> None:
        topology = Topology([Domain(name, servers) for name, servers in domains.items()])
        plan = Plan(topology, dict.fromkeys(domains, parse(order)), homes)
        self.servers = {name: AgentServer(name, plan, number) for number, name in enumerate(topology.servers, 1)}
        self.flight: list[tuple[str, str, FromPeer]] = []
        self.got: dict[str, list[bytes]] = {name: [] for name in homes}
        self.numbers = 0

    def step(self, server: str, *inputs: object) -> None:
        step = self.servers[server].step(list(inputs), 0.0, 0)  # type: ignore[arg-type]
        assert not step.faults
        for one in step.outgoing:
            self.flight.append((one.peer, one.domain, FromPeer(one.domain, server, one.content)))
        for due in step.due:
            self.got[due.agent] += [letter.body for letter in due.letters]
            reactions = tuple(Reaction(letter.id) for letter in due.letters)
            self.step(server, Reacted(due.agent, reactions, None, 0))

    def publish(self, server: str, to: tuple[str, ...], body: bytes) -> None:
        self.numbers += 1
        self.step(server, Published("c", self.numbers, to, "Word", body))

    def exchange(self, domain: str | None = None) -> None:
        while ready := [one for one in self.flight if domain in (None, one[1])]:
            self.flight.remove(ready[0])
            self.step(ready[0][0], ready[0][2])


def _orders() -> Iterator[str]:
    yield from ("coordinator", "lamport", "token", "skeen:causal=true")


def test_what_stays_here_does_not_overtake_an_own_letter_in_a_total_order() -> None:
    for order in _orders():
        pair = _Pair({"A": ("s1", "s2")}, order, {"a": "s2", "b": "s1"})
        pair.publish("s2", ("a", "b"), b"1")
        pair.publish("s2", ("a",), b"2")
        pair.exchange()
        pair.publish("s2", ("a",), b"3")
        pair.exchange()
        assert pair.got == {"a": [b"1", b"2", b"3"], "b": [b"1"]}, order
        assert not pair.servers["s2"].channel.returns.away


def test_an_answer_through_another_domain_does_not_overtake_it_either() -> None:
    for order in _orders():
        pair = _Pair({"A": ("s1", "s2"), "B": ("s2", "s3")}, order, {"a": "s2", "b": "s1", "c": "s3"})
        pair.publish("s2", ("a", "b"), b"1")
        pair.publish("s2", ("c",), b"2")
        pair.exchange("B")
        # Whatever s3 sends now must not follow from 2 while 1 is away.
        assert pair.got["c"] == [] or pair.got["a"] == [b"1"], order
        pair.exchange()
        assert pair.got == {"a": [b"1"], "b": [b"1"], "c": [b"2"]}, order


def test_letters_that_wait_for_an_own_letter_survive_a_snapshot() -> None:
    pair = _Pair({"A": ("s1", "s2")}, "coordinator", {"a": "s2", "b": "s1"})
    pair.publish("s2", ("a", "b"), b"1")
    pair.publish("s2", ("a",), b"2")
    before = pair.servers["s2"]
    again = AgentServer("s2", before.plan, before.incarnation)
    again.restore(before.snapshot(), 0.0)
    pair.servers["s2"] = again
    pair.exchange()
    assert pair.got["a"] == [b"1", b"2"]


def test_a_timer_is_told_from_a_message_by_its_id() -> None:
    pair = _Pair({"A": ("s1", "s2")}, "matrix", {"a": "s2"})
    server = pair.servers["s2"]
    server._set_timer(5, "a", "Timeout", msgspec.msgpack.encode(Timeout(ask="q")), "q")
    (timer,) = server.timers.waiting.values()
    assert timer[2].id.rpartition(".")[2].startswith("t")


def test_a_step_tells_nobody_what_a_later_one_has_to_tell() -> None:
    pair = _Pair({"A": ("s1", "s2")}, "pruned", {"a": "s1"})
    server = pair.servers["s1"]
    before = server.step([], 0.0, 0)
    after = server.step([Published("c", 1, ("nobody",), "Word", b"")], 0.0, 0)
    assert [type(reply).__name__ for reply in after.replies] == ["Refused"]
    assert before.replies == []
    assert before.replies is not after.replies
