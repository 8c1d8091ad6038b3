"""Output that waits for other output, and records that nothing waits for."""

from typing import Any

from antecede.channel import Outgoing
from antecede.link import Ack, Frame
from antecede.live.application import plan_of
from antecede.server import Accepted, AgentServer, Commit, DelayedOutput, Driver, Gate, Left, Published, Refused
from antecede.topology import parse_topology

COMMIT = Outgoing("A", "s2", Frame(1, 2, 7, b"commit"), unhurried=True)
REQUEST = Outgoing("A", "s3", Frame(1, 2, 8, b"request"))
ACK = Outgoing("A", "s2", Ack(1, 2, 3))
CALL = Accepted("al", 1, unhurried=True)
PUBLISH = Accepted("al", 2)


def test_a_frame_that_is_not_urgent_leaves_before_the_next_one() -> None:
    delayed = DelayedOutput()
    assert delayed.gather([COMMIT], [], False, 1.0) == ([], [])
    assert delayed.gather([], [], False, 1.001) == ([], [])
    assert delayed.gather([REQUEST], [], False, 1.002) == ([COMMIT, REQUEST], [])
    assert not delayed


def test_an_acknowledgement_is_company() -> None:
    delayed = DelayedOutput()
    delayed.gather([COMMIT], [], False, 1.0)
    assert delayed.gather([ACK], [], False, 1.001) == ([COMMIT, ACK], [])


def test_nothing_waits_for_long() -> None:
    delayed = DelayedOutput()
    delayed.gather([COMMIT], [CALL], False, 1.0)
    due = delayed.leave_at
    assert due is not None
    assert due <= 1.01
    assert delayed.gather([COMMIT], [], False, due) == ([COMMIT, COMMIT], [CALL])
    assert delayed.leave_at is None


def test_the_acceptance_of_a_call_leaves_with_its_answer_but_frames_do_not_wait_for_it() -> None:
    delayed = DelayedOutput()
    assert delayed.gather([REQUEST], [CALL], False, 1.0) == ([REQUEST], [])
    assert delayed.gather([], [], True, 1.002) == ([], [CALL])


def test_other_replies_take_it_along_in_their_sequence() -> None:
    delayed = DelayedOutput()
    refused = Refused("bo", 1, "no")
    delayed.gather([], [CALL], False, 1.0)
    assert delayed.gather([], [PUBLISH], False, 1.001) == ([], [CALL, PUBLISH])
    delayed.gather([], [CALL], False, 1.0)
    assert delayed.gather([COMMIT], [refused], False, 1.001) == ([], [CALL, refused])
    assert delayed


class _Outputs:
    """Takes everything and does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: None


def test_a_record_that_lets_nothing_leave_is_committed_with_the_next_or_after_a_while() -> None:
    plan = plan_of(parse_topology('[servers]\ns1 = "tcp://127.0.0.1:7101"\n[domains]\nA = { servers = ["s1"] }\n'))
    machine = AgentServer("s1", plan, 1)
    driver = Driver(machine, lambda agent: False, _Outputs(), lambda: None, _Outputs(), machine.begin("e"))

    def turned(now: float, given: Any = None) -> Commit:
        if given is not None:
            driver.feed(given)
        driver.appended(len(driver.turn(now, 1_000).records))
        return driver.rest(now)

    assert turned(1.0) is Commit.HERE, "the first record of a life"
    driver.durable(driver.gate.last)
    assert turned(2.0) is Commit.LATER
    # The end of a client is recorded, and nobody waits for that.
    assert turned(3.0, Left("al")) is Commit.LATER
    assert driver.gate.last > driver.gate.durable
    due = driver.deadline(3.0, 1_000)
    assert due is not None
    assert 3.0 < due <= 3.05
    assert turned(due) is not Commit.LATER
    driver.durable(driver.gate.last)
    assert turned(5.0, Left("al")) is Commit.LATER
    assert turned(5.001, Published("bo", 1, ("cy@s1",), "x", b"")) is not Commit.LATER, "its client waits"


def test_replies_leave_with_an_answer_once_their_records_are_durable() -> None:
    delayed, left = DelayedOutput(), list[object]()
    gate = Gate(7, 6, left.extend, left.extend)
    delayed.gather([COMMIT], [CALL], False, 1.0, 7)
    assert not gate.is_open(delayed.recorded)
    gate.put([], [CALL])
    gate.durable = 7
    assert not gate.is_open(delayed.recorded), "it would overtake what is in the gate"
    gate.open(7)
    assert left == [CALL]
    assert gate.is_open(delayed.recorded)
    assert delayed.take_replies() == [CALL]
    assert delayed.leave_at == 1.0 + 0.004, "the frame still waits"
    assert delayed.gather([], [], False, 1.1) == ([COMMIT], [])
    delayed.gather([], [CALL], False, 2.0, 8)
    assert not gate.is_open(delayed.recorded)
    assert delayed.take_replies() == [CALL]
    assert delayed.leave_at is None


def test_acknowledgements_wait_if_the_letters_of_their_step_do_not() -> None:
    delayed = DelayedOutput()
    assert delayed.gather([COMMIT, ACK], [], False, 1.0, 7, True) == ([], [])
    assert delayed.gather([REQUEST], [], False, 1.001, 8) == ([COMMIT, ACK, REQUEST], [])
