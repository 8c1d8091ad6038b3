"""Lessons between running servers: who is believed, and what counts of the parts that arrive together."""

from typing import Any

from antecede import wire
from antecede.access import Authoriser
from antecede.live.application import plan_of
from antecede.live.logs import ServerLog
from antecede.server import UNCONFIRMED, Admission, AgentServer, Entry, Guard, Incoming, Log, Peering
from antecede.topology import parse_topology
from helpers.changing import BUS

_file = parse_topology(BUS)


class _Connection:
    """Keeps what is sent, and the reason for which it was closed."""

    serial, remote, spoke, code, binding, certified = 1, "somewhere", 0.0, "", b"", ()

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.ended: list[tuple[str, bool]] = []

    def send(self, parts: Any) -> None:
        self.sent += parts

    def close(self, reason: str, final: bool = False, code: str = "") -> None:
        self.ended.append((code, final))

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: None


class _Driver:
    now = 1.0

    def when_durable(self, then: Any) -> None:
        then()

    def feed(self, given: Any) -> None:
        pass

    def request_turn(self) -> None:
        pass


class _Server:
    """The part of a server that meets others."""

    def __init__(self, name: str, change: int = 0) -> None:
        self.machine = AgentServer(name, plan_of(_file), int(name[1:]))
        self.machine.begin(_file.epoch)
        self.machine.organisation.change, self.machine.organisation.system = change, "system"
        log: Log = ServerLog(name)
        guard = Guard(Authoriser(), None, None, log)
        self.peering = Peering(self.machine, _file.epoch, "", guard, log, lambda: 0.5)
        driver: Any = _Driver()
        self.peering.attach(driver)
        self.lessons: list[bytes] = []
        self.peering.lessons.learn = lambda content, done: self.lessons.append(content)
        nothing: Any = None
        self.entry = Entry(guard, self.peering, nothing, nothing, log, Admission(10))

    def hello_to(self, other: "_Server") -> wire.ServerHello:
        peer = self.peering.peers[other.machine.name]
        return self.peering.hello(peer)


def _met(me: _Server, other: _Server) -> tuple[Incoming, _Connection]:
    """Let another server connect, and send its hello."""
    connection = _Connection()
    incoming = me.entry.opened(connection, 1.0)
    incoming.received([other.hello_to(me)])
    return incoming, connection


def test_only_the_first_part_of_a_lesson_counts() -> None:
    """A trusted frame may have several parts."""
    me = _Server("s2")
    incoming, _ = _met(me, _Server("s1", change=1))
    incoming.received([wire.Lesson(b"1"), wire.Lesson(b"2"), wire.Lesson(b"3")])
    incoming.received([wire.Lesson(b"4")])
    assert me.lessons == [b"1"]


def test_a_server_that_is_not_believed_is_sent_away() -> None:
    """The first server is asked. As long as it confirms nothing, the other one stays apart, with the reason."""
    me, liar = _Server("s3"), _Server("s4", change=900)
    asked: list[str] = []
    me.peering.lessons.ask = asked.append
    ends = []
    for _ in range(3):
        incoming, connection = _met(me, liar)
        incoming.received([wire.Lesson(b"1")])
        ends += connection.ended
    assert ends == [("topology-changed", False), (UNCONFIRMED, True), (UNCONFIRMED, True)]
    assert (asked, me.lessons) == (["s1"] * 3, [])
    assert me.peering.refusals["s4"].endswith("s3 learns changes only from s1, which has not confirmed it")
    # It has learned from the first server: the other one is sent away at once only if it is ahead again.
    me.peering.lessons.organised()
    assert _met(me, liar)[1].ended == [("topology-changed", False)]


def test_the_first_server_learns_nothing() -> None:
    me = _Server("s1")
    asked: list[str] = []
    me.peering.lessons.ask = asked.append
    incoming, connection = _met(me, _Server("s2", change=1))
    incoming.received([wire.Lesson(b"1")])
    assert (connection.ended, asked, me.lessons) == ([(UNCONFIRMED, True)], [], [])
    assert "s1 takes part in every change" in me.peering.refusals["s2"]
