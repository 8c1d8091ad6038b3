"""The lessons of a server that has missed changes of the topology: what it believes, and what it refuses."""

from typing import Any

import msgspec
import pytest

from antecede import limits, wire
from antecede.errors import TopologyError
from antecede.server import (
    Abandoned,
    AgentServer,
    Committed,
    Epoch,
    Learned,
    Lesson,
    Participant,
    Projection,
    Published,
    Staged,
    item_of,
    learning,
    learns,
    lesson_of,
    read_lesson,
    teachers_of,
    teaches,
    trusts,
)
from antecede.simulator.servers.network import NONE
from antecede.topology import parse_topology
from antecede.trace.epochs import united
from helpers.changing import AGENTS, BUS, FLAT, MILD, topology
from worlds.changes import ChangingWorld, plan_of
from worlds.workload import Work


def _world(texts: list[str], away: str = "s4") -> ChangingWorld:
    """Return a world in which all changes were made while one server was down."""
    world = ChangingWorld(1, texts, NONE, kill=0)
    world.send("alice@s1", "a", Work(id=1, depth=0))
    world.settle()
    _change_without(world, away)
    world.servers[away].start()
    return world


def _change_without(world: ChangingWorld, away: str) -> None:
    """Make the changes while a server is down."""
    world.gone[away] = None
    world.crash(away)
    world.begin()
    while not world.made:
        world.run(0.1)
    del world.gone[away]
    assert world.outcomes[-1].state == "done", world.outcomes[-1].refusals


def _lesson(world: ChangingWorld, **other: Any) -> Lesson:
    lesson = read_lesson(lesson_of(world.servers["s1"].machine.organisation))
    return msgspec.structs.replace(lesson, **other)


def test_several_changes_are_one_lesson() -> None:
    world = _world([BUS, MILD[1], topology({"A": "12", "B": "23", "C": "34", "D": "25"}, {**AGENTS, "x": 3, "e": 5})])
    behind = world.servers["s4"]
    machine = behind.machine
    links = machine.channel.consumers["C"]
    world.settle()
    organisation = machine.organisation
    assert (organisation.change, machine.epoch) == (2, world.files[-1].epoch)
    assert organisation.history == world.servers["s1"].machine.organisation.history
    assert machine.channel.consumers["C"] is links, "its own domain continues"
    assert machine.channel.check(("e",)) == ("e",)
    # It is durable, and a second lesson has nothing new.
    world.crash("s4")
    world.settle()
    assert behind.machine is not machine
    assert behind.machine.organisation.change == 2
    assert item_of(behind.machine, _lesson(world)) is None


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"system": "another"}, "does not continue|belongs to another system"),
        ({"history": []}, "does not continue from change 0"),
        ({"topology": "[servers]"}, r"the topology of another server: expected a table \[servers\]"),
        ({"topology": FLAT}, "sent with change 1 does not end with change 1"),
        ({"change": 7}, "sent with change 7 does not end with change 7"),
        ({"since": {"C": 1}}, "domain C started with a new state without server s4"),
    ],
)
def test_a_lesson_that_is_not_to_be_believed(other: dict[str, Any], reason: str) -> None:
    world = _world(MILD[:2])
    machine = world.servers["s4"].machine
    if "system" in other:
        # A server that has missed the first change does not know the system; its past tells.
        machine.organisation.system = "system"
    before = machine.snapshot()
    with pytest.raises(TopologyError, match=reason):
        item_of(machine, _lesson(world, **other))
    assert machine.snapshot() == before
    machine.organisation.system = ""
    assert isinstance(item_of(machine, _lesson(world)), Learned)


@pytest.mark.parametrize("numbers", [(0, 900), (0, 2), (0, 1, 3), (0, 1, 1, 2), (0, 2, 1, 2), (0, 2**32 - 1)])
def test_a_history_with_gaps_is_refused(numbers: tuple[int, ...]) -> None:
    """Otherwise one lie makes the number of changes so large that no later change can have it."""
    world = _world(MILD[:2])
    machine, lesson = world.servers["s4"].machine, _lesson(world)
    first, last = lesson.history
    history = [first, *(msgspec.structs.replace(last, change=number) for number in numbers[1:])]
    with pytest.raises(TopologyError, match="has gaps: expected every change since 0"):
        item_of(machine, msgspec.structs.replace(lesson, change=numbers[-1], history=history))


def test_a_lesson_that_moves_clients_of_other_servers() -> None:
    """No command can make such a change: the addresses NAME@s6 are on s5, which stays."""
    domains, agents = {"A": "12", "B": "23", "C": "25"}, {"a": 1, "b": 2, "c": 3, "e": 5}
    old = parse_topology(topology(domains, agents, moved="6>5"))
    machine = AgentServer("s3", plan_of(old), 3)
    machine.begin(old.epoch)
    for moved, refused in (("6>2", "are on s5, which stays"), ("", "has no s6"), ("6>5", "")):
        new = parse_topology(topology(domains, {**agents, "x": 2}, moved=moved))
        history = [*machine.organisation.history, Epoch(1, new.epoch, 0, "x")]
        lesson = Lesson("system", 1, new.text(), {}, history)
        if refused:
            with pytest.raises(TopologyError, match=refused):
                item_of(machine, lesson)
        else:
            assert isinstance(item_of(machine, lesson), Learned)


def test_a_system_with_another_past_teaches_nothing() -> None:
    """Two copies of a system were changed separately: one of them must not learn from the other."""
    ours, theirs = _world(MILD[:2]), _world(MILD[:2])
    theirs.settle()
    more = topology({"A": "12", "B": "23", "C": "34"}, {**AGENTS, "x": 3, "y": 2})
    theirs.files.append(parse_topology(more))
    theirs.play(0)
    ours.settle()
    behind = ours.servers["s4"].machine
    lesson = _lesson(theirs)
    item = item_of(behind, lesson)
    assert isinstance(item, Learned), "the same seed gives the same attempts"
    forked = [msgspec.structs.replace(one, attempt=f"{one.attempt}f") for one in lesson.history]
    with pytest.raises(TopologyError, match="the two servers have different histories"):
        item_of(behind, msgspec.structs.replace(lesson, history=forked))


def test_a_staged_change_is_decided_by_its_attempt() -> None:
    world = _world(MILD[:2])
    lesson = _lesson(world)
    made = lesson.history[-1].attempt
    for attempt, kind in ((made, Committed), ("other", Abandoned)):
        machine = AgentServer("s4", plan_of(world.files[0]), 4)
        machine.begin(world.files[0].epoch)
        staged = Staged("system", 1, world.files[1].text(), {}, "s1", [], 0, attempt)
        machine.step([staged], 0.0, 0)
        item = item_of(machine, lesson)
        assert isinstance(item, kind)
        assert isinstance(item, Committed | Abandoned)
        assert (item.change, item.attempt) == (1, attempt)
        # Not before it is decided.
        undecided = msgspec.structs.replace(lesson, change=0)
        assert item_of(machine, undecided) is None


def test_a_new_server_has_the_past_of_the_system() -> None:
    more = topology({"A": "12", "B": "23", "C": "34", "D": "25"}, {**AGENTS, "x": 3, "e": 5})
    world = _world([BUS, MILD[1], more])
    assert len(world.servers["s1"].machine.organisation.history) == 3
    assert world.servers["s5"].machine.organisation.history == world.servers["s1"].machine.organisation.history


def test_a_lying_server_deceives_no_other() -> None:
    """It has invented a change. The others go on without it."""
    world = ChangingWorld(1, MILD[:2], NONE, kill=0)
    s3, liar = world.servers["s3"], world.servers["s4"]
    evil = parse_topology(topology({"A": "12", "B": "23", "C": "34"}, {**AGENTS, "evil": 4}))
    history = [*liar.machine.organisation.history, Epoch(1, evil.epoch, 0, "x")]
    liar.guard(liar.life, liar.core.driver.change, Learned("system", 1, evil.text(), {}, history))
    world.run(3.0)
    assert liar.machine.organisation.change == 1
    others = [world.servers[one].machine.organisation for one in ("s1", "s2", "s3")]
    assert {one.change for one in others} == {0}
    # The operator is not deceived either, and makes the change when the liar is stopped.
    world.begin()
    world.run(3.0)
    assert {one.state for one in world.outcomes} == {"refused"}
    assert s3.machine.organisation.change == 0
    assert world.made, "the operator has given up"
    world.files.append(world.files[1])
    _change_without(world, "s4")
    liar.start()
    world.run(3.0)
    for organisation in others:
        assert (organisation.change, organisation.topology) == (1, world.files[1].text())


def test_a_server_that_becomes_the_first_teaches_what_it_knows() -> None:
    """A server that is down while another one becomes the first one learns from both, one after the other."""
    domains = {"A": "12", "B": "23", "C": "34"}
    first = topology({**domains, "D": "02"}, {**AGENTS, "e": 0})
    world = _world([BUS, first, topology({**domains, "D": "02"}, {**AGENTS, "e": 0, "x": 2})])
    s0, s1, s4 = (world.servers[name].machine for name in ("s0", "s1", "s4"))
    assert (trusts(s4, "s1"), trusts(s4, "s0"), teachers_of(s4)) == (True, False, ["s1"])
    assert (trusts(s1, "s0"), trusts(s1, "s2"), teachers_of(s0)) == (True, False, [])
    s4.step([Learned("system", 1, first, s1.organisation.since, s1.organisation.history[:2])], 0.0, 0)
    assert (trusts(s4, "s1"), trusts(s4, "s0")) == (False, True)
    item = item_of(s4, read_lesson(lesson_of(s0.organisation)))
    assert isinstance(item, Learned)
    assert item.change == 2


def test_who_is_believed() -> None:
    file = parse_topology(BUS)

    def machine(name: str, met: bool = True) -> AgentServer:
        one = AgentServer(name, plan_of(file), 1)
        one.begin(file.epoch)
        if met:
            next(iter(next(iter(one.channel.consumers.values())).links.values())).peer = 7
        return one

    assert [one for one in file.servers if trusts(machine("s3"), one)] == ["s1"]
    assert [one for one in file.servers if trusts(machine("s3", met=False), one)] == ["s1"]
    assert [one for one in file.servers if trusts(machine("s1"), one)] == []
    assert teachers_of(machine("s1")) == []
    # A first server without any data.
    assert [one for one in file.servers if trusts(machine("s1", met=False), one)] == ["s2", "s3", "s4"]
    for name, taught in (("s1", ["s2"]), ("s3", ["s1", "s2"])):
        staged = machine(name, met=False)
        staged.step([Staged("system", 1, MILD[1], {}, "s2", [], 0, "x")], 0.0, 0)
        assert [one for one in file.servers if trusts(staged, one)] == taught
        assert teachers_of(staged) == taught


def test_the_plan_of_a_lesson_is_made_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hundreds of servers it takes seconds, so another thread makes it."""
    world = _world([BUS, MILD[1], topology({"A": "12", "B": "23", "C": "34"}, {**AGENTS, "x": 3, "z": 2})])
    machine, text = world.servers["s4"].machine, lesson_of(world.servers["s1"].machine.organisation).decode()
    participant = Participant(machine, lambda item: machine.step([item], world.now, 0))
    work = participant.preparation("change-learn", [text])
    assert work is not None
    work()

    def plan(*given: Any) -> Any:
        raise AssertionError("the plan was not kept")

    monkeypatch.setattr(learning, "plan_change", plan)
    monkeypatch.setattr(learning, "parse_topology", plan)
    assert participant.learn(text)["learned"]
    assert participant.preparation("change-learn", [text]) is None, "it knows all of it"


def test_a_new_server_with_the_topology_in_force_learns_the_rest() -> None:
    """Its data was lost. Its links find that out once it may connect."""
    world = _world(MILD[:2])
    for text, learned in ((MILD[1], True), (MILD[2], False)):
        file = parse_topology(text)
        machine = AgentServer("s4", plan_of(file), 9)
        machine.begin(file.epoch)
        if learned:
            assert isinstance(item_of(machine, _lesson(world)), Learned)
        else:
            with pytest.raises(TopologyError, match="does not continue"):
                item_of(machine, _lesson(world))


def test_a_server_that_is_not_added_yet_learns_nothing() -> None:
    """It has asked while it took part in a change, which was abandoned before the answer came."""
    file, world = parse_topology(MILD[3]), _world(MILD[:2])
    machine = AgentServer("s5", plan_of(file), 9)
    machine.begin(file.epoch)
    assert item_of(machine, _lesson(world)) is None


def test_new_servers_that_have_met_each_other_learn_that_they_were_added() -> None:
    """The change is staged, and its decision comes as a lesson. The past before it is none of theirs."""
    world = _world(MILD[:2])
    lesson = _lesson(world)
    last = lesson.history[-1]
    file = world.files[-1]
    for attempt, kind in ((last.attempt, Committed), ("other", None)):
        machine = AgentServer("s4", plan_of(file), 9)
        machine.begin(file.epoch)
        machine.step([Staged("", last.change, file.text(), {}, "s1", [], 0, attempt)], 0.0, 0)
        machine.channel.consumers["C"].links["s3"].peer = 7
        before = msgspec.structs.replace(lesson, change=last.change - 1, history=lesson.history[:-1])
        assert item_of(machine, before) is None, "not decided yet"
        if kind is not None:
            assert isinstance(item_of(machine, lesson), kind)
        else:
            with pytest.raises(TopologyError, match="does not continue"):
                item_of(machine, lesson)


def test_who_teaches_whom() -> None:
    world = _world(MILD[:2])
    ahead, behind = world.servers["s3"].machine, world.servers["s4"].machine

    def hello(machine: AgentServer, **other: Any) -> wire.ServerHello:
        links = [wire.LinkHello("C", 0, 0, 0, 0, 0)]
        head = (machine.epoch, machine.name, "", "", links)
        plain = wire.ServerHello(*head, machine.organisation.system, machine.organisation.change)
        return msgspec.structs.replace(plain, **other)

    assert teaches(ahead, hello(behind))
    assert learns(behind, hello(ahead))
    assert not teaches(behind, hello(ahead))
    assert not learns(ahead, hello(behind))
    assert not teaches(ahead, hello(behind, server="s9")), "a server that is not added yet"
    assert teaches(ahead, hello(behind, server="s9", attempt="x")), "it takes part in a change"
    assert not learns(behind, hello(ahead, server="s9")), "a server that the topology does not have"
    behind.organisation.system = "another"
    assert not teaches(ahead, hello(behind))
    assert not learns(behind, hello(ahead))


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"system": 1}', b"[" * 5_000])
def test_junk_is_refused_in_one_line(content: bytes) -> None:
    with pytest.raises(TopologyError, match="unreadable topology of another server") as error:
        read_lesson(content)
    assert "\n" not in str(error.value)


def test_the_longest_lesson() -> None:
    content = msgspec.json.encode(Lesson("s", 1, "", {}, [])).ljust(limits.lesson_bytes_max)
    read_lesson(content)
    with pytest.raises(TopologyError, match=f"expected at most {limits.lesson_bytes_max}"):
        read_lesson(content + b" ")


def test_a_server_that_is_behind_stages_nothing() -> None:
    world = _world(MILD[:2])
    behind = world.servers["s4"]
    stage = {"system": "system", "change": 2, "topology": MILD[2], "since": {}, "coordinator": "s1", "clock_ms": 0}
    given = {**stage, "attempt": "x", "basis": world.files[1].epoch, "members": ["s4"]}
    with pytest.raises(TopologyError, match="server s4 has topology epoch"):
        Participant(behind.machine, lambda item: None).stage(msgspec.json.encode(given).decode())


def test_the_epochs_of_a_server_that_learned_late() -> None:
    """To its processes the missed changes began when it learned them; other servers know the topologies between."""
    world = _world([BUS, MILD[1], topology({"A": "12", "B": "23", "C": "34", "D": "25"}, {**AGENTS, "x": 3, "e": 5})])
    behind = world.servers["s4"]
    for number in (1, 2, 3):
        behind.guard(behind.life, behind.core.driver.feed, Published("bob", number, ("a",), "Note", b"\x00"))
    behind.guard(behind.life, behind.tick)
    assert behind.machine.organisation.change == 0
    world.settle()
    assert behind.machine.organisation.change == 2
    behind.guard(behind.life, behind.core.driver.feed, Published("bob", 4, ("a",), "Note", b"\x00"))
    world.settle()
    listed = {}
    for name, records in world.logs().records.items():
        machine = world.servers[name].machine
        projection = Projection(name, machine.incarnation, world.files[0].organisation, dict.fromkeys(AGENTS, name))
        for record in records:
            projection.rows(record)
        listed[name] = projection.epochs
    assert [(one.change, one.since.get("bob@s4"), bool(one.domains)) for one in listed["s4"]] == [
        (0, None, True),
        (1, 3, False),
        (2, None, True),
    ]
    for lists in ([listed["s4"], listed["s1"]], [listed["s1"], listed["s4"]]):
        epochs = united(lists)
        assert epochs is not None
        assert [bool(one.domains) for one in epochs.listed] == [True] * len(epochs.listed)
        # What it sent while it was behind belongs to the topology that it knew.
        assert [epochs.listed[epochs.of("bob@s4", index)].change for index in range(4)] == [0, 0, 0, 2]
