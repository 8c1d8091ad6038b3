"""The driver: which inputs and reactions share a step, and what waits for its record."""

from typing import Any

from antecede.channel import Letter
from antecede.engine import Outbound, Outcome, React, Reaction
from antecede.errors import AgentError
from antecede.live.application import plan_of
from antecede.server import AgentServer, Driver, Handled, Published, Reacted, decode_record
from antecede.topology import parse_topology

TOPOLOGY = """[servers]
s1 = "tcp://127.0.0.1:7101"
[domains]
A = { servers = ["s1"] }
[agents]
a = { server = "s1", class = "x:X" }
"""


class _Outputs:
    """Notes which letters clients get, and takes everything else."""

    def __init__(self) -> None:
        self.delivered: list[Letter] = []

    def deliver(self, due: React) -> None:
        self.delivered += due.letters

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: None


def _driver() -> tuple[Driver, _Outputs]:
    outputs = _Outputs()
    machine = AgentServer("s1", plan_of(parse_topology(TOPOLOGY)), 1)
    driver = Driver(machine, lambda agent: agent == "a", outputs, lambda: None, outputs, machine.begin("e"))
    driver.appended(len(driver.turn(1.0, 1_000).records))
    driver.rest(1.0)
    driver.durable(driver.gate.last)
    return driver, outputs


def _published(number: int, *to: str) -> Published:
    return Published("bo", number, to, "x", b"")


def test_a_reaction_that_runs_at_once_is_in_the_record_of_its_letter() -> None:
    driver, outputs = _driver()
    driver.feed(_published(1, "a", "cy@s1"))
    last = driver.gate.last
    turn = driver.turn(2.0, 2_000)
    assert ([due.agent for due in turn.reactions], turn.records) == (["a"], [])
    assert driver.goes_on()
    assert driver.busy
    assert outputs.delivered == [], "letters for clients wait for the record"
    called: list[str] = []
    driver.when_durable(lambda: called.append("open"))
    letter = turn.reactions[0].letters[0].id
    sent = Outbound(("cy@s1",), "y", b"")
    driver.reacted(turn.reactions[0], Outcome("a", [Reaction(letter, (sent,))], None), 2.0, 2_000)
    turn = driver.turn(2.0, 2_000)
    assert (turn.reactions, len(turn.records)) == ([], 1)
    assert [type(item) for item in decode_record(turn.records[0])][-2:] == [Published, Reacted]
    assert [one.type for one in outputs.delivered] == ["x"], "the second letter is handed out when the first is done"
    assert driver.gate.last == last + 1
    driver.durable(last)
    assert called == [], "what was asked for during the step waits for its record"
    driver.appended(1)
    driver.durable(last + 1)
    assert called == ["open"]


def test_a_reaction_that_runs_later_does_not_hold_the_step() -> None:
    driver, _ = _driver()
    driver.feed(_published(1, "a"))
    due = driver.turn(2.0, 2_000).reactions[0]
    assert driver.goes_on()
    turn = driver.turn(2.0, 2_000)
    assert [type(item) for item in decode_record(turn.records[0])][-1] is Published
    driver.appended(1)
    assert not driver.goes_on()
    driver.rest(2.0)
    driver.reacted(due, Outcome("a", [], None, plain=[due.letters[0].id]), 3.0, 3_000)
    turn = driver.turn(3.0, 3_000)
    assert [type(item) for item in decode_record(turn.records[0])][-1] is Handled


def test_a_step_with_many_inputs_ends_before_its_reactions_run() -> None:
    driver, _ = _driver()
    for number in range(1, 9):
        driver.feed(_published(number, "a"))
    turn = driver.turn(2.0, 2_000)
    assert (len(turn.records), [len(due.letters) for due in turn.reactions]) == (1, [8])


def test_a_step_does_not_go_on_for_ever() -> None:
    driver, _ = _driver()
    driver.feed(_published(1, "a"))
    turns = 0
    while True:
        turn = driver.turn(2.0, 2_000)
        turns += 1
        for due in turn.reactions:
            again = Reaction(due.letters[0].id, (Outbound(("a",), "x", b""),))
            driver.reacted(due, Outcome("a", [again], None), 2.0, 2_000)
        if turn.records:
            break
    assert turns == 4
    assert len(turn.reactions) == 1


def test_a_batch_that_was_forgotten_while_it_waited_for_the_disk_does_not_run() -> None:
    """A change gives an agent another class while its batch waits until it is durable: its letters are handed out
    again, and must not run twice."""
    driver, _ = _driver()
    driver.retries.keyed.add("a")
    driver.feed(_published(1, "a"))
    turn = driver.turn(2.0, 2_000)
    assert (turn.reactions, len(turn.records)) == ([], 1), "the batch waits for its record"
    # As server/participation.py does it.
    driver.retries.forget({"a"})
    driver.machine.engine.abandon("a")
    driver.retries.keyed.add("a")
    driver.appended(1)
    driver.durable(driver.gate.last)
    ran = []
    for _ in range(4):
        turn = driver.turn(3.0, 3_000)
        ran += turn.reactions
        driver.appended(len(turn.records))
        driver.durable(driver.gate.last)
    assert [(due.agent, len(due.letters), due.durable) for due in ran] == [("a", 1, True)]


def test_letters_that_are_due_again_at_the_end_of_a_run_of_turns_get_another_run() -> None:
    """A worker process has ended at the second letter: the first one runs again, without any other input."""
    driver, _ = _driver()
    for number in range(1, 9):
        driver.feed(_published(number, "a"))
    turn = driver.turn(2.0, 2_000)
    driver.appended(len(turn.records))
    (due,) = turn.reactions
    driver.reacted(due, Outcome("a", [], None, AgentError("the worker process ended"), 1), 2.0, 2_000)
    assert not driver.goes_on()
    driver.rest(2.0)
    assert driver.awake, "another turn was asked for"
    assert [len(due.letters) for due in driver.turn(2.0, 2_000).reactions] == [1]
