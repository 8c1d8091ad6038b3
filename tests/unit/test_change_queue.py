"""The queue of a driver during a change of the topology: an item about it is taken alone, and frames of earlier domains
that are behind it do not count."""

from typing import Any

from antecede.link import Ack
from antecede.live.application import plan_of
from antecede.server import AgentServer, FromPeer
from antecede.server.change_items import Paused
from antecede.server.driver import Driver
from antecede.server.items import Left
from antecede.topology import parse_topology


class _Outputs:
    """Takes everything and does nothing."""

    def __init__(self) -> None:
        self.organised_after: list[int] = []

    def organised(self) -> None:
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
