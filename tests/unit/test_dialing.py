"""How often a server dials a peer that does not let it in, counted in simulated time; the pauses between tries; claims
of strangers."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from antecede import limits, wire
from antecede.access import Authoriser, Refusal
from antecede.errors import OverloadError
from antecede.live.application import plan_of
from antecede.live.logs import ServerLog
from antecede.server import (
    CHANGING,
    CODE,
    Admission,
    AgentServer,
    Backoff,
    Dialed,
    Entry,
    Guard,
    Inquiry,
    Peer,
    Peering,
    is_last_try,
    pause_after,
)
from antecede.topology import parse_topology

_file = parse_topology(
    '[servers]\ns1 = "tcp://127.0.0.1:1"\ns2 = "tcp://127.0.0.1:2"\n[domains]\nA = { servers = ["s1", "s2"] }\n'
)
_seconds = 60.0


class _Driver:
    """Takes everything, and has no disk to wait for."""

    def when_durable(self, call: Callable[[], None]) -> None:
        call()

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: None


class _Connection:
    """One end of a connection whose other end is in the test."""

    remote, code, binding, certified = "127.0.0.1:2", "", b"", ()
    spoke = heard = 0.0
    full = False

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self.open = True

    def send(self, parts: Sequence[wire.Part]) -> None:
        pass

    def close(self, reason: str, final: bool = False, code: str = "") -> None:
        self.open = False

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: None


def _peering(name: str, token: str = "") -> Peering:
    machine = AgentServer(name, plan_of(_file), int(name[1:]))
    machine.begin(_file.epoch)
    log = ServerLog(name)
    peering = Peering(machine, _file.epoch, "", Guard(Authoriser(token=token), None, None, log), log, lambda: 0.5)
    peering.attach(_Driver())  # type: ignore[arg-type]
    return peering


def _dials(peering: Peering, meet: Callable[[Dialed], None]) -> list[float]:
    """Return when s2 was dialed within a minute; each connection ends when ``meet`` returns."""
    peering.start(0.0)
    found: list[float] = []
    while (due := peering.deadline()) is not None and due < _seconds:
        assert peering.dials(due) == ["s2"]
        found.append(due)
        connection = _Connection(len(found))
        end = peering.dialed("s2", connection)
        meet(end)
        end.closed("", due + 0.001)
    return found


def _hello(**other: Any) -> wire.ServerHello:
    return _hello_of("s2", **other)


def _hello_of(name: str, **other: Any) -> wire.ServerHello:
    peering = _peering(name)
    (peer,) = peering.peers.values()
    return msgspec.structs.replace(peering.hello(peer), **other)


def test_a_peer_that_closes_every_connection_is_dialed_less_and_less_often() -> None:
    bye = wire.Bye("the topology changes", False, CODE)
    found = _dials(_peering("s1"), lambda end: end.received([bye]))
    pauses = [after - before for before, after in itertools.pairwise(found)]
    assert len(found) < 25, "one every 4 seconds"
    assert pauses[0] < 0.05
    assert max(pauses) < limits.dial_seconds_max


def test_a_server_that_refuses_its_peer_during_a_change_dials_it_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, hello = _peering("s1"), _hello()
    monkeypatch.setattr(one, "refusal", lambda hello: Refusal(CHANGING, "the topology changes"))
    assert len(_dials(one, lambda end: end.received([hello]))) < 25


def test_a_lesson_that_cannot_be_recorded_is_not_fetched_all_the_time() -> None:
    one, hello, fetched = _peering("s1"), _hello(change=3, system="theirs", teaches=True), []

    def learn(content: bytes, done: Callable[[Any, Any], None]) -> None:
        fetched.append(content)
        done(None, OverloadError("the disk is full"))

    def meet(end: Dialed) -> None:
        end.received([hello])
        end.received([wire.Lesson(b"{}")])

    one.lessons.learn = learn
    found = _dials(one, meet)
    assert len(fetched) == len(found) < 25


def test_a_peer_that_refuses_us_is_not_dialed_within_half_a_second() -> None:
    found = _dials(_peering("s1"), lambda end: end.received([wire.Bye("another topology", True, "other-topology")]))
    assert min(after - before for before, after in itertools.pairwise(found)) > 0.5


def test_a_connection_that_frames_have_used_is_replaced_at_once() -> None:
    one, hello, ends = _peering("s1"), _hello(), []

    def meet(end: Dialed) -> None:
        # The peer lets us in at every tenth try.
        ends.append(end)
        end.received([hello if len(ends) % 10 == 0 else wire.Bye("the server stops", False)])

    found = _dials(one, meet)
    assert one.peers["s2"].connections == len(found) // 10 > 1
    assert all(found[place] - found[place - 1] < 0.05 for place in range(10, len(found), 10))


def test_a_connection_whose_place_was_taken_is_not_replaced() -> None:
    """Otherwise two connections would take each other's place for ever."""
    one, hello = _peering("s1"), _hello()
    one.start(0.0)
    assert one.dials(0.0) == ["s2"]
    first = one.dialed("s2", _Connection(1))
    first.received([hello])
    one.reset("A", 1.0)
    assert one.dials(1.0) == ["s2"]
    second = one.dialed("s2", _Connection(2))
    first.closed("domain A was reset", 1.1)
    second.received([hello])
    assert one.deadline() is None
    second.closed("", 2.0)
    due = one.deadline()
    assert due is not None
    assert due < 2.1


def test_a_change_in_force_ends_the_pauses() -> None:
    one = _peering("s1")
    _dials(one, lambda end: end.received([wire.Bye("the topology changes", False, CODE)]))
    one.organise(_seconds - 10)
    assert one.deadline() == _seconds - 10


def test_pauses_grow_up_to_their_bound() -> None:
    backoff = Backoff()
    pauses = [backoff.next(1.0) for _ in range(9)]
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, limits.dial_seconds_max, limits.dial_seconds_max]
    assert backoff.next(0.0) == limits.dial_seconds_max / 2
    backoff.reset()
    assert backoff.next(1.0) == 0.05
    backoff.grow_to(1.0)
    assert backoff.next(1.0) == 1.0


def test_handlers_have_a_number_of_tries() -> None:
    tries = range(1, limits.reaction_tries_max)
    assert [pause_after(number) for number in tries] == [0.1, 0.2, 0.4, 0.8]
    assert not any(map(is_last_try, tries))
    assert is_last_try(limits.reaction_tries_max)


def _entry(peering: Peering) -> Entry:
    nobody: Any = None
    return Entry(peering.guard, peering, nobody, nobody, ServerLog("s2"), Admission())


def _greet(entry: Entry, hello: wire.ServerHello) -> _Connection:
    connection = _Connection(1)
    entry.opened(connection, 0.0).received([hello])
    return connection


def test_a_stranger_with_a_wrong_token_does_not_change_the_state_of_the_peer() -> None:
    two = _peering("s2", "secret")
    entry = _entry(two)
    peer = two.peers["s1"]
    true = _hello_of("s1", token="secret")
    assert not _greet(entry, msgspec.structs.replace(true, token="wrong")).open
    assert not two.refusals
    assert peer.claim == "wrong token (127.0.0.1 claims to be s1)", "it may be s1 itself"
    real = _greet(entry, true)
    assert real.open
    assert not peer.claim
    assert not _greet(entry, msgspec.structs.replace(true, token="wrong")).open
    # This stranger has the token, or needs none.
    assert not _greet(entry, msgspec.structs.replace(true, to="s999")).open
    assert peer.connection is real
    assert not peer.claim
    assert not two.refusals


def test_a_peer_with_another_topology_is_remembered_while_it_is_not_connected() -> None:
    two = _peering("s2")
    assert not _greet(_entry(two), _hello_of("s1", to="s999")).open
    assert "999" in two.refusals["s1"]


@pytest.mark.parametrize(("server", "kept"), [("s2", ["s2"]), ("s9", [])])
def test_a_refused_question_is_kept_for_peers_only(server: str, kept: list[str]) -> None:
    """No later connection would remove the refusal of a server that is not a peer."""
    peering = _peering("s1")
    peer = peering.peers.get(server) or Peer(server, [], False)
    question = Inquiry(peering, peer, _Connection(1))  # type: ignore[arg-type]
    question.received([wire.Bye("wrong token", final=True)])
    assert list(peering.refusals) == kept
