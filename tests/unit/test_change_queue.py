"""The queue of a driver during a change of the topology: an item about it is taken alone, and frames of earlier domains
that are behind it do not count."""

from typing import Any
from unittest.mock import MagicMock

from antecede.channel import Letter
from antecede.link import Ack
from antecede.live.application import plan_of
from antecede.server import AgentServer, Committed, Driver, FromPeer, Left, Paused, Reorganising, Staged
from antecede.topology import parse_topology
from helpers.changing import topology


class _Outputs:
    """Takes everything and does nothing."""

    def __init__(self) -> None:
        self.organised_after: list[int] = []

    def organised(self, due: list[Any]) -> None:
        self.organised_after.append(1)

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: None


def _driver() -> tuple[Driver, _Outputs]:
    servers = "".join(f's{one} = "tcp://127.0.0.1:710{one}"\n' for one in (1, 2))
    plan = plan_of(parse_topology(f'[servers]\n{servers}[domains]\nA = {{ servers = ["s1", "s2"] }}\n'))
    machine, outputs = AgentServer("s1", plan, 1), _Outputs()
    driver = Driver(machine, lambda agent: False, outputs, lambda: None, _Outputs(), machine.begin("e"))
    driver.appended(len(driver.turn(1.0, 1_000).records))
    driver.durable(driver.gate.last)
    driver.appended(len(driver.turn(1.0, 1_000).records))
    return driver, outputs


def test_an_item_about_a_change_is_taken_alone() -> None:
    driver, outputs = _driver()
    taken: list[list[Any]] = []
    real = driver.machine.take
    driver.machine.take = lambda inputs, *given: (taken.append(inputs), real(inputs, *given))[1]  # type: ignore[method-assign]
    calls: list[int] = []
    driver.feed(Left("a"))
    driver.feed(Left("b"))
    driver.change(Paused(1, ["A"], []))
    driver.when_taken(lambda: calls.append(len(taken)))
    driver.feed(Left("c"))
    for _ in range(4):
        driver.appended(len(driver.turn(2.0, 1_000).records))
    assert [list(map(type, inputs)) for inputs in taken] == [[Left, Left], [Paused], [Left], []]
    assert calls == [2], "whoever waits for the item is called after its step"
    assert outputs.organised_after == [1]


def test_frames_of_earlier_domains_are_ignored_and_keep_their_places() -> None:
    driver, _ = _driver()
    called: list[str] = []
    for domain, peer in (("A", "s2"), ("B", "s2"), ("C", "s3")):
        driver.feed(FromPeer(domain, peer, Ack(1, 1, 1, b"")))
    driver.when_taken(lambda: called.append("all"))
    driver.ignore({"A"}, {"s3"})
    assert [(one.domain, one.peer) for one in driver.inputs if isinstance(one, FromPeer)] == [
        ("", ""),
        ("B", "s2"),
        ("", ""),
    ]
    driver.appended(len(driver.turn(2.0, 1_000).records))
    assert called == ["all"]


def test_letters_of_an_agent_with_another_class_are_handed_out_once() -> None:
    """The step of the change hands them out, and the new class, too, must get them."""
    old, new = (topology({"A": "1"}, {"a": 1}).replace("nowhere", module) for module in ("before", "after"))
    machine = AgentServer("s1", plan_of(parse_topology(old)), 1)
    fake = MagicMock()
    driver = Driver(machine, lambda agent: True, fake, lambda: None, fake, machine.begin("e"))
    changes = Reorganising(machine, driver, fake, fake, lambda agent: True, fake)
    fake.organised = changes.organised
    driver.appended(len(driver.turn(1.0, 1_000).records))
    driver.durable(driver.gate.last)
    machine.engine.deliver("a", Letter("s1.1.1", "c@s1", ("a",), "Add", b""))
    handed = []
    for item in (Paused(1, [], ["a"]), Staged("x", 1, new, {"A": 0}, "s1", [], 1_000), Committed(1, 1_000)):
        driver.change(item)
        turn = driver.turn(2.0, 1_000)
        driver.appended(len(turn.records))
        handed.append(turn.reactions)
    assert not any(handed), "the step of the change itself hands out nothing to the class of before"
    assert [one.agent for one in driver.turn(3.0, 1_000).reactions] == ["a"]
    driver.appended(0)
    assert not driver.turn(4.0, 1_000).reactions
